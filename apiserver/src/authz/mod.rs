//! The authorisers of `--authorization-mode`, asked in order: the first that decides wins, and nobody deciding is a no.
//!
//! Everything is answered from the watch cache, so a decision never waits.

pub mod node;
pub mod rbac;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use shared::authn::{SYSTEM_MASTERS, UserInfo};
use shared::authz::{Attributes, Authorizer, AuthzError, Decision};

use crate::access::tree;
use crate::api::Reader;
use node::NodeAuthorizer;
use rbac::{Rbac, Rule};

/// One word of `--authorization-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Kubelets, by their pods.
    Node,
    /// Roles and bindings.
    Rbac,
    /// Everybody may do everything.
    AlwaysAllow,
    /// Nobody may do anything.
    AlwaysDeny,
}

impl Mode {
    /// By upstream's name.
    pub fn parse(name: &str) -> Option<Mode> {
        Some(match name {
            "Node" => Mode::Node,
            "RBAC" => Mode::Rbac,
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            _ => return None,
        })
    }
}

enum Member {
    Node(NodeAuthorizer),
    Rbac(Followed),
    AlwaysAllow,
    AlwaysDeny,
}

/// See the module.
pub struct Authorization {
    members: Vec<Member>,
    reader: Arc<dyn Reader>,
    ready: AtomicBool,
}

/// How long a first request waits for the policies to be read, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

impl Authorization {
    /// `node_rules` are the rules of the `system:node` role.
    pub fn new(modes: &[Mode], reader: Arc<dyn Reader>, node_rules: Vec<Rule>) -> Authorization {
        let member = |mode: &Mode| match mode {
            Mode::Node => Member::Node(NodeAuthorizer::new(node_rules.clone())),
            Mode::Rbac => Member::Rbac(Followed::default()),
            Mode::AlwaysAllow => Member::AlwaysAllow,
            Mode::AlwaysDeny => Member::AlwaysDeny,
        };
        Authorization { members: modes.iter().map(member).collect(), reader, ready: AtomicBool::new(false) }
    }

    /// Waits until the policies have been read once; without them everything would be refused.
    pub async fn wait_ready(&self) {
        if self.ready.load(Ordering::Acquire) {
            return;
        }
        let mut sources: Vec<(&str, &str)> = Vec::new();
        for member in &self.members {
            match member {
                Member::Rbac(_) => sources.extend(SOURCES.map(|plural| (rbac::GROUP, plural))),
                Member::Node(_) => sources.extend(node::SOURCES),
                _ => {}
            }
        }
        let synced = async {
            // Asking starts all of them at once.
            while sources.iter().filter(|(group, plural)| !self.reader.synced(group, plural)).count() > 0 {
                tokio::time::sleep(LOOK).await;
            }
        };
        match tokio::time::timeout(PATIENCE, synced).await {
            Ok(()) => self.ready.store(true, Ordering::Release),
            Err(_) => tracing::warn!("the policies could not be read in time"),
        }
    }

    /// The decision and the reasons given for it. `system:masters` may do everything.
    pub fn decide(&self, request: &Attributes) -> (Decision, String) {
        if request.user.in_group(SYSTEM_MASTERS) {
            return (Decision::Allow, String::new());
        }
        let mut reasons = Vec::new();
        for member in &self.members {
            let (decision, reason) = match member {
                Member::Node(node) => node.decide(request, Some(self.reader.as_ref())),
                Member::Rbac(rbac) => rbac.current(self.reader.as_ref()).decide(request),
                Member::AlwaysAllow => (Decision::Allow, String::new()),
                Member::AlwaysDeny => (Decision::NoOpinion, "Everything is forbidden.".to_owned()),
            };
            if decision != Decision::NoOpinion {
                return (decision, reason);
            }
            if !reason.is_empty() {
                reasons.push(reason);
            }
        }
        (Decision::NoOpinion, reasons.join("\n"))
    }

    /// Whether a request is allowed.
    pub fn allows(&self, request: &Attributes) -> bool {
        self.decide(request).0 == Decision::Allow
    }

    /// The RBAC index, caught up with the watch cache.
    pub fn rbac(&self) -> Option<&Rbac> {
        self.members.iter().find_map(|m| match m {
            Member::Rbac(rbac) => Some(rbac.current(self.reader.as_ref())),
            _ => None,
        })
    }

    /// What a user may do in a namespace, as far as it can be listed: rules, and why the list is not complete.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let star = || vec!["*".to_owned()];
        let (mut rules, mut gaps) = (Vec::new(), Vec::new());
        for member in &self.members {
            match member {
                Member::Node(_) if node::identity(user).is_some() => {
                    gaps.push("node authorizer does not support user rule resolution".to_owned());
                }
                Member::Node(_) | Member::AlwaysDeny => {}
                Member::Rbac(rbac) => {
                    let (found, missing) = rbac.current(self.reader.as_ref()).rules_for(user, namespace);
                    rules.extend(found);
                    if !missing.is_empty() {
                        gaps.push(rbac::join_errors(missing));
                    }
                }
                Member::AlwaysAllow => {
                    rules.push(Rule { verbs: star(), api_groups: star(), resources: star(), ..Rule::default() });
                    rules.push(Rule { verbs: star(), non_resource_urls: star(), ..Rule::default() });
                }
            }
        }
        (rules, gaps)
    }
}

#[async_trait]
impl Authorizer for Authorization {
    async fn authorize(&self, request: &Attributes) -> Result<(Decision, String), AuthzError> {
        self.wait_ready().await;
        Ok(self.decide(request))
    }
}

const SOURCES: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

/// Revision of each object the index has taken over, by namespace and name.
type Revisions = HashMap<(String, String), String>;

