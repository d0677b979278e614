//! Whether a volume suits a claim, and which suits best.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto::quantity::Quantity;

use crate::engine::object;

/// The old way to name a storage class.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The storage class a claim asks for; the empty string asks for none.
#[must_use]
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    object::annotation(&claim.metadata, CLASS)
        .or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
        .unwrap_or_default()
}

fn volume_class(volume: &PersistentVolume) -> &str {
    object::annotation(&volume.metadata, CLASS)
        .or_else(|| volume.spec.as_ref()?.storage_class_name.as_deref())
        .unwrap_or_default()
}

/// How much a volume holds.
#[must_use]
pub fn capacity(volume: &PersistentVolume) -> Quantity {
    let stored = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage"));
    stored.and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or_default()
}

fn wanted(claim: &PersistentVolumeClaim) -> Quantity {
    let stored = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
    stored.and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or_default()
}

/// Whether the volume's claim reference is this claim (by name, and by uid once it has one).
#[must_use]
pub fn bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(r) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return false };
    let uid = r.uid.as_deref().unwrap_or_default();
    r.name == claim.metadata.name
        && r.namespace == claim.metadata.namespace
        && (uid.is_empty() || uid == object::uid(&claim.metadata))
}

/// Why a volume named by a claim cannot serve it.
#[must_use]
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let (Some(v), Some(c)) = (volume.spec.as_ref(), claim.spec.as_ref()) else { return Some("incomplete") };
    let mode = |m: Option<&String>| m.map_or("Filesystem", String::as_str).to_owned();
    if mode(v.volume_mode.as_ref()) != mode(c.volume_mode.as_ref()) {
        return Some("incompatible volumeMode");
    }
    if capacity(volume) < wanted(claim) {
        return Some("requested PV is too small");
    }
    if volume_class(volume) != claim_class(claim) {
        return Some("storageClassName does not match");
    }
    let has = v.access_modes.as_deref().unwrap_or_default();
    if !c.access_modes.iter().flatten().all(|m| has.contains(m)) {
        return Some("incompatible accessMode");
    }
    None
}

/// The smallest free volume that suits the claim; one reserved for it comes first.
#[must_use]
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
) -> Option<&'a Arc<PersistentVolume>> {
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    let suits = |v: &&Arc<PersistentVolume>| !object::deleting(&v.metadata) && mismatch(v, claim).is_none();
    let reserved = volumes.iter().filter(suits).find(|v| bound_to(v, claim));
    reserved.or_else(|| {
        volumes
            .iter()
            .filter(suits)
            .filter(|v| v.spec.as_ref().is_none_or(|s| s.claim_ref.is_none()))
            .filter(|v| v.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Available"))
            .filter(|v| selector.is_none_or(|s| object::matches_selector(s, v.metadata.labels.as_ref())))
            .min_by(|a, b| capacity(a).cmp(&capacity(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name)))
    })
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
        let pick =
            |volumes: &[Arc<PersistentVolume>]| best(&claim, volumes).map(|v| object::name(&v.metadata).to_owned());
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
            ("not enough modes", vec![volume("ro", "1Gi", json!({"accessModes": ["ReadOnlyMany"]}))], None),
        ] {
            assert_eq!(pick(&volumes).as_deref(), want, "{name}");
        }
    }
}
