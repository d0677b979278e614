//! Runs a pod on every node that wants it. Answers for upstream's `pkg/controller/daemon` (`DaemonSetsController`).
//!
//! In: daemon sets, their pods and template revisions, nodes. Out: pods made and deleted, revisions, the status.
//! [`plan`] decides where a pod belongs; `past` keeps revisions.

mod past;
pub mod plan;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::metrics::Passage;
use shared::placement;
use shared::workqueue::Queue;

use self::plan::Snapshot;
use crate::engine::action::Action;
use crate::engine::backoff::Backoff;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::expect::Expectations;
use crate::engine::history::{self, Historied, MadeRevision};
use crate::engine::object::{self, Key};
use crate::engine::owned::{self, Paced, PodWatch};
use crate::engine::pod::Pod;
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct DaemonSets {
    executor: Executor,
    sets: Store<DaemonSet>,
    pods: Store<Pod>,
    nodes: Store<Node>,
    revisions: Store<ControllerRevision>,
    expectations: Arc<Expectations>,
    failures: Mutex<Backoff>,
    /// Tolerations may compare numbers.
    compares: bool,
}

fn selects(set: &DaemonSet, labels: Option<&std::collections::BTreeMap<String, String>>) -> bool {
    set.spec.as_ref().is_some_and(|s| object::selects(&s.selector, labels))
}

/// Wire the DaemonSet controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (sets, pods) = (cx.informer::<DaemonSet>(), cx.pods());
        let (nodes, revisions) = (cx.informer::<Node>(), cx.owned::<ControllerRevision>());
        let queue: Queue<Key> = Queue::new("daemonset");
        let expectations = Arc::new(Expectations::default());
        let this = Arc::new(DaemonSets {
            executor: cx.executor("daemon-set-controller", "daemonset-controller"),
            sets: sets.store(),
            pods: pods.store(),
            nodes: nodes.store(),
            revisions: revisions.store(),
            expectations: Arc::clone(&expectations),
            failures: Mutex::new(Backoff::new(Duration::from_secs(1), Duration::from_mins(15))),
            compares: cx.gate(placement::COMPARES),
        });
        owned::watch(&sets, &queue);
        owned::watch_revisions(&revisions, cx.selectors(), queue.clone(), |s: &DaemonSet, r: &ControllerRevision| {
            selects(s, r.metadata.labels.as_ref())
        });
        let all = nodes.store();
        let wake = PodWatch {
            sets: cx.selectors(),
            paced: Paced::sized(&queue, move |_| all.len()),
            expectations,
            selects: |s: &DaemonSet, p: &Pod| selects(s, p.metadata.labels.as_deref()),
        };
        wake.listen(&pods);
        let (wake, all) = (queue.clone(), sets.store());
        let (changes, compares) = (Passage::new("daemonset-node-updates"), cx.gate(placement::COMPARES));
        nodes.add_handler(move |event: &Event<Node>| {
            if let Event::Updated { old, new } = event
                && placement_view(old) == placement_view(new)
            {
                return;
            }
            let _under_way = changes.begin();
            for set in all.list().iter().filter(|set| concerns(set, event, compares)) {
                wake.add(Key::of(&set.metadata));
            }
        });
        worker::run(cx, "daemonset", cx.settings().workers.daemonset, &queue, &this, |s, key| async move {
            s.sync(&key).await
        });
        Ok(Started::Yes)
    })
}

/// Reports whether a node's coming, change or going matters to a set. Answers for upstream's `syncNodeUpdate`.
fn concerns(set: &DaemonSet, event: &Event<Node>, compares: bool) -> bool {
    let Some(template) = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()) else { return false };
    let should_run = |node: &Node| plan::should_run(template, node, compares);
    match event {
        Event::Updated { old, new } => should_run(old) != should_run(new),
        Event::Added(node) | Event::Deleted(node) => should_run(node).0,
    }
}

type PlacementView<'a> =
    (Option<&'a std::collections::BTreeMap<String, String>>, Vec<(&'a str, &'a str, Option<&'a str>)>);

/// Returns the fields that decide whether daemon pods run on a node; heartbeats change none.
fn placement_view(node: &Node) -> PlacementView<'_> {
    let taints = crate::engine::nodes::taints(node);
    (
        node.metadata.labels.as_ref(),
        taints.iter().map(|t| (t.key.as_str(), t.effect.as_str(), t.value.as_deref())).collect(),
    )
}

impl Historied for DaemonSet {
    fn collisions(&mut self) -> &mut Option<i32> {
        &mut self.status.get_or_insert_default().collision_count
    }
}

