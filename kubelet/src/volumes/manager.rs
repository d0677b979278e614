//! The volume manager: sets up, refreshes and takes down the volumes of pods.

use super::claims::{self, Claimed, Source, Use};
use super::content::{Context, payload};
use super::helper::{self, Request};
use super::tokens::Tokens;
use super::usage::{Known, Usage, VolumeUsage};
use super::{MountedVolume, VolumeError, Volumes, hostpath, mounts, writer};
use crate::blocking::blocking;
use crate::csi::{self, Csi, Drivers, Failure, Group, Ready};
use crate::facts::PodFacts;
use crate::objects::ObjectSource;
use crate::pods;
use crate::resources::pod_limits;
use crate::settings::Settings;
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Node, Pod, Volume, VolumeMount};
use parking_lot::Mutex;
use proto::quantity::Quantity as Amount;
use shared::placement;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

/// Volumes below one kubelet's root directory.
pub struct Manager {
    inner: Arc<Inner>,
    locks: Mutex<HashMap<String, Arc<PodLock>>>,
}

/// Work on one pod's volumes: it may be begun by many, and taking down waits for all of it.
#[derive(Default)]
struct PodLock {
    busy: RwLock<()>,
    /// The pod is being taken down: nothing is begun any more.
    gone: CancellationToken,
}

/// State and sources that volumes are made with.
struct Inner {
    pods: PathBuf,
    objects: Arc<dyn ObjectSource>,
    tokens: Arc<Tokens>,
    csi: Csi,
    /// Claims of pods as they were last made ready, by uid and volume.
    claims: Mutex<HashMap<(String, String), (String, Source)>>,
    usage: Mutex<Known>,
    /// The node as the API server has it.
    node: ArcSwapOption<Node>,
}

/// Longest wait for a look at a pod's volumes.
const USAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Steps of making volumes ready, as upstream's events name them.
const SET_UP: &str = "MountVolume.SetUp";

fn failed_step(failure: &Failure, is_block: bool) -> (&'static str, String) {
    let (step, error) = match failure {
        Failure::Attach(error) => (["MountVolume.WaitForAttach", "MapVolume.WaitForAttach"], error),
        Failure::Stage(error) => (["MountVolume.MountDevice", "MapVolume.SetUpDevice"], error),
        Failure::Publish(error) => ([SET_UP, "MapVolume.MapPodDevice"], error),
        Failure::Expand(error) => (["MountVolume.NodeExpandVolume", "MapVolume.NodeExpandVolume"], error),
    };
    (step[usize::from(is_block)], error.clone())
}

impl Manager {
    /// A manager for `<root-dir>/pods` of the node of this name.
    pub fn new(settings: &Settings, objects: Arc<dyn ObjectSource>, drivers: Arc<Drivers>) -> Self {
        let tokens = Arc::new(Tokens::default());
        let place = (settings.root_dir.as_path(), settings.node_name.as_str());
        let by_controller = settings.enable_controller_attach_detach;
        let csi = Csi::new(place, by_controller, Arc::clone(&objects), drivers, Arc::clone(&tokens));
        let (claims, usage) = (Mutex::default(), Mutex::default());
        let (pods, node) = (settings.root_dir.join("pods"), ArcSwapOption::empty());
        let inner = Arc::new(Inner { pods, objects, tokens, csi, claims, usage, node });
        Self { inner, locks: Mutex::default() }
    }

    fn lock(&self, uid: &str) -> Arc<PodLock> {
        Arc::clone(self.locks.lock().entry(uid.to_owned()).or_default())
    }

    /// Does work on a pod's volumes to its end, also when nobody waits for it any more: what it mounts is to be found.
    async fn work<T: Send + 'static, F>(
        &self,
        pod: &Pod,
        work: impl FnOnce(Arc<Inner>, Pod, Arc<PodLock>) -> F,
    ) -> Result<T, VolumeError>
    where
        F: Future<Output = Result<T, VolumeError>> + Send + 'static,
    {
        let lock = self.lock(pods::uid(pod));
        let doing = work(Arc::clone(&self.inner), pod.clone(), Arc::clone(&lock));
        let task = tokio::spawn(async move {
            let _busy = lock.busy.read().await;
            if lock.gone.is_cancelled() {
                return Err(VolumeError::TearDown("the pod's volumes are being taken down".to_owned()));
            }
            doing.await
        });
        task.await.unwrap_or_else(|error| Err(VolumeError::TearDown(error.to_string())))
    }
}

