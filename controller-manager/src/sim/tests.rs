//! Every scenario, by itself and under every fault: a few minutes of processor time.
//! `SCENARIO=<part of a name>` plays only some and says more.

use super::faults::Fault;
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

/// Play every scenario under one fault; all that fail are reported together.
fn under(fault: Fault) {
    let only = std::env::var("SCENARIO").unwrap_or_default();
    let mut failed = Vec::new();
    for (file, scenario) in scenarios() {
        let label = format!("{file}: {}", scenario.name);
        if !label.contains(&only) || scenario.except.contains_key(&format!("{fault:?}").to_lowercase()) {
            continue;
        }
        let started = std::time::Instant::now();
        let caught = std::panic::catch_unwind(|| play(&scenario, fault));
        let errors = caught
            .unwrap_or_else(|p| vec![p.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".to_owned())]);
        if !only.is_empty() {
            eprintln!("{fault:?} {label}: {:?}", started.elapsed());
        }
        if !errors.is_empty() {
            failed.push(format!("{label}\n    {}", errors.join("\n    ")));
        }
    }
    assert!(failed.is_empty(), "{} scenarios failed under {fault:?}:\n{}", failed.len(), failed.join("\n"));
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
