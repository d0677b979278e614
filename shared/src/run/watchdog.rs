//! A watch over how long a task holds its thread: what is not awaited delays every other task there.
//!
//! What holds it for a second is told of always, what holds it for a tenth from verbosity 2 on, with the processor time of it.
//! Tests ask for [`Polls`], and benchmarks for what is told: both count processor time, so that a busy machine fails none of
//! them.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::log::verbosity;

/// Time that a task may hold its thread before that is told.
const LIMIT: Duration = Duration::from_secs(1);
/// A shorter time, told of from this verbosity on.
const CLOSE_LIMIT: Duration = Duration::from_millis(100);
const CLOSE: u32 = 2;

/// Polls of the tasks of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Polls {
    /// Number of polls.
    pub count: u64,
    /// The longest of them, in processor time.
    pub longest: Duration,
    /// Name of the task that it belonged to.
    pub task: &'static str,
}

thread_local! {
    static MEASURED: Cell<Option<Polls>> = const { Cell::new(None) };
    /// Processor time of what is no part of the polls that it runs in.
    static APART: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Measures the polls of tasks on this thread from now on, anew.
pub fn measure_polls() {
    MEASURED.set(Some(Polls::default()));
}

/// Ends what [`measure_polls`] began; what was measured.
pub fn measured_polls() -> Polls {
    MEASURED.take().unwrap_or_default()
}

/// Runs `work`; the processor time that this thread took for it. For tests of how costs grow.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    measure_polls();
    let begun = processor_time().unwrap_or_default();
    let done = work();
    let used = processor_time().unwrap_or_default().saturating_sub(begun);
    measured_polls();
    (done, used)
}

/// Runs `work`, whose processor time counts to no poll that is measured: that of a simulated server, say, whose answers are
/// made where its client reads them.
pub fn apart<T>(work: impl FnOnce() -> T) -> T {
    let begun = processor_time();
    let done = work();
    if let (Some(begun), Some(now)) = (begun, processor_time()) {
        APART.set(APART.get() + now.saturating_sub(begun));
    }
    done
}

/// Processor time that all threads of this process have used together. For benchmarks.
pub fn process_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// Processor time that this thread has used; nothing where no one measures or is told of it.
fn processor_time() -> Option<Duration> {
    let wanted = MEASURED.get().is_some() || verbosity() >= CLOSE;
    let used = wanted.then(|| clock(libc::CLOCK_THREAD_CPUTIME_ID)).flatten()?;
    Some(used.saturating_sub(APART.get()))
}

#[allow(unsafe_code, reason = "clock_gettime is an unsafe call")]
fn clock(which: libc::clockid_t) -> Option<Duration> {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the value that it is given, which lives here.
    let failed = unsafe { libc::clock_gettime(which, &raw mut used) };
    let seconds = u64::try_from(used.tv_sec).ok().filter(|_| failed == 0)?;
    Some(Duration::new(seconds, u32::try_from(used.tv_nsec).unwrap_or(0)))
}

fn measure(task: &'static str, held: Option<Duration>) {
    let (Some(mut polls), Some(held)) = (MEASURED.get(), held) else { return };
    polls.count += 1;
    if held > polls.longest {
        (polls.longest, polls.task) = (held, task);
    }
    MEASURED.set(Some(polls));
}

/// A task of which each poll is timed.
pub(super) struct Watched {
    task: &'static str,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    report: fn(&'static str, Duration, Option<Duration>),
}

impl Watched {
    pub(super) fn new(task: &'static str, future: Pin<Box<dyn Future<Output = ()> + Send>>) -> Self {
        Self { task, future, report: tell }
    }
}

impl Future for Watched {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (begun, used) = (Instant::now(), processor_time());
        let polled = self.future.as_mut().poll(cx);
        let used = processor_time().zip(used).map(|(now, begun)| now.saturating_sub(begun));
        (self.report)(self.task, begun.elapsed(), used);
        measure(self.task, used);
        polled
    }
}

fn tell(task: &'static str, held: Duration, used: Option<Duration>) {
    if held > LIMIT {
        tracing::warn!(task, held = ?held, used = ?used.unwrap_or_default(), "Task blocked its thread");
    } else if held > CLOSE_LIMIT && verbosity() >= CLOSE {
        tracing::info!(task, held = ?held, used = ?used.unwrap_or_default(), "Task blocked its thread");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn polls_are_measured_in_processor_time() {
        let poll = async |work: fn()| {
            measure_polls();
            let work = async move {
                work();
                tokio::task::yield_now().await;
            };
            Watched { task: "busy", future: Box::pin(work), report: tell }.await;
            measured_polls()
        };
        let idle = poll(|| std::thread::sleep(Duration::from_millis(50))).await;
        assert!(idle.longest < Duration::from_millis(40), "{idle:?}");
        let busy = poll(|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(200) {
                std::hint::spin_loop();
            }
        });
        let busy = busy.await;
        assert!(busy.longest > Duration::from_millis(5) && busy.longest > idle.longest, "{busy:?}");
        assert_eq!((busy.task, busy.count), ("busy", 2));
        assert_eq!(measured_polls().count, 0, "once it is over nothing is measured");
    }

    #[tokio::test]
    async fn work_that_is_no_part_of_a_poll_does_not_count() {
        let spin = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(200) {
                std::hint::spin_loop();
            }
        };
        measure_polls();
        Watched { task: "busy", future: Box::pin(async move { apart(spin) }), report: tell }.await;
        let polls = measured_polls();
        assert!(polls.count == 1 && polls.longest < Duration::from_millis(4), "{polls:?}");
    }

    static LONGEST: AtomicU64 = AtomicU64::new(0);

    #[tokio::test]
    async fn polls_are_timed_one_by_one() {
        let work = async {
            std::thread::sleep(Duration::from_millis(20));
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_millis(20));
        };
        let report = |_: &'static str, held: Duration, _: Option<Duration>| {
            LONGEST.fetch_max(u64::try_from(held.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        };
        let begun = Instant::now();
        Watched { task: "busy", future: Box::pin(work), report }.await;
        let (longest, all) = (LONGEST.load(Ordering::Relaxed), begun.elapsed().as_millis());
        assert!(longest >= 20 && u128::from(longest) + 20 <= all, "{longest} of {all}");
    }
}
