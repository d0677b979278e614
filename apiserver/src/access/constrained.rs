//! Constrained impersonation, behind `ConstrainedImpersonation`: the right to act as somebody says for which requests.
//! Answers for upstream's `pkg/endpoints/filters/impersonation` (`constrainedImpersonationHandler`).
//!
//! There are several modes, by whom is asked for. In each the real user must be allowed `impersonate-on:<mode>:<verb>`
//! on what the request is about, and `impersonate:<mode>` on every part of the other user. Older rights to impersonate
//! go on, as the last mode. Which mode led to something is remembered by user, so that it is tried first.
//!
//! What a mode asks is a list ([`plan`]); only [`Modes::settle`] asks.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use proto::selector::format::dns1123_subdomain;
use shared::authn::{Headers, SYSTEM_MASTERS, UserInfo};
use shared::authz::Attributes;
use shared::status::field::{Path, aggregate};
use shared::status::{Status, go_quote};

use super::impersonation::{AUTHENTICATION, ImpersonationRequest, service_account};
use super::{Access, deny};
use crate::registry::core::node::NODES;
use crate::registry::core::service_account::SERVICE_ACCOUNTS;
use crate::rules::options::FieldErrors;
use crate::validation::domain_path;

const NODE_PREFIX: &str = "system:node:";
const NODES_GROUP: &str = "system:nodes";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";
/// From so many questions on, one about all is asked first.
const MANY: usize = 4;
/// Users whose mode is remembered.
const REMEMBERED: usize = 10_000;

/// A way to act as somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A pod's service account as the pod's node.
    AssociatedNode,
    /// Impersonate any node (`impersonate:arbitrary-node`).
    ArbitraryNode,
    /// Impersonate a service account (`impersonate:serviceaccount`).
    ServiceAccount,
    /// Impersonate any other user (`impersonate:user-info`).
    UserInfo,
    /// Impersonate under the verb `impersonate` of earlier releases.
    Legacy,
}

const MODES: [Mode; 5] =
    [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

/// A part of what must be allowed.
#[derive(Debug)]
enum RequiredAccess {
    /// All of these; where there is a question about everything, its yes is enough.
    Ask(Vec<Attributes>, Option<Attributes>),
    /// Never.
    Refuse(Attributes, String),
}

impl RequiredAccess {
    fn one(question: Attributes) -> Self {
        Self::Ask(vec![question], None)
    }
}

/// The node that a user name is of.
fn node(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_PREFIX).filter(|name| dns1123_subdomain(name).is_empty())
}

impl Mode {
    /// The verb about parts of the other user.
    fn verb(self) -> &'static str {
        match self {
            Self::AssociatedNode => "impersonate:associated-node",
            Self::ArbitraryNode => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Legacy => "impersonate",
        }
    }

    /// Constraint in the audit log.
    fn constraint(self) -> &'static str {
        if self == Self::Legacy { "" } else { self.verb() }
    }

    /// Reports whether the mode applies to such an impersonation by such a user.
    fn takes(self, wish: &ImpersonationRequest, user: &UserInfo) -> bool {
        let bare = wish.uid.is_empty() && wish.groups.is_empty() && wish.extra.is_empty();
        let (node, account) = (node(&wish.name), service_account(&wish.name));
        let here = || user.extra.get(NODE_NAME).map(Vec::as_slice);
        match self {
            Self::AssociatedNode => {
                bare && service_account(&user.name).is_some()
                    && node.is_some_and(|name| matches!(here(), Some([one]) if one == name))
            }
            Self::ArbitraryNode => bare && node.is_some(),
            Self::ServiceAccount => bare && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }

    /// The user asked for.
    fn user(self, wish: &ImpersonationRequest) -> UserInfo {
        let mut wish = wish.clone();
        if matches!(self, Self::AssociatedNode | Self::ArbitraryNode) {
            wish.groups = vec![NODES_GROUP.to_owned()];
        }
        wish.user()
    }
}

