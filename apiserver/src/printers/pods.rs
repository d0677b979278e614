//! The row of a pod: one word for the state of all its containers.

use jiff::Timestamp;
use proto::Value;

use super::text::{condition, int, list, since, text, text_or, time};

struct Tally {
    restarts: i64,
    last: Option<Timestamp>,
}

impl Tally {
    fn add(&mut self, status: &Value) {
        self.restarts += int(status, "/restartCount");
        self.last = self.last.max(time(status.pointer("/lastState/terminated/finishedAt")));
    }
}

fn ended(terminated: &Value) -> String {
    match (text(terminated, "/reason"), int(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", int(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn is_sidecar(container: &Value) -> bool {
    text(container, "/restartPolicy") == "Always"
}

/// Ready containers, all containers, status, restarts.
pub(super) struct Summary {
    pub(super) ready: usize,
    pub(super) total: usize,
    pub(super) reason: String,
    pub(super) restarts: String,
}

/// Sums up a pod.
pub(super) fn summary(pod: &Value, now: Timestamp) -> Summary {
    let inits = list(pod, "/spec/initContainers");
    let total = list(pod, "/spec/containers").len() + inits.iter().filter(|c| is_sidecar(c)).count();
    let mut ready = 0;
    let mut reason = text_or(pod, "/status/reason", text(pod, "/status/phase")).to_owned();
    if list(pod, "/status/conditions").iter().any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated") {
        "SchedulingGated".clone_into(&mut reason);
    }
    let mut all = Tally { restarts: 0, last: None };
    let mut sidecars = Tally { restarts: 0, last: None };
    let mut initializing = false;
    for (i, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
        all.add(status);
        let sidecar = inits.iter().any(|c| c["name"] == status["name"] && is_sidecar(c));
        if sidecar {
            sidecars.add(status);
        }
        let (terminated, waiting) = (&status["state"]["terminated"], text(status, "/state/waiting/reason"));
        if !terminated.is_null() && int(terminated, "/exitCode") == 0 {
            continue;
        }
        if sidecar && status["started"] == true {
            ready += usize::from(status["ready"] == true);
            continue;
        }
        reason = if !terminated.is_null() {
            format!("Init:{}", ended(terminated))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{i}/{}", inits.len())
        };
        initializing = true;
        break;
    }
    if !initializing || condition(pod, "Initialized") == "True" {
        all = sidecars;
        let mut running = false;
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            all.add(status);
            let (terminated, waiting) = (&status["state"]["terminated"], text(status, "/state/waiting/reason"));
            if !waiting.is_empty() {
                waiting.clone_into(&mut reason);
            } else if !terminated.is_null() {
                reason = ended(terminated);
            } else if status["ready"] == true && !status["state"]["running"].is_null() {
                running = true;
                ready += 1;
            }
        }
        if reason == "Completed" && running {
            reason = if condition(pod, "Ready") == "True" { "Running" } else { "NotReady" }.to_owned();
        }
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        if text(pod, "/status/reason") == "NodeLost" {
            "Unknown".clone_into(&mut reason);
        } else if !matches!(text(pod, "/status/phase"), "Failed" | "Succeeded") {
            "Terminating".clone_into(&mut reason);
        }
    }
    let restarts = match all.last {
        Some(at) if all.restarts != 0 => {
            format!("{} ({} ago)", all.restarts, since(Some(&Value::from(at.to_string())), now))
        }
        _ => all.restarts.to_string(),
    };
    Summary { ready, total, reason, restarts }
}

/// `1/2` of the readiness gates.
pub(super) fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let met = gates.iter().filter(|g| condition(pod, text(g, "/conditionType")) == "True").count();
    format!("{met}/{}", gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_word() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().expect("time");
        let spec = json!({"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]});
        let running = json!({"name": "a", "ready": true, "restartCount": 1, "state": {"running": {}}, "lastState": {"terminated": {"finishedAt": "2026-01-01T00:09:00Z"}}});
        let table = [
            (json!({"phase": "Pending"}), "0/2 Pending 0"),
            (
                json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}]}),
                "0/2 Init:0/1 0",
            ),
            (
                json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
                "0/2 Init:CrashLoopBackOff 3",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [running, {"name": "b", "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
                "1/2 ErrImagePull 1 (60s ago)",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [running, {"name": "b", "restartCount": 0, "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}]}),
                "1/2 NotReady 1 (60s ago)",
            ),
            (json!({"phase": "Failed", "reason": "Evicted"}), "0/2 Evicted 0"),
        ];
        for (status, want) in table {
            let s = summary(&json!({"metadata": {}, "spec": spec, "status": status}), now);
            assert_eq!(format!("{}/{} {} {}", s.ready, s.total, s.reason, s.restarts), want);
        }
        let s = summary(
            &json!({"metadata": {"deletionTimestamp": "x"}, "spec": spec, "status": {"phase": "Running"}}),
            now,
        );
        assert_eq!(s.reason, "Terminating");
    }
}