impl Inner {
    /// Folder of the sub-paths that a pod's containers have.
    fn sub_paths(&self, uid: &str) -> PathBuf {
        self.pods.join(uid).join("volume-subpaths")
    }

    fn folder(&self, pod: &Pod, plugin: &str, volume: &str) -> PathBuf {
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
        let set_up = |name: &str, message| VolumeError::SetUp { step: SET_UP, volume: name.to_owned(), message };
        let Some(claimed) = self.claimed(pod, volume).await? else {
            // The runtime mounts images itself.
            if volume.image.is_some() || (volume.csi.is_some() && Use::of(pod, &volume.name).is_none()) {
                return Ok(None);
            }
            if let Some(inline) = csi::Volume::inline(pod, volume) {
                return self.publish(pod, &inline, gone).await.map(Some);
            }
            let ready = self.set_up(pod, facts, volume).await;
            return ready.map(Some).map_err(|message| set_up(&volume.name, message));
        };
        let ready = match claimed.source {
            Source::Csi(_) if Use::of(pod, &volume.name).is_none() => return Ok(None),
            Source::Csi(volume) => {
                let ready = self.publish(pod, &volume, gone).await?;
                let grown = self.csi.expand(pod, &volume, &claimed.claim).await;
                grown.map_err(|failure| driver_error(&failure, &volume))?;
                ready
            }
            Source::Device(path) => device(path).map_err(|message| set_up(&claimed.name, message))?,
            Source::Local(path) => {
                let bound = self.bind(pod, &claimed.name, path, (claimed.read_only, &claimed.options)).await;
                bound.map_err(|message| set_up(&claimed.name, message))?
            }
            Source::Nfs(source) => {
                let request = Request::nfs(&source, claimed.read_only, &claimed.options);
                let mounted = self.help(pod, "nfs", &claimed.name, &request).await;
                mounted.map_err(|message| set_up(&claimed.name, message))?.0
            }
            Source::Path(source) => {
                let (path, kind) = (PathBuf::from(&source.path), source.type_.unwrap_or_default());
                let checked = blocking(move || hostpath::check(&path, &kind)).await;
                checked.map_err(|message| set_up(&claimed.name, message))?
            }
        };
        Ok(Some(MountedVolume { read_only: ready.read_only || claimed.read_only, ..ready }))
    }

