//! The authorisers of `--authorization-mode` or `--authorization-config`, asked in order: the first that decides wins,
//! and nobody deciding is a no. Answers for upstream's `pkg/authorization/union`.
//!
//! In comes what is asked for, out goes a [`AuthorizerResult`]. Everything but webhooks is answered from the watch
//! cache without waiting. The chain may be exchanged while requests are decided; the indexes survive that.

pub mod abac;
pub mod config;
mod follow;
pub mod node;
pub mod rbac;
pub mod webhook;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use prometheus::Counter;
use proto::selector::FieldSelector;
use shared::authn::{SYSTEM_MASTERS, UserInfo};
use shared::authz::{Attributes, Authorizer, AuthzError, Decision};
use shared::status::field::aggregate;

use crate::api::Reader;
use abac::Abac;
pub use follow::{Follower, Observer};
use node::NodeAuthorizer;
use rbac::{Rbac, Rule};
use webhook::Webhook;

/// A kind of authoriser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everybody may do everything.
    AlwaysAllow,
    /// Denies every request.
    AlwaysDeny,
    /// Rules from a file.
    Abac,
    /// Somebody else is asked.
    Webhook,
    /// Roles and bindings.
    Rbac,
    /// Kubelets, by their pods.
    Node,
}

impl Mode {
    /// All, in upstream's order.
    pub const ALL: [Mode; 6] = [Mode::AlwaysAllow, Mode::AlwaysDeny, Mode::Abac, Mode::Webhook, Mode::Rbac, Mode::Node];

    /// Upstream's name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::AlwaysAllow => "AlwaysAllow",
            Mode::AlwaysDeny => "AlwaysDeny",
            Mode::Abac => "ABAC",
            Mode::Webhook => "Webhook",
            Mode::Rbac => "RBAC",
            Mode::Node => "Node",
        }
    }

    /// By upstream's name.
    pub fn parse(name: &str) -> Option<Mode> {
        Self::ALL.into_iter().find(|m| m.name() == name)
    }
}

/// Decision of an authorizer or of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizerResult {
    /// Yes, no, or nobody knew.
    pub decision: Decision,
    /// The reasons given.
    pub reason: String,
    /// Errors of evaluation; the decision stands all the same.
    pub error: Option<String>,
}

impl AuthorizerResult {
    /// Reports whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        self.decision == Decision::Allow
    }
}

/// One authoriser. Those with an index share it with their predecessors of the same kind.
#[derive(Clone)]
pub enum AuthorizerKind {
    /// See [`node`].
    Node(Arc<NodeAuthorizer>),
    /// See [`rbac`].
    Rbac(Arc<Rbac>),
    /// See [`abac`].
    Abac(Arc<Abac>),
    /// See [`webhook`].
    Webhook(Arc<Webhook>),
    /// Allows.
    AlwaysAllow,
    /// Has no opinion on anything.
    AlwaysDeny,
}

impl AuthorizerKind {
    fn mode(&self) -> Mode {
        match self {
            AuthorizerKind::Node(_) => Mode::Node,
            AuthorizerKind::Rbac(_) => Mode::Rbac,
            AuthorizerKind::Abac(_) => Mode::Abac,
            AuthorizerKind::Webhook(_) => Mode::Webhook,
            AuthorizerKind::AlwaysAllow => Mode::AlwaysAllow,
            AuthorizerKind::AlwaysDeny => Mode::AlwaysDeny,
        }
    }

    /// The answer of those that need not wait.
    fn at_once(&self, request: &Attributes) -> Option<(Decision, String)> {
        Some(match self {
            AuthorizerKind::Node(node) => node.decide(request),
            AuthorizerKind::Rbac(rbac) => rbac.read().decide(request),
            AuthorizerKind::Abac(abac) => abac.decide(request),
            AuthorizerKind::AlwaysAllow => (Decision::Allow, String::new()),
            AuthorizerKind::AlwaysDeny => (Decision::NoOpinion, "Everything is forbidden.".to_owned()),
            AuthorizerKind::Webhook(_) => return None,
        })
    }

    fn synced(&self) -> bool {
        match self {
            AuthorizerKind::Node(node) => node.synced(),
            AuthorizerKind::Rbac(rbac) => rbac.synced(),
            _ => true,
        }
    }
}

/// An authoriser with its name.
pub struct Member {
    kind: AuthorizerKind,
    allowed: Counter,
    denied: Counter,
}

