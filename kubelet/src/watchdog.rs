//! The service manager's watchdog, fed for as long as `/healthz` says that the kubelet is well.
//!
//! Answers for `pkg/kubelet/watchdog`. In: the health of the sync loop. Out: `WATCHDOG=1` every half of `WatchdogSec=`; a
//! unit that is not heard is restarted by systemd.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Pause before the second and last attempt to send a message.
const RETRY: Duration = Duration::from_secs(1);

/// Feeds the watchdog until the token is cancelled: at once, then every half of `limit`. Nothing is sent while the kubelet
/// is not well.
pub async fn run(
    limit: Duration,
    is_stuck: impl Fn() -> bool,
    notify: impl Fn() -> std::io::Result<()>,
    token: CancellationToken,
) {
    let interval = limit / 2;
    tracing::info!(?interval, "Starting systemd watchdog with interval");
    let mut ticks = tokio::time::interval(interval);
    loop {
        tokio::select! {
            () = token.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if is_stuck() {
            tracing::error!(
                err = "checker syncloop failed",
                "Do not notify watchdog this iteration as the kubelet is reportedly not healthy"
            );
            continue;
        }
        if notify().is_ok() {
            continue;
        }
        tokio::time::sleep(RETRY).await;
        if let Err(error) = notify() {
            tracing::error!(err = %error, retries = 2, "Failed to notify watchdog");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watchdog_is_fed_twice_in_its_time_and_only_while_the_kubelet_is_well() {
        let (stuck, fed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_stuck, feed, token) = (Arc::clone(&stuck), Arc::clone(&fed), CancellationToken::new());
        let notify = move || {
            feed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let running =
            tokio::spawn(run(Duration::from_secs(60), move || is_stuck.load(Ordering::Relaxed), notify, token.clone()));
        tokio::time::sleep(Duration::from_secs(95)).await;
        assert_eq!(fed.load(Ordering::Relaxed), 4, "after 0, 30, 60 and 90 seconds");
        stuck.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(fed.load(Ordering::Relaxed), 4);
        stuck.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(fed.load(Ordering::Relaxed), 5);
        token.cancel();
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_are_not_taken_are_sent_once_more() {
        let tried = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&tried);
        let notify = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Err(std::io::Error::other("full"))
        };
        let token = CancellationToken::new();
        let running = tokio::spawn(run(Duration::from_secs(60), || false, notify, token.clone()));
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(tried.load(Ordering::Relaxed), 2);
        token.cancel();
        running.await.unwrap();
    }
}
