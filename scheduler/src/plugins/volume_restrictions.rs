//! VolumeRestrictions: disks that one node mounts at a time, and claims that one pod uses at a time. Answers for
//! upstream's `pkg/scheduler/framework/plugins/volumerestrictions`.

use std::sync::Arc;

use serde_json::Value;

use super::uses_claim;
use crate::framework::plugin::{Context, Filter, Plugin, PreFilter, PreFiltered, Requeue};
use crate::framework::{ClusterEvent, CycleState, ExternalChange, Hint, ProfileError, Status};
use crate::model::{NodeInfo, PodInfo, VolumeUse};

/// Upstream's name.
pub const NAME: &str = "VolumeRestrictions";

/// Upstream's `ErrReasonReadWriteOncePodConflict`.
const IN_USE: &str =
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

struct VolumeRestrictions;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    let it = Arc::new(VolumeRestrictions);
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).requeue(&it))
}

/// Claims of the pod that only one pod may use, and how many uses of them there are already.
#[derive(Clone, Debug, Default)]
struct ExclusiveClaims {
    exclusive: Vec<String>,
    uses: i64,
}

impl ExclusiveClaims {
    fn uses_by(&self, pod: &PodInfo, other: &PodInfo) -> i64 {
        if pod.namespace != other.namespace {
            return 0;
        }
        i64::try_from(other.claims().filter(|(n, _)| self.exclusive.iter().any(|e| e == n)).count()).unwrap_or(0)
    }
}

fn conflict(a: &PodInfo, b: &PodInfo) -> bool {
    a.volumes.iter().any(|v| b.volumes.iter().any(|w| v.conflicts(w)))
}

impl PreFilter for VolumeRestrictions {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        let mut notes = ExclusiveClaims::default();
        let mut disks = false;
        for volume in &pod.volumes {
            match volume {
                VolumeUse::Disk { .. } => disks = true,
                // An ephemeral volume's claim is the pod's own.
                VolumeUse::Moved { .. } | VolumeUse::Claim { ephemeral: true, .. } => {}
                VolumeUse::Claim { name, .. } => {
                    let Some(claim) = cx.listers.claim(&pod.namespace, name) else {
                        return Err(Status::unresolvable(format!("persistentvolumeclaim {name:?} not found")));
                    };
                    let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_ref());
                    if modes.is_some_and(|m| m.iter().any(|m| m == "ReadWriteOncePod")) {
                        notes.exclusive.push(name.clone());
                    }
                }
            }
        }
        if !disks && notes.exclusive.is_empty() {
            return Err(Status::SKIP);
        }
        let uses = |claim: &String| i64::from(cx.snapshot.claim_uses(&pod.namespace, claim));
        notes.uses = notes.exclusive.iter().map(uses).sum();
        state.put(notes);
        Ok(PreFiltered::All)
    }

    fn add_pod(&self, _: Context<'_>, state: &mut CycleState, pod: &PodInfo, added: &PodInfo, _: &NodeInfo) {
        if let Some(notes) = state.get_mut::<ExclusiveClaims>() {
            notes.uses += notes.uses_by(pod, added);
        }
    }

    fn remove_pod(&self, _: Context<'_>, state: &mut CycleState, pod: &PodInfo, removed: &PodInfo, _: &NodeInfo) {
        if let Some(notes) = state.get_mut::<ExclusiveClaims>() {
            notes.uses -= notes.uses_by(pod, removed);
        }
    }
}

impl Filter for VolumeRestrictions {
    fn filter(&self, _: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if node.pods.iter().any(|p| conflict(pod, p)) {
            return Status::unschedulable("node(s) had no available disk");
        }
        if state.get::<ExclusiveClaims>().is_some_and(|n| n.uses > 0) {
            return Status::unschedulable(IN_USE);
        }
        Status::SUCCESS
    }
}

impl Requeue for VolumeRestrictions {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::AssignedPod { old: Some(old), new: None } => {
                let shared =
                    pod.namespace == old.namespace && pod.claims().any(|(a, _)| old.claims().any(|(b, _)| a == b));
                (shared || conflict(pod, old)).into()
            }
            ClusterEvent::Node { old: None, .. } => Hint::Queue,
            ClusterEvent::Object(ExternalChange::PersistentVolumeClaim(d)) => {
                d.now().is_some_and(|c| uses_claim(pod, c)).into()
            }
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::PodInfo;
    use crate::testing::{check::Check, node, pod};
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn with(name: &str, volume: Value) -> PodInfo {
        pod(name).set("/spec", "volumes", json!([volume])).info()
    }

    #[test]
    fn disks() {
        let gce = |name: &str, disk: &str, ro: bool| {
            with(name, json!({"name": "v", "gcePersistentDisk": {"pdName": disk, "readOnly": ro}}))
        };
        let ebs =
            |name: &str| with(name, json!({"name": "v", "awsElasticBlockStore": {"volumeID": "x", "readOnly": true}}));
        let check = Check::of(super::build, json!(null));
        let no = "node(s) had no available disk";
        for (what, there, pod, want) in [
            ("same disk", gce("a", "d", false), gce("p", "d", false), no),
            ("both read-only", gce("a", "d", true), gce("p", "d", true), ""),
            ("one writes", gce("a", "d", true), gce("p", "d", false), no),
            ("other disk", gce("a", "d", false), gce("p", "e", false), ""),
            ("never shared", ebs("a"), ebs("p"), no),
        ] {
            assert_eq!(check.filter(&pod, &node("n").with(&[there])), want, "{what}");
        }
    }

    #[test]
    fn one_pod_per_claim() {
        let mut check = Check::of(super::build, json!(null));
        let using = |name: &str| with(name, json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}));
        assert_eq!(check.filter(&using("p"), &node("n").with(&[])), "persistentvolumeclaim \"c\" not found");
        let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOncePod"]}});
        check
            .listers
            .claims
            .insert(("default".into(), "c".into()), Arc::new(serde_json::from_value(claim).expect("claim")));
        assert_eq!(check.filter(&using("p"), &node("n").with(&[])), "");
        assert_eq!(check.filter(&using("p"), &node("n").with(&[using("a")])), super::IN_USE);
        let ephemeral = with("p", json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}));
        assert_eq!(check.filter(&ephemeral, &node("n").with(&[])), "", "VolumeBinding waits for its claim");
    }
}
