//! Deletes nodes whose machines are gone and taints those that are switched off. Answers for
//! `cloud-node-lifecycle-controller`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::json;
use shared::informer::Store;

use super::{Machine, Provider};
use crate::engine::action::{Action, PatchKind};
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::nodes;
use crate::engine::object;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;

/// On nodes that are switched off.
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Plans the actions of a machine's state; the cloud is not asked about a node that is ready: it runs.
#[must_use]
pub fn plan(node: &Node, machine: Machine) -> Vec<Action> {
    let name = object::name(&node.metadata);
    let old = nodes::taints(node);
    let tainted = old.iter().any(|t| t.key == SHUTDOWN);
    let taints = |new: Vec<Taint>| {
        let body = json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": new}});
        vec![Action::patch::<Node>(&node.metadata, PatchKind::Merge, body)]
    };
    match machine {
        Machine::Gone => {
            let about = object::reference::<Node>(&node.metadata);
            let text = format!("Deleting node {name} because it does not exist in the cloud provider");
            vec![Action::normal(&about, "DeletingNode", text), Action::delete::<Node>(&node.metadata)]
        }
        Machine::Shutdown if !tainted => {
            let mut new = old.to_vec();
            new.push(Taint { key: SHUTDOWN.into(), effect: "NoSchedule".into(), ..Taint::default() });
            taints(new)
        }
        // As long as the node does not say so itself, it is not up.
        Machine::Running if tainted && nodes::ready(node) => {
            taints(old.iter().filter(|t| t.key != SHUTDOWN).cloned().collect())
        }
        Machine::Shutdown | Machine::Running => Vec::new(),
    }
}

struct Lifecycle {
    executor: Executor,
    nodes: Store<Node>,
    cloud: Arc<dyn Provider>,
}

/// Wire the watch over machines.
pub(super) fn start(cx: &Context, cloud: Arc<dyn Provider>) -> Result<Started, RestError> {
    let this = Arc::new(Lifecycle {
        executor: cx.executor("node-controller", "cloud-node-lifecycle-controller"),
        nodes: cx.informer::<Node>().store(),
        cloud,
    });
    cx.every("cloud-node-lifecycle", cx.settings().node_monitor_period, move || {
        let this = Arc::clone(&this);
        async move { this.look().await }
    });
    Ok(Started::Yes)
}

impl Lifecycle {
    async fn look(&self) {
        for node in &self.nodes.list() {
            let name = object::name(&node.metadata);
            let asked =
                async { if nodes::ready(node) { Ok(Machine::Running) } else { self.cloud.machine(node).await } };
            let machine = match asked.await {
                Ok(machine) => machine,
                Err(error) => {
                    tracing::warn!(node = name, %error, "error checking if node exists");
                    continue;
                }
            };
            for action in plan(node, machine) {
                let deletion = matches!(action, Action::Delete { .. });
                let Err(error) = self.executor.one(action).await else { continue };
                tracing::warn!(node = name, %error, "node lifecycle");
                if deletion {
                    let (about, text) =
                        (object::reference::<Node>(&node.metadata), format!("Failed deleting node {name}: {error}"));
                    self.executor.events.say(&about, true, "DeletingNodeFailed", text);
                }
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_the_state_of_the_machine() {
        let node = |ready: &str, taints: serde_json::Value| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
            .expect("node")
        };
        let off = json!([{"key": SHUTDOWN, "effect": "NoSchedule"}]);
        let gone = plan(&node("Unknown", json!([])), Machine::Gone);
        assert!(matches!(gone.as_slice(), [Action::Event { reason: "DeletingNode", .. }, Action::Delete { .. }]));
        for (ready, taints, machine, want) in [
            ("Unknown", json!([]), Machine::Shutdown, Some(1)),
            ("Unknown", off.clone(), Machine::Shutdown, None),
            ("Unknown", off.clone(), Machine::Running, None),
            ("True", off, Machine::Running, Some(0)),
            ("True", json!([]), Machine::Running, None),
        ] {
            let got = plan(&node(ready, taints), machine);
            let left = got.first().map(|a| match a {
                Action::Patch { body, .. } => body["spec"]["taints"].as_array().map_or(0, Vec::len),
                other => panic!("{other:?}"),
            });
            assert_eq!(left, want, "{machine:?}");
        }
    }
}
