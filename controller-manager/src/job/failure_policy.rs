//! Effect of a failed pod on its job, by the job's pod failure policy. Answers for upstream's `matchPodFailurePolicy`.

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyRule};

use crate::engine::object::Key;
use crate::engine::pod::Pod;

/// The verdict on one failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod counts towards the back-off limit.
    Counts,
    /// The pod does not count.
    Ignored,
    /// The pod's index has failed, whatever its limit.
    FailsIndex,
    /// The whole job has failed, with this message.
    FailsJob(String),
}

/// Returns the verdict of the first rule that matches the pod, if there is one.
#[must_use]
pub fn ruled(job: &Job, pod: &Pod) -> Option<Verdict> {
    let policy = job.spec.as_ref()?.pod_failure_policy.as_ref()?;
    policy.rules.iter().enumerate().find_map(|(index, rule)| verdict(rule, index, pod))
}

/// Returns the verdict on a pod; one that no rule matches counts.
#[must_use]
pub fn judge(job: &Job, pod: &Pod) -> Verdict {
    ruled(job, pod).unwrap_or(Verdict::Counts)
}

/// A rule with an action of another release is about nothing.
fn verdict(rule: &PodFailurePolicyRule, index: usize, pod: &Pod) -> Option<Verdict> {
    let what = matches(rule, pod)?;
    let pod = Key::of(&pod.metadata);
    match rule.action.as_str() {
        "Ignore" => Some(Verdict::Ignored),
        "FailIndex" => Some(Verdict::FailsIndex),
        "Count" => Some(Verdict::Counts),
        "FailJob" => Some(Verdict::FailsJob(match what {
            Match::ExitCode { container, code } => format!(
                "Container {container} for pod {pod} failed with exit code {code} matching FailJob rule at index {index}"
            ),
            Match::Condition(kind) => format!("Pod {pod} has condition {kind} matching FailJob rule at index {index}"),
        })),
        _ => None,
    }
}

enum Match {
    ExitCode { container: String, code: i32 },
    Condition(String),
}

fn matches(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<Match> {
    let status = pod.status.as_ref()?;
    if let Some(on) = rule.on_exit_codes.as_ref() {
        let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
        for c in all.filter(|c| on.container_name.as_ref().is_none_or(|n| *n == c.name)) {
            let Some(code) = c.state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code) else {
                continue;
            };
            let listed = on.values.contains(&code);
            let hit = match on.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            };
            if code != 0 && hit {
                return Some(Match::ExitCode { container: c.name.to_string(), code });
            }
        }
        return None;
    }
    let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
    let conditions = status.conditions.as_deref().unwrap_or_default();
    conditions
        .iter()
        .find(|c| patterns.iter().any(|p| p.type_ == c.type_ && p.status.as_deref().unwrap_or("True") == &*c.status))
        .map(|c| Match::Condition(c.type_.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn first_matching_rule() {
        let job = |rules: Value| -> Job {
            serde_json::from_value(json!({"spec": {"template": {}, "podFailurePolicy": {"rules": rules}}}))
                .expect("job")
        };
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}, "status": {
            "conditions": [{"type": "DisruptionTarget", "status": "True"}],
            "containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 42}}}]}}))
        .expect("pod");
        let codes =
            |op: &str, v: Value, action: &str| json!({"action": action, "onExitCodes": {"operator": op, "values": v}});
        let disrupted =
            json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let fails = Verdict::FailsJob(
            "Container main for pod ns/p failed with exit code 42 matching FailJob rule at index 0".into(),
        );
        for (rules, want) in [
            (json!([codes("In", json!([42]), "FailJob")]), fails.clone()),
            (json!([codes("NotIn", json!([1]), "FailJob")]), fails),
            (json!([codes("In", json!([1]), "FailJob"), disrupted]), Verdict::Ignored),
            (json!([codes("In", json!([42]), "Count"), disrupted]), Verdict::Counts),
            (json!([codes("In", json!([42]), "FailIndex")]), Verdict::FailsIndex),
            (json!([codes("In", json!([42]), "Later"), disrupted]), Verdict::Ignored),
            (json!([codes("Near", json!([42]), "FailJob"), disrupted]), Verdict::Ignored),
            (json!([]), Verdict::Counts),
        ] {
            assert_eq!(judge(&job(rules.clone()), &pod), want, "{rules}");
        }
    }
}
