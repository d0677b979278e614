//! The pure core of a pod worker: what to do next, given what is desired, what the runtime has, and the time.
//! Answers for upstream's `computePodActions`. The driver executes the steps, observes again and asks again, so a
//! plan only ever holds what can be done now.

use super::observed::{Container as Found, Observed, State};
use super::resize::{self, Action};
use super::restart_all;
use crate::probes::ProbeResult;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, Pod, PodSpec, Probe,
};
use shared::fnv::Fnv32;
use shared::types::is_sidecar;

/// Lists of the spec that a container comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// Runs to its end before the others start.
    Init,
    /// Restartable init container.
    Sidecar,
    /// Ordinary.
    App,
    /// Added to a running pod.
    Ephemeral,
}

/// One thing for the driver to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a sandbox.
    CreateSandbox {
        /// Attempt number.
        attempt: u32,
    },
    /// Stop everything of the pod: containers, then sandboxes.
    KillPod {
        /// A new sandbox will follow (event `SandboxChanged`).
        recreate: bool,
    },
    /// Stop one container.
    KillContainer {
        /// Runtime id.
        id: String,
        /// Name in the pod.
        name: String,
        /// Text of the `Killing` event.
        message: String,
        /// Seconds it is given to end, where they are not the pod's.
        grace: Option<i64>,
    },
    /// Kill what runs in the sandbox and remove what was made, so that the pod starts anew.
    RestartAll {
        /// Name of the container whose end asks for it.
        cause: String,
        /// End of that container, for the back-off.
        ended: Option<Timestamp>,
    },
    /// Give running containers the resources that are allocated to them.
    Resize {
        /// Names in the pod.
        names: Vec<String>,
    },
    /// Pull the image, make and start the container.
    StartContainer {
        /// Name in the pod.
        name: String,
        /// List of the container.
        kind: ContainerKind,
        /// Restart count that the new container gets.
        attempt: u32,
        /// End of the attempt before, for the back-off.
        ended: Option<Timestamp>,
    },
}

/// Results of probes that decide about restarts.
pub trait ProbeResults {
    /// Liveness of this very container.
    fn liveness(&self, name: &str, id: &str) -> Option<ProbeResult>;
    /// Startup of this very container.
    fn startup(&self, name: &str, id: &str) -> Option<ProbeResult>;
}

/// The next steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
}

/// Returns the hash of what needs a restart when it changes: name and image. The same value as upstream's
/// `HashContainer`, so that either kubelet takes over the other's containers: FNV-1a over Go's printed form of the bytes
/// of `{"image":…,"name":…}`.
pub fn container_hash(container: &Container) -> String {
    let text = |text: &str| {
        let quoted = serde_json::Value::from(text).to_string();
        quoted.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
    };
    let image = container.image.as_deref().unwrap_or_default();
    let fields = format!("{{\"image\":{},\"name\":{}}}", text(image), text(&container.name));
    let bytes: Vec<String> = fields.bytes().map(|byte| byte.to_string()).collect();
    format!("{:x}", Fnv32::default().write(format!("([]uint8)[{}]", bytes.join(" ")).as_bytes()).finish())
}

/// The hash that releases before this one gave containers.
fn former_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    format!("{:x}", Fnv32::default().write(container.name.as_bytes()).write(&[0]).write(image.as_bytes()).finish())
}

/// `spec.restartPolicy`, `Always` when unset.
pub fn restart_policy(spec: &PodSpec) -> &str {
    spec.restart_policy.as_deref().unwrap_or("Always")
}

/// The first rule of a container for ends with this code. Upstream's `findMatchingContainerRestartRule`.
pub fn rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| {
        let listed = |codes: &ContainerRestartRuleOnExitCodes| codes.values.iter().flatten().any(|c| *c == exit_code);
        rule.exit_codes.as_ref().is_some_and(|codes| match codes.operator.as_str() {
            "In" => listed(codes),
            "NotIn" => !listed(codes),
            _ => false,
        })
    })
}

/// Reports whether a container that ended with this code is started again: by its own rules, its own policy, or the
/// pod's.
pub fn restarts(spec: &PodSpec, container: &Container, exit_code: i32) -> bool {
    rule(container, exit_code).is_some_and(|rule| matches!(rule.action.as_str(), "Restart" | restart_all::ACTION))
        || match container.restart_policy.as_deref().unwrap_or(restart_policy(spec)) {
            "Never" => false,
            "OnFailure" => exit_code != 0,
            _ => true,
        }
}

fn restarts_on_failure(spec: &PodSpec, container: &Container) -> bool {
    container.restart_policy.as_deref().unwrap_or(restart_policy(spec)) != "Never"
}

/// Reports whether a container that is in this state shall be started (again).
fn wants_start(spec: &PodSpec, container: &Container, found: Option<&Found>) -> bool {
    let Some(found) = found else { return true };
    match found.state {
        State::Running => false,
        State::Created | State::Unknown => true,
        State::Exited => restarts(spec, container, found.exit_code),
    }
}

