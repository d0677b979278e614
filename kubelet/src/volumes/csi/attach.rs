//! Volumes that have to be attached to the node before they are mounted: the controller manager attaches them, and detaches
//! what the node does not report in use. Upstream's `VerifyControllerAttachedVolume` and `csi_attacher.go`.

use super::error::{AttachError, VolumeFailure};
use super::operations::Csi;
use super::volume::{self, Lifecycle, Volume};
use crate::objects::{ObjectError, ObjectSource};
use crate::volumes::metrics::{self, VolumeOperation};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// Longest wait of a pod for one volume, upstream's.
const TIMEOUT: Duration = Duration::from_secs(123);
/// Period of asking for an attachment that is not there yet.
const PERIOD: Duration = Duration::from_millis(500);

/// Stands among the users of a volume for its staging on the node.
const STAGING: &str = "";

/// Volumes in use on the node, and what the API server says of them.
pub(super) struct Attachments {
    /// Uids of pods, and [`STAGING`], by the volumes' names in the node's status.
    users: Mutex<BTreeMap<String, BTreeSet<String>>>,
    changed: Notify,
    node: watch::Sender<Option<Arc<Node>>>,
    /// `enableControllerAttachDetach`.
    is_managed: bool,
}

/// Progress of attaching a volume.
#[derive(Debug, PartialEq, Eq)]
enum AttachProgress {
    /// The API server has to know that the volume is in use, or the controller manager has to attach it.
    Wait,
    /// The driver's attacher has finished, as far as the node's status tells.
    Attached,
}

/// Decides from the node's status how far the attaching of a volume is.
fn step(node: Option<&Node>, volume: &str) -> AttachProgress {
    let Some(status) = node.and_then(|node| node.status.as_ref()) else { return AttachProgress::Wait };
    let is_reported = status.volumes_in_use.iter().flatten().any(|name| name == volume);
    let is_attached = status.volumes_attached.iter().flatten().any(|attached| attached.name == volume);
    if is_reported && is_attached { AttachProgress::Attached } else { AttachProgress::Wait }
}

/// Reads an attachment: what the attacher tells the driver's node service; none as long as it is not attached.
fn outcome(attachment: &VolumeAttachment) -> Result<Option<BTreeMap<String, String>>, AttachError> {
    if attachment.metadata.deletion_timestamp.is_some() {
        return Err(AttachError::Deleted);
    }
    let Some(status) = &attachment.status else { return Ok(None) };
    if status.attached {
        return Ok(Some(status.attachment_metadata.clone().unwrap_or_default()));
    }
    match status.attach_error.as_ref().and_then(|error| error.message.clone()) {
        Some(message) => Err(AttachError::Driver(message)),
        None => Ok(None),
    }
}

/// gRPC's code of what is used up.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Reports whether a volume cannot be attached because the node has as many as it can. Upstream's `isResourceExhaustError`.
fn is_exhausted(attachment: &VolumeAttachment) -> bool {
    let error = attachment.status.as_ref().and_then(|status| status.attach_error.as_ref());
    error.and_then(|error| error.error_code) == Some(RESOURCE_EXHAUSTED)
}

impl Attachments {
    /// Volumes that are in use already, with the pods that use them.
    pub(super) fn new(is_managed: bool, users: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (volume, user) in users {
            known.entry(volume).or_default().insert(user);
        }
        Self { users: Mutex::new(known), changed: Notify::new(), node: watch::Sender::new(None), is_managed }
    }

    /// The user that stands for the staging of a volume.
    pub(super) fn staging(volume: String) -> (String, String) {
        (volume, STAGING.to_owned())
    }

    /// Volumes that must not be detached, sorted: `status.volumesInUse` of the node.
    pub(super) fn in_use(&self) -> Vec<String> {
        self.users.lock().keys().cloned().collect()
    }

    /// Returns when [`Self::in_use`] has changed since the last time.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes in the node as the API server has it.
    pub(super) fn observe(&self, node: &Arc<Node>) {
        self.node.send_replace(Some(Arc::clone(node)));
    }

