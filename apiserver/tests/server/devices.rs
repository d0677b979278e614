//! Dynamic resources: who may administer devices, and fields behind gates that are off.

use serde_json::json;

use crate::workspace;

const ADMIN: &str = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_administered_from_labelled_namespaces() {
    let Some((c, ns)) = workspace("devices").await else { return };
    let claims = format!("{}/resourceclaims", ns.replace("/api/v1", "/apis/resource.k8s.io/v1"));
    let templates = claims.replace("resourceclaims", "resourceclaimtemplates");
    let spec = |admin: bool| {
        let request = json!({"deviceClassName": "c", "allocationMode": "All", "adminAccess": admin});
        json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c"}}, {"name": "r", "exactly": request}]}})
    };
    let claim = |name: &str, admin: bool| json!({"metadata": {"name": name}, "spec": spec(admin)});
    let template = json!({"metadata": {"name": "t"}, "spec": {"spec": spec(true)}});
    for (path, kind, body) in [
        (&claims, "ResourceClaim.resource.k8s.io \"x\"", claim("x", true)),
        (&templates, "ResourceClaimTemplate.resource.k8s.io \"t\"", template.clone()),
    ] {
        let (code, reason, message) = c.post(path, body).await.failure();
        let want = format!("{kind} is invalid: spec.devices.requests[1].adminAccess: Forbidden: {ADMIN}");
        assert_eq!((code, reason.as_str(), message), (422, "Invalid", want));
    }
    c.post(&claims, claim("plain", false)).await.ok();
    // Nor may it be granted there.
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "d", "adminAccess": true});
    let granted = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
    let status = format!("{claims}/plain/status");
    let (code, _, message) = c.patch(&status, "merge-patch+json", granted.clone()).await.failure();
    let want = format!("status.allocation.devices.results[0].adminAccess: Forbidden: {ADMIN}");
    assert!(code == 422 && message.contains(&want), "{message}");

    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    c.patch(&ns, "merge-patch+json", label).await.ok();
    c.post(&claims, claim("x", true)).await.ok();
    c.post(&templates, template).await.ok();
    c.patch(&status, "merge-patch+json", granted).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_gates_that_are_off_are_not_stored() {
    let Some((c, ns)) = workspace("gated").await else { return };
    let claims = format!("{}/resourceclaims", ns.replace("/api/v1", "/apis/resource.k8s.io/v1"));
    let request = json!({"deviceClassName": "c", "tolerations": [{"key": "k", "operator": "Exists"}], "capacity": {"requests": {"m": "1"}}});
    let claim =
        json!({"metadata": {"name": "a"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}}});
    let stored = c.post(&claims, claim).await.ok();
    let exactly = &stored["spec"]["devices"]["requests"][0]["exactly"];
    assert!(exactly.get("tolerations").is_none() && exactly.get("capacity").is_none(), "{stored}");

    let container = json!({"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGUSR1"}});
    let spec =
        json!({"os": {"name": "linux"}, "containers": [container], "workloadRef": {"name": "w", "podGroup": "g"}});
    let pod = c.post(&format!("{ns}/pods"), json!({"metadata": {"name": "p"}, "spec": spec})).await.ok();
    assert!(pod["spec"].get("workloadRef").is_none(), "{pod}");
    assert!(pod["spec"]["containers"][0].get("lifecycle").is_none(), "{pod}");
}
