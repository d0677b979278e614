//! Records of what was allocated to pods, and of what their containers were given, over the lives of kubelets: a resize that
//! was accepted stays so, and one that was refused is not taken for granted. Files `allocated_pods_state` and
//! `actuated_pods_state` in the root directory, which are upstream's. Answers for upstream's `pkg/kubelet/allocation/state`.
//!
//! Entries are kept as they are written: they are read once, by the kubelet that comes after.

use super::resize;
use crate::files;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use shared::declared_features::RESIZES_WHOLE;
use shared::flags::FeatureGates;
use shared::fnv::Fnv32;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the file of what is allocated.
const ALLOCATED: &str = "allocated_pods_state";
/// Name of the file of what containers were given.
const ACTUATED: &str = "actuated_pods_state";
/// Largest file that is read.
const LARGEST: u64 = 64 << 20;

/// Reasons why records cannot be used. Upstream ends with this text.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not restore state from checkpoint: {cause}, please drain this node and delete pod resource information \
     checkpoint file {path:?} before restarting Kubelet"
)]
pub struct RecordError {
    path: PathBuf,
    cause: RecordFault,
}

#[derive(Debug, thiserror::Error)]
enum RecordFault {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("checkpoint is corrupted")]
    Corrupt,
}

/// Resources of a pod: upstream's `PodResourceInfo`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PodResources {
    #[serde(deserialize_with = "or_nothing")]
    container_resources: BTreeMap<String, ResourceRequirements>,
    /// Resources of the pod as a whole.
    pod_level_resources: Option<ResourceRequirements>,
}

/// Reads what Go writes as null for an empty map.
fn or_nothing<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl PodResources {
    /// Resources that a pod asks for: of those containers that can be resized, and where they can be those of the pod as a
    /// whole. Upstream's `allocationFromPod`.
    fn of(pod: &Pod, with_whole: bool) -> Self {
        let containers = resize::resizable(pod);
        let pod_level_resources = pod.spec.as_ref().and_then(|spec| spec.resources.clone()).filter(|_| with_whole);
        let each =
            containers.map(|container| (container.name.clone(), container.resources.clone().unwrap_or_default()));
        Self { container_resources: each.collect(), pod_level_resources }
    }

    /// Resources of the pod as a whole.
    pub fn of_pod(&self) -> Option<&ResourceRequirements> {
        self.pod_level_resources.as_ref()
    }

    /// Resources of a container.
    pub fn of_container(&self, name: &str) -> Option<&ResourceRequirements> {
        self.container_resources.get(name)
    }
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct RecordFile {
    data: String,
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct RecordData {
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_nothing")]
    entries: BTreeMap<String, Box<RawValue>>,
}

/// Upstream's checksum of a text: FNV over Go's printed form of it.
fn checksum(data: &str) -> u64 {
    Fnv32::default().write(b"(string)").write(data.as_bytes()).finish().into()
}

/// Entries of one file, by the uid of the pod.
#[derive(Debug)]
struct Records {
    path: PathBuf,
    entries: Mutex<BTreeMap<String, Box<RawValue>>>,
    /// Checksum of the file.
    written: Mutex<u64>,
    is_due: AtomicBool,
}

impl Records {
    fn load(path: PathBuf) -> Result<Arc<Self>, RecordError> {
        match read(&path) {
            Ok((entries, written)) => {
                let (entries, written) = (Mutex::new(entries), Mutex::new(written));
                Ok(Arc::new(Self { path, entries, written, is_due: AtomicBool::new(false) }))
            }
            Err(cause) => Err(RecordError { path, cause }),
        }
    }

    fn get(&self, uid: &str) -> Option<PodResources> {
        serde_json::from_str(self.entries.lock().get(uid)?.get()).ok()
    }

    /// Keeps an entry in memory; true where it differs from the one before.
    fn keep(&self, uid: &str, resources: &PodResources) -> io::Result<bool> {
        let entry = serde_json::value::to_raw_value(resources)?;
        let before = self.entries.lock().insert(uid.to_owned(), entry.clone());
        Ok(before.is_none_or(|before| before.get() != entry.get()))
    }

    /// Writes the file, unless it has all of it.
    fn write(&self) -> io::Result<()> {
        let mut written = self.written.lock();
        let data = serde_json::to_string(&RecordData { entries: self.entries.lock().clone() })?;
        let checksum = checksum(&data);
        if *written != checksum {
            files::write_json(&self.path, &RecordFile { data, checksum })?;
            *written = checksum;
        }
        Ok(())
    }

    /// Writes the file in a moment, with all that is kept until then.
    fn write_soon(self: &Arc<Self>) {
        if self.is_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let records = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            records.is_due.store(false, Ordering::Relaxed);
            if let Err(error) = records.write() {
                tracing::error!(path = %records.path.display(), %error, "Failed to save pod resource information checkpoint");
            }
        });
    }
}

type Read = (BTreeMap<String, Box<RawValue>>, u64);

