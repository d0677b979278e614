//! Eviction of pods because of tainted devices. Answers for upstream's `pkg/controller/devicetainteviction`.
//!
//! In: the allocation of a claim, the taints of devices. Out: the moment of eviction, and the rules that are to blame.
//! No I/O here.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{
    Device, DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice,
    ResourceSliceSpec,
};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::engine::object;

/// The effect that evicts.
pub const EFFECT: &str = "NoExecute";

/// A rule: name and uid.
pub type Rule = (String, String);

/// A taint and the rule that it comes from, if it is not the device's own.
pub type Tracked = (DeviceTaint, Option<Rule>);

/// Eviction of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Time of the eviction.
    pub at: Timestamp,
    /// Because of these.
    pub rules: BTreeSet<Rule>,
}

impl Eviction {
    /// The earlier of two, for the reasons of both.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        Self { at: self.at.min(other.at), ..self }
    }
}

/// The taints of an allocated device: its own, and those that rules put on it.
#[must_use]
pub fn taints(
    device: &DeviceRequestAllocationResult,
    slices: &[impl AsRef<ResourceSlice>],
    rules: &[impl AsRef<DeviceTaintRule>],
) -> Vec<Tracked> {
    let specs = slices.iter().map(|s| &s.as_ref().spec);
    let of_pool = specs.filter(|s| s.driver == device.driver && s.pool.name == device.pool);
    // Slices of earlier generations are leftovers.
    let latest = of_pool.clone().map(|s| s.pool.generation).max();
    let own = of_pool
        .filter(|s| Some(s.pool.generation) == latest)
        .flat_map(|s| s.devices.iter().flatten())
        .filter(|d| d.name == device.device)
        .flat_map(|d| d.taints.iter().flatten())
        .map(|taint| (taint.clone(), None));
    let about = |r: &&DeviceTaintRule| selects(r, &device.driver, &device.pool, &device.device);
    let ruled = rules.iter().map(AsRef::as_ref).filter(about).map(|r| {
        let taint = &r.spec.taint;
        let taint = DeviceTaint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.clone(),
            time_added: taint.time_added.clone(),
        };
        (taint, Some(reference(r)))
    });
    own.chain(ruled).collect()
}

/// Counts the devices in slices that a rule selects.
#[must_use]
pub fn published(rule: &DeviceTaintRule, slices: &[impl AsRef<ResourceSlice>]) -> usize {
    let specs = || slices.iter().map(|s| &s.as_ref().spec);
    let last = |spec: &ResourceSliceSpec| {
        let same = |s: &&ResourceSliceSpec| s.driver == spec.driver && s.pool.name == spec.pool.name;
        specs().filter(same).all(|s| s.pool.generation <= spec.pool.generation)
    };
    let devices = |s: &ResourceSliceSpec| {
        let about = |d: &&Device| selects(rule, &s.driver, &s.pool.name, &d.name);
        s.devices.iter().flatten().filter(about).count()
    };
    specs().filter(|s| last(s)).map(devices).sum()
}

/// Name and uid of a rule.
#[must_use]
pub fn reference(rule: &DeviceTaintRule) -> Rule {
    (object::name(&rule.metadata).to_owned(), object::uid(&rule.metadata).to_owned())
}

/// Reports whether a rule selects a device of a pool.
#[must_use]
pub fn selects(rule: &DeviceTaintRule, driver: &str, pool: &str, device: &str) -> bool {
    let Some(selector) = &rule.spec.device_selector else { return false };
    let is = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|w| w == have);
    is(&selector.driver, driver) && is(&selector.pool, pool) && is(&selector.device, device)
}

/// The devices that a claim was given.
#[must_use]
pub fn allocated(claim: &ResourceClaim) -> &[DeviceRequestAllocationResult] {
    let devices = claim.status.as_ref().and_then(|s| s.allocation.as_ref()?.devices.as_ref());
    devices.and_then(|d| d.results.as_deref()).unwrap_or_default()
}