    async fn claimed(&self, pod: &Pod, volume: &Volume) -> Result<Option<Claimed>, VolumeError> {
        let claimed = claims::resolve(&*self.objects, pod, volume, Use::of(pod, &volume.name)).await;
        let claimed = claimed.map_err(|message| VolumeError::Unknown { volume: volume.name.clone(), message })?;
        if let Some(claimed) = &claimed {
            self.check_node(claimed)?;
            let key = (pods::uid(pod).to_owned(), volume.name.clone());
            let name = claimed.claim.metadata.name.clone().unwrap_or_default();
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
        let (volume, message) = (claimed.name.clone(), "no matching NodeSelectorTerms".to_owned());
        Err(VolumeError::SetUp { step: "MountVolume.NodeAffinity check", volume, message })
    }

    /// Mounts something by the distribution's helpers. Reports whether it was mounted now.
    async fn help(
        &self,
        pod: &Pod,
        plugin: &str,
        name: &str,
        request: &Request,
    ) -> Result<(MountedVolume, bool), String> {
        let folder = self.folder(pod, plugin, name);
        let is_new = request.mount(helper::MOUNT, &folder).await?;
        Ok((ready(folder, false), is_new))
    }

    /// Binds a local volume, and gives it to the pod's group if no other pod has it.
    async fn bind(
        &self,
        pod: &Pod,
        name: &str,
        path: PathBuf,
        (read_only, options): (bool, &[String]),
    ) -> Result<MountedVolume, String> {
        const PLUGIN: &str = "local-volume";
        let request = Request::bind(&path, read_only, options);
        blocking(move || hostpath::check(&path, "Directory")).await?;
        let (mounted, is_new) = self.help(pod, PLUGIN, name, &request).await?;
        let Some(group) = driver_group(pod).filter(|_| is_new && !read_only) else { return Ok(mounted) };
        let own = self.folder(pod, PLUGIN, name);
        let suffix = Path::new(&format!("kubernetes.io~{PLUGIN}")).join(name);
        let own_suffix = Path::new(pods::uid(pod)).join("volumes").join(&suffix);
        let pods = self.pods.clone();
        blocking(move || {
            let others =
                mounts::below(&pods)?.into_iter().filter(|at| at.ends_with(&suffix) && !at.ends_with(&own_suffix));
            if others.count() > 0 || (group.on_root_mismatch && mounts::is_of_group(&own, group.id)?) {
                return Ok(());
            }
            mounts::give_to_group(&own, group.id, false)
        })
        .await?;
        Ok(mounted)
    }

    /// Numbers of a pod's volumes.
    async fn usage(&self, pod: &Pod) -> Vec<VolumeUsage> {
        let mut found = Vec::new();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let claimed = self.claims.lock().get(&(pods::uid(pod).to_owned(), volume.name.clone())).cloned();
            let (claim, source) = claimed.unzip();
            if let Some(usage) = self.usage_of(pod, volume, source).await {
                found.push(VolumeUsage { volume: volume.name.clone(), claim, usage });
            }
        }
        found
    }

    /// Numbers of a volume; none for kinds that have none: a path of the node is not the pod's.
    async fn usage_of(&self, pod: &Pod, volume: &Volume, claimed: Option<Source>) -> Option<Usage> {
        let is_own = has_content(volume) || volume.empty_dir.is_some();
        let plugin = if volume.empty_dir.is_some() { "empty-dir" } else { content_plugin(volume).0 };
        let folder = self.folder(pod, plugin, &volume.name);
        let read = |work: fn(&Path) -> Option<Usage>, path: PathBuf| async move {
            blocking(move || Ok(work(&path))).await.ok().flatten()
        };
        match claimed {
            Some(Source::Csi(volume)) => self.csi.usage(pods::uid(pod), &volume).await,
            Some(Source::Local(path)) => read(Usage::of_file_system, path).await,
            // To ask a server that is away may take for ever.
            Some(Source::Path(_) | Source::Device(_) | Source::Nfs(_)) => None,
            None if is_own => read(Usage::of_folder, folder).await,
            None => self.csi.usage(pods::uid(pod), &csi::Volume::inline(pod, volume)?).await,
        }
    }

    /// Publishes a driver's volume for the pod.
    async fn publish(
        &self,
        pod: &Pod,
        volume: &csi::Volume,
        gone: &CancellationToken,
    ) -> Result<MountedVolume, VolumeError> {
        let published = self.publish_when(self.csi.prepare(pod, volume), pod, volume, gone).await;
        let host_path = published.map_err(|failure| driver_error(&failure, volume))?;
        let (read_only, is_block) = (volume.is_read_only(), volume.is_block);
        Ok(MountedVolume { host_path, read_only, selinux_relabel: true, is_file: false, is_block })
    }

    /// Publishes a volume once it is ready. The wait is given up when the pod goes, and the calls never are.
    async fn publish_when(
        &self,
        ready: impl Future<Output = Result<Ready, Failure>>,
        pod: &Pod,
        volume: &csi::Volume,
        gone: &CancellationToken,
    ) -> Result<PathBuf, Failure> {
        let ready = tokio::select! {
            ready = ready => ready?,
            () = gone.cancelled() => {
                return Err(Failure::Attach("the pod's volumes are being taken down".to_owned()));
            }
        };
        self.csi.publish(pod, volume, driver_group(pod), ready).await
    }

