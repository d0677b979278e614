//! The pod's status as a pure function.
//! Answers for `generateAPIPodStatus` and `getPhase` of upstream's `kubelet_pods.go`.

pub use super::inputs::{Inputs, Lookup};

use super::{conditions, containers};
use crate::resources::qos_class;
use crate::workers::plan;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStatus, EphemeralContainer, HostIP, Pod, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use shared::types::is_sidecar;
use std::collections::BTreeMap;

fn status_of<'a>(all: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    all.iter().find(|s| s.name == name)
}

/// Progress of init containers.
#[derive(Default)]
struct Preparation {
    pending: usize,
    failed: usize,
    /// Failed ones that are not started again.
    failed_for_good: usize,
    sidecars_up: usize,
}

impl Preparation {
    fn of(spec: &PodSpec, statuses: &[ContainerStatus]) -> Self {
        let mut out = Self::default();
        for container in spec.init_containers.iter().flatten() {
            let status = status_of(statuses, &container.name);
            let state = status.and_then(|s| s.state.as_ref());
            if is_sidecar(container) {
                if status.and_then(|s| s.started) != Some(true) && state.is_none_or(|s| s.terminated.is_none()) {
                    out.pending += 1;
                }
                out.sidecars_up += usize::from(state.is_some_and(|s| s.running.is_some()));
                continue;
            }
            let waits = state.is_some_and(|s| s.waiting.is_some());
            let last = status.and_then(|s| s.last_state.as_ref()).filter(|_| waits).and_then(|l| l.terminated.as_ref());
            match state.and_then(|s| s.terminated.as_ref()).or(last) {
                Some(ended) if ended.exit_code != 0 => {
                    out.failed += 1;
                    out.failed_for_good += usize::from(!plan::restarts(spec, container, ended.exit_code));
                }
                Some(_) if !waits => {}
                _ => out.pending += 1,
            }
        }
        out
    }
}

/// In which states containers are.
#[derive(Default)]
struct States {
    waiting: usize,
    running: usize,
    stopped: usize,
    /// Of those that stopped.
    succeeded: usize,
    /// Some container that has ended will be started again.
    goes_on: bool,
    unknown: usize,
}

impl States {
    fn of(spec: &PodSpec, statuses: &[ContainerStatus]) -> Self {
        let mut out = Self::default();
        for container in &spec.containers {
            let Some(status) = status_of(statuses, &container.name) else {
                out.unknown += 1;
                continue;
            };
            match &status.state {
                Some(state) if state.running.is_some() => out.running += 1,
                Some(ContainerState { terminated: Some(ended), .. }) => {
                    out.stopped += 1;
                    out.succeeded += usize::from(ended.exit_code == 0);
                    out.goes_on |= plan::restarts(spec, container, ended.exit_code);
                }
                Some(state) if state.waiting.is_some() => {
                    if let Some(ended) = status.last_state.as_ref().and_then(|last| last.terminated.as_ref()) {
                        out.stopped += 1;
                        out.goes_on |= plan::restarts(spec, container, ended.exit_code);
                    } else {
                        out.waiting += 1;
                    }
                }
                _ => out.unknown += 1,
            }
        }
        out
    }
}

/// The phase from container statuses.
pub fn phase(spec: &PodSpec, init: &[ContainerStatus], apps: &[ContainerStatus], terminated: bool) -> &'static str {
    let Preparation { pending, failed, failed_for_good, sidecars_up } = Preparation::of(spec, init);
    let States { waiting, running, stopped, succeeded, goes_on, unknown } = States::of(spec, apps);
    if failed_for_good > 0 {
        return "Failed";
    }
    let started = running + stopped > 0;
    if (pending > 0 || failed > 0) && !started {
        return if terminated { "Failed" } else { "Pending" };
    }
    if waiting > 0 {
        return if terminated { "Failed" } else { "Pending" };
    }
    if running > 0 && unknown == 0 {
        return "Running";
    }
    if running == 0 && stopped > 0 && unknown == 0 {
        if terminated {
            return if stopped == succeeded { "Succeeded" } else { "Failed" };
        }
        if goes_on || sidecars_up > 0 {
            return "Running";
        }
        return if stopped == succeeded { "Succeeded" } else { "Failed" };
    }
    "Pending"
}

