//! VolumeBinding: pods go where their volumes are, or where volumes can be had. Answers for upstream's
//! `pkg/scheduler/framework/plugins/volumebinding` (`FindPodVolumes`).
//!
//! Claims that bind at once must be bound already. Claims that wait for their first consumer get a volume that is there,
//! or have one made, on the node chosen; both are set down at Reserve and carried out at PreBind.

mod capacity;
mod matching;
mod score;

pub(crate) use matching::Reach;
use matching::TranslationError;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity};
use serde::Deserialize;
use serde_json::Value;

use super::node_resources::strategy::ShapePoint;
use super::read_args;
use super::{pod_owns, uses_claim};
use crate::framework::api::{Api, ApiError, AwaitedClaim};
use crate::framework::ledger::Choice;
use crate::framework::plugin::{Context, Filter, Plugin, PreBind, PreFilter, PreFiltered, Requeue, Reserve};
use crate::framework::{ClusterEvent, Code, CycleState, ExternalChange, Features, Hint, Ledger, ProfileError, Status};
use crate::metrics;
use crate::model::{NodeBase, NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "VolumeBinding";

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    bind_timeout_seconds: u64,
    shape: Option<Vec<ShapePoint>>,
}

impl Default for Args {
    fn default() -> Self {
        Self { bind_timeout_seconds: 600, shape: None }
    }
}

struct VolumeBinding {
    timeout: Duration,
    /// Of scores by capacity, where their gate is on.
    shape: Option<Vec<ShapePoint>>,
    /// Claims and volumes may have classes of attributes (VolumeAttributesClass).
    attributes: bool,
}

/// Builds the plugin.
///
/// # Errors
/// Unreadable arguments.
pub fn build(args: &Value, features: Features) -> Result<Plugin, ProfileError> {
    let args: Args = read_args(NAME, args)?;
    let shape = features.capacity_scores.then(|| args.shape.unwrap_or_else(score::usual_shape));
    let timeout = Duration::from_secs(args.bind_timeout_seconds);
    let it = Arc::new(VolumeBinding { timeout, shape, attributes: features.volume_attributes });
    let plugin = Plugin::new(NAME).pre_filter(&it).filter(&it).reserve(&it).pre_bind(&it).requeue(&it);
    // Upstream's plugin scores nothing without the gate.
    Ok(if it.shape.is_some() { plugin.pre_score(&it).score(&it) } else { plugin })
}

#[derive(Clone, Debug, Default)]
struct BindingState {
    /// Of the volumes that are bound already.
    bound: Vec<Reach>,
    /// A bound claim's volume is gone.
    missing: bool,
    delayed: Vec<Arc<PersistentVolumeClaim>>,
    /// Reason for which no volume can be looked for.
    unsupported: Option<String>,
}

/// Volumes that delayed claims get on one node.
#[derive(Clone, Debug, Default)]
struct Plan {
    take: Vec<(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)>,
    make: Vec<Arc<PersistentVolumeClaim>>,
    /// Classes of claims for which volumes are made, and what can still be made of them.
    rooms: Vec<Room>,
    /// A driver cannot make all of that.
    short: bool,
}

/// Place where the volume of a claim is made.
#[derive(Clone, Debug)]
struct Room {
    claim: Arc<PersistentVolumeClaim>,
    place: Arc<CSIStorageCapacity>,
}

/// A plan that is being carried out, and the books that hold its volumes.
#[derive(Clone, Debug)]
struct Reserved {
    plan: Plan,
    ledger: Arc<Ledger>,
    released: Arc<AtomicBool>,
}

fn key(claim: &PersistentVolumeClaim) -> String {
    format!(
        "{}/{}",
        claim.metadata.namespace.as_deref().unwrap_or_default(),
        claim.metadata.name.as_deref().unwrap_or_default()
    )
}

pub(crate) fn class_of(claim: &PersistentVolumeClaim) -> &str {
    shared::types::claim_class(claim).unwrap_or_default()
}

