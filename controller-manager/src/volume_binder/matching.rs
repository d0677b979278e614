//! Matching of volumes and claims, and the choice of the best. Answers for upstream's `FindMatchingVolume`,
//! `findBestMatchForClaim`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto::quantity::Quantity;
use shared::types::{self, volume_class};

use crate::engine::object;

/// The storage class a claim asks for; the empty string asks for none.
#[must_use]
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    types::claim_class(claim).unwrap_or_default()
}

/// Returns the capacity of a volume.
#[must_use]
pub fn capacity(volume: &PersistentVolume) -> Quantity {
    let stored = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage"));
    stored.and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or_default()
}

fn wanted(claim: &PersistentVolumeClaim) -> Quantity {
    let stored = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
    stored.and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or_default()
}

/// Reports whether the volume's claim reference is this claim (by name, and by uid once it has one).
#[must_use]
pub fn bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(r) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return false };
    let uid = r.uid.as_deref().unwrap_or_default();
    r.name == claim.metadata.name
        && r.namespace == claim.metadata.namespace
        && (uid.is_empty() || uid == object::uid(&claim.metadata))
}

/// Returns why a volume named by a claim cannot serve it; `attributes`: there are classes of attributes.
#[must_use]
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim, attributes: bool) -> Option<String> {
    if object::deleting(&volume.metadata) {
        return Some(format!("the volume is marked for deletion {:?}", object::name(&volume.metadata)));
    }
    let why = if capacity(volume) < wanted(claim) {
        "requested PV is too small"
    } else if volume_class(volume) != claim_class(claim) {
        "storageClassName does not match"
    } else if !attributes && (has_attributes(volume) || asks_for_attributes(claim)) {
        "volumeAttributesClassName is not supported when the feature-gate VolumeAttributesClass is disabled"
    } else if !same_attributes(volume, claim) {
        "volumeAttributesClassName does not match"
    } else if !same_mode(volume, claim) {
        "incompatible volumeMode"
    } else if !has_modes(volume, claim) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(why.to_owned())
}

fn attributes_of(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()).unwrap_or_default()
}

fn attributes_for(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()).unwrap_or_default()
}

fn has_attributes(volume: &PersistentVolume) -> bool {
    !attributes_of(volume).is_empty()
}

/// Reports whether a claim asks for a class of attributes.
#[must_use]
pub fn asks_for_attributes(claim: &PersistentVolumeClaim) -> bool {
    !attributes_for(claim).is_empty()
}

fn same_attributes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    attributes_of(volume) == attributes_for(claim)
}

/// Reports whether both are file systems, or both are not.
#[must_use]
pub fn same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let of_volume = volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    let of_claim = claim.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    of_volume.unwrap_or("Filesystem") == of_claim.unwrap_or("Filesystem")
}

fn modes(volume: &PersistentVolume) -> BTreeSet<&str> {
    volume.spec.iter().flat_map(|s| s.access_modes.iter().flatten()).map(String::as_str).collect()
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let has = modes(volume);
    claim.spec.iter().flat_map(|s| s.access_modes.iter().flatten()).all(|mode| has.contains(mode.as_str()))
}

/// The volume for a claim: of those with the fewest access modes that will do one that is reserved for it, or the smallest
/// free one. When somebody else chooses (`delayed`), only what is reserved counts.
#[must_use]
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
    delayed: bool,
) -> Option<&'a Arc<PersistentVolume>> {
    let suits = |v: &&Arc<PersistentVolume>| {
        !object::deleting(&v.metadata)
            && capacity(v) >= wanted(claim)
            && has_modes(v, claim)
            && same_mode(v, claim)
            && same_attributes(v, claim)
    };
    let mut by_modes: BTreeMap<(usize, BTreeSet<&str>), Vec<&Arc<PersistentVolume>>> = BTreeMap::new();
    for volume in volumes.iter().filter(suits) {
        let modes = modes(volume);
        by_modes.entry((modes.len(), modes)).or_default().push(volume);
    }
    by_modes.into_values().find_map(|alike| {
        let reserved = alike.iter().find(|v| bound_to(v, claim)).copied();
        let free =
            || alike.iter().filter(|v| is_free(v, claim)).min_by_key(|v| (capacity(v), &v.metadata.name)).copied();
        reserved.or_else(|| if delayed { None } else { free() })
    })
}

