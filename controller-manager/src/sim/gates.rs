//! Feature gates of the controllers: each of upstream's is asked for, or known to have no effect.

use std::collections::BTreeSet;

use shared::flags::FlagSet;
use shared::serve::Server as Port;

use super::faults::Fault;
use super::http::Server;
use super::manager::Manager;
use crate::controllers::TABLE;

/// Gates that upstream's controller manager asks for and that can be set.
const UPSTREAMS_GATES: [&str; 28] = [
    "APIServerIdentity",
    "ClusterTrustBundle",
    "ComponentFlagz",
    "ComponentStatusz",
    "CoordinatedLeaderElection",
    "DRAAdminAccess",
    "DRADeviceTaintRules",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPrioritizedList",
    "DeploymentReplicaSetTerminatingReplicas",
    "HPAConfigurableTolerance",
    "InOrderInformers",
    "InTreePluginPortworxUnregister",
    "InformerResourceVersion",
    "MaxUnavailableStatefulSet",
    "MutableSchedulingDirectivesForSuspendedJobs",
    "PodCertificateRequest",
    "PodDeletionCost",
    "PodLevelResources",
    "SELinuxChangePolicy",
    "SELinuxMountReadWriteOncePod",
    "StatefulSetSemanticRevisionComparison",
    "StorageVersionAPI",
    "StorageVersionMigrator",
    "TaintTolerationComparisonOperators",
    "VolumeAttributesClass",
    "WatchListClient",
];

/// Gates among them that have no effect here, with the reason; start tells of them where they are set.
const IDLE_GATES: &[(&str, &[&str])] = &[
    ("candidates lead by the lease alone", &["CoordinatedLeaderElection"]),
    ("pods ask as a whole for what they say", &["PodLevelResources"]),
    ("templates are compared by what they mean in any case", &["StatefulSetSemanticRevisionComparison"]),
    ("lists are streamed where the server does that", &["WatchListClient"]),
];

#[tokio::test(start_paused = true)]
async fn every_gate_of_upstreams_controllers_is_asked_for_or_told_to_be_idle() {
    let mut asked = BTreeSet::new();
    let usual = FlagSet::of("kube-controller-manager", &[]).expect("flags");
    for on in [true, false] {
        let all = UPSTREAMS_GATES.map(|gate| format!("{gate}={on}")).join(",");
        let flag = format!("--feature-gates={all}");
        let flags = FlagSet::of("kube-controller-manager", &[&flag]).expect("flags");
        let _ = Port::plain("kube-controller-manager", ([127, 0, 0, 1], 0).into()).flags(&flags);
        asked.extend(flags.feature_gates().asked_for());
        let server = Server::new(Fault::None);
        let (cx, shutdown) = Manager::context(&server, &[flag], None);
        for controller in TABLE {
            // Those that lack a key file are skipped, as in the process.
            let _ = (controller.start)(&cx.scoped()).await;
        }
        let gates = &cx.settings().gates;
        asked.extend(gates.asked_for());
        let told = gates.idle();
        for gate in IDLE_GATES.iter().flat_map(|(_, gates)| *gates).filter(|gate| usual.enabled(gate) != on) {
            assert!(told.contains(gate), "{gate} is set to {on}, and nothing is said of it");
        }
        shutdown.trigger();
    }
    let idle: Vec<&str> = UPSTREAMS_GATES.into_iter().filter(|gate| !asked.contains(gate)).collect();
    let mut known: Vec<&str> = IDLE_GATES.iter().flat_map(|(_, gates)| gates.iter().copied()).collect();
    known.sort_unstable();
    assert_eq!(idle, known);
}
