//! Growth of volumes on the node, after the controller's part: how much, by whom, and what the claim says of it. Deciding is pure;
//! [`Grower`] keeps what this process knows of sizes, calls, and tells claim and pod. Answers for upstream's `NodeExpander`.

use crate::events::{EventSink, EventType};
use crate::objects::{ObjectError, ObjectSource};
use crate::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use parking_lot::Mutex;
use proto::quantity::Quantity;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

const STORAGE: &str = "storage";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const NODE_ERROR: &str = "NodeResizeError";
/// Conditions of a claim whose volume grows.
const CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", NODE_ERROR];

/// A volume that may have to grow.
#[derive(Clone, Copy)]
pub(crate) struct GrowthRequest<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) claim: &'a PersistentVolumeClaim,
    /// Name of the persistent volume.
    pub(crate) volume: &'a str,
    /// Name of the volume in the node's status.
    pub(crate) unique: &'a str,
    /// Size of the persistent volume.
    pub(crate) size: &'a str,
    pub(crate) is_read_only: bool,
}

/// Sizes of a volume in bytes, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) old: i64,
    pub(crate) new: i64,
}

/// A failure of a plugin to grow a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct GrowthFailure {
    pub(crate) message: String,
    /// The plugin has given up; else it may have done the work, or may still do it.
    pub(crate) is_final: bool,
    /// Asking again for the same size is pointless.
    pub(crate) is_infeasible: bool,
    /// The volume cannot grow while pods have it.
    pub(crate) is_in_use: bool,
    /// The plugin grows nothing on nodes.
    pub(crate) is_unsupported: bool,
}

/// A claim that cannot be told about its volume.
#[derive(Debug, thiserror::Error)]
#[error("patchPVCStatus failed to patch PVC {claim:?}: {cause}")]
pub struct ClaimStatusError {
    claim: String,
    #[source]
    cause: ObjectError,
}

/// Reasons why a volume has not grown.
#[derive(Debug, thiserror::Error)]
pub enum GrowthError {
    /// The plugin failed.
    #[error(transparent)]
    Plugin(#[from] GrowthFailure),
    /// The claim cannot be told that its volume is about to grow.
    #[error(transparent)]
    Begin(#[from] ClaimStatusError),
    /// The claim cannot be told that its volume has grown.
    #[error("mountVolume.NodeExpandVolume update pvc status failed: {0}")]
    Finish(ClaimStatusError),
}

/// Facts about a volume on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct VolumeGrowth {
    /// Size in bytes that the volume is known to have.
    size: i64,
    /// Growing has failed for good at least once.
    has_failed: bool,
    /// Growing is not tried again as long as pods have the volume.
    is_in_use: bool,
    /// Pods were told that a volume is read-only.
    is_told: bool,
    /// Uids of the pods that have it.
    pods: HashSet<String>,
}

/// Parts of the claim in growth.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Party {
    /// The resizer writes down how far it is, and so does the kubelet. `is_stale`: the claim asks for another size by now.
    Recovering { is_stale: bool },
    /// The claim has the size already: another node has grown the volume.
    Done,
    /// A resizer of old writes nothing down.
    Legacy,
}

/// Step of a volume's growth.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GrowthStep {
    Nothing,
    /// The volume would have to grow and cannot be written to.
    ReadOnly,
    /// The volume grows to a size, given as the API has it and in bytes.
    Grow(String, i64, Party),
}

fn bytes(size: &str) -> Option<i64> {
    size.parse::<Quantity>().ok().map(|size| size.value())
}

/// Size of the claim, as its status has it.
fn had(claim: &PersistentVolumeClaim) -> Option<i64> {
    bytes(&claim.status.as_ref()?.capacity.as_ref()?.get(STORAGE)?.0)
}

fn state(claim: &PersistentVolumeClaim) -> Option<&str> {
    let states = claim.status.as_ref()?.allocated_resource_statuses.as_ref()?;
    states.get(STORAGE).map(String::as_str)
}

