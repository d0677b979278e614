//! The audit policy: which requests are written down, how much of them, and at which stages. Pure. Answers for
//! upstream's `pkg/audit/policy` (`policyRuleEvaluator`).

use serde_json::Value;
use shared::authz::Attributes;
use shared::config::{self, ConfigError, Unknown};
use shared::os;
use shared::status::field::{Error, Path};

use super::error::{PolicyError, PolicyFileError};
use crate::machinery::tree;

/// Audit level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No events.
    #[default]
    None,
    /// Metadata of the request: user, time, resource, verb.
    Metadata,
    /// And the request's object.
    Request,
    /// And the answer's.
    RequestResponse,
}

impl Level {
    const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    /// Upstream's name.
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }

    fn parse(name: &str) -> Option<Level> {
        Self::ALL.into_iter().find(|l| l.name() == name)
    }
}

/// Audit stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before anything else.
    RequestReceived,
    /// The answer begins; for requests that go on for long.
    ResponseStarted,
    /// The answer is out.
    ResponseComplete,
    /// The handler broke.
    Panic,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    /// Upstream's name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }

    fn parse(name: &str) -> Option<Stage> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}

#[derive(Debug, Clone, Default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

#[derive(Debug, Clone, Default)]
struct PolicyRule {
    level: Level,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    namespaces: Vec<String>,
    resources: Vec<GroupResources>,
    urls: Vec<String>,
    omit: Omit,
}

/// Omissions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Omit {
    /// Events of these stages.
    pub stages: Vec<Stage>,
    /// Managed fields of objects.
    pub managed_fields: bool,
}

/// A policy.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    rules: Vec<PolicyRule>,
    omit: Omit,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|v| v == wanted)
}

impl GroupResources {
    fn matches(&self, request: &Attributes) -> bool {
        if self.group != request.api_group {
            return false;
        }
        let named = self.names.is_empty() || has(&self.names, &request.name);
        let (resource, sub) = (request.resource.as_str(), request.subresource.as_str());
        let fits = |own: &String| match own.split_once('/') {
            _ if own == "*" => true,
            Some(("*", s)) => !sub.is_empty() && s == sub,
            Some((r, "*")) => r == resource,
            Some((r, s)) => r == resource && s == sub,
            None => own == resource && sub.is_empty(),
        };
        self.resources.is_empty() || (named && self.resources.iter().any(fits))
    }
}

impl PolicyRule {
    fn matches(&self, request: &Attributes) -> bool {
        let any = |list: &[String], wanted: &str| list.is_empty() || has(list, wanted);
        if !any(&self.users, &request.user.name)
            || !any(&self.verbs, &request.verb)
            || !(self.groups.is_empty() || request.user.groups.iter().any(|g| has(&self.groups, g)))
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return request.resource_request
                && any(&self.namespaces, &request.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|r| r.matches(request)));
        }
        if self.urls.is_empty() {
            return true;
        }
        let covers = |url: &String| {
            url == "*" || *url == request.path || url.strip_suffix('*').is_some_and(|p| request.path.starts_with(p))
        };
        !request.resource_request && self.urls.iter().any(covers)
    }
}

impl Policy {
    /// Reads a file.
    ///
    /// # Errors
    /// [`PolicyFileError`].
    pub fn read(path: &str) -> Result<Self, PolicyFileError> {
        if path.is_empty() {
            return Err(PolicyFileError::NoPath);
        }
        let bytes = os::read(path).map_err(|source| PolicyFileError::Read { path: path.to_owned(), source })?;
        Self::parse(&bytes).map_err(|source| PolicyFileError::Invalid { path: path.to_owned(), source })
    }

    /// Decodes a policy; unknown fields are dropped with a warning, as upstream does.
    fn parse(bytes: &[u8]) -> Result<Self, PolicyError> {
        let tree = config::decode(bytes, "Policy", Unknown::Warn).map_err(|e| match e {
            ConfigError::NoKind(_) | ConfigError::NoVersion(_) => PolicyError::NoVersion,
            other => PolicyError::Decode(other),
        })?;
        let mut errors = Vec::new();
        let omit = Omit {
            stages: stages(&tree, &Path::new("omitStages"), &mut errors),
            managed_fields: tree::flag(&tree, "/omitManagedFields"),
        };
        let root = Path::new("rules");
        let rules = tree::list(&tree, "/rules");
        let rules: Vec<PolicyRule> =
            rules.iter().enumerate().map(|(i, rule)| read_rule(rule, &omit, &root.index(i), &mut errors)).collect();
        if !errors.is_empty() {
            return Err(PolicyError::Invalid(errors));
        }
        if rules.is_empty() { Err(PolicyError::NoRules) } else { Ok(Self { rules, omit }) }
    }