fn is_free(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    volume.spec.as_ref().is_none_or(|s| s.claim_ref.is_none())
        && volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Available")
        && volume_class(volume) == claim_class(claim)
        && selector.is_none_or(|s| object::matches_selector(s, volume.metadata.labels.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(name: &str, size: &str, spec: Value) -> Arc<PersistentVolume> {
        let mut v = json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Available"}});
        if let (Some(s), Value::Object(e)) = (v["spec"].as_object_mut(), spec) {
            s.extend(e);
        }
        Arc::new(serde_json::from_value(v).expect("volume"))
    }

    #[test]
    fn the_smallest_that_suits() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
            .expect("claim");
        let reserve = |uid: &str| json!({"claimRef": {"name": "c", "namespace": "ns", "uid": uid}});
        let pick = |volumes: &[Arc<PersistentVolume>]| {
            best(&claim, volumes, false).map(|v| object::name(&v.metadata).to_owned())
        };
        let large = || volume("large", "10Gi", json!({}));
        for (name, volumes, want) in [
            ("smallest", vec![large(), volume("fit", "1Gi", json!({}))], Some("fit")),
            ("too small", vec![volume("tiny", "1Mi", json!({}))], None),
            ("another class", vec![volume("fast", "1Gi", json!({"storageClassName": "fast"}))], None),
            ("another mode", vec![volume("block", "1Gi", json!({"volumeMode": "Block"}))], None),
            (
                "reserved for us",
                vec![volume("fit", "1Gi", json!({})), volume("mine", "10Gi", reserve(""))],
                Some("mine"),
            ),
            ("reserved for one that was", vec![volume("other", "1Gi", reserve("old"))], None),
            (
                "fewer modes come first",
                vec![
                    volume("small", "1Gi", json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]})),
                    volume("plain", "5Gi", json!({})),
                ],
                Some("plain"),
            ),
            (
                "another attributes class",
                vec![volume("gold", "1Gi", json!({"volumeAttributesClassName": "gold"}))],
                None,
            ),
            ("not enough modes", vec![volume("ro", "1Gi", json!({"accessModes": ["ReadOnlyMany"]}))], None),
        ] {
            assert_eq!(pick(&volumes).as_deref(), want, "{name}");
        }
        let mine =
            volume("mine", "1Gi", json!({"claimRef": {"name": "c", "namespace": "ns"}, "storageClassName": "fast"}));
        let volumes = [large(), mine];
        let delayed = best(&claim, &volumes, true).map(|v| object::name(&v.metadata));
        assert_eq!(delayed, Some("mine"), "whatever its class");
        assert!(best(&claim, &[large()], true).is_none(), "somebody else chooses");
    }

    #[test]
    fn why_a_volume_does_not_suit() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "volumeAttributesClassName": "gold", "resources": {"requests": {"storage": "2Gi"}}}}))
            .expect("claim");
        let fast = |more: Value| {
            let mut v = json!({"storageClassName": "fast", "volumeAttributesClassName": "gold"});
            v.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
            v
        };
        for (size, spec, why) in [
            ("1Gi", json!({}), Some("requested PV is too small")),
            ("2Gi", json!({"volumeMode": "Block"}), Some("storageClassName does not match")),
            ("2Gi", json!({"storageClassName": "fast"}), Some("volumeAttributesClassName does not match")),
            ("2Gi", fast(json!({"volumeMode": "Block"})), Some("incompatible volumeMode")),
            ("2Gi", fast(json!({"accessModes": ["ReadOnlyMany"]})), Some("incompatible accessMode")),
            ("2Gi", fast(json!({})), None),
        ] {
            assert_eq!(mismatch(&volume("v", size, spec), &claim, true).as_deref(), why);
        }
        let off = "volumeAttributesClassName is not supported when the feature-gate VolumeAttributesClass is disabled";
        assert_eq!(mismatch(&volume("v", "2Gi", fast(json!({}))), &claim, false).as_deref(), Some(off));
        let mut going = PersistentVolume::clone(&volume("v", "2Gi", fast(json!({}))));
        going.metadata.deletion_timestamp = Some(object::seconds(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(mismatch(&going, &claim, true).as_deref(), Some("the volume is marked for deletion \"v\""));
    }
}
