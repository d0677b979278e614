//! VolumeZone: volumes labelled with a zone or region are only reached from there. Answers for upstream's
//! `pkg/scheduler/framework/plugins/volumezone`.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::Value;

use super::uses_claim;
use super::volume_binding::class_of;
use crate::framework::plugin::{Context, Filter, Plugin, PreFilter, PreFiltered, Requeue};
use crate::framework::{ClusterEvent, CycleState, ExternalChange, Hint, ProfileError, Status};
use crate::model::{NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "VolumeZone";

/// Labels that count, and what nodes may be labelled with instead.
const KEYS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

struct VolumeZone;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    let it = Arc::new(VolumeZone);
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).requeue(&it))
}

#[derive(Clone, Debug)]
struct Topology {
    keys: (&'static str, &'static str),
    values: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct PodTopologies(Vec<Topology>);

fn topology(volume: &PersistentVolume) -> [Option<&String>; KEYS.len()] {
    KEYS.map(|(key, _)| volume.metadata.labels.as_ref()?.get(key))
}

/// Refuses an unbound claim that does not wait for its first consumer.
fn waits_for_consumer(cx: Context<'_>, claim: &PersistentVolumeClaim) -> Result<(), Status> {
    let name = class_of(claim);
    let refused = |text: String| Err(Status::unresolvable(text));
    if name.is_empty() {
        return refused("PersistentVolumeClaim had no pv name and storageClass name".to_owned());
    }
    let Some(class) = cx.listers.storage_class(name) else {
        return refused(format!("storageclass.storage.k8s.io {name:?} not found"));
    };
    match class.volume_binding_mode.as_deref() {
        Some("WaitForFirstConsumer") => Ok(()),
        Some(_) => refused("PersistentVolume had no name".to_owned()),
        None => refused(format!("VolumeBindingMode not set for StorageClass {name:?}")),
    }
}

impl PreFilter for VolumeZone {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        let mut all = Vec::new();
        for (name, _) in pod.claims() {
            let Some(claim) = cx.listers.claim(&pod.namespace, name) else {
                return Err(Status::unresolvable(format!("persistentvolumeclaim {name:?} not found")));
            };
            let bound = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
            let Some(bound) = bound else {
                waits_for_consumer(cx, &claim)?;
                continue;
            };
            let Some(volume) = cx.listers.volume(bound) else {
                return Err(Status::unresolvable(format!("persistentvolume {bound:?} not found")));
            };
            let labels = volume.metadata.labels.as_ref();
            for keys in KEYS {
                if let Some(zones) = labels.and_then(|l| l.get(keys.0)) {
                    all.push(Topology { keys, values: zones.split("__").map(|z| z.trim().to_owned()).collect() });
                }
            }
        }
        if all.is_empty() {
            return Err(Status::SKIP);
        }
        state.put(PodTopologies(all));
        Ok(PreFiltered::All)
    }
}

impl Filter for VolumeZone {
    fn filter(&self, _: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let labels = &node.base.labels;
        // A node outside any zone or region reaches everything.
        if !KEYS.iter().any(|(k, _)| labels.contains_key(*k)) {
            return Status::SUCCESS;
        }
        for t in state.get::<PodTopologies>().iter().flat_map(|n| &n.0) {
            let here = labels.get(t.keys.0).or_else(|| labels.get(t.keys.1));
            if !here.is_some_and(|v| t.values.contains(v)) {
                return Status::unresolvable("node(s) had no available volume zone");
            }
        }
        Status::SUCCESS
    }
}

impl Requeue for VolumeZone {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::Node { .. } => event.node_if(|old, new| old.labels != new.labels).is_some().into(),
            ClusterEvent::Object(ExternalChange::PersistentVolumeClaim(d)) => {
                d.now().is_some_and(|c| uses_claim(pod, c)).into()
            }
            ClusterEvent::Object(ExternalChange::PersistentVolume(d)) => match (d.before(), d.now()) {
                (Some(old), Some(new)) => (topology(old) != topology(new)).into(),
                (_, new) => new.is_some().into(),
            },
            ClusterEvent::Object(ExternalChange::StorageClass(d)) => {
                let waits = |c: &StorageClass| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
                (d.before().is_none() && d.now().is_some_and(waits)).into()
            }
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check::Check, node, pod};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn zones() {
        let mut check = Check::of(super::build, json!(null));
        let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}});
        let volume = json!({"metadata": {"name": "v", "labels": {"topology.kubernetes.io/zone": "a__b"}}});
        check
            .listers
            .claims
            .insert(("default".into(), "c".into()), Arc::new(serde_json::from_value(claim).expect("claim")));
        check.listers.volumes.insert("v".into(), Arc::new(serde_json::from_value(volume).expect("volume")));
        let p = pod("p")
            .set("/spec", "volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
            .info();
        let nodes = [
            node("a").label("topology.kubernetes.io/zone", "a").with(&[]),
            node("old-b").label("failure-domain.beta.kubernetes.io/zone", "b").with(&[]),
            node("b")
                .label("failure-domain.beta.kubernetes.io/zone", "z")
                .label("topology.kubernetes.io/zone", "b")
                .with(&[]),
            node("c").label("topology.kubernetes.io/zone", "c").with(&[]),
            node("nowhere").with(&[]),
        ];
        assert_eq!(check.fits(&p, &nodes), ["a", "b", "nowhere"]);
        assert_eq!(check.statuses(&p, &nodes)[3].to_string(), "node(s) had no available volume zone");
        check.listers.volumes.clear();
        assert_eq!(check.statuses(&p, &nodes)[0].to_string(), "persistentvolume \"v\" not found");
    }
}
