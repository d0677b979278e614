//! Setting up and refreshing the volumes of one pod.

use super::block::{self, BlockDevices};
use super::claims::{self, Claimed, Use, VolumeSources};
use super::content::{ContentInputs, payload};
use super::disks::{Disk, DiskTarget, Disks};
use super::empty_dir::{empty_dir, make_folder, memory_size};
use super::error::SetUpError;
use super::flex::{Flex, FlexVolume};
use super::growth::Grower;
use super::helper::{self, MountError, MountRequest, give};
use super::metrics::{self, Plugin, VolumeOperation, Worlds};
use super::tokens::Tokens;
use super::usage::KnownUsage;
use super::{MountedVolume, VolumeError, hostpath, mounts, nested, writer};
use crate::blocking::{Lane, MOUNTING, WorkError, blocking};
use crate::facts::PodFacts;
use crate::objects::ObjectSource;
use crate::pods;
use crate::volumes::csi::{self, AttachError, Csi, Ready, VolumeFailure, VolumeGroup};
use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Volume};
use parking_lot::Mutex;
use shared::placement;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// State and sources that volumes are made with.
pub(super) struct Inner {
    pub(super) pods: PathBuf,
    pub(super) objects: Arc<dyn ObjectSource>,
    pub(super) tokens: Arc<Tokens>,
    pub(super) csi: Csi,
    pub(super) disks: Disks,
    pub(super) flex: Flex,
    pub(super) grower: Grower,
    pub(super) blocks: BlockDevices,
    pub(super) local_devices: PathBuf,
    /// Claims of pods as they were last made ready, by uid and volume.
    pub(super) claims: Mutex<HashMap<(String, String), (String, VolumeSources)>>,
    /// Names of the persistent volumes of those claims.
    pub(super) names: Mutex<HashMap<(String, String), String>>,
    /// Groups that those volumes' files are for.
    pub(super) groups: Mutex<HashMap<(String, String), i64>>,
    pub(super) usage: Mutex<KnownUsage>,
    pub(super) worlds: Worlds,
    /// The node as the API server has it.
    pub(super) node: ArcSwapOption<Node>,
}

/// Plugin of what lies on the node.
const LOCAL: &str = "local-volume";
/// Folder of the devices that pods have of it, below the root directory.
pub(super) const LOCAL_DEVICES: &str = "plugins/kubernetes.io~local-volume/volumeDevices";

/// Steps of making volumes ready, as upstream's events name them.
pub(super) const SET_UP: &str = "MountVolume.SetUp";

impl Inner {
    /// Folder of the sub-paths that a pod's containers have.
    pub(super) fn sub_paths(&self, uid: &str) -> PathBuf {
        self.pods.join(uid).join("volume-subpaths")
    }

    /// Link to the device of a pod's volume.
    pub(super) fn device_link(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pods.join(uid).join(format!("volumeDevices/kubernetes.io~{plugin}")).join(name)
    }