    fn begin(&self, volume: &str, user: &str) {
        let mut users = self.users.lock();
        let is_new = !users.contains_key(volume);
        users.entry(volume.to_owned()).or_default().insert(user.to_owned());
        if is_new {
            self.changed.notify_one();
        }
    }

    fn end(&self, volume: &str, user: &str) {
        let mut users = self.users.lock();
        let Some(of_volume) = users.get_mut(volume) else { return };
        of_volume.remove(user);
        if of_volume.is_empty() {
            users.remove(volume);
            self.changed.notify_one();
        }
    }

    /// A pod is about to use a volume.
    pub(super) fn use_by(&self, volume: &str, uid: &str) {
        self.begin(volume, uid);
    }

    /// A volume is about to be staged.
    pub(super) fn stage(&self, volume: &str) {
        self.begin(volume, STAGING);
    }

    /// A volume is not staged any more.
    pub(super) fn unstage(&self, volume: &str) {
        self.end(volume, STAGING);
    }

    /// A pod does not use anything any more.
    pub(super) fn forget(&self, uid: &str) {
        let volumes: Vec<String> = self.in_use();
        volumes.iter().for_each(|volume| self.end(volume, uid));
    }

    /// Waits until a volume that is in use is attached: what the attacher tells the driver's node service.
    pub(super) async fn wait(
        &self,
        objects: &dyn ObjectSource,
        volume: &Volume,
        node_name: &str,
    ) -> Result<BTreeMap<String, String>, AttachError> {
        let waited = tokio::time::timeout(TIMEOUT, self.attached(objects, volume, node_name)).await;
        waited.unwrap_or(Err(AttachError::Late))
    }

    /// Waits until the node's status tells that a volume in use is attached, where the controller manager attaches volumes.
    pub(super) async fn wait_for_controller(&self, unique: &str) -> Result<(), AttachError> {
        let waited = tokio::time::timeout(TIMEOUT, self.reported(unique)).await;
        waited.unwrap_or(Err(AttachError::Late))
    }

    async fn reported(&self, unique: &str) -> Result<(), AttachError> {
        if !self.is_managed {
            return Ok(());
        }
        let mut nodes = self.node.subscribe();
        let attached = nodes.wait_for(|node| step(node.as_deref(), unique) == AttachProgress::Attached).await;
        Ok(attached.map(drop)?)
    }

    async fn attached(
        &self,
        objects: &dyn ObjectSource,
        volume: &Volume,
        node_name: &str,
    ) -> Result<BTreeMap<String, String>, AttachError> {
        let name = volume.attachment(node_name);
        self.reported(&volume.unique_name()).await?;
        loop {
            match objects.volume_attachment(&name).await {
                Ok(attachment) => {
                    if let Some(metadata) = outcome(&attachment)? {
                        return Ok(metadata);
                    }
                }
                Err(ObjectError::NotFound { .. }) if !self.is_managed => {}
                Err(cause) => {
                    return Err(AttachError::Read { handle: volume.handle.clone(), attachment: name, cause });
                }
            }
            tokio::time::sleep(PERIOD).await;
        }
    }
}

impl Csi {
    /// Waits for the attachment of a volume that needs one: what the attacher tells the driver's node service.
    pub(super) async fn attached(
        &self,
        uid: &str,
        volume: &Volume,
        object: Option<&CSIDriver>,
    ) -> Result<BTreeMap<String, String>, VolumeFailure> {
        if volume.lifecycle == Lifecycle::Ephemeral || !volume::needs_attachment(object) {
            return Ok(BTreeMap::new());
        }
        self.attachments.use_by(&volume.unique_name(), uid);
        let begun = Instant::now();
        let attached = self.attachments.wait(&*self.objects, volume, &self.node).await;
        metrics::ended(&volume.plugin(), VolumeOperation::VerifyAttached, begun, attached.is_err());
        let Err(error) = attached else { return attached.map_err(VolumeFailure::Attach) };
        if self.is_exhausted(volume, object).await {
            // The scheduler has to know how many there can be.
            self.drivers.update_one(&volume.driver).await;
            return Err(VolumeFailure::Exhausted(error));
        }
        Err(VolumeFailure::Attach(error))
    }

