//! Status of a terminating namespace, and when it may go. Answers for upstream's `namespaceConditionUpdater`,
//! `syncNamespaceFromKey`.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use shared::informer::Event;

use super::waiting::Thing;
use crate::engine::discovery::Served;
use crate::engine::object;

/// The finalizer of this controller in `spec.finalizers`.
pub const FINALIZER: &str = "kubernetes";
/// Estimated time of finalizers.
const FINALIZERS: Duration = Duration::from_secs(15);

/// Result of a round of deletions.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Discovery did not work at all.
    pub broken: Option<String>,
    /// Discovery did not work for these.
    pub discovery: Vec<String>,
    /// Deletions that failed.
    pub failures: Vec<String>,
    /// Instances left by resource.
    pub remaining: BTreeMap<String, usize>,
    /// Instances that hold a finalizer, by finalizer.
    pub finalizers: BTreeMap<String, usize>,
    /// Estimated time that the rest may take; nothing when nothing is waited for.
    pub estimate: Duration,
    /// The instances that are left.
    pub left: Vec<Thing>,
}

impl Round {
    /// Some instances of a resource are left. Those that are not given any time and hold no finalizer should not be.
    pub fn remains(
        &mut self,
        namespace: &str,
        served: &Served,
        (instances, finalizers): (usize, impl Iterator<Item = String>),
        grace: Duration,
    ) {
        let Served { group, version, plural, .. } = served;
        self.remaining.insert(format!("{plural}.{group}"), instances);
        let mut held = false;
        for finalizer in finalizers {
            held = true;
            *self.finalizers.entry(finalizer).or_default() += 1;
        }
        self.estimate = self.estimate.max(if held && grace.is_zero() { FINALIZERS } else { grace });
        if !held && grace.is_zero() {
            self.failures.push(format!(
                "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={plural}"
            ));
        }
    }

    fn discovery_message(&self) -> String {
        let list = || format!("unable to retrieve the complete list of server APIs: {}", self.discovery.join(", "));
        let some = || format!("Discovery failed for some groups, {} failing: {}", self.discovery.len(), list());
        self.broken.clone().unwrap_or_else(some)
    }
}

/// Reports whether a terminating namespace is to be looked at. Its status is this controller's own doing: it looks
/// again by itself as long as anything is left.
#[must_use]
pub fn is_news(event: &Event<Namespace>) -> bool {
    let known = match event {
        Event::Added(_) => false,
        Event::Updated { old, new } => {
            object::deleting(&old.metadata) && old.metadata.uid == new.metadata.uid && old.spec == new.spec
        }
        Event::Deleted(_) => true,
    };
    !known && object::deleting(&event.object().metadata)
}

/// Returns discovery's error about a group version whose server does not answer.
#[must_use]
pub fn stale(group_version: &str) -> String {
    format!("{group_version}: stale GroupVersion discovery: {group_version}")
}

/// Returns how long the pods of a namespace may take to stop, of which the slowest is given `longest` seconds, unless
/// they have had them.
#[must_use]
pub fn grace(longest: u64, deleted: Option<&Time>, now: Timestamp) -> Duration {
    let since = deleted.map_or(0, |at| now.as_second() - at.0.as_second());
    if u64::try_from(since).is_ok_and(|since| since >= longest) { Duration::ZERO } else { Duration::from_secs(longest) }
}

/// A condition: its type, whether something is wrong, reason and message when nothing is, and when something is.
type Row = (&'static str, bool, (&'static str, &'static str), (&'static str, String));

/// Returns the conditions of a round, in upstream's order.
fn rows(round: &Round) -> [Row; 5] {
    let mut failures = round.failures.clone();
    failures.sort();
    let listed = |m: &BTreeMap<String, usize>, link: &str| {
        m.iter().map(|(k, n)| format!("{k}{link}{n} resource instances")).collect::<Vec<_>>().join(", ")
    };
    [
        (
            "NamespaceDeletionDiscoveryFailure",
            !round.discovery.is_empty(),
            ("ResourcesDiscovered", "All resources successfully discovered"),
            ("DiscoveryFailed", round.discovery_message()),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            ("GroupVersionParsingFailed", String::new()),
        ),
        (
            "NamespaceDeletionContentFailure",
            !round.failures.is_empty(),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
            (
                "ContentDeletionFailed",
                format!("Failed to delete all resource types, {} remaining: {}", failures.len(), failures.join(", ")),
            ),
        ),
        (
            "NamespaceContentRemaining",
            !round.remaining.is_empty(),
            ("ContentRemoved", "All content successfully removed"),
            ("SomeResourcesRemain", format!("Some resources are remaining: {}", listed(&round.remaining, " has "))),
        ),
        (
            "NamespaceFinalizersRemaining",
            !round.finalizers.is_empty(),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
            (
                "SomeFinalizersRemain",
                format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    listed(&round.finalizers, " in ")
                ),
            ),
        ),
    ]
}

/// The conditions after a round; None if they are there already.
#[must_use]
pub fn conditions(namespace: &Namespace, round: &Round, now: Timestamp) -> Option<Vec<NamespaceCondition>> {
    let mut out = namespace.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for (kind, bad, good_text, bad_text) in rows(round) {
        let (status, reason, message) =
            if bad { ("True", bad_text.0, bad_text.1) } else { ("False", good_text.0, good_text.1.to_owned()) };
        let new = NamespaceCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_transition_time: Some(object::seconds(now)),
        };
        match out.iter_mut().find(|c| c.type_ == kind) {
            None => {
                out.push(new);
                changed = true;
            }
            Some(c) if c.status != new.status || c.reason != new.reason || c.message != new.message => {
                let transition = if c.status == new.status {
                    c.last_transition_time.clone()
                } else {
                    new.last_transition_time.clone()
                };
                *c = NamespaceCondition { last_transition_time: transition, ..new };
                changed = true;
            }
            Some(_) => {}
        }
    }
    changed.then_some(out)
}

