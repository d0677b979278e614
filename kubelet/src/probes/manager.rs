//! The prober: starts and stops the workers of a node's containers and keeps their results.
//! Answers for upstream's `pkg/kubelet/prober/prober_manager.go` (`UpdatePodStatus`, `StopLivenessAndStartup`).

use super::worker::{Shared, Worker, initial};
use super::{ProbeKind, ProbeResult, ProbeUpdate, Probes, RunningContainer};
use crate::cri::Exec;
use crate::events::EventSink;
use crate::pods;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// Results that wait to be read; a full channel makes probes wait, not memory grow.
const UPDATES: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProbeKey {
    pod_uid: String,
    container: String,
    kind: ProbeKind,
}

struct Running {
    container_id: String,
    shared: Arc<Shared>,
    /// None for a startup probe that had passed before this kubelet began.
    task: Option<AbortHandle>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.iter().for_each(AbortHandle::abort);
    }
}

/// Result of a probe before its first threshold is met. A container that ran before this kubelet did keeps what the pod's
/// status says of it.
fn first_result(kind: ProbeKind, told: Option<&ContainerStatus>) -> ProbeResult {
    let passed = told.is_some_and(|told| match kind {
        ProbeKind::Startup => told.started == Some(true),
        ProbeKind::Readiness => told.ready,
        ProbeKind::Liveness => false,
    });
    if passed { ProbeResult::Success } else { initial(kind) }
}

/// Container id, and whether that container counts as started.
type Gate = (String, watch::Sender<bool>);

/// All probes of a node.
pub struct Manager {
    exec: Arc<dyn Exec>,
    events: Arc<dyn EventSink>,
    updates: mpsc::Sender<ProbeUpdate>,
    workers: Mutex<HashMap<ProbeKey, Running>>,
    /// By pod uid and container: whether it counts as started.
    started: Mutex<HashMap<(String, String), Gate>>,
}

impl Manager {
    /// A prober and the stream of its results. Must be used within a tokio runtime.
    pub fn new(exec: Arc<dyn Exec>, events: Arc<dyn EventSink>) -> (Self, mpsc::Receiver<ProbeUpdate>) {
        let (updates, receiver) = mpsc::channel(UPDATES);
        let manager = Self { exec, events, updates, workers: Mutex::default(), started: Mutex::default() };
        (manager, receiver)
    }

    /// The container's gate, new when the container is: open from the start without a startup probe, else when
    /// that probe has passed.
    fn gate(
        &self,
        pod_uid: &str,
        container: &Container,
        running: &RunningContainer,
        told: Option<&ContainerStatus>,
    ) -> watch::Receiver<bool> {
        let startup = self.result(pod_uid, &container.name, ProbeKind::Startup, &running.container_id);
        let startup = startup.unwrap_or_else(|| first_result(ProbeKind::Startup, told));
        let passed = container.startup_probe.is_none() || startup == ProbeResult::Success;
        let mut gates = self.started.lock();
        let key = (pod_uid.to_owned(), container.name.clone());
        let gate = gates.entry(key).or_insert_with(|| (running.container_id.clone(), watch::Sender::new(passed)));
        if gate.0 != running.container_id {
            *gate = (running.container_id.clone(), watch::Sender::new(passed));
        }
        if passed {
            gate.1.send_replace(true);
        }
        gate.1.subscribe()
    }

