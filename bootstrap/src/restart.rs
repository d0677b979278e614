//! Pods that hold a certificate which was issued anew since they started. Kubernetes' components read theirs again while
//! they run; servers of konnectivity read it once.

use anyhow::Result;
use jiff::Timestamp;
use pki::authority::BACKDATE;
use pki::secret::{self, text};
use serde_json::{Value, json};
use shared::client::path;

use crate::objects::ObjectClient;
use crate::plan::{KONNECTIVITY, Plan, TUNNEL_CERTIFICATE};

/// The container that reads a certificate once.
const CONTAINER: &str = "konnectivity-server";
/// The annotation that `kubectl rollout restart` sets.
const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

/// Restarts the API servers' Deployment when one of its pods is older than the tunnel's certificate: one by one, as an
/// upgrade does it.
///
/// # Errors
/// When pods cannot be listed or the Deployment is not changed.
pub async fn behind(host: &mut ObjectClient, plan: &Plan) -> Result<()> {
    if plan.konnectivity.is_none() {
        return Ok(());
    }
    let data = host.secret(&plan.namespace, &plan.secret(KONNECTIVITY)).await?.data;
    let issued = secret::beginning(&text(&data, &format!("{TUNNEL_CERTIFICATE}.crt"))?)? + BACKDATE;
    let name = format!("{}-apiserver", plan.name);
    let pods = host.get(&path::collection("v1", Some(&plan.namespace), "pods")).await?.unwrap_or_default();
    if !is_behind(&pods, &name, Timestamp::from_second(i64::try_from(issued.as_secs())?)?) {
        return Ok(());
    }
    host.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": plan.namespace},
        "spec": {"template": {"metadata": {"annotations": {RESTARTED: Timestamp::now().to_string()}}}},
    }))
    .await?;
    println!("Deployment {name} is restarted: its servers of konnectivity have a certificate of before");
    Ok(())
}

/// Reports whether a pod of a Deployment that stays has the container, and started before this time.
fn is_behind(pods: &Value, deployment: &str, issued: Timestamp) -> bool {
    pods["items"].as_array().into_iter().flatten().any(|pod| {
        let names = pod["spec"]["initContainers"].as_array().into_iter().flatten();
        let prefix = format!("{deployment}-");
        pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&prefix))
            && pod["metadata"]["deletionTimestamp"].is_null()
            && names.into_iter().any(|container| container["name"] == CONTAINER)
            && pod["status"]["startTime"]
                .as_str()
                .and_then(|time| time.parse().ok())
                .is_some_and(|time: Timestamp| time < issued)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_are_older_than_the_certificate_are_behind() {
        let issued = "2026-01-01T00:00:00Z".parse().expect("a time");
        let pod = |name: &str, container: &str, started: &str| {
            json!({
                "metadata": {"name": name},
                "spec": {"initContainers": [{"name": container}], "containers": [{"name": "kube-apiserver"}]},
                "status": {"startTime": started},
            })
        };
        let (old, new) = ("2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z");
        let mut leaving = pod("t1-apiserver-a-b", CONTAINER, old);
        leaving["metadata"]["deletionTimestamp"] = json!(new);
        let mut waiting = pod("t1-apiserver-a-b", CONTAINER, old);
        waiting["status"] = json!({});
        for (pod, behind) in [
            (pod("t1-apiserver-a-b", CONTAINER, old), true),
            (pod("t1-apiserver-a-b", CONTAINER, new), false),
            (pod("t1-apiserver-a-b", "other", old), false),
            (pod("t2-apiserver-a-b", CONTAINER, old), false),
            (leaving, false),
            (waiting, false),
        ] {
            let pods = json!({"items": [pod]});
            assert_eq!(is_behind(&pods, "t1-apiserver", issued), behind, "{pods}");
        }
        assert!(!is_behind(&Value::Null, "t1-apiserver", issued));
    }
}