/// Decides whether a volume has to grow: upstream's `nodeExpandVolume`, `checkForRecoveryFromExpansion` and `runPreCheck`.
fn step(claim: &PersistentVolumeClaim, size: &str, is_read_only: bool, known: &VolumeGrowth) -> GrowthStep {
    let (Some(had), Some(wanted)) = (had(claim), bytes(size)) else { return GrowthStep::Nothing };
    if wanted <= known.size || known.is_in_use {
        return GrowthStep::Nothing;
    }
    if is_read_only {
        return if known.is_told { GrowthStep::Nothing } else { GrowthStep::ReadOnly };
    }
    let allocated = claim.status.as_ref().and_then(|status| status.allocated_resources.as_ref());
    let state = state(claim);
    let (None, None) = (allocated, state) else {
        let text = allocated.and_then(|sizes| sizes.get(STORAGE)).map(|size| size.0.clone()).unwrap_or_default();
        let Some(new) = bytes(&text) else { return GrowthStep::Nothing };
        return match state {
            None if had >= new && new > known.size => GrowthStep::Grow(text, new, Party::Done),
            Some(PENDING | IN_PROGRESS) => {
                let asked = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
                let asked = asked.and_then(|sizes| bytes(&sizes.get(STORAGE)?.0));
                let is_stale = asked != Some(new) && known.has_failed;
                GrowthStep::Grow(text, new, Party::Recovering { is_stale })
            }
            _ => GrowthStep::Nothing,
        };
    };
    GrowthStep::Grow(size.to_owned(), wanted, if had >= wanted { Party::Done } else { Party::Legacy })
}

fn patch(claim: &PersistentVolumeClaim, status: Value) -> Value {
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status})
}

