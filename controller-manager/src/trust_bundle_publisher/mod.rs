//! Publishes the authority of the API server's serving certificate as a ClusterTrustBundle. Answers for
//! `kube-apiserver-serving-clustertrustbundle-publisher`.
//!
//! The bundle's name carries a hash of its content, so that a new authority is a new bundle beside the old one, which
//! goes when the new one is there.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, ClusterTrustBundleSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};
use shared::informer::{Event, Scope, Store};
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const NAME: &str = "kube-apiserver-serving-clustertrustbundle-publisher";
const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";

struct Publisher {
    executor: Executor,
    bundles: Store<ClusterTrustBundle>,
    wanted: ClusterTrustBundle,
}

/// Wire the publisher.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let authority = cx.server_authority();
        if !cx.gate("ClusterTrustBundle") || authority.is_empty() {
            return Ok(Started::Skipped);
        }
        if cx.served::<ClusterTrustBundle>().await?.is_none() {
            return Ok(Started::Skipped);
        }
        let fields = Some(format!("spec.signerName={SIGNER}"));
        let bundles = cx.informer_in::<ClusterTrustBundle>(Scope { fields, ..Scope::default() });
        let queue: Queue<()> = Queue::new("ca_cert_publisher_cluster_trust_bundles");
        let this = Arc::new(Publisher {
            executor: cx.executor(NAME, NAME),
            bundles: bundles.store(),
            wanted: bundle(authority),
        });
        let wake = queue.clone();
        bundles.add_handler(move |_: &Event<ClusterTrustBundle>| wake.add(()));
        queue.add(());
        worker::run(cx, NAME, 1, &queue, &this, |s, ()| async move { s.sync().await });
        Ok(Started::Yes)
    })
}

fn bundle(authority: &str) -> ClusterTrustBundle {
    let hash = Sha256::digest(authority.as_bytes());
    let short: String = hash.iter().take(12).map(|b| format!("{b:02x}")).collect();
    ClusterTrustBundle {
        metadata: ObjectMeta { name: Some(format!("{}:{short}", SIGNER.replace('/', ":"))), ..ObjectMeta::default() },
        spec: ClusterTrustBundleSpec { signer_name: Some(SIGNER.into()), trust_bundle: authority.to_owned() },
    }
}

/// Make or mend the bundle, then delete the others of the signer.
fn plan(wanted: &ClusterTrustBundle, there: &[Arc<ClusterTrustBundle>]) -> Vec<Action> {
    let mut out = Vec::new();
    match there.iter().find(|b| b.metadata.name == wanted.metadata.name) {
        None => out.push(Action::create(wanted)),
        Some(found) if found.spec != wanted.spec => {
            out.push(Action::update(&ClusterTrustBundle {
                spec: wanted.spec.clone(),
                ..ClusterTrustBundle::clone(found)
            }));
        }
        Some(_) => {}
    }
    let others = there.iter().filter(|b| b.metadata.name != wanted.metadata.name && !object::deleting(&b.metadata));
    out.extend(others.map(|b| Action::delete::<ClusterTrustBundle>(&b.metadata)));
    out
}

impl Publisher {
    async fn sync(&self) -> Synced {
        let mut result = Ok(());
        let started = clock::instant();
        for action in plan(&self.wanted, &self.bundles.list()) {
            result = match self.executor.one(action).await {
                Err(e) if e.already_exists() || e.not_found() => Ok(()),
                other => other,
            };
            if result.is_err() {
                break;
            }
        }
        let code = match &result {
            Ok(()) => "200".to_owned(),
            Err(RestError::Api { code, .. }) => code.to_string(),
            Err(RestError::Transport(_)) => "500".to_owned(),
        };
        metrics::count("clustertrustbundle_publisher_sync_total", &[&code]);
        let took = started.elapsed().as_secs_f64();
        metrics::observe("clustertrustbundle_publisher_sync_duration_seconds", &[&code], took);
        result.map(|()| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bundle_stays() {
        let (new, old) = (bundle("new"), Arc::new(bundle("old")));
        let name = new.metadata.name.clone().expect("name");
        assert!(name.starts_with("kubernetes.io:kube-apiserver-serving:"));
        assert_eq!(name.len(), "kubernetes.io:kube-apiserver-serving:".len() + 24);
        let actions = plan(&new, &[Arc::clone(&old)]);
        assert!(matches!(actions.as_slice(), [Action::Create { .. }, Action::Delete { .. }]), "{actions:?}");
        assert!(plan(&new, &[Arc::new(new.clone())]).is_empty());
        let mut bent = new.clone();
        bent.spec.trust_bundle = "x".into();
        assert!(matches!(plan(&new, &[Arc::new(bent)]).as_slice(), [Action::Update { .. }]));
    }
}
