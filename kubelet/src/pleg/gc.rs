//! Garbage: dead containers beyond those that the policy keeps, dead sandboxes that nothing refers to, pods that no
//! source wants, folders and cgroups of pods long gone. Answers for upstream's `kuberuntime_gc.go` and for
//! `HandlePodCleanups`.

use crate::blocking::REMOVAL;
use crate::cri::{CriError, labels, v1};
use crate::events::EventType;
use crate::settings::ContainerGcPolicy;
use crate::trees;
use crate::workers::context::WorkerContext;
use crate::workers::kill;
use crate::workers::manager::Manager;
use crate::workers::observed::Observer;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::traces::{self, SpanKind};
use shared::types::is_pod_terminal;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Instrumentation scope of its spans.
const SCOPE: &str = "k8s.io/kubernetes/pkg/kubelet/kuberuntime";
/// Interval at which garbage is looked for.
const PERIOD: Duration = Duration::from_secs(60);
/// Clean-up of unwanted pods happens more often.
const HOUSEKEEPING: Duration = Duration::from_secs(2);

/// Garbage to remove: containers, then sandboxes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    /// Container ids.
    pub containers: Vec<String>,
    /// Sandbox ids.
    pub sandboxes: Vec<String>,
}

/// Pods whose garbage is picked.
#[derive(Debug, Default)]
pub struct GcPods {
    /// Uids that sources want; what others have is taken down with them.
    pub known: HashSet<String>,
    /// Uids among them of pods that have ended and keep nothing (`evictTerminatedPods`).
    pub ended: HashSet<String>,
}

/// Picks the garbage of pods: dead containers that the policy does not keep, and all but the newest sandbox. `now` is in
/// nanoseconds since the epoch, as the runtime's times are.
pub fn garbage(
    containers: &[v1::Container],
    sandboxes: &[v1::PodSandbox],
    pods: &GcPods,
    policy: &ContainerGcPolicy,
    now: i64,
) -> Garbage {
    let mut found = Garbage { containers: dead_containers(containers, pods, policy, now), ..Garbage::default() };
    let used: HashSet<&str> =
        containers.iter().filter(|c| !found.containers.contains(&c.id)).map(|c| c.pod_sandbox_id.as_str()).collect();
    let mut by_pod: HashMap<&str, Vec<&v1::PodSandbox>> = HashMap::new();
    for sandbox in sandboxes {
        if let Some(uid) = sandbox.labels.get(labels::POD_UID).filter(|uid| pods.known.contains(*uid)) {
            by_pod.entry(uid).or_default().push(sandbox);
        }
    }
    for (uid, list) in &mut by_pod {
        list.sort_by_key(|s| std::cmp::Reverse((s.metadata.as_ref().map(|m| m.attempt), s.created_at)));
        let kept = usize::from(!pods.ended.contains(*uid));
        let old = list.iter().skip(kept).filter(|s| s.state() == v1::PodSandboxState::SandboxNotready);
        found.sandboxes.extend(old.filter(|s| !used.contains(s.id.as_str())).map(|s| s.id.clone()));
    }
    found.sandboxes.sort();
    found
}