impl Member {
    /// `name` is for metrics.
    pub fn new(name: &str, kind: AuthorizerKind) -> Self {
        let decisions = shared::metrics::counter(
            "apiserver_authorization_decisions_total",
            "[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.",
            &["decision", "name", "type"],
        );
        let counter = |decision: &str| decisions.with_label_values(&[decision, name, kind.mode().name()]);
        Self { allowed: counter("allowed"), denied: counter("denied"), kind }
    }
}

/// Verdict so far: the reasons and errors of those who had no opinion.
#[derive(Default)]
struct Undecided {
    reasons: Vec<String>,
    errors: Vec<String>,
}

impl Undecided {
    /// Takes one answer; a verdict when it decides.
    fn add(&mut self, member: &Member, answer: (Decision, String), error: Option<String>) -> Option<AuthorizerResult> {
        let (decision, reason) = answer;
        match decision {
            Decision::Allow => member.allowed.inc(),
            Decision::Deny => member.denied.inc(),
            Decision::NoOpinion => {
                self.errors.extend(error);
                if !reason.is_empty() {
                    self.reasons.push(reason);
                }
                return None;
            }
        }
        Some(AuthorizerResult { decision, reason, error })
    }

    fn verdict(self) -> AuthorizerResult {
        let error = (!self.errors.is_empty()).then(|| aggregate(&self.errors));
        AuthorizerResult { decision: Decision::NoOpinion, reason: self.reasons.join("\n"), error }
    }
}

/// Chain of authorizers, replaced as a whole on reload.
pub struct Authorization {
    members: ArcSwap<Vec<Member>>,
    ready: AtomicBool,
}

/// Longest wait of a first request for the policies to be read, and the interval of checks.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

fn master(request: &Attributes) -> Option<AuthorizerResult> {
    let verdict = || AuthorizerResult { decision: Decision::Allow, reason: String::new(), error: None };
    request.user.in_group(SYSTEM_MASTERS).then(verdict)
}

impl Authorization {
    /// Over authorisers that need no configuration. `node_rules` are the rules of the `system:node` role.
    pub fn new(modes: &[Mode], reader: Arc<dyn Reader>, node_rules: Vec<Rule>) -> Authorization {
        let member = |mode: &Mode| {
            let kind = match mode {
                Mode::Node => AuthorizerKind::Node(Arc::new(NodeAuthorizer::new(reader.clone(), node_rules.clone()))),
                Mode::Rbac => AuthorizerKind::Rbac(Arc::new(Rbac::new(reader.clone(), rbac::SOURCES))),
                Mode::AlwaysAllow => AuthorizerKind::AlwaysAllow,
                _ => AuthorizerKind::AlwaysDeny,
            };
            Member::new(&mode.name().to_ascii_lowercase(), kind)
        };
        Self::of(modes.iter().map(member).collect())
    }

    /// Over these.
    pub fn of(members: Vec<Member>) -> Authorization {
        Authorization { members: ArcSwap::from_pointee(members), ready: AtomicBool::new(false) }
    }

    /// Exchanges the chain.
    pub fn replace(&self, members: Vec<Member>) {
        self.members.store(Arc::new(members));
    }

    /// The authoriser of a kind, to be used again in another chain.
    pub fn kind(&self, mode: Mode) -> Option<AuthorizerKind> {
        self.members.load().iter().find(|m| m.kind.mode() == mode).map(|m| m.kind.clone())
    }

    /// Waits until the policies have been read once; without them everything would be refused.
    pub async fn wait_ready(&self) {
        if self.ready.load(Ordering::Acquire) {
            return;
        }
        let synced = async {
            // Asking starts all of them at once.
            while self.members.load().iter().filter(|m| !m.kind.synced()).count() > 0 {
                tokio::time::sleep(LOOK).await;
            }
        };
        match tokio::time::timeout(PATIENCE, synced).await {
            Ok(()) => self.ready.store(true, Ordering::Release),
            Err(_) => tracing::warn!("Timed out waiting for authorization policies to sync"),
        }
    }

    /// The decision and the reasons given for it. `system:masters` may do everything.
    pub async fn verdict(&self, request: &Attributes) -> AuthorizerResult {
        if let Some(verdict) = master(request) {
            return verdict;
        }
        self.wait_ready().await;
        let members = self.members.load_full();
        let mut undecided = Undecided::default();
        for member in members.iter() {
            let (answer, error) = match &member.kind {
                AuthorizerKind::Webhook(webhook) => webhook.decide(request).await,
                kind => (kind.at_once(request).unwrap_or((Decision::NoOpinion, String::new())), None),
            };
            if let Some(verdict) = undecided.add(member, answer, error) {
                return verdict;
            }
        }
        undecided.verdict()
    }

