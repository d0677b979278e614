//! Resources disabled by `--runtime-config` are gone everywhere, and others are unchanged.

use serde_json::{Value, json};

use crate::harness::{Cluster, etcd_is_missing, eventually};

fn names(list: &Value, field: &str) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.map(|item| item[field].as_str().unwrap_or("").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_resources_are_hidden_everywhere() {
    if etcd_is_missing() {
        return;
    }
    let flag = "--runtime-config=api/all=true,batch/v1=false,apps/v1/daemonsets=false,autoscaling/v1=0";
    let mut c = Cluster::start_with(|_, _| vec![flag.to_owned()]).await;
    for gone in [
        "/apis/batch",
        "/apis/batch/v1",
        "/apis/batch/v1/jobs",
        "/apis/batch/v1/namespaces/default/cronjobs/c",
        "/apis/apps/v1/daemonsets",
        "/apis/apps/v1/namespaces/default/daemonsets/d/status",
        "/apis/autoscaling/v1",
        "/openapi/v3/apis/batch/v1",
        "/openapi/v3/apis/batch",
    ] {
        assert_eq!(c.get(gone).await.code, 404, "{gone}");
    }
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {"containers": []}}}});
    assert_eq!(c.post("/apis/batch/v1/namespaces/default/jobs", job).await.code, 404);

    let groups = names(&c.get("/apis").await.ok()["groups"], "name");
    assert!(groups.contains(&"apps".to_owned()) && !groups.contains(&"batch".to_owned()), "{groups:?}");
    let resources = names(&c.get("/apis/apps/v1").await.ok()["resources"], "name");
    assert!(resources.contains(&"deployments/scale".to_owned()), "{resources:?}");
    assert!(!resources.iter().any(|name| name.starts_with("daemonsets")), "{resources:?}");
    let versions = names(&c.get("/apis/autoscaling").await.ok()["versions"], "version");
    assert_eq!(versions, ["v2"]);
    let aggregated = ("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let all = c.call("GET", "/apis", &[aggregated], None).await.ok();
    assert!(all["items"].as_array().is_some_and(|items| items.iter().all(|g| g["metadata"]["name"] != "batch")));
    let older = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    let all = c.call("GET", "/apis", &[("accept", older)], None).await.ok();
    assert_eq!(all["kind"], "APIGroupList", "the form before is served no more");

    let index = c.get("/openapi/v3").await.ok();
    assert!(index["paths"]["apis/apps/v1"].is_object() && index["paths"]["apis/batch/v1"].is_null());
    let document = c.get("/openapi/v3/apis/apps/v1").await.text();
    assert!(document.contains("/deployments/{name}") && !document.contains("/daemonsets/{name}"));
    let document = c.get("/openapi/v2").await.text();
    assert!(document.contains("/apis/apps/v1/deployments") && !document.contains("/apis/batch/v1"));

    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let local = eventually("the groups have API services", async || {
        let list = c.get(services).await.ok();
        let items = list["items"].as_array().into_iter().flatten().map(|item| item["metadata"].clone()).collect();
        let names = names(&items, "name");
        names.contains(&"v1.apps".to_owned()).then_some(names)
    })
    .await;
    assert!(!local.contains(&"v1.batch".to_owned()) && !local.contains(&"v1.autoscaling".to_owned()), "{local:?}");

    // What was there comes back with its version.
    c.restart_with(Vec::new()).await;
    assert_eq!(c.get("/apis/batch/v1/jobs").await.code, 200);
}

/// A server that behaves as an older release serves what that has, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_release_is_behaved_as() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start_with(|_, _| vec!["--emulated-version=1.33".to_owned()]).await;
    let version = c.get("/version").await.ok();
    for (key, want) in
        [("minor", "35"), ("emulationMajor", "1"), ("emulationMinor", "33"), ("minCompatibilityMinor", "32")]
    {
        assert_eq!(version[key], want, "{key}");
    }
    assert_eq!(c.get("/apis/resource.k8s.io/v1").await.code, 404);
    assert_eq!(c.get("/apis/storage.k8s.io/v1/volumeattributesclasses").await.code, 404);
    let metrics = c.get("/metrics").await.text();
    assert!(
        metrics.contains("version_info{binary=\"1.35.4\",component=\"kube\",emulation=\"1.33\",min_compat=\"1.32\"} 1")
    );
    let ports = json!([{"port": 80}]);
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": ports}});
    let made = c.post("/api/v1/namespaces/default/services", service).await.ok();
    assert!(made["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.")), "{made}");

    c.restart_with(vec!["--emulated-version=1.32".to_owned()]).await;
    assert_eq!(c.get("/apis/networking.k8s.io/v1/servicecidrs").await.code, 404);
    assert_eq!(c.get("/version").await.ok()["emulationMinor"], "32");
}