    pub(super) fn folder(&self, pod: &Pod, plugin: &str, volume: &str) -> PathBuf {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.pods.join(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(volume)
    }

    /// A volume of the pod, or the persistent one that it claims; none for one of a driver that no container uses.
    async fn make_ready(
        &self,
        pod: &Pod,
        facts: &PodFacts,
        volume: &Volume,
        gone: &CancellationToken,
    ) -> Result<Option<MountedVolume>, VolumeError> {
        let claimed = self.claimed(pod, volume).await?;
        let plugin = match &claimed {
            Some(claimed) => claimed.plugin(),
            None => Plugin::of_volume(volume, driver_volume(pod, volume)?.map(|inline| inline.plugin())),
        };
        let (uid, is_used) = (pods::uid(pod), !Use::of(pod, &volume.name).is_none());
        if is_used {
            self.worlds.want(uid, &volume.name, &plugin);
        }
        let begun = Instant::now();
        let made = self.make(pod, facts, (volume, claimed), gone).await;
        let is_block = matches!(&made, Ok(Some(MountedVolume { is_block: true, .. })));
        let is_new = is_used && made.is_ok() && self.worlds.have(uid, &volume.name, &plugin);
        if made.is_err() || is_new || has_content(volume) {
            let operation = if is_block { VolumeOperation::Map } else { VolumeOperation::Mount };
            metrics::ended(&plugin, operation, begun, made.is_err());
        }
        made
    }

    async fn make(
        &self,
        pod: &Pod,
        facts: &PodFacts,
        (volume, claimed): (&Volume, Option<Claimed>),
        gone: &CancellationToken,
    ) -> Result<Option<MountedVolume>, VolumeError> {
        let set_up = |cause: SetUpError| VolumeError::set_up(SET_UP, &volume.name, cause);
        let Some(claimed) = claimed else {
            // The runtime mounts images itself.
            let is_drivers = volume.csi.is_some() || shared::csi::plugin_of(volume).is_some();
            if volume.image.is_some() || (is_drivers && Use::of(pod, &volume.name).is_none()) {
                return Ok(None);
            }
            if let Some(inline) = driver_volume(pod, volume)? {
                return self.publish(pod, &inline, gone).await.map(Some);
            }
            let disk = claims::inline_disk(volume).map_err(|error| set_up(error.into()))?;
            if let Some(disk) = disk {
                return self.mount_disk((pod, &volume.name), disk, gone).await.map(Some);
            }
            if let Some(source) = &volume.flex_volume {
                return self.mount_flex(pod, &FlexVolume::inline(&volume.name, source), gone).await.map(Some);
            }
            let ready = self.set_up(pod, facts, volume).await;
            return ready.map(Some).map_err(set_up);
        };
        if matches!(claimed.source, VolumeSources::Csi(_)) && Use::of(pod, &volume.name).is_none() {
            return Ok(None);
        }
        let read_only = claimed.read_only;
        let ready = self.make_claimed(pod, &claimed, gone).await?;
        if let Err(cause) = self.grow(pod, &claimed).await {
            let steps = ["MountVolume.Setup", "MapVolume.MarkVolumeAsMounted"];
            let (step, volume) = (steps[usize::from(ready.is_block)], claimed.name);
            return Err(VolumeError::Growth { step, volume, cause });
        }
        Ok(Some(MountedVolume { read_only: ready.read_only || read_only, ..ready }))
    }

    /// Makes the volume of a claim ready.
    async fn make_claimed(
        &self,
        pod: &Pod,
        claimed: &Claimed,
        gone: &CancellationToken,
    ) -> Result<MountedVolume, VolumeError> {
        let set_up = |cause: SetUpError| VolumeError::set_up(SET_UP, &claimed.name, cause);
        let ready = match claimed.source.clone() {
            VolumeSources::Csi(volume) => self.publish(pod, &volume, gone).await?,
            VolumeSources::Device(path) => self.map_device(pod, &claimed.name, path).await?,
            VolumeSources::Local(path) => {
                let bound = self.bind(pod, &claimed.name, path, (claimed.read_only, &claimed.options)).await;
                bound.map_err(set_up)?
            }
            VolumeSources::Disk(disk) => {
                let at = (pod, claimed.name.as_str());
                self.mount_disk(at, *disk, gone).await?
            }
            VolumeSources::Flex(volume) => self.mount_flex(pod, &volume, gone).await?,
            VolumeSources::Nfs(source) => {
                let request = MountRequest::nfs(&source, claimed.read_only, &claimed.options);
                let mounted = self.help(pod, "nfs", &claimed.name, &request).await;
                mounted.map_err(|error| set_up(error.into()))?.0
            }
            VolumeSources::Path(source) => {
                let (path, kind) = (PathBuf::from(&source.path), source.type_.unwrap_or_default());
                let checked = MOUNTING.run(move || hostpath::check(&path, &kind)).await;
                checked.map_err(|error| set_up(error.into()))?
            }
        };
        Ok(ready)
    }

    pub(super) async fn claimed(&self, pod: &Pod, volume: &Volume) -> Result<Option<Claimed>, VolumeError> {
        let claimed = claims::resolve(&*self.objects, pod, volume, Use::of(pod, &volume.name)).await;
        let claimed = claimed.map_err(|error| VolumeError::unknown(&volume.name, error))?;
        if let Some(claimed) = &claimed {
            self.check_node(claimed)?;
            let key = (pods::uid(pod).to_owned(), volume.name.clone());
            let name = claimed.claim.metadata.name.clone().unwrap_or_default();
            self.names.lock().insert(key.clone(), claimed.name.clone());
            match claimed.group.filter(|_| !Use::of(pod, &volume.name).is_none()) {
                Some(group) => self.groups.lock().insert(key.clone(), group),
                None => self.groups.lock().remove(&key),
            };
            self.claims.lock().insert(key, (name, claimed.source.clone()));
        }
        Ok(claimed)
    }

    /// Refuses a volume that cannot be used on this node, if the node is known. Upstream's `checkNodeAffinity`.
    fn check_node(&self, claimed: &Claimed) -> Result<(), VolumeError> {
        let node = self.node.load();
        let (Some(affinity), Some(node)) = (&claimed.affinity, node.as_ref()) else { return Ok(()) };
        if placement::volume_allows(affinity, node) {
            return Ok(());
        }
        Err(VolumeError::set_up("MountVolume.NodeAffinity check", &claimed.name, SetUpError::OtherNode))
    }

    /// Mounts something by the distribution's helpers. Reports whether it was mounted now.
    async fn help(
        &self,
        pod: &Pod,
        plugin: &str,
        name: &str,
        request: &MountRequest,
    ) -> Result<(MountedVolume, bool), MountError> {
        let folder = self.folder(pod, plugin, name);
        let is_new = request.mount(helper::MOUNT, &folder).await?;
        Ok((ready(folder, false), is_new))
    }

    /// Attaches a disk and mounts it for the pod. The wait for the controller manager is given up when the pod goes.
    async fn mount_disk(
        &self,
        (pod, name): (&Pod, &str),
        mut disk: Disk,
        gone: &CancellationToken,
    ) -> Result<MountedVolume, VolumeError> {
        let failed = |step, cause: SetUpError| VolumeError::set_up(step, name, cause);
        let step = if disk.is_block { "MapVolume.WaitForAttach" } else { "MountVolume.WaitForAttach" };
        let attaching = |cause| failed(step, cause);
        let (unique, uid) = (disk.target.unique_name(), pods::uid(pod));
        tokio::select! {
            attached = self.csi.wait_for_controller(uid, &unique) => attached.map_err(|error| attaching(error.into()))?,
            () = gone.cancelled() => return Err(attaching(SetUpError::Gone)),
        }
        self.authenticate(pod, &mut disk).await.map_err(attaching)?;
        self.csi.hold(&unique);
        if disk.is_block {
            let link = self.device_link(uid, disk.target.plugin(), name);
            let mapped = self.disks.map(uid, &disk, &link).await.map_err(|(step, error)| failed(step, error.into()));
            return mapped.map(|()| MountedVolume { is_file: true, is_block: true, ..ready(link, disk.read_only) });
        }
        let at = self.folder(pod, disk.target.plugin(), name);
        let is_new = self.disks.mount(uid, &disk, &at).await.map_err(|(step, error)| failed(step, error.into()))?;
        if let Some(group) = driver_group(pod).filter(|_| is_new && !disk.read_only) {
            let given = give(&Plugin::own(disk.target.plugin()), at.clone(), group.into()).await;
            given.map_err(|error| failed(SET_UP, error.into()))?;
        }
        Ok(ready(at, disk.read_only))
    }

    /// Reads the secret by which a disk's target knows the node.
    async fn authenticate(&self, pod: &Pod, disk: &mut Disk) -> Result<(), SetUpError> {
        let DiskTarget::Iscsi(target) = &mut disk.target else { return Ok(()) };
        let chap = &mut target.1;
        let Some(secret) = chap.secret.as_ref().filter(|_| chap.discovery || chap.session) else { return Ok(()) };
        let namespace = secret.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        let (namespace, name) = (namespace.unwrap_or(pods::namespace(pod)), secret.name.as_deref().unwrap_or_default());
        let found = self.objects.secret(namespace, name).await;
        let found = found.map_err(|cause| SetUpError::Secret {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            cause,
        })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let values = found.data.iter().flatten().map(|(key, value)| (key.clone(), text(&value.0)));
        chap.values = values.collect();
        Ok(())
    }

    /// Binds a local volume, and gives it to the pod's group if no other pod has it.
    async fn bind(
        &self,
        pod: &Pod,
        name: &str,
        path: PathBuf,
        (read_only, options): (bool, &[String]),
    ) -> Result<MountedVolume, SetUpError> {
        let request = MountRequest::bind(&path, read_only, options);
        MOUNTING.run(move || hostpath::check(&path, "Directory")).await?;
        let (mounted, is_new) = self.help(pod, LOCAL, name, &request).await?;
        let Some(group) = driver_group(pod).filter(|_| is_new && !read_only) else { return Ok(mounted) };
        let own = self.folder(pod, LOCAL, name);
        let suffix = Path::new(&format!("kubernetes.io~{LOCAL}")).join(name);
        let own_suffix = Path::new(pods::uid(pod)).join("volumes").join(&suffix);
        let pods = self.pods.clone();
        let others = move || {
            let others =
                mounts::below(&pods)?.into_iter().filter(|at| at.ends_with(&suffix) && !at.ends_with(&own_suffix));
            Ok(others.count())
        };
        if MOUNTING.run(others).await? == 0 {
            give(&Plugin::own(LOCAL), own, group.into()).await?;
        }
        Ok(mounted)
    }

    /// Gives a pod a device of the node; one that is a file becomes a loop device.
    async fn map_device(&self, pod: &Pod, name: &str, path: PathBuf) -> Result<MountedVolume, VolumeError> {
        let failed = |cause: SetUpError| VolumeError::set_up("MapVolume.MapBlockVolume", name, cause);
        let (uid, looked) = (pods::uid(pod), path.clone());
        let is_device = MOUNTING.run(move || is_device(&looked)).await.map_err(|error| failed(error.into()))?;
        let held = self.blocks.hold(&path, &self.local_devices.join(name), uid).await;
        let held = held.map_err(|error| failed(error.into()))?;
        let device = if is_device { path } else { PathBuf::from(held) };
        let (link, to) = (self.device_link(uid, LOCAL, name), device.clone());
        let linked = link.clone();
        blocking(move || block::link(&to, &linked)).await.map_err(|error| failed(error.into()))?;
        Ok(MountedVolume { selinux_relabel: false, is_file: true, is_block: true, ..ready(link, false) })
    }

    /// Runs work on files of a pod: in a lane, unless they are on the kubelet's own file system.
    pub(super) async fn on_files<T: Send + 'static>(
        &self,
        lane: &'static Lane,
        path: &Path,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, WorkError> {
        let (pods, path) = (self.pods.clone(), path.to_path_buf());
        let is_own = blocking(move || mounts::is_own(&pods, &path)).await.unwrap_or(false);
        if is_own { blocking(work).await } else { lane.run(work).await }
    }

    /// Publishes a driver's volume for the pod.
    async fn publish(
        &self,
        pod: &Pod,
        volume: &csi::Volume,
        gone: &CancellationToken,
    ) -> Result<MountedVolume, VolumeError> {
        let published = self.publish_when(self.csi.prepare(pod, volume), pod, volume, gone).await;
        let host_path = published.map_err(|failure| driver_error(failure, volume))?;
        let (read_only, is_block) = (volume.is_read_only(), volume.is_block);
        let selinux_relabel = !self.csi.is_labelled(pods::uid(pod), &volume.name);
        Ok(MountedVolume { host_path, read_only, selinux_relabel, is_file: false, is_block })
    }

    /// Publishes a volume once it is ready. The wait is given up when the pod goes, and the calls never are.
    pub(super) async fn publish_when(
        &self,
        ready: impl Future<Output = Result<Ready, VolumeFailure>>,
        pod: &Pod,
        volume: &csi::Volume,
        gone: &CancellationToken,
    ) -> Result<PathBuf, VolumeFailure> {
        let ready = tokio::select! {
            ready = ready => ready?,
            () = gone.cancelled() => {
                return Err(VolumeFailure::Attach(AttachError::Gone));
            }
        };
        self.csi.publish(pod, volume, driver_group(pod), ready).await
    }

    pub(super) async fn mount(
        &self,
        pod: &Pod,
        facts: &PodFacts,
        gone: &CancellationToken,
    ) -> Result<BTreeMap<String, MountedVolume>, VolumeError> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let made = volumes.iter().map(|volume| self.make_ready(pod, facts, volume, gone));
        let made = futures::future::join_all(made).await;
        let names = volumes.iter().map(|volume| volume.name.clone());
        let ready = names.zip(made).filter_map(|(name, ready)| Some(ready.transpose()?.map(|ready| (name, ready))));
        ready.collect()
    }