/// Nanoseconds since the epoch as a time; none for 0.
pub fn timestamp(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds > 0).then(|| Timestamp::from_nanosecond(i128::from(nanoseconds)).ok()).flatten()
}

fn start(container: &Container, kind: ContainerKind, found: Option<&Found>) -> Step {
    Step::StartContainer {
        name: container.name.clone(),
        kind,
        attempt: found.map_or(0, |f| f.restart_count + 1),
        ended: found.filter(|f| f.state == State::Exited).and_then(|f| timestamp(f.finished_at)),
    }
}

fn kill(found: &Found, message: String, grace: Option<i64>) -> Step {
    Step::KillContainer { id: found.id.clone(), name: found.name.clone(), message, grace }
}

/// Ends an init container that the runtime has lost: its program may still run, and must not run beside the next attempt.
fn kill_lost_init(found: &Found) -> Option<Step> {
    let text = || "Init container is in \"unknown\" state, try killing it before restart".to_owned();
    (found.state == State::Unknown).then(|| kill(found, text(), None))
}

/// Reports whether a container is another than the pod has by now.
fn is_changed(container: &Container, found: &Found) -> bool {
    !found.hash.is_empty() && found.hash != container_hash(container) && found.hash != former_hash(container)
}

/// Returns why a running container must be replaced, and how long it is given to end if the probe that failed says so.
fn replaced(container: &Container, found: &Found, probes: &dyn ProbeResults) -> Option<(String, Option<i64>)> {
    let name = &container.name;
    if is_changed(container, found) {
        return Some((format!("Container {name} definition changed"), None));
    }
    let failed = |result: Option<ProbeResult>, probe: Option<&Probe>, what: &str| {
        let why = || format!("Container {name} failed {what} probe");
        (result == Some(ProbeResult::Failure)).then(|| (why(), probe.and_then(|p| p.termination_grace_period_seconds)))
    };
    let startup = || failed(probes.startup(name, &found.id), container.startup_probe.as_ref(), "startup");
    failed(probes.liveness(name, &found.id), container.liveness_probe.as_ref(), "liveness").or_else(startup)
}

/// The next steps for a pod that shall run.
pub fn plan(pod: &Pod, observed: &Observed, probes: &dyn ProbeResults) -> Plan {
    let Some(spec) = &pod.spec else { return Plan::default() };
    let host_network = spec.host_network.unwrap_or(false);
    let ready = observed.sandboxes.iter().filter(|s| s.ready).count();
    let usable = observed
        .active_sandbox()
        .filter(|s| ready == 1 && s.host_network == host_network && (host_network || !s.ips.is_empty()));
    let mut steps = Vec::new();
    match (usable, restart_all::cause(spec, observed)) {
        (Some(_), Some(cause)) => {
            steps.push(Step::RestartAll { cause: cause.name.clone(), ended: timestamp(cause.finished_at) });
        }
        (Some(sandbox), None) => in_sandbox(spec, observed, &sandbox.id, probes, &mut steps),
        (None, _) => new_sandbox(spec, observed, &mut steps),
    }
    Plan { steps }
}

fn new_sandbox(spec: &PodSpec, observed: &Observed, steps: &mut Vec<Step>) {
    let attempt = observed.sandboxes.first().map_or(0, |s| s.attempt + 1);
    let never = restart_policy(spec) == "Never" && !spec.init_containers.iter().flatten().any(is_sidecar);
    // A pod that may not restart and already ran something in an earlier sandbox stays as it is.
    let stays = attempt != 0 && never && !observed.containers.is_empty();
    let finished = spec.containers.iter().all(|c| {
        !wants_start(spec, c, observed.latest(&c.name))
            && observed.latest(&c.name).is_some_and(|f| f.state == State::Exited)
    });
    if !observed.is_stopped() {
        steps.push(Step::KillPod { recreate: !(stays || finished) });
        return;
    }
    if !(stays || finished) {
        steps.push(Step::CreateSandbox { attempt });
    }
}

/// Result of looking at the init containers.
enum Init {
    /// Application containers may run.
    Done,
    /// Something has to happen first.
    Waiting,
    /// One failed and may not be restarted.
    Failed,
}

/// Plans the resize of a running container that may go on otherwise; true when it goes on.
fn resize(
    (spec, observed): (&PodSpec, &Observed),
    container: &Container,
    found: &Found,
    resizes: &mut Vec<String>,
    steps: &mut Vec<Step>,
) -> bool {
    let given = found.given.as_ref();
    match given.map_or(Action::Keep, |given| resize::action_in(spec, observed, container, given)) {
        Action::Keep => true,
        Action::Update => {
            resizes.push(container.name.clone());
            true
        }
        Action::Restart => {
            steps.push(kill(found, format!("Container {} resize requires restart", container.name), None));
            false
        }
    }
}