fn annotation<'a>(claim: &'a PersistentVolumeClaim, name: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        let mut notes = BindingState::default();
        let mut any = false;
        let mut names = HashSet::new();
        let mut immediate = false;
        for (name, ephemeral) in pod.claims() {
            any = true;
            let claim = cx.listers.claim(&pod.namespace, name).ok_or_else(|| {
                Status::unresolvable(if ephemeral {
                    format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                })
            })?;
            if ephemeral && !pod_owns(pod, &claim) {
                let text = format!("PVC {} was not created for pod {pod} (pod is not owner)", key(&claim));
                return Err(Status::unresolvable(text));
            }
            let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
            if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
                let text = format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {:?}",
                    volume.unwrap_or_default()
                );
                return Err(Status::unresolvable(text));
            }
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(Status::unresolvable(format!("persistentvolumeclaim {name:?} is being deleted")));
            }
            if !names.insert(name) {
                continue;
            }
            match volume {
                Some(volume) if annotation(&claim, BIND_COMPLETED).is_some() => match cx.listers.volume(volume) {
                    Some(volume) => notes.bound.push(Reach::of(&volume)),
                    None => notes.missing = true,
                },
                Some(_) => immediate = true,
                None => {
                    let class = cx.listers.storage_class(class_of(&claim));
                    let waits = class.is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
                    if waits { notes.delayed.push(claim) } else { immediate = true }
                }
            }
        }
        if !any {
            return Err(Status::SKIP);
        }
        if immediate {
            return Err(Status::unresolvable("pod has unbound immediate PersistentVolumeClaims"));
        }
        notes.unsupported = self.unsupported(&notes.delayed);
        // Those that want least choose first, so that large volumes are left for others.
        notes.delayed.sort_by_cached_key(|claim| capacity::requested(claim));
        state.put(notes);
        Ok(PreFiltered::All)
    }
}

impl VolumeBinding {
    /// Returns upstream's words for a claim with a class of attributes where there are none.
    fn unsupported(&self, delayed: &[Arc<PersistentVolumeClaim>]) -> Option<String> {
        let classed = |claim: &&Arc<PersistentVolumeClaim>| {
            let class = claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref());
            class.is_some_and(|class| !class.is_empty()) && annotation(claim, SELECTED_NODE).is_none()
        };
        let claim = delayed.iter().filter(|_| !self.attributes).find(classed)?;
        Some(format!(
            "unsupported volumeAttributesClassName is set on claim {} when the feature-gate VolumeAttributesClass is disabled",
            key(claim)
        ))
    }
}

/// Plans the volumes of the delayed claims on a node; `None` when they cannot all have one.
fn plan(cx: Context<'_>, notes: &BindingState, node: &NodeBase) -> Option<Plan> {
    let mut plan = Plan::default();
    if notes.delayed.is_empty() {
        return Some(plan);
    }
    let ledger = cx.listers.ledger();
    for claim in &notes.delayed {
        // A claim for which a node was chosen before stays with it.
        if annotation(claim, SELECTED_NODE).is_some_and(|n| n != &*node.name) {
            return None;
        }
        match ledger.chosen(&key(claim)) {
            // Another pod with this claim is on its way.
            Some(Choice::Volume(volume)) => {
                let volume = cx.listers.volume(&volume).filter(|volume| matching::reachable(volume, node))?;
                plan.take.push((volume, Arc::clone(claim)));
                continue;
            }
            Some(Choice::Node(chosen)) if chosen != *node.name => return None,
            Some(Choice::Node(_)) => {
                plan.make.push(Arc::clone(claim));
                continue;
            }
            None => {}
        }
        let taken =
            |v: &str| plan.take.iter().any(|(t, _)| t.metadata.name.as_deref() == Some(v)) || ledger.is_set_aside(v);
        let volumes = cx.listers.volumes_of_class(class_of(claim));
        if annotation(claim, SELECTED_NODE).is_none()
            && let Some(volume) = matching::smallest(claim, &volumes, node, taken)
        {
            plan.take.push((volume, Arc::clone(claim)));
            continue;
        }
        let class = cx.listers.storage_class(class_of(claim))?;
        if class.provisioner == NO_PROVISIONER || !matching::topology_allows(&class, node) {
            return None;
        }
        match capacity::place(cx, claim, &class, node) {
            capacity::Place::Untold => {}
            capacity::Place::Told(place) => plan.rooms.push(Room { claim: Arc::clone(claim), place }),
            capacity::Place::Nowhere => plan.short = true,
        }
        plan.make.push(Arc::clone(claim));
    }
    Some(plan)
}

