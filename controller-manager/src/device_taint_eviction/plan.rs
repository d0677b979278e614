//! When a pod must go because a device it uses is tainted.
//!
//! In: the allocation of a claim, the taints of devices. Out: the moment of eviction. No I/O here.

use k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice,
};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::engine::object;

const EFFECT: &str = "NoExecute";

/// The taints of an allocated device: its own, and those that rules put on it.
#[must_use]
pub fn taints(
    device: &DeviceRequestAllocationResult,
    slices: &[impl AsRef<ResourceSlice>],
    rules: &[impl AsRef<DeviceTaintRule>],
) -> Vec<DeviceTaint> {
    let of_pool = || {
        let all = slices.iter().map(|s| s.as_ref().spec.clone());
        all.filter(|s| s.driver == device.driver && s.pool.name == device.pool)
    };
    // Slices of earlier generations are leftovers.
    let latest = of_pool().map(|s| s.pool.generation).max();
    let own = of_pool()
        .filter(|s| Some(s.pool.generation) == latest)
        .flat_map(|s| s.devices.unwrap_or_default())
        .filter(|d| d.name == device.device)
        .flat_map(|d| d.taints.unwrap_or_default());
    let ruled = rules.iter().map(AsRef::as_ref).filter(|r| selects(r, device)).map(|r| {
        let taint = &r.spec.taint;
        DeviceTaint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.clone(),
            time_added: taint.time_added.clone(),
        }
    });
    own.chain(ruled).collect()
}

fn selects(rule: &DeviceTaintRule, device: &DeviceRequestAllocationResult) -> bool {
    let Some(selector) = &rule.spec.device_selector else { return false };
    let is = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|w| w == have);
    is(&selector.driver, &device.driver) && is(&selector.pool, &device.pool) && is(&selector.device, &device.device)
}

/// When a pod with this claim must go; None when it may stay.
#[must_use]
pub fn eviction(
    claim: &ResourceClaim,
    taints: &dyn Fn(&DeviceRequestAllocationResult) -> Vec<DeviceTaint>,
) -> Option<Timestamp> {
    let allocation = claim.status.as_ref()?.allocation.as_ref()?;
    let results = allocation.devices.as_ref().and_then(|d| d.results.as_deref()).unwrap_or_default();
    let of_device = |device: &DeviceRequestAllocationResult| {
        let tolerations = device.tolerations.as_deref().unwrap_or_default();
        taints(device).iter().filter(|t| t.effect == EFFECT).filter_map(|t| limit(t, tolerations)).min()
    };
    results.iter().filter_map(of_device).min()
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

/// Whether the claim is reserved for the pod.
#[must_use]
pub fn reserved_for(claim: &ResourceClaim, uid: &str) -> bool {
    let reserved = claim.status.iter().flat_map(|s| s.reserved_for.iter().flatten());
    !object::deleting(&claim.metadata) && reserved.into_iter().any(|r| r.uid == uid)
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
        eviction(&claim(tolerations), &|d| taints(d, slices, rules)).map(|t| t.to_string())
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
        assert_eq!(look(json!([]), &[slice(2, mild)], &[]), None, "only NoExecute evicts");
        assert_eq!(look(json!([]), &[slice(1, broken), slice(2, json!([]))], &[]), None, "an old generation");
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
    }
}
