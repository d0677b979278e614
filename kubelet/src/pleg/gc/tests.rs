use super::*;
use crate::resources::{CgroupError, Cgroups, Usage};
use crate::workers::tests::fake::FakeNode;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::OnceLock;
use tokio_util::task::TaskTracker;

#[test]
fn folders_of_logs_tell_whose_they_are() {
    let root = std::env::temp_dir().join(format!("ironclad-pod-logs-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&root).expect("folder");
    for name in ["ns_pod_uid", "ns_pod_", "other", "a_b_c_d"] {
        std::fs::create_dir(root.join(name)).expect("folder");
    }
    std::os::unix::fs::symlink("/tmp", root.join("a_b_link")).expect("link");
    assert_eq!(log_folders(&root), [("uid".to_owned(), root.join("ns_pod_uid"))]);
    crate::trees::remove(&root).expect("removed");
}

#[test]
fn the_newest_of_each_is_kept() {
    let marks = |name: &str| {
        BTreeMap::from([
            (labels::POD_UID.to_owned(), "u".to_owned()),
            (labels::CONTAINER_NAME.to_owned(), name.to_owned()),
        ])
    };
    let container = |id: &str, name: &str, state: v1::ContainerState, at: i64, sandbox: &str| v1::Container {
        id: id.into(),
        labels: marks(name),
        state: state.into(),
        created_at: at,
        pod_sandbox_id: sandbox.into(),
        ..Default::default()
    };
    use v1::ContainerState::{ContainerExited as Exited, ContainerRunning as Running};
    let containers = [
        container("a0", "a", Exited, 1, "s0"),
        container("a1", "a", Exited, 2, "s1"),
        container("a2", "a", Running, 3, "s2"),
        container("b0", "b", Exited, 1, "s0"),
    ];
    let sandbox = |id: &str, at: i64, ready: bool| v1::PodSandbox {
        id: id.into(),
        labels: marks(""),
        created_at: at,
        state: i32::from(!ready),
        ..Default::default()
    };
    let mut back = container("c1", "c", Exited, 1, "s2");
    let mut kept = container("c2", "c", Exited, 0, "s2");
    for (container, attempt) in [(&mut back, 1), (&mut kept, 2)] {
        container.metadata = Some(v1::ContainerMetadata { attempt, ..Default::default() });
    }
    let pods = |ended: &[&str]| GcPods {
        known: HashSet::from(["u".to_owned()]),
        ended: ended.iter().map(|uid| (*uid).to_owned()).collect(),
    };
    let policy = ContainerGcPolicy::default();
    assert_eq!(garbage(&[back, kept], &[], &pods(&[]), &policy, 9).containers, ["c1"], "the clock went back");
    let sandboxes = [sandbox("s0", 1, false), sandbox("s1", 2, false), sandbox("s2", 3, true)];
    let found = garbage(&containers, &sandboxes, &pods(&[]), &policy, 9);
    assert_eq!(found, Garbage { containers: vec!["a0".into()], sandboxes: vec![] });
    assert_eq!(garbage(&containers, &sandboxes, &GcPods::default(), &policy, 9), Garbage::default());
    // A pod that has ended keeps nothing that is dead when room is needed.
    let found = garbage(&containers, &sandboxes, &pods(&["u"]), &policy, 9);
    assert_eq!(found.containers, ["a1", "a0", "b0"]);
    assert_eq!(found.sandboxes, ["s0", "s1"]);
}

#[test]
fn limits_of_dead_containers_are_kept() {
    let container = |id: &str, at: i64| v1::Container {
        id: id.into(),
        labels: BTreeMap::from([
            (labels::POD_UID.to_owned(), "u".to_owned()),
            (labels::CONTAINER_NAME.to_owned(), id[..1].to_owned()),
        ]),
        state: v1::ContainerState::ContainerExited.into(),
        created_at: at,
        metadata: Some(v1::ContainerMetadata { attempt: u32::try_from(at).expect("small"), ..Default::default() }),
        ..Default::default()
    };
    let all = [container("a1", 1), container("a2", 2), container("a3", 3), container("b1", 1), container("c4", 4)];
    let pods = GcPods { known: HashSet::from(["u".to_owned()]), ended: HashSet::new() };
    let gone = |min_age: u64, per_container: Option<usize>, total: Option<usize>| {
        let policy = ContainerGcPolicy { min_age: Duration::from_nanos(min_age), per_container, total };
        let mut gone = garbage(&all, &[], &pods, &policy, 10).containers;
        gone.sort();
        gone
    };
    assert_eq!(gone(0, None, None), Vec::<String>::new());
    assert_eq!(gone(0, Some(2), None), ["a1"]);
    assert_eq!(gone(0, Some(0), None), ["a1", "a2", "a3", "b1", "c4"]);
    assert_eq!(gone(8, Some(0), None), ["a1", "a2", "b1"], "the others are too young");
    assert_eq!(gone(0, None, Some(3)), ["a1", "a2"], "one each");
    assert_eq!(gone(0, None, Some(2)), ["a1", "a2", "b1"], "the oldest goes, too");
    assert_eq!(gone(0, None, Some(0)), ["a1", "a2", "a3", "b1", "c4"]);
}

/// Cgroups of three pods: one is admitted while they are listed, one while the cgroup of the third is removed.
#[derive(Default)]
struct BusyCgroups {
    manager: OnceLock<Arc<Manager>>,
    removed: Mutex<Vec<String>>,
}

impl BusyCgroups {
    fn admit(&self, uid: &str) {
        let metadata = json!({"name": uid, "namespace": "n", "uid": uid});
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let manager = self.manager.get().expect("the manager was given");
        manager.upsert(Arc::new(serde_json::from_value(pod).expect("a pod")));
    }
}

impl Cgroups for BusyCgroups {
    fn ensure_tree(&self, _: &BTreeMap<String, Quantity>) -> Result<(), CgroupError> {
        Ok(())
    }
    fn enforce(&self, _: &str, _: &BTreeMap<String, Quantity>) -> Result<(), CgroupError> {
        Ok(())
    }
    fn pods_memory(&self) -> Option<(u64, u64)> {
        None
    }
    fn update_tiers(&self, _: &[&Pod]) -> Result<(), CgroupError> {
        Ok(())
    }
    fn ensure_pod(&self, _: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }
    fn grow_pod(&self, _: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }
    fn pod_parent(&self, _: &Pod) -> String {
        String::new()
    }
    fn remove_pod(&self, uid: &str) -> Result<(), CgroupError> {
        self.removed.lock().push(uid.to_owned());
        self.admit("came-while-one-was-removed");
        Ok(())
    }
    fn tree(&self) -> Vec<String> {
        Vec::new()
    }
    fn pods(&self) -> Vec<String> {
        self.admit("came-while-they-were-listed");
        ["came-while-they-were-listed", "gone", "came-while-one-was-removed"].map(str::to_owned).to_vec()
    }
    fn usage(&self, _: &str) -> Option<Usage> {
        None
    }
}

#[tokio::test]
async fn pods_that_come_during_a_clean_up_keep_what_they_have() {
    let root = tempfile::tempdir().expect("a folder");
    let cgroups = Arc::<BusyCgroups>::default();
    let node = FakeNode::with(root.path(), |cx| cx.cgroups = Arc::<BusyCgroups>::clone(&cgroups));
    let token = CancellationToken::new();
    let manager = Manager::new(Arc::clone(&node.cx), TaskTracker::new(), token.clone());
    cgroups.manager.set(Arc::clone(&manager)).unwrap_or_else(|_| panic!("given twice"));
    leftovers(&node.cx, &manager, &|_: &str| false, &mut None).await;
    token.cancel();
    assert_eq!(*cgroups.removed.lock(), ["gone"]);
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_there_and_cannot_be_read_are_no_orphans() {
    let root = tempfile::tempdir().expect("a folder");
    let node = FakeNode::at(root.path());
    let manager = Manager::new(Arc::clone(&node.cx), TaskTracker::new(), CancellationToken::new());
    let stops = || node.log.count("stop c in 1");
    orphans(&node.cx, &manager, &|uid: &str| uid == "u", None).await;
    assert_eq!(stops(), 0, "the API server has the pod");
    orphans(&node.cx, &manager, &|_: &str| false, Some(&HashSet::new())).await;
    assert_eq!(stops(), 0, "the runtime had none a moment ago");
    orphans(&node.cx, &manager, &|_: &str| false, Some(&HashSet::from(["u".to_owned()]))).await;
    assert_eq!(stops(), 1, "nobody has it");
}
