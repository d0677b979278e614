//! Definitions of custom resources: what is refused, what has to stay, and how one goes.

use serde_json::{Value, json};

use crate::cluster;
use crate::custom::{define, definition};
use crate::harness::{Client, eventually};
use crate::workspace;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn version(name: &str, storage: bool) -> Value {
    json!({"name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
}

/// Field and message of everything that is wrong with a definition of which something is changed.
async fn wrong(c: &Client, change: Value) -> Vec<String> {
    let mut object = definition("wrong.example.com", "wrongs", "Wrong", json!([version("v1", true)]));
    for (key, value) in change.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    let answer = c.post(&format!("{DEFINITIONS}?dryRun=All"), object).await;
    assert_eq!(answer.code, 422, "{}", answer.text());
    let causes = answer.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or("").to_owned();
    causes.iter().map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_that_make_no_sense() {
    let Some((c, _)) = workspace("crd-parts").await else { return };
    let webhook = |client: Value, versions: Value| json!({"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": versions}}});
    let service = |path: &str| json!({"service": {"name": "a", "namespace": "b", "path": path}});
    for (change, wanted) in [
        (
            json!({"preserveUnknownFields": true}),
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ),
        (
            json!({"conversion": {"strategy": "Webhook"}}),
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
        ),
        (
            webhook(json!({"url": "http://a"}), json!(["v1"])),
            "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
        ),
        (
            webhook(service("x"), json!(["v1"])),
            "spec.conversion.webhookClientConfig.service.path: Invalid value: \"x\": must start with a '/'",
        ),
        (
            webhook(service("/a//b"), json!(["v1"])),
            "spec.conversion.webhookClientConfig.service.path: Invalid value: \"/a//b\": segment[1] may not be empty",
        ),
        (
            webhook(service("/"), json!(["v3"])),
            "spec.conversion.conversionReviewVersions: Invalid value: [\"v3\"]: must include at least one of v1, v1beta1",
        ),
        (
            webhook(service("/"), json!(["v1", "v1"])),
            "spec.conversion.conversionReviewVersions[1]: Invalid value: \"v1\": duplicate version",
        ),
        (
            json!({"names": {"plural": "wrongs", "kind": "Wrong", "listKind": "Wrong"}}),
            "spec.names.listKind: Invalid value: \"Wrong\": kind and listKind may not be the same",
        ),
    ] {
        let found = wrong(&c, change.clone()).await;
        assert!(found.contains(&wanted.to_owned()), "{change}: {found:?}");
    }
    let names = json!({"names": {"plural": "wrongs", "kind": "wrong_", "singular": "W", "shortNames": ["A"], "categories": ["b", "X"]}});
    let found = wrong(&c, names).await;
    let fields: Vec<&str> = found.iter().filter_map(|f| f.split(':').next()).collect();
    let wanted = ["singular", "kind", "listKind", "shortNames[0]", "categories[1]"].map(|f| format!("spec.names.{f}"));
    assert_eq!(fields, wanted);
    assert!(found[1].contains("may have mixed case, but should otherwise match: a DNS-1035 label"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_versions_cannot_be_removed() {
    let Some((c, _)) = workspace("crd-stored").await else { return };
    let (group, name) = ("stored.example.com", "keeps.stored.example.com");
    define(&c, definition(group, "keeps", "Keep", json!([version("v1", true), version("v2", false)]))).await;
    let path = format!("{DEFINITIONS}/{name}");
    let with =
        async |versions: Value| c.patch(&path, "merge-patch+json", json!({"spec": {"versions": versions}})).await;
    let message = format!(
        "CustomResourceDefinition.apiextensions.k8s.io \"{name}\" is invalid: status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions"
    );
    with(json!([version("v2", true)])).await.fails(422, "Invalid", &message);
    let both = with(json!([version("v1", false), version("v2", true)])).await.ok();
    assert_eq!(both["status"]["storedVersions"], json!(["v1", "v2"]));
    // When nothing of it is left, the status says so.
    let migrated = json!({"status": {"storedVersions": ["v2"]}});
    c.patch(&format!("{path}/status"), "merge-patch+json", migrated).await.ok();
    with(json!([version("v2", true)])).await.ok();

    // What defines the resource stays; the name was judged when it was new.
    let changed = c.patch(&path, "merge-patch+json", json!({"spec": {"group": "other.example.com"}})).await;
    let message = format!(
        "CustomResourceDefinition.apiextensions.k8s.io \"{name}\" is invalid: spec.group: Invalid value: \"other.example.com\": field is immutable"
    );
    changed.fails(422, "Invalid", &message);
    let bundle = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://a", "caBundle": "eA=="}}}}});
    let refused = c.patch(&path, "merge-patch+json", bundle).await;
    assert!(refused.code == 422 && refused.text().contains("unable to load root certificates"), "{}", refused.text());
}

/// Finalizers of the remaining objects of a definition in deletion can be removed, and nothing new is created.
#[tokio::test(flavor = "multi_thread")]
async fn finalizers_of_remaining_objects_can_be_removed() {
    let Some((c, ns)) = workspace("crd-last").await else { return };
    let name = "lasts.last.example.com";
    define(&c, definition("last.example.com", "lasts", "Last", json!([version("v1", true)]))).await;
    let path = ns.replace("/api/v1", "/apis/last.example.com/v1") + "/lasts";
    let last = |name: &str| {
        json!({"apiVersion": "last.example.com/v1", "kind": "Last",
        "metadata": {"name": name, "finalizers": ["example.com/mine"]}})
    };
    c.post(&path, last("a")).await.ok();
    c.delete(&format!("{DEFINITIONS}/{name}")).await.ok();
    let going = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Terminating" && c["reason"] == "InstanceDeletionInProgress")
    };
    let watch = format!("{DEFINITIONS}?watch=1&timeoutSeconds=30&fieldSelector=metadata.name%3D{name}");
    c.watch_until(&watch, going).await;
    let marked = format!("{path}?watch=1&timeoutSeconds=30");
    c.watch_until(&marked, |o| o["metadata"].get("deletionTimestamp").is_some()).await;
    let refusal = "create not allowed while custom resource definition is terminating";
    c.post(&path, last("b")).await.fails(405, "MethodNotAllowed", refusal);
    let served = c.get("/apis/last.example.com/v1").await.ok();
    assert_eq!(served["resources"][0]["verbs"], json!(["delete", "deletecollection", "get", "list", "watch"]));
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let mut labelled = c.patch(&format!("{path}/a"), "merge-patch+json", label).await.ok();
    labelled["metadata"]["finalizers"] = json!([]);
    c.put(&format!("{path}/a"), &labelled).await.ok();
    eventually("the definition is gone", async || {
        (c.get(&format!("{DEFINITIONS}/{name}")).await.code == 404).then_some(())
    })
    .await;
}

/// Objects that cannot be read, because what converts them does not answer, keep their definition; that is found out
/// once and said once, not all the time, and holds up no other definition.
#[tokio::test(flavor = "multi_thread")]
async fn failed_cleanup_backs_off() {
    let Some((c, ns)) = workspace("crd-deaf").await else { return };
    let name = "deafs.deaf.example.com";
    let with = |stored: &str| json!([version("v1", stored == "v1"), version("v2", stored == "v2")]);
    define(&c, definition("deaf.example.com", "deafs", "Deaf", with("v1"))).await;
    let path = ns.replace("/api/v1", "/apis/deaf.example.com/v1") + "/deafs";
    let deaf = json!({"apiVersion": "deaf.example.com/v1", "kind": "Deaf", "metadata": {"name": "a"}});
    c.post(&path, deaf).await.ok();
    let webhook = json!({"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"}});
    let broken = json!({"spec": {"versions": with("v2"), "conversion": {"strategy": "Webhook", "webhook": webhook}}});
    c.patch(&format!("{DEFINITIONS}/{name}"), "merge-patch+json", broken).await.ok();
    c.delete(&format!("{DEFINITIONS}/{name}")).await.ok();
    let failed = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Terminating" && c["reason"] == "InstanceDeletionFailed")
    };
    let watch = format!("{DEFINITIONS}?watch=1&timeoutSeconds=30&fieldSelector=metadata.name%3D{name}");
    c.watch_until(&watch, failed).await;
    define(&c, definition("deaf.example.com", "hearings", "Hearing", json!([version("v1", true)]))).await;
    for number in 0..30 {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        c.post(&format!("{ns}/configmaps"), map).await.ok();
    }
    let etcd = cluster().await.expect("cluster").etcd_client().await;
    let key = format!("/registry/apiextensions.k8s.io/customresourcedefinitions/{name}");
    let found = etcd.kv_client().get(key, None).await.expect("etcd answers");
    let writes = found.kvs().first().map(etcd_client::KeyValue::version).unwrap_or_default();
    assert!((5..20).contains(&writes), "it was written {writes} times");
    // What is changed so that it may work is tried at once.
    let repaired = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
    c.patch(&format!("{DEFINITIONS}/{name}"), "merge-patch+json", repaired).await.ok();
    eventually("the definition is gone", async || {
        (c.get(&format!("{DEFINITIONS}/{name}")).await.code == 404).then_some(())
    })
    .await;
}

/// Deleting a definition that shares its name with a built-in resource deletes no built-in objects.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_an_overlapping_definition_keeps_built_in_objects() {
    let Some((c, ns)) = workspace("crd-ours").await else { return };
    let kept = [
        (
            "/apis/apiregistration.k8s.io/v1/apiservices/v1.".to_owned(),
            "apiregistration.k8s.io",
            "apiservices",
            "APIService",
        ),
        (
            ns.replace("/api/", "/apis/networking.k8s.io/") + "/networkpolicies/p",
            "networking.k8s.io",
            "networkpolicies",
            "NetworkPolicy",
        ),
    ];
    let policy = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}}});
    c.post(kept[1].0.trim_end_matches("/p"), policy).await.ok();
    for (object, group, plural, kind) in kept {
        let mut own = definition(group, plural, kind, json!([version("v9", true)]));
        own["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a test"});
        c.post(DEFINITIONS, own).await.ok();
        let path = format!("{DEFINITIONS}/{plural}.{group}");
        eventually("an established definition", async || {
            let got = c.get(&path).await.json();
            let conditions = got["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True").then_some(())
        })
        .await;
        c.delete(&path).await.ok();
        eventually("its end", async || (c.get(&path).await.code == 404).then_some(())).await;
        let object = c.get(&object).await.ok();
        assert!(object["metadata"].get("deletionTimestamp").is_none(), "{object}");
    }
}