/// The patch of a claim whose volume is about to grow. Upstream's `MarkNodeExpansionInProgress`.
fn begun(claim: &PersistentVolumeClaim) -> Value {
    patch(claim, json!({"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}}))
}

/// The patch of a claim whose volume has not grown, and may never: upstream's `MarkNodeExpansionFailedCondition` and
/// `MarkNodeExpansionInfeasible`, which do not mind a claim that has changed.
fn failed(claim: &PersistentVolumeClaim, is_infeasible: bool, error: &str, now: Timestamp) -> Value {
    let own = json!({"type": NODE_ERROR, "status": "True", "message": format!("failed to expand pvc with {error}"),
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let others = conditions.filter(|condition| condition.type_ != NODE_ERROR).map(|condition| json!(condition));
    let mut status = json!({"conditions": others.chain([own]).collect::<Vec<Value>>()});
    if is_infeasible {
        status["allocatedResourceStatuses"] = json!({STORAGE: INFEASIBLE});
    }
    json!({"status": status})
}

/// The patch of a claim whose volume has grown. Upstream's `MarkFSResizeFinished`.
fn finished(claim: &PersistentVolumeClaim, size: &str) -> Value {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let left: Vec<_> = conditions.filter(|condition| !CONDITIONS.contains(&condition.type_.as_str())).collect();
    let conditions = if left.is_empty() { Value::Null } else { json!(left) };
    let states: BTreeMap<&str, Value> = [(STORAGE, Value::Null)].into();
    let mut status = json!({"capacity": {STORAGE: size}, "conditions": conditions});
    if state(claim).is_some() {
        status["allocatedResourceStatuses"] = json!(states);
    }
    patch(claim, status)
}

/// Grows volumes of one node.
pub(crate) struct Grower {
    objects: Arc<dyn ObjectSource>,
    events: Arc<dyn EventSink>,
    /// By the volumes' names in the node's status.
    known: Mutex<HashMap<String, VolumeGrowth>>,
}

impl Grower {
    pub(crate) fn new(objects: Arc<dyn ObjectSource>, events: Arc<dyn EventSink>) -> Self {
        Self { objects, events, known: Mutex::default() }
    }

    /// Reports about the pod.
    pub(crate) fn warn(&self, pod: &Pod, reason: &str, message: &str) {
        self.events.pod(pod, "", EventType::Warning, reason, message);
    }

    /// Reports about pod and claim.
    fn report(&self, request: &GrowthRequest<'_>, kind: EventType, reason: &str, message: &str) {
        self.events.pod(request.pod, "", kind, reason, message);
        self.events.claim(request.claim, kind, reason, message);
    }

    fn know(&self, request: &GrowthRequest<'_>) -> VolumeGrowth {
        let mut all = self.known.lock();
        let known = all.entry(request.unique.to_owned()).or_insert_with(|| VolumeGrowth {
            // As far as anybody has written down.
            size: had(request.claim).unwrap_or_default(),
            ..VolumeGrowth::default()
        });
        known.pods.insert(pods::uid(request.pod).to_owned());
        known.clone()
    }

    fn note(&self, unique: &str, change: impl FnOnce(&mut VolumeGrowth)) {
        if let Some(known) = self.known.lock().get_mut(unique) {
            change(known);
        }
    }

    /// Forgets the sizes of volumes that no pod but this one has.
    pub(crate) fn forget(&self, uid: &str) {
        self.known.lock().retain(|_, known| {
            known.pods.remove(uid);
            !known.pods.is_empty()
        });
    }

    /// Grows a volume that a pod has, where that is wanted, by a plugin's `call`, and tells the claim.
    ///
    /// # Errors
    /// The plugin failed, or the claim could not be told. To be tried again.
    pub(crate) async fn grow(
        &self,
        request: GrowthRequest<'_>,
        call: impl AsyncFnOnce(Sizes) -> Result<(), GrowthFailure>,
    ) -> Result<(), GrowthError> {
        let known = self.know(&request);
        let (size, new, party) = match step(request.claim, request.size, request.is_read_only, &known) {
            GrowthStep::Nothing => return Ok(()),
            GrowthStep::ReadOnly => {
                let text = format!(
                    "MountVolume.NodeExpandVolume failed for volume {:?} requested read-only file system",
                    request.volume
                );
                self.report(&request, EventType::Warning, "FileSystemResizeFailed", &text);
                self.note(request.unique, |known| known.is_told = true);
                return Ok(());
            }
            GrowthStep::Grow(size, new, party) => (size, new, party),
        };
        let mut claim = Arc::new(request.claim.clone());
        if matches!(party, Party::Recovering { .. }) {
            claim = self.tell(&claim, begun(&claim)).await?;
        }
        if let Err(failure) = call(Sizes { old: known.size, new }).await {
            return self.has_failed(&request, &claim, &party, failure).await;
        }
        let node = request.pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let text = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} {node}", request.volume);
        self.report(&request, EventType::Normal, "FileSystemResizeSuccessful", &text);
        if party != Party::Done {
            let told = self.tell(&claim, finished(&claim, &size)).await;
            told.map_err(GrowthError::Finish)?;
        }
        self.note(request.unique, |known| known.size = new);
        Ok(())
    }

    async fn has_failed(
        &self,
        request: &GrowthRequest<'_>,
        claim: &PersistentVolumeClaim,
        party: &Party,
        failure: GrowthFailure,
    ) -> Result<(), GrowthError> {
        if *party == Party::Legacy && failure.is_unsupported {
            let size = bytes(request.size).unwrap_or_default();
            self.note(request.unique, |known| known.size = size);
            return Ok(());
        }
        if let (Party::Recovering { .. } | Party::Done, true) = (party, failure.is_final) {
            let is_stale = *party == Party::Recovering { is_stale: true };
            self.note(request.unique, |known| known.has_failed = true);
            let patch = failed(claim, failure.is_infeasible || is_stale, &failure.message, Timestamp::now());
            if let Err(error) = self.tell(claim, patch).await {
                tracing::error!(volume = request.volume, %error, "Failed to mark node expansion as failed");
            }
        }
        if failure.is_in_use {
            // The pod uses it as it is: it may grow once no pod has it.
            tracing::error!(volume = request.volume, error = failure.message, "MountVolume.NodeExpandVolume failed");
            self.note(request.unique, |known| known.is_in_use = true);
            return Ok(());
        }
        Err(failure.into())
    }

    async fn tell(
        &self,
        claim: &PersistentVolumeClaim,
        patch: Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ClaimStatusError> {
        let (namespace, name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        let patched = self.objects.patch_claim_status(namespace, name, &patch).await;
        patched.map_err(|cause| ClaimStatusError { claim: name.to_owned(), cause })
    }
}

#[cfg(test)]
pub(crate) mod tests;
