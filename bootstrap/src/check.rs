//! `helm test`: whether a control plane does its work.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::objects::ObjectClient;

const PAUSE: Duration = Duration::from_millis(500);

/// Asks the API server whether it is ready, has it write, and waits until the controller manager has acted and both
/// leaders have renewed their leases; with a tunnel, that a node is reached through it.
///
/// # Errors
/// The first thing that does not work.
pub async fn run(tenant: &mut ObjectClient, tunnel: bool, deadline: Instant) -> Result<()> {
    tenant.text("/readyz").await.context("kube-apiserver is not ready")?;
    println!("kube-apiserver is ready");
    for component in ["kube-controller-manager", "kube-scheduler"] {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{component}");
        until(deadline, &format!("{component} does not renew its lease"), async || {
            Ok(tenant.get(&path).await?.is_some_and(|lease| is_held(&lease, Timestamp::now())))
        })
        .await?;
        println!("{component} leads");
    }
    let name = format!("control-plane-test-{}", Timestamp::now().as_second());
    tenant.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
    let path = format!("/api/v1/namespaces/{name}");
    let account = format!("{path}/serviceaccounts/default");
    let acted = until(deadline, "kube-controller-manager makes no service account", async || {
        Ok(tenant.get(&account).await?.is_some())
    })
    .await;
    tenant.delete(&path).await?;
    acted?;
    until(deadline, "the namespace does not go", async || Ok(tenant.get(&path).await?.is_none())).await?;
    println!("objects are written, acted upon and deleted");
    if tunnel { reach_nodes(tenant, deadline).await } else { Ok(()) }
}

/// Waits until a server of the tunnel is there and, when nodes have agents, a node's kubelet answers through one.
async fn reach_nodes(tenant: &ObjectClient, deadline: Instant) -> Result<()> {
    let servers =
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=k8s-app%3Dkonnectivity-server";
    until(deadline, "no server of konnectivity renews its lease", async || {
        let leases = tenant.get(servers).await?.unwrap_or_default();
        Ok(listed(&leases).iter().any(|lease| is_held(lease, Timestamp::now())))
    })
    .await?;
    println!("servers of konnectivity are there");
    let agents = "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dkonnectivity-agent";
    let pods = tenant.get(agents).await?.unwrap_or_default();
    if listed(&pods).is_empty() {
        println!("no node has an agent of konnectivity yet");
        return Ok(());
    }
    until(deadline, "no node is reached through konnectivity", async || {
        let pods = tenant.get(agents).await?.unwrap_or_default();
        for node in listed(&pods).iter().filter_map(ready_on) {
            if tenant.text(&format!("/api/v1/nodes/{node}/proxy/healthz")).await.is_ok_and(|said| said == "ok") {
                println!("node {node} is reached through konnectivity");
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await
}

fn listed(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The node of a pod that is ready.
fn ready_on(pod: &Value) -> Option<&str> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let ready = conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    pod["spec"]["nodeName"].as_str().filter(|_| ready)
}

/// Reports whether a lease has a holder that renewed it in time.
fn is_held(lease: &Value, now: Timestamp) -> bool {
    let spec = &lease["spec"];
    let holder = spec["holderIdentity"].as_str().unwrap_or_default();
    let seconds = spec["leaseDurationSeconds"].as_i64().unwrap_or_default();
    let renewed = spec["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    !holder.is_empty() && renewed.is_some_and(|renewed| now.as_second() - renewed.as_second() <= seconds)
}

async fn until(deadline: Instant, told: &str, ready: impl AsyncFn() -> Result<bool>) -> Result<()> {
    while !ready().await? {
        if Instant::now() > deadline {
            bail!("{told}");
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_held_while_they_are_renewed() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        for (holder, renewed, held) in [
            ("kcm-1", "2026-01-01T00:00:50.123456Z", true),
            ("kcm-1", "2026-01-01T00:00:40.000000Z", false),
            ("", "2026-01-01T00:00:59.000000Z", false),
        ] {
            let spec = json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15});
            assert_eq!(is_held(&json!({"spec": spec}), now), held, "{holder} {renewed}");
        }
        assert!(!is_held(&json!({}), now));
    }
}
