//! Attribute-based rules from a file (`--authorization-policy-file`): one JSON object a line, in the form of
//! `abac.authorization.kubernetes.io/v1beta1` or the older form without a version. Read once, at start. Answers for
//! upstream's `pkg/auth/authorizer/abac`.

use serde::Deserialize;
use shared::authn::{ALL_AUTHENTICATED, UserInfo};
use shared::authz::{Attributes, Decision};

use super::rbac::Rule;

const VERSION: &str = "abac.authorization.kubernetes.io/v1beta1";

/// Fault of a line of a policy file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PolicyLineError {
    /// No JSON, or not that of a policy; this is the text of the decoder.
    #[error("{0}")]
    Json(String),
    /// Another kind or version.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    Kind {
        /// The kind.
        kind: String,
        /// Group and version.
        api_version: String,
    },
}

impl From<serde_json::Error> for PolicyLineError {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error.to_string())
    }
}

/// A policy file that is of no use.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The file cannot be opened.
    #[error("error opening policy file {path}: {why}")]
    Open {
        /// The file.
        path: String,
        /// Cause.
        #[source]
        why: shared::os::FileError,
    },
    /// A line cannot.
    #[error("error reading policy file {path}, line {line}: {text}: {why}")]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// The line's text.
        text: String,
        /// Cause.
        why: PolicyLineError,
    },
}

/// One line. Empty fields match nothing, `*` matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AbacPolicy {
    user: String,
    group: String,
    readonly: bool,
    #[serde(rename = "apiGroup")]
    api_group: String,
    resource: String,
    namespace: String,
    non_resource_path: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Versioned {
    #[serde(rename = "apiVersion")]
    api_version: String,
    kind: String,
    spec: AbacPolicy,
}

impl AbacPolicy {
    fn read(text: &str) -> Result<Self, PolicyLineError> {
        let Versioned { api_version, kind, spec } = serde_json::from_str(text)?;
        if api_version.is_empty() && kind.is_empty() {
            return Ok(serde_json::from_str(text).map(Self::modernised)?);
        }
        if api_version != VERSION || kind != "Policy" {
            return Err(PolicyLineError::Kind { kind, api_version });
        }
        Ok(spec.for_the_authenticated(false))
    }

    /// In both forms `*` for a user or group means whoever is authenticated; in the old form nothing does, too.
    fn for_the_authenticated(mut self, unsaid: bool) -> Self {
        if self.user == "*" || self.group == "*" || (unsaid && self.user.is_empty() && self.group.is_empty()) {
            self.user.clear();
            ALL_AUTHENTICATED.clone_into(&mut self.group);
        }
        self
    }

    fn modernised(self) -> Self {
        let star_if_empty = |text: &str| if text.is_empty() { "*".to_owned() } else { text.to_owned() };
        let everywhere = self.namespace.is_empty() && self.resource.is_empty();
        let policy = Self {
            api_group: "*".to_owned(),
            namespace: star_if_empty(&self.namespace),
            resource: star_if_empty(&self.resource),
            non_resource_path: if everywhere { "*".to_owned() } else { String::new() },
            ..self
        };
        policy.for_the_authenticated(true)
    }

    fn is_for(&self, user: &UserInfo) -> bool {
        if self.user.is_empty() && self.group.is_empty() {
            return false;
        }
        let user_fits = self.user.is_empty() || self.user == user.name;
        let group_fits = self.group.is_empty() || user.in_group(&self.group);
        user_fits && group_fits
    }

    fn allows(&self, request: &Attributes) -> bool {
        let is = |own: &str, asked: &str| own == "*" || own == asked;
        let reads = matches!(request.verb.as_str(), "get" | "list" | "watch");
        if !self.is_for(&request.user) || (self.readonly && !reads) {
            return false;
        }
        if !request.resource_request {
            let prefix = self.non_resource_path.strip_suffix('*');
            return is(&self.non_resource_path, &request.path) || prefix.is_some_and(|p| request.path.starts_with(p));
        }
        is(&self.namespace, &request.namespace)
            && is(&self.resource, &request.resource)
            && is(&self.api_group, &request.api_group)
    }
}

/// The rules of a file.
#[derive(Debug)]
pub struct Abac(Vec<AbacPolicy>);

impl Abac {
    /// Reads a file.
    pub fn read(path: &str) -> Result<Self, Error> {
        let text = shared::os::read(path).map_err(|why| Error::Open { path: path.to_owned(), why })?;
        Self::parse(path, &String::from_utf8_lossy(&text))
    }