    /// Reports whether a volume is not attached because the node has as many as it can. Upstream's `VerifyExhaustedResource`.
    async fn is_exhausted(&self, volume: &Volume, object: Option<&CSIDriver>) -> bool {
        if object.is_none_or(|object| !self.drivers.may_change_count(object)) {
            return false;
        }
        let attachment = self.objects.volume_attachment(&volume.attachment(&self.node)).await;
        attachment.is_ok_and(|attachment| is_exhausted(&attachment))
    }
}

/// Volumes of other plugins that wait for the controller manager as those of drivers do.
impl Csi {
    /// Waits until another plugin's volume is attached to the node for a pod. May be given up at any time.
    pub(crate) async fn wait_for_controller(&self, uid: &str, unique: &str) -> Result<(), AttachError> {
        self.attachments.use_by(unique, uid);
        self.attachments.wait_for_controller(unique).await
    }

    /// Another plugin's volume is about to be used on the node, by whichever pod.
    pub(crate) fn hold(&self, unique: &str) {
        self.attachments.stage(unique);
    }

    /// Another plugin's volume is not on the node any more.
    pub(crate) fn let_go(&self, unique: &str) {
        self.attachments.unstage(unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_volume_is_mounted_once_it_is_reported_and_attached() {
        let node = |status: Value| -> Node { serde_json::from_value(json!({"status": status})).expect("a node") };
        let attached = json!([{"name": "v", "devicePath": ""}]);
        for (status, expected) in [
            (json!({}), AttachProgress::Wait),
            (json!({"volumesInUse": ["v"]}), AttachProgress::Wait),
            // The controller manager may detach what is not reported.
            (json!({"volumesAttached": attached}), AttachProgress::Wait),
            (json!({"volumesInUse": ["w", "v"], "volumesAttached": attached}), AttachProgress::Attached),
            (json!({"volumesInUse": ["w"], "volumesAttached": attached}), AttachProgress::Wait),
        ] {
            assert_eq!(step(Some(&node(status.clone())), "v"), expected, "{status}");
        }
        assert_eq!(step(None, "v"), AttachProgress::Wait);
    }

    #[test]
    fn attachments_tell_what_the_driver_needs() {
        let spec = json!({"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}});
        let attachment = |metadata: Value, status: Value| -> VolumeAttachment {
            let object = json!({"metadata": metadata, "spec": spec, "status": status});
            serde_json::from_value(object).expect("an attachment")
        };
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (metadata, status, expected) in [
            (json!({}), json!({"attached": false}), Ok(None)),
            (json!({}), json!({"attached": true, "attachmentMetadata": {"lun": "1"}}), Ok(Some(1))),
            (json!({}), json!({"attached": true}), Ok(Some(0))),
            (json!({}), json!({"attached": false, "attachError": {"message": "no such disk"}}), Err("no such disk")),
            (deleted, json!({"attached": true}), Err("volume attachment is being deleted")),
        ] {
            let read = outcome(&attachment(metadata, status.clone())).map(|found| found.map(|metadata| metadata.len()));
            assert_eq!(read.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{status}");
        }
    }

    #[tokio::test]
    async fn volumes_are_in_use_until_nobody_has_them() {
        let attachments =
            Attachments::new(true, [("v".to_owned(), "old".to_owned()), Attachments::staging("v".to_owned())]);
        assert_eq!(attachments.in_use(), ["v"]);
        attachments.use_by("w", "pod");
        tokio::time::timeout(TIMEOUT, attachments.changed()).await.expect("a change");
        attachments.stage("w");
        attachments.forget("old");
        attachments.forget("pod");
        assert_eq!(attachments.in_use(), ["v", "w"], "both are staged");
        attachments.unstage("w");
        tokio::time::timeout(TIMEOUT, attachments.changed()).await.expect("a change");
        assert_eq!(attachments.in_use(), ["v"]);
    }
}