    /// Selects the level of a request, and the omissions.
    pub fn decide(&self, request: &Attributes) -> (Level, &Omit) {
        match self.rules.iter().find(|rule| rule.matches(request)) {
            Some(rule) => (rule.level, &rule.omit),
            None => (Level::None, &self.omit),
        }
    }
}

fn stages(tree: &Value, path: &Path, errors: &mut Vec<Error>) -> Vec<Stage> {
    let mut found = Vec::new();
    for (at, name) in tree::strings(tree, "/omitStages").iter().enumerate() {
        match Stage::parse(name) {
            Some(stage) => found.push(stage),
            None => {
                let text = "allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic";
                errors.push(Error::invalid(path.index(at), name.as_str(), text));
            }
        }
    }
    found
}

fn read_rule(rule: &Value, policy: &Omit, path: &Path, errors: &mut Vec<Error>) -> PolicyRule {
    let word = tree::text(rule, "/level");
    let level = Level::parse(word).unwrap_or_else(|| {
        errors.push(match word {
            "" => Error::required(path.child("level"), ""),
            _ => Error::not_supported(path.child("level"), word, &Level::ALL.map(Level::name)),
        });
        Level::None
    });
    let mut omitted = stages(rule, &path.child("omitStages"), errors);
    omitted.extend(policy.stages.iter().copied().filter(|s| !omitted.contains(s)).collect::<Vec<_>>());
    let (said, namespaces) = (tree::list(rule, "/resources"), tree::strings(rule, "/namespaces"));
    let urls = tree::strings(rule, "/nonResourceURLs");
    let at_urls = path.child("nonResourceURLs");
    check_urls(&urls, &at_urls, errors);
    let resources: Vec<GroupResources> =
        said.iter().map(|r| read_resources(r, &path.child("resources"), errors)).collect();
    let about_resources = !resources.is_empty() || !namespaces.is_empty();
    if !urls.is_empty() && about_resources {
        let text = "rules cannot apply to both regular resources and non-resource URLs";
        errors.push(Error::invalid(at_urls, urls.clone(), text));
    }
    PolicyRule {
        level,
        users: tree::strings(rule, "/users"),
        groups: tree::strings(rule, "/userGroups"),
        verbs: tree::strings(rule, "/verbs"),
        namespaces,
        resources,
        urls,
        omit: Omit {
            stages: omitted,
            managed_fields: tree::maybe_flag(rule, "/omitManagedFields").unwrap_or(policy.managed_fields),
        },
    }
}

/// Upstream names the field of them all, not which of them it is.
fn read_resources(tree: &Value, path: &Path, errors: &mut Vec<Error>) -> GroupResources {
    let group = tree::text(tree, "/group");
    let complaints = if group.is_empty() { Vec::new() } else { proto::selector::format::dns1123_subdomain(group) };
    if !complaints.is_empty() {
        errors.push(Error::invalid(path.child("group"), group, &complaints.join(",")));
    }
    let (resources, names) = (tree::strings(tree, "/resources"), tree::strings(tree, "/resourceNames"));
    if resources.is_empty() && !names.is_empty() {
        let text = "using resourceNames requires at least one resource";
        errors.push(Error::invalid(path.child("resourceNames"), names.clone(), text));
    }
    GroupResources { group: group.to_owned(), resources, names }
}

