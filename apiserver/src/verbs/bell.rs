//! Wakes the watches of a serving thread together. To wake a task of another thread is a system call; a change that a
//! hundred watchers see would pay for a hundred of them. So who tells the watchers of a change leaves their wakers in a
//! list, rings once, and the thread that sleeps there wakes its own.

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;
use parking_lot::Mutex;

thread_local! {
    static BELL: RefCell<Option<Arc<Bell>>> = const { RefCell::new(None) };
}

/// The list of a thread.
#[derive(Default)]
struct Bell {
    due: Mutex<Vec<Waker>>,
    thread: AtomicWaker,
}

impl Bell {
    /// That of this thread, which has a task that answers it.
    fn here() -> Arc<Self> {
        if let Some(bell) = BELL.with_borrow(Clone::clone) {
            return bell;
        }
        let bell = Arc::new(Self::default());
        BELL.set(Some(bell.clone()));
        let answered = Answered(bell.clone());
        tokio::task::spawn_local(poll_fn(move |cx| answered.0.answer(cx)));
        bell
    }

    fn ring(&self, task: Waker) {
        let mut due = self.due.lock();
        due.push(task);
        let first = due.len() == 1;
        drop(due);
        if first {
            self.thread.wake();
        }
    }

    fn answer(&self, cx: &Context<'_>) -> Poll<()> {
        // Registered before it looks: who rings in between is heard.
        self.thread.register(cx.waker());
        let due = mem::take(&mut *self.due.lock());
        due.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

/// A bell whose thread answers it, until the runtime ends.
struct Answered(Arc<Bell>);

impl Drop for Answered {
    fn drop(&mut self) {
        BELL.set(None);
    }
}

/// A task behind its thread's bell.
struct Sleeper {
    bell: Arc<Bell>,
    task: Waker,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.ring(self.task.clone());
    }
}

/// The waker of a task that polls, behind the bell; kept while the task is the same.
#[derive(Default)]
pub struct Bedside(Option<(Waker, Waker)>);

impl Bedside {
    /// Polls with the bell in between.
    pub fn poll<T>(&mut self, cx: &Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let task = cx.waker();
        if self.0.as_ref().is_none_or(|(known, _)| !known.will_wake(task)) {
            let behind = Waker::from(Arc::new(Sleeper { bell: Bell::here(), task: task.clone() }));
            self.0 = Some((task.clone(), behind));
        }
        let behind = self.0.as_ref().map_or(task, |(_, behind)| behind);
        poll(&mut Context::from_waker(behind))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::sync::mpsc;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn all_who_are_told_at_once_wake_and_hear_everything() {
        let heard = Rc::new(Cell::new(0));
        let all = async {
            let mut senders = Vec::new();
            for _ in 0..50 {
                let (sender, mut receiver) = mpsc::channel::<u32>(8);
                senders.push(sender);
                let heard = heard.clone();
                tokio::task::spawn_local(async move {
                    let mut bed = Bedside::default();
                    while let Some(n) = poll_fn(|cx| bed.poll(cx, |cx| receiver.poll_recv(cx))).await {
                        heard.set(heard.get() + n);
                    }
                });
            }
            yield_now().await;
            let teller = std::thread::spawn(move || {
                for n in 1..=3 {
                    for sender in &senders {
                        sender.blocking_send(n).expect("somebody listens");
                    }
                }
            });
            while heard.get() < 50 * 6 {
                yield_now().await;
            }
            teller.join().expect("told");
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), LocalSet::new().run_until(all)).await.expect("heard");
    }
}
