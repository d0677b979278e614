//! Wake-ups of a connection. A response that hands over bytes wakes its connection, which is polled right after all
//! responses; waking its task as well would poll everything twice for each frame.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;

/// Passes wakes on to the task, but for those that come while the answers are polled.
#[derive(Default)]
struct Ear {
    task: AtomicWaker,
    /// Written on the task's thread alone; what others read meanwhile may be old, and all it costs them is a wake that the
    /// task's look at the connection makes good.
    answering: AtomicBool,
}

impl Wake for Ear {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.answering.load(Ordering::Acquire) {
            self.task.wake();
        }
    }
}

/// See the module.
pub(super) struct Wakes {
    ear: Arc<Ear>,
    waker: Waker,
}

impl Wakes {
    pub(super) fn new() -> Self {
        let ear = Arc::<Ear>::default();
        Self { waker: Waker::from(ear.clone()), ear }
    }

    /// Polls answers. The connection has to be polled, through [`Wakes::connection`], before the task rests.
    pub(super) async fn answers<T>(&self, answers: impl Future<Output = T>) -> T {
        let mut answers = pin!(answers);
        std::future::poll_fn(|cx| {
            self.ear.answering.store(true, Ordering::Release);
            let polled = answers.as_mut().poll(cx);
            self.ear.answering.store(false, Ordering::Release);
            polled
        })
        .await
    }

    /// Polls the connection.
    pub(super) async fn connection<T>(&self, connection: impl Future<Output = T>) -> T {
        let mut connection = pin!(connection);
        std::future::poll_fn(|cx| self.poll(cx, connection.as_mut())).await
    }

    fn poll<T>(&self, cx: &mut Context<'_>, connection: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        self.ear.task.register(cx.waker());
        connection.poll(&mut Context::from_waker(&self.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    #[test]
    fn only_answers_do_not_wake() {
        let count = Arc::new(Counted::default());
        let task = Waker::from(count.clone());
        let mut cx = Context::from_waker(&task);
        let wakes = Wakes::new();
        let look = pin!(wakes.connection(poll_fn(|cx| Poll::Ready(cx.waker().clone()))));
        let Poll::Ready(waker) = look.poll(&mut cx) else { panic!("it is ready") };
        let answer = pin!(wakes.answers(async { waker.wake_by_ref() }));
        assert!(answer.poll(&mut cx).is_ready());
        assert_eq!(count.0.load(Ordering::Acquire), 0, "it is looked at anyway");
        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Acquire), 1, "as bytes that came do");
    }
}