/// Returns when a pod with this claim must go; None when it may stay.
#[must_use]
pub fn eviction(
    claim: &ResourceClaim,
    taints: &dyn Fn(&DeviceRequestAllocationResult) -> Vec<Tracked>,
) -> Option<Eviction> {
    let of_device = |device: &DeviceRequestAllocationResult| {
        let tolerations = device.tolerations.as_deref().unwrap_or_default();
        let evicting = taints(device).into_iter().filter(|(taint, _)| taint.effect == EFFECT);
        let each = evicting.filter_map(|(taint, rule)| {
            Some(Eviction { at: limit(&taint, tolerations)?, rules: rule.into_iter().collect() })
        });
        each.reduce(Eviction::join)
    };
    allocated(claim).iter().filter_map(of_device).reduce(Eviction::join)
}

/// The end of what tolerations allow; None when one of them allows it for good.
fn limit(taint: &DeviceTaint, tolerations: &[DeviceToleration]) -> Option<Timestamp> {
    let added = taint.time_added.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0);
    let mut shortest: Option<i64> = None;
    for toleration in tolerations.iter().filter(|t| tolerates(t, taint)) {
        let seconds = toleration.toleration_seconds?.max(0);
        shortest = Some(shortest.map_or(seconds, |s| s.min(seconds)));
    }
    added.checked_add(SignedDuration::from_secs(shortest.unwrap_or(0))).ok()
}

fn tolerates(t: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let any = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|w| w.is_empty() || w == have);
    // Upstream wants the effect to be named, though the API takes none for all.
    if t.effect.as_deref() != Some(EFFECT) || !any(&t.key, &taint.key) {
        return false;
    }
    match t.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "Equal" | "" => t.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        _ => false,
    }
}