/// Dead containers that go. Answers for upstream's `evictContainers`.
fn dead_containers(containers: &[v1::Container], pods: &GcPods, policy: &ContainerGcPolicy, now: i64) -> Vec<String> {
    let newest = now.saturating_sub(i64::try_from(policy.min_age.as_nanos()).unwrap_or(i64::MAX));
    let mut dead: BTreeMap<(&str, &str), Vec<&v1::Container>> = BTreeMap::new();
    for container in containers {
        let Some(uid) = container.labels.get(labels::POD_UID).filter(|uid| pods.known.contains(*uid)) else { continue };
        let name = container.labels.get(labels::CONTAINER_NAME).map(String::as_str).unwrap_or_default();
        if container.state() == v1::ContainerState::ContainerExited && container.created_at <= newest {
            dead.entry((uid, name)).or_default().push(container);
        }
    }
    let mut gone = Vec::new();
    for ((uid, _), list) in &mut dead {
        list.sort_by_key(|c| std::cmp::Reverse((attempt(c), c.created_at)));
        let kept = if pods.ended.contains(*uid) { Some(0) } else { policy.per_container };
        gone.extend(list.split_off(kept.unwrap_or(list.len()).min(list.len())));
    }
    dead.retain(|_, list| !list.is_empty());
    let left = |dead: &BTreeMap<_, Vec<&v1::Container>>| dead.values().map(Vec::len).sum::<usize>();
    if let Some(most) = policy.total.filter(|most| left(&dead) > *most) {
        // An equal number each, at least one; then the oldest of all.
        let each = (most / dead.len().max(1)).max(1);
        for list in dead.values_mut() {
            gone.extend(list.split_off(each.min(list.len())));
        }
        let mut rest: Vec<&v1::Container> = dead.into_values().flatten().collect();
        rest.sort_by_key(|c| std::cmp::Reverse((attempt(c), c.created_at)));
        gone.extend(rest.split_off(most.min(rest.len())));
    }
    gone.into_iter().map(|container| container.id.clone()).collect()
}

/// Number of a container's start: its time is that of a clock that may be set back.
fn attempt(container: &v1::Container) -> Option<u32> {
    container.metadata.as_ref().map(|metadata| metadata.attempt)
}

/// Removes the garbage of pods.
async fn collect(cx: &WorkerContext, pods: &GcPods, policy: &ContainerGcPolicy) -> Result<(), CriError> {
    let span = cx.tracer.root(SCOPE, "Containers/GarbageCollect", SpanKind::Internal);
    traces::within(span.as_ref(), Box::pin(remove(cx, pods, policy))).await
}

/// Removes dead containers and sandboxes, all of those of pods that have ended. Answers for upstream's
/// `DeleteAllUnusedContainers`.
pub async fn delete_all_unused_containers(manager: &Manager, policy: &ContainerGcPolicy) {
    tracing::info!("Attempting to delete unused containers");
    let pods = GcPods { known: manager.uids(), ended: manager.ended_uids() };
    if let Err(error) = collect(manager.context(), &pods, policy).await {
        tracing::error!(%error, "Could not delete unused containers");
    }
}

async fn remove(cx: &WorkerContext, pods: &GcPods, policy: &ContainerGcPolicy) -> Result<(), CriError> {
    let (containers, sandboxes) = tokio::try_join!(cx.runtime.list_containers(None), cx.runtime.list_sandboxes(None))?;
    let now = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
    let found = garbage(&containers, &sandboxes, pods, policy, now);
    for id in found.containers {
        let log = cx.runtime.container_status(&id).await.map(|s| s.log_path).unwrap_or_default();
        match cx.runtime.remove_container(&id).await {
            Ok(()) if !log.is_empty() => super::logs::remove(std::path::Path::new(&log)),
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(id, %error, "Could not remove dead container"),
        }
    }
    for id in found.sandboxes {
        // It was stopped when its pod ended; one that was not would keep its network.
        let removed = match cx.runtime.stop_sandbox(&id).await {
            Ok(()) => cx.runtime.remove_sandbox(&id).await,
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::warn!(id, %error, "Could not remove dead sandbox");
        }
    }
    crate::workers::container::unlink_dangling(&cx.settings.container_logs_dir);
    Ok(())
}

