//! What a dying namespace's status says, and when it may go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::jiff::Timestamp;

use crate::engine::object;

/// The finalizer of this controller in `spec.finalizers`.
pub const FINALIZER: &str = "kubernetes";

/// What a round of deletions left.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Discovery did not work for these.
    pub discovery: Vec<String>,
    /// Deletions that failed.
    pub failures: Vec<String>,
    /// Instances left by resource.
    pub remaining: BTreeMap<String, usize>,
    /// Instances that hold a finalizer, by finalizer.
    pub finalizers: BTreeMap<String, usize>,
}

impl Round {
    /// Nothing is left and nothing went wrong.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.discovery.is_empty() && self.failures.is_empty() && self.remaining.is_empty() && self.finalizers.is_empty()
    }
}

/// The conditions after a round, in upstream's order; None if they are there already.
#[must_use]
pub fn conditions(namespace: &Namespace, round: &Round, now: Timestamp) -> Option<Vec<NamespaceCondition>> {
    let listed = |m: &BTreeMap<String, usize>, link: &str| {
        m.iter().map(|(k, n)| format!("{k}{link}{n} resource instances")).collect::<Vec<_>>().join(", ")
    };
    type Row = (&'static str, bool, (&'static str, &'static str), (&'static str, String));
    let rows: [Row; 5] = [
        (
            "NamespaceDeletionDiscoveryFailure",
            !round.discovery.is_empty(),
            ("ResourcesDiscovered", "All resources successfully discovered"),
            (
                "DiscoveryFailed",
                format!(
                    "Discovery failed for some groups, {} failing: {}",
                    round.discovery.len(),
                    round.discovery.join(", ")
                ),
            ),
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
                format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    round.failures.len(),
                    round.failures.join(", ")
                ),
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
    ];
    let mut out = namespace.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for (kind, bad, good_text, bad_text) in rows {
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

/// Whether this controller still has to finish the namespace.
#[must_use]
pub fn holds(namespace: &Namespace) -> bool {
    namespace.spec.as_ref().and_then(|s| s.finalizers.as_ref()).is_some_and(|f| f.iter().any(|x| x == FINALIZER))
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
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_tell_what_is_left() {
        let ns: Namespace =
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]}}))
                .expect("namespace");
        let mut round = Round::default();
        round.remaining.insert("pods.".into(), 2);
        round.finalizers.insert("example.com/x".into(), 1);
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
        assert!(!round.clean());
    }
}