/// Gateway API 1.7 asks for `has(r.namespace)`; OpenShift's ingresses have names of letters and symbols of all
/// languages, and so many of them at most.
#[tokio::test(flavor = "multi_thread")]
async fn fields_called_by_words_of_the_language_and_letters_that_count() {
    let Some((c, ns)) = workspace("crd-words").await else { return };
    let rule = |rule: &str| json!({"rule": rule, "message": rule});
    let spec = json!({"type": "object",
        "properties": {
            "namespace": {"type": "string"}, "const": {"type": "string"}, "a.if": {"type": "string"},
            "host": {"type": "string", "pattern": "^([\\p{S}\\p{L}](-?[a-z\\p{S}\\p{L}]{0,62})?\\.){1,}\\p{L}{2,63}$"}},
        "x-kubernetes-validations": [rule("!has(self.namespace) || self.namespace != 'a'"),
            rule("self.?const.orValue('') != self.__namespace__ && !has(self.a__dot__if)")]});
    let schema = |spec: &Value| json!({"type": "object", "properties": {"spec": spec}});
    let version = |spec: &Value| json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema(spec)}}]);
    define(&c, definition("words.example.com", "words", "Word", version(&spec))).await;
    let path = ns.replace("/api/v1", "/apis/words.example.com/v1") + "/words";
    for (spec, refused) in [
        (json!({"namespace": "b", "host": "\u{3b1}-\u{3b2}.\u{3b3}\u{3b4}"}), None),
        (
            json!({"namespace": "a", "const": "b"}),
            Some("spec: Invalid value: !has(self.namespace) || self.namespace != 'a'"),
        ),
        (
            json!({"namespace": "b", "const": "b"}),
            Some("spec: Invalid value: self.?const.orValue('') != self.__namespace__"),
        ),
        (
            json!({"namespace": "b", "host": "1.\u{3b3}\u{3b4}"}),
            Some("spec.host: Invalid value: \"1.\u{3b3}\u{3b4}\": spec.host in body should match"),
        ),
    ] {
        let sent = json!({"apiVersion": "words.example.com/v1", "kind": "Word", "metadata": {"generateName": "w-"}, "spec": spec});
        let answer = c.post(&path, sent).await;
        let said = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        match refused {
            None => assert_eq!(answer.code, 201, "{said}"),
            Some(refused) => assert!(answer.code == 422 && said.contains(refused), "{said}"),
        }
    }
    for (key, value, want) in [
        ("host", json!("^([^/]{1,63}/){0,20}$"), "error parsing regexp: invalid repeat count: `{0,20}`"),
        ("if", json!("^a$"), "undefined field 'namespace'"),
    ] {
        let mut wrong = spec.clone();
        wrong["properties"] = json!({key: {"type": "string", "pattern": value}});
        let answer = c.post(DEFINITIONS, definition("wrong.example.com", "words", "Word", version(&wrong))).await;
        let said = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.code == 422 && said.contains(want), "{want}: {said}");
    }
}
