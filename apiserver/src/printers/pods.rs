//! The row of a pod: one word for the state of all its containers. Answers for upstream's `printPod`.

use jiff::Timestamp;
use proto::Value;

use super::text::{condition, int, list, since, text, text_or, time};

#[derive(Default)]
struct Tally {
    restarts: i64,
    last: Option<Timestamp>,
}

impl Tally {
    fn add(&mut self, status: &Value) {
        self.restarts += int(status, "/restartCount");
        self.last = self.last.max(time(status.pointer("/lastState/terminated/finishedAt")));
    }

    fn text(&self, now: Timestamp) -> String {
        match self.last {
            Some(at) if self.restarts != 0 => {
                format!("{} ({} ago)", self.restarts, since(Some(&Value::from(at.to_string())), now))
            }
            _ => self.restarts.to_string(),
        }
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
    let mut begun = InitSummary::default();
    let initializing = begun.initialize(pod, inits);
    let runs = initializing.is_none() || condition(pod, "Initialized") == "True";
    let mut reason = initializing.unwrap_or_else(|| unstarted(pod));
    let mut tally = if runs { begun.sidecars } else { begun.all };
    if runs {
        begun.ready += run(pod, &mut tally, &mut reason);
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        if text(pod, "/status/reason") == "NodeLost" {
            "Unknown".clone_into(&mut reason);
        } else if !matches!(text(pod, "/status/phase"), "Failed" | "Succeeded") {
            "Terminating".clone_into(&mut reason);
        }
    }
    Summary { ready: begun.ready, total, reason, restarts: tally.text(now) }
}

/// Status of a pod without container statuses.
fn unstarted(pod: &Value) -> String {
    let gated = |c: &Value| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated";
    match list(pod, "/status/conditions").iter().any(gated) {
        true => "SchedulingGated".to_owned(),
        false => text_or(pod, "/status/reason", text(pod, "/status/phase")).to_owned(),
    }
}

/// Summary of the init containers.
#[derive(Default)]
struct InitSummary {
    ready: usize,
    all: Tally,
    sidecars: Tally,
}

impl InitSummary {
    /// Looks as far as the first that is not done; how that one is doing.
    fn initialize(&mut self, pod: &Value, inits: &[Value]) -> Option<String> {
        for (i, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            self.all.add(status);
            let sidecar = inits.iter().any(|c| c["name"] == status["name"] && is_sidecar(c));
            if sidecar {
                self.sidecars.add(status);
            }
            let (terminated, waiting) = (&status["state"]["terminated"], text(status, "/state/waiting/reason"));
            if !terminated.is_null() && int(terminated, "/exitCode") == 0 {
                continue;
            }
            if sidecar && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            return Some(if !terminated.is_null() {
                format!("Init:{}", ended(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{i}/{}", inits.len())
            });
        }
        None
    }
}

/// Looks at the containers; how many of them are ready.
fn run(pod: &Value, tally: &mut Tally, reason: &mut String) -> usize {
    let mut ready = 0;
    for status in list(pod, "/status/containerStatuses").iter().rev() {
        tally.add(status);
        let (terminated, waiting) = (&status["state"]["terminated"], text(status, "/state/waiting/reason"));
        if !waiting.is_empty() {
            waiting.clone_into(reason);
        } else if !terminated.is_null() {
            *reason = ended(terminated);
        } else if status["ready"] == true && !status["state"]["running"].is_null() {
            ready += 1;
        }
    }
    if *reason == "Completed" && ready > 0 {
        *reason = if condition(pod, "Ready") == "True" { "Running" } else { "NotReady" }.to_owned();
    }
    ready
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
    fn reason_of_a_pods_status_column() {
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
