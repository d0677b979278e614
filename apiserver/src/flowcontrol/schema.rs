//! Classification of requests by flow schema. Rules are parsed once. Pure. Answers for upstream's `matchesFlowSchema`.

use serde_json::Value;
use shared::authn::UserInfo;

use crate::api::RequestInfo;
use crate::machinery::tree;

/// Request to classify.
#[derive(Clone, Copy)]
pub(super) struct RequestDigest<'a> {
    pub(super) info: &'a RequestInfo,
    pub(super) user: &'a UserInfo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
    /// Service accounts of a namespace: one, or `*`.
    Account(String, String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ResourceRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    cluster: bool,
    namespaces: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PathRule {
    verbs: Vec<String>,
    paths: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SubjectsRule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

/// Flow distinguisher method of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distinguisher {
    Nothing,
    User,
    Namespace,
}

/// A FlowSchema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) level: String,
    pub(super) precedence: i64,
    distinguisher: Distinguisher,
    rules: Vec<SubjectsRule>,
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|v| v == "*" || v == value)
}

impl Subject {
    fn read(v: &Value) -> Option<Self> {
        let text = |pointer: &str| tree::text(v, pointer).to_owned();
        match tree::text(v, "/kind") {
            "User" => Some(Self::User(text("/user/name"))),
            "Group" => Some(Self::Group(text("/group/name"))),
            "ServiceAccount" => Some(Self::Account(text("/serviceAccount/namespace"), text("/serviceAccount/name"))),
            _ => None,
        }
    }

    fn is(&self, user: &UserInfo) -> bool {
        match self {
            Self::User(name) => name == "*" || *name == user.name,
            Self::Group(name) => name == "*" || user.groups.contains(name),
            Self::Account(namespace, name) => {
                let account = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
                account.is_some_and(|(ns, n)| ns == namespace && (name == "*" || name == n))
            }
        }
    }
}

impl ResourceRule {
    fn read(v: &Value) -> Self {
        Self {
            verbs: tree::strings(v, "/verbs"),
            groups: tree::strings(v, "/apiGroups"),
            resources: tree::strings(v, "/resources"),
            cluster: tree::flag(v, "/clusterScope"),
            namespaces: tree::strings(v, "/namespaces"),
        }
    }

    fn covers(&self, info: &RequestInfo) -> bool {
        let resource = |wanted: &String| {
            wanted == "*"
                || match info.subresource.as_str() {
                    "" => *wanted == info.resource,
                    sub => wanted.strip_prefix(info.resource.as_str()).and_then(|r| r.strip_prefix('/')) == Some(sub),
                }
        };
        let place = if info.namespace.is_empty() { self.cluster } else { has(&self.namespaces, &info.namespace) };
        place
            && has(&self.verbs, &info.verb)
            && has(&self.groups, &info.api_group)
            && self.resources.iter().any(resource)
    }
}

impl PathRule {
    fn covers(&self, info: &RequestInfo) -> bool {
        let path = |wanted: &String| {
            wanted == "*"
                || *wanted == info.path
                || wanted.strip_suffix('*').is_some_and(|prefix| info.path.starts_with(prefix))
        };
        has(&self.verbs, &info.verb) && self.paths.iter().any(path)
    }
}

impl SubjectsRule {
    fn read(v: &Value) -> Self {
        Self {
            subjects: tree::list(v, "/subjects").iter().filter_map(Subject::read).collect(),
            resources: tree::list(v, "/resourceRules").iter().map(ResourceRule::read).collect(),
            paths: tree::list(v, "/nonResourceRules")
                .iter()
                .map(|r| PathRule { verbs: tree::strings(r, "/verbs"), paths: tree::strings(r, "/nonResourceURLs") })
                .collect(),
        }
    }

    fn covers(&self, digest: &RequestDigest<'_>) -> bool {
        if !self.subjects.iter().any(|s| s.is(digest.user)) {
            return false;
        }
        if digest.info.is_resource {
            self.resources.iter().any(|r| r.covers(digest.info))
        } else {
            self.paths.iter().any(|r| r.covers(digest.info))
        }
    }
}

