//! Parts of a pod that its containers may refer to. Answers for the arguments of upstream's `validateContainers`.

use std::collections::{BTreeMap, BTreeSet};

use proto::Value;

use crate::rules::tree::{get, has, int, list, text};

/// Parts of the pod that containers may refer to.
pub(super) struct PodContext<'a> {
    /// Well formed volumes by name.
    pub volumes: BTreeMap<&'a str, &'a Value>,
    pub claims: BTreeSet<&'a str>,
    pub grace: i64,
    /// The pod's restart policy.
    pub policy: &'a str,
    /// The pod's operating system, if it says one.
    pub os: Option<&'a str>,
    /// Users of containers are users of the host.
    pub host_users: bool,
}

impl<'a> PodContext<'a> {
    /// Collects the parts of a spec with these volumes.
    pub(super) fn of(spec: &'a Value, volumes: BTreeMap<&'a str, &'a Value>) -> Self {
        Self {
            volumes,
            claims: list(spec, "resourceClaims").iter().map(|c| text(c, "name")).filter(|n| !n.is_empty()).collect(),
            grace: int(spec, "terminationGracePeriodSeconds").unwrap_or_default(),
            policy: text(spec, "restartPolicy"),
            os: has(spec, "os").then(|| text(get(spec, "os"), "name")),
            host_users: get(spec, "hostUsers") != &Value::Bool(false),
        }
    }
}
