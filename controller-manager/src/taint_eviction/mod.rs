//! Sends pods away from nodes whose NoExecute taints they do not tolerate, or not for so long. Answers for upstream's
//! `pkg/controller/tainteviction`.
//!
//! In: nodes and pods. Out: pods marked and deleted, now or when their time is over. [`plan`] says which and when; a
//! deletion that was planned is called off when the taint goes.

pub mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::plan::{NO_EXECUTE, Planned};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::indices::BY_NODE;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};
use crate::engine::{nodes, pods};

/// Number of pods, and of nodes, that are looked at side by side.
const WORKERS: usize = 8;
/// An eviction that fails is tried again so often, and so soon, before it waits like any other work.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

struct Evictions {
    executor: Executor,
    pods: Store<Pod>,
    nodes: Store<Node>,
    /// Bounded by the pods on tainted nodes.
    planned: Mutex<HashMap<Key, Planned>>,
    /// Tolerations may compare numbers.
    compares: bool,
}

fn no_execute(node: &Node) -> impl Iterator<Item = &Taint> {
    nodes::taints(node).iter().filter(|t| t.effect == NO_EXECUTE)
}

/// Wire the taint eviction controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (nodes, pods) = (cx.informer::<Node>(), cx.pods());
        let queue: Queue<Key> = Queue::new("noexec_taint_pod");
        let changed: Queue<Key> = Queue::new("noexec_taint_node");
        let this = Arc::new(Evictions {
            executor: cx.executor("node-controller", "taint-eviction-controller"),
            pods: pods.store(),
            nodes: nodes.store(),
            planned: Mutex::default(),
            compares: cx.gate(shared::placement::COMPARES),
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
        let wake = changed.clone();
        nodes.add_handler(move |event: &Event<Node>| {
            let matters = match event {
                Event::Updated { old, new } => !no_execute(old).eq(no_execute(new)),
                Event::Added(node) => no_execute(node).next().is_some(),
                // What is planned comes to pass.
                Event::Deleted(_) => false,
            };
            if matters {
                wake.add(Key::of(&event.object().metadata));
            }
        });
        let wake = queue.clone();
        worker::run(cx, "taint-eviction", WORKERS, &queue, &this, |s, key| async move { s.sync(&key).await });
        let on_nodes = Arc::new((pods.store(), wake));
        worker::run(cx, "taint-eviction", WORKERS, &changed, &on_nodes, |s, node| async move {
            for pod in s.0.by_index(BY_NODE, &node.name) {
                s.1.add(Key::of(&pod.metadata));
            }
            Ok(None)
        });
        Ok(Started::Yes)
    })
}

impl Evictions {
    /// Reports whether the pod may have to go, or was about to. A node that is not known yet brings its pods along.
    fn concerns(&self, pod: &Pod) -> bool {
        let node = self.nodes.get("", pods::node(pod));
        node.is_some_and(|n| no_execute(&n).next().is_some())
            || self.planned.lock().contains_key(&Key::of(&pod.metadata))
    }

    async fn sync(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else {
            if self.planned.lock().remove(key).is_some() {
                self.executor.one(plan::cancel(key)).await?;
            }
            return Ok(None);
        };
        let now = clock::instant();
        let (planned, called_off) = match self.nodes.get("", pods::node(&pod)) {
            Some(node) => {
                let fate = plan::fate(&pod, nodes::taints(&node), self.compares);
                self.settle(key, |before| plan::next(before, object::uid(&pod.metadata), fate, now))
            }
            None => (self.planned.lock().get(key).cloned(), false),
        };
        if called_off {
            self.executor.one(plan::cancel(key)).await?;
        }
        let Some(planned) = planned.filter(|p| p.uid == object::uid(&pod.metadata)) else { return Ok(None) };
        let left = planned.due.saturating_duration_since(now);
        if !left.is_zero() {
            return Ok(Some(left));
        }
        if !planned.begun {
            self.executor.one(plan::announce(key)).await?;
            let begun = Planned { begun: true, ..planned.clone() };
            self.planned.lock().insert(key.clone(), begun);
        }
        let evicted = self.evict(&pod).await?;
        self.planned.lock().remove(key);
        if evicted {
            let late = clock::instant().saturating_duration_since(planned.due).as_secs_f64();
            metrics::count("taint_eviction_controller_pod_deletions_total", &[]);
            metrics::observe("taint_eviction_controller_pod_deletion_duration_seconds", &[], late);
        }
        Ok(None)
    }

    /// Replaces what is planned for a pod.
    fn settle(
        &self,
        key: &Key,
        next: impl FnOnce(Option<Planned>) -> (Option<Planned>, bool),
    ) -> (Option<Planned>, bool) {
        let mut all = self.planned.lock();
        let (planned, called_off) = next(all.remove(key));
        if let Some(planned) = &planned {
            all.insert(key.clone(), planned.clone());
        }
        (planned, called_off)
    }

    /// Evicts the pod, and reports whether it was there.
    async fn evict(&self, pod: &Pod) -> Result<bool, RestError> {
        let mut tried = 0;
        loop {
            match self.try_evict(pod).await {
                Err(e) if e.not_found() => return Ok(false),
                Err(e) if tried + 1 >= TRIES => return Err(e),
                Err(_) => tokio::time::sleep(PAUSE).await,
                Ok(()) => return Ok(true),
            }
            tried += 1;
        }
    }

    async fn try_evict(&self, pod: &Pod) -> Result<(), RestError> {
        for action in plan::evict(pod, clock::now()) {
            self.executor.one(action).await?;
        }
        Ok(())
    }
}
