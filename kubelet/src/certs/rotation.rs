//! Keeps a certificate from ending: it is asked for anew when most of its life is over.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::request::Wanted;
use super::store::{Leaf, Store};
use crate::metrics;

/// The pause after a failure, and its largest; it doubles, unless there is no certificate at all: the API server that is
/// to issue it may just be starting on this node.
const PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(32);
/// The least time between two certificates: a signer whose certificates are never good enough is not asked without end.
const REST: Duration = Duration::from_secs(1);

/// Time to request a new certificate: after seven to nine tenths of this one's life, as `dice` (0 to 1) says, so that
/// the nodes of a cluster do not all ask at once. At once, when the names are not those wanted.
fn due(leaf: Option<&Leaf>, wanted: &Wanted, dice: f64) -> i64 {
    let Some(leaf) = leaf.filter(|leaf| wanted.is_met_by(leaf)) else { return 0 };
    #[allow(clippy::cast_possible_truncation, reason = "0 to 200")]
    let thousandths = 700 + (200.0 * dice) as i64;
    let used = (leaf.not_after - leaf.not_before) * thousandths / 1000;
    leaf.not_before + used
}

/// The certificate that is kept.
pub(super) struct Rotation {
    pub(super) store: Store,
    pub(super) wanted: Wanted,
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
        let Self { store, wanted, mut at_once } = self;
        let (mut pause, role) = (PAUSE, wanted.role());
        loop {
            let leaf = store.load();
            metrics::certificate(role, leaf.as_ref().map(|leaf| leaf.not_after));
            let due = if at_once { 0 } else { due(leaf.as_ref(), &wanted, rand::random()) };
            let wait = Duration::from_secs(u64::try_from(due - Timestamp::now().as_second()).unwrap_or(0));
            tracing::debug!(file = %store.current().display(), seconds = wait.as_secs(), "Waiting for the certificate rotation");
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
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

fn is_valid(leaf: Option<&Leaf>) -> bool {
    leaf.is_some_and(|leaf| leaf.not_after > Timestamp::now().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_in_time() {
        let wanted = Wanted::client("n");
        let leaf = Leaf { not_before: 1000, not_after: 2000, ..Leaf::default() };
        for (leaf, dice, want) in
            [(Some(&leaf), 0.0, 1700), (Some(&leaf), 0.5, 1800), (Some(&leaf), 1.0, 1900), (None, 0.5, 0)]
        {
            assert_eq!(due(leaf, &wanted, dice), want, "{dice}");
        }
        let serving = Wanted::serving("n", "n", &["192.0.2.1".parse().expect("ip")]).expect("an address");
        assert_eq!(due(Some(&leaf), &serving, 0.5), 0, "its names are others");
        let mut more = Leaf { names: vec!["a".to_owned(), "n".to_owned()], ..leaf };
        more.addresses = ["192.0.2.1", "192.0.2.9"].map(|ip| ip.parse().expect("ip")).into();
        assert_eq!(due(Some(&more), &serving, 0.5), 1800, "the signer added names");
    }
}
