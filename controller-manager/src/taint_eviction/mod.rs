//! Sends pods away from nodes whose NoExecute taints they do not tolerate, or not for so long.

pub mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Toleration};
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::plan::Fate;
use crate::engine::clock;
use crate::engine::context::{BY_NODE, Context};
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};
use crate::engine::{nodes, pods};

/// How many pods are looked at side by side.
const WORKERS: usize = 8;

struct Evictions {
    executor: Executor,
    pods: Store<Pod>,
    nodes: Store<Node>,
    /// Since when each pod is on its way out, by uid.
    since: Mutex<HashMap<Key, (String, Instant)>>,
}

/// Wire the taint eviction controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (nodes, pods) = (cx.informer::<Node>(), cx.pods());
        let queue: Queue<Key> = Queue::new("noexec_taint_pod");
        let this = Arc::new(Evictions {
            executor: cx.executor("node-controller", "taint-eviction-controller"),
            pods: pods.store(),
            nodes: nodes.store(),
            since: Mutex::default(),
        });
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        pods.add_handler(move |event: &Event<Pod>| {
            let relevant = match event {
                Event::Updated { old, new } => {
                    fn view(pod: &Pod) -> Option<(Option<&str>, Option<&Vec<Toleration>>)> {
                        pod.spec.as_ref().map(|s| (s.node_name.as_deref(), s.tolerations.as_ref()))
                    }
                    view(old) != view(new)
                }
                _ => true,
            };
            let pod = event.object();
            if relevant && watcher.concerns(pod) {
                wake.add(Key::of(&pod.metadata));
            }
        });
        let (wake, on_node) = (queue.clone(), pods.store());
        nodes.add_handler(move |event: &Event<Node>| {
            let no_execute = |n: &Node| -> Vec<String> {
                nodes::taints(n)
                    .iter()
                    .filter(|t| t.effect == "NoExecute")
                    .map(|t| format!("{}={:?}", t.key, t.value))
                    .collect()
            };
            let matters = match event {
                Event::Updated { old, new } => no_execute(old) != no_execute(new),
                Event::Added(n) => !no_execute(n).is_empty(),
                Event::Deleted(_) => true,
            };
            if matters {
                for pod in on_node.by_index(BY_NODE, object::name(&event.object().metadata)) {
                    wake.add(Key::of(&pod.metadata));
                }
            }
        });
        worker::run(cx, "taint-eviction", WORKERS, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Evictions {
    /// Whether the pod may have to go, or was about to. A node that is not known yet brings its pods along.
    fn concerns(&self, pod: &Pod) -> bool {
        let node = self.nodes.get("", pods::node(pod));
        node.is_some_and(|n| nodes::taints(&n).iter().any(|t| t.effect == "NoExecute"))
            || self.since.lock().contains_key(&Key::of(&pod.metadata))
    }

    async fn sync(&self, key: &Key) -> Synced {
        let pod = self.pods.get(&key.namespace, &key.name).filter(|p| !object::deleting(&p.metadata));
        let Some(pod) = pod else {
            self.since.lock().remove(key);
            return Ok(None);
        };
        let taints = self.nodes.get("", pods::node(&pod)).map(|n| nodes::taints(&n).to_vec()).unwrap_or_default();
        let uid = object::uid(&pod.metadata).to_owned();
        match plan::fate(&pod, &taints) {
            Fate::Stays => {
                let waited = self.since.lock().remove(key);
                if waited.is_some_and(|w| w.0 == uid) {
                    self.executor.one(plan::cancel(&pod)).await?;
                }
                Ok(None)
            }
            Fate::Leaves(after) => {
                let now = clock::instant();
                let began = {
                    let mut since = self.since.lock();
                    let entry = since.entry(key.clone()).or_insert_with(|| (uid.clone(), now));
                    if entry.0 != uid {
                        *entry = (uid, now);
                    }
                    entry.1
                };
                let left = (began + after).saturating_duration_since(now);
                if left > Duration::ZERO {
                    return Ok(Some(left));
                }
                for action in plan::evict(&pod, clock::now()) {
                    match self.executor.one(action).await {
                        Err(e) if e.not_found() => break,
                        other => other?,
                    }
                }
                self.since.lock().remove(key);
                let late = now.saturating_duration_since(began + after).as_secs_f64();
                metrics::count("taint_eviction_controller_pod_deletions_total", &[]);
                metrics::observe("taint_eviction_controller_pod_deletion_duration_seconds", &[], late);
                Ok(None)
            }
        }
    }
}
