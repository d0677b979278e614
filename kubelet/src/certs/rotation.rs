//! Keeps a certificate from ending: it is asked for anew when most of its life is over.
//! Answers for the manager of upstream's `client-go/util/certificate` (`nextRotationDeadline`).

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::request::CertificateContents;
use super::store::{Leaf, Store};
use crate::metrics;

/// The pause after a failure, and its largest; it doubles, unless there is no certificate at all: the API server that is
/// to issue it may just be starting on this node.
const PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(32);
/// The least time between two certificates: a signer whose certificates are never good enough is not asked without end.
const REST: Duration = Duration::from_secs(1);
/// Time between two looks at the clock.
const LOOK: Duration = Duration::from_secs(60);

/// Time to request a new certificate: after seven to nine tenths of this one's life, as `dice` (0 to 1) says, so that
/// the nodes of a cluster do not all ask at once. At once, when the names are not those wanted.
fn due(leaf: Option<&Leaf>, wanted: &CertificateContents, dice: f64) -> i64 {
    let Some(leaf) = leaf.filter(|leaf| wanted.is_met_by(leaf)) else { return 0 };
    #[allow(clippy::cast_possible_truncation, reason = "0 to 200")]
    let thousandths = 700 + (200.0 * dice) as i64;
    let used = (leaf.not_after - leaf.not_before) * thousandths / 1000;
    leaf.not_before + used
}

/// The certificate that is kept.
pub(super) struct Rotation {
    pub(super) store: Store,
    /// Contents that the certificate is to have, which may become others; none as long as they are not known.
    pub(super) wanted: watch::Receiver<Option<CertificateContents>>,
    /// Replaces the one there is now before its time, as upstream does with one out of a kubeconfig.
    pub(super) at_once: bool,
}

impl Rotation {
    /// Renews the certificate until shutdown; `renewed` is told of each new one. Requests go through the client that
    /// `clients` gives for whether there is a certificate that has not ended.
    pub(super) async fn keep(
        self,
        clients: impl Fn(bool) -> kube::Client + Send,
        renewed: impl Fn() + Send,
        shutdown: CancellationToken,
    ) {
        let Self { store, wanted: mut contents, mut at_once } = self;
        let mut pause = PAUSE;
        loop {
            let Some(wanted) = contents.borrow_and_update().clone() else {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = changed(&mut contents) => continue,
                }
            };
            let role = wanted.role();
            let leaf = store.load();
            metrics::certificate(role, leaf.as_ref().map(|leaf| leaf.not_after));
            let due = if at_once { 0 } else { due(leaf.as_ref(), &wanted, rand::random()) };
            let seconds = (due - Timestamp::now().as_second()).max(0);
            tracing::debug!(file = %store.current().display(), seconds, "Waiting for the certificate rotation");
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = changed(&mut contents) => continue,
                () = until(due, || Timestamp::now().as_second()) => {}
            }
            tracing::info!(file = %store.current().display(), "Rotating certificates");
            let client = clients(is_valid(leaf.as_ref()));
            let obtained = tokio::select! {
                () = shutdown.cancelled() => return,
                obtained = wanted.obtain(&client) => obtained,
            };
            let stored = obtained.and_then(|(certificate, key)| store.update(&certificate, &key, Timestamp::now()));
            match stored {
                Ok(()) => {
                    if let Some(leaf) = leaf {
                        metrics::certificate_replaced(role, Timestamp::now().as_second() - leaf.not_before);
                    }
                    (pause, at_once) = (PAUSE, false);
                    renewed();
                    tokio::select! {
                        () = shutdown.cancelled() => return,
                        () = tokio::time::sleep(REST) => {}
                    }
                }
                Err(error) => {
                    metrics::certificate_failed(role);
                    tracing::error!(
                        error = format!("{error:#}"),
                        "Failed while requesting a signed certificate from the control plane"
                    );
                    tokio::select! {
                        () = shutdown.cancelled() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                    pause = if leaf.is_none() { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                }
            }
        }
    }
}

/// Waits until other contents are wanted; for ever where they stay.
async fn changed(contents: &mut watch::Receiver<Option<CertificateContents>>) {
    if contents.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits until the clock shows this time, in seconds. The clock is looked at again and again, for it may be set forward.
async fn until(due: i64, clock: impl Fn() -> i64) {
    while let Some(left) = u64::try_from(due - clock()).ok().filter(|left| *left > 0) {
        tokio::time::sleep(Duration::from_secs(left).min(LOOK)).await;
    }
}

fn is_valid(leaf: Option<&Leaf>) -> bool {
    leaf.is_some_and(|leaf| leaf.not_after > Timestamp::now().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_forward_does_not_let_a_certificate_end() {
        let begun = tokio::time::Instant::now();
        let (ahead, passed) = (AtomicI64::new(0), || i64::try_from(begun.elapsed().as_secs()).expect("seconds"));
        let mut waiting = std::pin::pin!(until(1_000_000, || passed() + ahead.load(Ordering::Relaxed)));
        assert!(tokio::time::timeout(Duration::from_secs(500), &mut waiting).await.is_err(), "it is not time");
        ahead.store(1_000_000, Ordering::Relaxed);
        tokio::time::timeout(LOOK, waiting).await.expect("seen at the next look");
    }

    #[test]
    fn certificates_are_renewed_in_time() {
        let wanted = CertificateContents::client("n");
        let leaf = Leaf { not_before: 1000, not_after: 2000, ..Leaf::default() };
        for (leaf, dice, want) in
            [(Some(&leaf), 0.0, 1700), (Some(&leaf), 0.5, 1800), (Some(&leaf), 1.0, 1900), (None, 0.5, 0)]
        {
            assert_eq!(due(leaf, &wanted, dice), want, "{dice}");
        }
        let serving = CertificateContents::serving("n", "n", &["192.0.2.1".parse().expect("ip")]).expect("an address");
        assert_eq!(due(Some(&leaf), &serving, 0.5), 0, "its names are others");
        let mut more = Leaf { names: vec!["a".to_owned(), "n".to_owned()], ..leaf };
        more.addresses = ["192.0.2.1", "192.0.2.9"].map(|ip| ip.parse().expect("ip")).into();
        assert_eq!(due(Some(&more), &serving, 0.5), 1800, "the signer added names");
    }
}
