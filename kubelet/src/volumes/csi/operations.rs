//! Operations on volumes: each is a sequence of calls and of files, under the lock of its volume.

use super::attach::Attachments;
use super::driver::{Capability, Driver};
use super::drivers::Drivers;
use super::error::{CallError, CsiError, LabelError, SecretError, VolumeFailure};
use super::layout::{self, Key, Layout, Published, Record};
use super::selinux::{Selinux, mount_option};
use super::v1;
use super::volume::{self, Lifecycle, SecretName, Volume};
use crate::blocking::{MOUNTING, UNMOUNTING, WorkError, blocking};
use crate::files::make_private;
use crate::keyed_lock::KeyedLocks;
use crate::objects::ObjectSource;
use crate::pods;
use crate::volumes::block::BlockDevices;
use crate::volumes::growth::{GrowthFailure, Sizes};
use crate::volumes::metrics::{self, VolumeOperation};
use crate::volumes::mounts;
use crate::volumes::tokens::{TokenError, Tokens};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tonic::Code;

/// Key of what a driver is told of the pod's tokens.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The group that a pod's volumes are given to, and how eagerly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VolumeGroup {
    /// `fsGroup`.
    pub(crate) id: u32,
    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub(crate) on_root_mismatch: bool,
}

impl From<VolumeGroup> for (u32, bool) {
    fn from(group: VolumeGroup) -> Self {
        (group.id, group.on_root_mismatch)
    }
}

/// Volumes of CSI drivers on one node.
pub(crate) struct Csi {
    pub(super) layout: Layout,
    pub(super) node: String,
    pub(super) objects: Arc<dyn ObjectSource>,
    pub(super) drivers: Arc<Drivers>,
    tokens: Arc<Tokens>,
    pub(super) attachments: Attachments,
    pub(super) selinux: Selinux,
    pub(super) locks: KeyedLocks<Key>,
    pub(super) done: Mutex<Done>,
    /// The gate `CSIVolumeHealth`: drivers are asked whether volumes are well.
    pub(super) tells_health: bool,
    pub(super) blocks: BlockDevices,
}

/// Work that this process has done and need not do again, and for whom.
#[derive(Default)]
pub(super) struct Done {
    pub(super) staged: HashSet<Key>,
    /// Uid and name.
    pub(super) published: HashSet<(String, String)>,
    /// Published volumes that are mounted with a label, by uid and name.
    labelled: HashSet<(String, String)>,
    /// Pods that have a volume or wait for it, by uid.
    pub(super) wanted: HashSet<(String, Key)>,
}

impl Done {
    /// Forgets which volumes of a pod have labels.
    pub(super) fn forget_labels(&mut self, uid: &str) {
        self.labelled.retain(|(of, _)| of != uid);
    }
}

/// Inputs of the calls for one volume of one pod.
struct Call<'a> {
    volume: &'a Volume,
    pod: &'a Pod,
    group: Option<VolumeGroup>,
    driver: Driver,
    object: Option<Arc<CSIDriver>>,
    able: BTreeSet<Capability>,
    /// Words of the attacher to the node service.
    context: BTreeMap<String, String>,
    /// Label to mount it with.
    label: Option<String>,
}

impl Call<'_> {
    fn can(&self, capability: Capability) -> bool {
        self.able.contains(&capability)
    }

    fn capability(&self) -> v1::VolumeCapability {
        let group = self.group.filter(|_| self.can(Capability::VolumeMountGroup)).map(|group| group.id);
        let mut capability = self.volume.capability(&self.able, group);
        if let (Some(label), Some(v1::volume_capability::AccessType::Mount(mount))) =
            (&self.label, &mut capability.access_type)
        {
            mount.mount_flags.push(mount_option(label));
        }
        capability
    }
}

/// Removes a mount that its driver left, and the folder with its record.
pub(super) fn remove_mount(folder: &Path, mount: &Path) -> io::Result<()> {
    mounts::unmount_all(mount)?;
    layout::remove(folder, mount)
}