fn in_sandbox(spec: &PodSpec, observed: &Observed, sandbox: &str, probes: &dyn ProbeResults, steps: &mut Vec<Step>) {
    for container in spec.ephemeral_containers.iter().flatten() {
        if observed.latest(&container.name).is_none() {
            steps.push(Step::StartContainer {
                name: container.name.clone(),
                kind: ContainerKind::Ephemeral,
                attempt: 0,
                ended: None,
            });
        }
    }
    let before = steps.len();
    let mut resizes = Vec::new();
    match init_containers(spec, observed, sandbox, probes, &mut resizes, steps) {
        Init::Waiting => {
            steps.extend((!resizes.is_empty()).then_some(Step::Resize { names: resizes }));
            return;
        }
        Init::Failed => {
            steps.clear();
            steps.push(Step::KillPod { recreate: false });
            return;
        }
        Init::Done => {}
    }
    let mut alive = false;
    for container in &spec.containers {
        // An attempt that ended in an earlier sandbox counts for its restart count and for OnFailure successes.
        alive |= match observed.latest_in(sandbox, &container.name) {
            Some(found) if found.state == State::Running => {
                running((spec, observed), container, found, probes, &mut resizes, steps);
                true
            }
            found => stopped(spec, container, found, observed.latest(&container.name), steps),
        };
    }
    if !alive {
        // Nothing left to run: sidecars and the sandbox go, too.
        steps.truncate(before);
        steps.push(Step::KillPod { recreate: false });
    } else if !resizes.is_empty() {
        steps.push(Step::Resize { names: resizes });
    }
}

/// Plans the steps of an application container that runs.
fn running(
    (spec, observed): (&PodSpec, &Observed),
    container: &Container,
    found: &Found,
    probes: &dyn ProbeResults,
    resizes: &mut Vec<String>,
    steps: &mut Vec<Step>,
) {
    let Some((reason, grace)) = replaced(container, found, probes) else {
        resize((spec, observed), container, found, resizes, steps);
        return;
    };
    let (again, changed) = (restarts_on_failure(spec, container), is_changed(container, found));
    let message = if again || changed { format!("{reason}, will be restarted") } else { reason };
    steps.push(kill(found, message, grace));
    // Once it has ended its policy would keep it from starting as what it is to be now.
    steps.extend((changed && !again).then(|| start(container, ContainerKind::App, Some(found))));
}

/// Starts an application container that does not run, `found` in this sandbox and `latest` in any; true if it shall run.
fn stopped(
    spec: &PodSpec,
    container: &Container,
    found: Option<&Found>,
    latest: Option<&Found>,
    steps: &mut Vec<Step>,
) -> bool {
    let succeeded_before = found.is_none()
        && restart_policy(spec) != "Always"
        && latest.is_some_and(|f| f.state == State::Exited && !wants_start(spec, container, Some(f)));
    if succeeded_before || !wants_start(spec, container, found) {
        return false;
    }
    if let Some(lost) = found.filter(|f| f.state == State::Unknown) {
        let text = format!("Container {} is in unknown state, try killing it before restart", container.name);
        steps.push(kill(lost, text, None));
    }
    steps.push(start(container, ContainerKind::App, latest));
    true
}

fn init_containers(
    spec: &PodSpec,
    observed: &Observed,
    sandbox: &str,
    probes: &dyn ProbeResults,
    resizes: &mut Vec<String>,
    steps: &mut Vec<Step>,
) -> Init {
    let inits: Vec<&Container> = spec.init_containers.iter().flatten().collect();
    let app_seen = spec.containers.iter().any(|c| observed.latest_in(sandbox, &c.name).is_some());
    let last_seen = inits.iter().rposition(|c| observed.latest_in(sandbox, &c.name).is_some());
    for (index, container) in inits.iter().enumerate() {
        let passed = app_seen || last_seen.is_some_and(|last| last > index);
        let found = observed.latest_in(sandbox, &container.name);
        let latest = observed.latest(&container.name);
        if is_sidecar(container) {
            let started = match found {
                Some(found) if found.state == State::Running => {
                    if let Some((reason, grace)) = replaced(container, found, probes) {
                        steps.push(kill(found, format!("{reason}, will be restarted"), grace));
                        false
                    } else if !resize((spec, observed), container, found, resizes, steps) {
                        false
                    } else {
                        container.startup_probe.is_none()
                            || probes.startup(&container.name, &found.id) == Some(ProbeResult::Success)
                    }
                }
                Some(_) | None => {
                    steps.extend(found.and_then(kill_lost_init));
                    steps.push(start(container, ContainerKind::Sidecar, latest));
                    false
                }
            };
            if !started && !passed {
                return Init::Waiting;
            }
            continue;
        }
        if app_seen {
            continue;
        }
        match found {
            None if passed => {}
            None => {
                steps.push(start(container, ContainerKind::Init, latest));
                return Init::Waiting;
            }
            Some(found) => match found.state {
                State::Running => return Init::Waiting,
                State::Exited if found.exit_code == 0 => {}
                State::Exited if passed => {}
                State::Exited if !restarts(spec, container, found.exit_code) => return Init::Failed,
                State::Unknown if !restarts_on_failure(spec, container) => return Init::Failed,
                State::Exited | State::Created | State::Unknown => {
                    steps.extend(kill_lost_init(found));
                    steps.push(start(container, ContainerKind::Init, latest));
                    return Init::Waiting;
                }
            },
        }
    }
    Init::Done
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
