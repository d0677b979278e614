//! Tests of storage versions reported by servers.

use serde_json::json;

use crate::harness::{Cluster, etcd_is_missing};

const VERSIONS: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";

#[tokio::test(flavor = "multi_thread")]
async fn server_publishes_storage_versions() {
    if etcd_is_missing() {
        return;
    }
    let flags = ["--feature-gates=StorageVersionAPI=true", "--runtime-config=internal.apiserver.k8s.io/v1alpha1=true"];
    let mut c = Cluster::start_with(|_, _| flags.map(str::to_owned).to_vec()).await;
    let leases =
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io/identity";
    let server = c.get(leases).await.ok()["items"][0]["metadata"]["name"].clone();
    for (name, encodes, decodes) in [
        ("core.pods", "v1", json!(["v1"])),
        ("apps.deployments", "apps/v1", json!(["apps/v1", "apps/v1beta2", "apps/v1beta1"])),
        ("core.events", "v1", json!(["v1", "events.k8s.io/v1"])),
    ] {
        let found = c.get(&format!("{VERSIONS}/{name}")).await.ok();
        let status = &found["status"];
        assert_eq!(status["commonEncodingVersion"], encodes, "{name}");
        let want = json!([{"apiServerID": server, "encodingVersion": encodes, "decodableVersions": decodes}]);
        assert_eq!(status["storageVersions"], want, "{name}");
        assert_eq!(
            (&status["conditions"][0]["status"], &status["conditions"][0]["reason"]),
            (&json!("True"), &json!("CommonEncodingVersionSet"))
        );
    }
    // What is there does not change with the next start, and writes go on.
    let before = c.get(&format!("{VERSIONS}/core.pods")).await.ok();
    c.stop_server();
    c.start_server().await;
    assert_eq!(c.get(&format!("{VERSIONS}/core.pods")).await.ok()["metadata"], before["metadata"]);
    c.post("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "m"}})).await.ok();
    assert_eq!(c.get("/readyz/poststarthook/built-in-resources-storage-version-updater").await.text(), "ok");

    let accept = [("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = c.call("GET", &format!("{VERSIONS}/core.pods"), &accept, None).await.ok();
    let cells = table["rows"][0]["cells"].clone();
    assert_eq!((&cells[1], &cells[2]), (&json!("v1"), &json!(format!("{}=v1", server.as_str().unwrap_or_default()))));
    c.post(VERSIONS, json!({"metadata": {"name": "pods"}})).await.fails(
        422,
        "Invalid",
        "StorageVersion.internal.apiserver.k8s.io \"pods\" is invalid: metadata.name: Invalid value: \"pods\": name must be in the form of <group>.<resource>",
    );
}
