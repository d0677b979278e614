//! Removes pods that nobody else will. Answers for upstream's `pkg/controller/podgc`.
//!
//! In: pods and nodes, looked at now and then. Out: pods marked and deleted at once. [`plan`] decides; that a node is
//! gone is asked of the server, for a cache may be behind.

pub mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use shared::client::path;
use shared::informer::Store;
use shared::metrics::Passage;

use self::plan::{QUARANTINE, Snapshot};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;

const PERIOD: Duration = Duration::from_secs(20);

struct Collector {
    executor: Executor,
    pods: Store<Pod>,
    nodes: Store<Node>,
    threshold: i32,
    /// Nodes that pods name and nobody knows, since when.
    missing: parking_lot::Mutex<HashMap<String, Instant>>,
    asked: Passage,
}

/// Wire pod garbage collection.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let this = Arc::new(Collector {
            executor: cx.executor("pod-garbage-collector", "pod-garbage-collector"),
            pods: cx.pods().store(),
            nodes: cx.informer::<Node>().store(),
            threshold: cx.settings().terminated_pod_threshold,
            missing: parking_lot::Mutex::default(),
            asked: Passage::new("orphaned_pods_nodes"),
        });
        cx.every("pod-garbage-collector", PERIOD, move || {
            let this = Arc::clone(&this);
            async move { this.round().await }
        });
        Ok(Started::Yes)
    })
}

impl Collector {
    async fn round(&self) {
        let nodes: HashMap<String, Arc<Node>> =
            self.nodes.list().into_iter().map(|n| (object::name(&n.metadata).to_owned(), n)).collect();
        let pods = self.pods.select(|pod| plan::may_go(pod, &nodes));
        let gone = self.gone(&pods, &nodes).await;
        let snapshot = Snapshot { pods, nodes, gone, threshold: self.threshold };
        for removal in plan::plan(&snapshot, clock::now()) {
            let labels = [object::namespace(&removal.pod.metadata), removal.reason];
            metrics::count("pod_gc_collector_force_delete_pods_total", &labels);
            for action in removal.actions {
                // Without the note in its status the pod stays for the next round.
                let Err(error) = self.executor.one(action).await else { continue };
                metrics::count("pod_gc_collector_force_delete_pod_errors_total", &labels);
                if !error.not_found() {
                    tracing::warn!(pod = %Key::of(&removal.pod.metadata), %error, "pod not collected");
                }
                break;
            }
        }
    }

    /// Nodes missing for the quarantine time that the server does not know either.
    async fn gone(&self, pods: &[Arc<Pod>], nodes: &HashMap<String, Arc<Node>>) -> HashSet<String> {
        let now = clock::instant();
        let named: HashSet<&str> =
            pods.iter().map(|p| pods::node(p)).filter(|n| !n.is_empty() && !nodes.contains_key(*n)).collect();
        let due: Vec<String> = {
            let mut missing = self.missing.lock();
            missing.retain(|n, _| named.contains(n.as_str()));
            for name in named {
                missing.entry(name.to_owned()).or_insert(now);
            }
            missing
                .iter()
                .filter(|(_, since)| now.saturating_duration_since(**since) >= QUARANTINE)
                .map(|(n, _)| n.clone())
                .collect()
        };
        let mut gone = HashSet::new();
        for name in due {
            let _under_way = self.asked.begin();
            let node = path::join(&path::collection("v1", None, "nodes"), &name);
            if self.executor.rest.get(&node).await.is_err_and(|e| e.not_found()) {
                gone.insert(name);
            }
        }
        gone
    }
}