    async fn mount(
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

    async fn refresh(&self, pod: &Pod, facts: &PodFacts, gone: &CancellationToken) -> Result<(), VolumeError> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        // A token is renewed whatever a driver does: none waits for another, and none is left out for another's failure.
        let refreshed = volumes.iter().map(|volume| self.refresh_one(pod, facts, volume, gone));
        futures::future::join_all(refreshed).await.into_iter().collect()
    }

    async fn refresh_one(
        &self,
        pod: &Pod,
        facts: &PodFacts,
        volume: &Volume,
        gone: &CancellationToken,
    ) -> Result<(), VolumeError> {
        if has_content(volume) {
            let failed = |message| VolumeError::SetUp { step: SET_UP, volume: volume.name.clone(), message };
            return self.set_up(pod, facts, volume).await.map(drop).map_err(failed);
        }
        if Use::of(pod, &volume.name).is_none() { Ok(()) } else { self.refresh_driver(pod, volume, gone).await }
    }

    /// Publishes a driver's volume again, and grows it, where that is wanted.
    async fn refresh_driver(&self, pod: &Pod, volume: &Volume, gone: &CancellationToken) -> Result<(), VolumeError> {
        let claimed = self.claimed(pod, volume).await?;
        let (volume, claim) = match claimed {
            Some(Claimed { source: Source::Csi(volume), claim, .. }) => (*volume, Some(claim)),
            Some(_) => return Ok(()),
            None => match csi::Volume::inline(pod, volume) {
                Some(inline) => (inline, None),
                None => return Ok(()),
            },
        };
        let ready = self.csi.prepare_again(pod, &volume);
        let mut refreshed = self.publish_when(ready, pod, &volume, gone).await.map(drop);
        if let (Ok(()), Some(claim)) = (&refreshed, claim) {
            refreshed = self.csi.expand(pod, &volume, &claim).await;
        }
        refreshed.map_err(|failure| driver_error(&failure, &volume))
    }

    async fn set_up(&self, pod: &Pod, facts: &PodFacts, volume: &Volume) -> Result<MountedVolume, String> {
        if let Some(source) = &volume.host_path {
            let (path, kind) = (PathBuf::from(&source.path), source.type_.clone().unwrap_or_default());
            return blocking(move || hostpath::check(&path, &kind)).await;
        }
        if let Some(source) = &volume.empty_dir {
            let folder = self.folder(pod, "empty-dir", &volume.name);
            let (size, medium) = (memory_size(pod, facts, source), source.medium.clone().unwrap_or_default());
            let group = fs_group(pod);
            return blocking(move || empty_dir(&folder, &medium, size, group).map(|()| ready(folder, false))).await;
        }
        if let Some(source) = &volume.nfs {
            let request = Request::nfs(source, source.read_only.unwrap_or(false), &[]);
            return Ok(self.help(pod, "nfs", &volume.name, &request).await?.0);
        }
        let context = Context { pod, facts, objects: &*self.objects, tokens: &self.tokens };
        let Some(mut payload) = payload(&context, volume).await? else {
            return Err(format!("no volume plugin matched for volume {}", volume.name));
        };
        let (plugin, in_memory) = content_plugin(volume);
        let folder = self.folder(pod, plugin, &volume.name);
        let group = fs_group(pod);
        if group.is_some() {
            // As giving the volume to the group will leave them: else the next look finds files that differ.
            payload.values_mut().for_each(|file| file.mode |= mounts::GROUP_READS);
        }
        blocking(move || {
            make_folder(&folder, 0o777)?;
            if in_memory {
                mounts::memory(&folder, "tmpfs", "")?;
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777))?;
            }
            writer::write(&folder, &payload, Timestamp::now())?;
            if let Some(group) = group {
                mounts::give_to_group(&folder, group, true)?;
            }
            Ok(ready(folder, true))
        })
        .await
    }
}

#[async_trait]
impl Volumes for Manager {
    async fn mount(&self, pod: &Pod, facts: &PodFacts) -> Result<BTreeMap<String, MountedVolume>, VolumeError> {
        let facts = facts.clone();
        self.work(pod, |inner, pod, lock| async move { inner.mount(&pod, &facts, &lock.gone).await }).await
    }

