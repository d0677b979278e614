//! DefaultTolerationSeconds: pods tolerate an unreachable or unready node for five minutes unless they say otherwise.
//! Answers for upstream's `plugin/pkg/admission/defaulttolerationseconds`.

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::status::Status;

use super::{Attributes, Plugin};
use crate::machinery::tree;

/// The plugin.
pub(super) struct DefaultTolerationSeconds {
    /// `--default-not-ready-toleration-seconds`.
    pub not_ready: i64,
    /// `--default-unreachable-toleration-seconds`.
    pub unreachable: i64,
}

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if let Some(pod) = a.object.as_deref_mut() {
            self.apply(pod);
        }
        Ok(())
    }
}

impl DefaultTolerationSeconds {
    fn apply(&self, pod: &mut Value) {
        let wanted =
            [("node.kubernetes.io/not-ready", self.not_ready), ("node.kubernetes.io/unreachable", self.unreachable)];
        for (key, seconds) in wanted {
            let said = tree::list(pod, "/spec/tolerations").iter().any(|t| {
                (tree::text(t, "/key").is_empty() || tree::text(t, "/key") == key)
                    && matches!(tree::text(t, "/effect"), "" | "NoExecute")
            });
            if !said && let Some(list) = tree::list_mut(pod, &["spec", "tolerations"]) {
                list.push(
                    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_tolerations_are_added() {
        let plugin = DefaultTolerationSeconds { not_ready: 300, unreachable: 300 };
        let cases = [
            (json!([]), 2),
            (json!([{"key": "x", "operator": "Exists"}]), 3),
            (json!([{"operator": "Exists"}]), 1),
            (json!([{"operator": "Exists", "effect": "NoSchedule"}]), 3),
            (json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]), 2),
        ];
        for (tolerations, count) in cases {
            let mut pod = json!({"spec": {"tolerations": tolerations}});
            plugin.apply(&mut pod);
            assert_eq!(pod["spec"]["tolerations"].as_array().map(Vec::len), Some(count), "{pod}");
        }
    }
}
