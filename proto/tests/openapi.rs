//! OpenAPI documents against upstream's. The committed golden document is `apps/v1`; `OPENAPI_FACTS=<dir>` compares
//! with a folder of captured documents instead (`api_v1.json`, `apis_apps_v1.json`, ..., `openapi-v2.json`).

use proto::resources::{self, Resource};
use proto::{Value, openapi};

fn rows() -> Vec<&'static Resource> {
    resources::all().iter().collect()
}

/// Descriptions are ours; a reference alone in `allOf` is the same as the reference.
fn comparable(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            if let Some([Value::Object(one)]) = map.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
                let mut joined = map.clone();
                joined.remove("allOf");
                joined.extend(one.clone());
                return comparable(&Value::Object(joined));
            }
            let prose = |k: &str, v: &Value| match k {
                "description" => v.is_string(),
                "info" => v.get("title").is_some(),
                _ => false,
            };
            map.iter().filter(|(k, v)| !prose(k, v)).map(|(k, v)| (k.clone(), comparable(v))).collect()
        }
        Value::Array(list) => list.iter().map(comparable).collect(),
        other => other.clone(),
    }
}

fn differences(path: &str, got: &Value, want: &Value, out: &mut Vec<String>) {
    match (got, want) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
                let inner = format!("{path} > {key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(&inner, a, b, out),
                    (Some(a), None) => out.push(format!("{inner}: extra {a}")),
                    (None, Some(b)) => out.push(format!("{inner}: missing {b}")),
                    (None, None) => {}
                }
            }
        }
        (a, b) if a != b => out.push(format!("{path}: {a} instead of {b}")),
        _ => {}
    }
}

fn compare(name: &str, got: &[u8], want: &str) -> Vec<String> {
    let got: Value = serde_json::from_slice(got).expect("our JSON");
    let want: Value = serde_json::from_str(want).expect("their JSON");
    let mut out = Vec::new();
    differences(name, &comparable(&got), &comparable(&want), &mut out);
    // Upstream publishes a list type for bytes in one place.
    out.retain(|d| !d.contains("APIServiceSpec > properties > caBundle > x-kubernetes-list-type"));
    out
}

#[test]
fn version_3_documents_are_upstreams() {
    let found = match std::env::var("OPENAPI_FACTS") {
        Ok(dir) => openapi::v3_paths(&rows())
            .iter()
            .flat_map(|path| {
                let file = path.trim_start_matches('.').replace('/', "_");
                let want = std::fs::read_to_string(format!("{dir}/{file}.json")).expect("facts");
                compare(path, &openapi::v3(&rows(), path).expect("document"), &want)
            })
            .collect(),
        Err(_) => compare(
            "apis/apps/v1",
            &openapi::v3(&rows(), "apis/apps/v1").expect("document"),
            include_str!("../testdata/openapi/apis_apps_v1.json"),
        ),
    };
    assert!(found.is_empty(), "{} differences\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_version_2_document_is_upstreams() {
    if let Ok(dir) = std::env::var("OPENAPI_FACTS") {
        let want = std::fs::read_to_string(format!("{dir}/openapi-v2.json")).expect("facts");
        let found = compare("v2", &openapi::v2(&rows()), &want);
        assert!(found.is_empty(), "{} differences\n{}", found.len(), found.join("\n"));
        return;
    }
    let document: Value = serde_json::from_slice(&openapi::v2(&rows())).expect("JSON");
    let template = &document["definitions"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(template["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(document["paths"]["/api/v1/pods"]["get"]["operationId"], "listCoreV1PodForAllNamespaces");
}

#[test]
fn every_document_has_a_path_and_what_is_not_served_has_none() {
    let hashes = openapi::v3_hashes(&rows());
    for path in ["api/v1", "apis/apps/v1", "version", "apis/policy"] {
        assert!(hashes.contains_key(path), "{path}");
    }
    let without: Vec<&Resource> = rows().into_iter().filter(|row| row.group != "apps").collect();
    let fewer = openapi::v3_hashes(&without);
    let gone: Vec<&String> = hashes.keys().filter(|path| !fewer.contains_key(*path)).collect();
    assert_eq!(gone, ["apis/apps", "apis/apps/v1"]);
    let text = String::from_utf8(openapi::v2(&without)).expect("text");
    assert!(!text.contains("/apis/apps/") && text.contains("/apis/batch/"));
    for path in hashes.keys() {
        assert!(openapi::v3(&rows(), path).is_some(), "{path}");
    }
    for unknown in ["", "api/v2", "apis/nope/v1", "apis//v1", "x"] {
        assert!(openapi::v3(&rows(), unknown).is_none(), "{unknown}");
    }
}

/// Every message of the protobuf form ends where its length says, and names are there.
#[test]
fn the_protobuf_form_holds_paths_and_definitions() {
    let bytes = openapi::v2_protobuf(&rows());
    let contains = |text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(bytes.starts_with(b"\x0a\x032.0"));
    assert!(contains("io.k8s.api.core.v1.Pod"));
    assert!(contains("/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"));
    assert!(contains("x-kubernetes-group-version-kind"));
}

#[test]
fn words_that_fields_may_have_can_be_left_out() {
    let rows = rows();
    let of = |enums| openapi::Content { rows: &rows, enums };
    let count = |text: Vec<u8>| String::from_utf8(text).expect("text").matches("\"enum\":[").count();
    for path in ["api/v1", "apis/apps/v1"] {
        let both = [true, false].map(|enums| count(openapi::v3(of(enums), path).expect("a document")));
        assert!(both[0] > 0 && both[1] == 0, "{path}: {both:?}");
    }
    assert_eq!(count(openapi::v2(of(false))), 0);
    assert!(openapi::v2_protobuf(of(false)).len() < openapi::v2_protobuf(of(true)).len());
    assert_ne!(openapi::v3_hashes(of(false)), openapi::v3_hashes(of(true)));
}

/// `kubectl explain KIND.metadata` is read by people, and checked word by word where the kind is a custom one.
#[test]
fn metadata_is_described_in_both_documents() {
    let v2: Value = serde_json::from_slice(&openapi::v2(&rows())).expect("JSON");
    let v3: Value = serde_json::from_slice(&openapi::v3(&rows(), "apis/apps/v1").expect("document")).expect("JSON");
    let name = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    for meta in [&v2["definitions"][name], &v3["components"]["schemas"][name]] {
        let said = meta["properties"]["creationTimestamp"]["description"].as_str().unwrap_or_default();
        assert!(said.starts_with("CreationTimestamp is a timestamp"), "{said}");
    }
}