    async fn refresh(&self, pod: &Pod, facts: &PodFacts) -> Result<(), VolumeError> {
        let facts = facts.clone();
        self.work(pod, |inner, pod, lock| async move { inner.refresh(&pod, &facts, &lock.gone).await }).await
    }

    async fn mount_path(
        &self,
        pod: &Pod,
        container: &str,
        index: usize,
        volume: &MountedVolume,
        mount: &VolumeMount,
        sub_path: &str,
    ) -> Result<PathBuf, VolumeError> {
        if sub_path.is_empty() {
            return Ok(volume.host_path.clone());
        }
        mounts::check_sub_path(sub_path).map_err(VolumeError::SubPath)?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let target = self.inner.sub_paths(uid).join(&mount.name).join(container).join(index.to_string());
        let (source, sub_path, bound) = (volume.host_path.clone(), sub_path.to_owned(), target.clone());
        let name = mount.name.clone();
        blocking(move || mounts::bind_sub_path(&source, &sub_path, &bound)).await.map_err(|error| {
            // Users are not told what is where on the host.
            tracing::warn!(pod_uid = uid, volume = name, error, "Failed to prepare subPath");
            VolumeError::SubPath(format!(
                "failed to prepare subPath for volumeMount {name:?} of container {container:?}"
            ))
        })?;
        Ok(target)
    }

    async fn read(&self, volume: &MountedVolume, path: &str) -> Result<Option<String>, VolumeError> {
        let (root, path) = (volume.host_path.clone(), path.to_owned());
        let failed = |error: String| VolumeError::SubPath(format!("failed to read file of a volume: {error}"));
        blocking(move || mounts::read_beneath(&root, &path)).await.map_err(failed)
    }

    async fn unmount(&self, pod_uid: &str) -> Result<(), VolumeError> {
        let inner = &self.inner;
        inner.tokens.forget(pod_uid);
        let folder = inner.pods.join(pod_uid);
        // A uid from the disk or the API is one path element, or it is not a pod of ours.
        if matches!(pod_uid, "" | "." | "..") || folder.parent() != Some(inner.pods.as_path()) {
            return Ok(());
        }
        let lock = self.lock(pod_uid);
        lock.gone.cancel();
        let _alone = lock.busy.write().await;
        // Sub-paths keep the volumes busy that they are in.
        let sub_paths = inner.sub_paths(pod_uid);
        blocking(move || mounts::unmount_all(&sub_paths)).await.map_err(VolumeError::TearDown)?;
        inner.csi.unpublish(pod_uid).await.map_err(VolumeError::TearDown)?;
        blocking(move || take_down(&folder)).await.map_err(VolumeError::TearDown)?;
        self.locks.lock().remove(pod_uid);
        inner.usage.lock().forget(pod_uid);
        inner.claims.lock().retain(|(uid, _), _| uid != pod_uid);
        Ok(())
    }

    fn in_use(&self) -> Vec<String> {
        self.inner.csi.in_use()
    }

    async fn in_use_changed(&self) {
        self.inner.csi.in_use_changed().await;
    }

    fn observe_node(&self, node: &Arc<Node>) {
        self.inner.node.store(Some(Arc::clone(node)));
        self.inner.csi.observe_node(node);
    }

    async fn usage(&self, pod: &Pod) -> Arc<Vec<VolumeUsage>> {
        let uid = pods::uid(pod);
        let (last, is_due) = self.inner.usage.lock().ask(uid, Instant::now());
        if !is_due {
            return last;
        }
        let (inner, pod) = (Arc::clone(&self.inner), pod.clone());
        let look = tokio::spawn(async move {
            let found = Arc::new(inner.usage(&pod).await);
            inner.usage.lock().keep(pods::uid(&pod), Instant::now(), Arc::clone(&found));
            found
        });
        // Whoever asks next has the numbers of one that takes its time.
        tokio::time::timeout(USAGE_TIMEOUT, look).await.ok().and_then(Result::ok).unwrap_or(last)
    }

    async fn sweep(&self) {
        self.inner.csi.sweep().await;
    }