/// An RBAC index that follows the watch cache.
struct Followed {
    rbac: Rbac,
    seen: [AtomicU64; 4],
    known: Mutex<[Revisions; 4]>,
}

impl Default for Followed {
    fn default() -> Self {
        let seen = std::array::from_fn(|_| AtomicU64::new(u64::MAX));
        Self { rbac: Rbac::default(), seen, known: Mutex::default() }
    }
}

impl Followed {
    fn current(&self, reader: &dyn Reader) -> &Rbac {
        for (at, plural) in SOURCES.iter().enumerate() {
            if self.seen[at].load(Ordering::Acquire) != reader.version(rbac::GROUP, plural) {
                self.follow(at, plural, reader);
            }
        }
        &self.rbac
    }

    fn follow(&self, at: usize, plural: &str, reader: &dyn Reader) {
        let mut known = self.known.lock();
        let version = reader.version(rbac::GROUP, plural);
        if self.seen[at].load(Ordering::Acquire) == version {
            return;
        }
        let mut before = std::mem::take(&mut known[at]);
        let mut after = Revisions::with_capacity(before.len());
        for object in reader.list(rbac::GROUP, plural, None) {
            let key = (tree::namespace(&object).to_owned(), tree::name(&object).to_owned());
            let revision = tree::text(&object, "/metadata/resourceVersion").to_owned();
            if before.remove(&key).as_ref() != Some(&revision) || revision.is_empty() {
                self.rbac.observe(plural, &key.0, &key.1, Some(&object));
            }
            after.insert(key, revision);
        }
        for (namespace, name) in before.into_keys() {
            self.rbac.observe(plural, &namespace, &name, None);
        }
        known[at] = after;
        self.seen[at].store(version, Ordering::Release);
    }
}

/// The value a field selector (`a=b,c!=d`) pins a field to.
pub fn field_value(selector: &str, field: &str) -> Option<String> {
    terms(selector).into_iter().find_map(|term| {
        let at = term.find('=')?;
        let (name, value) = (&term[..at], &term[at + 1..]);
        if name.ends_with('!') || name != field {
            return None;
        }
        Some(unescape(value.strip_prefix('=').unwrap_or(value)))
    })
}

/// Whether a request's field selector pins a field to a value.
pub fn field_equals(request: &Attributes, field: &str, value: &str) -> bool {
    field_value(&request.field_selector, field).is_some_and(|v| v == value)
}

/// Splits at commas that are not escaped.
fn terms(selector: &str) -> Vec<&str> {
    let (mut found, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in selector.char_indices() {
        if c == ',' && !escaped {
            found.push(&selector[start..at]);
            start = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    found.push(&selector[start..]);
    found
}

fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use serde_json::json;

    #[test]
    fn field_selectors() {
        let table: &[(&str, &str, Option<&str>)] = &[
            ("spec.nodeName=n1", "spec.nodeName", Some("n1")),
            ("a=b,spec.nodeName==n1", "spec.nodeName", Some("n1")),
            ("spec.nodeName!=n1", "spec.nodeName", None),
            ("metadata.name=a\\,b", "metadata.name", Some("a,b")),
            ("spec.nodeName=", "spec.nodeName", Some("")),
            ("", "spec.nodeName", None),
        ];
        for (selector, field, want) in table {
            assert_eq!(field_value(selector, field).as_deref(), *want, "{selector}");
        }
    }

    fn ask(authorization: &Authorization, name: &str, verb: &str) -> (Decision, String) {
        let user = UserInfo { name: name.into(), ..UserInfo::default() };
        authorization.decide(&Attributes {
            user,
            verb: verb.into(),
            resource: "pods".into(),
            resource_request: true,
            ..Attributes::default()
        })
    }

    #[test]
    fn the_index_follows_the_cache() {
        let reader = Arc::new(Fixed::default());
        let authorization = Authorization::new(&[Mode::Node, Mode::Rbac], reader.clone(), Vec::new());
        assert_eq!(ask(&authorization, "eve", "get").0, Decision::NoOpinion);
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        reader.put(
            rbac::GROUP,
            "clusterroles",
            json!({"metadata": {"name": "reader", "resourceVersion": "1"}, "rules": rules}),
        );
        reader.put(
            rbac::GROUP,
            "clusterrolebindings",
            json!({"metadata": {"name": "b", "resourceVersion": "2"}, "roleRef": {"kind": "ClusterRole", "name": "reader"},
                "subjects": [{"kind": "User", "name": "eve"}]}),
        );
        assert_eq!(ask(&authorization, "eve", "get").0, Decision::Allow);
        assert_eq!(ask(&authorization, "eve", "list").0, Decision::NoOpinion);
        reader.remove(rbac::GROUP, "clusterrolebindings", "", "b");
        assert_eq!(ask(&authorization, "eve", "get").0, Decision::NoOpinion);
    }

    #[test]
    fn modes() {
        let reader = Arc::new(Fixed::default());
        let deny = Authorization::new(&[Mode::AlwaysDeny], reader.clone(), Vec::new());
        assert_eq!(ask(&deny, "eve", "get"), (Decision::NoOpinion, "Everything is forbidden.".into()));
        let masters = UserInfo { groups: vec![SYSTEM_MASTERS.into()], ..UserInfo::default() };
        assert!(deny.allows(&Attributes { user: masters, ..Attributes::default() }));
        let allow = Authorization::new(&[Mode::AlwaysAllow], reader, Vec::new());
        assert_eq!(ask(&allow, "eve", "get").0, Decision::Allow);
        assert!(Mode::parse("Nonsense").is_none());
    }
}
