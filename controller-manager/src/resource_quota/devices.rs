//! Usage of claims of devices, by device class, and the part of it that pods request as extended resources already.
//! Answers for upstream's `pkg/quota/v1/evaluator/core/resource_claims.go`.

use std::sync::Arc;

use foldhash::HashMap;
use k8s_openapi::api::resource::v1::{DeviceRequest, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use proto::quantity::{Format, Quantity};

use super::usage::{Usage, add, one, raise};
use crate::engine::object;
use crate::engine::pod::Pod;

/// Suffix of a quota's name for the devices of a class.
pub const PER_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// The most devices that a claim may be given.
const MOST_DEVICES: i64 = 32;

/// Prefix of a quota's name for a device class as a resource.
pub const IMPLICIT: &str = "requests.deviceclass.resource.kubernetes.io/";
/// On claims that the scheduler made for the extended resources of a pod.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

/// Returns the usage of a claim of devices, by device class.
#[must_use]
pub fn claim(claim: &ResourceClaim) -> Usage {
    let mut out = Usage::from([("count/resourceclaims.resource.k8s.io".to_owned(), one())]);
    for request in claim.spec.devices.iter().flat_map(|d| d.requests.iter().flatten()) {
        add(&mut out, &of_request(request));
    }
    out
}

/// Of several alternatives the most that each class may come to.
fn of_request(request: &DeviceRequest) -> Usage {
    let mut out = Usage::new();
    let mut count = |class: &str, mode: Option<&str>, devices: Option<i64>| {
        let devices = match mode {
            Some("ExactCount") => devices.unwrap_or(0),
            Some("All") => MOST_DEVICES,
            _ => 0,
        };
        let devices = Quantity::from_int(devices, Format::DecimalSI);
        raise(&mut out, &Usage::from([(format!("{class}{PER_DEVICE_CLASS}"), devices)]));
    };
    match (request.first_available.as_deref(), &request.exactly) {
        (Some(alternatives @ [_, ..]), _) => {
            for a in alternatives {
                count(&a.device_class_name, a.allocation_mode.as_deref(), a.count);
            }
        }
        (_, Some(exactly)) => {
            count(&exactly.device_class_name, exactly.allocation_mode.as_deref(), exactly.count);
        }
        _ => {}
    }
    out
}

/// The devices of a claim, also as the resources that their classes stand for, less what the usage of a pod has of them.
/// `resource_of` is the extended resource of a class.
pub fn extend(used: &mut Usage, resource_of: impl Fn(&str) -> Option<String>, of_pod: &Usage) {
    let classes: Vec<(String, Quantity)> = used
        .iter()
        .filter_map(|(name, devices)| Some((name.strip_suffix(PER_DEVICE_CLASS)?.to_owned(), devices.clone())))
        .collect();
    for (class, devices) in classes.into_iter().filter(|(class, _)| !class.is_empty()) {
        let explicit = resource_of(&class).map(|resource| format!("requests.{resource}"));
        for name in [Some(format!("{IMPLICIT}{class}")), explicit].into_iter().flatten() {
            let mut rest = devices.clone();
            if let Some(counted) = of_pod.get(&name) {
                rest.sub(counted);
            }
            if rest > Quantity::default() {
                used.insert(name, rest);
            }
        }
    }
}

/// The claims of a namespace that were made for the extended resources of pods: of each pod's, by its uid, the first.
#[derive(Debug, Default)]
pub struct MadeForPods<'a>(HashMap<&'a str, &'a ResourceClaim>);

impl<'a> MadeForPods<'a> {
    /// Of all claims of a namespace.
    #[must_use]
    pub fn among(all: &'a [Arc<ResourceClaim>]) -> Self {
        let order = |c: &'a ResourceClaim| (object::created(&c.metadata), object::name(&c.metadata));
        let mut first: HashMap<&str, &ResourceClaim> = HashMap::default();
        for claim in all {
            let Some(pod) = owner(claim) else { continue };
            let known = first.entry(&pod.uid).or_insert(claim);
            if order(claim) < order(known) {
                *known = claim;
            }
        }
        Self(first)
    }

    /// Reports whether a claim is the one that was made for a pod: the one it names, and while it names none, the first
    /// of those that were made for it.
    #[must_use]
    pub fn is(&self, claim: &ResourceClaim, pod: &Pod) -> bool {
        let uid = object::uid(&pod.metadata);
        if let Some(named) = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref()) {
            let of_it = owner(claim).is_some_and(|pod| pod.uid == uid);
            return of_it && *named.resource_claim_name == *object::name(&claim.metadata);
        }
        self.0.get(uid).is_some_and(|first| object::name(&first.metadata) == object::name(&claim.metadata))
    }
}

