//! Encryption at rest: what etcd holds, and what clients see of it.

use serde_json::{Value, json};
use sha2::Digest as _;

use crate::harness::{Cluster, Kms, etcd_is_missing, eventually, file};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// 32 times `1`, and 32 times `2`.
pub(crate) const FIRST: &str = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=";
const SECOND: &str = "MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjI=";

/// The flag for a file in a folder that says how secrets are sealed.
pub(crate) fn sealing(dir: &std::path::Path, providers: &Value) -> String {
    let config = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": providers}]
    });
    format!("--encryption-provider-config={}", file(dir, "encryption.json", &config.to_string()))
}

pub(crate) fn key(name: &str, secret: &str) -> Value {
    json!({"name": name, "secret": secret})
}

fn secret(name: &str) -> Value {
    json!({"metadata": {"name": name}, "stringData": {"password": "very-secret"}})
}

async fn stored(cluster: &Cluster, name: &str) -> Vec<u8> {
    cluster.stored(&format!("/registry/secrets/default/{name}")).await.expect("it is stored").0
}

fn reads_well(object: &Value) {
    assert_eq!(object["data"]["password"], "dmVyeS1zZWNyZXQ=");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_change_while_the_server_runs() {
    if etcd_is_missing() {
        return;
    }
    let mut cluster = Cluster::start_with(|dir, _| {
        let providers = json!([{"aescbc": {"keys": [key("k1", FIRST)]}}, {"identity": {}}]);
        vec![sealing(dir, &providers), "--encryption-provider-config-automatic-reload=true".to_owned()]
    })
    .await;
    let made = cluster.post(SECRETS, secret("a")).await.ok();
    reads_well(&made);
    assert!(stored(&cluster, "a").await.starts_with(b"k8s:enc:aescbc:v1:k1:"));
    let map = json!({"metadata": {"name": "m"}});
    cluster.post("/api/v1/namespaces/default/configmaps", map).await.ok();
    let (plain, _) = cluster.stored("/registry/configmaps/default/m").await.expect("stored");
    assert!(plain.starts_with(b"k8s\0"), "other resources are not touched");
    for path in [format!("{SECRETS}/a"), format!("{SECRETS}/a?resourceVersion=0")] {
        reads_well(&cluster.get(&path).await.ok());
    }
    reads_well(&cluster.get(SECRETS).await.ok()["items"][0]);
    reads_well(&cluster.watch(&format!("{SECRETS}?watch=1"), 1).await[0]["object"]);

    // Another key and another cipher: what is there stays readable, what is written anew is sealed anew.
    let providers = json!([{"secretbox": {"keys": [key("k2", SECOND)]}}, {"aescbc": {"keys": [key("k1", FIRST)]}}]);
    sealing(cluster.dir(), &providers);
    let mut number = 0;
    eventually("the new configuration is taken over", async || {
        number += 1;
        let name = format!("new-{number}");
        cluster.post(SECRETS, secret(&name)).await.ok();
        stored(&cluster, &name).await.starts_with(b"k8s:enc:secretbox:v1:k2:").then_some(())
    })
    .await;
    let metrics = cluster.get("/metrics").await.text();
    let shows = |family: &str, label: &str| {
        let start = format!("apiserver_encryption_config_controller_{family}{{apiserver_id_hash=\"sha256:");
        metrics.lines().any(|line| line.starts_with(&start) && line.contains(label))
    };
    assert!(shows("automatic_reloads_total", "status=\"success\""));
    assert!(shows("automatic_reload_last_timestamp_seconds", "status=\"success\""));
    assert!(shows("last_config_info", "hash=\"k8s:enc:unstable:1:"));
    let same = cluster.get(&format!("{SECRETS}/a")).await.ok();
    reads_well(&same);
    assert!(stored(&cluster, "a").await.starts_with(b"k8s:enc:aescbc:"));

    // After a restart everything is read; a write of the same content seals it anew.
    cluster.stop_server();
    cluster.start_server().await;
    reads_well(&cluster.get(&format!("{SECRETS}/a")).await.ok());
    let again = cluster.put(&format!("{SECRETS}/a"), &same).await.ok();
    assert_ne!(again["metadata"]["resourceVersion"], same["metadata"]["resourceVersion"]);
    assert!(stored(&cluster, "a").await.starts_with(b"k8s:enc:secretbox:v1:k2:"));
    assert_eq!(cluster.get("/healthz/kms-providers").await.code, 200);
}

/// A cluster whose secrets are sealed by a key management service of that name.
async fn sealed_by(kms: &Kms, name: &str) -> Cluster {
    let endpoint = format!("unix://{}", kms.socket().display());
    Cluster::start_with(|dir, _| {
        let provider = json!({"apiVersion": "v2", "name": name, "endpoint": endpoint});
        vec![sealing(dir, &json!([{"kms": provider}]))]
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kms_plugin_is_called_once_per_seed() {
    if etcd_is_missing() {
        return;
    }
    let kms = Kms::start().await;
    let mut cluster = sealed_by(&kms, "vault").await;
    for name in ["a", "b", "c"] {
        cluster.post(SECRETS, secret(name)).await.ok();
        let bytes = stored(&cluster, name).await;
        assert!(bytes.starts_with(b"k8s:enc:kms:v2:vault:"));
        assert!(!bytes.windows(11).any(|w| w == b"very-secret"));
    }
    assert_eq!(cluster.get("/readyz/kms-provider-0").await.code, 200);
    cluster.stop_server();
    cluster.start_server().await;
    let before = kms.decrypted();
    for name in ["a", "b", "c"] {
        reads_well(&cluster.get(&format!("{SECRETS}/{name}")).await.ok());
        reads_well(&cluster.get(&format!("{SECRETS}/{name}?resourceVersion=0")).await.ok());
    }
    assert_eq!(kms.decrypted() - before, 1, "one seed, one question");
    let metrics = cluster.get("/metrics").await.text();
    let latency = "apiserver_envelope_encryption_kms_operations_latency_seconds_count";
    for method in ["Status", "Encrypt", "Decrypt"] {
        let labels = format!(
            "grpc_status_code=\"OK\",method_name=\"/v2.KeyManagementService/{method}\",provider_name=\"vault\""
        );
        assert!(metrics.contains(&format!("{latency}{{{labels}}}")), "{method}");
    }
    assert!(metrics.contains("apiserver_envelope_encryption_dek_source_cache_size{provider_name=\"vault\"}"));
    let initialized = "apiserver_watch_cache_initializations_total{group=\"\",resource=\"secrets\"} 1";
    assert!(metrics.contains(initialized), "the caches are counted");
}

/// The service takes another key, is of no use while the server starts, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_management_service_changes_its_key_and_fails() {
    if etcd_is_missing() {
        return;
    }
    let kms = Kms::start().await;
    let mut cluster = sealed_by(&kms, "safe").await;
    cluster.post(SECRETS, secret("old")).await.ok();
    kms.rotate();
    cluster.stop_server();
    cluster.start_server().await;
    cluster.post(SECRETS, secret("new")).await.ok();
    let keyed = async |name: &str, key: &[u8]| stored(&cluster, name).await.windows(5).any(|window| window == key);
    assert!(keyed("old", b"key-1").await && keyed("new", b"key-2").await);
    let old = cluster.get(&format!("{SECRETS}/old")).await.ok();
    reads_well(&old);
    // What was sealed with the key before is sealed anew by a write that changes nothing.
    cluster.put(&format!("{SECRETS}/old"), &old).await.ok();
    assert!(keyed("old", b"key-2").await);
    let metrics = cluster.get("/metrics").await.text();
    let uses = |way: &str, key: &str| {
        let hash: String = sha2::Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        metrics.lines().any(|line| {
            let has = |label: String| line.contains(&label);
            line.starts_with("apiserver_envelope_encryption_key_id_hash_total{")
                && has(format!("key_id_hash=\"sha256:{hash}\""))
                && has(format!("transformation_type=\"{way}\""))
                && has("provider_name=\"safe\"".to_owned())
        })
    };
    assert!(uses("to_storage", "key-1") && uses("to_storage", "key-2") && uses("from_storage", "key-1"));

    kms.fall_sick(true);
    cluster.stop_server();
    cluster.start_server_until("/readyz?exclude=kms-provider-0").await;
    assert_eq!(cluster.get("/readyz/kms-provider-0").await.code, 500);
    let (code, reason, message) = cluster.get(&format!("{SECRETS}/old")).await.failure();
    assert_eq!((code, reason.as_str()), (500, "InternalError"));
    assert!(message.starts_with("Internal error occurred: "), "{message}");
    assert_eq!(cluster.post(SECRETS, secret("none")).await.failure().0, 500);
    assert_eq!(cluster.get(SECRETS).await.code, 429);
    cluster.get("/api/v1/namespaces/default/configmaps").await.ok();

    kms.fall_sick(false);
    eventually("the service is well again", async || {
        (cluster.get(&format!("{SECRETS}/old")).await.code == 200 && cluster.get(SECRETS).await.code == 200)
            .then_some(())
    })
    .await;
    cluster.post(SECRETS, secret("none")).await.ok();
}