fn read(path: &Path) -> Result<Read, RecordFault> {
    let bytes = match fs::metadata(path) {
        Ok(about) if about.len() > LARGEST => return Err(RecordFault::Corrupt),
        Ok(_) => fs::read(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Read::default()),
        Err(error) => return Err(error.into()),
    };
    let checkpoint: RecordFile = serde_json::from_slice(&bytes)?;
    if checksum(&checkpoint.data) != checkpoint.checksum {
        return Err(RecordFault::Corrupt);
    }
    let data: RecordData = serde_json::from_str(&checkpoint.data)?;
    data.entries.values().try_for_each(|entry| serde_json::from_str::<PodResources>(entry.get()).map(drop))?;
    Ok((data.entries, checkpoint.checksum))
}

/// The records of a node.
#[derive(Debug)]
pub struct ResourceRecords {
    allocated: Arc<Records>,
    actuated: Arc<Records>,
    /// `InPlacePodLevelResourcesVerticalScaling`: what a pod has as a whole is recorded, too.
    with_whole: bool,
}

impl ResourceRecords {
    /// Records below the kubelet's root directory, with what the kubelet before has left.
    ///
    /// # Errors
    /// What it has left cannot be read.
    pub fn load(root: &Path, gates: &FeatureGates) -> Result<Self, RecordError> {
        let (allocated, actuated) = (Records::load(root.join(ALLOCATED))?, Records::load(root.join(ACTUATED))?);
        Ok(Self { allocated, actuated, with_whole: gates.enabled(RESIZES_WHOLE) })
    }

    /// Reports whether what a pod has as a whole is recorded.
    pub fn has_whole(&self) -> bool {
        self.with_whole
    }

    /// Returns what is allocated to a pod.
    pub fn allocated(&self, uid: &str) -> Option<PodResources> {
        let mut found = self.allocated.get(uid)?;
        found.pod_level_resources.take_if(|_| !self.with_whole);
        Some(found)
    }

    /// Notes that a pod is admitted with what it asks for.
    pub fn admitted(&self, uid: &str, pod: &Pod) {
        match self.allocated.keep(uid, &PodResources::of(pod, self.with_whole)) {
            Ok(true) => self.allocated.write_soon(),
            Ok(false) => {}
            Err(error) => tracing::error!(pod_uid = uid, %error, "SetPodAllocation failed"),
        }
    }

    /// Notes that a pod may have what it asks for by now, before it gets it.
    ///
    /// # Errors
    /// That cannot be written: what was allocated before stays.
    pub fn resized(&self, uid: &str, pod: &Pod) -> io::Result<()> {
        let before = self.allocated.entries.lock().get(uid).cloned();
        self.allocated.keep(uid, &PodResources::of(pod, self.with_whole))?;
        self.allocated.write().inspect_err(|_| {
            let mut entries = self.allocated.entries.lock();
            match before {
                Some(before) => drop(entries.insert(uid.to_owned(), before)),
                None => drop(entries.remove(uid)),
            }
        })
    }

    /// Returns what a container was given.
    pub fn actuated(&self, uid: &str, container: &str) -> Option<ResourceRequirements> {
        self.actuated.get(uid)?.container_resources.remove(container)
    }

    /// Notes what a container is given.
    pub fn actuate(&self, uid: &str, container: &str, resources: ResourceRequirements) {
        let mut all = self.actuated.get(uid).unwrap_or_default();
        all.container_resources.insert(container.to_owned(), resources);
        self.keep_actuated(uid, &all);
    }

    /// Returns what a pod was given as a whole.
    pub fn actuated_whole(&self, uid: &str) -> Option<ResourceRequirements> {
        self.actuated.get(uid)?.pod_level_resources
    }

    /// Notes what a pod is given as a whole.
    pub fn actuate_whole(&self, uid: &str, resources: ResourceRequirements) {
        let all = self.actuated.get(uid).unwrap_or_default();
        self.keep_actuated(uid, &PodResources { pod_level_resources: Some(resources), ..all });
    }

    fn keep_actuated(&self, uid: &str, all: &PodResources) {
        match self.actuated.keep(uid, all) {
            Ok(true) => self.actuated.write_soon(),
            Ok(false) => {}
            Err(error) => tracing::error!(pod_uid = uid, %error, "Failed to note the pod's resources"),
        }
    }

    /// Forgets a pod. The files have it until something else is written, as upstream's.
    pub fn forget(&self, uid: &str) {
        for records in [&self.allocated, &self.actuated] {
            records.entries.lock().remove(uid);
        }
    }

