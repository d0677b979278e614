//! Heartbeat of the threads that controllers run on, for the checks of health. It stops when none of them comes to its
//! tasks any more.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use shared::run::Shutdown;
use tokio::time::Instant;

const BEAT: Duration = Duration::from_secs(1);
/// A thread that has not come to its tasks for so long is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Time at which the heartbeat task ran last. Read on another thread, by the checks of health.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<Mutex<Instant>>);

impl Default for Heartbeat {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

/// No controller has run for longer than it should take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no controller has run for {seconds}s")]
pub struct Stuck {
    seconds: u64,
}

impl Heartbeat {
    /// Beats until the end of the term.
    pub async fn beat(self, term: Shutdown) {
        while !term.is_triggered() {
            *self.0.lock() = Instant::now();
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                () = term.wait() => {}
            }
        }
    }

    /// Fails when nothing has run for a minute.
    ///
    /// # Errors
    /// [`Stuck`].
    pub fn check(&self) -> Result<(), Stuck> {
        let since = self.0.lock().elapsed();
        if since > STUCK { Err(Stuck { seconds: since.as_secs() }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stuck_thread_fails_the_check() {
        let (heartbeat, term) = (Heartbeat::default(), Shutdown::new());
        let beating = tokio::spawn(heartbeat.clone().beat(term.clone()));
        tokio::time::sleep(STUCK * 3).await;
        assert_eq!(heartbeat.check(), Ok(()));
        *heartbeat.0.lock() = Instant::now() - STUCK - BEAT;
        assert_eq!(heartbeat.check(), Err(Stuck { seconds: 61 }));
        term.trigger();
        beating.await.expect("it ends with the term");
    }
}
