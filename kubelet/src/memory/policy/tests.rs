//! The policy beside upstream's, and states that were left.

use super::super::reserved::Reserved;
use super::*;
use crate::topology::machine::NumaNode;
use serde_json::{Value, json};

const MI: u64 = 1 << 20;

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// A policy for nodes of some mebibytes, numbers of huge pages and mebibytes for the system.
fn policy(nodes: &[[u64; 3]]) -> StaticPolicy {
    let numbered = || nodes.iter().zip(0_u32..);
    let node = |([memory, pages, _], id): (&[u64; 3], u32)| {
        let hugepages = BTreeMap::from([(2 * MI, *pages)]);
        (id, NumaNode { memory: memory * MI, hugepages, distances: Vec::new() })
    };
    let reserved = |([_, _, bytes], id): (&[u64; 3], u32)| (id, BTreeMap::from([(MEMORY.to_owned(), bytes * MI)]));
    let machine = NumaNodes(numbered().map(node).collect());
    StaticPolicy::new(machine, numbered().map(reserved).collect::<Reserved>()).expect("memory is reserved")
}

fn pod(uid: &str, containers: &Value) -> Pod {
    let list = |is_init: bool| -> Vec<Value> {
        let own = containers.as_array().expect("a list").iter().filter(|container| container["init"] == is_init);
        own.map(|container| {
            let mut amounts = json!({"cpu": "1", "memory": format!("{}Mi", container["memory"])});
            if container["huge"] != 0 {
                amounts["hugepages-2Mi"] = format!("{}Mi", container["huge"]).into();
            }
            let mut spec = json!({"name": container["name"], "resources": {"requests": amounts, "limits": amounts}});
            if container["sidecar"] == true {
                spec["restartPolicy"] = "Always".into();
            }
            spec
        })
        .collect()
    };
    let spec = json!({"initContainers": list(true), "containers": list(false)});
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": spec})).expect("a pod")
}

fn mask(value: &Value) -> Option<NodeMask> {
    let bits = value.as_u64()?;
    Some((0..64).filter(|bit| bits & (1 << bit) != 0).collect())
}

fn hint(value: &Value) -> Hint {
    Hint { affinity: mask(&value[0]), preferred: value[1] == true }
}

fn hints(value: &Value) -> Hints {
    let list = |list: &Value| Some(list.as_array().expect("a list").iter().map(hint).collect());
    value.as_object().into_iter().flatten().map(|(kind, hints)| (kind.clone(), list(hints))).collect()
}

/// Pods that come and go, with what upstream's policy said and gave, one sequence a line.
const SEQUENCES: &str = include_str!("../testdata/sequences.jsonl");

fn carry_out(policy: &StaticPolicy, state: &mut State, step: &Value) {
    if let Some(uid) = step["remove"].as_str() {
        StaticPolicy::release(state, |other| other != uid);
        return;
    }
    let pod = pod(step["pod"].as_str().expect("a uid"), &step["containers"]);
    assert_eq!(policy.pod_hints(state, &pod), hints(&step["podHints"]), "{step}");
    for step in step["steps"].as_array().expect("a list") {
        let name = step["container"].as_str().expect("a name");
        let (container, _) = pods::by_start(&pod).find(|(container, _)| container.name == name).expect("a container");
        assert_eq!(policy.hints(state, &pod, container), hints(&step["hints"]), "{step}");
        let outcome = policy.allocate(state, &pod, container, hint(&step["given"]));
        let error = outcome.err().map(|refusal| refusal.message).unwrap_or_default();
        let expected = step["error"].as_str().expect("a text");
        let expected = Some(expected).filter(|text| !text.is_empty()).map(Refusal::unexpected);
        assert_eq!(error, expected.map(|refusal| refusal.message).unwrap_or_default(), "{step}");
    }
}

#[test]
fn memory_is_given_and_taken_back_as_upstream_does() {
    for line in SEQUENCES.lines() {
        let case: Value = serde_json::from_str(line).expect("a case");
        let node = |node: &Value| [number(&node[0]), number(&node[1]), number(&node[2])];
        let policy = policy(&case["nodes"].as_array().expect("a list").iter().map(node).collect::<Vec<_>>());
        let mut state = policy.start(None).expect("a state");
        for step in case["ops"].as_array().expect("a list") {
            carry_out(&policy, &mut state, step);
        }
        for (id, expected) in (0..).zip(case["machine"].as_array().expect("a list")) {
            let node = &state.machine[&id];
            let free = |kind: &str| node.memory_map[kind].free / MI;
            let found = json!({"assignments": node.number_of_assignments, "cells": node.cells,
                "free": free(MEMORY), "huge": free("hugepages-2Mi")});
            assert_eq!(found, *expected, "node {id}: {line}");
        }
        let blocks = state.blocks.iter().flat_map(|((uid, container), blocks)| {
            blocks.iter().map(move |block| {
                let nodes: Vec<String> = block.numa_affinity.iter().map(u32::to_string).collect();
                format!("{uid}/{container} {} [{}] {}", block.kind, nodes.join(" "), block.size / MI)
            })
        });
        let mut blocks: Vec<String> = blocks.collect();
        blocks.sort();
        let expected = case["blocks"].as_array().cloned().unwrap_or_default();
        assert_eq!(json!(blocks), json!(expected), "{line}");
    }
}

