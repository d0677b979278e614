//! Status of single containers.
//! Answers for `convertToAPIContainerStatuses` of upstream's `kubelet_pods.go`.

use super::inputs::Inputs;
use crate::probes::ProbeResult;
use crate::workers::container::recursive_read_only;
use crate::workers::observed::{Container as Found, State};
use crate::workers::plan::{self, timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, LinuxContainerUser, PodSpec, ResourceRequirements, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use shared::types::is_sidecar;

/// The exit code for containers that the runtime lost.
const LOST: i32 = 137;

fn waiting(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then(|| message.to_owned()),
        }),
        ..ContainerState::default()
    }
}

fn lost(message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(message.to_owned()),
            exit_code: LOST,
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

fn time(nanoseconds: i64) -> Option<Time> {
    timestamp(nanoseconds).map(Time)
}

fn terminated(runtime_name: &str, found: &Found) -> ContainerState {
    let reason = match (found.reason.as_str(), found.exit_code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (reason, _) => reason,
    };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(format!("{runtime_name}://{}", found.id)),
            exit_code: found.exit_code,
            finished_at: time(found.finished_at).or(Some(Time(jiff::Timestamp::UNIX_EPOCH))),
            started_at: time(found.started_at).or(Some(Time(jiff::Timestamp::UNIX_EPOCH))),
            message: (!found.message.is_empty()).then(|| found.message.clone()),
            reason: Some(reason.to_owned()),
            signal: None,
        }),
        ..ContainerState::default()
    }
}

fn state(runtime_name: &str, found: &Found) -> ContainerState {
    match found.state {
        State::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(found.started_at) }),
            ..ContainerState::default()
        },
        State::Exited => terminated(runtime_name, found),
        State::Created => waiting("ContainerCreating", ""),
        State::Unknown => lost("The container could not be located when the pod was terminated"),
    }
}

/// Reports whether the worker will start this container again.
fn restarts(spec: &PodSpec, container: &Container, found: &Found, init: bool) -> bool {
    if found.state != State::Exited {
        return false;
    }
    let done = init && !is_sidecar(container) && found.exit_code == 0;
    !done && plan::restarts(spec, container, found.exit_code)
}

/// Statuses of one list of containers, in the spec's order.
pub fn statuses(
    inputs: &Inputs<'_>,
    list: &[Container],
    old: Option<&Vec<ContainerStatus>>,
    init: bool,
) -> Vec<ContainerStatus> {
    let Some(spec) = &inputs.pod.spec else { return Vec::new() };
    let has_init = spec.init_containers.as_ref().is_some_and(|i| !i.is_empty());
    list.iter()
        .map(|container| {
            let old = old.and_then(|all| all.iter().find(|s| s.name == container.name));
            let default = if has_init { "PodInitializing" } else { "ContainerCreating" };
            one(inputs, spec, container, old, default, init)
        })
        .collect()
}

fn one(
    inputs: &Inputs<'_>,
    spec: &PodSpec,
    container: &Container,
    old: Option<&ContainerStatus>,
    default_reason: &str,
    init: bool,
) -> ContainerStatus {
    let name = &container.name;
    let mut status = ContainerStatus {
        name: name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ..ContainerStatus::default()
    };
    let found = inputs.observed.latest(name);
    match found {
        Some(found) => {
            status.container_id = Some(format!("{}://{}", inputs.runtime_name, found.id));
            if !found.image.is_empty() {
                status.image = found.image.clone();
            }
            status.image_id = found.image_ref.clone();
            status.restart_count = i32::try_from(found.restart_count).unwrap_or(i32::MAX);
            status.state = Some(state(inputs.runtime_name, found));
            status.last_state = match inputs.observed.previous(name) {
                Some(previous) if previous.state == State::Exited => Some(terminated(inputs.runtime_name, previous)),
                _ => old.and_then(|o| o.last_state.clone()).filter(|_| found.restart_count > 0),
            };
            if let Some(user) = &found.user {
                status.user = Some(ContainerUser {
                    linux: Some(LinuxContainerUser {
                        uid: user.uid,
                        gid: user.gid,
                        supplemental_groups: (!user.supplemental_groups.is_empty())
                            .then(|| user.supplemental_groups.clone()),
                    }),
                });
            }
        }
        None => {
            status.state = Some(waiting(default_reason, ""));
            if let Some(old) = old {
                carry_over(inputs, &mut status, old, default_reason);
            }
        }
    }
    if let Some((reason, message)) = inputs.waiting.get(name) {
        let blocked = found.is_none_or(|f| f.state == State::Created || restarts(spec, container, f, init));
        if blocked && !inputs.terminating {
            if let Some(state) = status.state.take()
                && state.terminated.is_some()
            {
                status.last_state = Some(state);
            }
            status.state = Some(waiting(reason, message));
        }
    }
    flags(inputs, container, found, &mut status, init);
    decorate(inputs, container, found, &mut status);
    if !init {
        status.allocated_resources_status = Some((inputs.health)(container)).filter(|health| !health.is_empty());
    }
    status
}

