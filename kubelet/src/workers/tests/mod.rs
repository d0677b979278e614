//! The life of a pod as its worker drives it, on a node of fakes.

pub(crate) mod fake;

use super::context::NodeState;
use super::mailbox::{Lifecycle, Mailbox};
use super::manager::Manager;
use super::start;
use super::worker::Worker;
use crate::events::tests::Recorded;
use crate::facts::PodFacts;
use crate::pod_resources::{self, v1, v1::pod_resources_lister_server::PodResourcesLister as _};
use crate::sources::{Source, SourceSet, annotations};
use crate::userns::{IdRange, UserNamespaces};
use fake::FakeNode;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;
use shared::flags::FeatureGates;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Request;

/// Longest time that anything here takes, of paused clocks.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The pod that has ten minutes to stop, or that is deleted with so many seconds.
fn pod(deleted: Option<i64>) -> Arc<Pod> {
    let mut metadata = json!({"name": "p", "namespace": "n", "uid": "u"});
    if let Some(seconds) = deleted {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        metadata["deletionGracePeriodSeconds"] = json!(seconds);
    }
    let spec = json!({"terminationGracePeriodSeconds": 600, "containers": [{"name": "c", "image": "i"}]});
    Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a pod"))
}

async fn timely<T>(what: &str, done: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, done).await.unwrap_or_else(|_| panic!("{what} did not happen"))
}

#[tokio::test]
async fn worker_that_rests_is_small() {
    let root = tempfile::tempdir().expect("a folder");
    let node = FakeNode::at(root.path());
    let worker = Worker::new(Arc::clone(&node.cx), Arc::new(Mailbox::new(pod(None))));
    let size = std::mem::size_of_val(&worker.run(CancellationToken::new()));
    assert!(size < 8 << 10, "{size} bytes for each pod");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_shortens_a_kill_that_is_under_way() {
    let root = tempfile::tempdir().expect("a folder");
    let node = FakeNode::at(root.path());
    node.runtime.break_sandbox();
    let mailbox = Arc::new(Mailbox::new(pod(None)));
    let token = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(Arc::clone(&node.cx), Arc::clone(&mailbox)).run(token.clone()));
    timely("the stop for the broken sandbox", node.log.until("stop c in 600")).await;
    let begun = Instant::now();
    for (deletion, stop) in [(60, "stop c in 60"), (0, "stop c in 1")] {
        mailbox.allocate(pod(Some(deletion)), None);
        timely("a shorter stop", node.log.until(stop)).await;
    }
    timely("the tear-down", node.log.until("unmount u")).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    token.cancel();
    worker.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn containers_have_a_moment_to_end_where_nobody_asked_for_less() {
    let root = tempfile::tempdir().expect("a folder");
    let node = FakeNode::at(root.path());
    node.runtime.break_sandbox();
    let mut hasty = Pod::clone(&pod(None));
    hasty.spec.as_mut().expect("a spec").termination_grace_period_seconds = Some(0);
    let token = CancellationToken::new();
    let worker = Worker::new(Arc::clone(&node.cx), Arc::new(Mailbox::new(Arc::new(hasty))));
    let worker = tokio::spawn(worker.run(token.clone()));
    timely("the stop for the broken sandbox", node.log.until("stop c in 2")).await;
    token.cancel();
    worker.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn probes_of_a_container_end_with_it_and_not_with_its_pod() {
    let root = tempfile::tempdir().expect("a folder");
    let node = FakeNode::at(root.path());
    node.runtime.stop_sandbox_slowly(Duration::from_secs(600));
    let probed = |deleted: Option<i64>| {
        let mut pod = Pod::clone(&pod(deleted));
        let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
        pod.spec.as_mut().expect("a spec").containers[0].readiness_probe =
            serde_json::from_value(probe).expect("a probe");
        Arc::new(pod)
    };
    let mailbox = Arc::new(Mailbox::new(probed(None)));
    let token = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(Arc::clone(&node.cx), Arc::clone(&mailbox)).run(token.clone()));
    let probes = || node.log.count("run a command in c");
    timely("a probe", node.log.until("run a command in c")).await;
    mailbox.allocate(probed(Some(30)), None);
    timely("the stop", node.log.until("stop c in 30")).await;
    let before = probes();
    timely("the stop of the sandbox", node.log.until("stop s")).await;
    let ended = probes();
    assert!(ended > before + 20, "readiness counts as long as the container serves: {before}, {ended}");
    timely("the tear-down", node.log.until("unmount u")).await;
    assert_eq!(probes(), ended, "nothing is left that could answer");
    token.cancel();
    worker.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn folders_that_cannot_be_made_are_told_as_a_failure() {
    let root = tempfile::tempdir().expect("a folder");
    std::fs::write(root.path().join("pods"), "in the way").expect("written");
    let events = Arc::<Recorded>::default();
    let node = FakeNode::with(root.path(), |cx| cx.events = Arc::<Recorded>::clone(&events));
    node.runtime.break_sandbox();
    let token = CancellationToken::new();
    let worker = Worker::new(Arc::clone(&node.cx), Arc::new(Mailbox::new(pod(None))));
    let worker = tokio::spawn(worker.run(token.clone()));
    let mut told = Vec::new();
    let failed = |told: &[String]| told.iter().any(|event| event.contains("error making pod data directories"));
    timely("the event", async {
        while !failed(&told) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            told.extend(events.taken());
        }
    })
    .await;
    let event = told.iter().find(|event| event.contains("pod data directories")).expect("told");
    assert!(event.starts_with("Warning Failed error making pod data directories: "), "{event}");
    token.cancel();
    worker.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_volumes_the_node_has_no_room_for_fails() {
    let root = tempfile::tempdir().expect("a folder");
    let node = FakeNode::without_room(root.path());
    node.runtime.break_sandbox();
    let mailbox = Arc::new(Mailbox::new(pod(None)));
    let token = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(Arc::clone(&node.cx), Arc::clone(&mailbox)).run(token.clone()));
    let status = "failed: VolumeAttachmentLimitExceeded: Node has reached its volume attachment limit, rejecting pod. \
                  unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: no room";
    timely("the failure", node.log.until(status)).await;
    token.cancel();
    worker.await.expect("ended");
}

/// A root directory of a kubelet that has given the device `d` to the pod.
fn with_device() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let devices = root.path().join("device-plugins");
    std::fs::create_dir(&devices).expect("made");
    let entry = json!({"PodUID": "u", "ContainerName": "c", "ResourceName": "v.test/gpu", "DeviceIDs": {"-1": ["d"]}});
    let checkpoint =
        json!({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {"v.test/gpu": ["d"]}}, "Checksum": 0});
    std::fs::write(devices.join("kubelet_internal_checkpoint"), checkpoint.to_string()).expect("written");
    root
}

