//! The node's Lease in `kube-node-lease`: the cheap heartbeat.
//! Answers for `component-helpers/apimachinery/lease` of upstream.

use crate::calls::timely;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, PostParams};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "kube-node-lease";
/// The lease is renewed four times in its duration.
const RENEWALS: u32 = 4;
/// Wait after a failed attempt, doubled up to [`LONGEST_RETRY`].
const RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(7);

/// The lease's next version.
fn renewed(found: Option<Lease>, node: &str, node_uid: &str, seconds: i32, now: Timestamp) -> Lease {
    let mut lease = found.unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) && !node_uid.is_empty() {
        lease.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: node_uid.to_owned(),
            ..OwnerReference::default()
        }]);
    }
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(node.to_owned());
    spec.lease_duration_seconds = Some(seconds);
    spec.renew_time = Some(MicroTime(now));
    lease
}

async fn beat(api: &Api<Lease>, known: &mut Option<Lease>, node: &str, uid: &str, seconds: i32) -> kube::Result<()> {
    if known.is_none() {
        *known = api.get_opt(node).await?;
    }
    let next = renewed(known.clone(), node, uid, seconds, Timestamp::now());
    let written = match known.take() {
        Some(_) => api.replace(node, &PostParams::default(), &next).await?,
        None => api.create(&PostParams::default(), &next).await?,
    };
    *known = Some(written);
    Ok(())
}

/// Beats until shutdown; `node_uid` answers once the node is registered.
pub async fn run(
    client: kube::Client,
    node: String,
    seconds: i32,
    node_uid: impl Fn() -> Option<String>,
    shutdown: CancellationToken,
) {
    let api: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let every = Duration::from_secs(u64::try_from(seconds).unwrap_or(40)) / RENEWALS;
    let mut known: Option<Lease> = None;
    let mut retry = RETRY;
    loop {
        let wait = match node_uid() {
            None => RETRY,
            Some(uid) => match timely(every, beat(&api, &mut known, &node, &uid, seconds)).await {
                Ok(()) => {
                    retry = RETRY;
                    every.mul_f64(1.0 + rand::random::<f64>() * 0.04)
                }
                Err(error) => {
                    // Whatever the API server has now is asked for again.
                    known = None;
                    tracing::error!(%error, interval = ?retry, "Failed to ensure lease exists, will retry");
                    let wait = retry;
                    retry = (retry * 2).min(LONGEST_RETRY);
                    wait
                }
            },
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_belongs_to_its_node() {
        let now = Timestamp::UNIX_EPOCH;
        let first = renewed(None, "n", "uid", 40, now);
        let owner = &first.metadata.owner_references.as_ref().expect("owner")[0];
        assert_eq!((owner.name.as_str(), owner.uid.as_str()), ("n", "uid"));
        let spec = first.spec.clone().expect("spec");
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("n"), Some(40)));
        let again = renewed(Some(first), "n", "uid", 40, now);
        assert_eq!(again.metadata.owner_references.map(|o| o.len()), Some(1));
    }
}