/// Reports whether a finalizer is left in the spec: as long as that is so, the namespace's content is looked after.
#[must_use]
pub fn holds(namespace: &Namespace) -> bool {
    namespace.spec.as_ref().and_then(|s| s.finalizers.as_ref()).is_some_and(|f| !f.is_empty())
}

/// The namespace without this controller's finalizer.
#[must_use]
pub fn finalized(namespace: &Namespace) -> Namespace {
    let mut copy = namespace.clone();
    if let Some(f) = copy.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
        f.retain(|x| x != FINALIZER);
    }
    copy
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_tell_what_is_left() {
        let ns: Namespace =
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]}}))
                .expect("namespace");
        let mut round = Round::default();
        round.remains("n", &served("", "v1", "pods"), (2, ["example.com/x".to_owned()].into_iter()), Duration::ZERO);
        let got = conditions(&ns, &round, Timestamp::UNIX_EPOCH).expect("conditions");
        let texts: Vec<_> =
            got.iter().map(|c| (c.type_.as_str(), c.status.as_str(), c.message.clone().unwrap_or_default())).collect();
        assert_eq!(
            texts[0],
            ("NamespaceDeletionDiscoveryFailure", "False", "All resources successfully discovered".into())
        );
        assert_eq!(
            texts[3],
            (
                "NamespaceContentRemaining",
                "True",
                "Some resources are remaining: pods. has 2 resource instances".into()
            )
        );
        assert_eq!(
            texts[4].2,
            "Some content in the namespace has finalizers remaining: example.com/x in 1 resource instances"
        );
        let mut again = ns.clone();
        again.status.get_or_insert_default().conditions = Some(got);
        assert_eq!(conditions(&again, &round, Timestamp::UNIX_EPOCH), None);
        assert!(holds(&ns) && !holds(&finalized(&ns)));
        let mut shared = ns.clone();
        shared.spec.get_or_insert_default().finalizers = Some(vec![FINALIZER.into(), "example.com/x".into()]);
        assert!(holds(&finalized(&shared)), "the content is looked after until the last finalizer is off");
    }

    fn served(group: &str, version: &str, plural: &str) -> Served {
        Served {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            kind: String::new(),
            namespaced: true,
            verbs: Vec::new(),
        }
    }

    #[test]
    fn a_namespace_is_looked_at_when_it_begins_to_die() {
        const DELETED: &str = "2026-01-01T00:00:00Z";
        let namespace = |uid: &str, deleted: Option<&str>, finalizer: &str, phase: &str| -> Arc<Namespace> {
            let object = json!({"metadata": {"name": "n", "uid": uid, "deletionTimestamp": deleted},
                "spec": {"finalizers": [finalizer]}, "status": {"phase": phase}});
            Arc::new(serde_json::from_value(object).expect("namespace"))
        };
        let live = || namespace("u", None, FINALIZER, "Active");
        let dying = |uid, finalizer, phase| namespace(uid, Some(DELETED), finalizer, phase);
        let asked = || dying("u", FINALIZER, "Active");
        for (event, want) in [
            (Event::Added(live()), false),
            (Event::Added(asked()), true),
            (Event::Updated { old: live(), new: asked() }, true),
            (Event::Updated { old: asked(), new: dying("u", FINALIZER, "Terminating") }, false),
            (Event::Updated { old: asked(), new: dying("u", "example.com/x", "Active") }, true),
            (Event::Updated { old: asked(), new: dying("v", FINALIZER, "Active") }, true),
            (Event::Deleted(asked()), false),
        ] {
            assert_eq!(is_news(&event), want, "{event:?}");
        }
    }

    #[test]
    fn how_long_what_is_left_may_take() {
        let (apps, none) = (served("apps", "v1", "deployments"), Duration::ZERO);
        let unexpected = "unexpected items still remain in namespace: n for gvr: apps/v1, Resource=deployments";
        for (finalizers, grace, estimate, failures) in [
            (vec!["f".to_owned()], none, FINALIZERS, vec![]),
            (vec!["f".to_owned()], Duration::from_secs(5), Duration::from_secs(5), vec![]),
            (vec![], Duration::from_secs(30), Duration::from_secs(30), vec![]),
            (vec![], none, none, vec![unexpected.to_owned()]),
        ] {
            let mut round = Round::default();
            round.remains("n", &apps, (1, finalizers.into_iter()), grace);
            assert_eq!((round.estimate, round.failures), (estimate, failures));
        }
        let at = |s| Timestamp::from_second(s).expect("time");
        for (longest, now, want) in [(30, 110, 30), (30, 130, 0), (0, 100, 0)] {
            assert_eq!(grace(longest, Some(&Time(at(100))), at(now)), Duration::from_secs(want), "{longest} {now}");
        }
    }

    #[test]
    fn failures_in_the_conditions() {
        let ns: Namespace = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {}})).expect("namespace");
        let mut round = Round { discovery: vec![stale("metrics.k8s.io/v1beta1")], ..Round::default() };
        round.failures = vec!["b".into(), "a".into()];
        let message = |round: &Round, i: usize| {
            let all = conditions(&ns, round, Timestamp::UNIX_EPOCH).expect("conditions");
            all[i].message.clone().unwrap_or_default()
        };
        assert_eq!(
            message(&round, 0),
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
             metrics.k8s.io/v1beta1: stale GroupVersion discovery: metrics.k8s.io/v1beta1"
        );
        assert_eq!(message(&round, 2), "Failed to delete all resource types, 2 remaining: a, b");
        round.broken = Some("gone".into());
        assert_eq!(message(&round, 0), "gone");
    }
}