fn gate(name: &str, is_on: bool) -> FeatureGates {
    FeatureGates::default().with(&[(name.to_owned(), is_on)].into()).expect("a gate")
}

#[tokio::test(start_paused = true)]
async fn the_health_of_devices_is_told_behind_its_gate() {
    for is_on in [true, false] {
        let root = with_device();
        let node = FakeNode::with(root.path(), |cx| cx.settings.gates = gate("ResourceHealthStatus", is_on));
        let mailbox = Arc::new(Mailbox::new(pod(None)));
        let token = CancellationToken::new();
        let worker = tokio::spawn(Worker::new(Arc::clone(&node.cx), Arc::clone(&mailbox)).run(token.clone()));
        timely("a status", node.log.until("a status")).await;
        assert_eq!(node.log.has("c has v.test/gpu: d Healthy"), is_on);
        token.cancel();
        worker.await.expect("ended");
    }
}

#[tokio::test(start_paused = true)]
async fn podresources_answer_as_their_gates_say() {
    let ended: Pod = serde_json::from_value(json!({"metadata": {"name": "e", "namespace": "n", "uid": "e"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Succeeded"}}))
    .expect("a pod");
    let disabled = "PodResources API Get method disabled";
    for (name, is_on, listed, got) in [
        ("KubeletPodResourcesGet", true, &["p"][..], Ok("p".to_owned())),
        ("KubeletPodResourcesGet", false, &["p"], Err(disabled.to_owned())),
        ("KubeletPodResourcesListUseActivePods", true, &["p"], Ok("p".to_owned())),
        ("KubeletPodResourcesListUseActivePods", false, &["e", "p"], Ok("p".to_owned())),
    ] {
        let root = with_device();
        let node = FakeNode::with(root.path(), |cx| cx.settings.gates = gate(name, is_on));
        let token = CancellationToken::new();
        let manager = Manager::new(Arc::clone(&node.cx), TaskTracker::new(), token.clone());
        manager.upsert(pod(None));
        manager.upsert(Arc::new(ended.clone()));
        let service = pod_resources::Service::new(Arc::clone(&manager), Arc::clone(&node.cx.devices));
        let list = service.list(Request::new(v1::ListPodResourcesRequest {})).await.expect("a list").into_inner();
        let mut names: Vec<String> = list.pod_resources.into_iter().map(|pod| pod.name).collect();
        names.sort();
        assert_eq!(names, listed, "{name} {is_on}");
        let asked = v1::GetPodResourcesRequest { pod_name: "p".to_owned(), pod_namespace: "n".to_owned() };
        let answer = service.get(Request::new(asked)).await.map(|answer| answer.into_inner().pod_resources);
        let answer = answer.map(|pod| pod.map(|pod| pod.name).unwrap_or_default());
        assert_eq!(answer.map_err(|status| status.message().to_owned()), got, "{name} {is_on}");
        token.cancel();
    }
}

/// A node whose runtime has user namespaces, or has not.
fn with_user_namespaces(root: &std::path::Path, is_able: bool) -> FakeNode {
    FakeNode::with(root, |cx| {
        cx.userns = Some(UserNamespaces::new(root, IdRange::ALL, None, 110).expect("enough ids"));
        let user_namespaces = Some([(String::new(), is_able)].into());
        cx.node.store(Arc::new(NodeState { user_namespaces, ..NodeState::default() }));
    })
}

#[tokio::test(start_paused = true)]
async fn a_pod_has_its_user_namespace_from_its_first_sandbox_until_it_is_torn_down() {
    let root = tempfile::tempdir().expect("a folder");
    let node = with_user_namespaces(root.path(), true);
    node.runtime.break_sandbox();
    let of_own = |deleted: Option<i64>| {
        let mut pod = Pod::clone(&pod(deleted));
        pod.spec.get_or_insert_default().host_users = Some(false);
        Arc::new(pod)
    };
    let mailbox = Arc::new(Mailbox::new(of_own(None)));
    let token = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(Arc::clone(&node.cx), Arc::clone(&mailbox)).run(token.clone()));
    timely("a new sandbox", node.log.until("run with 65536 ids of its own")).await;
    let file = root.path().join("pods/u/userns");
    assert!(file.exists(), "a kubelet that comes after this one knows of it");
    mailbox.allocate(of_own(Some(0)), None);
    timely("the tear-down", node.log.until("unmount u")).await;
    assert!(file.exists(), "volumes may be in use yet");
    node.unmounts.add_permits(1);
    timely("the end", mailbox.given_back.cancelled()).await;
    assert!(!file.exists());
    token.cancel();
    worker.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_users_of_its_own_gets_no_sandbox_from_a_runtime_without_them() {
    let root = tempfile::tempdir().expect("a folder");
    let node = with_user_namespaces(root.path(), false);
    let mut own = Pod::clone(&pod(None));
    own.spec.get_or_insert_default().host_users = Some(false);
    let refused = start::sandbox(&node.cx, &own, 0).await;
    let text = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    assert_eq!(refused.expect_err("refused").to_string(), text);
    assert!(!root.path().join("pods/u/userns").exists());
    start::sandbox(&node.cx, &pod(None), 0).await.expect_err("the runtime makes none in tests");
    timely("the sandbox of another", node.log.until("run with 0 ids of its own")).await;
}

#[tokio::test(start_paused = true)]
async fn devices_do_not_wait_for_volumes_and_shutdowns_do() {
    let root = with_device();
    let node = FakeNode::at(root.path());
    assert_eq!(node.cx.devices.of_container("u", "c").len(), 1);
    let token = CancellationToken::new();
    let manager = Manager::new(Arc::clone(&node.cx), TaskTracker::new(), token.clone());
    manager.upsert(pod(Some(7)));
    timely("the stop", node.log.until("stop c in 7")).await;
    assert_eq!(node.cx.devices.of_container("u", "c").len(), 1, "the container may use them yet");
    timely("the tear-down", node.log.until("unmount u")).await;
    assert_eq!(node.cx.devices.of_container("u", "c"), []);
    let pods = [pod(None)];
    let given_back = manager.until_given_back(&pods);
    let mut given_back = std::pin::pin!(given_back);
    tokio::time::timeout(PATIENCE, &mut given_back).await.expect_err("the volumes are mounted yet");
    node.unmounts.add_permits(1);
    timely("the unmount", given_back).await;
    token.cancel();
}

#[tokio::test(start_paused = true)]
async fn static_pod_that_comes_back_while_it_ends_runs_again() {
    let root = tempfile::tempdir().expect("a folder");
    let node = FakeNode::at(root.path());
    let token = CancellationToken::new();
    let manager = Manager::new(Arc::clone(&node.cx), TaskTracker::new(), token.clone());
    let metadata = json!({"name": "p", "namespace": "n", "uid": "u", "annotations": {(annotations::SOURCE): "file"}});
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "i"}]});
    let pod: Pod =
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": {"containerStatuses": []}}))
            .expect("a pod");
    let file = |pods: &[Pod]| SourceSet { source: Source::File, pods: pods.to_vec() };
    let restarts = || shared::metrics::gather().contains("kubelet_restarted_pods_total{static=\"true\"} 1\n");
    manager.set_static(file(std::slice::from_ref(&pod)));
    manager.set_static(file(&[]));
    timely("the stop", node.log.until("stop c in 1")).await;
    manager.set_static(file(&[pod]));
    assert_eq!(manager.lifecycles().into_keys().collect::<Vec<_>>(), [(Lifecycle::Terminating, false, true)]);
    assert!(!restarts());
    node.unmounts.add_permits(1);
    timely("the pod's next life", async {
        while !manager.lifecycles().contains_key(&(Lifecycle::Sync, true, true)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert!(restarts(), "it is counted");
    token.cancel();
}

#[tokio::test]
async fn pods_of_one_name_are_told_and_the_first_of_them_runs() {
    let root = tempfile::tempdir().expect("a folder");
    let events = Arc::<Recorded>::default();
    let node = FakeNode::with(root.path(), |cx| cx.events = Arc::<Recorded>::clone(&events));
    let token = CancellationToken::new();
    let manager = Manager::new(Arc::clone(&node.cx), TaskTracker::new(), token.clone());
    let named = |uid: &str| -> Pod {
        let metadata =
            json!({"name": "p", "namespace": "n", "uid": uid, "annotations": {(annotations::SOURCE): "file"}});
        let status = json!({"containerStatuses": []});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": []}, "status": status}))
            .expect("a pod")
    };
    manager.set_static(SourceSet { source: Source::File, pods: vec![named("first"), named("second")] });
    assert_eq!(manager.uids(), ["first".to_owned()].into());
    let text =
        "Warning FailedValidation Error validating pod p_n(second) from file due to duplicate pod name \"p\", ignoring";
    assert_eq!(events.taken(), [text]);
    token.cancel();
}

/// A node with so much CPU for pods.
fn node_with_cpu(root: &std::path::Path, cpu: &str) -> FakeNode {
    let amounts = [("cpu", cpu), ("memory", "1Gi"), ("pods", "10")];
    let amount = |(name, amount): (&str, &str)| (name.to_owned(), Quantity(amount.to_owned()));
    let allocatable = amounts.map(amount).into();
    let state = NodeState { facts: PodFacts { allocatable, ..PodFacts::default() }, ..NodeState::default() };
    FakeNode::with(root, |cx| cx.node.store(Arc::new(state)))
}

#[tokio::test]
async fn a_resize_that_was_allocated_outlives_the_kubelet_and_one_that_waits_does_so_too() {
    let root = tempfile::tempdir().expect("a folder");
    let asks = |cpu: &str, reported: Option<&str>| -> Arc<Pod> {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": resources(cpu)}]}});
        if let Some(cpu) = reported {
            pod["status"] = json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true,
                "restartCount": 0, "containerID": "containerd://c", "resources": resources(cpu)}]});
        }
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    };
    let cpu = |manager: &Manager| -> String {
        let pod = manager.pods().remove(0);
        let resources = pod.spec.as_ref().expect("a spec").containers[0].resources.clone().expect("resources");
        resources.requests.expect("requests")["cpu"].0.clone()
    };
    let start = |node: &FakeNode| {
        let token = CancellationToken::new();
        (Manager::new(Arc::clone(&node.cx), TaskTracker::new(), token.clone()), token)
    };
    let (first, token) = start(&node_with_cpu(root.path(), "3"));
    first.upsert(asks("1", None));
    first.upsert(asks("2", Some("1")));
    assert_eq!(cpu(&first), "2", "there is room");
    first.upsert(asks("3500m", Some("1")));
    assert_eq!(cpu(&first), "2", "there is none for so much");
    token.cancel();
    // The containers have not got it yet, and by now there would be no room for it.
    let (second, token) = start(&node_with_cpu(root.path(), "1"));
    second.upsert(asks("3500m", Some("1")));
    assert_eq!(cpu(&second), "2", "what was allocated stays so");
    token.cancel();
}
