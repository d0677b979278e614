//! Feature gates: what they switch in the loop, and which are asked for at all.

use std::collections::BTreeSet;

use serde_json::json;
use shared::flags::FlagSet;
use shared::informer::Store;
use shared::serve::Server;

use super::World;
use crate::driver::features;
use crate::driver::stores::Stores;
use crate::framework::{Features, Profile, ProfileConfig};
use crate::testing::{node, pod};

/// Calls until both pods of a gang are bound, with or without the gate NominatedNodeNameForExpectation.
async fn calls_of_a_gang(announces: bool) -> Vec<String> {
    let features = Features { gangs: true, announces, ..Features::default() };
    let profile = Profile::build(&ProfileConfig { features, ..ProfileConfig::default() }).expect("profile");
    let workload = json!({"metadata": {"name": "w", "namespace": "default"},
        "spec": {"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 2}}}]}});
    let workloads = Store::of([serde_json::from_value(workload).expect("workload")]);
    let mut world = World::with(0, profile, Stores::default().with_workloads(workloads));
    world.core.node_seen(node("n").base());
    for name in ["a", "b"] {
        world.add(&pod(name).cpu("1").set("/spec", "workloadRef", json!({"name": "w", "podGroup": "g"})));
    }
    let mut calls = Vec::new();
    while calls.iter().filter(|call: &&String| call.starts_with("bind")).count() < 2 {
        calls.push(world.next().await);
        assert!(calls.len() < 9, "{calls:?}");
    }
    calls
}

#[tokio::test]
async fn pod_whose_binding_takes_time_tells_its_node_behind_a_gate() {
    // Whichever of them is the first has to wait for the other.
    let announced = |calls: &[String]| calls.iter().any(|call| call == "patch a - n" || call == "patch b - n");
    assert!(announced(&calls_of_a_gang(true).await));
    assert!(!announced(&calls_of_a_gang(false).await));
}

/// Gates that upstream's scheduler asks for and that can be set.
const UPSTREAMS_GATES: [&str; 28] = [
    "ComponentFlagz",
    "ComponentStatusz",
    "CoordinatedLeaderElection",
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaintRules",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
    "DRASchedulerFilterTimeout",
    "GangScheduling",
    "GenericWorkload",
    "InPlacePodLevelResourcesVerticalScaling",
    "MatchLabelKeysInPodTopologySpread",
    "NodeDeclaredFeatures",
    "NominatedNodeNameForExpectation",
    "OpportunisticBatching",
    "PodLevelResources",
    "SchedulerAsyncAPICalls",
    "SchedulerAsyncPreemption",
    "SchedulerPopFromBackoffQ",
    "StorageCapacityScoring",
    "TaintTolerationComparisonOperators",
    "VolumeAttributesClass",
    "VolumeLimitScaling",
];

/// Gates among them that have no effect here, with the reason; start tells of them where they are set.
const IDLE_GATES: &[(&str, &[&str])] = &[
    ("candidates lead by the lease alone", &["CoordinatedLeaderElection"]),
    ("pods ask as a whole for what they say", &["PodLevelResources"]),
    ("amounts of pods as a whole are not resized in place", &["InPlacePodLevelResourcesVerticalScaling"]),
    ("answers are shared in any case, and change no decision", &["OpportunisticBatching"]),
    ("calls and evictions never hold up a decision", &["SchedulerAsyncAPICalls", "SchedulerAsyncPreemption"]),
];

#[test]
fn every_gate_of_upstreams_scheduler_is_asked_for_or_told_to_be_idle() {
    let mut asked = BTreeSet::new();
    for on in [true, false] {
        let all = UPSTREAMS_GATES.map(|gate| format!("{gate}={on}")).join(",");
        let flags = FlagSet::of("kube-scheduler", &[&format!("--feature-gates={all}")]).expect("flags");
        features(&flags);
        let _ = Server::plain("kube-scheduler", ([127, 0, 0, 1], 0).into()).flags(&flags);
        let gates = flags.feature_gates();
        asked.extend(gates.asked_for());
        let told = gates.idle();
        let usual = FlagSet::of("kube-scheduler", &[]).expect("flags");
        for gate in IDLE_GATES.iter().flat_map(|(_, gates)| *gates).filter(|gate| usual.enabled(gate) != on) {
            assert!(told.contains(gate), "{gate} is set to {on}, and nothing is said of it");
        }
    }
    let idle: Vec<&str> = UPSTREAMS_GATES.into_iter().filter(|gate| !asked.contains(gate)).collect();
    let mut known: Vec<&str> = IDLE_GATES.iter().flat_map(|(_, gates)| gates.iter().copied()).collect();
    known.sort_unstable();
    assert_eq!(idle, known);
}
