//! Restart of all containers of a pod in its sandbox, which the end of one of them asks for (`restartPolicyRules` with
//! `RestartAllContainers`), behind the gate of that name. Pure. Answers for upstream's `ShouldAllContainersRestart`,
//! `getContainersToReset` and `AllContainersCouldRestart`.
//!
//! All that run are killed, all that were made but ephemeral ones are removed, and then the pod starts as a new one does: its
//! init containers first. The one that asked for it is removed last, so that a kubelet that dies in between goes on.

use super::observed::{Container as Found, Observed, State};
use super::plan;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use shared::declared_features::RESTARTS_ALL;
use shared::flags::FeatureGates;
use shared::types::is_sidecar;
use std::sync::Arc;

/// Condition that tells of it.
pub const CONDITION: &str = "AllContainersRestarting";
/// Reason while it lasts.
pub const STARTED: &str = "RestartAllContainersStarted";
/// Message while it lasts.
pub const MESSAGE: &str = "container exited with restart policy rule";
/// Action of a rule.
pub const ACTION: &str = "RestartAllContainers";
/// Gate of restart rules, and of policies of single containers.
const RULES: &str = "ContainerRestartRules";

/// Containers that are started again: all but ephemeral ones.
fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Reports whether the end of some container may ask for it.
pub fn is_possible(spec: &PodSpec) -> bool {
    containers(spec).flat_map(|c| c.restart_policy_rules.iter().flatten()).any(|rule| rule.action == ACTION)
}

fn asks(spec: &PodSpec, found: &Found) -> bool {
    let container = containers(spec).find(|container| container.name == found.name);
    let rule = container.filter(|_| found.state == State::Exited).and_then(|c| plan::rule(c, found.exit_code));
    rule.is_some_and(|rule| rule.action == ACTION)
}

/// The container whose end asks for it.
pub fn cause<'a>(spec: &PodSpec, observed: &'a Observed) -> Option<&'a Found> {
    if !is_possible(spec) {
        return None;
    }
    containers(spec).filter_map(|container| observed.latest(&container.name)).find(|found| asks(spec, found))
}

/// Containers to kill, and containers to remove in order: those whose end asks for it come last.
pub fn reset<'a>(spec: &PodSpec, observed: &'a Observed) -> (Vec<&'a Found>, Vec<&'a Found>) {
    let own = |found: &&Found| containers(spec).any(|container| container.name == found.name);
    let all: Vec<&Found> = observed.containers.iter().filter(own).collect();
    let alive = |found: &&&Found| matches!(found.state, State::Running | State::Unknown);
    let kill = all.iter().filter(alive).copied().collect();
    let (causes, mut remove): (Vec<&Found>, Vec<&Found>) = all.into_iter().partition(|found| asks(spec, found));
    remove.extend(causes);
    (kill, remove)
}