/// The pod that owns a claim which was made for extended resources.
#[must_use]
pub fn owner(claim: &ResourceClaim) -> Option<&OwnerReference> {
    object::annotation(&claim.metadata, EXTENDED).filter(|made| *made == "true")?;
    object::controller_of(&claim.metadata).filter(|owner| owner.kind == "Pod" && owner.api_version == "v1")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(usage: &Usage) -> Value {
        usage.iter().map(|(name, amount)| (name.clone(), json!(amount.to_string()))).collect()
    }

    #[test]
    fn claims_of_devices() {
        let claim = |requests: Value| -> ResourceClaim {
            serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}))
                .expect("claim")
        };
        let of = |class: &str, mode: &str, n: i64| json!({"name": "r", "deviceClassName": class, "allocationMode": mode, "count": n});
        let exactly = |v: Value| json!({"name": "r", "exactly": v});
        for (requests, want) in [
            (json!([exactly(of("gpu", "ExactCount", 2)), exactly(of("gpu", "ExactCount", 1))]), json!({"gpu": "3"})),
            (json!([exactly(of("gpu", "All", 0)), exactly(of("nic", "New", 7))]), json!({"gpu": "32", "nic": "0"})),
            (
                json!([{"name": "r", "firstAvailable": [of("gpu", "ExactCount", 2), of("gpu", "ExactCount", 4), of("nic", "ExactCount", 1)]}]),
                json!({"gpu": "4", "nic": "1"}),
            ),
        ] {
            let mut used = shown(&super::claim(&claim(requests)));
            let map = used.as_object_mut().expect("map");
            assert_eq!(map.remove("count/resourceclaims.resource.k8s.io"), Some(json!("1")));
            let named: Value =
                map.iter().map(|(k, v)| (k.trim_end_matches(PER_DEVICE_CLASS).to_owned(), v.clone())).collect();
            assert_eq!(named, want);
        }
    }

    #[test]
    fn classes_are_resources() {
        let count = |n: i64| Quantity::from_int(n, Format::DecimalSI);
        let gpu = format!("gpu{PER_DEVICE_CLASS}");
        for (of_pod, want) in [
            (json!({}), json!({"gpu": "3", "implicit": "3", "explicit": "3"})),
            (json!({"requests.example.com/gpu": 3}), json!({"gpu": "3", "implicit": "3"})),
            (json!({"requests.example.com/gpu": 1}), json!({"gpu": "3", "implicit": "3", "explicit": "2"})),
            (json!({"requests.deviceclass.resource.kubernetes.io/gpu": 9}), json!({"gpu": "3", "explicit": "3"})),
        ] {
            let of_pod: Usage = of_pod
                .as_object()
                .expect("a map")
                .iter()
                .map(|(name, n)| (name.clone(), count(n.as_i64().expect("a number"))))
                .collect();
            let mut used = Usage::from([(gpu.clone(), count(3))]);
            extend(&mut used, |class| (class == "gpu").then(|| "example.com/gpu".to_owned()), &of_pod);
            let short = [
                (gpu.as_str(), "gpu"),
                ("requests.deviceclass.resource.kubernetes.io/gpu", "implicit"),
                ("requests.example.com/gpu", "explicit"),
            ];
            let used: Value = short
                .iter()
                .filter_map(|(name, short)| Some(((*short).to_owned(), json!(used.get(*name)?.to_string()))))
                .collect();
            assert_eq!(used, want, "{of_pod:?}");
        }
    }

    #[test]
    fn whom_a_claim_was_made_for() {
        let made = |name: &str, at: &str, mark: &str, owner: &str| -> Arc<ResourceClaim> {
            let owner = json!({"apiVersion": "v1", "kind": owner, "name": "p", "uid": "u", "controller": true});
            let metadata = json!({"name": name, "creationTimestamp": at, "annotations": {EXTENDED: mark},
                "ownerReferences": [owner]});
            Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": {}})).expect("claim"))
        };
        let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"];
        let first = made("b", early, "true", "Pod");
        let pod = |uid: &str, names: Option<&str>| -> Pod {
            let named = names.map(|name| json!({"resourceClaimName": name, "requestMappings": []}));
            let status = json!({"extendedResourceClaimStatus": named});
            serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "status": status})).expect("pod")
        };
        for (claim, uid, names, want) in [
            (Arc::clone(&first), "u", None, true),
            (Arc::clone(&first), "later", None, false),
            (made("a", late, "true", "Pod"), "u", None, false),
            (made("a", late, "true", "Pod"), "u", Some("a"), true),
            (Arc::clone(&first), "u", Some("a"), false),
            (made("a", late, "", "Pod"), "u", Some("a"), false),
            (made("c", early, "true", "Pod"), "u", None, false),
            (made("a", early, "true", "Pod"), "u", None, true),
            (made("a", early, "", "Pod"), "u", None, false),
            (made("a", early, "true", "Job"), "u", None, false),
        ] {
            let all = [Arc::clone(&first), Arc::clone(&claim)];
            assert_eq!(MadeForPods::among(&all).is(&claim, &pod(uid, names)), want, "{claim:?} {names:?}");
        }
    }
}
