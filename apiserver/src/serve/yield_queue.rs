//! Turns of big answers: between two chunks of them a serving thread looks at its connections, so that a small request
//! waits for one chunk and not for the lists of somebody who asks for all he can. Flow control bounds how many big
//! answers there are at a time; this bounds what they do to everybody else on their thread.
//!
//! Short answers go first, then those that began earlier: answers end one after another and give their seats back,
//! instead of all together late. Nobody holds a turn: who is called and does not come delays nobody.

use std::cell::RefCell;
use std::collections::BTreeMap;

use futures::StreamExt as _;
use futures::stream::LocalBoxStream;
use tokio::sync::oneshot;

/// A chunk of fewer bytes took no time worth a turn.
const SMALL: usize = 8 << 10;
/// An answer of more chunks is long.
const SHORT: u64 = 4;
/// Turns that a short answer is ahead of a long one. Who has waited for longer than that is not overtaken.
const AHEAD: u64 = 512;

thread_local! {
    static QUEUE: RefCell<YieldQueue> = RefCell::default();
}

/// Tasks of a thread that wait for their turn.
#[derive(Default)]
struct YieldQueue {
    turn: u64,
    joined: u64,
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
    called: bool,
}

impl YieldQueue {
    /// A place among those of the same `key`, the lowest of which are called first.
    fn enqueue(&mut self, key: u64) -> oneshot::Receiver<()> {
        let (call, called) = oneshot::channel();
        self.joined += 1;
        self.waiting.insert((key, self.joined), call);
        called
    }

    /// Calls one who is still there; false when nobody is.
    fn wake_next(&mut self) -> bool {
        self.turn += 1;
        while let Some((_, one)) = self.waiting.pop_first() {
            if one.send(()).is_ok() {
                return true;
            }
        }
        false
    }
}

/// Calls until nobody waits. Each time the runtime does first what else there is to do, and looks for more of it.
async fn wake_all() {
    let _end = WakerGuard;
    loop {
        tokio::task::yield_now().await;
        if !QUEUE.with_borrow_mut(YieldQueue::wake_next) {
            return;
        }
    }
}

/// Somebody calls until this is dropped.
struct WakerGuard;

impl Drop for WakerGuard {
    fn drop(&mut self) {
        QUEUE.with_borrow_mut(|queue| queue.called = false);
    }
}

/// Waits for a turn on this thread.
async fn wait_turn(key: u64) {
    let (called, begin) =
        QUEUE.with_borrow_mut(|queue| (queue.enqueue(key), !std::mem::replace(&mut queue.called, true)));
    if begin {
        tokio::task::spawn_local(wake_all());
    }
    // Nobody calls any more only where the thread ends.
    called.await.ok();
}

struct YieldingResponse<S> {
    chunks: S,
    born: u64,
    taken: u64,
    due: bool,
}

/// An answer that takes turns with the others of its thread.
pub(super) fn yielding_between_chunks<'a, E: 'a>(
    chunks: LocalBoxStream<'a, Result<bytes::Bytes, E>>,
) -> LocalBoxStream<'a, Result<bytes::Bytes, E>> {
    let answer = YieldingResponse { chunks, born: QUEUE.with_borrow(|queue| queue.turn), taken: 0, due: false };
    futures::stream::unfold(answer, async |mut answer| {
        if answer.due {
            wait_turn(answer.born + if answer.taken < SHORT { 0 } else { AHEAD }).await;
            answer.taken += 1;
        }
        let next = answer.chunks.next().await?;
        answer.due = next.as_ref().is_ok_and(|chunk| chunk.len() >= SMALL);
        Some((next, answer))
    })
    .boxed_local()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::rc::Rc;

    use bytes::Bytes;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;

    use super::*;

    #[test]
    fn lowest_key_is_woken_first_and_dropped_waiters_are_skipped() {
        let mut queue = YieldQueue::default();
        let (late, gone) = (queue.enqueue(7), queue.enqueue(1));
        let (early, other) = (queue.enqueue(3), queue.enqueue(3));
        drop(gone);
        for mut one in [early, other, late] {
            assert!(one.try_recv().is_err());
            assert!(queue.wake_next());
            assert!(one.try_recv().is_ok());
        }
        assert!(!queue.wake_next());
        assert_eq!(queue.turn, 4);
    }

    fn answer(chunks: usize, made: impl Fn(usize) + 'static) -> LocalBoxStream<'static, Result<Bytes, Infallible>> {
        let chunks = futures::stream::iter(0..chunks).map(move |i| {
            made(i);
            Ok(Bytes::from_static(&[0; SMALL]))
        });
        yielding_between_chunks(chunks.boxed_local())
    }

    #[tokio::test]
    async fn short_and_older_responses_go_first() {
        let ended = Rc::new(RefCell::new(Vec::new()));
        let run = |name: &'static str, chunks: usize| {
            let ended = ended.clone();
            async move {
                answer(chunks, |_| {}).count().await;
                ended.borrow_mut().push(name);
            }
        };
        let all = async {
            tokio::join!(run("first", 40), run("second", 40), async {
                answer(5, |_| {}).count().await;
                run("short", 4).await;
            })
        };
        LocalSet::new().run_until(all).await;
        assert_eq!(*ended.borrow(), ["short", "first", "second"]);
    }

    #[tokio::test]
    async fn long_waiting_responses_are_not_overtaken() {
        let shorts = Rc::new(Cell::new(0_u64));
        let all = async {
            let old = answer(40, |_| {});
            let begun = futures::stream::iter(0..).map(|_| {
                let shorts = shorts.clone();
                answer(4, move |_| shorts.set(shorts.get() + 1))
            });
            tokio::select! {
                _ = old.count() => {}
                () = begun.for_each_concurrent(8, async |one| { one.count().await; }) => {}
            }
        };
        LocalSet::new().run_until(all).await;
        assert!(shorts.get() < 3 * AHEAD, "{}", shorts.get());
    }

    #[tokio::test]
    async fn connections_are_polled_between_chunks() {
        let made = Rc::new(Cell::new(0));
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let near = Rc::new(near);
        near.writable().await.expect("open");
        let count = made.clone();
        let answers = (0..10).map(|_| {
            let (made, near) = (made.clone(), near.clone());
            answer(40, move |_| {
                made.set(made.get() + 1);
                if made.get() == 200 {
                    near.try_write(b"?").expect("room");
                }
            })
        });
        let small = async {
            far.read_u8().await.expect("the question");
            count.get()
        };
        let big = futures::future::join_all(answers.map(|answer| answer.count()));
        let (seen, _) = LocalSet::new().run_until(async { tokio::join!(small, big) }).await;
        assert!(seen <= 202, "{} chunks were made before it was seen", seen - 200);
    }
}
