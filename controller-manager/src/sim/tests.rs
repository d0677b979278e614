//! Every scenario, by itself and under every fault: a few minutes of processor time.
//! `SCENARIO=<part of a name>` plays only some and says more.

use super::faults::Fault;
use super::http::Server;
use super::manager::Manager;
use super::scenario::{Scenario, play};

const FILES: &[(&str, &str)] = &[
    ("replicaset", include_str!("../../testdata/scenarios/replicaset.yaml")),
    ("deployment", include_str!("../../testdata/scenarios/deployment.yaml")),
    ("statefulset", include_str!("../../testdata/scenarios/statefulset.yaml")),
    ("daemonset", include_str!("../../testdata/scenarios/daemonset.yaml")),
    ("job", include_str!("../../testdata/scenarios/job.yaml")),
    ("cronjob", include_str!("../../testdata/scenarios/cronjob.yaml")),
    ("disruption", include_str!("../../testdata/scenarios/disruption.yaml")),
    ("namespace", include_str!("../../testdata/scenarios/namespace.yaml")),
    ("garbage_collector", include_str!("../../testdata/scenarios/garbage_collector.yaml")),
    ("resource_quota", include_str!("../../testdata/scenarios/resource_quota.yaml")),
    ("nodes", include_str!("../../testdata/scenarios/nodes.yaml")),
    ("endpoints", include_str!("../../testdata/scenarios/endpoints.yaml")),
    ("volumes", include_str!("../../testdata/scenarios/volumes.yaml")),
    ("accounts", include_str!("../../testdata/scenarios/accounts.yaml")),
    ("lifecycle", include_str!("../../testdata/scenarios/lifecycle.yaml")),
    ("autoscaling", include_str!("../../testdata/scenarios/autoscaling.yaml")),
    ("storage", include_str!("../../testdata/scenarios/storage.yaml")),
    ("clocks", include_str!("../../testdata/scenarios/clocks.yaml")),
    ("devices", include_str!("../../testdata/scenarios/devices.yaml")),
];

fn scenarios() -> Vec<(&'static str, Scenario)> {
    let mut all = Vec::new();
    for (file, text) in FILES {
        let list = proto::yaml::decode_any(text.as_bytes()).unwrap_or_else(|e| panic!("{file}: {e:?}"));
        for value in list.as_array().cloned().unwrap_or_default() {
            // What several scenarios of a file share.
            if value["define"].is_object() {
                continue;
            }
            let name = value["name"].clone();
            let scenario = serde_json::from_value(value).unwrap_or_else(|e| panic!("{file}, {name}: {e}"));
            all.push((*file, scenario));
        }
    }
    all
}

/// Plays every scenario under one fault; all that fail are reported together.
fn under(fault: Fault) {
    under_seed(fault, 0, 1);
}

/// Of so many scenarios one is played under each of the faults that come from seeds where there is but a moment.
const SHARE: usize = 4;

/// Plays scenarios under a fault that comes from a seed: every one under the one that `CHAOS_SEED` names and those after
/// it, for as long as `CHAOS_SECONDS` says; without that some of them, under the first.
fn under_seeds(fault: Fault) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (begun, first) = (std::time::Instant::now(), number("CHAOS_SEED").unwrap_or(0));
    let Some(seconds) = number("CHAOS_SECONDS") else { return under_seed(fault, first, SHARE) };
    for seed in first.. {
        under_seed(fault, seed, 1);
        if begun.elapsed().as_secs() >= seconds {
            eprintln!("{fault:?}: seeds {first} to {seed} in {:?}", begun.elapsed());
            return;
        }
    }
}

