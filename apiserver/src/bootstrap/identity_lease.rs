//! The Lease in `kube-system` by which API servers know of one another, and the removal of those of servers that are
//! gone. Answers for upstream's `pkg/controlplane/controller/apiserverleasegc`.

use std::time::Duration;

use serde_json::{Value, json};
use shared::status::Status;

use crate::api::{Api, DeleteArgs, ServerContext};
use crate::machinery::meta::micro_time;
use crate::machinery::{identity, tree};
use crate::registry::coordination::lease::LEASES;

use crate::machinery::identity::server_user;

const NAMESPACE: &str = "kube-system";
const LABEL: &str = "apiserver.kubernetes.io/identity";
const COMPONENT: &str = "kube-apiserver";
/// Seconds a lease holds without renewal.
const HOLDS: i64 = 3600;
const RENEW: Duration = Duration::from_secs(10);
const COLLECT: Duration = Duration::from_secs(3600);

/// The lease as it is to be: new, or what is there, renewed.
fn renewed(there: Option<Value>, id: &str, holder: &str, host: &str, now: jiff::Timestamp) -> Value {
    let mut lease = there.unwrap_or_else(|| json!({"metadata": {"name": id, "namespace": NAMESPACE}}));
    if let Some(labels) = tree::map_mut(&mut lease, &["metadata", "labels"]) {
        labels.insert(LABEL.to_owned(), COMPONENT.into());
        labels.insert("kubernetes.io/hostname".to_owned(), host.into());
    }
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": HOLDS, "renewTime": micro_time(now)});
    *tree::field(&mut lease, &["spec"]) = spec;
    lease
}

/// Reports whether the lease of a server has expired.
fn expired(lease: &Value, now: jiff::Timestamp) -> bool {
    if tree::label(lease, LABEL) != Some(COMPONENT) {
        return false;
    }
    let Some(holds) = tree::int(lease, "/spec/leaseDurationSeconds") else { return true };
    match tree::text(lease, "/spec/renewTime").parse::<jiff::Timestamp>() {
        Ok(at) => at.as_second() + holds < now.as_second(),
        Err(_) => true,
    }
}

async fn renew(api: &Api, id: &str, holder: &str, host: &str) -> Result<(), Status> {
    let there = match api.get(LEASES, NAMESPACE, id).await {
        Ok(lease) => Some(lease),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let (user, new) = (server_user(), there.is_none());
    let lease = renewed(there, id, holder, host, jiff::Timestamp::now());
    let done = match new {
        true => api.create(&user, LEASES, NAMESPACE, lease).await,
        false => api.update(&user, LEASES, "", lease).await,
    };
    done.map(drop)
}

async fn collect(api: &Api) -> Result<(), Status> {
    let now = jiff::Timestamp::now();
    for lease in api.list(LEASES, Some(NAMESPACE)).await? {
        if !expired(&lease, now) {
            continue;
        }
        let args = DeleteArgs {
            uid: Some(tree::text(&lease, "/metadata/uid").to_owned()),
            // One that was renewed meanwhile stays.
            resource_version: Some(tree::text(&lease, "/metadata/resourceVersion").to_owned()),
            ..DeleteArgs::default()
        };
        match api.delete(&server_user(), LEASES, NAMESPACE, tree::name(&lease), args).await {
            Ok(()) => tracing::info!(lease = tree::name(&lease), "Deleted expired lease of an API server"),
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Renews this server's lease, and removes others', until the shutdown.
pub(super) fn start(cx: &ServerContext) {
    if !cx.flags.enabled("APIServerIdentity") {
        return;
    }
    let (id, host) = (identity::server_id(), shared::serve::hostname());
    let holder = format!("{id}_{}", uuid::Uuid::new_v4());
    let (api, shutdown) = (cx.api.clone(), cx.shutdown.clone());
    cx.tasks.spawn("identity-lease", async move {
        loop {
            if let Err(error) = renew(&api, &id, &holder, &host).await {
                tracing::debug!(%error, "Failed to renew identity lease");
            }
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(RENEW) => {}
            }
        }
    });
    let (api, shutdown) = (cx.api.clone(), cx.shutdown.clone());
    cx.tasks.spawn("identity-lease-collector", async move {
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(COLLECT) => {}
            }
            if let Err(error) = collect(&api).await {
                tracing::warn!(%error, "Failed to delete expired leases of API servers");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admission::testing::Fixed;
    use crate::api::Reader as _;

    #[tokio::test]
    async fn leases_are_kept_and_old_ones_removed() {
        let cluster = Arc::new(Fixed::default());
        let api = cluster.api();
        renew(&api, "apiserver-a", "apiserver-a_1", "host").await.expect("made");
        renew(&api, "apiserver-a", "apiserver-a_2", "host").await.expect("renewed");
        let lease = cluster.get(LEASES, NAMESPACE, "apiserver-a").expect("there");
        assert_eq!(tree::text(&lease, "/spec/holderIdentity"), "apiserver-a_2");
        assert_eq!(tree::label(&lease, LABEL), Some(COMPONENT));
        let old = |name: &str, labels: Value| {
            json!({"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "spec": {"leaseDurationSeconds": 3600, "renewTime": "2020-01-01T00:00:00.000000Z"}})
        };
        cluster.put(LEASES.group, LEASES.plural, old("apiserver-b", json!({LABEL: COMPONENT})));
        cluster.put(LEASES.group, LEASES.plural, old("kube-scheduler", json!({})));
        collect(&api).await.expect("done");
        let names: Vec<String> = cluster.list(LEASES, None).iter().map(|l| tree::name(l).to_owned()).collect();
        assert_eq!(names, ["apiserver-a", "kube-scheduler"]);
    }
}