/// The pod with those restart rules alone that gates let act.
pub fn honoured(pod: Arc<Pod>, gates: &FeatureGates) -> Arc<Pod> {
    let (rules, all) = (gates.enabled(RULES), gates.enabled(RESTARTS_ALL));
    let Some(spec) = &pod.spec else { return pod };
    let has_own = |c: &Container| c.restart_policy_rules.is_some() || (c.restart_policy.is_some() && !is_sidecar(c));
    if (rules && all) || !(if rules { is_possible(spec) } else { containers(spec).any(has_own) }) {
        return pod;
    }
    let mut changed = Pod::clone(&pod);
    if let Some(spec) = &mut changed.spec {
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(own) = &mut container.restart_policy_rules {
                own.retain(|rule| rules && rule.action != ACTION);
            }
            if !rules && !is_sidecar(container) {
                container.restart_policy = None;
            }
        }
    }
    Arc::new(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn rule(action: &str, operator: &str, codes: &[i32]) -> Value {
        json!({"action": action, "exitCodes": {"operator": operator, "values": codes}})
    }

    fn pod(rules: &[Value]) -> Pod {
        let init = json!([{"name": "init"}, {"name": "side", "restartPolicy": "Always"}]);
        let containers = json!([{"name": "a", "restartPolicy": "Never", "restartPolicyRules": rules}, {"name": "b"}]);
        serde_json::from_value(
            json!({"spec": {"restartPolicy": "Never", "initContainers": init, "containers": containers,
            "ephemeralContainers": [{"name": "e"}]}}),
        )
        .expect("a pod")
    }

    fn found(id: &str, name: &str, state: State, exit_code: i32) -> Found {
        Found { id: id.into(), name: name.into(), state, exit_code, ..Found::default() }
    }

    #[test]
    fn the_first_rule_that_matches_says_whether_all_containers_are_started_again() {
        for (rules, code, expected) in [
            (vec![], 42, false),
            (vec![rule(ACTION, "In", &[42])], 42, true),
            (vec![rule(ACTION, "In", &[42])], 1, false),
            (vec![rule("Restart", "In", &[42]), rule(ACTION, "In", &[42])], 42, false),
            (vec![rule("Restart", "In", &[1]), rule(ACTION, "NotIn", &[0])], 42, true),
        ] {
            let spec = pod(&rules).spec.expect("a spec");
            let ended = found("1", "a", State::Exited, code);
            let observed = Observed { containers: vec![ended], ..Observed::default() };
            assert_eq!(cause(&spec, &observed).is_some(), expected, "{rules:?} {code}");
            let runs = Observed { containers: vec![found("1", "a", State::Running, code)], ..Observed::default() };
            assert_eq!(cause(&spec, &runs), None);
        }
    }

    #[test]
    fn all_but_ephemeral_containers_go_and_the_cause_goes_last() {
        let spec = pod(&[rule(ACTION, "In", &[42])]).spec.expect("a spec");
        let containers = vec![
            found("a1", "a", State::Exited, 42),
            found("b1", "b", State::Running, 0),
            found("side1", "side", State::Running, 0),
            found("e1", "e", State::Running, 0),
            found("a0", "a", State::Exited, 1),
            found("init0", "init", State::Exited, 0),
        ];
        let observed = Observed { containers, ..Observed::default() };
        let (kill, remove) = reset(&spec, &observed);
        let ids = |all: Vec<&Found>| -> Vec<String> { all.into_iter().map(|found| found.id.clone()).collect() };
        assert_eq!(ids(kill), ["b1", "side1"]);
        assert_eq!(ids(remove), ["b1", "side1", "a0", "init0", "a1"]);
    }

    #[test]
    fn rules_act_behind_their_gates() {
        let asked = Arc::new(pod(&[rule("Restart", "In", &[1]), rule(ACTION, "In", &[42])]));
        let of = |rules: bool, all: bool| {
            let set = BTreeMap::from([(RULES.to_owned(), rules), (RESTARTS_ALL.to_owned(), all)]);
            let gates = FeatureGates::default().with(&set).expect("gates");
            let pod = honoured(Arc::clone(&asked), &gates);
            let spec = pod.spec.clone().expect("a spec");
            let side = spec.init_containers.expect("containers")[1].restart_policy.clone();
            assert_eq!(side.as_deref(), Some("Always"), "a sidecar is one without the gate, too");
            let own = &spec.containers[0];
            let actions: Vec<_> = own.restart_policy_rules.iter().flatten().map(|rule| rule.action.clone()).collect();
            (own.restart_policy.clone(), actions)
        };
        let never = || Some("Never".to_owned());
        assert_eq!(of(true, true), (never(), vec!["Restart".to_owned(), ACTION.to_owned()]));
        assert_eq!(of(true, false), (never(), vec!["Restart".to_owned()]));
        assert_eq!(of(false, false), (None, vec![]));
        let plain = Arc::new(pod(&[rule("Restart", "In", &[1])]));
        assert!(Arc::ptr_eq(&honoured(Arc::clone(&plain), &FeatureGates::default()), &plain), "nothing to leave out");
    }
}