impl DaemonSets {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(set) = self.sets.get(&key.namespace, &key.name) else {
            self.expectations.forget(key);
            return Ok(None);
        };
        let uid = object::uid(&set.metadata);
        // Before the pods are looked up: what is seen from then on counts the next time.
        let unmet = self.expectations.of(key, uid).unmet(clock::instant());
        let rest = &self.executor.rest;
        let revisions = owned::candidates(&self.revisions, &key.namespace, uid);
        let revisions =
            owned::settle(rest, &*set, |r: &ControllerRevision| selects(&set, r.metadata.labels.as_ref()), revisions)
                .await?;
        let candidates = owned::candidates(&self.pods, &key.namespace, uid);
        let pods =
            owned::settle(rest, &*set, |p: &Pod| selects(&set, p.metadata.labels.as_deref()), candidates).await?;
        let mut nodes = self.nodes.list();
        nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let (held, again) = self.held(&set, &pods);
        let (revisions, settled, compares) = (history::sorted(revisions), unmet.is_none(), self.compares);
        let snapshot = Snapshot { set, nodes, pods, revisions, settled, held, compares };
        let mut actions = plan::plan(&snapshot, clock::now());
        self.note_failures(&snapshot, &actions);
        if let Some(Action::Create { path, body }) = actions.first() {
            if history::make(&self.executor, path, body).await? == MadeRevision::Taken {
                return history::another_name(&self.executor, &*snapshot.set).await;
            }
            actions.remove(0);
        }
        let outcome = self.executor.run(key, Some(&self.expectations), actions).await;
        let synced: Synced = outcome.into();
        synced.map(|requeue| [requeue, again, unmet].into_iter().flatten().min())
    }

    fn item(set: &DaemonSet, node: &str) -> String {
        format!("{}/{}/{node}", object::uid(&set.metadata), set.metadata.generation.unwrap_or(0))
    }

    /// Nodes whose failed pod may not be replaced yet, and when the first of them may.
    fn held(&self, set: &DaemonSet, pods: &[Arc<Pod>]) -> (HashSet<String>, Option<Duration>) {
        let (failures, now) = (self.failures.lock(), clock::instant());
        let mut held = HashSet::new();
        let mut soonest: Option<Duration> = None;
        for pod in pods.iter().filter(|p| pods::phase(p) == "Failed") {
            let node = pods::node(pod);
            if let Some(wait) = failures.waiting(&Self::item(set, node), now) {
                held.insert(node.to_owned());
                soonest = Some(soonest.map_or(wait, |s| s.min(wait)));
            }
        }
        (held, soonest)
    }

    fn note_failures(&self, s: &Snapshot, actions: &[Action]) {
        let now = clock::instant();
        for action in actions {
            let Action::DeletePod { uid, .. } = action else { continue };
            let failed = s.pods.iter().find(|p| object::uid(&p.metadata) == uid && pods::phase(p) == "Failed");
            if let Some(pod) = failed {
                self.failures.lock().next(&Self::item(&s.set, pods::node(pod)), now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(labels: Value, taints: Value) -> Arc<Node> {
        let node = json!({"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}});
        Arc::new(serde_json::from_value(node).expect("a node"))
    }

    #[test]
    fn set_is_looked_at_when_its_answer_for_a_node_changes() {
        let set: DaemonSet = serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": {"selector": {},
            "template": {"spec": {"containers": [], "nodeSelector": {"disk": "ssd"},
                "tolerations": [{"key": "own", "operator": "Exists"}]}}}}))
        .expect("a set");
        let (ssd, hdd) = (|| json!({"disk": "ssd"}), || json!({"disk": "hdd"}));
        let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
        let fits = || node(ssd(), json!([]));
        let changes = |old, new| Event::Updated { old, new };
        for (why, event, expected) in [
            ("a node that suits comes", Event::Added(fits()), true),
            ("a node that does not suit comes", Event::Added(node(hdd(), json!([]))), false),
            ("a node that suits goes", Event::Deleted(fits()), true),
            ("a node that did not suit goes", Event::Deleted(node(hdd(), json!([]))), false),
            ("it suits now", changes(node(hdd(), json!([])), fits()), true),
            ("it suits no more", changes(fits(), node(hdd(), json!([]))), true),
            ("another label", changes(fits(), node(json!({"disk": "ssd", "zone": "a"}), json!([]))), false),
            ("a taint that is tolerated", changes(fits(), node(ssd(), taint("own", "NoExecute"))), false),
            ("a taint that is not", changes(fits(), node(ssd(), taint("other", "NoSchedule"))), true),
            (
                "one that lets nobody stay",
                changes(node(ssd(), taint("other", "NoSchedule")), node(ssd(), taint("other", "NoExecute"))),
                true,
            ),
            (
                "a taint of a node that does not suit",
                changes(node(hdd(), json!([])), node(hdd(), taint("other", "NoExecute"))),
                false,
            ),
        ] {
            assert_eq!(concerns(&set, &event, false), expected, "{why}");
        }
    }
}