/// Plans the checks of an impersonation in a mode; `None` where the mode does not apply.
fn plan(mode: Mode, wish: &ImpersonationRequest, request: &Attributes) -> Option<Vec<RequiredAccess>> {
    if !mode.takes(wish, &request.user) {
        return None;
    }
    let mut request = request.clone();
    if mode == Mode::AssociatedNode {
        // What is allowed on one node is allowed on all: which it is counts no more.
        let keys = request.user.extra.keys().cloned().collect();
        request.user.extra = BTreeMap::from([(NODE_KEYS.to_owned(), keys)]);
    }
    let parts = ImpersonationChecks { mode, wish, user: &request.user };
    let mut steps = vec![RequiredAccess::one(parts.name())];
    steps.extend(parts.uid());
    steps.extend(parts.groups());
    steps.extend(parts.extra());
    if let Some(kind) = mode.verb().strip_prefix("impersonate:") {
        let verb = format!("impersonate-on:{kind}:{}", request.verb);
        steps.insert(0, RequiredAccess::one(Attributes { verb, ..request.clone() }));
    }
    Some(steps)
}

/// Builds the checks of the parts of the impersonated user.
struct ImpersonationChecks<'a> {
    mode: Mode,
    wish: &'a ImpersonationRequest,
    user: &'a UserInfo,
}

impl ImpersonationChecks<'_> {
    fn about(&self, group: &str, resource: &str, name: &str) -> Attributes {
        Attributes {
            user: self.user.clone(),
            verb: self.mode.verb().to_owned(),
            api_group: group.to_owned(),
            api_version: "v1".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            resource_request: true,
            ..Attributes::default()
        }
    }

    /// API group of the checks of names and groups.
    fn group(&self) -> &'static str {
        if self.mode == Mode::Legacy { "" } else { AUTHENTICATION }
    }

    fn name(&self) -> Attributes {
        let name = &self.wish.name;
        match (self.mode, node(name), service_account(name)) {
            (Mode::AssociatedNode, ..) => self.about(self.group(), NODES.plural, "*"),
            (Mode::ArbitraryNode, Some(node), _) => self.about(self.group(), NODES.plural, node),
            (_, _, Some((namespace, name))) => Attributes {
                namespace: namespace.to_owned(),
                ..self.about(self.group(), SERVICE_ACCOUNTS.plural, name)
            },
            _ => self.about(self.group(), "users", name),
        }
    }

    fn uid(&self) -> Option<RequiredAccess> {
        let uid = &self.wish.uid;
        (!uid.is_empty()).then(|| RequiredAccess::one(self.about(AUTHENTICATION, "uids", uid)))
    }

    fn groups(&self) -> Option<RequiredAccess> {
        let groups = &self.wish.groups;
        let about = |name: &str| self.about(self.group(), "groups", name);
        let refuse = |name: &str, why: &str| Some(RequiredAccess::Refuse(about(name), why.to_owned()));
        let constrained = self.mode != Mode::Legacy;
        if constrained && groups.iter().any(String::is_empty) {
            return refuse("", "impersonating the empty string group is not allowed");
        }
        if constrained && groups.iter().any(|group| group == SYSTEM_MASTERS) {
            return refuse(SYSTEM_MASTERS, "impersonating the system:masters group is not allowed");
        }
        self.each(about("*"), groups.iter().map(|group| about(group)).collect(), groups.len())
    }

    fn extra(&self) -> Option<RequiredAccess> {
        let extra = &self.wish.extra;
        let about = |key: &str, value: &str| Attributes {
            subresource: key.to_owned(),
            ..self.about(AUTHENTICATION, "userextras", value)
        };
        if let Some(why) = unfit(extra).filter(|_| self.mode != Mode::Legacy) {
            return Some(RequiredAccess::Refuse(about("", ""), why));
        }
        let each: Vec<Attributes> =
            extra.iter().flat_map(|(key, values)| values.iter().map(|value| about(key, value))).collect();
        let count = each.len().max(extra.len());
        self.each(about("*", "*"), each, count)
    }

    fn each(&self, all: Attributes, each: Vec<Attributes>, count: usize) -> Option<RequiredAccess> {
        let many = self.mode != Mode::Legacy && count >= MANY;
        (!each.is_empty()).then(|| RequiredAccess::Ask(each, many.then_some(all)))
    }
}