/// The status of a pod that this node does not take: nothing of it ever ran.
pub fn rejected(pod: &Pod, reason: &str, message: &str) -> PodStatus {
    let old = pod.status.as_ref();
    PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        conditions: old.and_then(|status| status.conditions.clone()),
        qos_class: Some(qos_class(pod).as_str().to_owned()),
        start_time: old.and_then(|status| status.start_time.clone()),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// Ephemeral containers as what the others are: ones that are never started again.
fn ephemeral_containers(spec: &PodSpec) -> Vec<Container> {
    let one = |e: &EphemeralContainer| Container {
        name: e.name.clone(),
        image: e.image.clone(),
        restart_policy: Some("Never".into()),
        ..Container::default()
    };
    spec.ephemeral_containers.iter().flatten().map(one).collect()
}

/// The pod's addresses.
fn addresses(inputs: &Inputs<'_>, spec: &PodSpec, phase: &str) -> Vec<String> {
    let observed = inputs.observed;
    let known: Vec<String> = if spec.host_network.unwrap_or(false) {
        if observed.sandboxes.is_empty() { Vec::new() } else { inputs.facts.host_ips.clone() }
    } else {
        observed.active_sandbox().map(|s| s.ips.clone()).unwrap_or_default()
    };
    let finished = matches!(phase, "Failed" | "Succeeded") || inputs.terminating;
    if !known.is_empty() || (!finished && observed.sandboxes.is_empty()) {
        return known;
    }
    // A finished pod keeps the addresses it had.
    let old = inputs.pod.status.as_ref().and_then(|s| s.pod_ips.as_ref());
    old.map(|all| all.iter().map(|p| p.ip.clone()).collect()).unwrap_or_default()
}

/// The requests of the pod as a whole, where those can be resized.
fn allocated_whole(inputs: &Inputs<'_>) -> Option<BTreeMap<String, Quantity>> {
    let whole = inputs.observed.whole.as_ref().and(inputs.pod.spec.as_ref()?.resources.as_ref());
    whole?.requests.clone().filter(|requests| !requests.is_empty())
}

/// The status to publish.
pub fn pod_status(inputs: &Inputs<'_>) -> PodStatus {
    let Some(spec) = &inputs.pod.spec else { return PodStatus::default() };
    let old = inputs.pod.status.as_ref();
    let none: Vec<Container> = Vec::new();
    let init_spec = spec.init_containers.as_ref().unwrap_or(&none);
    let mut init = containers::statuses(inputs, init_spec, old.and_then(|s| s.init_container_statuses.as_ref()), true);
    let mut apps =
        containers::statuses(inputs, &spec.containers, old.and_then(|s| s.container_statuses.as_ref()), false);
    let ephemeral_spec = ephemeral_containers(spec);
    let ephemeral =
        containers::statuses(inputs, &ephemeral_spec, old.and_then(|s| s.ephemeral_container_statuses.as_ref()), false);
    if inputs.terminated {
        containers::settle(spec, &mut init, &mut apps);
    }
    let computed = phase(spec, &init, &apps, inputs.terminated);
    let was = old.and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let (mut reason, mut message) = (None, None);
    // What the kubelet ends has failed once nothing of it runs any more: a controller may replace it then.
    let ends = inputs.failure.is_some() && !inputs.terminated;
    let phase = if let Some((why, text)) = inputs.failure.filter(|_| !ends) {
        reason = Some(why.clone());
        message = Some(text.clone());
        "Failed".to_owned()
    } else if was == "Failed" || was == "Succeeded" {
        // Terminal phases never change.
        reason = old.and_then(|s| s.reason.clone());
        message = old.and_then(|s| s.message.clone());
        was.to_owned()
    } else if ends && matches!(computed, "Failed" | "Succeeded") {
        if was.is_empty() { "Pending".to_owned() } else { was.to_owned() }
    } else {
        computed.to_owned()
    };
    let conditions = conditions::conditions(inputs, &phase, &init, &apps);
    let host_ips = &inputs.facts.host_ips;
    let ips = addresses(inputs, spec, &phase);
    let some = |list: Vec<ContainerStatus>| (!list.is_empty()).then_some(list);
    PodStatus {
        phase: Some(phase),
        reason,
        message,
        conditions: Some(conditions),
        allocated_resources: allocated_whole(inputs),
        resources: inputs.observed.whole.clone(),
        container_statuses: some(apps),
        init_container_statuses: some(init),
        ephemeral_container_statuses: some(ephemeral),
        host_ip: host_ips.first().cloned(),
        host_ips: (!host_ips.is_empty()).then(|| host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: (!ips.is_empty()).then(|| ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect()),
        qos_class: old.and_then(|s| s.qos_class.clone()).or_else(|| Some(qos_class(inputs.pod).as_str().to_owned())),
        start_time: old.and_then(|s| s.start_time.clone()).or(Some(Time(inputs.seen))),
        observed_generation: inputs.pod.metadata.generation,
        nominated_node_name: None,
        resize: old.and_then(|s| s.resize.clone()),
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::PodFacts;
    use crate::resource_health;
    use crate::workers::observed::{Container as Found, Observed, State};
    use crate::workers::resize::Progress;
    use jiff::Timestamp;
    use serde_json::json;
    use std::collections::HashMap;

    #[test]
    fn a_pod_runs_as_long_as_something_of_it_is_started_again() {
        let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
        let ruled = json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": rule});
        let plain = json!({"name": "c"});
        for (policy, container, code, expected) in [
            ("Always", &plain, 0, "Running"),
            ("OnFailure", &plain, 0, "Succeeded"),
            ("OnFailure", &plain, 1, "Running"),
            ("Never", &plain, 1, "Failed"),
            ("Never", &ruled, 42, "Running"),
            ("Always", &ruled, 42, "Running"),
            ("Always", &ruled, 1, "Failed"),
            ("Always", &ruled, 0, "Succeeded"),
        ] {
            let spec =
                serde_json::from_value(json!({"restartPolicy": policy, "containers": [container]})).expect("spec");
            let ended: ContainerStatus = serde_json::from_value(json!({"name": "c", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": code}}}))
            .expect("status");
            assert_eq!(phase(&spec, &[], &[ended], false), expected, "{policy} {container} {code}");
        }
    }

    #[test]
    fn an_init_container_fails_the_pod_only_when_it_is_not_started_again() {
        let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
        let ruled = json!({"name": "i", "restartPolicy": "Never", "restartPolicyRules": rule});
        let never = json!({"name": "i", "restartPolicy": "Never"});
        for (policy, container, code, expected) in [
            ("Always", json!({"name": "i"}), 1, "Pending"),
            ("Never", json!({"name": "i"}), 1, "Failed"),
            ("Never", json!({"name": "i"}), 0, "Pending"),
            ("Never", ruled.clone(), 42, "Pending"),
            ("Never", ruled, 1, "Failed"),
            ("Always", never, 1, "Failed"),
        ] {
            let spec = json!({"restartPolicy": policy, "initContainers": [container], "containers": [{"name": "c"}]});
            let spec: PodSpec = serde_json::from_value(spec).expect("spec");
            let status = |name: &str, state: serde_json::Value, last: serde_json::Value| -> ContainerStatus {
                serde_json::from_value(json!({"name": name, "image": "", "imageID": "", "ready": false,
                    "restartCount": 0, "state": state, "lastState": last}))
                .expect("status")
            };
            let (ended, waits) = (json!({"terminated": {"exitCode": code}}), json!({"waiting": {"reason": "x"}}));
            let app = [status("c", waits.clone(), json!({}))];
            let init = status("i", ended.clone(), json!({}));
            assert_eq!(phase(&spec, &[init], &app, false), expected, "{policy} {code}");
            let backed_off = status("i", waits, ended);
            assert_eq!(phase(&spec, &[backed_off], &app, false), expected, "{policy} {code}, backed off");
        }
    }

    /// The status of a pod whose probes say nothing.
    fn status_by(pod: &Pod, observed: &Observed, runtime_name: &str) -> PodStatus {
        let none = |_: &str, _: &str| None;
        pod_status(&Inputs {
            pod,
            observed,
            facts: &PodFacts::default(),
            runtime_name,
            recursive_read_only: false,
            waiting: &HashMap::new(),
            startup: &none,
            readiness: &none,
            health: &|container: &Container| {
                let healths = BTreeMap::from([(format!("of-{}", container.name), Vec::new())]);
                resource_health::statuses(healths)
            },
            previous: &[],
            failure: None,
            resize: &Progress::default(),
            terminating: false,
            terminated: false,
            seen: Timestamp::UNIX_EPOCH,
            now: Timestamp::UNIX_EPOCH,
        })
    }

    #[test]
    fn ids_of_containers_begin_with_the_name_of_their_runtime() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "c"}]}})).expect("pod");
        let attempt = |id: &str, state: State, restart_count: u32| Found {
            id: id.to_owned(),
            name: "c".to_owned(),
            state,
            restart_count,
            ..Found::default()
        };
        let containers = vec![attempt("second", State::Running, 1), attempt("first", State::Exited, 0)];
        let status = status_by(&pod, &Observed { containers, ..Observed::default() }, "cri-o");
        let status = status.container_statuses.and_then(|mut all| all.pop()).expect("a status");
        assert_eq!(status.container_id.as_deref(), Some("cri-o://second"));
        let last = status.last_state.and_then(|last| last.terminated).expect("the attempt before");
        assert_eq!(last.container_id.as_deref(), Some("cri-o://first"));
    }

    #[test]
    fn containers_wait_for_those_before_them() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
            "initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}}))
        .expect("pod");
        let status = status_by(&pod, &Observed::default(), "containerd");
        let health = |list: &Option<Vec<ContainerStatus>>| {
            let health = list.as_ref()?[0].allocated_resources_status.as_ref()?;
            Some(health[0].name.clone())
        };
        assert_eq!(health(&status.container_statuses), Some("of-c".to_owned()));
        assert_eq!(health(&status.init_container_statuses), None, "upstream tells nothing of these");
        let reason = |list: Option<Vec<ContainerStatus>>| list?.pop()?.state?.waiting?.reason;
        let waits = Some("PodInitializing".to_owned());
        assert_eq!((reason(status.init_container_statuses), reason(status.container_statuses)), (waits.clone(), waits));
    }
}