    fn parse(path: &str, text: &str) -> Result<Self, Error> {
        let mut policies = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |why| Error::Line { path: path.to_owned(), line: at + 1, text: line.to_owned(), why };
            policies.push(AbacPolicy::read(line).map_err(bad)?);
        }
        Ok(Self(policies))
    }

    /// Decides one request.
    pub fn decide(&self, request: &Attributes) -> (Decision, String) {
        if self.0.iter().any(|p| p.allows(request)) {
            return (Decision::Allow, String::new());
        }
        (Decision::NoOpinion, "No policy matched.".to_owned())
    }

    /// Lists a user's rules in a namespace.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        for p in self.0.iter().filter(|p| p.is_for(user)) {
            let verbs =
                || if p.readonly { vec!["get".into(), "list".into(), "watch".into()] } else { vec!["*".into()] };
            if !p.resource.is_empty() && (p.namespace == "*" || p.namespace == namespace) {
                rules.push(Rule {
                    verbs: verbs(),
                    api_groups: vec![p.api_group.clone()],
                    resources: vec![p.resource.clone()],
                    ..Rule::default()
                });
            }
            if !p.non_resource_path.is_empty() {
                rules.push(Rule {
                    verbs: verbs(),
                    non_resource_urls: vec![p.non_resource_path.clone()],
                    ..Rule::default()
                });
            }
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(user: &str, verb: &str, group: &str, resource: &str, namespace: &str) -> Attributes {
        let user = UserInfo { name: user.into(), groups: vec![ALL_AUTHENTICATED.into()], ..UserInfo::default() };
        Attributes {
            user,
            verb: verb.into(),
            api_group: group.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            resource_request: true,
            ..Attributes::default()
        }
    }

    fn at(user: &str, path: &str) -> Attributes {
        Attributes { resource_request: false, path: path.into(), ..on(user, "get", "", "", "") }
    }

    fn policies(lines: &str) -> Abac {
        Abac::parse("p", lines).expect("parses")
    }

    #[test]
    fn the_versioned_form() {
        let abac = policies(concat!(
            "# comment\n\n",
            r#"{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "bob", "namespace": "projectCaribou", "resource": "pods", "readonly": true}}"#,
            "\n",
            r#"{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "alice", "namespace": "*", "resource": "*", "apiGroup": "*"}}"#,
            "\n",
            r#"{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"group": "*", "readonly": true, "nonResourcePath": "/healthz*"}}"#,
        ));
        for (request, want) in [
            (on("bob", "get", "", "pods", "projectCaribou"), true),
            (on("bob", "create", "", "pods", "projectCaribou"), false),
            (on("bob", "get", "apps", "pods", "projectCaribou"), false),
            (on("bob", "get", "", "secrets", "projectCaribou"), false),
            (on("bob", "get", "", "pods", "other"), false),
            (on("alice", "delete", "apps", "deployments", "x"), true),
            (at("alice", "/metrics"), false),
            (at("carol", "/healthz/etcd"), true),
            (at("carol", "/livez"), false),
        ] {
            assert_eq!(abac.decide(&request).0 == Decision::Allow, want, "{request:?}");
        }
        assert_eq!(abac.decide(&at("carol", "/livez")).1, "No policy matched.");
        let user = UserInfo { name: "bob".into(), ..UserInfo::default() };
        assert_eq!(abac.rules_for(&user, "projectCaribou")[0].verbs, ["get", "list", "watch"]);
        assert!(abac.rules_for(&user, "other").is_empty());
    }

    #[test]
    fn the_old_form() {
        let abac = policies("{\"readonly\": true}\n{\"user\": \"kubelet\", \"resource\": \"events\"}");
        assert_eq!(abac.decide(&on("x", "get", "apps", "anything", "n")).0, Decision::Allow);
        assert_eq!(abac.decide(&at("x", "/anything")).0, Decision::Allow);
        assert_eq!(abac.decide(&on("x", "create", "", "pods", "n")).0, Decision::NoOpinion);
        assert_eq!(abac.decide(&on("kubelet", "create", "", "events", "n")).0, Decision::Allow);
        let stranger = Attributes { user: UserInfo::anonymous(), ..on("", "get", "", "pods", "n") };
        assert_eq!(abac.decide(&stranger).0, Decision::NoOpinion, "only who is authenticated");
    }

    #[test]
    fn bad_lines_are_named() {
        let error = Abac::parse("p.jsonl", "\n{\"user\": 1}").expect_err("refused").to_string();
        assert!(error.starts_with("error reading policy file p.jsonl, line 2: {\"user\": 1}: "), "{error}");
        let error = Abac::parse("p", r#"{"apiVersion": "v9", "kind": "Policy"}"#).expect_err("refused").to_string();
        assert!(error.ends_with(r#"no kind "Policy" is registered for version "v9""#), "{error}");
        assert!(
            Abac::read("/nowhere")
                .expect_err("refused")
                .to_string()
                .starts_with("error opening policy file /nowhere: ")
        );
    }
}
