//! The volume manager: sets up, refreshes and takes down the volumes of pods.

use super::content::{Context, payload};
use super::tokens::Tokens;
use super::{MountedVolume, VolumeError, Volumes, claims, hostpath, mounts, writer};
use crate::facts::PodFacts;
use crate::objects::ObjectSource;
use crate::resources::pod_limits;
use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume, VolumeMount};
use proto::quantity::Quantity as Amount;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Volumes below one kubelet's root directory.
pub struct Manager {
    pods: PathBuf,
    objects: Arc<dyn ObjectSource>,
    tokens: Tokens,
}

impl Manager {
    /// A manager for `<root-dir>/pods`.
    pub fn new(root_dir: &Path, objects: Arc<dyn ObjectSource>) -> Self {
        Self { pods: root_dir.join("pods"), objects, tokens: Tokens::default() }
    }

    fn folder(&self, pod: &Pod, plugin: &str, volume: &str) -> PathBuf {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.pods.join(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(volume)
    }

    /// A volume of the pod, or the persistent one that it claims.
    async fn make_ready(&self, pod: &Pod, facts: &PodFacts, volume: &Volume) -> Result<MountedVolume, VolumeError> {
        let name = || volume.name.clone();
        let claimed = claims::resolve(&*self.objects, pod, volume).await;
        let claimed = claimed.map_err(|message| VolumeError::Unknown { volume: name(), message })?;
        let (volume, read_only) = claimed.as_ref().map_or((volume, false), |c| (&c.volume, c.read_only));
        let ready = self.set_up(pod, facts, volume).await;
        let ready = ready.map_err(|message| VolumeError::SetUp { volume: name(), message })?;
        Ok(MountedVolume { read_only: ready.read_only || read_only, ..ready })
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
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mut mounted = BTreeMap::new();
        let mut failure = None;
        for volume in volumes {
            match self.make_ready(pod, facts, volume).await {
                Ok(ready) => {
                    mounted.insert(volume.name.clone(), ready);
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        failure.map_or(Ok(mounted), Err)
    }

    async fn refresh(&self, pod: &Pod, facts: &PodFacts) -> Result<(), VolumeError> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        for volume in volumes.iter().filter(|volume| has_content(volume)) {
            let result = self.set_up(pod, facts, volume).await;
            result.map_err(|message| VolumeError::SetUp { volume: volume.name.clone(), message })?;
        }
        Ok(())
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
        let target =
            self.pods.join(uid).join("volume-subpaths").join(&mount.name).join(container).join(index.to_string());
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
        self.tokens.forget(pod_uid);
        let folder = self.pods.join(pod_uid);
        // A uid from the disk or the API is one path element, or it is not a pod of ours.
        if matches!(pod_uid, "" | "." | "..") || folder.parent() != Some(self.pods.as_path()) {
            return Ok(());
        }
        blocking(move || take_down(&folder)).await.map_err(VolumeError::TearDown)
    }

    fn pods_on_disk(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.pods).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn ready(host_path: PathBuf, read_only: bool) -> MountedVolume {
    MountedVolume { host_path, read_only, selinux_relabel: true, is_file: false }
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
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

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
