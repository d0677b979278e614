//! The volume manager: one lock for each pod, and the doors of the others to its volumes.

use super::block::BlockDevices;
use super::disks::Disks;
use super::error::{SubPathError, TearDownError};
use super::flex::Flex;
use super::growth::Grower;
use super::metrics::{self, VolumeOperation, Worlds};
use super::setup::{Inner, LOCAL_DEVICES};
use super::tokens::Tokens;
use super::usage::{KnownUsage, VolumeUsage};
use super::{MountedVolume, VolumeError, Volumes, mounts};
use crate::blocking::{MOUNTING, REMOVAL, UNMOUNTING};
use crate::events::EventSink;
use crate::facts::PodFacts;
use crate::objects::ObjectSource;
use crate::pods;
use crate::settings::Settings;
use crate::trees;
use crate::volumes::csi::{Csi, Drivers, Selinux};
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Pod, VolumeMount};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
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

/// Longest wait for a look at a pod's volumes.
const USAGE_TIMEOUT: Duration = Duration::from_secs(2);

impl Manager {
    /// A manager for `<root-dir>/pods` of the node of this name.
    pub fn new(
        settings: &Settings,
        objects: Arc<dyn ObjectSource>,
        drivers: Arc<Drivers>,
        events: Arc<dyn EventSink>,
    ) -> Self {
        let tokens = Arc::new(Tokens::default());
        let place = (settings.root_dir.as_path(), settings.node_name.as_str());
        let by_controller = settings.enable_controller_attach_detach;
        let csi = Csi::new(place, by_controller, Arc::clone(&objects), drivers, Arc::clone(&tokens));
        let csi = csi.with_selinux(Selinux::of_node(Path::new("/"), &settings.gates));
        let csi = csi.with_health(settings.gates.enabled("CSIVolumeHealth"));
        let (claims, usage) = (Mutex::default(), Mutex::new(KnownUsage::new(settings.volume_stats_period)));
        let (pods, node) = (settings.root_dir.join("pods"), ArcSwapOption::empty());
        let (disks, names, groups) = (Disks::new(&settings.root_dir), Mutex::default(), Mutex::default());
        let flex = Flex::new(place, &settings.volume_plugin_dir, by_controller);
        disks.in_use().iter().chain(&flex.in_use()).for_each(|unique| csi.hold(unique));
        metrics::reconstructed(&pods, csi.unknown());
        let (worlds, grower) = (Worlds::default(), Grower::new(Arc::clone(&objects), events));
        let (blocks, local_devices) = (BlockDevices::default(), settings.root_dir.join(LOCAL_DEVICES));
        let inner = Inner {
            pods,
            objects,
            tokens,
            csi,
            disks,
            flex,
            grower,
            blocks,
            local_devices,
            claims,
            names,
            groups,
            usage,
            worlds,
            node,
        };
        let inner = Arc::new(inner);
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
                return Err(TearDownError::Gone.into());
            }
            doing.await
        });
        task.await.unwrap_or_else(|error| Err(TearDownError::from(error).into()))
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
        mounts::check_sub_path(sub_path).map_err(SubPathError::from)?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let target = self.inner.sub_paths(uid).join(&mount.name).join(container).join(index.to_string());
        let (source, sub_path, bound) = (volume.host_path.clone(), sub_path.to_owned(), target.clone());
        let name = mount.name.clone();
        let bind = move || mounts::bind_sub_path(&source, &sub_path, &bound);
        self.inner.on_files(&MOUNTING, &volume.host_path, bind).await.map_err(|error| {
            // Users are not told what is where on the host.
            tracing::warn!(pod_uid = uid, volume = name, %error, "Failed to prepare subPath");
            SubPathError::Bind { mount: name, container: container.to_owned() }
        })?;
        Ok(target)
    }

    async fn read(&self, volume: &MountedVolume, path: &str) -> Result<Option<String>, VolumeError> {
        let (root, path) = (volume.host_path.clone(), path.to_owned());
        let read = move || mounts::read_beneath(&root, &path);
        self.inner.on_files(&MOUNTING, &volume.host_path, read).await.map_err(|error| SubPathError::Read(error).into())
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
        inner.worlds.want_nothing(pod_uid);
        let _alone = lock.busy.write().await;
        let begun = Instant::now();
        // Sub-paths keep the volumes busy that they are in.
        let sub_paths = inner.sub_paths(pod_uid);
        let bound = sub_paths.clone();
        let unmounted = inner.on_files(&UNMOUNTING, &sub_paths, move || mounts::unmount_all(&bound)).await;
        unmounted.map_err(TearDownError::from)?;
        inner.csi.unpublish(pod_uid).await.map_err(TearDownError::from)?;
        inner.flex.unmount(pod_uid).await.map_err(TearDownError::from)?;
        let own = folder.clone();
        let unmounted = inner.on_files(&UNMOUNTING, &folder, move || unmount_whole(&own)).await;
        unmounted.map_err(TearDownError::from)?;
        let taken = REMOVAL.run(move || trees::remove(&folder)).await;
        // Drivers' volumes have been counted one by one.
        for plugin in inner.worlds.of(pod_uid).iter().filter(|plugin| !plugin.is_driver()) {
            metrics::ended(plugin, VolumeOperation::Unmount, begun, taken.is_err());
        }
        taken.map_err(TearDownError::from)?;
        inner.worlds.lose(pod_uid);
        inner.grower.forget(pod_uid);
        // A disk that cannot be taken from the node now is left to the sweep: the pod has nothing of it any more.
        inner.blocks.sweep(&inner.local_devices, &inner.pods).await;
        inner.disks.release(pod_uid).await.iter().for_each(|unique| inner.csi.let_go(unique));
        inner.flex.release(pod_uid).await.iter().for_each(|unique| inner.csi.let_go(unique));
        self.locks.lock().remove(pod_uid);
        inner.usage.lock().forget(pod_uid);
        inner.claims.lock().retain(|(uid, _), _| uid != pod_uid);
        inner.names.lock().retain(|(uid, _), _| uid != pod_uid);
        inner.groups.lock().retain(|(uid, _), _| uid != pod_uid);
        Ok(())
    }

    fn in_use(&self) -> Vec<String> {
        self.inner.csi.in_use()
    }

    async fn in_use_changed(&self) {
        self.inner.csi.in_use_changed().await;
    }

    fn groups(&self, pod: &Pod) -> Vec<i64> {
        let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let named = context.and_then(|context| context.supplemental_groups.as_deref()).unwrap_or_default();
        let groups = self.inner.groups.lock();
        let own = groups.iter().filter(|((uid, _), group)| uid == pods::uid(pod) && !named.contains(group));
        let mut own: Vec<i64> = own.map(|(_, group)| *group).collect();
        own.sort_unstable();
        own.dedup();
        own
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
        self.inner.blocks.sweep(&self.inner.local_devices, &self.inner.pods).await;
        self.inner.disks.sweep().await.iter().for_each(|unique| self.inner.csi.let_go(unique));
        self.inner.flex.sweep().await.iter().for_each(|unique| self.inner.csi.let_go(unique));
    }

    fn pods_on_disk(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.inner.pods).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

