//! Discovery documents, rendered from resource rows.
//!
//! Rows come in discovery order: groups by priority, in a group versions by preference, in a version plurals sorted
//! (as [`crate::resources::all`] has them). Custom resources are rows like any other. The results are trees of
//! registered kinds, so every codec can write them.

use serde_json::{Map, Value, json};

use crate::resources::{Resource, Subresource};
use crate::schema::group_version;

/// A served group and its versions, best first.
#[derive(Debug, Clone)]
pub struct Group<'r> {
    /// Name, empty for core.
    pub name: &'r str,
    /// Versions with their rows.
    pub versions: Vec<Version<'r>>,
}

/// A served version of a group.
#[derive(Debug, Clone)]
pub struct Version<'r> {
    /// Version.
    pub name: &'r str,
    /// Resources of the version.
    pub resources: Vec<&'r Resource>,
}

/// Groups rows by group and version, in the order of first appearance.
pub fn groups<'r>(rows: impl IntoIterator<Item = &'r Resource>) -> Vec<Group<'r>> {
    let mut groups: Vec<Group<'r>> = Vec::new();
    for row in rows {
        // Rows of a group are next to each other.
        let at = groups.iter().rposition(|g| g.name == row.group).unwrap_or_else(|| {
            groups.push(Group { name: &row.group, versions: Vec::new() });
            groups.len() - 1
        });
        let versions = &mut groups[at].versions;
        let at = versions.iter().position(|v| v.name == row.version).unwrap_or_else(|| {
            versions.push(Version { name: &row.version, resources: Vec::new() });
            versions.len() - 1
        });
        versions[at].resources.push(row);
    }
    groups
}

fn texts(list: &[std::borrow::Cow<'static, str>]) -> Value {
    list.iter().map(|t| Value::String(t.to_string())).collect()
}

fn scope(row: &Resource) -> &'static str {
    if row.namespaced { "Namespaced" } else { "Cluster" }
}

