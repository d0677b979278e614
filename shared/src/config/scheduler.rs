//! The scheduler's configuration: `--config`, or the deprecated flags; the leader-election flags win over both.

use serde_json::Value;

use super::{ConfigError, Settings, load};
use crate::flags::{FlagSet, format_duration};

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

#[derive(Clone, Copy)]
enum As {
    Text,
    Bool,
    Int,
    Float,
    Duration,
}

/// Deprecated flags; a file makes them void.
const DEPRECATED: [(&str, &str, As); 6] = [
    ("contention-profiling", "enableContentionProfiling", As::Bool),
    ("kube-api-burst", "clientConnection.burst", As::Int),
    ("kube-api-content-type", "clientConnection.contentType", As::Text),
    ("kube-api-qps", "clientConnection.qps", As::Float),
    ("kubeconfig", "clientConnection.kubeconfig", As::Text),
    ("profiling", "enableProfiling", As::Bool),
];

const LEADER_ELECTION: [(&str, &str, As); 7] = [
    ("leader-elect", "leaderElection.leaderElect", As::Bool),
    ("leader-elect-lease-duration", "leaderElection.leaseDuration", As::Duration),
    ("leader-elect-renew-deadline", "leaderElection.renewDeadline", As::Duration),
    ("leader-elect-resource-lock", "leaderElection.resourceLock", As::Text),
    ("leader-elect-resource-name", "leaderElection.resourceName", As::Text),
    ("leader-elect-resource-namespace", "leaderElection.resourceNamespace", As::Text),
    ("leader-elect-retry-period", "leaderElection.retryPeriod", As::Duration),
];

fn value(flags: &FlagSet, flag: &str, form: As) -> Value {
    match form {
        As::Text => flags.string(flag).into(),
        As::Bool => flags.boolean(flag).into(),
        As::Int => flags.integer(flag).into(),
        As::Float => flags.float(flag).into(),
        As::Duration => format_duration(flags.duration(flag)).into(),
    }
}

/// Loads the scheduler's configuration. Profiles stay as written: the framework defaults them.
pub fn scheduler(flags: &FlagSet) -> Result<Settings, ConfigError> {
    let file = flags.string("config");
    let mut settings = if file.is_empty() {
        let mut settings = Settings(super::defaults(API_VERSION, KIND));
        for (flag, path, form) in DEPRECATED {
            if flags.is_set(flag) {
                settings.set(path, value(flags, flag, form));
            }
        }
        settings
    } else {
        Settings(load(&file, KIND)?)
    };
    for (flag, path, form) in LEADER_ELECTION {
        if flags.is_set(flag) {
            settings.set(path, value(flags, flag, form));
        }
    }
    Ok(settings)
}
