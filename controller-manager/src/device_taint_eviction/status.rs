//! Status of a rule: how many pods it evicts, and what it would evict if it did.
//!
//! In: a rule and what was counted for it. Out: the condition to write. Reasons and messages are upstream's. No I/O here.

use std::time::Duration;

use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use super::plan::EFFECT;
use crate::engine::object;

const TYPE: &str = "EvictionInProgress";
/// Time for which a status stays as it is, unless the rule itself changes.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Counts of a rule's effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Devices in slices that it is about.
    pub published: usize,
    /// Devices in claims that it is about.
    pub allocated: usize,
    /// Pods that it evicts, or would evict.
    pub pods: usize,
    /// Namespaces of these pods.
    pub namespaces: usize,
    /// Pods that went because of it.
    pub evicted: usize,
}

/// Reports whether the rule evicts nothing: then its status says what it would do.
#[must_use]
pub fn simulated(rule: &DeviceTaintRule) -> bool {
    rule.spec.taint.effect == "None"
}

fn told(rule: &DeviceTaintRule) -> Option<&Condition> {
    rule.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == TYPE)
}

/// Returns the time for which the status is not to be looked at yet.
#[must_use]
pub fn wait(rule: &DeviceTaintRule, now: Timestamp) -> Option<Duration> {
    let told = told(rule).filter(|c| c.observed_generation == rule.metadata.generation)?;
    let since = Duration::try_from(now.duration_since(told.last_transition_time.0)).unwrap_or_default();
    PERIOD.checked_sub(since).filter(|left| !left.is_zero())
}

/// The condition to write; `None` when the rule says so already.
#[must_use]
pub fn condition(rule: &DeviceTaintRule, counts: Counts, now: Timestamp) -> Option<Condition> {
    let (status, reason, mut message) = said(&rule.spec.taint.effect, counts);
    if counts.evicted > 0 {
        let space = if message.is_empty() { "" } else { " " };
        message
            .push_str(&format!("{space}{} evicted since starting the controller.", of(counts.evicted, "pod", "pods")));
    }
    let generation = rule.metadata.generation;
    let same = told(rule).is_some_and(|c| {
        c.status == status && c.reason == reason && c.message == message && c.observed_generation == generation
    });
    (!same).then(|| Condition {
        type_: TYPE.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: object::seconds(now),
    })
}

fn said(effect: &str, counts: Counts) -> (&'static str, &'static str, String) {
    let namespaces = of(counts.namespaces, "namespace", "different namespaces");
    match effect {
        EFFECT if counts.pods > 0 => {
            let pods = of(counts.pods, "pod needs", "pods need");
            ("True", "PodsPendingEviction", format!("{pods} to be evicted in {namespaces}."))
        }
        EFFECT if counts.evicted > 0 => ("False", "Completed", String::new()),
        EFFECT => ("False", "NotStarted", String::new()),
        "None" => {
            let devices =
                |n: usize, kind: &str| format!("{n} {kind} device{} selected.", if n == 1 { "" } else { "s" });
            let message = format!(
                "{} {} {} would be evicted in {namespaces} if the effect was {EFFECT}. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
                devices(counts.published, "published"),
                devices(counts.allocated, "allocated"),
                of(counts.pods, "pod", "pods"),
            );
            ("False", "NoEffect", message)
        }
        _ => ("False", "OtherEffect", format!("Eviction only happens for the {EFFECT} effect.")),
    }
}

fn of(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(effect: &str, conditions: Value) -> DeviceTaintRule {
        serde_json::from_value(json!({"metadata": {"name": "r", "generation": 2}, "status": {"conditions": conditions},
            "spec": {"taint": {"key": "k", "effect": effect}}}))
        .expect("rule")
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:30Z".parse().expect("time")
    }

    #[test]
    fn what_is_told() {
        let pods = |pods, namespaces| Counts { pods, namespaces, ..Counts::default() };
        let evicted = |evicted| Counts { evicted, ..Counts::default() };
        let none =
            |published, allocated, pods, namespaces| Counts { published, allocated, pods, namespaces, evicted: 0 };
        let would = "if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.";
        for (effect, counts, want) in [
            (EFFECT, evicted(0), "False NotStarted ".to_owned()),
            (EFFECT, evicted(1), "False Completed 1 pod evicted since starting the controller.".to_owned()),
            (EFFECT, pods(1, 1), "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace.".to_owned()),
            (
                EFFECT,
                Counts { evicted: 2, ..pods(3, 2) },
                "True PodsPendingEviction 3 pods need to be evicted in 2 different namespaces. 2 pods evicted since starting the controller.".to_owned(),
            ),
            (
                "None",
                none(1, 2, 0, 0),
                format!("False NoEffect 1 published device selected. 2 allocated devices selected. 0 pods would be evicted in 0 different namespaces {would}"),
            ),
            (
                "None",
                none(0, 1, 1, 1),
                format!("False NoEffect 0 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace {would}"),
            ),
            ("NoSchedule", evicted(0), "False OtherEffect Eviction only happens for the NoExecute effect.".to_owned()),
        ] {
            let c = condition(&rule(effect, json!([])), counts, now()).expect("a condition");
            assert_eq!(format!("{} {} {}", c.status, c.reason, c.message), want);
            assert_eq!((c.type_.as_str(), c.observed_generation, c.last_transition_time.0), (TYPE, Some(2), now()));
            let mut again = rule(effect, json!([]));
            again.status.get_or_insert_default().conditions = Some(vec![c]);
            assert_eq!(condition(&again, counts, now()), None, "it is said already");
        }
    }

    #[test]
    fn a_status_stays_for_a_while() {
        let at = |time: &str, generation: i64| {
            json!([{"type": TYPE, "status": "False", "reason": "r", "message": "", "lastTransitionTime": time,
                "observedGeneration": generation}])
        };
        for (conditions, want) in [
            (json!([]), None),
            (at("2026-01-01T00:00:24Z", 2), Some(4)),
            (at("2026-01-01T00:00:24Z", 1), None),
            (at("2026-01-01T00:00:20Z", 2), None),
            (at("2025-01-01T00:00:20Z", 2), None),
        ] {
            assert_eq!(wait(&rule(EFFECT, conditions.clone()), now()).map(|d| d.as_secs()), want, "{conditions}");
        }
    }
}
