//! Questions about many nodes, asked on several threads. Answers for upstream's `pkg/scheduler/framework/parallelize`.
//!
//! HOT (held by `examples/throughput.rs`). The answers come in the order of the questions, so that a decision is the same
//! however many threads it took. Threads are started for one round of questions and end with it: most rounds are too short
//! for them, which the first few questions tell. Nothing may be locked here: whoever asks holds no lock, and what answers
//! takes its own for the length of a look-up.

use std::thread::{Builder, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

/// Questions that are asked on the thread at hand before others are thought of.
const TRIAL: usize = 16;
/// Work that a thread of its own has to be worth; starting one takes a fifth of that.
const WORTH: Duration = Duration::from_micros(200);

/// Number of threads for one round of questions, the asking one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    most: usize,
    worth: Duration,
}

impl Default for Threads {
    fn default() -> Self {
        Self::ONE
    }
}

/// Share of a round that is one thread's.
enum RoundShare<'scope, 'a, I, O> {
    Apart(ScopedJoinHandle<'scope, Vec<O>>),
    /// No thread could be started for it.
    Here(&'a [I]),
}

impl Threads {
    /// All on the asking thread.
    pub const ONE: Self = Self { most: 1, worth: WORTH };

    /// Threads that the process may use, by its processors and `GOMAXPROCS`, but no more than `parallelism`.
    pub fn up_to(parallelism: usize) -> Self {
        Self { most: shared::run::worker_threads(1).min(parallelism).max(1), worth: WORTH }
    }

    /// So many for however little work, so that tests see them.
    #[cfg(test)]
    pub fn always(most: usize) -> Self {
        Self { most, worth: Duration::ZERO }
    }

    /// Reports whether there is but the asking thread.
    pub fn is_one(self) -> bool {
        self.most == 1
    }

    /// The answers to all questions, in their order.
    pub fn map<I: Sync, O: Send>(self, questions: &[I], ask: impl Fn(&I) -> O + Sync) -> Vec<O> {
        if self.most == 1 || questions.len() <= TRIAL && self.worth > Duration::ZERO {
            return questions.iter().map(ask).collect();
        }
        let (tried, rest) = questions.split_at(TRIAL.min(questions.len() / 2));
        let begun = Instant::now();
        let mut out = Vec::with_capacity(questions.len());
        out.extend(tried.iter().map(&ask));
        match self.parts(begun.elapsed(), tried.len(), rest.len()) {
            1 => out.extend(rest.iter().map(&ask)),
            parts => spread(rest, parts, &ask, &mut out),
        }
        out
    }

    /// Number of threads that the rest is worth, by the time that the first took.
    fn parts(self, took: Duration, tried: usize, rest: usize) -> usize {
        let most = self.most.min(rest.max(1));
        if self.worth.is_zero() {
            return most;
        }
        let left = took.as_nanos().saturating_mul(rest as u128) / tried.max(1) as u128;
        usize::try_from(left / self.worth.as_nanos()).unwrap_or(usize::MAX).clamp(1, most)
    }
}

fn spread<I: Sync, O: Send>(questions: &[I], parts: usize, ask: &(impl Fn(&I) -> O + Sync), out: &mut Vec<O>) {
    let (own, others) = questions.split_at(questions.len().div_ceil(parts));
    scope(|threads| {
        let others: Vec<RoundShare<'_, '_, I, O>> = others
            .chunks(own.len())
            .map(|part| {
                let all = move || part.iter().map(ask).collect::<Vec<O>>();
                match Builder::new().name("nodes".to_owned()).spawn_scoped(threads, all) {
                    Ok(thread) => RoundShare::Apart(thread),
                    Err(_) => RoundShare::Here(part),
                }
            })
            .collect();
        out.extend(own.iter().map(ask));
        for part in others {
            match part {
                RoundShare::Here(part) => out.extend(part.iter().map(ask)),
                RoundShare::Apart(thread) => match thread.join() {
                    Ok(answers) => out.extend(answers),
                    // The attempt ends as if the panic had been on its own thread.
                    Err(panic) => std::panic::resume_unwind(panic),
                },
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        for (most, count) in [(1, 7), (2, 1), (3, 2), (3, 100), (8, 1000), (64, 50), (4, 0)] {
            let questions: Vec<usize> = (0..count).collect();
            let want: Vec<usize> = questions.iter().map(|n| n * 2).collect();
            assert_eq!(Threads::always(most).map(&questions, |n| n * 2), want, "{most} threads, {count} questions");
        }
    }

    #[test]
    fn little_work_stays_on_the_asking_thread() {
        let threads = Threads { most: 4, worth: Duration::from_millis(1) };
        for (took, tried, rest, parts) in [(10, 10, 500, 1), (10, 10, 3000, 3), (10, 10, 90_000, 4), (900, 10, 2, 1)] {
            assert_eq!(threads.parts(Duration::from_micros(took), tried, rest), parts, "{took} {tried} {rest}");
        }
        assert_eq!(Threads::always(4).parts(Duration::ZERO, 1, 2), 2, "no more threads than questions");
    }

    #[test]
    fn much_work_is_spread() {
        let seen = Mutex::new(HashSet::new());
        let questions = [(); 64];
        Threads::always(4).map(&questions, |()| seen.lock().insert(std::thread::current().id()));
        assert_eq!(seen.into_inner().len(), 4);
    }

    #[test]
    fn panic_of_an_answer_is_the_asking_threads() {
        let ask = || Threads::always(4).map(&[1, 2, 3, 4, 5, 6, 7, 8], |n| assert!(*n < 8, "eight"));
        assert!(shared::run::contained(ask).is_err_and(|panic| panic.to_string().contains("eight")));
    }
}