impl Csi {
    /// The node's volumes, with those that an earlier kubelet left below the root directory.
    pub(crate) fn new(
        (root, node): (&Path, &str),
        is_attached_by_controller: bool,
        objects: Arc<dyn ObjectSource>,
        drivers: Arc<Drivers>,
        tokens: Arc<Tokens>,
    ) -> Self {
        let layout = Layout::new(root);
        let unique = |record: &Record| volume::unique_name(&record.driver_name, &record.volume_handle);
        let published = layout.of_pods().into_iter().filter_map(|found| {
            let record = found.record.filter(|record| !record.is_ephemeral())?;
            Some((unique(&record), found.uid))
        });
        let staged = layout.all_staged();
        let staged = staged.iter().map(|found| Attachments::staging(unique(&found.record)));
        let attachments = Attachments::new(is_attached_by_controller, published.chain(staged));
        let (locks, done, selinux) = (KeyedLocks::default(), Mutex::default(), Selinux::default());
        let (node, tells_health, blocks) = (node.to_owned(), false, BlockDevices::default());
        Self { layout, node, objects, drivers, tokens, attachments, selinux, locks, done, tells_health, blocks }
    }

    /// Asks drivers whether volumes are well.
    pub(crate) fn with_health(self, tells_health: bool) -> Self {
        Self { tells_health, ..self }
    }

    /// Mounts volumes with labels, as this node has them.
    pub(crate) fn with_selinux(self, selinux: Selinux) -> Self {
        Self { selinux, ..self }
    }

    /// Reports whether a published volume is mounted with a label, so that none of its files is to be relabelled.
    pub(crate) fn is_labelled(&self, uid: &str, name: &str) -> bool {
        self.done.lock().labelled.contains(&(uid.to_owned(), name.to_owned()))
    }

    /// Number of volumes on the disk whose record cannot be read.
    pub(crate) fn unknown(&self) -> usize {
        self.layout.of_pods().iter().filter(|found| found.record.is_none()).count()
    }

    /// Volumes that must not be detached from the node.
    pub(crate) fn in_use(&self) -> Vec<String> {
        self.attachments.in_use()
    }

    /// Returns when [`Self::in_use`] has changed.
    pub(crate) async fn in_use_changed(&self) {
        self.attachments.changed().await;
    }

    /// Takes in the node as the API server has it.
    pub(crate) fn observe_node(&self, node: &Arc<Node>) {
        self.attachments.observe(node);
    }

    /// Path of a volume as containers get it: a folder, or the link to a device.
    fn path(&self, uid: &str, volume: &Volume) -> PathBuf {
        if volume.is_block {
            self.layout.pod_device(uid, &volume.name)
        } else {
            self.layout.target(uid, &volume.name, false)
        }
    }

    pub(super) fn is_published(&self, uid: &str, name: &str) -> bool {
        self.done.lock().published.contains(&(uid.to_owned(), name.to_owned()))
    }

    /// Waits until a volume can be published: its driver lets it be, and it is attached. May be given up at any time.
    pub(crate) async fn prepare(&self, pod: &Pod, volume: &Volume) -> Result<Ready, VolumeFailure> {
        let uid = pods::uid(pod);
        if self.is_published(uid, &volume.name) {
            return Ok(Ready::Published);
        }
        let object = self.objects.csi_driver(&volume.driver).await;
        let object = object
            .map_err(|cause| VolumeFailure::Publish(CsiError::Description { driver: volume.driver.clone(), cause }))?;
        volume::check_lifecycle(volume, object.as_deref()).map_err(|error| VolumeFailure::Publish(error.into()))?;
        self.done.lock().wanted.insert((uid.to_owned(), volume.key()));
        let context = self.attached(uid, volume, object.as_deref()).await?;
        Ok(Ready::Unpublished(Prepared { object, context }))
    }