/// Reports whether a node reaches all volumes that are bound already.
fn bound_reachable(cx: Context<'_>, bound: &[Reach], node: &NodeBase) -> Result<bool, TranslationError> {
    for volume in bound {
        if !volume.from(node, || cx.listers.csi_node(&node.name))? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Filter for VolumeBinding {
    fn filter(&self, cx: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(notes) = state.get::<BindingState>() else { return Status::SUCCESS };
        if let Some(why) = &notes.unsupported {
            metrics::volume_stage_failed("predicate");
            return Status::error(why.clone());
        }
        let mut reasons = Vec::new();
        match bound_reachable(cx, &notes.bound, &node.base) {
            Ok(true) => {}
            Ok(false) => reasons.push("node(s) didn't match PersistentVolume's node affinity".into()),
            Err(why) => {
                metrics::volume_stage_failed("predicate");
                return Status::error(why.to_string());
            }
        }
        match plan(cx, notes, &node.base) {
            None => reasons.push("node(s) didn't find available persistent volumes to bind".into()),
            Some(plan) if plan.short => reasons.push("node(s) did not have enough free storage".into()),
            Some(_) => {}
        }
        if notes.missing {
            reasons.push("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)".into());
        }
        if reasons.is_empty() {
            Status::SUCCESS
        } else {
            Status::with_reasons(Code::UnschedulableAndUnresolvable, reasons)
        }
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, cx: Context<'_>, state: &mut CycleState, _: &PodInfo, node: &Arc<NodeInfo>) -> Status {
        let Some(notes) = state.get::<BindingState>() else { return Status::SUCCESS };
        let Some(plan) = plan(cx, notes, &node.base) else {
            return Status::unschedulable("node(s) didn't find available persistent volumes to bind");
        };
        let ledger = Arc::clone(cx.listers.ledger());
        for (volume, claim) in &plan.take {
            ledger.choose(key(claim), Choice::Volume(volume.metadata.name.clone().unwrap_or_default()));
        }
        for claim in &plan.make {
            ledger.choose(key(claim), Choice::Node(node.base.name.to_string()));
        }
        state.put(Reserved { plan, ledger, released: Arc::default() });
        Status::SUCCESS
    }

    fn unreserve(&self, state: &mut CycleState, _: &PodInfo, _: &str) {
        if let Some(reserved) = state.get::<Reserved>() {
            reserved.release();
        }
    }
}

#[async_trait]
impl PreBind for VolumeBinding {
    fn applies(&self, state: &CycleState, _: &PodInfo) -> bool {
        state.get::<Reserved>().is_some_and(|r| !r.plan.take.is_empty() || !r.plan.make.is_empty())
    }

    async fn pre_bind(&self, api: &dyn Api, state: &CycleState, pod: &PodInfo, node: &str) -> Status {
        let Some(reserved) = state.get::<Reserved>() else { return Status::SUCCESS };
        let bound = async {
            reserved.write_choices(api, node).await?;
            api.claims_bound(pod, &reserved.awaited(), node, self.timeout).await
        };
        let bound = bound.await;
        reserved.release();
        match bound {
            Ok(()) => Status::SUCCESS,
            Err(e) => {
                metrics::volume_stage_failed("bind");
                Status::error(format!("binding volumes: {e}"))
            }
        }
    }
}

impl Reserved {
    /// Ends this pod's interest in what was chosen, once.
    fn release(&self) {
        if self.released.swap(true, Ordering::Relaxed) {
            return;
        }
        for claim in self.plan.take.iter().map(|(_, claim)| claim).chain(&self.plan.make) {
            self.ledger.unchoose(&key(claim));
        }
    }

    /// Writes what was chosen, but for what another pod has written already.
    async fn write_choices(&self, api: &dyn Api, node: &str) -> Result<(), ApiError> {
        for (volume, claim) in &self.plan.take {
            if !self.ledger.is_choice_written(&key(claim)) {
                api.update_volume(&claimed(volume, claim)).await?;
                self.ledger.choice_written(&key(claim));
            }
        }
        for claim in &self.plan.make {
            let key = key(claim);
            let mut claim = PersistentVolumeClaim::clone(claim);
            let annotations = claim.metadata.annotations.get_or_insert_default();
            let was = annotations.insert(SELECTED_NODE.to_owned(), node.to_owned());
            if was.as_deref() != Some(node) && !self.ledger.is_choice_written(&key) {
                api.update_claim(&claim).await?;
                self.ledger.choice_written(&key);
            }
        }
        Ok(())
    }

    fn awaited(&self) -> Vec<AwaitedClaim> {
        let name = |claim: &PersistentVolumeClaim| claim.metadata.name.clone().unwrap_or_default();
        let taken = self.plan.take.iter().map(|(volume, claim)| AwaitedClaim {
            name: name(claim),
            volume: Some(volume.metadata.name.clone().unwrap_or_default()),
            since: 0,
        });
        let since = |claim: &PersistentVolumeClaim| {
            let version =
                claim.metadata.resource_version.as_deref().filter(|_| annotation(claim, SELECTED_NODE).is_some());
            version.and_then(|version| version.parse().ok()).unwrap_or(0)
        };
        let made = self.plan.make.iter();
        let made = made.map(|claim| AwaitedClaim { name: name(claim), volume: None, since: since(claim) });
        taken.chain(made).collect()
    }
}

/// The volume, set aside for the claim.
fn claimed(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> PersistentVolume {
    let mut volume = volume.clone();
    if let Some(spec) = &mut volume.spec {
        let by_us = spec.claim_ref.is_none();
        spec.claim_ref = Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            ..shared::types::object_reference(claim)
        });
        if by_us {
            volume
                .metadata
                .annotations
                .get_or_insert_default()
                .insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        }
    }
    volume
}

impl Requeue for VolumeBinding {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::Node { .. } => {
                event.node_if(|old, new| old.labels != new.labels).is_some_and(|_| pod.claims().next().is_some()).into()
            }
            ClusterEvent::Object(change) => helps(pod, change).into(),
            _ => Hint::Skip,
        }
    }
}

