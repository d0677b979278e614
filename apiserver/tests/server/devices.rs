//! Dynamic resources: who may administer devices, and fields behind gates that are off.

use serde_json::json;

use crate::harness::{Cluster, Identity, etcd_is_missing};
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

/// Versions that came before are what they were where `--runtime-config` asks for them; the same objects are in all.
#[tokio::test(flavor = "multi_thread")]
async fn older_versions_show_the_same_objects() {
    if etcd_is_missing() {
        return;
    }
    let versions = "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true,\
        storage.k8s.io/v1beta1=true,networking.k8s.io/v1beta1=true";
    let cluster = Cluster::start_with(|_, _| vec![versions.to_owned()]).await;
    let c = cluster.client(Identity::Admin);
    let claims = |version: &str| format!("/apis/resource.k8s.io/{version}/namespaces/default/resourceclaims");
    let request = json!({"name": "r", "deviceClassName": "gpu"});
    let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}});
    c.post(&claims("v1beta1"), claim).await.ok();
    let flat = json!([{"name": "r", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}]);
    let nested =
        json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}]);
    for (version, want) in [("v1beta1", &flat), ("v1beta2", &nested), ("v1", &nested)] {
        let (one, list) = (format!("{}/c", claims(version)), claims(version));
        let read = c.get(&one).await.ok();
        assert_eq!(read["apiVersion"], format!("resource.k8s.io/{version}"));
        assert_eq!(read["spec"]["devices"]["requests"], *want, "{version}");
        assert_eq!(c.get(&list).await.ok()["items"][0]["spec"]["devices"]["requests"], *want, "{version}");
    }
    // What later versions refuse, this one refuses in their words.
    let two =
        json!({"name": "r", "deviceClassName": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]});
    let bad = json!({"metadata": {"name": "d"}, "spec": {"devices": {"requests": [two]}}});
    let (code, _, message) = c.post(&claims("v1beta1"), bad).await.failure();
    assert!(code == 422 && message.contains("spec.devices.requests[0]"), "{message}");

    let slices = |version: &str| format!("/apis/resource.k8s.io/{version}/resourceslices");
    let device = json!({"name": "d", "basic": {"attributes": {"a": {"int": 1}}}});
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "p", "resourceSliceCount": 1, "generation": 1}, "devices": [device]}});
    c.post(&slices("v1beta1"), slice).await.ok();
    assert_eq!(c.get(&format!("{}/s", slices("v1beta1"))).await.ok()["spec"]["devices"][0], device);
    let newer = c.get(&format!("{}?fieldSelector=spec.nodeName%3Dn", slices("v1"))).await.ok();
    assert_eq!(newer["items"][0]["spec"]["devices"][0], json!({"name": "d", "attributes": {"a": {"int": 1}}}));

    let classes = |version: &str| format!("/apis/storage.k8s.io/{version}/volumeattributesclasses");
    let class = json!({"metadata": {"name": "gold"}, "driverName": "d.example.com", "parameters": {"iops": "9"}});
    c.post(&classes("v1"), class).await.ok();
    let old = c.get(&format!("{}/gold", classes("v1beta1"))).await.ok();
    assert_eq!((&old["apiVersion"], &old["parameters"]["iops"]), (&json!("storage.k8s.io/v1beta1"), &json!("9")));
    let ranges = c.get("/apis/networking.k8s.io/v1beta1/servicecidrs/kubernetes").await.ok();
    assert_eq!(ranges["apiVersion"], "networking.k8s.io/v1beta1");
}