    /// Forgets pods that are not there any more. Answers for `RemoveOrphanedPods`.
    pub fn retain(&self, is_here: impl Fn(&str) -> bool) {
        for records in [&self.allocated, &self.actuated] {
            records.entries.lock().retain(|uid, _| is_here(uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const UPSTREAMS: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

    fn load(root: &Path) -> Result<ResourceRecords, RecordError> {
        ResourceRecords::load(root, &FeatureGates::default())
    }

    fn pod(cpu: &str) -> Pod {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let init = json!([{"name": "once", "resources": resources("7")},
            {"name": "side", "restartPolicy": "Always", "resources": resources("2")}]);
        let containers = json!([{"name": "c", "resources": resources(cpu)}, {"name": "d"}]);
        serde_json::from_value(json!({"spec": {"initContainers": init, "containers": containers}})).expect("a pod")
    }

    fn file(root: &Path, name: &str) -> Value {
        let text = fs::read_to_string(root.join(name)).expect("a file");
        let file: RecordFile = serde_json::from_str(&text).expect("a checkpoint");
        assert_eq!(file.checksum, checksum(&file.data));
        serde_json::from_str(&file.data).expect("data")
    }

    #[test]
    fn files_of_upstream_are_read() {
        let root = tempfile::tempdir().expect("a folder");
        fs::write(root.path().join(ALLOCATED), UPSTREAMS).expect("written");
        let data = r#"{"entries":null}"#.to_owned();
        let nothing = RecordFile { checksum: checksum(&data), data };
        files::write_json(&root.path().join(ACTUATED), &nothing).expect("written");
        let records = load(root.path()).expect("records");
        let expected: ResourceRequirements =
            serde_json::from_value(json!({"requests": {"cpu": "1Ki", "memory": "1Ki"}})).expect("resources");
        assert_eq!(records.allocated("pod1").expect("known").of_container("container1"), Some(&expected));
        assert_eq!((records.allocated("pod2"), records.actuated("pod1", "container1")), (None, None));
    }

    #[test]
    fn damaged_files_end_the_kubelet_with_upstreams_text() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join(ALLOCATED);
        let failure = |content: &str| {
            fs::write(&path, content).expect("written");
            load(root.path()).expect_err("damaged").to_string()
        };
        let expected = format!(
            "could not restore state from checkpoint: checkpoint is corrupted, please drain this node and delete pod resource information checkpoint file {path:?} before restarting Kubelet"
        );
        assert_eq!(failure(&UPSTREAMS.replace("1178570812", "1")), expected);
        assert!(failure("{").starts_with("could not restore state from checkpoint: EOF while parsing"));
    }

    #[tokio::test]
    async fn the_next_kubelet_knows_what_was_allocated_and_given() {
        let root = tempfile::tempdir().expect("a folder");
        let records = load(root.path()).expect("records");
        records.admitted("u", &pod("1"));
        records.admitted("v", &pod("1"));
        records.resized("u", &pod("3")).expect("written");
        let of = |pod: &Pod| serde_json::to_value(PodResources::of(pod, false)).expect("JSON");
        let expected = json!({"ContainerResources": {"side": {"requests": {"cpu": "2"}}, "c": {"requests": {"cpu": "3"}},
            "d": {}}, "PodLevelResources": null});
        assert_eq!(of(&pod("3")), expected, "an init container that ends is not resized");
        assert_eq!(file(root.path(), ALLOCATED), json!({"entries": {"u": expected, "v": of(&pod("1"))}}));
        let given = |cpu: &str| -> ResourceRequirements {
            serde_json::from_value(json!({"limits": {"cpu": cpu}})).expect("resources")
        };
        records.actuate("u", "c", given("1"));
        records.actuate("u", "d", given("2"));
        records.actuate("u", "c", given("4"));
        records.actuated.write().expect("written");
        records.forget("v");
        let next = load(root.path()).expect("records");
        assert_eq!(next.allocated("u"), Some(PodResources::of(&pod("3"), false)));
        assert_eq!((next.actuated("u", "c"), next.actuated("u", "d")), (Some(given("4")), Some(given("2"))));
        next.retain(|uid| uid == "u");
        assert_eq!((next.allocated("v"), next.allocated("u").is_some()), (None, true));
    }

    #[tokio::test]
    async fn pods_as_a_whole_are_recorded_behind_their_gate() {
        let root = tempfile::tempdir().expect("a folder");
        let set = BTreeMap::from([(RESIZES_WHOLE.to_owned(), true)]);
        let gates = FeatureGates::default().with(&set).expect("gates");
        let mut pod = pod("1");
        let whole: ResourceRequirements = serde_json::from_value(json!({"limits": {"cpu": "4"}})).expect("resources");
        pod.spec.as_mut().expect("a spec").resources = Some(whole.clone());
        let records = ResourceRecords::load(root.path(), &gates).expect("records");
        records.resized("u", &pod).expect("written");
        records.actuate_whole("u", whole.clone());
        records.actuated.write().expect("written");
        let next = ResourceRecords::load(root.path(), &gates).expect("records");
        assert_eq!(next.allocated("u").expect("known").of_pod(), Some(&whole));
        assert_eq!(next.actuated_whole("u"), Some(whole));
        let without = load(root.path()).expect("records");
        assert_eq!(without.allocated("u").expect("known").of_pod(), None);
        without.resized("u", &pod).expect("written");
        assert!(file(root.path(), ALLOCATED)["entries"]["u"]["PodLevelResources"].is_null());
    }

    #[test]
    fn a_resize_that_cannot_be_written_is_none() {
        let root = tempfile::tempdir().expect("a folder");
        let records = load(&root.path().join("none")).expect("records");
        records.resized("u", &pod("3")).expect_err("no folder");
        assert_eq!(records.allocated("u"), None);
    }
}
