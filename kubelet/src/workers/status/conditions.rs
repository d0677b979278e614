//! Pod conditions, with upstream's reasons and messages.

use super::inputs::Inputs;
use crate::reasons;
use crate::workers::observed::Observed;
use crate::workers::resize::Progress;
use crate::workers::restart_all;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use shared::types::is_sidecar;

fn condition(kind: &str, verdict: Result<(), (String, String)>, reason_when_true: &str) -> PodCondition {
    let (status, reason, message) = match verdict {
        Ok(()) => ("True", reason_when_true.to_owned(), String::new()),
        Err((reason, message)) => ("False", reason, message),
    };
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: (!reason.is_empty()).then_some(reason),
        message: (!message.is_empty()).then_some(message),
        ..PodCondition::default()
    }
}

fn by_name<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|s| s.name == name)
}

fn list(kind: &str, names: &[&str]) -> String {
    format!("containers with {kind} status: [{}]", names.join(" "))
}

fn containers_ready(
    spec: &PodSpec,
    phase: &str,
    init: &[ContainerStatus],
    apps: &[ContainerStatus],
) -> Result<(), (String, String)> {
    match phase {
        "Succeeded" => return Err(("PodCompleted".into(), String::new())),
        "Failed" => return Err(("PodFailed".into(), String::new())),
        _ => {}
    }
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)).map(|c| (c, init));
    let apps = spec.containers.iter().map(|c| (c, apps));
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for (container, statuses) in sidecars.chain(apps) {
        let container: &Container = container;
        match by_name(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(list("unknown", &unknown));
    }
    if !unready.is_empty() {
        messages.push(list("unready", &unready));
    }
    if messages.is_empty() { Ok(()) } else { Err(("ContainersNotReady".into(), messages.join(", "))) }
}