/// Returns the error of invalid keys and values of extra fields.
fn unfit(extra: &BTreeMap<String, Vec<String>>) -> Option<String> {
    extra.iter().find_map(|(key, values)| {
        let mut wrong = FieldErrors::default();
        domain_path(key, &Path::of(&["extra", "key"]), &mut wrong);
        let what = match () {
            () if key.is_empty() => "the empty string key in extra is not allowed".to_owned(),
            () if !wrong.is_empty() => format!("an invalid key in extra is not allowed: {}", aggregate(&wrong)),
            () if *key != key.to_lowercase() => {
                format!("a non-lowercase key in extra is not allowed: {}", go_quote(key))
            }
            () if values.is_empty() => "empty values in extra is not allowed".to_owned(),
            () if values.iter().any(String::is_empty) => "the empty string value in extra is not allowed".to_owned(),
            () => return None,
        };
        Some(format!("impersonating {what}"))
    })
}

/// Reads the headers; an error when parts of a user are asked for without a user.
pub(super) fn requested(headers: &dyn Headers) -> Result<Option<ImpersonationRequest>, Status> {
    let wish = ImpersonationRequest::read(headers);
    if !wish.name.is_empty() {
        return Ok(Some(wish));
    }
    if wish.uid.is_empty() && wish.groups.is_empty() && wish.extra.is_empty() {
        return Ok(None);
    }
    Err(Status::bad_request(&format!("requested {} without impersonating a user name", shown(&wish))))
}