    /// The verdict when it can be had without asking anybody over the network; `None` must be taken for a no.
    pub fn verdict_at_once(&self, request: &Attributes) -> Option<AuthorizerResult> {
        if let Some(verdict) = master(request) {
            return Some(verdict);
        }
        let members = self.members.load();
        let mut undecided = Undecided::default();
        for member in members.iter() {
            if let Some(verdict) = undecided.add(member, member.kind.at_once(request)?, None) {
                return Some(verdict);
            }
        }
        Some(undecided.verdict())
    }

    /// Reports whether a request is allowed.
    pub async fn allows(&self, request: &Attributes) -> bool {
        self.verdict(request).await.is_allowed()
    }

    /// The RBAC index, when RBAC is on.
    pub fn rbac(&self) -> Option<Arc<Rbac>> {
        self.members.load().iter().find_map(|m| match &m.kind {
            AuthorizerKind::Rbac(rbac) => Some(rbac.clone()),
            _ => None,
        })
    }

    /// Lists a user's rules in a namespace, and the reasons for which the list is incomplete.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let (mut rules, mut gaps) = (Vec::new(), Vec::new());
        for member in self.members.load().iter() {
            match &member.kind {
                AuthorizerKind::Node(_) if node::identity(user).is_some() => {
                    gaps.push("node authorizer does not support user rule resolution".to_owned());
                }
                AuthorizerKind::Node(_) | AuthorizerKind::AlwaysDeny => {}
                AuthorizerKind::Rbac(rbac) => {
                    let (found, missing) = rbac.read().rules_for(user, namespace);
                    rules.extend(found);
                    if !missing.is_empty() {
                        gaps.push(aggregate(&missing));
                    }
                }
                AuthorizerKind::Abac(abac) => rules.extend(abac.rules_for(user, namespace)),
                AuthorizerKind::Webhook(_) => {
                    gaps.push("webhook authorizer does not support user rule resolution".to_owned());
                }
                AuthorizerKind::AlwaysAllow => rules.extend(rbac::everything()),
            }
        }
        (rules, gaps)
    }
}

#[async_trait]
impl Authorizer for Authorization {
    async fn authorize(&self, request: &Attributes) -> Result<(Decision, String), AuthzError> {
        let verdict = self.verdict(request).await;
        match (verdict.decision, verdict.error) {
            (Decision::NoOpinion, Some(error)) => Err(AuthzError(error)),
            (decision, _) => Ok((decision, verdict.reason)),
        }
    }
}

/// The value a field selector (`a=b,c!=d`) pins a field to.
pub fn field_value(selector: &str, field: &str) -> Option<String> {
    FieldSelector::parse(selector).ok()?.exact(field).map(str::to_owned)
}

/// Reports whether a request's field selector requires a field to equal a value.
pub fn field_equals(request: &Attributes, field: &str, value: &str) -> bool {
    field_value(&request.field_selector, field).is_some_and(|v| v == value)
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
            ("spec.nodeName=n1,nonsense", "spec.nodeName", None),
            ("", "spec.nodeName", None),
        ];
        for (selector, field, want) in table {
            assert_eq!(field_value(selector, field).as_deref(), *want, "{selector}");
        }
    }

    fn ask(authorization: &Authorization, name: &str, verb: &str) -> (Decision, String) {
        let user = UserInfo { name: name.into(), ..UserInfo::default() };
        let request = Attributes {
            user,
            verb: verb.into(),
            resource: "pods".into(),
            resource_request: true,
            ..Attributes::default()
        };
        let verdict = authorization.verdict_at_once(&request).expect("nobody to wait for");
        (verdict.decision, verdict.reason)
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

    #[tokio::test]
    async fn modes() {
        let reader = Arc::new(Fixed::default());
        let deny = Authorization::new(&[Mode::AlwaysDeny], reader.clone(), Vec::new());
        assert_eq!(ask(&deny, "eve", "get"), (Decision::NoOpinion, "Everything is forbidden.".into()));
        let masters = UserInfo { groups: vec![SYSTEM_MASTERS.into()], ..UserInfo::default() };
        assert!(deny.allows(&Attributes { user: masters, ..Attributes::default() }).await);
        let allow = Authorization::new(&[Mode::AlwaysAllow], reader, Vec::new());
        assert_eq!(ask(&allow, "eve", "get").0, Decision::Allow);
        assert!(Mode::parse("Nonsense").is_none());
        deny.replace(vec![Member::new("open", AuthorizerKind::AlwaysAllow)]);
        assert_eq!(ask(&deny, "eve", "get").0, Decision::Allow, "the chain was exchanged");
    }
}