/// The runtime knows nothing of the container, but an earlier status does.
fn carry_over(inputs: &Inputs<'_>, status: &mut ContainerStatus, old: &ContainerStatus, default_reason: &str) {
    status.last_state = old.last_state.clone();
    status.restart_count = old.restart_count;
    let Some(state) = &old.state else { return };
    if state.terminated.is_some() {
        // It had ended; the runtime has merely forgotten it.
        status.state = Some(state.clone());
        status.container_id = old.container_id.clone();
        status.image_id = old.image_id.clone();
    } else if state.running.is_some() {
        if inputs.terminating {
            status.state = Some(lost("The container could not be located when the pod was terminated"));
        } else {
            status.state = Some(waiting(default_reason, ""));
            status.last_state = Some(lost(
                "The container could not be located when the pod was deleted.  The container used to be Running",
            ));
            status.restart_count += 1;
        }
    }
}

/// Once nothing of the pod is left, what it should have run and did not counts as lost; containers whose turn had
/// not come stay as they are.
pub fn settle(spec: &PodSpec, init: &mut [ContainerStatus], apps: &mut [ContainerStatus]) {
    let begun = |status: &ContainerStatus| {
        status.state.as_ref().is_none_or(|state| state.waiting.is_none())
            || status.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
    };
    let passed = |status: &ContainerStatus| {
        let ended = |state: &Option<ContainerState>| {
            state.as_ref().and_then(|state| state.terminated.as_ref()).is_some_and(|ended| ended.exit_code == 0)
        };
        ended(&status.state) || ended(&status.last_state) || status.started == Some(true)
    };
    let initialized = spec.init_containers.as_ref().is_none_or(Vec::is_empty)
        || apps.iter().any(begun)
        || init.last().is_some_and(passed);
    let fail = |status: &mut ContainerStatus| {
        if status.state.as_ref().is_none_or(|state| state.terminated.is_none()) {
            status.state = Some(lost("The container could not be located when the pod was terminated"));
        }
    };
    if initialized {
        apps.iter_mut().for_each(fail);
    }
    // The first one at least was due.
    let due = init.iter().rposition(begun).map_or(1, |last| last + 1).min(init.len());
    init[..due].iter_mut().for_each(fail);
}

/// `started` and `ready`.
fn flags(inputs: &Inputs<'_>, container: &Container, found: Option<&Found>, status: &mut ContainerStatus, init: bool) {
    let running = found.filter(|f| f.state == State::Running);
    let started = running.is_some_and(|f| {
        container.startup_probe.is_none() || (inputs.startup)(&container.name, &f.id) == Some(ProbeResult::Success)
    });
    status.started = Some(started);
    status.ready = if init && !is_sidecar(container) {
        found.is_some_and(|f| f.state == State::Exited && f.exit_code == 0)
            || (found.is_none()
                && status.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0))
    } else {
        started
            && running.is_some_and(|f| {
                container.readiness_probe.is_none()
                    || (inputs.readiness)(&container.name, &f.id) == Some(ProbeResult::Success)
            })
    };
}

/// Fills in resources and mounts of a status.
fn decorate(inputs: &Inputs<'_>, container: &Container, found: Option<&Found>, status: &mut ContainerStatus) {
    let mounts: Vec<VolumeMountStatus> = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: mount.read_only.filter(|r| *r).map(|_| {
                let recursive =
                    recursive_read_only(mount, inputs.recursive_read_only).is_ok_and(|is_read_only| is_read_only);
                if recursive { "Enabled" } else { "Disabled" }.to_owned()
            }),
        })
        .collect();
    if !mounts.is_empty() {
        status.volume_mounts = Some(mounts);
    }
    let Some(found) = found else { return };
    let allocated = container.resources.clone().unwrap_or_default();
    status.allocated_resources = allocated.requests.clone();
    // What runs is told as it is, whatever is allocated by now.
    let given = found.given.clone().filter(|_| found.state == State::Running);
    status.resources = Some(ResourceRequirements { claims: None, ..given.unwrap_or(allocated) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_was_due_counts_as_lost() {
        let spec = |init: usize| -> PodSpec {
            let init: Vec<_> = (0..init).map(|n| json!({"name": format!("i{n}")})).collect();
            serde_json::from_value(json!({"containers": [{"name": "c"}], "initContainers": init})).expect("spec")
        };
        let status = |name: &str, state: serde_json::Value| -> ContainerStatus {
            let base =
                json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            serde_json::from_value(base).expect("status")
        };
        let waiting = || json!({"waiting": {"reason": "PodInitializing"}});
        let ended = |code: i32| json!({"terminated": {"exitCode": code}});
        let codes = |statuses: &[ContainerStatus]| -> Vec<Option<i32>> {
            let code = |s: &ContainerStatus| s.state.as_ref()?.terminated.as_ref().map(|t| t.exit_code);
            statuses.iter().map(code).collect()
        };
        for (init, app, expected_init, expected_app) in [
            // Without init containers every container was due.
            (vec![], waiting(), vec![], vec![Some(LOST)]),
            // A failed init container keeps the others from their turn.
            (vec![ended(1), waiting()], waiting(), vec![Some(1), None], vec![None]),
            (vec![waiting(), waiting()], waiting(), vec![Some(LOST), None], vec![None]),
            (vec![ended(0), ended(0)], waiting(), vec![Some(0), Some(0)], vec![Some(LOST)]),
            (vec![ended(0)], ended(3), vec![Some(0)], vec![Some(3)]),
        ] {
            let spec = spec(init.len());
            let mut init: Vec<_> = init.into_iter().enumerate().map(|(n, s)| status(&format!("i{n}"), s)).collect();
            let mut apps = vec![status("c", app)];
            settle(&spec, &mut init, &mut apps);
            assert_eq!((codes(&init), codes(&apps)), (expected_init, expected_app));
        }
    }
}