impl Spec {
    /// Reads a FlowSchema.
    pub(super) fn read(object: &Value) -> Self {
        Self {
            name: tree::name(object).to_owned(),
            uid: tree::text(object, "/metadata/uid").to_owned(),
            level: tree::text(object, "/spec/priorityLevelConfiguration/name").to_owned(),
            precedence: tree::int(object, "/spec/matchingPrecedence").unwrap_or(1000),
            distinguisher: match tree::text(object, "/spec/distinguisherMethod/type") {
                "ByUser" => Distinguisher::User,
                "ByNamespace" => Distinguisher::Namespace,
                _ => Distinguisher::Nothing,
            },
            rules: tree::list(object, "/spec/rules").iter().map(SubjectsRule::read).collect(),
        }
    }

    /// Reports whether a request matches the schema.
    pub(super) fn covers(&self, digest: &RequestDigest<'_>) -> bool {
        self.rules.iter().any(|r| r.covers(digest))
    }

    /// Flow distinguisher of a request.
    pub(super) fn distinguish<'a>(&self, digest: &RequestDigest<'a>) -> &'a str {
        match self.distinguisher {
            Distinguisher::Nothing => "",
            Distinguisher::User => &digest.user.name,
            Distinguisher::Namespace => &digest.info.namespace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema(subject: Value, rule: Value) -> Spec {
        let mut rules = json!({"subjects": [subject]});
        rules[if rule.get("nonResourceURLs").is_some() { "nonResourceRules" } else { "resourceRules" }] = json!([rule]);
        Spec::read(&json!({"metadata": {"name": "s"}, "spec": {"rules": [rules]}}))
    }

    fn everybody() -> Value {
        json!({"kind": "Group", "group": {"name": "*"}})
    }

    fn everything() -> Value {
        json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true})
    }

    fn get(path: &str, resource: &str, sub: &str, namespace: &str) -> RequestInfo {
        RequestInfo {
            is_resource: !resource.is_empty(),
            verb: "get".into(),
            path: path.into(),
            resource: resource.into(),
            subresource: sub.into(),
            namespace: namespace.into(),
            ..RequestInfo::default()
        }
    }

    #[test]
    fn subjects() {
        let user = UserInfo {
            name: "system:serviceaccount:kube-system:gc".into(),
            groups: vec!["g".into()],
            ..UserInfo::default()
        };
        let info = get("", "pods", "", "e");
        for (subject, want) in [
            (json!({"kind": "User", "user": {"name": "*"}}), true),
            (json!({"kind": "User", "user": {"name": "alice"}}), false),
            (json!({"kind": "Group", "group": {"name": "g"}}), true),
            (json!({"kind": "Group", "group": {"name": "h"}}), false),
            (json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}}), true),
            (json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "gc"}}), true),
            (json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "x"}}), false),
            (json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "default", "name": "gc"}}), false),
        ] {
            let digest = RequestDigest { info: &info, user: &user };
            assert_eq!(schema(subject.clone(), everything()).covers(&digest), want, "{subject}");
        }
    }

    #[test]
    fn rules() {
        let user = UserInfo::default();
        let with = |field: &str, value: Value| {
            let mut rule = everything();
            rule[field] = value;
            rule
        };
        let pods = get("", "pods", "", "e");
        let status = get("", "nodes", "status", "");
        let healthz = get("/healthz", "", "", "");
        let table = [
            (everything(), &pods, true),
            (everything(), &healthz, false),
            (with("verbs", json!(["list"])), &pods, false),
            (with("apiGroups", json!([""])), &pods, true),
            (with("apiGroups", json!(["apps"])), &pods, false),
            (with("resources", json!(["nodes", "nodes/status"])), &status, true),
            (with("resources", json!(["nodes"])), &status, false),
            (with("namespaces", json!(["e"])), &pods, true),
            (with("namespaces", json!(["f"])), &pods, false),
            (with("clusterScope", json!(false)), &pods, true),
            (with("clusterScope", json!(false)), &status, false),
            (json!({"verbs": ["get"], "nonResourceURLs": ["/healthz"]}), &healthz, true),
            (json!({"verbs": ["get"], "nonResourceURLs": ["/health*"]}), &healthz, true),
            (json!({"verbs": ["get"], "nonResourceURLs": ["/livez"]}), &healthz, false),
            (json!({"verbs": ["post"], "nonResourceURLs": ["*"]}), &healthz, false),
        ];
        for (rule, info, want) in table {
            assert_eq!(schema(everybody(), rule.clone()).covers(&RequestDigest { info, user: &user }), want, "{rule}");
        }
    }
}