    /// Publishes a volume for a pod, staged first where the driver does so: its path. Once begun it must be awaited.
    pub(crate) async fn publish(
        &self,
        pod: &Pod,
        volume: &Volume,
        group: Option<VolumeGroup>,
        ready: Ready,
    ) -> Result<PathBuf, VolumeFailure> {
        let uid = pods::uid(pod);
        let (prepared, is_again) = match ready {
            Ready::Published => return Ok(self.path(uid, volume)),
            Ready::Unpublished(prepared) => (prepared, false),
            Ready::Again(prepared) => (prepared, true),
        };
        let key = volume.key();
        let _guard = self.locks.lock(&key).await;
        if self.is_published(uid, &volume.name) && !is_again {
            return Ok(self.path(uid, volume));
        }
        if volume.is_of_one_pod() {
            let users = self.users_of(&key).await.map_err(|error| VolumeFailure::Publish(error.into()))?;
            if users.iter().any(|user| user.uid != uid) {
                return Err(VolumeFailure::Publish(CsiError::InUse));
            }
        }
        let label = self.label(pod, volume, &prepared).await.map_err(VolumeFailure::Stage)?;
        let call = Call { label, ..self.call(pod, volume, group, prepared).await? };
        if volume.is_staged(&call.able) && !self.done.lock().staged.contains(&key) {
            self.stage(&call).await.map_err(VolumeFailure::Stage)?;
            self.done.lock().staged.insert(key);
        }
        self.publish_staged(&call, is_again).await.map_err(VolumeFailure::Publish)?;
        if volume.is_block {
            let (target, folder) = (self.layout.target(uid, &volume.name, true), self.layout.bound(&volume.name));
            self.blocks.hold(&target, &folder, uid).await.map_err(VolumeFailure::Map)?;
        }
        let mut done = self.done.lock();
        if call.label.is_some() {
            done.labelled.insert((uid.to_owned(), volume.name.clone()));
        }
        done.published.insert((uid.to_owned(), volume.name.clone()));
        Ok(self.path(uid, volume))
    }

    /// The label that a pod's volume is mounted with. One that is staged with another label is unstaged, unless a pod has it.
    async fn label(&self, pod: &Pod, volume: &Volume, prepared: &Prepared) -> Result<Option<String>, CsiError> {
        if volume.is_block || !self.selinux.is_on() {
            return Ok(None);
        }
        let label = self.selinux.admit(pod, pods::uid(pod), volume, prepared.object.as_deref())?;
        let (layout, key) = (self.layout.clone(), volume.key());
        let staged = blocking(move || Ok(layout.all_staged().into_iter().find(|found| found.record.key() == key)));
        let wanted = label.as_deref().unwrap_or_default();
        let Some(staged) = staged.await?.filter(|found| found.record.se_linux_mount_context != wanted) else {
            return Ok(label);
        };
        if !self.users_of(&volume.key()).await?.is_empty() {
            return Err(LabelError::Staged(volume.unique_name()).into());
        }
        self.unstage(&staged).await.map(|()| label)
    }