fn one(uid: &str, memory: u64) -> Pod {
    pod(uid, &json!([{"name": "c", "init": false, "sidecar": false, "memory": memory, "huge": 0}]))
}

fn first(pod: &Pod) -> &Container {
    &pod.spec.as_ref().expect("a spec").containers[0]
}

#[test]
fn placements_that_do_not_suffice_are_extended_or_refused() {
    let policy = policy(&[[1100, 0, 100], [1100, 0, 100], [1100, 0, 100]]);
    let given = |state: &mut State, uid: &str, memory: u64, nodes: &[u32], preferred: bool| {
        let (pod, affinity) = (one(uid, memory), Some(nodes.iter().copied().collect()));
        let outcome = policy.allocate(state, &pod, first(&pod), Hint { affinity, preferred });
        outcome.map_err(|refusal| refusal.message)?;
        Ok(state.blocks[&(uid.to_owned(), "c".to_owned())][0].numa_affinity.clone())
    };
    let refused = |text: &str| Err(Refusal::unexpected(format!("[memorymanager] {text}")).message);
    let mut state = policy.start(None).expect("a state");
    assert_eq!(given(&mut state, "a", 1500, &[1], true), Ok(vec![0, 1]), "two are as few as possible");
    assert_eq!(
        given(&mut state, "b", 900, &[0], true),
        refused("failed to find NUMA nodes to extend the current topology hint")
    );
    assert_eq!(given(&mut state, "b", 300, &[1, 2], false), refused("preferred hint violates NUMA node allocation"));
    assert_eq!(given(&mut state, "b", 900, &[2], true), Ok(vec![2]));
    assert!(StaticPolicy::release(&mut state, |uid| uid != "a") && !StaticPolicy::release(&mut state, |_| true));
    assert_eq!(
        given(&mut state, "c", 300, &[2], true),
        refused("failed to find NUMA nodes to extend the current topology hint")
    );
    assert_eq!(given(&mut state, "c", 300, &[0], true), Ok(vec![0]));
}

#[test]
fn burstable_pods_and_pods_with_resources_of_their_own_have_no_memory_to_themselves() {
    let policy = policy(&[[1100, 0, 100]]);
    let mut state = policy.start(None).expect("a state");
    let mut burstable = one("u", 100);
    let spec = burstable.spec.as_mut().expect("a spec");
    spec.containers[0].resources.as_mut().expect("resources").limits = None;
    let mut whole = one("v", 100);
    let spec = whole.spec.as_mut().expect("a spec");
    spec.resources = spec.containers[0].resources.clone();
    for pod in [burstable, whole] {
        policy.allocate(&mut state, &pod, first(&pod), Hint::default()).expect("nothing to do");
        assert_eq!((policy.hints(&state, &pod, first(&pod)), policy.pod_hints(&state, &pod)), Default::default());
    }
    assert_eq!(state.blocks, BTreeMap::new());
}

#[test]
fn a_state_of_another_machine_is_refused() {
    let policy = policy(&[[1100, 0, 100], [1100, 0, 100]]);
    let mut state = policy.start(None).expect("a state");
    let pod = one("u", 600);
    policy.allocate(&mut state, &pod, first(&pod), Hint::default()).expect("allocated");
    let change = |change: &dyn Fn(&mut State)| {
        let mut state = state.clone();
        change(&mut state);
        policy.start(Some(state)).err().map(|error| error.to_string())
    };
    let block = |state: &mut State| state.blocks.values_mut().next().expect("a container")[0].clone();
    assert_eq!(change(&|_| ()), None);
    let different = Some("[memorymanager] the expected machine state is different from the real one".to_owned());
    let wrong: [&dyn Fn(&mut State); 5] = [
        &|state| drop(state.machine.remove(&1)),
        &|state| state.machine.get_mut(&1).expect("a node").number_of_assignments = 1,
        &|state| state.machine.get_mut(&0).expect("a node").memory_map.get_mut(MEMORY).expect("memory").total = 1,
        &|state| state.machine.get_mut(&0).expect("a node").memory_map.get_mut(MEMORY).expect("memory").free -= 1,
        &|state| state.machine.get_mut(&0).expect("a node").cells = vec![0, 1],
    ];
    for wrong in wrong {
        assert_eq!(change(wrong), different);
    }
    let uses = |what: &str| Some(format!("[memorymanager] (pod: u, container: c) the memory assignment uses {what}"));
    let elsewhere = |state: &mut State| {
        let other = Block { numa_affinity: vec![7], ..block(state) };
        state.blocks.insert(("u".into(), "c".into()), vec![other]);
    };
    assert_eq!(change(&elsewhere), uses("the NUMA that does not exist"));
    let unknown = |state: &mut State| {
        let other = Block { kind: "hugepages-1Gi".to_owned(), ..block(state) };
        state.blocks.insert(("u".into(), "c".into()), vec![other]);
    };
    assert_eq!(change(&unknown), uses("memory resource that does not exist"));
    let empty = "[memorymanager] machine state can not be empty when it has memory assignments";
    assert_eq!(change(&|state| state.machine.clear()).as_deref(), Some(empty));
}
