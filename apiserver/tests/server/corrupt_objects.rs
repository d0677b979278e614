//! Objects that cannot be read: what clients are told, and how they are deleted all the same.

use serde_json::{Value, json};

use crate::encryption::{FIRST, key, sealing};
use crate::harness::{Cluster, Identity, etcd_is_missing, eventually};

const GATE: &str = "--feature-gates=AllowUnsafeMalformedObjectDeletion=true";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const OPTION: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
/// Sealed by a provider that is not there.
const SEALED: &[u8] = b"k8s:enc:secretbox:v1:gone:sealed";
const DAMAGED: &[u8] = b"k8s\0\xff\xff";

fn encryption(dir: &std::path::Path) -> String {
    sealing(dir, &json!([{"aescbc": {"keys": [key("k", FIRST)]}}, {"identity": {}}]))
}

async fn spoil(c: &Cluster, key: &str, bytes: &[u8]) {
    c.etcd_client().await.kv_client().put(key, bytes, None).await.expect("written");
}

async fn permit(c: &Cluster, verbs: Value) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": verbs}]);
    let name = verbs.as_array().map_or(0, Vec::len).to_string();
    c.post(&format!("{rbac}/roles"), json!({"metadata": {"name": name}, "rules": rules})).await.ok();
    let binding = json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}});
    c.post(&format!("{rbac}/rolebindings"), binding).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_objects_are_deleted_with_permission() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|dir, _| vec![encryption(dir), GATE.to_owned()]).await;
    let alice = c.client(Identity::Alice);
    let unread = || json!({OPTION: true});
    c.post(SECRETS, json!({"metadata": {"name": "fine"}})).await.ok();
    spoil(&c, "/registry/secrets/default/s", SEALED).await;
    let path = format!("{SECRETS}/s");
    let why = "StorageError: corrupt object, Code: 7, Key: /secrets/default/s, ResourceVersion: 0, AdditionalErrorMsg: data from the storage is not transformable revision=0: no matching prefix found";
    let told = format!("Internal error occurred: {why}");
    c.get(&path).await.fails(500, "InternalError", &told);
    c.delete(&path).await.fails(500, "InternalError", &told);
    let list = c.get(SECRETS).await;
    list.fails(500, "StorageReadError", "failed to read one or more secrets from the storage");
    let cause = &list.json()["details"]["causes"][0];
    assert_eq!(
        (&cause["reason"], &cause["field"]),
        (&json!("UnexpectedServerResponse"), &json!("/registry/secrets/default/s"))
    );

    // The option stands alone, is for one object, and for one that cannot be read.
    let mut both = unread();
    both["gracePeriodSeconds"] = json!(0);
    c.delete_with(&path, both).await.fails(
        422,
        "Invalid",
        &format!("DeleteOptions.meta.k8s.io \"\" is invalid: {OPTION}: Invalid value: true: cannot be set together with .gracePeriodSeconds"),
    );
    c.delete_with(SECRETS, unread()).await.fails(
        422,
        "Invalid",
        &format!("DeleteOptions.meta.k8s.io \"\" is invalid: {OPTION}: Invalid value: true: is not allowed with DELETECOLLECTION, try again after removing the option"),
    );
    for name in ["fine", "nothing"] {
        c.delete_with(&format!("{SECRETS}/{name}"), unread()).await.fails(
            422,
            "Invalid",
            &format!("secrets \"{name}\" is invalid: {OPTION}: Invalid value: true: is exclusively used to delete corrupt object(s), try again by removing this option"),
        );
    }

    permit(&c, json!(["delete"])).await;
    let refused = eventually("alice may delete", async || {
        let answer = alice.delete_with(&path, unread()).await;
        answer.text().contains("not permitted").then_some(answer)
    });
    refused.await.fails(
        403,
        "Forbidden",
        "secrets \"s\" is forbidden: not permitted to do \"unsafe-delete-ignore-read-errors\", reason: ",
    );
    permit(&c, json!(["delete", "unsafe-delete-ignore-read-errors"])).await;
    let deleted = eventually("alice may delete unread", async || {
        let answer = alice.delete_with(&path, unread()).await;
        (answer.code == 200).then_some(answer)
    });
    let want = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200,
        "details": {"name": "s", "kind": "Secret"}});
    assert_eq!(deleted.await.json(), want);
    assert!(c.stored("/registry/secrets/default/s").await.is_none());
    assert_eq!(c.get(&path).await.code, 404);
    let names = c.get(SECRETS).await.ok()["items"].as_array().map(Vec::len);
    assert_eq!(names, Some(1), "the others are there");

    // An object that is there and becomes unreadable is not shown as it was.
    c.post(MAPS, json!({"metadata": {"name": "m"}})).await.ok();
    c.get(&format!("{MAPS}/m?resourceVersion=0")).await.ok();
    spoil(&c, "/registry/configmaps/default/m", DAMAGED).await;
    let (code, reason, message) = c.get(&format!("{MAPS}/m")).await.failure();
    assert_eq!((code, reason.as_str()), (500, "InternalError"));
    assert!(
        message.contains("Key: /configmaps/default/m") && message.contains("object not decodable revision="),
        "{message}"
    );
    assert_eq!(c.delete_with(&format!("{MAPS}/m?{OPTION}=true"), unread()).await.code, 200);
    assert_eq!(c.get(&format!("{MAPS}/m")).await.code, 404);
    c.get(MAPS).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_gate_the_option_is_overlooked() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|dir, _| vec![encryption(dir)]).await;
    spoil(&c, "/registry/secrets/default/s", SEALED).await;
    let path = format!("{SECRETS}/s");
    let told = "Internal error occurred: no matching prefix found";
    c.get(&path).await.fails(500, "InternalError", told);
    c.delete_with(&path, json!({OPTION: true, "gracePeriodSeconds": 0})).await.fails(500, "InternalError", told);
    c.post(SECRETS, json!({"metadata": {"name": "fine"}})).await.ok();
    c.delete_with(&format!("{SECRETS}/fine"), json!({OPTION: true})).await.ok();
}
