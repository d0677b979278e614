//! Tells kubelets, by an annotation on their node, how long they may keep secrets and config maps: the longer, the
//! larger the cluster. Answers for upstream's `pkg/controller/ttl`.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use crate::engine::action::{Action, PatchKind};
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const TTL: &str = "node.alpha.kubernetes.io/ttl";
/// (fewest nodes, most nodes, seconds): the ranges overlap so that a size near a border does not flap.
const STEPS: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

struct Ttl {
    executor: Executor,
    nodes: Store<Node>,
    step: Mutex<usize>,
}

/// Wire the TTL controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let nodes = cx.informer::<Node>();
        let queue: Queue<Key> = Queue::new("ttlcontroller");
        let this = Arc::new(Ttl {
            executor: cx.executor("ttl-controller", "ttl-controller"),
            nodes: nodes.store(),
            step: Mutex::new(0),
        });
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        nodes.add_handler(move |event: &Event<Node>| {
            let before = *watcher.step.lock();
            let after = next_step(before, watcher.nodes.len());
            *watcher.step.lock() = after;
            if before != after {
                watcher.nodes.list().iter().for_each(|n| wake.add(Key::of(&n.metadata)));
            }
            let node = event.object();
            if !says(node, STEPS[after].2) && !matches!(event, Event::Deleted(_)) {
                wake.add(Key::of(&node.metadata));
            }
        });
        worker::run(cx, "ttl", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

/// Reports whether this is the annotation of the node.
fn says(node: &Node, seconds: u32) -> bool {
    object::annotation(&node.metadata, TTL).and_then(|text| text.parse().ok()) == Some(seconds)
}

/// The step for this number of nodes, coming from another.
fn next_step(mut step: usize, nodes: usize) -> usize {
    while nodes > STEPS[step].1 {
        step += 1;
    }
    while nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

impl Ttl {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(node) = self.nodes.get("", &key.name) else { return Ok(None) };
        let want = STEPS[*self.step.lock()].2;
        if says(&node, want) {
            return Ok(None);
        }
        let patch = json!({"metadata": {"annotations": {TTL: want.to_string()}}});
        match self.executor.one(Action::patch::<Node>(&node.metadata, PatchKind::Strategic, patch)).await {
            Err(e) if e.not_found() => Ok(None),
            other => other.map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says() {
        for (annotations, seconds, want) in [
            (json!({TTL: "15"}), 15, true),
            (json!({TTL: "015"}), 15, true),
            (json!({TTL: "0"}), 15, false),
            (json!({TTL: "soon"}), 0, false),
            (json!({}), 0, false),
        ] {
            let node = json!({"metadata": {"name": "n", "annotations": annotations}});
            assert_eq!(says(&serde_json::from_value(node).expect("node"), seconds), want, "{annotations} {seconds}");
        }
    }

    #[test]
    fn steps_overlap() {
        for (from, nodes, want) in [(0, 100, 0), (0, 101, 1), (1, 95, 1), (1, 89, 0), (0, 5000, 4), (4, 1, 0)] {
            assert_eq!(next_step(from, nodes), want, "{from} {nodes}");
        }
    }
}