/// Reports whether the claim is reserved for the pod.
#[must_use]
pub fn reserved_for(claim: &ResourceClaim, uid: &str) -> bool {
    let reserved = claim.status.iter().flat_map(|s| s.reserved_for.iter().flatten());
    reserved.into_iter().any(|r| r.uid == uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn claim(tolerations: Value) -> ResourceClaim {
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}, "status": {
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            "allocation": {"devices": {"results": [
                {"request": "r", "driver": "d", "pool": "n1", "device": "gpu-0", "tolerations": tolerations}]}}}}))
        .expect("claim")
    }

    fn slice(generation: i64, taints: Value) -> Arc<ResourceSlice> {
        Arc::new(
            serde_json::from_value(json!({"spec": {"driver": "d", "pool": {"name": "n1", "generation": generation, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0", "taints": taints}, {"name": "gpu-1"}]}}))
            .expect("slice"),
        )
    }

    fn look(tolerations: Value, slices: &[Arc<ResourceSlice>], rules: &[Arc<DeviceTaintRule>]) -> Option<String> {
        eviction(&claim(tolerations), &|d| taints(d, slices, rules)).map(|e| e.at.to_string())
    }

    #[test]
    fn by_taint_and_toleration() {
        let broken =
            json!([{"key": "broken", "value": "yes", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]);
        let mild = json!([{"key": "broken", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]);
        let s = [slice(2, broken.clone())];
        for (tolerations, want) in [
            (json!([]), Some("2026-01-01T00:00:00Z")),
            (json!([{"key": "broken", "operator": "Exists", "effect": EFFECT}]), None),
            (json!([{"key": "broken", "operator": "Exists"}]), Some("2026-01-01T00:00:00Z")),
            (
                json!([{"key": "broken", "value": "yes", "effect": EFFECT, "tolerationSeconds": 30}]),
                Some("2026-01-01T00:00:30Z"),
            ),
            (
                json!([{"operator": "Exists", "effect": EFFECT, "tolerationSeconds": 30},
                    {"operator": "Exists", "effect": EFFECT, "tolerationSeconds": 10}]),
                Some("2026-01-01T00:00:10Z"),
            ),
            (
                json!([{"operator": "Exists", "effect": EFFECT, "tolerationSeconds": 30},
                    {"operator": "Exists", "effect": EFFECT}]),
                None,
            ),
            (json!([{"key": "broken", "value": "no", "effect": EFFECT}]), Some("2026-01-01T00:00:00Z")),
            (json!([{"operator": "Exists", "effect": "NoSchedule"}]), Some("2026-01-01T00:00:00Z")),
        ] {
            assert_eq!(look(tolerations.clone(), &s, &[]).as_deref(), want, "{tolerations}");
        }
        let twice = json!([
            {"key": "one", "effect": EFFECT, "timeAdded": "2026-01-01T00:00:00Z"},
            {"key": "two", "effect": EFFECT, "timeAdded": "2026-01-01T00:00:00Z"}]);
        let tolerates = |key: &str, seconds: Value| json!({"key": key, "operator": "Exists", "effect": EFFECT, "tolerationSeconds": seconds});
        for (name, tolerations, want) in [
            ("one of two", json!([tolerates("one", Value::Null)]), Some("2026-01-01T00:00:00Z")),
            (
                "each for its time",
                json!([tolerates("one", json!(60)), tolerates("two", json!(30))]),
                Some("2026-01-01T00:00:30Z"),
            ),
            (
                "one for good",
                json!([tolerates("one", Value::Null), tolerates("two", json!(30))]),
                Some("2026-01-01T00:00:30Z"),
            ),
            ("both for good", json!([tolerates("one", Value::Null), tolerates("two", Value::Null)]), None),
            ("another key", json!([tolerates("three", json!(60))]), Some("2026-01-01T00:00:00Z")),
            (
                "less than no time",
                json!([tolerates("one", json!(-5)), tolerates("two", json!(30))]),
                Some("2026-01-01T00:00:00Z"),
            ),
        ] {
            assert_eq!(look(tolerations, &[slice(2, twice.clone())], &[]).as_deref(), want, "{name}");
        }
        for effect in ["None", "Other"] {
            let taint = json!([{"key": "broken", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}]);
            assert_eq!(look(json!([]), &[slice(2, taint)], &[]), None, "{effect}");
        }
        assert_eq!(look(json!([]), &[slice(2, mild)], &[]), None, "only NoExecute evicts");
        assert_eq!(look(json!([]), &[slice(1, broken), slice(2, json!([]))], &[]), None, "an old generation");
    }

    #[test]
    fn published_devices() {
        let rule = |selector: Value| -> DeviceTaintRule {
            let spec = json!({"deviceSelector": selector, "taint": {"key": "k", "effect": "None"}});
            serde_json::from_value(json!({"spec": spec})).expect("rule")
        };
        let slices = [slice(1, json!([])), slice(2, json!([]))];
        for (selector, want) in
            [(json!({}), 2), (json!({"device": "gpu-1"}), 1), (json!({"pool": "n2"}), 0), (Value::Null, 0)]
        {
            assert_eq!(
                published(&rule(selector.clone()), &slices),
                want,
                "{selector}: those of an old generation are not"
            );
        }
    }

    #[test]
    fn rules_taint_devices() {
        let rule = |selector: Value| -> Arc<DeviceTaintRule> {
            Arc::new(
                serde_json::from_value(json!({"spec": {"deviceSelector": selector,
                "taint": {"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}}}))
                .expect("rule"),
            )
        };
        for (selector, evicts) in [
            (json!({}), true),
            (json!({"driver": "d", "pool": "n1", "device": "gpu-0"}), true),
            (json!({"driver": "d", "device": "gpu-1"}), false),
            (json!({"driver": "other"}), false),
        ] {
            assert_eq!(look(json!([]), &[], &[rule(selector.clone())]).is_some(), evicts, "{selector}");
        }
        let named = |name: &str, added: &str| {
            let mut rule = DeviceTaintRule::clone(&rule(json!({})));
            (rule.metadata.name, rule.metadata.uid) = (Some(name.into()), Some(format!("{name}-1")));
            rule.spec.taint.time_added = Some(serde_json::from_value(json!(added)).expect("time"));
            Arc::new(rule)
        };
        let rules = [named("b", "2026-01-01T00:00:05Z"), named("a", "2026-01-01T00:00:09Z")];
        let broken = json!([{"key": "broken", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:07Z"}]);
        let found = eviction(&claim(json!([])), &|d| taints(d, &[slice(1, broken.clone())], &rules)).expect("eviction");
        let blamed: Vec<String> = found.rules.iter().map(|r| format!("{} {}", r.0, r.1)).collect();
        assert_eq!(
            (found.at.to_string().as_str(), blamed.join(", ").as_str()),
            ("2026-01-01T00:00:05Z", "a a-1, b b-1")
        );
    }
}