fn check_urls(urls: &[String], path: &Path, errors: &mut Vec<Error>) {
    for (at, url) in urls.iter().enumerate().filter(|(_, url)| *url != "*") {
        if !url.starts_with('/') {
            let text = "non-resource URL rules must begin with a '/' character";
            errors.push(Error::invalid(path.index(at), url.as_str(), text));
        }
        if url.trim_end_matches('*').contains('*') || url.ends_with("**") {
            let text = "non-resource URL wildcards '*' must be the final character of the rule";
            errors.push(Error::invalid(path.index(at), url.as_str(), text));
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::authn::UserInfo;

    use super::*;

    fn policy(rules: &str) -> Result<Policy, String> {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}");
        Policy::parse(text.as_bytes()).map_err(|e| e.to_string())
    }

    fn on(user: &str, verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> Attributes {
        let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            user: UserInfo { name: user.into(), groups: vec!["humans".into()], ..UserInfo::default() },
            verb: verb.into(),
            api_group: group.into(),
            resource: resource.into(),
            subresource: sub.into(),
            namespace: namespace.into(),
            name: name.into(),
            resource_request: true,
            ..Attributes::default()
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = policy(concat!(
            "omitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n",
            "- {level: None, users: ['system:kube-proxy'], verbs: [watch]}\n",
            "- {level: Metadata, resources: [{group: '', resources: [secrets, 'pods/*', '*/scale']}]}\n",
            "- {level: Request, resources: [{group: '', resources: [configmaps], resourceNames: [only]}], omitManagedFields: false, omitStages: [Panic]}\n",
            "- {level: RequestResponse, namespaces: [''], userGroups: [humans], resources: [{group: apps}]}\n",
            "- {level: Metadata, nonResourceURLs: ['/healthz*', /version]}\n",
        ))
        .expect("fine");
        let at = |path: &str| Attributes { path: path.into(), verb: "get".into(), ..Attributes::default() };
        for (request, want) in [
            (on("system:kube-proxy", "watch", "", "secrets", "n", ""), Level::None),
            (on("eve", "watch", "", "secrets", "n", ""), Level::Metadata),
            (on("eve", "get", "", "pods/log", "n", "p"), Level::Metadata),
            (on("eve", "get", "", "pods", "n", "p"), Level::Metadata),
            (on("eve", "update", "", "replicationcontrollers/scale", "n", "p"), Level::Metadata),
            (on("eve", "get", "", "configmaps", "n", "only"), Level::Request),
            (on("eve", "get", "", "configmaps", "n", "other"), Level::None),
            (on("eve", "create", "apps", "anything", "", ""), Level::RequestResponse),
            (on("eve", "create", "apps", "anything", "n", ""), Level::None),
            (at("/healthz/etcd"), Level::Metadata),
            (at("/version"), Level::Metadata),
            (at("/metrics"), Level::None),
        ] {
            assert_eq!(policy.decide(&request).0, want, "{request:?}");
        }
        let omit = policy.decide(&on("eve", "get", "", "configmaps", "n", "only")).1.clone();
        assert_eq!(omit, Omit { stages: vec![Stage::Panic, Stage::RequestReceived], managed_fields: false });
        assert!(policy.decide(&on("eve", "get", "", "secrets", "n", "")).1.managed_fields);
    }

    #[test]
    fn policies_are_checked() {
        for (rules, want) in [
            ("rules: []", "loaded illegal policy with 0 rules"),
            (
                "rules: [{level: Loud}]",
                r#"rules[0].level: Unsupported value: "Loud": supported values: "None", "Metadata", "Request", "RequestResponse""#,
            ),
            ("rules: [{users: [a]}]", "rules[0].level: Required value"),
            (
                "rules: [{level: None, nonResourceURLs: [x]}]",
                r#"rules[0].nonResourceURLs[0]: Invalid value: "x": non-resource URL rules must begin with a '/' character"#,
            ),
            (
                "rules: [{level: None, nonResourceURLs: ['/a*b']}]",
                r#"rules[0].nonResourceURLs[0]: Invalid value: "/a*b": non-resource URL wildcards '*' must be the final character of the rule"#,
            ),
            (
                "rules: [{level: None, nonResourceURLs: [/a], namespaces: [b]}]",
                r#"rules[0].nonResourceURLs: Invalid value: ["/a"]: rules cannot apply to both regular resources and non-resource URLs"#,
            ),
            (
                "rules: [{level: None, resources: [{resourceNames: [a]}]}]",
                r#"rules[0].resources.resourceNames: Invalid value: ["a"]: using resourceNames requires at least one resource"#,
            ),
            (
                "rules: [{level: None, omitStages: [Later]}]",
                r#"rules[0].omitStages[0]: Invalid value: "Later": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic"#,
            ),
            (
                "rules: [{level: None, nonResourceURLs: [x], resources: [{resourceNames: [a]}]}]",
                r#"[rules[0].nonResourceURLs[0]: Invalid value: "x": non-resource URL rules must begin with a '/' character, rules[0].resources.resourceNames: Invalid value: ["a"]: using resourceNames requires at least one resource, rules[0].nonResourceURLs: Invalid value: ["x"]: rules cannot apply to both regular resources and non-resource URLs]"#,
            ),
            (
                "rules: [{level: 5}]",
                "failed decoding: json: cannot unmarshal number into Go struct field PolicyRule.rules.level of type string",
            ),
        ] {
            assert_eq!(policy(rules).expect_err("refused"), want, "{rules}");
        }
        assert_eq!(
            Policy::parse(b"rules: [{level: None}]").expect_err("refused").to_string(),
            "unknown group version field audit.k8s.io/__internal, Kind=Policy in policy"
        );
        assert_eq!(
            Policy::read("/nowhere/policy.yaml").expect_err("refused").to_string(),
            "failed to read file path \"/nowhere/policy.yaml\": open /nowhere/policy.yaml: no such file or directory"
        );
    }

    /// A policy with a misspelt field is one all the same: the server starts.
    #[test]
    fn unknown_policy_fields_are_dropped() {
        let policy =
            policy("nonsense: 1\nrules: [{level: Metadata, level: Request, users: [eve], user: [x]}]").expect("fine");
        assert_eq!(policy.decide(&on("eve", "get", "", "pods", "n", "p")).0, Level::Request);
        assert_eq!(policy.decide(&on("bob", "get", "", "pods", "n", "p")).0, Level::None);
    }
}