/// Formats the struct as Go's `%#v` does.
fn shown(wish: &ImpersonationRequest) -> String {
    let list = |items: &[String]| {
        let items: Vec<String> = items.iter().map(|item| go_quote(item)).collect();
        format!("[]string{{{}}}", items.join(", "))
    };
    let groups = if wish.groups.is_empty() { "[]string(nil)".to_owned() } else { list(&wish.groups) };
    let extra: Vec<String> = wish.extra.iter().map(|(k, values)| format!("{}:{}", go_quote(k), list(values))).collect();
    let extra = match extra.is_empty() {
        true => "map[string][]string(nil)".to_owned(),
        false => format!("map[string][]string{{{}}}", extra.join(", ")),
    };
    let (name, uid) = (go_quote(&wish.name), go_quote(&wish.uid));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

/// The modes, and by which of them users came to something last.
#[derive(Debug, Default)]
pub(super) struct Modes(Mutex<HashMap<String, Mode>>);

impl Modes {
    /// Authorizes the impersonation; returns the impersonated user and the constraint for the audit log.
    pub(super) async fn authorize(
        &self,
        access: &Access,
        wish: &ImpersonationRequest,
        request: &Attributes,
    ) -> Result<(UserInfo, &'static str), Status> {
        let last = self.0.lock().get(&request.user.name).copied();
        let others = MODES.into_iter().filter(|mode| Some(*mode) != last);
        let mut refused = None;
        for mode in last.into_iter().chain(others) {
            let Some(steps) = plan(mode, wish, request) else { continue };
            match check_all(access, steps).await {
                Ok(()) => {
                    self.remember(&request.user.name, mode);
                    return Ok((mode.user(wish), mode.constraint()));
                }
                Err(status) => drop(refused.get_or_insert(status)),
            }
        }
        Err(refused.unwrap_or_else(|| Status::unknown("all impersonation modes failed")))
    }

    fn remember(&self, user: &str, mode: Mode) {
        let mut known = self.0.lock();
        if known.len() >= REMEMBERED && !known.contains_key(user) {
            known.clear();
        }
        known.insert(user.to_owned(), mode);
    }
}

async fn check_all(access: &Access, steps: Vec<RequiredAccess>) -> Result<(), Status> {
    for step in steps {
        match step {
            RequiredAccess::Ask(each, all) => {
                if let Some(all) = all
                    && access.allows(&all).await
                {
                    continue;
                }
                for question in &each {
                    demand(access, question).await?;
                }
            }
            RequiredAccess::Refuse(question, why) => return Err(deny::unauthorised_request(&question, &why)),
        }
    }
    Ok(())
}

async fn demand(access: &Access, question: &Attributes) -> Result<(), Status> {
    let verdict = access.authorization().verdict(question).await;
    if verdict.is_allowed() {
        return Ok(());
    }
    let why = match verdict.error {
        Some(error) if verdict.reason.is_empty() => error,
        Some(error) => format!("{error}: {}", verdict.reason),
        None => verdict.reason,
    };
    Err(deny::unauthorised_request(question, &why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, extra: &[(&str, &str)]) -> UserInfo {
        let extra = extra.iter().map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()])).collect();
        UserInfo { name: name.to_owned(), extra, ..UserInfo::default() }
    }

    fn wish(name: &str, groups: &[&str], extra: &[(&str, &str)]) -> ImpersonationRequest {
        let UserInfo { name, extra, .. } = user(name, extra);
        ImpersonationRequest {
            name,
            uid: String::new(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            extra,
        }
    }

    fn request(user: UserInfo) -> Attributes {
        let [namespace, resource] = ["e", "pods"].map(str::to_owned);
        Attributes {
            user,
            verb: "list".to_owned(),
            namespace,
            resource,
            resource_request: true,
            ..Attributes::default()
        }
    }

    /// Lists the checks of a mode in short.
    fn asked(mode: Mode, wish: &ImpersonationRequest, user: UserInfo) -> Option<Vec<String>> {
        let line = |q: &Attributes| {
            format!("{} {}/{}/{} {}/{}", q.verb, q.api_group, q.resource, q.subresource, q.namespace, q.name)
        };
        let text = |step: RequiredAccess| match step {
            RequiredAccess::Ask(each, all) => {
                let all = all.map(|all| format!("{} or else: ", line(&all))).unwrap_or_default();
                format!("{all}{}", each.iter().map(line).collect::<Vec<_>>().join(", "))
            }
            RequiredAccess::Refuse(question, why) => format!("{}: {why}", line(&question)),
        };
        Some(plan(mode, wish, &request(user))?.into_iter().map(text).collect())
    }

    #[test]
    fn impersonation_modes_match_their_users() {
        let agent = || user("system:serviceaccount:e:agent", &[(NODE_NAME, "n1")]);
        for (wish, who, modes) in [
            (wish("bob", &["dev"], &[("a.io/b", "c")]), user("alice", &[]), vec![Mode::UserInfo, Mode::Legacy]),
            (wish("system:node:n1", &[], &[]), user("alice", &[]), vec![Mode::ArbitraryNode, Mode::Legacy]),
            (wish("system:node:n1", &[], &[]), agent(), vec![Mode::AssociatedNode, Mode::ArbitraryNode, Mode::Legacy]),
            (wish("system:node:n2", &[], &[]), agent(), vec![Mode::ArbitraryNode, Mode::Legacy]),
            (wish("system:node:n1", &["g"], &[]), agent(), vec![Mode::Legacy]),
            (wish("system:node:N_1", &[], &[]), agent(), vec![Mode::UserInfo, Mode::Legacy]),
            (wish("system:serviceaccount:e:a", &[], &[]), agent(), vec![Mode::ServiceAccount, Mode::Legacy]),
            (wish("system:serviceaccount:e:a", &["g"], &[]), agent(), vec![Mode::Legacy]),
        ] {
            let found: Vec<Mode> = MODES.into_iter().filter(|mode| mode.takes(&wish, &who)).collect();
            assert_eq!(found, modes, "{wish:?}");
        }
    }

    #[test]
    fn a_mode_asks_about_the_request_and_the_parts_of_the_user() {
        let alice = || user("alice", &[]);
        let on = "impersonate-on:user-info:list /pods/ e/";
        let users = "impersonate:user-info authentication.k8s.io/users/ /bob";
        let groups = "impersonate:user-info authentication.k8s.io/groups/ /";
        let extras = "impersonate:user-info authentication.k8s.io/userextras/";
        for (groups_wanted, extra, want) in [
            (&["dev"][..], &[("a.io/b", "c")][..], vec![format!("{groups}dev"), format!("{extras}a.io/b /c")]),
            (
                &["1", "2", "3", "4"],
                &[],
                vec![format!("{groups}* or else: {groups}1, {groups}2, {groups}3, {groups}4")],
            ),
            (&["a", ""], &[], vec![format!("{groups}: impersonating the empty string group is not allowed")]),
            (
                &["a", "system:masters"],
                &[],
                vec![format!("{groups}system:masters: impersonating the system:masters group is not allowed")],
            ),
            (
                &[],
                &[("scopes", "x")],
                vec![format!(
                    "{extras} /: impersonating an invalid key in extra is not allowed: extra.key: Invalid value: \"scopes\": must be a domain-prefixed path (such as \"acme.io/foo\")"
                )],
            ),
            (
                &[],
                &[("a.io/b", "")],
                vec![format!("{extras} /: impersonating the empty string value in extra is not allowed")],
            ),
        ] {
            let mut all = vec![on.to_owned(), users.to_owned()];
            all.extend(want);
            assert_eq!(asked(Mode::UserInfo, &wish("bob", groups_wanted, extra), alice()), Some(all));
        }
        let legacy = asked(Mode::Legacy, &wish("bob", &["system:masters"], &[("scopes", "")]), alice());
        let want = [
            "impersonate /users/ /bob",
            "impersonate /groups/ /system:masters",
            "impersonate authentication.k8s.io/userextras/scopes /",
        ];
        assert_eq!(legacy, Some(want.map(str::to_owned).to_vec()));
    }

    #[test]
    fn associated_node_is_authorized_for_all_nodes_first() {
        let agent = user("system:serviceaccount:e:agent", &[(NODE_NAME, "n1"), ("b", "c")]);
        let node = wish("system:node:n1", &[], &[]);
        let want = [
            "impersonate-on:associated-node:list /pods/ e/",
            "impersonate:associated-node authentication.k8s.io/nodes/ /*",
        ];
        assert_eq!(asked(Mode::AssociatedNode, &node, agent.clone()), Some(want.map(str::to_owned).to_vec()));
        let steps = plan(Mode::AssociatedNode, &node, &request(agent)).expect("it is his node");
        for step in steps {
            let RequiredAccess::Ask(each, _) = step else { panic!("refused") };
            let keys = vec![NODE_NAME.to_owned(), "b".to_owned()];
            assert_eq!(each[0].user.extra, BTreeMap::from([(NODE_KEYS.to_owned(), keys)]));
        }
        assert_eq!(Mode::AssociatedNode.user(&node).groups, [NODES_GROUP, "system:authenticated"]);
        assert_eq!(Mode::Legacy.user(&node).groups, ["system:authenticated"]);
    }

    #[test]
    fn errors_format_the_user_as_go_does() {
        let mut nobody = wish("", &["g"], &[("a.io/b", "c")]);
        nobody.uid = "7".to_owned();
        let want = r#"&user.DefaultInfo{Name:"", UID:"7", Groups:[]string{"g"}, Extra:map[string][]string{"a.io/b":[]string{"c"}}}"#;
        assert_eq!(shown(&nobody), want);
        let nothing = r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string(nil)}"#;
        assert_eq!(shown(&wish("", &[], &[])), nothing);
    }
}