    fn pods_on_disk(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.inner.pods).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

fn ready(host_path: PathBuf, read_only: bool) -> MountedVolume {
    MountedVolume { host_path, read_only, selinux_relabel: true, is_file: false, is_block: false }
}

/// A block device of the node.
fn device(path: PathBuf) -> Result<MountedVolume, String> {
    let is_device = fs::metadata(&path).map(|found| found.file_type().is_block_device());
    match is_device {
        Ok(true) => Ok(MountedVolume {
            host_path: path,
            read_only: false,
            selinux_relabel: false,
            is_file: true,
            is_block: true,
        }),
        Ok(false) => Err(format!("{} is not a block device", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn driver_error(failure: &Failure, volume: &csi::Volume) -> VolumeError {
    let (step, message) = failed_step(failure, volume.is_block);
    VolumeError::SetUp { step, volume: volume.name.clone(), message }
}

/// The group that drivers' volumes are given to.
fn driver_group(pod: &Pod) -> Option<Group> {
    let policy = pod.spec.as_ref()?.security_context.as_ref()?.fs_group_change_policy.as_deref();
    Some(Group { id: fs_group(pod)?, on_root_mismatch: policy == Some("OnRootMismatch") })
}

fn has_content(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

/// The plugin's folder name, and whether the content must not reach a disk.
fn content_plugin(volume: &Volume) -> (&'static str, bool) {
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

fn make_folder(folder: &Path, mode: u32) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

/// What a volume in memory may hold: no more than its limit, than the pod may use, than the node gives to pods.
fn memory_size(pod: &Pod, facts: &PodFacts, source: &EmptyDirVolumeSource) -> Option<i64> {
    let own = source.size_limit.as_ref().and_then(|limit| limit.0.parse::<Amount>().ok()).map(|size| size.value());
    let pod = pod.spec.as_ref().and_then(|spec| pod_limits(spec).memory);
    let node = facts.allocatable.get("memory").and_then(|all| all.0.parse::<Amount>().ok()).map(|all| all.value());
    [own, pod, node].into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// An empty folder that lives as long as the pod. Once it is there it is the containers'
/// own: a second call must not touch it.
fn empty_dir(folder: &Path, medium: &str, size: Option<i64>, group: Option<u32>) -> io::Result<()> {
    if folder.is_dir() && (medium.is_empty() || mounts::is_mount_point(folder)?) {
        return Ok(());
    }
    make_folder(folder, 0o777)?;
    if medium == "Memory" {
        mounts::memory(folder, "tmpfs", &size.map(|bytes| format!("size={bytes}")).unwrap_or_default())?;
    } else if let Some(page) = medium.strip_prefix("HugePages-") {
        mounts::memory(folder, "hugetlbfs", &format!("pagesize={}", page.trim_end_matches('i')))?;
    } else if !medium.is_empty() && medium != "HugePages" {
        return Err(io::Error::other(format!("unknown storage medium {medium:?}")));
    } else if medium == "HugePages" {
        mounts::memory(folder, "hugetlbfs", "")?;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
    group.map_or(Ok(()), |group| mounts::give_to_group(folder, group, false))
}

/// Deletes a pod's folder, never across a mount point: what is mounted is not the pod's.
fn take_down(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    mounts::unmount_all(folder)?;
    if let Some(left) = mounts::below(folder)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", left.display())));
    }
    fs::remove_dir_all(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ObjectError;
    use crate::workers::container::tests::settings;
    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use k8s_openapi::api::storage::v1::CSIDriver;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    /// A claim `c` that is bound to a volume of a driver.
    struct Objects;

    #[async_trait]
    impl ObjectSource for Objects {
        async fn claim(&self, _: &str, _: &str) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
            let claim = json!({"metadata": {"name": "c", "uid": "claim"}, "spec": {"volumeName": "pv"},
                "status": {"phase": "Bound"}});
            Ok(Arc::new(serde_json::from_value(claim).expect("a claim")))
        }
        async fn persistent_volume(&self, _: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
            let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
            let spec = json!({"claimRef": {"uid": "claim"}, "csi": {"driver": "d", "volumeHandle": "h"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}});
            let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
            Ok(Arc::new(serde_json::from_value(volume).expect("a volume")))
        }
        async fn csi_driver(&self, _: &str) -> Result<Option<Arc<CSIDriver>>, ObjectError> {
            Ok(None)
        }
    }

    fn claimant() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}))
        .expect("a pod")
    }

    fn manager(root: &Path) -> Arc<Manager> {
        let settings = Settings { root_dir: root.to_path_buf(), ..settings() };
        Arc::new(Manager::new(&settings, Arc::new(Objects), Arc::new(Drivers::new(None, "node"))))
    }

    #[tokio::test]
    async fn a_pod_that_waits_for_its_volume_is_taken_down() {
        let root = tempfile::tempdir().expect("a folder");
        let manager = manager(root.path());
        let waiting = Arc::clone(&manager);
        // Nobody attaches the volume.
        let mount = tokio::spawn(async move { waiting.mount(&claimant(), &PodFacts::default()).await });
        while manager.in_use().is_empty() {
            tokio::task::yield_now().await;
        }
        let begun = Instant::now();
        manager.unmount("u").await.expect("taken down");
        let failure = mount.await.expect("ended").expect_err("given up");
        let text = "MountVolume.WaitForAttach failed for volume \"pv\" : the pod's volumes are being taken down";
        assert_eq!(failure.to_string(), text);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(manager.in_use(), Vec::<String>::new(), "it may be detached");
    }

    #[tokio::test]
    async fn volumes_of_other_nodes_are_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let manager = manager(root.path());
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "node", "labels": {"zone": "b"}}})).expect("a node");
        manager.observe_node(&Arc::new(node));
        let failure = manager.mount(&claimant(), &PodFacts::default()).await.expect_err("another zone");
        let text = "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms";
        assert_eq!((failure.to_string().as_str(), failure.reason()), (text, "FailedMount"));
    }

    #[tokio::test]
    async fn a_volume_that_fails_does_not_keep_others_from_being_refreshed() {
        let root = tempfile::tempdir().expect("a folder");
        let manager = manager(root.path());
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "node", "labels": {"zone": "b"}}})).expect("a node");
        manager.observe_node(&Arc::new(node));
        let mut pod = claimant();
        let labels = json!({"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]});
        let last = serde_json::from_value(json!({"name": "last", "configMap": {"name": "c"}})).expect("a volume");
        let more = serde_json::from_value(json!({"name": "more", "projected": {"sources": [{"downwardAPI": labels}]}}));
        let volumes = pod.spec.as_mut().and_then(|spec| spec.volumes.as_mut()).expect("volumes");
        volumes.extend([last, more.expect("a volume")]);
        let failure = manager.refresh(&pod, &PodFacts::default()).await.expect_err("the first fails");
        assert!(failure.to_string().starts_with("MountVolume.NodeAffinity check failed"), "{failure}");
        let written = root.path().join("pods/u/volumes/kubernetes.io~projected/more/name");
        assert_eq!(std::fs::read_to_string(written).expect("written"), "p");
        manager.unmount("u").await.expect("taken down");
    }

    #[test]
    fn a_volume_in_memory_is_as_large_as_its_pod_may_be() {
        let facts = PodFacts {
            allocatable: BTreeMap::from([("memory".to_owned(), Quantity("1Gi".to_owned()))]),
            ..PodFacts::default()
        };
        let limited = |limit: &str| json!({"name": "c", "resources": {"limits": {"memory": limit}}});
        for (size, containers, expected) in [
            (json!({}), json!([{"name": "c"}]), 1 << 30),
            (json!({"sizeLimit": "0"}), json!([limited("10Mi"), limited("6Mi")]), 16 << 20),
            (json!({"sizeLimit": "5Mi"}), json!([limited("10Mi")]), 5 << 20),
            (json!({"sizeLimit": "50Mi"}), json!([limited("10Mi")]), 10 << 20),
            (json!({"sizeLimit": "50Mi"}), json!([limited("10Mi"), {"name": "d"}]), 50 << 20),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": {"containers": containers}})).expect("pod");
            let source = serde_json::from_value(size.clone()).expect("source");
            assert_eq!(memory_size(&pod, &facts, &source), Some(expected), "{size}");
        }
    }
}