/// Reports whether the change of another object may help a pod.
fn helps(pod: &PodInfo, change: &ExternalChange) -> bool {
    match change {
        ExternalChange::PersistentVolumeClaim(d) => d.now().is_some_and(|c| uses_claim(pod, c)),
        ExternalChange::PersistentVolume(d) => d.now().is_some(),
        ExternalChange::StorageClass(d) => match (d.before(), d.now()) {
            (Some(old), Some(new)) => old.allowed_topologies != new.allowed_topologies,
            (_, new) => new.is_some(),
        },
        ExternalChange::CsiNode(d) => match (d.before(), d.now()) {
            (Some(old), Some(new)) => migrated(old) != migrated(new),
            (_, new) => new.is_some(),
        },
        // A driver that no longer publishes its capacity is no longer limited by it.
        ExternalChange::CsiDriver(d) => match (d.before(), d.now()) {
            (Some(old), Some(new)) => capacity::published(old) && !capacity::published(new),
            _ => false,
        },
        ExternalChange::StorageCapacity(d) => match (d.before(), d.now()) {
            (Some(old), Some(new)) => capacity::grew(old, new),
            (_, new) => new.is_some(),
        },
        _ => false,
    }
}

fn migrated(node: &CSINode) -> Option<&String> {
    node.metadata.annotations.as_ref()?.get("storage.alpha.kubernetes.io/migrated-plugins")
}

#[cfg(test)]
mod tests;