    pub(super) async fn set_up(
        &self,
        pod: &Pod,
        facts: &PodFacts,
        volume: &Volume,
    ) -> Result<MountedVolume, SetUpError> {
        if let Some(source) = &volume.host_path {
            let (path, kind) = (PathBuf::from(&source.path), source.type_.clone().unwrap_or_default());
            return Ok(MOUNTING.run(move || hostpath::check(&path, &kind)).await?);
        }
        if let Some(source) = &volume.empty_dir {
            let folder = self.folder(pod, "empty-dir", &volume.name);
            let (size, medium) = (memory_size(pod, facts, source), source.medium.clone().unwrap_or_default());
            let group = fs_group(pod);
            let record = self.pods.join(pods::uid(pod)).join("plugins/kubernetes.io~empty-dir").join(&volume.name);
            let make = move || empty_dir((&folder, &record), &medium, size, group).map(|()| ready(folder, false));
            return Ok(blocking(make).await?);
        }
        if let Some(source) = &volume.nfs {
            let request = MountRequest::nfs(source, source.read_only.unwrap_or(false), &[]);
            return Ok(self.help(pod, "nfs", &volume.name, &request).await?.0);
        }
        let context = ContentInputs { pod, facts, objects: &*self.objects, tokens: &self.tokens };
        let Some(mut payload) = payload(&context, volume).await? else {
            return Err(SetUpError::NoPlugin(volume.name.clone()));
        };
        let (plugin, in_memory) = content_plugin(volume);
        let folder = self.folder(pod, plugin, &volume.name);
        let group = fs_group(pod);
        if group.is_some() {
            // As giving the volume to the group will leave them: else the next look finds files that differ.
            payload.values_mut().for_each(|file| file.mode |= mounts::GROUP_READS);
        }
        let mount_points = nested::mount_points(pod, &volume.name).map_err(WorkError::from)?;
        let written = blocking(move || {
            make_folder(&folder, 0o777)?;
            if in_memory {
                mounts::memory(&folder, "tmpfs", "")?;
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777))?;
            }
            nested::make(&folder, &mount_points)?;
            writer::write(&folder, &payload, Timestamp::now())?;
            if let Some(group) = group {
                mounts::give_to_group(&folder, group, true)?;
            }
            Ok(ready(folder, true))
        });
        Ok(written.await?)
    }
}

