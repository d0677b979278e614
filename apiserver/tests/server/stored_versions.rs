//! In which version etcd gets an object: one that the oldest release can read that the server goes together with.
//! Whatever is stored, clients see the same.

use proto::{protobuf, schema};
use serde_json::{Value, json};

use crate::encryption::{FIRST, key};
use crate::harness::{Cluster, etcd_is_missing, file};

const DEVICES: &str = "/apis/resource.k8s.io";
const CLAIMS: &str = "namespaces/default/resourceclaims";
const STORED: &str = "/registry/resourceclaims/default";

/// The version of an object in etcd, and the object as it is there.
async fn stored(c: &Cluster, path: &str) -> (String, Value) {
    let (bytes, _) = c.stored(path).await.expect(path);
    let envelope = protobuf::unwrap(&bytes).expect("an envelope");
    let schema = schema::kind_of(&envelope.api_version, &envelope.kind).expect("a kind");
    (envelope.api_version.clone(), protobuf::decode(schema, envelope.raw).expect("an object"))
}

fn claim(name: &str) -> Value {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
}

/// Device class of a request in v1beta1, and in later versions.
fn requests(object: &Value) -> (&Value, &Value) {
    let request = &object["spec"]["devices"]["requests"][0];
    (&request["deviceClassName"], &request["exactly"]["deviceClassName"])
}

fn sealed_templates(dir: &std::path::Path) -> String {
    let providers = json!([{"secretbox": {"keys": [key("k", FIRST)]}}]);
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["resourceclaimtemplates.resource.k8s.io"], "providers": providers}]});
    format!("--encryption-provider-config={}", file(dir, "encryption.json", &config.to_string()))
}

/// The flags of a server that behaves as 1.33, and goes together with 1.32.
const OLD: [&str; 3] = [
    "--emulated-version=1.33",
    "--feature-gates=DynamicResourceAllocation=true,StorageVersionAPI=true",
    "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true,internal.apiserver.k8s.io/v1alpha1=true",
];

#[tokio::test(flavor = "multi_thread")]
async fn stored_objects_are_readable_by_older_releases() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start_with(|dir, _| {
        OLD.iter().map(|flag| (*flag).to_owned()).chain([sealed_templates(dir)]).collect()
    })
    .await;
    let [old, newer, new] = ["v1beta1", "v1beta2", "v1"].map(|version| format!("{DEVICES}/{version}/{CLAIMS}"));
    c.post(&newer, claim("a")).await.ok();
    let (version, object) = stored(&c, &format!("{STORED}/a")).await;
    assert_eq!((version.as_str(), requests(&object)), ("resource.k8s.io/v1beta1", (&json!("c"), &Value::Null)));

    // Read, listed and watched as what was asked for, whatever it is stored as.
    let seen = async |c: &Cluster, path: &str| {
        let list = c.get(path).await.ok()["items"][0].clone();
        let watched = c.watch(&format!("{path}?watch=1"), 1).await[0]["object"].clone();
        let all = [
            c.get(&format!("{path}/a")).await.ok(),
            c.get(&format!("{path}/a?resourceVersion=0")).await.ok(),
            list,
            watched,
        ];
        all.map(|object| requests(&object) == (&Value::Null, &json!("c")))
    };
    assert_eq!(seen(&c, &newer).await, [true; 4]);
    assert_eq!(seen(&c, &old).await, [false; 4]);

    // A write that changes nothing writes nothing.
    let before = c.get(&format!("{newer}/a")).await.ok();
    assert_eq!(c.put(&format!("{newer}/a"), &before).await.ok(), before);

    // What the server writes on its own, what it says of it, and what is sealed.
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let made = c.post("/api/v1/namespaces/default/services", service).await.ok();
    let address = made["spec"]["clusterIP"].as_str().expect("an address").to_owned();
    for path in [format!("/registry/ipaddresses/{address}"), "/registry/servicecidrs/kubernetes".to_owned()] {
        assert_eq!(stored(&c, &path).await.0, "networking.k8s.io/v1beta1", "{path}");
    }
    let resources = c.get("/apis/networking.k8s.io/v1").await.ok();
    let resources = resources["resources"].as_array().cloned().unwrap_or_default();
    let addresses = resources.iter().find(|r| r["name"] == "ipaddresses").expect("served");
    assert_eq!(
        addresses["storageVersionHash"],
        apiserver::rows::storage_hash("networking.k8s.io", "v1beta1", "IPAddress")
    );
    let versions = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
    let said = c.get(&format!("{versions}/resource.k8s.io.resourceclaims")).await.ok();
    assert_eq!(said["status"]["commonEncodingVersion"], "resource.k8s.io/v1beta1");
    let template = json!({"metadata": {"name": "t"}, "spec": claim("")});
    let templates = |version: &str| format!("{DEVICES}/{version}/namespaces/default/resourceclaimtemplates");
    c.post(&templates("v1beta2"), template).await.ok();
    let (sealed, _) = c.stored("/registry/resourceclaimtemplates/default/t").await.expect("stored");
    assert!(sealed.starts_with(b"k8s:enc:secretbox:v1:k:"));

    // The next release reads it all, and stores what is written again, changed or not, in its own version.
    let sealing = sealed_templates(c.dir());
    c.restart_with(vec![sealing.clone()]).await;
    assert_eq!(seen(&c, &new).await, [true; 4]);
    let template = c.get(&format!("{}/t", templates("v1"))).await.ok();
    assert_eq!(requests(&template["spec"]), (&Value::Null, &json!("c")));
    let before = c.get(&format!("{new}/a")).await.ok();
    let after = c.put(&format!("{new}/a"), &before).await.ok();
    assert_ne!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
    let (version, object) = stored(&c, &format!("{STORED}/a")).await;
    assert_eq!((version.as_str(), requests(&object)), ("resource.k8s.io/v1", (&Value::Null, &json!("c"))));
    assert_eq!(c.put(&format!("{new}/a"), &after).await.ok(), after, "it is stored as it is to be");

    // And the older one reads what the next one wrote.
    c.restart_with(OLD.iter().map(|flag| (*flag).to_owned()).chain([sealing]).collect()).await;
    assert_eq!(seen(&c, &newer).await, [true; 4]);
    assert_eq!(seen(&c, &old).await, [false; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_version_follows_min_compatibility_version() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| vec!["--min-compatibility-version=1.33".to_owned()]).await;
    c.post(&format!("{DEVICES}/v1/{CLAIMS}"), claim("a")).await.ok();
    let (version, object) = stored(&c, &format!("{STORED}/a")).await;
    assert_eq!((version.as_str(), requests(&object)), ("resource.k8s.io/v1beta2", (&Value::Null, &json!("c"))));
    // What upstream has fixed stays, and so does what that release already had.
    let class = json!({"metadata": {"name": "v"}, "driverName": "d.example.com", "parameters": {"a": "b"}});
    c.post("/apis/storage.k8s.io/v1/volumeattributesclasses", class).await.ok();
    for (path, want) in [
        ("/registry/volumeattributesclasses/v", "storage.k8s.io/v1beta1"),
        ("/registry/servicecidrs/kubernetes", "networking.k8s.io/v1"),
    ] {
        assert_eq!(stored(&c, path).await.0, want);
    }
}
