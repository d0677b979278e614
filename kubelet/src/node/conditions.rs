//! Node conditions with upstream's reasons and messages. Pure.

use crate::cri::v1;
use crate::pressure::Pressure;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use shared::status::field::aggregate;

/// Conditions that the runtime reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeState {
    /// Reason why containers cannot run, if there is one.
    pub runtime_error: Option<String>,
    /// Reason why the network is not ready, if there is one.
    pub network_error: Option<String>,
}

impl RuntimeState {
    /// Before the runtime was asked.
    pub fn unknown() -> Self {
        Self {
            runtime_error: Some("container runtime status check may not have completed yet".to_owned()),
            network_error: Some("network state unknown".to_owned()),
        }
    }

    /// From the runtime's conditions.
    pub fn from_status(status: &v1::RuntimeStatus) -> Self {
        let failing = |kind: &str, what: &str| {
            let found = status.conditions.iter().find(|c| c.r#type == kind);
            let (ok, reason, message) =
                found.map_or((false, "", ""), |c| (c.status, c.reason.as_str(), c.message.as_str()));
            (!ok).then(|| format!("{what} not ready: {kind}=false reason:{reason} message:{message}"))
        };
        Self {
            runtime_error: failing("RuntimeReady", "container runtime"),
            network_error: failing("NetworkReady", "container runtime network"),
        }
    }
}

/// Inputs of the conditions.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Resources that run short.
    pub pressure: Pressure,
    /// The runtime.
    pub runtime: RuntimeState,
    /// Reason why pods cannot be watched, if there is one.
    pub pleg_error: Option<String>,
    /// The machine is about to go down.
    pub going_down: bool,
    /// The current time.
    pub now: Timestamp,
}

/// A condition of what runs short: its type, whether it holds, and what is said when it does and when it does not.
type Row = (&'static str, fn(&Pressure) -> bool, [Said; 2]);

/// The reason of a condition, its message, and the reason of the event.
type Said = (&'static str, &'static str, &'static str);

const SHORTAGES: [Row; 3] = [
    (
        "MemoryPressure",
        |p| p.memory,
        [
            ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"),
            ("KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"),
        ],
    ),
    (
        "DiskPressure",
        |p| p.disk,
        [
            ("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"),
        ],
    ),
    (
        "PIDPressure",
        |p| p.pid,
        [
            ("KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"),
            ("KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"),
        ],
    ),
];

/// Returns the problems that keep the node from running pods, as one message; none when there is none.
fn problem(inputs: &Inputs) -> Option<String> {
    let going_down = inputs.going_down.then(|| "node is shutting down".to_owned());
    let all = [&inputs.runtime.runtime_error, &inputs.pleg_error, &inputs.runtime.network_error, &going_down];
    let problems: Vec<&String> = all.into_iter().flatten().collect();
    (!problems.is_empty()).then(|| aggregate(&problems))
}

/// Conditions and the reasons of the events that their changes are worth.
pub fn conditions(previous: &[NodeCondition], inputs: &Inputs) -> (Vec<NodeCondition>, Vec<&'static str>) {
    let (mut all, mut events) = (Vec::new(), Vec::new());
    let mut state = |kind: &str, holds: bool, (reason, message, event): (&str, &str, &'static str)| {
        let status = if holds { "True" } else { "False" };
        let before = previous.iter().find(|c| c.type_ == kind);
        let same = before.is_some_and(|c| c.status == status);
        // A node's first readiness is no change; a first pressure condition starts as unknown.
        if !same && (before.is_some() || kind != "Ready") {
            events.push(event);
        }
        let since = before.filter(|_| same).and_then(|c| c.last_transition_time.clone());
        all.push(NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(Time(inputs.now)),
            last_transition_time: since.or(Some(Time(inputs.now))),
        });
    };
    for (kind, pressed, [yes, no]) in SHORTAGES {
        let pressed = pressed(&inputs.pressure);
        state(kind, pressed, if pressed { yes } else { no });
    }
    match problem(inputs) {
        None => state("Ready", true, ("KubeletReady", "kubelet is posting ready status", "NodeReady")),
        Some(problem) => state("Ready", false, ("KubeletNotReady", &problem, "NodeNotReady")),
    }
    (all, events)
}

/// Reports whether a node's status says that it is Ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(network: Option<&str>) -> Inputs {
        let runtime = RuntimeState { runtime_error: None, network_error: network.map(str::to_owned) };
        Inputs {
            pressure: Pressure::default(),
            runtime,
            pleg_error: None,
            going_down: false,
            now: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn changes_are_told_once() {
        let (first, events) = conditions(&[], &inputs(Some("network state unknown")));
        assert_eq!(events, ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]);
        let ready = first.iter().find(|c| c.type_ == "Ready").expect("ready");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_deref(), ready.message.as_deref()),
            ("False", Some("KubeletNotReady"), Some("network state unknown"))
        );
        let (second, events) = conditions(&first, &inputs(None));
        assert_eq!(events, ["NodeReady"]);
        let (_, events) = conditions(&second, &inputs(None));
        assert!(events.is_empty());
        let (leaving, events) = conditions(&second, &Inputs { going_down: true, ..inputs(None) });
        let ready = leaving.iter().find(|c| c.type_ == "Ready").and_then(|c| c.message.as_deref());
        assert_eq!((events.as_slice(), ready), (["NodeNotReady"].as_slice(), Some("node is shutting down")));
        let pressed = Inputs { pressure: Pressure { memory: true, ..Pressure::default() }, ..inputs(None) };
        let (third, events) = conditions(&second, &pressed);
        assert_eq!(
            (events.as_slice(), third[0].reason.as_deref()),
            (["NodeHasInsufficientMemory"].as_slice(), Some("KubeletHasInsufficientMemory"))
        );
    }

    #[test]
    fn several_problems_are_one_message() {
        let condition = |kind: &str| v1::RuntimeCondition {
            r#type: kind.into(),
            status: false,
            reason: "R".into(),
            message: "m".into(),
        };
        let status = v1::RuntimeStatus { conditions: vec![condition("RuntimeReady"), condition("NetworkReady")] };
        let runtime = RuntimeState::from_status(&status);
        let (all, _) = conditions(&[], &Inputs { runtime, ..inputs(None) });
        assert_eq!(
            all[3].message.as_deref(),
            Some(
                "[container runtime not ready: RuntimeReady=false reason:R message:m, container runtime network not ready: NetworkReady=false reason:R message:m]"
            )
        );
    }
}