    fn ensure(&self, pod: &Arc<Pod>, pod_ip: &str, container: &Container, running: &RunningContainer) {
        let pod_uid = pod.metadata.uid.clone().unwrap_or_default();
        let told = pods::told(pod, &container.name, &running.container_id);
        let started = self.gate(&pod_uid, container, running, told);
        for (kind, probe) in probes(container) {
            let key = ProbeKey { pod_uid: pod_uid.clone(), container: container.name.clone(), kind };
            let mut workers = self.workers.lock();
            let first = first_result(kind, told);
            let known = workers.get(&key).filter(|known| known.container_id == running.container_id);
            // What an earlier kubelet found may only be told once this one has begun: a mirror pod tells it late.
            if known.is_some_and(|known| !known.shared.continues(first)) {
                continue;
            }
            if known.is_some() && kind != ProbeKind::Startup {
                continue;
            }
            let shared = Arc::new(Shared::new(first));
            let container_id = running.container_id.clone();
            if (kind, first) == (ProbeKind::Startup, ProbeResult::Success) {
                workers.insert(key, Running { container_id, shared, task: None });
                drop(workers);
                self.gate(&pod_uid, container, running, told);
                continue;
            }
            let worker = Worker {
                kind,
                pod: pod.clone(),
                pod_ip: pod_ip.to_owned(),
                container: container.clone(),
                probe: probe.clone(),
                running: running.clone(),
                shared: shared.clone(),
                exec: self.exec.clone(),
                events: self.events.clone(),
                updates: self.updates.clone(),
                started: started.clone(),
            };
            let task = Some(tokio::spawn(worker.run()).abort_handle());
            workers.insert(key, Running { container_id, shared, task });
        }
    }
}

impl Probes for Manager {
    fn observe(&self, pod: &Arc<Pod>, pod_ips: &[String], running: &[RunningContainer]) {
        let Some(spec) = &pod.spec else { return };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.retain(uid, running);
        let pod_ip = pod_ips.first().map(String::as_str).unwrap_or_default();
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            if let Some(running) = running.iter().find(|running| running.name == container.name) {
                self.ensure(pod, pod_ip, container, running);
            }
        }
    }

    fn retain(&self, pod_uid: &str, running: &[RunningContainer]) {
        let alive = |key: &ProbeKey| running.iter().any(|container| container.name == key.container);
        self.workers.lock().retain(|key, _| key.pod_uid != pod_uid || alive(key));
    }

    fn stop(&self, pod_uid: &str, container_id: &str) {
        self.workers.lock().retain(|key, worker| key.pod_uid != pod_uid || worker.container_id != container_id);
    }

    fn stop_liveness(&self, pod_uid: &str) {
        let stops = |key: &ProbeKey| key.pod_uid == pod_uid && key.kind != ProbeKind::Readiness;
        self.workers.lock().retain(|key, _| !stops(key));
    }

    fn remove(&self, pod_uid: &str) {
        self.workers.lock().retain(|key, _| key.pod_uid != pod_uid);
        self.started.lock().retain(|(uid, _), _| uid != pod_uid);
    }

    fn result(&self, pod_uid: &str, container: &str, kind: ProbeKind, container_id: &str) -> Option<ProbeResult> {
        let key = ProbeKey { pod_uid: pod_uid.to_owned(), container: container.to_owned(), kind };
        let workers = self.workers.lock();
        let worker = workers.get(&key).filter(|worker| worker.container_id == container_id)?;
        Some(worker.shared.result())
    }
}