fn listed(map: &mut Map<String, Value>, name: &str, list: &[std::borrow::Cow<'static, str>]) {
    if !list.is_empty() {
        map.insert(name.to_owned(), texts(list));
    }
}

fn aggregated_subresource(sub: &Subresource) -> Value {
    json!({
        "subresource": sub.name,
        "responseKind": {"group": sub.response_group, "version": sub.response_version, "kind": sub.kind},
        "verbs": texts(&sub.verbs),
    })
}

fn aggregated_resource(row: &Resource) -> Value {
    let mut map = Map::new();
    map.insert("resource".to_owned(), json!(row.plural));
    map.insert("responseKind".to_owned(), json!({"group": "", "version": "", "kind": row.kind}));
    map.insert("scope".to_owned(), json!(scope(row)));
    map.insert("singularResource".to_owned(), json!(row.singular));
    map.insert("verbs".to_owned(), texts(&row.verbs));
    listed(&mut map, "shortNames", &row.short_names);
    listed(&mut map, "categories", &row.categories);
    if !row.subresources.is_empty() {
        map.insert("subresources".to_owned(), row.subresources.iter().map(aggregated_subresource).collect());
    }
    Value::Object(map)
}

/// An `APIGroupDiscovery`.
#[must_use]
pub fn aggregated_group(group: &Group<'_>) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| {
            let resources: Vec<Value> = version.resources.iter().map(|row| aggregated_resource(row)).collect();
            json!({"version": version.name, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    json!({"metadata": metadata, "versions": versions})
}

/// The `APIGroupDiscoveryList` of `/api` (`core` true) or `/apis`; `version` is `v2` or `v2beta1`.
#[must_use]
pub fn aggregated(groups: &[Group<'_>], core: bool, version: &str) -> Value {
    let items: Vec<Value> = groups.iter().filter(|g| g.name.is_empty() == core).map(aggregated_group).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

/// The `APIVersions` of `/api`; the address is what clients are told to connect to (`192.0.2.10:6443`).
#[must_use]
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

fn group_entry(group: &Group<'_>) -> Map<String, Value> {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|v| json!({"groupVersion": group_version(group.name, v.name), "version": v.name}))
        .collect();
    let mut map = Map::new();
    map.insert("name".to_owned(), json!(group.name));
    if let Some(preferred) = versions.first() {
        map.insert("preferredVersion".to_owned(), preferred.clone());
    }
    map.insert("versions".to_owned(), Value::Array(versions));
    map
}

/// The `APIGroupList` of `/apis`.
#[must_use]
pub fn api_group_list(groups: &[Group<'_>]) -> Value {
    let list: Vec<Value> =
        groups.iter().filter(|g| !g.name.is_empty()).map(|g| Value::Object(group_entry(g))).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list})
}

/// The `APIGroup` of `/apis/{group}`.
#[must_use]
pub fn api_group(groups: &[Group<'_>], name: &str) -> Option<Value> {
    let group = groups.iter().find(|g| g.name == name && !name.is_empty())?;
    let mut map = group_entry(group);
    map.insert("kind".to_owned(), json!("APIGroup"));
    map.insert("apiVersion".to_owned(), json!("v1"));
    Some(Value::Object(map))
}

fn subresource_entry(row: &Resource, sub: &Subresource) -> Value {
    let mut map = Map::new();
    map.insert("name".to_owned(), json!(format!("{}/{}", row.plural, sub.name)));
    map.insert("singularName".to_owned(), json!(""));
    map.insert("namespaced".to_owned(), json!(row.namespaced));
    map.insert("kind".to_owned(), json!(sub.kind));
    map.insert("verbs".to_owned(), texts(&sub.verbs));
    if !sub.response_group.is_empty() {
        map.insert("group".to_owned(), json!(sub.response_group));
    }
    if !sub.response_version.is_empty() {
        map.insert("version".to_owned(), json!(sub.response_version));
    }
    Value::Object(map)
}

fn resource_entry(row: &Resource) -> Value {
    let mut map = Map::new();
    map.insert("name".to_owned(), json!(row.plural));
    map.insert("singularName".to_owned(), json!(row.singular));
    map.insert("namespaced".to_owned(), json!(row.namespaced));
    map.insert("kind".to_owned(), json!(row.kind));
    map.insert("verbs".to_owned(), texts(&row.verbs));
    listed(&mut map, "shortNames", &row.short_names);
    listed(&mut map, "categories", &row.categories);
    if !row.storage_version_hash.is_empty() {
        map.insert("storageVersionHash".to_owned(), json!(row.storage_version_hash));
    }
    Value::Object(map)
}

/// The `APIResourceList` of `/api/v1` or `/apis/{group}/{version}`; None when it is not served.
#[must_use]
pub fn resource_list(groups: &[Group<'_>], group: &str, version: &str) -> Option<Value> {
    let found = groups.iter().find(|g| g.name == group)?.versions.iter().find(|v| v.name == version)?;
    let mut resources = Vec::new();
    for row in &found.resources {
        resources.push(resource_entry(row));
        resources.extend(row.subresources.iter().map(|sub| subresource_entry(row, sub)));
    }
    let mut map = Map::new();
    map.insert("kind".to_owned(), json!("APIResourceList"));
    // Upstream leaves the version of the core group's list out.
    if !group.is_empty() {
        map.insert("apiVersion".to_owned(), json!("v1"));
    }
    map.insert("groupVersion".to_owned(), json!(group_version(group, version)));
    map.insert("resources".to_owned(), Value::Array(resources));
    Some(Value::Object(map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;

    /// Discovery is a set of kinds, too: what it says must encode as them.
    fn through_schema(mut value: Value) -> Value {
        let text = |name: &str| value[name].as_str().unwrap_or("v1").to_owned();
        let schema = crate::schema::kind_of(&text("apiVersion"), &text("kind")).expect("present");
        crate::json::canonicalize(schema, &mut value);
        let mut out = Vec::new();
        crate::json::encode(schema, &value, &mut out);
        serde_json::from_slice(&out).expect("present")
    }

    #[test]
    fn documents_are_upstreams() {
        let facts: Value = serde_json::from_str(include_str!("../testdata/discovery.json")).expect("present");
        let groups = groups(resources::all());
        for (path, want) in facts["aggregated"].as_object().expect("present") {
            assert_eq!(&through_schema(aggregated(&groups, path == "/api", "v2")), want, "{path}");
        }
        for (path, want) in facts["legacy"].as_object().expect("present") {
            let parts: Vec<&str> = path.split('/').skip(1).collect();
            let got = match parts.as_slice() {
                ["api"] => Some(api_versions("192.0.2.10:26443")),
                ["api", version] => resource_list(&groups, "", version),
                ["apis"] => Some(api_group_list(&groups)),
                ["apis", group] => api_group(&groups, group),
                ["apis", group, version] => resource_list(&groups, group, version),
                _ => None,
            };
            assert_eq!(&through_schema(got.expect("present")), want, "{path}");
        }
    }
}
