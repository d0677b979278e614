//! Resources that the server serves: one row each, in the group's preferred version.

use std::collections::HashSet;

use proto::schema::group_version;
use serde_json::Value;
use shared::client::path;

use super::rest::{Rest, RestError};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A served resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Served {
    /// API group, empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural name.
    pub plural: String,
    /// Kind.
    pub kind: String,
    /// Objects live in namespaces.
    pub namespaced: bool,
    /// Verbs.
    pub verbs: Vec<String>,
}

impl Served {
    /// `v1` or `group/version`.
    #[must_use]
    pub fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }

    /// `pods` or `deployments.apps`, as messages name it.
    #[must_use]
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// The collection's path.
    #[must_use]
    pub fn path(&self, namespace: Option<&str>) -> String {
        path::collection(&self.api_version(), namespace.filter(|n| self.namespaced && !n.is_empty()), &self.plural)
    }

    /// Reports whether the resource has a verb.
    #[must_use]
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

/// The outcome of a discovery: what is served, and which group versions could not be asked.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// Every resource once, in its group's preferred version.
    pub preferred: Vec<Served>,
    /// Every resource in every version.
    pub all: Vec<Served>,
    /// Group versions whose server did not answer.
    pub stale: Vec<String>,
}

impl Catalogue {
    /// The resource of a kind as an owner reference names it.
    #[must_use]
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<&Served> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        self.all.iter().find(|s| s.kind == kind && s.version == version && s.group == group)
    }
}

/// Ask the server.
pub async fn discover(rest: &Rest) -> Result<Catalogue, RestError> {
    let (core, groups) = futures::join!(rest.get_as("/api", AGGREGATED), rest.get_as("/apis", AGGREGATED));
    let mut out = Catalogue::default();
    for list in [core?, groups?] {
        read(&list, &mut out);
    }
    Ok(out)
}

/// The plural names that a group version serves; none when it does not exist.
pub async fn resources(rest: &Rest, api_version: &str) -> Result<Vec<String>, RestError> {
    match rest.get(&path::group_version(api_version)).await {
        Ok(list) => {
            let names = list["resources"].as_array().into_iter().flatten().filter_map(|r| r["name"].as_str());
            Ok(names.filter(|n| !n.contains('/')).map(str::to_owned).collect())
        }
        Err(e) if e.missing() => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

fn read(list: &Value, out: &mut Catalogue) {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    for group in list["items"].as_array().into_iter().flatten() {
        let name = text(&group["metadata"]["name"]);
        let mut seen = HashSet::new();
        for version in group["versions"].as_array().into_iter().flatten() {
            if version["freshness"] == "Stale" {
                out.stale.push(format!("{name}/{}", text(&version["version"])));
            }
            for r in version["resources"].as_array().into_iter().flatten() {
                let served = Served {
                    group: name.clone(),
                    version: text(&version["version"]),
                    plural: text(&r["resource"]),
                    kind: text(&r["responseKind"]["kind"]),
                    namespaced: r["scope"] == "Namespaced",
                    verbs: r["verbs"].as_array().into_iter().flatten().map(&text).collect(),
                };
                if seen.insert(served.plural.clone()) {
                    out.preferred.push(served.clone());
                }
                out.all.push(served);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_preferred_versions_first() {
        let r = |n: &str, k: &str| json!({"resource": n, "responseKind": {"kind": k}, "scope": "Namespaced", "verbs": ["list"]});
        let list = json!({"items": [{"metadata": {"name": "g"}, "versions": [
            {"version": "v1", "resources": [r("as", "A")]},
            {"version": "v1beta1", "resources": [r("as", "A"), r("bs", "B")], "freshness": "Stale"}]}]});
        let mut c = Catalogue::default();
        read(&list, &mut c);
        let names: Vec<_> = c.preferred.iter().map(|s| s.path(Some("ns"))).collect();
        assert_eq!(names, ["/apis/g/v1/namespaces/ns/as", "/apis/g/v1beta1/namespaces/ns/bs"]);
        assert_eq!(c.stale, ["g/v1beta1"]);
        assert_eq!(c.kind("g/v1beta1", "A").map(Served::group_resource).as_deref(), Some("as.g"));
    }
}
