//! Discovery: which groups, versions and resources there are, in the legacy and the aggregated form.
//!
//! Rendered from the resource rows. Knows nothing of requests; the server picks the form.

use proto::Value;
use proto::resources::{self, Resource, Subresource};
use serde_json::{Map, json};

use crate::registry::conversion::group_version;

/// Media type parameters of the aggregated form.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Groups in order, each with its versions in order; the core group is first.
fn groups() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut out: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    for r in resources::all() {
        match out.iter_mut().find(|(g, _)| *g == r.group) {
            Some((_, versions)) if versions.contains(&&*r.version) => {}
            Some((_, versions)) => versions.push(&r.version),
            None => out.push((&r.group, vec![&r.version])),
        }
    }
    out
}

fn rows<'a>(group: &'a str, version: &'a str) -> impl Iterator<Item = &'static Resource> {
    let (group, version) = (group.to_owned(), version.to_owned());
    resources::all().iter().filter(move |r| r.group == group && r.version == version)
}

/// True when the group and version are served.
pub fn is_served(group: &str, version: &str) -> bool {
    rows(group, version).next().is_some()
}

/// `/api`.
pub fn api_versions(server_address: &str) -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}]})
}

fn group_entry(group: &str, versions: &[&str]) -> Map<String, Value> {
    let named = |v: &str| json!({"groupVersion": group_version(group, v), "version": v});
    let mut map = Map::new();
    map.insert("name".to_owned(), Value::from(group));
    map.insert("versions".to_owned(), versions.iter().map(|v| named(v)).collect());
    map.insert("preferredVersion".to_owned(), named(versions.first().copied().unwrap_or("")));
    map
}

/// `/apis`.
pub fn group_list() -> Value {
    let groups: Vec<Value> = groups().iter().filter(|(g, _)| !g.is_empty()).map(|(g, v)| Value::Object(group_entry(g, v))).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`.
pub fn group(name: &str) -> Option<Value> {
    let all = groups();
    let (g, versions) = all.iter().find(|(g, _)| *g == name && !g.is_empty())?;
    let mut map = group_entry(g, versions);
    map.insert("kind".to_owned(), Value::from("APIGroup"));
    map.insert("apiVersion".to_owned(), Value::from("v1"));
    Some(Value::Object(map))
}

fn resource(r: &Resource) -> Value {
    let mut v = json!({
        "name": r.plural, "singularName": r.singular, "namespaced": r.namespaced, "kind": r.kind, "verbs": &r.verbs[..],
    });
    if !r.short_names.is_empty() {
        v["shortNames"] = json!(&r.short_names[..]);
    }
    if !r.categories.is_empty() {
        v["categories"] = json!(&r.categories[..]);
    }
    if !r.storage_version_hash.is_empty() {
        v["storageVersionHash"] = json!(r.storage_version_hash);
    }
    v
}

fn subresource(r: &Resource, s: &Subresource) -> Value {
    let mut v = json!({
        "name": format!("{}/{}", r.plural, s.name), "singularName": "", "namespaced": r.namespaced, "kind": s.kind, "verbs": &s.verbs[..],
    });
    if !s.response_group.is_empty() {
        v["group"] = json!(s.response_group);
    }
    if !s.response_version.is_empty() {
        v["version"] = json!(s.response_version);
    }
    v
}

/// `/api/v1` and `/apis/<group>/<version>`.
pub fn resource_list(group: &str, version: &str) -> Option<Value> {
    let mut list: Vec<Value> = Vec::new();
    for r in rows(group, version) {
        list.push(resource(r));
        list.extend(r.subresources.iter().map(|s| subresource(r, s)));
    }
    if list.is_empty() {
        return None;
    }
    let mut v = json!({"kind": "APIResourceList", "groupVersion": group_version(group, version), "resources": list});
    // Upstream leaves the version out of the core group's list.
    if !group.is_empty() {
        v["apiVersion"] = json!("v1");
    }
    Some(v)
}

fn aggregated_resource(r: &Resource) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let subresources: Vec<Value> = r
        .subresources
        .iter()
        .map(|s| json!({"subresource": s.name, "responseKind": kind(&s.response_group, &s.response_version, &s.kind), "verbs": &s.verbs[..]}))
        .collect();
    let mut v = json!({
        "resource": r.plural, "responseKind": kind("", "", &r.kind), "singularResource": r.singular, "verbs": &r.verbs[..],
        "scope": if r.namespaced { "Namespaced" } else { "Cluster" },
    });
    if !r.short_names.is_empty() {
        v["shortNames"] = json!(&r.short_names[..]);
    }
    if !r.categories.is_empty() {
        v["categories"] = json!(&r.categories[..]);
    }
    if !subresources.is_empty() {
        v["subresources"] = Value::Array(subresources);
    }
    v
}

/// The aggregated form of `/api` (core) or `/apis` (the others).
pub fn aggregated(core: bool, version: &str) -> Value {
    let items: Vec<Value> = groups()
        .into_iter()
        .filter(|(g, _)| g.is_empty() == core)
        .map(|(g, versions)| {
            let versions: Vec<Value> = versions
                .into_iter()
                .map(|v| json!({"version": v, "freshness": "Current", "resources": rows(g, v).map(aggregated_resource).collect::<Vec<_>>()}))
                .collect();
            let metadata = if core { json!({}) } else { json!({"name": g}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {}, "items": items})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_nulls(v: &mut Value) {
        if let Some(map) = v.as_object_mut() {
            map.remove("creationTimestamp");
            map.values_mut().for_each(without_nulls);
        } else if let Some(list) = v.as_array_mut() {
            list.iter_mut().for_each(without_nulls);
        }
    }

    fn facts() -> Value {
        serde_json::from_str(include_str!("../../testdata/discovery.json")).expect("facts")
    }

    #[test]
    fn legacy_documents_are_upstreams() {
        for (path, want) in facts()["legacy"].as_object().expect("legacy") {
            let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
            let got = match segments.as_slice() {
                ["api"] => Some(api_versions("192.0.2.10:26443")),
                ["api", v] => resource_list("", v),
                ["apis"] => Some(group_list()),
                ["apis", g] => group(g),
                ["apis", g, v] => resource_list(g, v),
                _ => None,
            };
            assert_eq!(got.as_ref(), Some(want), "{path}");
        }
    }

    #[test]
    fn aggregated_documents_are_upstreams() {
        for (path, core) in [("/api", true), ("/apis", false)] {
            let mut want = facts()["aggregated"][path].clone();
            without_nulls(&mut want);
            assert_eq!(aggregated(core, "v2"), want, "{path}");
        }
    }
}
