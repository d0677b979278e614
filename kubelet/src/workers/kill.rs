//! Stopping containers and pods: `preStop`, grace, order (ordinary containers first, sidecars last and in reverse).
//! Answers for `killContainer`, `killPodWithSyncResult` and `killContainersWithSyncResult` of upstream's kuberuntime.

use super::context::WorkerContext;
use super::error::KillError;
use super::observed::{Container as Found, Observed, State};
use crate::cri::CriError;
use crate::events::{EventType, field_path};
use crate::hooks::HookTarget;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use shared::types::is_sidecar;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Time that a container always gets: after its `preStop` hook, and where nobody has asked for less.
pub(super) const MINIMUM_GRACE: i64 = 2;

/// Containers whose `preStop` hook has been run: an interrupted stop must not run it again.
pub type HooksRun = Mutex<HashSet<String>>;

/// The container's spec, in whichever list it is.
pub fn spec_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

/// Stops one container; what the runtime does not know any more counts as stopped.
pub async fn container(
    cx: &WorkerContext,
    pod: &Pod,
    found: &Found,
    pod_ip: &str,
    grace: i64,
    message: &str,
    hooks_run: &HooksRun,
) -> Result<(), KillError> {
    let path = field_path(pod, &found.name);
    let started = Instant::now();
    let first = hooks_run.lock().insert(found.id.clone());
    if first {
        cx.events.pod(pod, &path, EventType::Normal, "Killing", message);
    }
    let spec = spec_of(pod, &found.name);
    let hook = spec.and_then(|s| s.lifecycle.as_ref()).and_then(|l| l.pre_stop.as_ref());
    if let (Some(hook), Some(spec), true, true) = (hook, spec, first, grace > 0 && found.state == State::Running) {
        let target = HookTarget { pod, container: spec, container_id: &found.id, pod_ip };
        let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        if let Err(error) = cx.hooks.run(hook, target, limit).await {
            tracing::warn!(pod = %crate::pods::describe(pod), container = %found.name, %error, "PreStop hook failed");
            cx.events.pod(pod, &path, EventType::Warning, "FailedPreStopHook", "PreStopHook failed");
        }
    }
    let spent = i64::try_from(started.elapsed().as_secs()).unwrap_or(i64::MAX);
    let left = if hook.is_some() { (grace - spent).max(MINIMUM_GRACE) } else { grace };
    match cx.runtime.stop_container(&found.id, left).await {
        Err(cause) if !cause.is_not_found() => {
            let error = KillError::Container { name: found.name.clone(), cause };
            cx.events.pod(pod, &path, EventType::Warning, "FailedKillPod", &format!("error killing pod: {error}"));
            Err(error)
        }
        _ => {
            // Others of the pod may take long yet: nobody is told meanwhile that this one does not answer.
            cx.probes.stop(crate::pods::uid(pod), &found.id);
            Ok(())
        }
    }
}

/// Kills one container, without its hook and without time to end.
pub async fn at_once(cx: &WorkerContext, pod: &Pod, found: &Found) -> Result<(), CriError> {
    let (path, text) = (field_path(pod, &found.name), format!("Stopping container {}", found.name));
    cx.events.pod(pod, &path, EventType::Normal, "Killing", &text);
    match cx.runtime.stop_container(&found.id, 0).await {
        Err(error) if !error.is_not_found() => {
            let text = format!("error killing pod: failed to kill container {}: {error}", found.name);
            cx.events.pod(pod, &path, EventType::Warning, "FailedKillPod", &text);
            Err(error)
        }
        _ => {
            cx.probes.stop(crate::pods::uid(pod), &found.id);
            Ok(())
        }
    }
}

/// Stops everything of a pod.
pub async fn pod(
    cx: &WorkerContext,
    pod: &Pod,
    observed: &Observed,
    grace: i64,
    hooks_run: &HooksRun,
) -> Result<(), KillError> {
    let started = Instant::now();
    let ip = observed.active_sandbox().and_then(|s| s.ips.first()).cloned().unwrap_or_default();
    let sidecars: Vec<&str> = pod
        .spec
        .iter()
        .flat_map(|s| s.init_containers.iter().flatten())
        .filter(|c| is_sidecar(c))
        .map(|c| c.name.as_str())
        .collect();
    let alive = || observed.containers.iter().filter(|c| matches!(c.state, State::Running | State::Unknown));
    let message = |found: &Found| format!("Stopping container {}", found.name);
    let ordinary = alive().filter(|c| !sidecars.contains(&c.name.as_str()));
    let results = futures::future::join_all(ordinary.map(|found| {
        let text = message(found);
        let ip = ip.as_str();
        async move { container(cx, pod, found, ip, grace, &text, hooks_run).await }
    }))
    .await;
    let mut failed = results.into_iter().find_map(Result::err);
    for name in sidecars.iter().rev() {
        for found in alive().filter(|c| c.name == **name) {
            let spent = i64::try_from(started.elapsed().as_secs()).unwrap_or(i64::MAX);
            let left = if grace <= MINIMUM_GRACE { grace } else { (grace - spent).max(MINIMUM_GRACE) };
            if let Err(error) = container(cx, pod, found, &ip, left, &message(found), hooks_run).await {
                failed.get_or_insert(error);
            }
        }
    }
    for sandbox in &observed.sandboxes {
        match cx.runtime.stop_sandbox(&sandbox.id).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(cause) => {
                failed.get_or_insert_with(|| KillError::Sandbox { id: sandbox.id.clone(), cause });
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Removes what the runtime still keeps of a stopped pod.
pub async fn remove(cx: &WorkerContext, observed: &Observed) {
    for container in &observed.containers {
        if let Err(error) = cx.runtime.remove_container(&container.id).await
            && !error.is_not_found()
        {
            tracing::warn!(id = %container.id, %error, "Could not remove container");
        }
    }
    for sandbox in &observed.sandboxes {
        let stopped = cx.runtime.stop_sandbox(&sandbox.id).await;
        let removed = cx.runtime.remove_sandbox(&sandbox.id).await;
        if let Err(error) = stopped.and(removed)
            && !error.is_not_found()
        {
            tracing::warn!(id = %sandbox.id, %error, "Could not remove sandbox");
        }
    }
}
