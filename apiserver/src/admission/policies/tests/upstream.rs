//! Comparison with upstream's plugins (`k8s.io/apiserver` v0.35.4) over some hundred policies.
//!
//! `upstream.json` has the objects of the cluster, the requests, and a row for each policy with its bindings: what is
//! said of its spec beside the usual, and what came of it.

use super::*;
use serde_json::json;

const TABLE: &str = include_str!("upstream.json");

/// Removes empty values, of which upstream's typed objects and ours have different ones.
fn said(value: &Value) -> Value {
    let says = |v: &Value| !matches!(v, Value::Null) && v.as_object().is_none_or(|m| !m.is_empty());
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| (k.clone(), said(v)))
            .filter(|(_, v)| says(v))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(list) => list.iter().map(said).collect::<Vec<_>>().into(),
        other => other.clone(),
    }
}

/// An object with the defaults that upstream's plugin alone does not have.
fn settled(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(schema) = proto::schema::kind_of(tree::text(&object, "/apiVersion"), tree::text(&object, "/kind")) {
        proto::defaulting::apply(schema, &mut object);
    }
    said(&object)
}

fn usual(mut spec: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

fn cluster_of(table: &Value, row: &Value, (policies, bindings): (&str, &str)) -> Arc<Fixed> {
    let cluster = Arc::new(Fixed::default());
    for object in tree::list(table, "/objects") {
        let plural = if object["kind"] == "Namespace" { "namespaces" } else { "configmaps" };
        cluster.put("", plural, object.clone());
    }
    let rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": "*"});
    let spec =
        json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never", "matchConstraints": {"resourceRules": [rule]}});
    cluster.put(GROUP, policies, json!({"metadata": {"name": "p"}, "spec": usual(spec, &row["policy"])}));
    let bound = row.get("bindings").cloned().unwrap_or_else(|| json!([{}]));
    for (name, more) in ["b", "c"].iter().zip(tree::list(&bound, "")) {
        let spec = json!({"policyName": "p", "validationActions": ["Deny"]});
        cluster.put(GROUP, bindings, json!({"metadata": {"name": name}, "spec": usual(spec, more)}));
    }
    cluster
}

#[tokio::test]
async fn policies_match_upstreams_plugins() {
    let table: Value = serde_json::from_str(TABLE).expect("a table");
    for row in tree::list(&table, "/rows") {
        let mutating = row["mutating"] == true;
        let (policies, bindings) = if mutating { MUTATING } else { VALIDATING };
        let cluster = cluster_of(&table, row, (policies.plural, bindings.plural));
        let request = &table["requests"][row["request"].as_str().unwrap_or("r0")];
        let plugin: Box<dyn crate::admission::Plugin> = match mutating {
            true => Box::new(MutatingPolicies::new(cluster.means())),
            false => Box::new(ValidatingPolicies::new(cluster.means())),
        };
        let told = Write::of(request).told(plugin.as_ref(), mutating).await;
        let want = &row["want"];
        let refused = told.refused.map(|s| json!([s.code, s.reason, s.message]));
        let mut got = json!({"refused": refused, "annotations": told.annotations, "reinvoke": told.again});
        let mut wanted = json!({"refused": want["refused"], "annotations": want["annotations"], "reinvoke": want["reinvoke"] == true});
        if !told.warnings.is_empty() || want["warnings"].is_array() {
            got["warnings"] = json!(told.warnings);
            wanted["warnings"] = want["warnings"].clone();
        }
        if mutating && refused_nothing(&got) && request["object"].is_object() {
            got["object"] = settled(&told.object);
            wanted["object"] = settled(want.get("object").unwrap_or(&request["object"]));
        }
        assert_eq!(said(&got), said(&wanted), "{row}");
    }
}

fn refused_nothing(got: &Value) -> bool {
    got["refused"].is_null()
}