pub(super) fn ready(host_path: PathBuf, read_only: bool) -> MountedVolume {
    MountedVolume { host_path, read_only, selinux_relabel: true, is_file: false, is_block: false }
}

/// Reports whether a path is a block device, and not a regular file.
fn is_device(path: &Path) -> io::Result<bool> {
    let kind =
        fs::metadata(path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?.file_type();
    if kind.is_block_device() || kind.is_file() {
        return Ok(kind.is_block_device());
    }
    Err(io::Error::other(format!("{} is not a block device", path.display())))
}

/// The driver's volume that a pod has without a claim, if it is one: its own, or one of a plugin of old.
pub(super) fn driver_volume(pod: &Pod, volume: &Volume) -> Result<Option<csi::Volume>, VolumeError> {
    if let Some(own) = csi::Volume::inline(pod, volume) {
        return Ok(Some(own));
    }
    let migrated = csi::migrated_inline(volume, pods::namespace(pod));
    let migrated = migrated.map_err(|error| VolumeError::unknown(&volume.name, error))?;
    let volume = migrated.and_then(|volume| csi::Volume::persistent(&volume, false));
    Ok(volume.map(|volume| volume.migrated(true)))
}

pub(super) fn driver_error(failure: VolumeFailure, volume: &csi::Volume) -> VolumeError {
    let (steps, cause): (_, SetUpError) = match failure {
        VolumeFailure::Exhausted(cause) => return VolumeError::Exhausted { volume: volume.used_as.clone(), cause },
        VolumeFailure::Attach(error) => (["MountVolume.WaitForAttach", "MapVolume.WaitForAttach"], error.into()),
        VolumeFailure::Stage(error) => (["MountVolume.MountDevice", "MapVolume.SetUpDevice"], error.into()),
        VolumeFailure::Publish(error) => ([SET_UP, "MapVolume.MapPodDevice"], error.into()),
        VolumeFailure::Map(error) => ([SET_UP, "MapVolume.MapBlockVolume"], error.into()),
    };
    VolumeError::set_up(steps[usize::from(volume.is_block)], &volume.name, cause)
}

/// The group that drivers' volumes are given to.
pub(super) fn driver_group(pod: &Pod) -> Option<VolumeGroup> {
    let policy = pod.spec.as_ref()?.security_context.as_ref()?.fs_group_change_policy.as_deref();
    Some(VolumeGroup { id: fs_group(pod)?, on_root_mismatch: policy == Some("OnRootMismatch") })
}

pub(super) fn has_content(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

/// The plugin's folder name, and whether the content must not reach a disk.
pub(super) fn content_plugin(volume: &Volume) -> (&'static str, bool) {
    if volume.secret.is_some() {
        ("secret", true)
    } else if volume.config_map.is_some() {
        ("configmap", false)
    } else if volume.downward_api.is_some() {
        ("downward-api", true)
    } else {
        ("projected", true)
    }
}

fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}
