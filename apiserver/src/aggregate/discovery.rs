//! Discovery of all servers in one: what this server's own documents say, with the groups of others put in their
//! places. Answers for upstream's `kube-aggregator/pkg/apiserver/handler_discovery.go` (`discoveryManager`).

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Directory;
use super::backend::Backend;
use super::service::ApiService;
use crate::api::{Reader, RequestInfo};
use crate::machinery::tree;
use crate::rows::version_rank;

/// `Accept` header of discovery; a server may know only a later one of these.
const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest document read.
const LIMIT: usize = 8 << 20;

/// Position of a group among others.
pub type GroupPosition = (Reverse<Option<i64>>, String);

impl Directory {
    /// Sorts versions of a group as clients prefer them.
    pub fn sort_versions<V>(&self, group: &str, versions: &mut [V], name: impl Fn(&V) -> &str) {
        if versions.len() > 1 {
            versions.sort_by_cached_key(|v| (Reverse(self.priorities(group, name(v)).1), version_rank(name(v))));
        }
    }

    /// Sorts groups of an `APIGroupDiscoveryList`: by the best priority of their versions, then by name.
    pub fn place<'v>(&self, group: &str, versions: impl Iterator<Item = &'v str>) -> GroupPosition {
        (Reverse(versions.map(|version| self.priorities(group, version).0).max()), group.to_owned())
    }

    /// Reports whether the discovery of an aggregated group version lists the resource of a request.
    pub fn lists(&self, info: &RequestInfo) -> bool {
        if self.remote(&info.api_group, &info.api_version).is_none() {
            return false;
        }
        let said = self.found.get(&(info.api_group.as_str().into(), info.api_version.as_str().into()));
        let resources = said.map_or(&[][..], |said| tree::list(&said.entry, "/resources"));
        let part = |r: &Value| {
            let parts = tree::list(r, "/subresources");
            info.subresource.is_empty() || parts.iter().any(|s| tree::text(s, "/subresource") == info.subresource)
        };
        resources.iter().any(|r| tree::text(r, "/resource") == info.resource && part(r))
    }

    /// Reports whether this server serves all versions of a group.
    pub fn alone(&self, group: &str) -> bool {
        !self.remotes.keys().any(|(other, _)| **other == *group)
    }

    /// The `APIGroupList`: the group of API services itself (`first`, which has none), then the groups that have some.
    /// One that is deleted takes its version along, also of what is answered here.
    pub fn group_list(&self, first: Option<Value>) -> Value {
        let mut services: Vec<&ApiService> = self.services.values().map(AsRef::as_ref).collect();
        services.sort_by(|a, b| (Reverse(a.group_priority), &a.name).cmp(&(Reverse(b.group_priority), &b.name)));
        let mut names = HashSet::from([""]);
        let others = services.iter().filter(|s| names.insert(&s.group)).filter_map(|s| self.entry(&s.group));
        let groups: Vec<Value> = first.map(entry_of).into_iter().chain(others.map(Value::Object)).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    /// The `APIGroup` of a group: what its API services say, and without any what this server says.
    pub fn group(&self, name: &str, own: Option<Value>) -> Option<Value> {
        let Some(mut group) = self.entry(name) else { return own };
        group.insert("kind".to_owned(), json!("APIGroup"));
        group.insert("apiVersion".to_owned(), json!("v1"));
        Some(Value::Object(group))
    }

    /// A group of the list, if it has API services.
    fn entry(&self, group: &str) -> Option<Map<String, Value>> {
        let mut services: Vec<&Arc<ApiService>> = self.services.values().filter(|s| s.group == group).collect();
        services.sort_by_cached_key(|s| (Reverse(s.version_priority), version_rank(&s.version)));
        let named =
            |s: &Arc<ApiService>| json!({"groupVersion": format!("{group}/{}", s.version), "version": s.version});
        let versions: Vec<Value> = services.into_iter().map(named).collect();
        let preferred = versions.first()?.clone();
        let fields = [("name", json!(group)), ("versions", Value::Array(versions)), ("preferredVersion", preferred)];
        Some(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// Puts the groups of other servers into an `APIGroupDiscoveryList`.
    pub fn merge_aggregated(&self, list: &mut Value) {
        let Some(items) = list["items"].as_array_mut() else { return };
        for (key, remote) in &self.remotes {
            let service = &remote.service;
            let found = self.found.get(key);
            let mut entry = found.map_or_else(|| json!({"version": service.version}), |f| (*f.entry).clone());
            let current = found.is_some_and(|f| f.fresh);
            entry["freshness"] = json!(if current { "Current" } else { "Stale" });
            let at = items.iter().position(|g| g["metadata"]["name"] == service.group.as_str()).unwrap_or_else(|| {
                items.push(json!({"metadata": {"name": service.group}, "versions": []}));
                items.len() - 1
            });
            let Some(versions) = items[at]["versions"].as_array_mut() else { continue };
            versions.retain(|v| v["version"] != service.version.as_str());
            versions.push(entry);
        }
        for item in items.iter_mut() {
            let name = item["metadata"]["name"].as_str().unwrap_or("").to_owned();
            if let Some(versions) = item["versions"].as_array_mut() {
                self.sort_versions(&name, versions, of_version);
            }
        }
        items.sort_by_cached_key(|item| {
            let versions = item["versions"].as_array().into_iter().flatten();
            self.place(item["metadata"]["name"].as_str().unwrap_or(""), versions.map(of_version))
        });
    }
}

fn of_version(version: &Value) -> &str {
    version["version"].as_str().unwrap_or("")
}

/// An `APIGroup` as it stands in a list.
fn entry_of(mut group: Value) -> Value {
    if let Some(fields) = group.as_object_mut() {
        fields.retain(|name, _| !matches!(name.as_str(), "kind" | "apiVersion"));
    }
    group
}

/// Fetches the discovery of a group version: an `APIVersionDiscovery`.
pub(super) async fn fetch(service: &ApiService, backend: &Backend, reader: &dyn Reader) -> Option<Value> {
    let get = |path: String| async move {
        let fetched = backend.fetch(reader, &path, &[("accept", ACCEPT)], LIMIT);
        let answer = tokio::time::timeout(PATIENCE, fetched).await.ok()?.ok()?;
        let document: Value = (answer.code == 200).then(|| serde_json::from_slice(&answer.body).ok())??;
        Some((answer.kind.contains("as=APIGroupDiscoveryList"), document))
    };
    if let Some((true, document)) = get("/apis".to_owned()).await {
        let empty = json!({"version": service.version});
        return Some(of_list(&document, &service.group, &service.version).unwrap_or(empty));
    }
    let (_, document) = get(service.path()).await?;
    Some(of_resources(&document, &service.version))
}

fn of_list(document: &Value, group: &str, version: &str) -> Option<Value> {
    let group = document["items"].as_array()?.iter().find(|g| g["metadata"]["name"] == group)?;
    let found = group["versions"].as_array()?.iter().find(|v| v["version"] == version)?;
    let mut entry = found.clone();
    entry.as_object_mut()?.remove("freshness");
    Some(entry)
}

/// An `APIResourceList` in the newer form.
fn of_resources(list: &Value, version: &str) -> Value {
    let kind = |r: &Value| json!({"group": text(r, "group"), "version": text(r, "version"), "kind": text(r, "kind")});
    let mut resources: Vec<Map<String, Value>> = Vec::new();
    let all = list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
    for resource in all.iter().filter(|r| !text(r, "name").contains('/')) {
        let scope = if resource["namespaced"] == true { "Namespaced" } else { "Cluster" };
        let mut entry = Map::new();
        entry.insert("resource".to_owned(), resource["name"].clone());
        entry.insert("responseKind".to_owned(), kind(resource));
        entry.insert("scope".to_owned(), json!(scope));
        entry.insert("singularResource".to_owned(), json!(text(resource, "singularName")));
        for field in ["verbs", "shortNames", "categories"] {
            if let Some(list) = resource[field].as_array() {
                entry.insert(field.to_owned(), json!(list));
            }
        }
        resources.push(entry);
    }
    for resource in all {
        let Some((parent, name)) = text(resource, "name").split_once('/') else { continue };
        let Some(parent) = resources.iter_mut().find(|r| r["resource"] == parent) else { continue };
        let entry = json!({"subresource": name, "responseKind": kind(resource), "verbs": resource["verbs"]});
        if let Some(list) = parent.entry("subresources").or_insert_with(|| json!([])).as_array_mut() {
            list.push(entry);
        }
    }
    json!({"version": version, "resources": resources})
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::{BackendError, Discovered, GROUP, Remote, preference};

    fn add(directory: &mut Directory, spec: Value) {
        let name = format!("{}.{}", text(&spec, "version"), text(&spec, "group"));
        let service = ApiService::read(&json!({"metadata": {"name": name}, "spec": spec}));
        directory.services.insert(service.key(), Arc::new(service.clone()));
        if service.behind.is_some() {
            let backend = Err(Arc::new(BackendError::Name(rustls_pki_types::InvalidDnsNameError)));
            directory.remotes.insert(service.key(), Arc::new(Remote { service, backend }));
        }
    }

    fn names(list: &Value, pointer: &str, field: &str) -> Vec<String> {
        let list = list.pointer(pointer).and_then(Value::as_array).expect("a list");
        list.iter().map(|g| g.pointer(field).and_then(Value::as_str).unwrap_or("").to_owned()).collect()
    }

    #[test]
    fn local_documents_are_unchanged() {
        let groups = proto::discovery::groups(proto::resources::all());
        let list = proto::discovery::api_group_list(&groups);
        let mut known = Directory::default();
        for row in proto::resources::all().iter().filter(|r| r.group != GROUP) {
            let (of_group, of_version) = preference(&row.group, &row.version);
            add(
                &mut known,
                json!({"group": row.group, "version": row.version, "groupPriorityMinimum": of_group,
                "versionPriority": of_version}),
            );
        }
        let own = |name: &str| proto::discovery::api_group(&groups, name);
        assert_eq!(known.group_list(own(GROUP)), list);
        assert_eq!(known.group("batch", None), own("batch"));
        let mut list = proto::discovery::aggregated(&groups, false, "v2");
        let before = list.clone();
        known.merge_aggregated(&mut list);
        assert_eq!(names(&list, "/items", "/metadata/name"), names(&before, "/items", "/metadata/name"));
        assert_eq!(list, before);
        // What is deleted is in no list of groups; the group is answered as ever.
        known
            .services
            .retain(|(group, version), _| &**group != "batch" && (&**group, &**version) != ("autoscaling", "v2"));
        let list = known.group_list(own(GROUP));
        assert!(!names(&list, "/groups", "/name").contains(&"batch".to_owned()));
        assert_eq!(known.group("batch", own("batch")), own("batch"));
        let scaling = known.group("autoscaling", own("autoscaling")).expect("a group");
        assert_eq!(names(&scaling, "/versions", "/version"), ["v1"]);
    }

    #[test]
    fn others_take_their_places() {
        let remote = |group: &str, version: &str, of_group: i64, of_version: i64| {
            json!({"group": group, "version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version,
                "service": {"namespace": "n", "name": "s"}})
        };
        let mut known = Directory::default();
        add(
            &mut known,
            json!({"group": "apps", "version": "v1", "groupPriorityMinimum": 17800, "versionPriority": 15}),
        );
        add(
            &mut known,
            json!({"group": "authentication.k8s.io", "version": "v1", "groupPriorityMinimum": 17700,
            "versionPriority": 15}),
        );
        add(&mut known, remote("metrics.k8s.io", "v1beta1", 100, 100));
        add(&mut known, remote("apps", "v9", 17800, 1));
        add(&mut known, remote("z.io", "v1", 17700, 15));
        let entry = Arc::new(json!({"version": "v1beta1", "resources": [{"resource": "pods"}]}));
        known.found.insert(("metrics.k8s.io".into(), "v1beta1".into()), Discovered { entry, fresh: true });
        let list = known.group_list(None);
        let order = names(&list, "/groups", "/name");
        assert_eq!(order, ["apps", "authentication.k8s.io", "z.io", "metrics.k8s.io"]);
        let apps = &list["groups"][0];
        assert_eq!(names(apps, "/versions", "/version"), ["v1", "v9"]);
        assert_eq!(apps["preferredVersion"]["version"], "v1");
        let group = known.group("metrics.k8s.io", None).expect("a group");
        assert_eq!(group["preferredVersion"], json!({"groupVersion": "metrics.k8s.io/v1beta1", "version": "v1beta1"}));
        assert_eq!(known.group("nobody.io", None), None);
        let groups = proto::discovery::groups(proto::resources::all());
        let mut list = proto::discovery::aggregated(&groups, false, "v2");
        known.merge_aggregated(&mut list);
        let metrics = list["items"].as_array().and_then(|l| l.last()).expect("a group");
        assert_eq!(metrics["versions"][0]["freshness"], "Current");
        assert_eq!(metrics["versions"][0]["resources"][0]["resource"], "pods");
        let z = list["items"].as_array().and_then(|l| l.iter().find(|g| g["metadata"]["name"] == "z.io"));
        assert_eq!(z.map(|z| z["versions"].clone()), Some(json!([{"version": "v1", "freshness": "Stale"}])));
    }

    #[test]
    fn old_lists_become_new_ones() {
        let list = json!({"resources": [
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"], "shortNames": ["fl"]},
            {"name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder", "verbs": ["get", "patch"]}]});
        let none = |kind: &str| json!({"group": "", "version": "", "kind": kind});
        assert_eq!(
            of_resources(&list, "v1"),
            json!({"version": "v1", "resources": [{"resource": "flunders", "singularResource": "flunder", "scope": "Namespaced",
                "responseKind": none("Flunder"), "verbs": ["get"], "shortNames": ["fl"],
                "subresources": [{"subresource": "status", "responseKind": none("Flunder"), "verbs": ["get", "patch"]}]}]})
        );
    }
}
