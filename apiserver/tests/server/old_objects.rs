//! Objects of an older release without today's defaults are served with them, and stored with them on the next write.

use proto::{protobuf, schema};
use serde_json::{Value, json};

use crate::harness::{Cluster, etcd_is_missing};

/// An object: its path, its key, its kind, and what an older release did not store of it.
struct Old {
    path: &'static str,
    key: &'static str,
    kind: (&'static str, &'static str, &'static str),
    lacks: &'static [&'static str],
}

const OLD: [Old; 5] = [
    Old {
        path: "/api/v1/namespaces/default/services/s",
        key: "/registry/services/specs/default/s",
        kind: ("", "v1", "Service"),
        lacks: &["/spec/internalTrafficPolicy", "/status/loadBalancer/ingress/0/ipMode"],
    },
    Old {
        path: "/apis/batch/v1/namespaces/default/jobs/j",
        key: "/registry/jobs/default/j",
        kind: ("batch", "v1", "Job"),
        lacks: &["/spec/podReplacementPolicy", "/spec/suspend"],
    },
    Old {
        path: "/apis/apps/v1/namespaces/default/statefulsets/w",
        key: "/registry/statefulsets/default/w",
        kind: ("apps", "v1", "StatefulSet"),
        lacks: &["/spec/persistentVolumeClaimRetentionPolicy"],
    },
    Old {
        path: "/apis/storage.k8s.io/v1/csidrivers/a.b",
        key: "/registry/csidrivers/a.b",
        kind: ("storage.k8s.io", "v1", "CSIDriver"),
        lacks: &["/spec/requiresRepublish"],
    },
    Old {
        path: "/api/v1/namespaces/old",
        key: "/registry/namespaces/old",
        kind: ("", "v1", "Namespace"),
        lacks: &["/metadata/labels"],
    },
];

impl Old {
    /// Decodes the object in etcd.
    async fn tree(&self, c: &Cluster) -> Value {
        let (bytes, _) = c.stored(self.key).await.expect("it is there");
        let (group, version, kind) = self.kind;
        let message = schema::kind(group, version, kind).expect("a kind");
        protobuf::decode(message, protobuf::unwrap(&bytes).expect("an envelope").raw).expect("an object")
    }

    /// Makes it what an older release wrote.
    async fn age(&self, c: &Cluster) {
        let mut tree = self.tree(c).await;
        for pointer in self.lacks {
            let (place, field) = pointer.rsplit_once('/').expect("a field");
            let place = tree.pointer_mut(place).and_then(Value::as_object_mut).expect("a place");
            assert!(place.remove(field).is_some(), "{pointer}");
        }
        let (group, version, kind) = self.kind;
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let body = protobuf::encode(schema::kind(group, version, kind).expect("a kind"), &tree);
        let bytes = protobuf::wrap(&api_version, kind, &body);
        c.etcd_client().await.kv_client().put(self.key, bytes, None).await.expect("written");
    }

    /// Checks that an object equals the wanted one, but for its resource version.
    fn is_whole(&self, object: &Value, want: &Value) {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = want["metadata"]["resourceVersion"].clone();
        assert_eq!(&object, want, "{}", self.path);
    }
}

async fn make(c: &Cluster) {
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    let services = "/api/v1/namespaces/default/services";
    c.post(services, json!({"metadata": {"name": "s"}, "spec": spec})).await.ok();
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.9.0.1"}]}}});
    c.patch(&format!("{services}/s/status"), "merge-patch+json", status).await.ok();
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": pod}}});
    c.post("/apis/batch/v1/namespaces/default/jobs", job).await.ok();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template});
    let set = json!({"metadata": {"name": "w"}, "spec": spec});
    c.post("/apis/apps/v1/namespaces/default/statefulsets", set).await.ok();
    c.post("/apis/storage.k8s.io/v1/csidrivers", json!({"metadata": {"name": "a.b"}, "spec": {}})).await.ok();
    c.post("/api/v1/namespaces", json!({"metadata": {"name": "old"}})).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn old_objects_are_defaulted_on_read() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    make(&c).await;
    let mut wanted = Vec::new();
    for old in &OLD {
        wanted.push(c.get(old.path).await.ok());
    }
    // What comes while the server runs.
    for (old, want) in OLD.iter().zip(&wanted) {
        let (collection, _) = old.path.rsplit_once('/').expect("a collection");
        c.get(collection).await.ok();
        old.age(&c).await;
        old.is_whole(&c.get(old.path).await.ok(), want);
    }
    // What is there when it starts.
    c.restart_with(Vec::new()).await;
    for (old, want) in OLD.iter().zip(&wanted) {
        let (collection, name) = old.path.rsplit_once('/').expect("a collection");
        let list = c.get(collection).await.ok();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let mut item = items.into_iter().find(|item| item["metadata"]["name"] == name).expect("listed");
        (item["kind"], item["apiVersion"]) = (want["kind"].clone(), want["apiVersion"].clone());
        old.is_whole(&item, want);
        old.is_whole(&c.get(old.path).await.ok(), want);
    }
    let query = "labelSelector=kubernetes.io%2Fmetadata.name%3Dold";
    let chosen = c.get(&format!("/api/v1/namespaces?{query}")).await.ok();
    assert_eq!(chosen["items"].as_array().map(Vec::len), Some(1), "it is found by what it was given");
    // A write that changes nothing stores them.
    for old in &OLD {
        assert!(old.tree(&c).await.pointer(old.lacks[0]).is_none(), "{}", old.path);
        c.patch(old.path, "merge-patch+json", json!({})).await.ok();
        assert!(old.tree(&c).await.pointer(old.lacks[0]).is_some(), "{}", old.path);
    }
}

/// Definitions are JSON of a version that nobody serves: what all their versions have in common stands there once.
#[tokio::test(flavor = "multi_thread")]
async fn definitions_are_stored_as_upstream_stores_them() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let (path, key) = (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/olds.example.com",
        "/registry/apiextensions.k8s.io/customresourcedefinitions/olds.example.com",
    );
    let schema =
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".spec.a"}]}]);
    crate::custom::define(&c, crate::custom::definition("example.com", "olds", "Old", versions.clone())).await;
    let (bytes, _) = c.stored(key).await.expect("it is there");
    let mut stored: Value = serde_json::from_slice(&bytes).expect("JSON");
    let spec = &stored["spec"];
    assert_eq!((&stored["apiVersion"], &spec["version"]), (&json!("apiextensions.k8s.io/v1beta1"), &json!("v1")));
    assert_eq!((&spec["validation"]["openAPIV3Schema"], &spec["preserveUnknownFields"]), (&schema, &json!(false)));
    assert_eq!(spec["versions"], json!([{"name": "v1", "served": true, "storage": true}]));
    assert_eq!(spec["additionalPrinterColumns"][0]["JSONPath"], ".spec.a");
    assert_eq!(c.get(path).await.ok()["spec"]["versions"], versions);

    stored["spec"]["additionalPrinterColumns"][0]["name"] = json!("B");
    let text = serde_json::to_vec(&stored).expect("JSON");
    c.etcd_client().await.kv_client().put(key, text, None).await.expect("written");
    let renamed = |o: &Value| o["spec"]["versions"][0]["additionalPrinterColumns"][0]["name"] == "B";
    let watch = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?watch=1";
    let read = c.watch_until(watch, renamed).await;
    assert_eq!(read["spec"]["versions"][0]["schema"]["openAPIV3Schema"], schema);
}