fn pod_ready(
    spec: &PodSpec,
    containers: &Result<(), (String, String)>,
    old: &[PodCondition],
) -> Result<(), (String, String)> {
    containers.clone()?;
    let mut unready = Vec::new();
    for gate in spec.readiness_gates.iter().flatten() {
        let kind = &gate.condition_type;
        match old.iter().find(|c| c.type_ == *kind) {
            None => unready.push(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist.")),
            Some(c) if c.status != "True" => {
                unready.push(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {}", c.status))
            }
            Some(_) => {}
        }
    }
    if unready.is_empty() { Ok(()) } else { Err(("ReadinessGatesNotReady".into(), unready.join(", "))) }
}

fn initialized(
    spec: &PodSpec,
    phase: &str,
    init: &[ContainerStatus],
    apps: &[ContainerStatus],
) -> Result<(), (String, String)> {
    if phase == "Succeeded" {
        return Ok(());
    }
    let app_ran = apps.iter().any(|s| {
        s.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
            || s.last_state.as_ref().is_some_and(|l| l.terminated.is_some())
    });
    let mut incomplete = Vec::new();
    for container in spec.init_containers.iter().flatten() {
        let done = by_name(init, &container.name).is_some_and(|status| {
            if is_sidecar(container) { status.started == Some(true) || app_ran } else { status.ready }
        });
        if !done {
            incomplete.push(container.name.as_str());
        }
    }
    if incomplete.is_empty() {
        Ok(())
    } else {
        Err(("ContainersNotInitialized".into(), list("incomplete", &incomplete)))
    }
}

/// All conditions: the kubelet's own first, then those that others set on the pod.
pub fn conditions(
    inputs: &Inputs<'_>,
    phase: &str,
    init: &[ContainerStatus],
    apps: &[ContainerStatus],
) -> Vec<PodCondition> {
    let Some(spec) = &inputs.pod.spec else { return Vec::new() };
    let none = Vec::new();
    let old = inputs.pod.status.as_ref().and_then(|s| s.conditions.as_ref()).unwrap_or(&none);
    let sandbox =
        inputs.observed.active_sandbox().is_some_and(|s| spec.host_network.unwrap_or(false) || !s.ips.is_empty());
    let completed = if phase == "Succeeded" { "PodCompleted" } else { "" };
    let containers = containers_ready(spec, phase, init, apps);
    let ready = pod_ready(spec, &containers, old);
    let mut all = vec![
        condition("PodReadyToStartContainers", if sandbox { Ok(()) } else { Err(Default::default()) }, ""),
        condition("Initialized", initialized(spec, phase, init, apps), completed),
        condition("Ready", ready, ""),
        condition("ContainersReady", containers, ""),
        condition("PodScheduled", Ok(()), ""),
    ];
    all.extend(resize(inputs.resize));
    all.extend(restart_all::is_possible(spec).then(|| restarting(spec, inputs.observed, phase)));
    all.extend(inputs.failure.filter(|_| inputs.terminated).and_then(disruption));
    let generation = inputs.pod.metadata.generation;
    for condition in &mut all {
        condition.observed_generation = generation;
        // A condition keeps its transition time as long as its status stays.
        let before = inputs.previous.iter().chain(old).find(|c| c.type_ == condition.type_);
        condition.last_transition_time = before
            .filter(|c| c.status == condition.status)
            .and_then(|c| c.last_transition_time.clone())
            .or(Some(Time(inputs.now)));
    }
    let own: Vec<String> = all.iter().map(|c| c.type_.clone()).collect();
    let gone = |kind: &str| TRANSIENT.contains(&kind);
    all.extend(old.iter().filter(|c| !own.contains(&c.type_) && !gone(&c.type_)).cloned());
    all
}

/// Reasons of pods that the kubelet ends for the node's sake, not for what they did.
const DISRUPTIONS: [&str; 3] = ["Evicted", reasons::SHUTDOWN, reasons::PREEMPTED];

/// The condition by which others tell a pod that had to go from one that failed.
fn disruption((reason, message): &(String, String)) -> Option<PodCondition> {
    DISRUPTIONS.contains(&reason.as_str()).then(|| PodCondition {
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some(message.clone()),
        ..condition("DisruptionTarget", Ok(()), "")
    })
}

/// The condition of pods all of whose containers may be started again. Upstream's
/// `GenerateAllContainersRestartingCondition`.
fn restarting(spec: &PodSpec, observed: &Observed, phase: &str) -> PodCondition {
    let reason = match phase {
        "Succeeded" => "PodCompleted",
        "Failed" => "PodFailed",
        _ => "",
    };
    let is_under_way = reason.is_empty() && restart_all::cause(spec, observed).is_some();
    match is_under_way {
        false => condition(restart_all::CONDITION, Err((reason.to_owned(), String::new())), ""),
        true => PodCondition {
            message: Some(restart_all::MESSAGE.to_owned()),
            ..condition(restart_all::CONDITION, Ok(()), restart_all::STARTED)
        },
    }
}

/// Conditions that are only there while a resize waits or is under way.
pub const TRANSIENT: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

fn resize(progress: &Progress) -> Vec<PodCondition> {
    let state = |kind: &str, (reason, message): (String, String)| PodCondition {
        reason: (!reason.is_empty()).then_some(reason),
        message: (!message.is_empty()).then_some(message),
        ..condition(kind, Ok(()), "")
    };
    let error = progress.error.clone().map(|message| ("Error".to_owned(), message));
    let pending = progress.pending.clone().map(|why| state(TRANSIENT[0], why));
    pending.into_iter().chain(progress.running.then(|| state(TRANSIENT[1], error.unwrap_or_default()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_had_to_go_are_told_from_those_that_failed() {
        for (reason, told) in
            [("Evicted", true), ("Terminated", true), ("Preempting", true), ("DeadlineExceeded", false)]
        {
            let found = disruption(&(reason.to_owned(), "why".to_owned()));
            let found = found.map(|c| (c.type_, c.status, c.reason, c.message));
            let expected = told.then(|| {
                let (reason, message) = (Some("TerminationByKubelet".to_owned()), Some("why".to_owned()));
                ("DisruptionTarget".to_owned(), "True".to_owned(), reason, message)
            });
            assert_eq!(found, expected, "{reason}");
        }
    }

    #[test]
    fn restarts_of_all_containers_are_told_while_they_last() {
        let rule =
            serde_json::json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
        let containers = serde_json::json!([{"name": "c", "restartPolicy": "Never", "restartPolicyRules": [rule]}]);
        let spec: PodSpec = serde_json::from_value(serde_json::json!({"containers": containers})).expect("a spec");
        let ended = crate::workers::observed::Container {
            name: "c".into(),
            state: crate::workers::observed::State::Exited,
            exit_code: 42,
            ..Default::default()
        };
        let under_way = Observed { containers: vec![ended], ..Observed::default() };
        let started = Some("RestartAllContainersStarted");
        for (observed, phase, status, reason) in [
            (&under_way, "Running", "True", started),
            (&Observed::default(), "Pending", "False", None),
            (&under_way, "Failed", "False", Some("PodFailed")),
            (&under_way, "Succeeded", "False", Some("PodCompleted")),
        ] {
            let told = restarting(&spec, observed, phase);
            assert_eq!(
                (told.type_.as_str(), told.status.as_str(), told.reason.as_deref(), told.message.as_deref()),
                (
                    "AllContainersRestarting",
                    status,
                    reason,
                    (status == "True").then_some("container exited with restart policy rule")
                ),
                "{phase}"
            );
        }
    }

    #[test]
    fn a_resize_is_told_as_long_as_it_lasts() {
        let told = |progress: Progress| -> Vec<(String, Option<String>)> {
            resize(&progress).into_iter().map(|c| (c.type_, c.reason)).collect()
        };
        let pending = Some(("Deferred".to_owned(), "no room".to_owned()));
        let one = |index: usize, reason: Option<&str>| (TRANSIENT[index].to_owned(), reason.map(str::to_owned));
        assert_eq!(told(Progress::default()), []);
        let waits = Progress { pending, ..Progress::default() };
        assert_eq!(told(waits.clone()), [one(0, Some("Deferred"))]);
        assert_eq!(told(Progress { running: true, ..waits }), [one(0, Some("Deferred")), one(1, None)]);
        let failed = Progress { running: true, error: Some("no".to_owned()), pending: None };
        assert_eq!(told(failed), [one(1, Some("Error"))]);
    }
}