/// Unmounts all that is below a pod's folder.
fn unmount_whole(folder: &Path) -> io::Result<()> {
    mounts::unmount_all(folder)?;
    match mounts::below(folder)?.first() {
        Some(left) => Err(io::Error::other(format!("{} is still mounted", left.display()))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::LogSink;
    use crate::objects::{CertificateError, ObjectError};
    use crate::workers::container::tests::settings;
    use k8s_openapi::api::authentication::v1::{TokenRequestSpec, TokenRequestStatus};
    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use k8s_openapi::api::storage::v1::CSIDriver;
    use serde_json::{Value, json};
    use std::os::unix::fs::MetadataExt;

    /// Claims that are bound to volumes of a driver, or of their own names to those of the node that are told.
    #[derive(Default)]
    struct Objects {
        on_node: Value,
    }

    #[async_trait]
    impl ObjectSource for Objects {
        async fn claim(&self, _: &str, name: &str) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
            let volume = if self.on_node.is_null() { "pv" } else { name };
            let claim = json!({"metadata": {"name": name, "uid": "claim"}, "spec": {"volumeName": volume},
                "status": {"phase": "Bound"}});
            Ok(Arc::new(serde_json::from_value(claim).expect("a claim")))
        }
        async fn persistent_volume(&self, name: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
            if let Some(volume) = self.on_node.get(name) {
                return Ok(Arc::new(serde_json::from_value(volume.clone()).expect("a volume")));
            }
            let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
            let spec = json!({"claimRef": {"uid": "claim"}, "csi": {"driver": "d", "volumeHandle": "h"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}});
            let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
            Ok(Arc::new(serde_json::from_value(volume).expect("a volume")))
        }
        async fn csi_driver(&self, _: &str) -> Result<Option<Arc<CSIDriver>>, ObjectError> {
            Ok(None)
        }
        fn pod_certificate(&self, _: &Pod, volume: &str, source: usize) -> Result<(String, String), CertificateError> {
            Ok((format!("key of {volume} {source}\n"), "chain\n".to_owned()))
        }
        async fn token(&self, _: &Pod, _: TokenRequestSpec) -> Result<TokenRequestStatus, ObjectError> {
            let expires = json!({"token": "t", "expirationTimestamp": "2999-01-01T00:00:00Z"});
            Ok(serde_json::from_value(expires).expect("a token"))
        }
    }

    fn claimant() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}))
        .expect("a pod")
    }

    fn manager(root: &Path) -> Arc<Manager> {
        manager_with(root, Objects::default())
    }

    fn manager_with(root: &Path, objects: Objects) -> Arc<Manager> {
        let settings = Settings { root_dir: root.to_path_buf(), ..settings() };
        let drivers = Arc::new(Drivers::new(None, "node"));
        Arc::new(Manager::new(&settings, Arc::new(objects), drivers, Arc::new(LogSink)))
    }

    #[tokio::test]
    async fn pods_are_in_the_groups_that_their_volumes_are_for() {
        let root = tempfile::tempdir().expect("a folder");
        let groups = [("a", "1000"), ("b", "99"), ("c", "1000"), ("d", "staff"), ("e", "7"), ("unused", "8")];
        let volume = |(name, group): (&str, &str)| {
            let spec = json!({"claimRef": {"uid": "claim"}, "hostPath": {"path": root.path()}});
            let metadata = json!({"name": name, "annotations": {"pv.beta.kubernetes.io/gid": group}});
            (name.to_owned(), json!({"metadata": metadata, "spec": spec}))
        };
        let manager = manager_with(root.path(), Objects { on_node: groups.into_iter().map(volume).collect() });
        let mounts: Vec<Value> =
            ["a", "b", "c", "d", "e"].map(|name| json!({"name": name, "mountPath": format!("/{name}")})).into();
        let volumes: Vec<Value> =
            groups.map(|(name, _)| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})).into();
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {
            "securityContext": {"supplementalGroups": [7]},
            "containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes}}))
            .expect("a pod");
        assert_eq!(manager.groups(&pod), Vec::<i64>::new(), "nothing is mounted yet");
        manager.mount(&pod, &PodFacts::default()).await.expect("mounted");
        assert_eq!(manager.groups(&pod), [99, 1000], "once each, without those that the pod names");
        manager.unmount("u").await.expect("taken down");
        assert_eq!(manager.groups(&pod), Vec::<i64>::new());
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

    #[tokio::test]
    async fn volumes_that_are_read_only_have_folders_for_others() {
        let root = tempfile::tempdir().expect("a folder");
        let manager = manager(root.path());
        let labels = json!({"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]});
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/etc/conf", "readOnly": true},
                {"name": "data", "mountPath": "/etc/conf/a/data"}]}],
            "volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": labels}]}},
                {"name": "data", "emptyDir": {}}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        manager.mount(&pod, &PodFacts::default()).await.expect("mounted");
        let volume = root.path().join("pods/u/volumes/kubernetes.io~projected/v");
        let has_room = || volume.join("a/data").is_dir() && volume.join("name").is_file();
        assert!(has_room());
        manager.refresh(&pod, &PodFacts::default()).await.expect("refreshed");
        assert!(has_room(), "for as long as the pod lives");
        manager.unmount("u").await.expect("taken down");
        assert!(!volume.exists());
    }

    #[tokio::test]
    async fn volumes_of_the_node_are_given_to_the_group_of_their_first_pod() {
        let (root, disk) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let file = disk.path().join("file");
        std::fs::write(&file, "").expect("written");
        let metadata = json!({"name": "pv"});
        let spec = json!({"claimRef": {"uid": "claim"}, "local": {"path": disk.path()}});
        let on_node = json!({"c": {"metadata": metadata, "spec": spec}});
        let manager = manager_with(root.path(), Objects { on_node });
        let pod = |uid: &str, context: Value, read_only: bool| -> Pod {
            let mounts = json!([{"name": "v", "mountPath": "/v"}]);
            let claim = json!({"claimName": "c", "readOnly": read_only});
            let pod = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": {"securityContext": context,
                "containers": [{"name": "c", "volumeMounts": mounts}],
                "volumes": [{"name": "v", "persistentVolumeClaim": claim}]}});
            serde_json::from_value(pod).expect("a pod")
        };
        let group = |path: &Path| std::fs::metadata(path).expect("there").gid();
        let own = group(&file);
        let mount = async |pod: Pod| manager.mount(&pod, &PodFacts::default()).await.expect("mounted");
        mount(pod("reads", json!({"fsGroup": 4001}), true)).await;
        assert_eq!(group(&file), own, "of a pod that only reads");
        manager.unmount("reads").await.expect("taken down");
        let at = mount(pod("first", json!({"fsGroup": 4002}), false)).await["v"].host_path.clone();
        assert_eq!((group(&file), group(disk.path()), group(&at.join("file"))), (4002, 4002, 4002));
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o7777;
        assert_eq!((mode(disk.path()) & 0o2070, mode(&file) & 0o060), (0o2070, 0o060), "the group may read and write");
        mount(pod("second", json!({"fsGroup": 4003}), false)).await;
        assert_eq!(group(&file), 4002, "another pod has it");
        for uid in ["first", "second"] {
            manager.unmount(uid).await.expect("taken down");
        }
        std::os::unix::fs::chown(&file, None, Some(own)).expect("given back");
        let lazy = json!({"fsGroup": 4002, "fsGroupChangePolicy": "OnRootMismatch"});
        mount(pod("lazy", lazy, false)).await;
        assert_eq!(group(&file), own, "its root is the group's already");
        manager.unmount("lazy").await.expect("taken down");
        assert!(file.is_file(), "what is in the volume stays");
    }

    #[tokio::test]
    async fn files_are_written_once_whoever_owns_them() {
        let root = tempfile::tempdir().expect("a folder");
        let manager = manager(root.path());
        for (uid, user, group) in
            [("a", None, None), ("b", Some(0), None), ("c", Some(1000), None), ("d", Some(0), Some(7))]
        {
            let token = json!({"sources": [{"serviceAccountToken": {"path": "token"}}]});
            let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": uid}, "spec": {
                "securityContext": {"runAsUser": user, "fsGroup": group}, "containers": [{"name": "c"}],
                "volumes": [{"name": "v", "projected": token}]}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let volume = root.path().join(format!("pods/{uid}/volumes/kubernetes.io~projected/v"));
            manager.mount(&pod, &PodFacts::default()).await.expect("mounted");
            let version = std::fs::read_link(volume.join("..data")).expect("a version");
            let owner = std::fs::metadata(volume.join("token")).expect("a token").uid();
            assert_eq!(owner, user.unwrap_or(0), "pod {uid}");
            manager.refresh(&pod, &PodFacts::default()).await.expect("refreshed");
            assert_eq!(std::fs::read_link(volume.join("..data")).expect("a version"), version, "pod {uid}");
            manager.unmount(uid).await.expect("taken down");
        }
    }
    #[tokio::test]
    async fn certificates_are_written_with_their_keys_as_the_projection_says() {
        let root = tempfile::tempdir().expect("a folder");
        let manager = manager(root.path());
        let labels = json!({"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]});
        let certificate = json!({"signerName": "s/s", "keyType": "ED25519", "credentialBundlePath": "both",
            "keyPath": "key", "certificateChainPath": "chain"});
        let sources = json!([{"downwardAPI": labels}, {"podCertificate": certificate}]);
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "c"}],
            "securityContext": {"runAsUser": 1000}, "volumes": [{"name": "v", "projected": {"sources": sources}}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        manager.mount(&pod, &PodFacts::default()).await.expect("mounted");
        let volume = root.path().join("pods/u/volumes/kubernetes.io~projected/v");
        for (name, content) in [("both", "key of v 1\nchain\n"), ("key", "key of v 1\n"), ("chain", "chain\n")] {
            let file = volume.join(name);
            assert_eq!(std::fs::read_to_string(&file).expect("written"), content);
            let about = std::fs::metadata(&file).expect("written");
            assert_eq!((about.uid(), about.mode() & 0o777), (1000, 0o600), "{name}");
        }
        manager.unmount("u").await.expect("taken down");
    }
}