fn probes(container: &Container) -> impl Iterator<Item = (ProbeKind, &Probe)> {
    let all = [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
    ];
    all.into_iter().filter_map(|(kind, probe)| Some((kind, probe.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::{CriError, ExecOutput};
    use crate::events::LogSink;
    use async_trait::async_trait;
    use jiff::Timestamp;
    use serde_json::json;
    use std::time::Duration;

    /// Answers with the exit code that the command names.
    struct ExitCode;

    #[async_trait]
    impl Exec for ExitCode {
        async fn exec_sync(&self, _: &str, command: &[String], _: Duration) -> Result<ExecOutput, CriError> {
            Ok(ExecOutput { exit_code: command[0].parse().unwrap_or(0), ..ExecOutput::default() })
        }
    }

    fn pod(container: serde_json::Value) -> Arc<Pod> {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container]}});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn running(id: &str) -> [RunningContainer; 1] {
        [RunningContainer { name: "c".into(), container_id: id.into(), started_at: Timestamp::now() }]
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_waits_for_startup_and_starts_anew_with_the_container() {
        let (manager, mut updates) = Manager::new(Arc::new(ExitCode), Arc::new(LogSink));
        let exec = |code: &str| json!({"exec": {"command": [code]}, "periodSeconds": 1});
        let pod = pod(json!({"name": "c", "startupProbe": exec("0"), "readinessProbe": exec("0")}));
        manager.observe(&pod, &[], &running("first"));
        assert_eq!(manager.result("u", "c", ProbeKind::Readiness, "first"), Some(ProbeResult::Failure));
        let update = updates.recv().await.expect("an update");
        assert_eq!((update.kind, update.result), (ProbeKind::Startup, ProbeResult::Success));
        manager.observe(&pod, &[], &running("first"));
        let update = updates.recv().await.expect("an update");
        assert_eq!((update.kind, update.result), (ProbeKind::Readiness, ProbeResult::Success));
        manager.observe(&pod, &[], &running("second"));
        assert_eq!(manager.result("u", "c", ProbeKind::Readiness, "first"), None);
        assert_eq!(manager.result("u", "c", ProbeKind::Readiness, "second"), Some(ProbeResult::Failure));
    }

    #[tokio::test(start_paused = true)]
    async fn containers_that_ran_before_the_kubelet_stay_started_and_ready() {
        let (manager, mut updates) = Manager::new(Arc::new(ExitCode), Arc::new(LogSink));
        // The startup probe would fail by now.
        let probe = |code: &str, failures: u32| json!({"exec": {"command": [code]}, "periodSeconds": 1, "failureThreshold": failures});
        let container = json!({"name": "c", "startupProbe": probe("1", 1), "readinessProbe": probe("1", 3)});
        let untold = pod(container);
        let mut pod = Pod::clone(&untold);
        let told = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "restartCount": 0,
            "containerID": "containerd://known", "ready": true, "started": true}]});
        pod.status = serde_json::from_value(told).expect("a status");
        let pod = Arc::new(pod);
        let results =
            |id: &str| [ProbeKind::Startup, ProbeKind::Readiness].map(|kind| manager.result("u", "c", kind, id));
        manager.observe(&pod, &[], &running("other"));
        assert_eq!(results("other"), [Some(ProbeResult::Unknown), Some(ProbeResult::Failure)]);
        // A mirror pod may tell of it when the kubelet has begun.
        manager.observe(&untold, &[], &running("known"));
        assert_eq!(results("known"), [Some(ProbeResult::Unknown), Some(ProbeResult::Failure)]);
        manager.observe(&pod, &[], &running("known"));
        assert_eq!(results("known"), [Some(ProbeResult::Success); 2]);
        // Readiness is looked at again, and is lost at its threshold.
        let update = updates.recv().await.expect("an update");
        assert_eq!((update.kind, update.result), (ProbeKind::Readiness, ProbeResult::Failure));
        assert_eq!(results("known"), [Some(ProbeResult::Success), Some(ProbeResult::Failure)]);
        manager.retain("u", &[]);
        assert_eq!(results("known"), [None, None]);
    }

    #[tokio::test(start_paused = true)]
    async fn liveness_fails_after_its_threshold() {
        let (manager, mut updates) = Manager::new(Arc::new(ExitCode), Arc::new(LogSink));
        let probe = json!({"exec": {"command": ["1"]}, "periodSeconds": 10, "failureThreshold": 3});
        let before = tokio::time::Instant::now();
        manager.observe(&pod(json!({"name": "c", "livenessProbe": probe})), &[], &running("id"));
        assert_eq!(manager.result("u", "c", ProbeKind::Liveness, "id"), Some(ProbeResult::Success));
        let update = updates.recv().await.expect("an update");
        assert_eq!(
            (update.kind, update.result, update.container_id.as_str()),
            (ProbeKind::Liveness, ProbeResult::Failure, "id")
        );
        assert_eq!(before.elapsed().as_secs(), 20);
    }
}