    async fn call<'a>(
        &self,
        pod: &'a Pod,
        volume: &'a Volume,
        group: Option<VolumeGroup>,
        Prepared { object, context }: Prepared,
    ) -> Result<Call<'a>, VolumeFailure> {
        let mut driver = self.drivers.get(&volume.driver).map_err(|cause| match volume.lifecycle {
            Lifecycle::Persistent => {
                let step = "attacher.MountDevice failed to create newCsiDriverClient";
                VolumeFailure::Stage(CsiError::NoClient { step, cause })
            }
            Lifecycle::Ephemeral => {
                let step = "mounter.SetUpAt failed to get CSI client";
                VolumeFailure::Publish(CsiError::NoClient { step, cause })
            }
        })?;
        driver.is_migrated = volume.is_migrated;
        let able = driver.capabilities().await.map_err(|error| VolumeFailure::Publish(error.into()))?;
        Ok(Call { volume, pod, group, driver, object, able, context, label: None })
    }

    /// Volumes of pods on the disk that are the same one.
    pub(super) async fn users_of(&self, key: &Key) -> Result<Vec<Published>, WorkError> {
        let (layout, key) = (self.layout.clone(), key.clone());
        let is_same = move |found: &Published| found.record.as_ref().is_some_and(|record| record.key() == key);
        blocking(move || Ok(layout.of_pods().into_iter().filter(is_same).collect())).await
    }

    /// Content of the secret that a field of the volume names; none where it names none.
    async fn secrets(
        &self,
        field: &'static str,
        secret: Option<&SecretName>,
    ) -> Result<BTreeMap<String, String>, SecretError> {
        let Some(SecretName { namespace, name }) = secret else { return Ok(BTreeMap::new()) };
        let found = self.objects.secret(namespace, name).await;
        let found =
            found.map_err(|cause| SecretError { field, namespace: namespace.clone(), name: name.clone(), cause })?;
        let data = found.data.iter().flatten();
        Ok(data.map(|(key, value)| (key.clone(), String::from_utf8_lossy(&value.0).into_owned())).collect())
    }

    /// Text of the tokens that a driver asks for, of the pod's account. Upstream's `podServiceAccountTokenAttrs`.
    async fn tokens(&self, call: &Call<'_>) -> Result<Option<String>, TokenError> {
        let requests = call.object.as_ref().and_then(|object| object.spec.token_requests.as_ref());
        let Some(requests) = requests.filter(|requests| !requests.is_empty()) else { return Ok(None) };
        let mut tokens = serde_json::Map::new();
        for request in requests {
            let wanted = (request.audience.as_str(), request.expiration_seconds);
            let token = self.tokens.get(&*self.objects, call.pod, wanted).await?;
            let expires = token.expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            tokens.insert(request.audience.clone(), json!({"token": token.text, "expirationTimestamp": expires}));
        }
        Ok(Some(serde_json::Value::Object(tokens).to_string()))
    }

    fn staging(&self, volume: &Volume) -> PathBuf {
        self.layout.staging(&volume.driver, &volume.handle, &volume.name, volume.is_block)
    }

    /// The staging path as calls name it: empty for a volume that is not staged.
    pub(super) fn staging_text(&self, volume: &Volume, able: &BTreeSet<Capability>) -> String {
        if volume.is_staged(able) { self.staging(volume).display().to_string() } else { String::new() }
    }

    async fn stage(&self, call: &Call<'_>) -> Result<(), CsiError> {
        let volume = call.volume;
        let secrets = self.secrets("NodeStageSecretRef", volume.stage_secret.as_ref()).await?;
        let staging = self.staging(volume);
        let folder = self.layout.staged(&volume.driver, &volume.handle, &volume.name, volume.is_block);
        let record = match volume.is_block {
            true => Record::published(volume, &self.node),
            false => Record::staged(volume).labelled(call.label.as_deref()),
        };
        self.attachments.stage(&volume.unique_name());
        let target = staging.clone();
        let prepare = move || {
            make_private(&target)?;
            layout::write(&folder, &record)
        };
        MOUNTING.run(prepare).await?;
        let request = v1::NodeStageVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: call.context.clone(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(call.capability()),
            secrets,
            volume_context: volume.attributes.clone(),
        };
        let staged = call.driver.stage(request).await;
        if let Err(CallError { is_final: true, .. }) = &staged {
            self.forget_staged(volume).await;
        }
        Ok(staged?)
    }

    /// Removes the record of a volume that its driver refused to stage, unless a pod of an earlier kubelet has it.
    async fn forget_staged(&self, volume: &Volume) {
        let key = volume.key();
        if self.users_of(&key).await.is_ok_and(|users| users.is_empty()) {
            let folder = self.layout.staged(&volume.driver, &volume.handle, &volume.name, volume.is_block);
            let staging = self.staging(volume);
            if UNMOUNTING.run(move || layout::remove(&folder, &staging)).await.is_ok() {
                self.attachments.unstage(&volume.unique_name());
            }
        }
    }

    async fn publish_staged(&self, call: &Call<'_>, is_again: bool) -> Result<(), CsiError> {
        let (volume, uid) = (call.volume, pods::uid(call.pod));
        let request = self.publication(call).await?;
        let folder = self.layout.published(uid, &volume.name, volume.is_block);
        let target = PathBuf::from(&request.target_path);
        let link = volume.is_block.then(|| self.layout.pod_device(uid, &volume.name));
        let record = Record::published(volume, &self.node).labelled(call.label.as_deref());
        let (record_folder, published) = (folder.clone(), target.clone());
        let is_new = blocking(move || {
            let is_new = !record_folder.exists();
            layout::write(&record_folder, &record)?;
            // The target itself is the driver's to make.
            published.parent().map_or(Ok(()), make_private)?;
            let Some(link) = link else { return Ok(is_new) };
            link.parent().map_or(Ok(()), make_private)?;
            match symlink(&published, &link) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(is_new),
            }
        })
        .await?;
        if let Err(error) = call.driver.publish(request).await {
            if error.is_final && is_new {
                // Nothing was mounted: nothing has to be undone when the pod goes.
                let (target, name) = (target.clone(), volume.name.clone());
                let forgotten = self.forget_published(uid, &name, volume.is_block, target).await;
                forgotten.unwrap_or_else(|error| tracing::warn!(volume = name, %error, "Could not remove a record"));
            }
            return Err(error.into());
        }
        // The files of a volume that is published again have their group.
        if is_again { Ok(()) } else { self.give_to_group(call, target).await }
    }

    /// Removes the files of a volume that is not published.
    pub(super) async fn forget_published(
        &self,
        uid: &str,
        name: &str,
        is_block: bool,
        target: PathBuf,
    ) -> Result<(), WorkError> {
        let (folder, link) = (self.layout.published(uid, name, is_block), self.layout.pod_device(uid, name));
        let remove = move || {
            if !is_block {
                return remove_mount(&folder, &target);
            }
            // The record of a device is that of its staging, which other pods may have.
            mounts::unmount_all(&target)?;
            layout::gone(fs::remove_file(target))?;
            layout::gone(fs::remove_file(link))
        };
        UNMOUNTING.run(remove).await
    }

    async fn publication(&self, call: &Call<'_>) -> Result<v1::NodePublishVolumeRequest, CsiError> {
        let (volume, uid) = (call.volume, pods::uid(call.pod));
        let mut secrets = self.secrets("NodePublishSecretRef", volume.publish_secret.as_ref()).await?;
        let mut context = volume.attributes.clone();
        context.extend(volume::pod_info(volume, call.pod, call.object.as_deref()));
        if let Some(tokens) = self.tokens(call).await? {
            let spec = call.object.as_ref().map(|object| &object.spec);
            let as_secret = spec.and_then(|spec| spec.service_account_token_in_secrets) == Some(true);
            let place = if as_secret { &mut secrets } else { &mut context };
            place.insert(TOKENS.to_owned(), tokens);
        }
        Ok(v1::NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: call.context.clone(),
            staging_target_path: self.staging_text(volume, &call.able),
            target_path: self.layout.target(uid, &volume.name, volume.is_block).display().to_string(),
            volume_capability: Some(call.capability()),
            readonly: volume.read_only,
            secrets,
            volume_context: context,
        })
    }

    /// Gives the files to the pod's group, unless the driver does so.
    async fn give_to_group(&self, call: &Call<'_>, target: PathBuf) -> Result<(), CsiError> {
        let Some(group) = call.group.filter(|_| !call.can(Capability::VolumeMountGroup)) else { return Ok(()) };
        if !volume::gives_to_group(call.volume, call.object.as_deref()) {
            return Ok(());
        }
        let (handle, begun) = (call.volume.handle.clone(), Instant::now());
        let given = MOUNTING.run(move || {
            if group.on_root_mismatch && mounts::is_of_group(&target, group.id)? {
                return Ok(());
            }
            mounts::give_to_group(&target, group.id, false)
        });
        let given = given.await;
        metrics::ended(&call.volume.plugin(), VolumeOperation::GiveToGroup, begun, given.is_err());
        given.map_err(|cause| CsiError::Group { handle, cause })
    }

    /// Waits until a volume of a running pod can be published again: for an earlier kubelet's pod, whose volumes this one has
    /// yet to know, and where the driver asks for it because tokens and the like may have changed. May be given up.
    pub(crate) async fn prepare_again(&self, pod: &Pod, volume: &Volume) -> Result<Ready, VolumeFailure> {
        let uid = pods::uid(pod);
        if !self.is_published(uid, &volume.name) {
            return self.prepare(pod, volume).await;
        }
        let object = self.objects.csi_driver(&volume.driver).await;
        let object = object.map_err(|error| VolumeFailure::Publish(CsiError::DescriptionAgain(error)))?;
        if object.as_ref().is_none_or(|object| object.spec.requires_republish != Some(true)) {
            return Ok(Ready::Published);
        }
        let context = self.attached(uid, volume, object.as_deref()).await?;
        Ok(Ready::Again(Prepared { object, context }))
    }

    /// Grows a published volume by its driver.
    ///
    /// # Errors
    /// The driver cannot, or failed; upstream's texts.
    pub(crate) async fn expand(&self, pod: &Pod, volume: &Volume, sizes: Sizes) -> Result<(), GrowthFailure> {
        let failed = |message: String| GrowthFailure { message, ..GrowthFailure::default() };
        let _guard = self.locks.lock(&volume.key()).await;
        let call = self.call(pod, volume, None, Prepared::default()).await;
        let call = call.map_err(|failure| failed(failure.to_string()))?;
        if !call.can(Capability::ExpandVolume) {
            let message = format!("NodeExpand is not supported by the CSI driver {}", volume.driver);
            return Err(GrowthFailure { is_final: true, is_unsupported: true, ..failed(message) });
        }
        let secrets = self.secrets("NodeExpandSecretRef", volume.expand_secret.as_ref()).await;
        let secrets = secrets.map_err(|error| failed(error.to_string()))?;
        let request = v1::NodeExpandVolumeRequest {
            volume_id: volume.handle.clone(),
            volume_path: self.layout.target(pods::uid(pod), &volume.name, volume.is_block).display().to_string(),
            capacity_range: Some(v1::CapacityRange { required_bytes: sizes.new, limit_bytes: 0 }),
            staging_target_path: self.staging_text(volume, &call.able),
            volume_capability: Some(call.capability()),
            secrets,
        };
        let begun = Instant::now();
        let grown = call.driver.expand(request).await;
        metrics::ended(&volume.plugin(), VolumeOperation::Grow, begun, grown.is_err());
        grown.map(drop).map_err(|error| GrowthFailure {
            message: format!("Expander.NodeExpand failed to expand the volume : {error}"),
            is_final: error.is_final,
            is_infeasible: matches!(error.code, Code::OutOfRange | Code::InvalidArgument | Code::NotFound),
            is_in_use: error.code == Code::FailedPrecondition,
            is_unsupported: false,
        })
    }
}

/// Facts of a volume's driver and attachment that its publication needs.
#[derive(Default)]
pub(crate) struct Prepared {
    object: Option<Arc<CSIDriver>>,
    /// Words of the attacher to the node service.
    context: BTreeMap<String, String>,
}

/// A volume that can be published.
pub(crate) enum Ready {
    /// A volume that is published, and stays as it is.
    Published,
    Unpublished(Prepared),
    /// A volume that is published, and that its driver wants to be published again.
    Again(Prepared),
}