/// Stops and removes pods in the runtime that no source wants. Only called once every source was heard. The runtime is only
/// asked when there may be any: `listed` are those that it had a moment ago.
async fn orphans(
    cx: &WorkerContext,
    manager: &Manager,
    present: &impl Fn(&str) -> bool,
    listed: Option<&HashSet<String>>,
) {
    let all_known = |listed: &HashSet<String>| {
        let known = manager.uids();
        listed.iter().all(|uid| known.contains(uid) || present(uid))
    };
    if listed.is_some_and(all_known) {
        crate::metrics::working("terminating", "runtime_only", "unknown", 0);
        return;
    }
    let Ok(sandboxes) = cx.runtime.list_sandboxes(None).await else { return };
    let Ok(containers) = cx.runtime.list_containers(None).await else { return };
    let known = manager.uids();
    let uid_labels = sandboxes.iter().map(|s| &s.labels).chain(containers.iter().map(|c| &c.labels));
    let unknown: BTreeMap<String, BTreeMap<String, String>> = uid_labels
        .filter_map(|l| l.get(labels::POD_UID).map(|uid| (uid.clone(), l.clone())))
        .filter(|(uid, _)| !known.contains(uid) && !present(uid))
        .collect();
    crate::metrics::working("terminating", "runtime_only", "unknown", unknown.len());
    for (uid, marks) in unknown {
        // The one before took its time.
        if manager.uids().contains(&uid) || present(&uid) {
            continue;
        }
        let pod = Pod {
            metadata: ObjectMeta {
                name: marks.get(labels::POD_NAME).cloned(),
                namespace: marks.get(labels::POD_NAMESPACE).cloned(),
                uid: Some(uid.clone()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        };
        tracing::info!(pod = %crate::pods::describe(&pod), "Removing pod that is not wanted any more");
        crate::metrics::orphaned();
        let Ok(observed) = Observer::default().observe(cx.runtime.as_ref(), &uid).await else { continue };
        let hooks_run = kill::HooksRun::default();
        if kill::pod(cx, &pod, &observed, 1, &hooks_run).await.is_ok() {
            kill::remove(cx, &observed).await;
            let logs = cx.settings.pod_log_dir(crate::pods::namespace(&pod), crate::pods::name(&pod), &uid);
            if let Err(error) = REMOVAL.run(move || trees::remove(&logs)).await {
                tracing::warn!(pod_uid = uid, %error, "Could not remove the logs of a pod");
            }
        }
    }
}

/// Takes down volumes, folders and cgroups of pods that neither a source nor the runtime knows.
async fn leftovers(
    cx: &Arc<WorkerContext>,
    manager: &Manager,
    present: &impl Fn(&str) -> bool,
    volumes: &mut Option<JoinHandle<()>>,
) {
    // What there is to take down is listed before what is known: a pod that comes meanwhile has none of it.
    let folders = cx.volumes.pods_on_disk();
    let logs = log_folders(&cx.settings.pod_logs_dir);
    let for_cgroups = Arc::clone(cx);
    let cgroups = tokio::task::spawn_blocking(move || for_cgroups.cgroups.pods()).await.unwrap_or_default();
    let Ok(sandboxes) = cx.runtime.list_sandboxes(None).await else { return };
    let in_runtime: HashSet<&String> = sandboxes.iter().filter_map(|s| s.labels.get(labels::POD_UID)).collect();
    // Asked for each of them: taking down the one before takes its time.
    let gone = |uid: &String| !manager.uids().contains(uid) && !in_runtime.contains(uid) && !present(uid);
    cx.devices.retain(|uid| !gone(&uid.to_owned()));
    cx.cpus.retain(|uid| !gone(&uid.to_owned()));
    cx.memory.retain(|uid| !gone(&uid.to_owned()));
    cx.records.retain(|uid| !gone(&uid.to_owned()));
    if let Some(userns) = &cx.userns {
        userns.retain(|uid| !gone(&uid.to_owned()));
    }
    let folders: Vec<String> = folders.into_iter().filter(gone).collect();
    if volumes.as_ref().is_none_or(JoinHandle::is_finished) {
        let claims = cx.claims.pods().into_iter().filter(gone).collect();
        *volumes = Some(tokio::spawn(take_down(Arc::clone(cx), folders, claims)));
    }
    for (uid, folder) in logs.into_iter().filter(|(uid, _)| gone(uid)) {
        if let Err(error) = REMOVAL.run(move || trees::remove(&folder)).await {
            tracing::warn!(pod_uid = uid, %error, "Could not remove the logs of a pod that is gone");
        }
    }
    for uid in cgroups.into_iter().filter(gone) {
        let for_cgroups = Arc::clone(cx);
        let removed = tokio::task::spawn_blocking(move || for_cgroups.cgroups.remove_pod(&uid)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "Could not remove the cgroup of a pod that is gone");
        }
    }
}

/// Takes down volumes and claims of pods that are gone, and volumes that no pod uses. Drivers may take their time: the others
/// do not wait.
async fn take_down(cx: Arc<WorkerContext>, uids: Vec<String>, with_claims: Vec<String>) {
    for uid in with_claims {
        if let Err(error) = cx.claims.unprepare(&uid).await {
            tracing::warn!(pod_uid = uid, %error, "Could not give back the resource claims of a pod that is gone");
        }
    }
    let (pods, mut failures) = (uids.len(), 0);
    for uid in uids {
        let folder = cx.settings.pod_dir(&uid);
        let removed = match cx.volumes.unmount(&uid).await {
            Ok(()) => REMOVAL.run(move || trees::remove(&folder)).await.map_err(anyhow::Error::from),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = removed {
            failures += 1;
            tracing::warn!(pod_uid = uid, %error, "Could not take down volumes of a pod that is gone");
        }
    }
    crate::metrics::orphans_swept(pods, failures);
    cx.volumes.sweep().await;
}

/// Folders of pods' logs, `<namespace>_<name>_<uid>`, with the uids of the pods.
fn log_folders(root: &Path) -> Vec<(String, PathBuf)> {
    let folder = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let parts: Vec<&str> = name.split('_').collect();
        let [_, _, uid] = parts[..] else { return None };
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        (is_folder && !uid.is_empty()).then(|| (uid.to_owned(), entry.path()))
    };
    std::fs::read_dir(root).into_iter().flatten().flatten().filter_map(folder).collect()
}

/// Runs until shutdown. `ready` turns true once every source was heard; `present` says of a uid that its pod is there although
/// the manager does not know it; `listed` are the pods that the runtime had a moment ago, where that is known.
pub async fn run(
    manager: Arc<Manager>,
    policy: ContainerGcPolicy,
    ready: impl Fn() -> bool,
    present: impl Fn(&str) -> bool,
    listed: impl Fn() -> Option<HashSet<String>>,
    shutdown: CancellationToken,
) {
    let cx = Arc::clone(manager.context());
    let mut since_collect = Duration::ZERO;
    let mut first = true;
    let mut volumes = None;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(HOUSEKEEPING) => since_collect += HOUSEKEEPING,
        }
        if !ready() {
            continue;
        }
        orphans(&cx, &manager, &present, listed().as_ref()).await;
        if first || since_collect >= PERIOD {
            leftovers(&cx, &manager, &present, &mut volumes).await;
            let pods = GcPods { known: manager.uids(), ended: HashSet::new() };
            if let Err(error) = collect(&cx, &pods, &policy).await {
                tracing::error!(%error, "Container garbage collection failed");
                cx.events.node(EventType::Warning, "ContainerGCFailed", &error.to_string());
            }
            cx.objects.retain(&manager.pods());
            since_collect = Duration::ZERO;
            first = false;
        }
        let all = manager.pods();
        let for_cgroups = Arc::clone(&cx);
        let updated = tokio::task::spawn_blocking(move || {
            let active: Vec<&Pod> = all.iter().map(|p| p.as_ref()).filter(|p| !is_pod_terminal(p)).collect();
            for_cgroups.cgroups.update_tiers(&active)
        })
        .await;
        if let Ok(Err(error)) = updated {
            tracing::warn!(%error, "Could not update the cgroups of the QoS classes");
        }
    }
}

#[cfg(test)]
mod tests;