/// Plays one of each `share` scenarios, or those that `SCENARIO` is a part of the name of.
fn under_seed(fault: Fault, seed: u64, share: usize) {
    let only = std::env::var("SCENARIO").unwrap_or_default();
    let share = if only.is_empty() { share } else { 1 };
    let mut failed = Vec::new();
    for (file, scenario) in scenarios().into_iter().step_by(share) {
        let label = format!("{file}: {}", scenario.name);
        if !label.contains(&only) || fault.names().any(|name| scenario.except.contains_key(&name)) {
            continue;
        }
        let started = std::time::Instant::now();
        let caught = std::panic::catch_unwind(|| play(&scenario, fault, seed));
        let errors = caught
            .unwrap_or_else(|p| vec![p.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".to_owned())]);
        if !only.is_empty() {
            eprintln!("{fault:?} {label}: {:?}", started.elapsed());
        }
        if !errors.is_empty() {
            failed.push(format!("{label}\n    {}", errors.join("\n    ")));
        }
    }
    assert!(
        failed.is_empty(),
        "{} scenarios failed under {fault:?}, seed {seed}:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[test]
fn as_documented() {
    under(Fault::None);
}

#[test]
fn with_conflicting_writers() {
    under(Fault::Conflicts);
}

#[test]
fn with_failing_writes() {
    under(Fault::Failing);
}

#[test]
fn with_slow_writes() {
    under(Fault::Slow);
}

#[test]
fn with_watch_gaps() {
    under(Fault::Gaps);
}

#[test]
fn with_server_restarts() {
    under(Fault::Restarts);
}

#[test]
fn with_failover() {
    under(Fault::Failover);
}

mod seeded {
    use super::*;

    #[test]
    fn with_informers_that_lag() {
        under_seeds(Fault::Lag);
    }

    #[test]
    fn with_a_kind_that_cannot_be_listed() {
        under_seeds(Fault::Unlistable);
    }

    #[test]
    fn with_a_server_that_is_away() {
        under_seeds(Fault::Away);
    }

    #[test]
    fn with_a_frozen_leader() {
        under_seeds(Fault::Frozen);
    }
}

#[test]
fn names_are_unique() {
    let mut seen = std::collections::HashSet::new();
    for (file, s) in scenarios() {
        assert!(seen.insert((file, s.name.clone())), "{file}: {} is there twice", s.name);
        for fault in s.except.keys() {
            assert!(Fault::ALL.iter().any(|f| format!("{f:?}").to_lowercase() == *fault), "no fault {fault}");
        }
    }
}

/// Upstream's names of its queues.
const QUEUES: &[&str] = &[
    "ClusterRoleAggregator",
    "bootstrap_signer_queue",
    "ca_cert_publisher_cluster_trust_bundles",
    "certificate",
    "cidrallocator_node",
    "claims",
    "cronjob",
    "daemonset",
    "daemonset-node-updates",
    "deployment",
    "device-taint-eviction-controller",
    "disruption",
    "disruption_recheck",
    "endpoint",
    "endpoint_slice",
    "endpoint_slice_mirroring",
    "ephemeral_volume",
    "garbage_collector_attempt_to_delete",
    "garbage_collector_attempt_to_orphan",
    "garbage_collector_graph_changes",
    "horizontalpodautoscaler",
    "ipaddresses",
    "job",
    "job_orphan_pod",
    "namespace",
    "node",
    "node_lifecycle_controller",
    "node_lifecycle_controller_pods",
    "noexec_taint_node",
    "noexec_taint_pod",
    "orphaned_pods_nodes",
    "pvcprotection",
    "pvcs",
    "pvprotection",
    "replicaset",
    "replicationmanager",
    "resource-version-controller",
    "resource_claim",
    "resource_quota_controller_resource_changes",
    "resourcequota_primary",
    "resourcequota_priority",
    "root_ca_cert_publisher",
    "selinux_warning",
    "service",
    "serviceaccount",
    "serviceaccount_tokens_secret",
    "serviceaccount_tokens_service",
    "stale_pod_disruption",
    "statefulset",
    "storage-version-migrator-controller",
    "storage_version_garbage_collector_leases",
    "storage_version_garbage_collector_storageversions",
    "token_cleaner",
    "ttl_jobs_to_delete",
    "ttlcontroller",
    "vacprotection",
    "validatingadmissionpolicy-status",
    "volume_expand",
    "volumes",
    // Upstream looks at all volumes ten times a second instead.
    "attach_detach",
];

/// Queues of controllers that wait for a flag, a gate or a key.
const ABSENT: &[&str] = &[
    "ca_cert_publisher_cluster_trust_bundles",
    "cidrallocator_node",
    "device-taint-eviction-controller",
    "node",
    "resource-version-controller",
    "service",
    "serviceaccount_tokens_secret",
    "serviceaccount_tokens_service",
    "storage-version-migrator-controller",
    "storage_version_garbage_collector_leases",
    "storage_version_garbage_collector_storageversions",
];

#[tokio::test(start_paused = true)]
async fn queues_are_called_what_upstream_calls_them() {
    let server = Server::new(Fault::None);
    let all = "--controllers=*,bootstrap-signer-controller,token-cleaner-controller,selinux-warning-controller";
    let manager = Manager::start(&server, &[all.to_owned()]).await;
    let text = shared::metrics::gather();
    let named = |line: &'_ str| -> Option<String> {
        Some(line.strip_prefix("workqueue_depth{name=\"")?.split_once('"')?.0.to_owned())
    };
    let names: Vec<String> = text.lines().filter_map(named).filter(|name| !name.starts_with("test_")).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in &names {
        assert!(QUEUES.contains(&name.as_str()), "{name}");
    }
    for queue in QUEUES.iter().filter(|queue| !ABSENT.contains(queue)) {
        assert!(names.iter().any(|name| name == queue), "{queue} is missing");
    }
    manager.kill();
}
