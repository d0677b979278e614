//! Strict decoding: what is said of fields that a text has twice, and of those that nobody knows.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::custom::{define, definition};
use crate::harness::{Answer, Client};
use crate::workspace;

async fn send(c: &Client, method: &str, path: &str, kind: &str, text: &str) -> Answer {
    c.send(method, path, kind, Some(Bytes::from(text.to_owned()))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_yaml_keys_are_reported_by_line() {
    let Some((c, ns)) = workspace("strict-yaml").await else { return };
    let text =
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  name: b\n  zz: 1\ndata:\n  a: x\n  a: z\nbb: 1\n";
    let maps = |validation: &str| format!("{ns}/configmaps?dryRun=All&fieldValidation={validation}");
    send(&c, "POST", &maps("Strict"), "application/yaml", text).await.fails(
        400,
        "BadRequest",
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: yaml: unmarshal errors:\n  \
         line 5: key \"name\" already set in map\n  line 9: key \"a\" already set in map, unknown field \"bb\", \
         unknown field \"metadata.zz\"",
    );
    let warned = send(&c, "POST", &maps("Warn"), "application/yaml", text).await;
    assert_eq!(
        warned.warnings(),
        [
            "299 - \"line 5: key \\\"name\\\" already set in map\"",
            "299 - \"line 9: key \\\"a\\\" already set in map\"",
            "299 - \"unknown field \\\"bb\\\"\"",
            "299 - \"unknown field \\\"metadata.zz\\\"\"",
        ]
    );
    assert_eq!(warned.ok()["data"], json!({"a": "z"}));
    assert!(send(&c, "POST", &maps("Ignore"), "application/yaml", text).await.warnings().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn applied_text_is_read_strictly() {
    let Some((c, ns)) = workspace("strict-apply").await else { return };
    let path = |validation: &str| format!("{ns}/configmaps/a?dryRun=All&fieldManager=m&fieldValidation={validation}");
    let apply = "application/apply-patch+yaml";
    for text in [
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  a: x\n  a: z\n",
        "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\",\n\n\n\n \"metadata\": {\"name\": \"a\"},\n \"data\": {\"a\": \"x\",\n\"a\": \"z\"}}",
    ] {
        send(&c, "PATCH", &path("Strict"), apply, text).await.fails(
            400,
            "BadRequest",
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 7: key \"a\" already \
             set in map",
        );
        let warned = send(&c, "PATCH", &path("Warn"), apply, text).await;
        assert_eq!(warned.warnings(), ["299 - \"line 7: key \\\"a\\\" already set in map\""]);
        assert_eq!(warned.ok()["data"], json!({"a": "z"}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_patch_fields_are_reported() {
    let Some((c, ns)) = workspace("strict-patch").await else { return };
    c.post(&format!("{ns}/configmaps"), json!({"metadata": {"name": "a"}})).await.ok();
    let schema = json!({"type": "object", "properties": {"data": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    define(&c, definition("strict.example.com", "twos", "Two", json!([version]))).await;
    let own = "/apis/strict.example.com/v1/namespaces/strict-patch/twos";
    c.post(own, json!({"apiVersion": "strict.example.com/v1", "kind": "Two", "metadata": {"name": "a"}})).await.ok();

    let merge = r#"{"data":{"a":"1","a":"2"},"zz":1}"#;
    let list = r#"[{"op":"add","path":"/zz","value":1,"foo":2},{"op":"add","path":"/data","path":"/data","value":{}}]"#;
    let (in_merge, in_list) = (
        r#"duplicate field "data.a", unknown field "zz""#,
        r#"json patch unknown field "[0].foo", json patch duplicate field "[1].path", unknown field "zz""#,
    );
    for (collection, kind, text, said) in [
        (&*format!("{ns}/configmaps"), "merge-patch+json", merge, in_merge),
        (&format!("{ns}/configmaps"), "strategic-merge-patch+json", merge, in_merge),
        (&format!("{ns}/configmaps"), "json-patch+json", list, in_list),
        (own, "merge-patch+json", merge, in_merge),
        (own, "json-patch+json", list, in_list),
    ] {
        let path = |validation: &str| format!("{collection}/a?dryRun=All&fieldValidation={validation}");
        let kind = format!("application/{kind}");
        let refused = send(&c, "PATCH", &path("Strict"), &kind, text).await;
        let message = refused.json()["message"].as_str().unwrap_or("").to_owned();
        assert!(
            refused.code == 422 && message.ends_with(&format!("strict decoding error: {said}")),
            "{kind}: {message}"
        );
        let warned = send(&c, "PATCH", &path("Warn"), &kind, text).await;
        let warnings: Vec<String> = said.split(", ").map(|w| format!("299 - {}", Value::from(w))).collect();
        assert_eq!(warned.warnings(), warnings, "{collection} {kind}");
        assert!(warned.ok().get("zz").is_none());
    }
}
