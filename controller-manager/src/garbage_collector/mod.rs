//! Deletes what no longer has an owner, in the background, in the foreground, or not at all (orphans). Answers for
//! upstream's `pkg/controller/garbagecollector` (`GarbageCollector`).
//!
//! In: the metadata of everything the server has, from watches ([`graph`]). Out: deletes and patches of owner
//! references and finalizers, each with the uid it was decided about. [`plan`] decides on one object; what a cache says
//! is asked of the server again before anything is deleted.

pub mod dot;
pub mod graph;
pub mod plan;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldhash::HashSet;
use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Namespace, Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, ReplicationController, ResourceQuota,
    Service, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::client::path;
use shared::informer::Text;
use shared::metrics::Passage;
use shared::workqueue::Queue;

use self::graph::{Graph, Identity, SeenMetadata, Stray, Uid, Work};
use self::plan::{CollectStep, OwnerState, Subject};
use crate::engine::action::PatchKind;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::discovery::Served;
use crate::engine::events::Events;
use crate::engine::metadata::{Hub, Meta, MetadataChange, Owner};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::{BRIEF, Rest, RestError};
use crate::engine::worker::{self, Synced};

/// Pause between two looks for caches that are being filled, and looks before the object goes back to its queue.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const LOOKS: u32 = 5;
/// Time between two discoveries for kinds that are unknown; those that come to be served tell of themselves.
const ASK_AGAIN: Duration = Duration::from_secs(30);
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Path of the graph.
const GRAPH: &str = "/debug/controllers/garbage-collector-controller/graph";
/// The longest wait for the caches of all resources; upstream's `initialSyncTimeout`.
const CACHES: Duration = Duration::from_secs(30);
/// Number of owners known not to exist that are remembered.
const ABSENT: usize = 500;
/// Shortest back-off of lookups of objects that no watch has shown.
const UNSEEN: Duration = Duration::from_millis(5);
const UNSEEN_LONGEST: Duration = Duration::from_secs(1000);
/// Pause before the next name of an object is tried that is not under its first name.
const RENAMED: Duration = Duration::from_millis(100);

struct Collector {
    rest: Rest,
    hub: Hub,
    /// The informers that the graph is fed from have synced, or took too long.
    caches_ready: AtomicBool,
    graph: Mutex<Graph>,
    delete: Queue<Uid>,
    orphan: Queue<Uid>,
    /// Owners known not to exist where their dependents look for them.
    absent: Mutex<VecDeque<(Uid, Identity)>>,
    /// Time when an unknown kind last called for discovery.
    last_asked: Mutex<Option<Instant>>,
    events: Events,
}

/// Wire the garbage collector.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.settings().garbage_collector {
            return Ok(Started::Skipped);
        }
        let this = Arc::new(Collector {
            rest: cx.rest("generic-garbage-collector"),
            hub: cx.hub().clone(),
            caches_ready: AtomicBool::new(false),
            graph: Mutex::new(Graph::default()),
            delete: Queue::new("garbage_collector_attempt_to_delete"),
            orphan: Queue::new("garbage_collector_attempt_to_orphan"),
            absent: Mutex::new(VecDeque::new()),
            last_asked: Mutex::default(),
            events: cx.executor("generic-garbage-collector", "garbage-collector-controller").events,
        });
        let watcher = Arc::clone(&this);
        let changes = Passage::new("garbage_collector_graph_changes");
        cx.hub().listen(move |served, change| {
            let _under_way = changes.begin();
            watcher.observe(served, change);
        });
        let caches = cx.scoped();
        feed_from_caches(&caches);
        let collector = Arc::clone(&this);
        cx.spawn("garbage-collector-caches", async move {
            if tokio::time::timeout(CACHES, caches.factory().wait_synced()).await.is_err() {
                tracing::warn!("Not all resource caches have synced, the garbage collector starts without them");
            }
            collector.caches_ready.store(true, Ordering::Release);
        });
        cx.hub().request();
        let workers = cx.settings().workers.gc;
        worker::run(cx, "garbage-collector", workers, &this.delete, &this, |s, uid| async move {
            s.attempt_to_delete(&uid).await
        });
        worker::run(cx, "garbage-collector", workers, &this.orphan, &this, |s, uid| async move {
            s.attempt_to_orphan(&uid).await
        });
        cx.debugging().add(GRAPH, "text/vnd.graphviz", move |query| {
            let uids: Vec<String> = query.iter().filter(|(key, _)| key == "uid").map(|(_, uid)| uid.clone()).collect();
            dot::dot(&this.graph.lock(), &uids)
        });
        Ok(Started::Yes)
    })
}

/// Kinds that other controllers cache anyway need no watch of their own.
fn feed_from_caches(cx: &Context) {
    macro_rules! feed {
        ($($kind:ty),*) => { $( cx.hub().feed(&cx.factory().informer::<$kind>()); )* };
    }
    feed!(
        Pod,
        ReplicaSet,
        Deployment,
        DaemonSet,
        StatefulSet,
        ControllerRevision,
        Job,
        CronJob,
        ReplicationController,
        Service,
        Node,
        Lease,
        Namespace,
        ServiceAccount,
        PersistentVolume,
        PersistentVolumeClaim,
        PodDisruptionBudget,
        ResourceQuota
    );
    cx.hub().feed_packed(&cx.endpoints());
    cx.hub().feed_packed(&cx.slices());
}

/// A text that very many nodes have.
fn common(text: &str) -> Arc<str> {
    Text::from(text).into()
}

fn seen((api_version, kind): &(Arc<str>, Arc<str>), meta: &Meta) -> SeenMetadata {
    let has = |f: &str| meta.finalizers.iter().any(|x| x == f);
    SeenMetadata {
        identity: Identity {
            api_version: Arc::clone(api_version),
            kind: Arc::clone(kind),
            namespace: meta.namespace.clone().into(),
            name: Arc::clone(&meta.name),
        },
        uid: Arc::clone(&meta.uid),
        owners: meta.owner_references.clone(),
        deleting: meta.deletion_timestamp.is_some(),
        foreground: has(FOREGROUND),
        orphan: has(ORPHAN),
        version: meta.resource_version.parse().ok(),
    }
}

impl Collector {
    fn observe(&self, served: &Served, change: &MetadataChange<'_>) {
        let names = || (common(&served.api_version()), common(&served.kind));
        let mut graph = self.graph.lock();
        let mut work = Work::default();
        let mut add = |w: Work| {
            work.delete.extend(w.delete);
            work.orphan.extend(w.orphan);
            work.strays.extend(w.strays);
        };
        match change {
            MetadataChange::Applied(meta) => add(graph.observe(seen(&names(), meta))),
            MetadataChange::Touched { uid, version } => graph.touch(uid, version.parse().ok()),
            MetadataChange::Deleted(meta) => add(graph.remove(&meta.uid)),
            MetadataChange::Listed(metas) => {
                let names = names();
                let mut gone: HashSet<Uid> = graph.of_kind(&names.0, &names.1).cloned().collect();
                for meta in metas {
                    gone.remove(&meta.uid);
                    add(graph.observe(seen(&names, meta)));
                }
                for uid in gone {
                    add(graph.remove(&uid));
                }
            }
            // Its objects need not be gone: another version may show them, or the same one later.
            MetadataChange::Withdrawn => {}
        }
        drop(graph);
        self.enqueue(work);
    }

    fn enqueue(&self, work: Work) {
        for uid in work.delete {
            self.delete.add(uid);
        }
        for uid in work.orphan {
            self.orphan.add(uid);
        }
        for stray in work.strays {
            self.complain(&stray);
        }
    }

    /// Returns the path of an object on the server; none where it would have to be in a namespace, and is not.
    fn path(&self, identity: &Identity) -> Result<Option<String>, RestError> {
        let catalogue = self.hub.catalogue();
        let served = catalogue.kind(&identity.api_version, &identity.kind).ok_or_else(|| {
            self.ask_for_discovery();
            RestError::other(format!("no matches for kind {:?} in version {:?}", identity.kind, identity.api_version))
        })?;
        let nowhere = served.namespaced && identity.namespace.is_empty();
        if nowhere {
            return Ok(None);
        }
        path::object(&served.path(Some(&identity.namespace)), &identity.name).map(Some).map_err(RestError::other)
    }

    /// Asks what is served now, for an owner of an unknown kind; its dependents come back again and again.
    fn ask_for_discovery(&self) {
        let (now, mut last) = (clock::instant(), self.last_asked.lock());
        if last.is_none_or(|at| now.saturating_duration_since(at) >= ASK_AGAIN) {
            *last = Some(now);
            self.hub.rediscover();
        }
    }

    /// The live metadata, if it is still the same object.
    async fn live(&self, path: &str, uid: &str) -> Result<Option<Value>, RestError> {
        match self.rest.get_as::<Value>(path, BRIEF).await {
            Ok(v) if v["metadata"]["uid"] == uid => Ok(Some(v)),
            Ok(_) => Ok(None),
            Err(e) if e.not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Waits a moment here, and not in the queue, where every object would come back for a look of its own.
    async fn wait_ready(&self) -> bool {
        for _ in 0..LOOKS {
            if self.ready() {
                return true;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.ready()
    }

    fn ready(&self) -> bool {
        self.caches_ready.load(Ordering::Acquire) && self.hub.synced()
    }

    async fn attempt_to_delete(&self, uid: &Uid) -> Synced {
        if !self.wait_ready().await {
            return Ok(Some(LOOK_AGAIN));
        }
        let known = {
            let graph = self.graph.lock();
            // What was looked up because others name it, and has shown itself since, is nobody's dependent: most of them.
            let concerns =
                |n: &&graph::GraphNode| n.virtual_ || n.deleting_dependents || (!n.deleting && !n.owners.is_empty());
            graph.get(uid).filter(concerns).map(|n| (n.identity.clone(), n.virtual_, n.deleting_dependents))
        };
        let Some((identity, is_virtual, deleting_dependents)) = known else { return Ok(None) };
        let Some(path) = self.path(&identity)? else { return Ok(None) };
        if self.delete_as_seen(uid, &path).await? {
            return Ok(None);
        }
        let Some(live) = self.live(&path, uid).await? else {
            self.remember_absent(uid, &identity);
            let work = self.graph.lock().absent(uid, &identity);
            self.enqueue(work);
            let renamed = self.graph.lock().get(uid).is_some_and(|n| n.virtual_);
            return Ok(renamed.then_some(RENAMED));
        };
        if is_virtual {
            // It exists after all. Its own watch shows it, unless it comes and goes while that is away.
            let before = self.graph.lock().found_unseen(uid);
            return Ok(before.map(|n| UNSEEN.saturating_mul(1 << n.min(20)).min(UNSEEN_LONGEST)));
        }
        let owners: Vec<Owner> =
            serde_json::from_value(live["metadata"]["ownerReferences"].clone()).unwrap_or_default();
        let subject = self.subject(uid, &live, deleting_dependents);
        let mut states = Vec::with_capacity(owners.len());
        if !subject.deleting {
            for owner in owners {
                let Some(state) = self.owner_state(&owner, &identity).await? else { return Ok(None) };
                states.push((owner, state));
            }
        }
        self.carry_out(uid, &path, &live, plan::plan(subject, &states)).await
    }

    /// Deletes what has lost all of its owners, in the very version that the graph knows: nothing has to be asked about it
    /// then, and when it has changed since, the server refuses. False when it takes a closer look.
    async fn delete_as_seen(&self, uid: &Uid, path: &str) -> Result<bool, RestError> {
        let known = {
            let graph = self.graph.lock();
            let node = graph.get(uid).filter(|n| !n.virtual_ && !n.deleting && !n.owners.is_empty());
            node.and_then(|n| Some((n.identity.clone(), n.owners.clone(), n.version?, n.foreground, n.orphan)))
        };
        let Some((identity, owners, version, foreground_finalizer, orphan_finalizer)) = known else {
            return Ok(false);
        };
        let mut states = Vec::with_capacity(owners.len());
        for owner in owners {
            if self.owner_state(&owner, &identity).await? != Some(OwnerState::Dangling) {
                return Ok(false);
            }
            states.push((owner, OwnerState::Dangling));
        }
        let subject = Subject { foreground_finalizer, orphan_finalizer, ..Subject::default() };
        let CollectStep::Delete { propagation, unblock: false } = plan::plan(subject, &states) else {
            return Ok(false);
        };
        let options = delete_options(uid, Some(&version.to_string().into()), propagation);
        match self.rest.delete(path, &options).await {
            Ok(_) => Ok(true),
            // Gone, which the graph may not have been told, or another version: look at what there is.
            Err(e) if e.not_found() || e.conflict() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn subject(&self, uid: &Uid, live: &Value, deleting_dependents: bool) -> Subject {
        let graph = self.graph.lock();
        let has = |f: &str| live["metadata"]["finalizers"].as_array().is_some_and(|a| a.iter().any(|x| x == f));
        let blocks = |owners: &[Owner]| owners.iter().any(|o| o.uid == *uid && o.block_owner_deletion == Some(true));
        Subject {
            deleting: live["metadata"]["deletionTimestamp"].is_string(),
            deleting_dependents,
            has_dependents: graph.dependents(uid).next().is_some(),
            dependents_waiting: graph.dependents(uid).any(|(_, d)| d.deleting_dependents),
            blocked: graph.dependents(uid).any(|(_, d)| blocks(&d.owners)),
            orphan_finalizer: has(ORPHAN),
            foreground_finalizer: has(FOREGROUND),
        }
    }

    /// Tell that the dependent names an owner it cannot have.
    fn complain(&self, Stray { at, uid, owner }: &Stray) {
        let about = ObjectReference {
            api_version: Some(at.api_version.to_string()),
            kind: Some(at.kind.to_string()),
            namespace: Some(at.namespace.to_string()),
            name: Some(at.name.to_string()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        };
        let (namespace, Owner { api_version, kind, name, uid, .. }) = (&at.namespace, owner);
        let text = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] \
             does not exist in namespace {namespace:?}"
        );
        self.events.say(&about, true, "OwnerRefInvalidNamespace", text);
    }

    /// Returns the state of an owner; none when it is in a namespace and the dependent in none, which nothing will ever
    /// mend.
    async fn owner_state(&self, owner: &Owner, dependent: &Identity) -> Result<Option<OwnerState>, RestError> {
        let identity = Identity::named(owner, &dependent.namespace);
        if self.is_absent(&owner.uid, &identity) {
            return Ok(Some(OwnerState::Dangling));
        }
        let Some(path) = self.path(&identity)? else { return Ok(None) };
        let Some(live) = self.live(&path, &owner.uid).await? else {
            self.remember_absent(&owner.uid, &identity);
            return Ok(Some(OwnerState::Dangling));
        };
        let waiting = live["metadata"]["deletionTimestamp"].is_string()
            && live["metadata"]["finalizers"].as_array().is_some_and(|a| a.iter().any(|x| x == FOREGROUND));
        Ok(Some(if waiting { OwnerState::WaitingForDependents } else { OwnerState::Solid }))
    }

    fn is_absent(&self, uid: &Uid, identity: &Identity) -> bool {
        self.absent.lock().iter().any(|(u, i)| u == uid && i == identity)
    }

    fn remember_absent(&self, uid: &Uid, identity: &Identity) {
        if self.is_absent(uid, identity) {
            return;
        }
        let mut absent = self.absent.lock();
        if absent.len() >= ABSENT {
            absent.pop_front();
        }
        absent.push_back((uid.clone(), identity.clone()));
    }

    async fn carry_out(&self, uid: &Uid, path: &str, live: &Value, step: CollectStep) -> Synced {
        match step {
            CollectStep::Nothing => {}
            CollectStep::RemoveForegroundFinalizer => self.drop_finalizer(path, live, FOREGROUND).await?,
            CollectStep::LookAtDependents => {
                let graph = self.graph.lock();
                let blocking: Vec<Uid> = graph
                    .dependents(uid)
                    .filter(|(_, d)| {
                        !d.deleting_dependents
                            && d.owners.iter().any(|o| o.uid == *uid && o.block_owner_deletion == Some(true))
                    })
                    .map(|(u, _)| u.clone())
                    .collect();
                drop(graph);
                blocking.into_iter().for_each(|u| self.delete.add(u));
            }
            CollectStep::DropOwners(owners) => self.drop_owners(path, live, &owners).await?,
            CollectStep::Delete { propagation, unblock } => {
                if unblock {
                    self.unblock(path, live).await?;
                }
                self.delete_as_judged(uid, path, live, propagation).await?;
            }
        }
        Ok(None)
    }

    /// Deletes the version that was judged, or a later one that has the same owners.
    async fn delete_as_judged(&self, uid: &Uid, path: &str, judged: &Value, policy: &str) -> Result<(), RestError> {
        let (version, owners) = (&judged["metadata"]["resourceVersion"], &judged["metadata"]["ownerReferences"]);
        match self.rest.delete(path, &delete_options(uid, Some(version), policy)).await {
            Err(e) if e.not_found() => return Ok(()),
            Err(e) if e.conflict() => {
                let Some(live) = self.live(path, uid).await? else { return Ok(()) };
                if live["metadata"]["resourceVersion"] == *version || live["metadata"]["ownerReferences"] != *owners {
                    return Err(e);
                }
            }
            other => return other.map(drop),
        }
        // Writes that have nothing to do with owners must not keep it for ever.
        match self.rest.delete(path, &delete_options(uid, None, policy)).await {
            Err(e) if e.not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn drop_finalizer(&self, path: &str, live: &Value, finalizer: &str) -> Result<(), RestError> {
        let Some(patch) = plan::remove_finalizer(live, finalizer) else { return Ok(()) };
        match self.rest.patch(path, PatchKind::Merge, &patch).await {
            Err(e) if e.not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn drop_owners(&self, path: &str, live: &Value, owners: &[String]) -> Result<(), RestError> {
        match self.rest.patch(path, PatchKind::Merge, &plan::drop_owners_merge(live, owners)).await {
            Err(e) if e.not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Stop blocking the owners: an owner in the foreground and a dependent in the foreground would wait for each other.
    async fn unblock(&self, path: &str, live: &Value) -> Result<(), RestError> {
        let Some(patch) = plan::unblock(live) else { return Ok(()) };
        self.rest.patch(path, PatchKind::Merge, &patch).await.map(drop)
    }

    async fn attempt_to_orphan(&self, uid: &Uid) -> Synced {
        if !self.wait_ready().await {
            return Ok(Some(LOOK_AGAIN));
        }
        let (identity, dependents) = {
            let graph = self.graph.lock();
            let Some(node) = graph.get(uid) else { return Ok(None) };
            let dependents: Vec<(Uid, Identity)> =
                graph.dependents(uid).map(|(u, d)| (u.clone(), d.identity.clone())).collect();
            (node.identity.clone(), dependents)
        };
        let mut failure = None;
        for (dependent, at) in dependents {
            if let Err(e) = self.set_free(&dependent, &at, uid).await {
                failure.get_or_insert(e);
            }
        }
        if let Some(e) = failure {
            return Err(e);
        }
        let Some(path) = self.path(&identity)? else { return Ok(None) };
        if let Some(live) = self.live(&path, uid).await? {
            self.drop_finalizer(&path, &live, ORPHAN).await?;
        }
        Ok(None)
    }

    /// Takes an owner off one of its dependents. Only then may the owner go: dependents of what is gone are collected.
    async fn set_free(&self, dependent: &Uid, at: &Identity, owner: &Uid) -> Result<(), RestError> {
        let Some(path) = self.path(at)? else { return Ok(()) };
        let owners = [owner.to_string()];
        let patch = plan::drop_owners_patch(dependent, &owners);
        match self.rest.patch(&path, PatchKind::Strategic, &patch).await {
            Err(e) if e.not_found() => Ok(()),
            // Custom resources know no strategic merge.
            Err(RestError::Api { code: 415, .. }) => match self.live(&path, dependent).await? {
                Some(live) => self.drop_owners(&path, &live, &owners).await,
                None => Ok(()),
            },
            // Another object of that name is nobody's dependent.
            Err(e) if e.conflict() || e.invalid() => match self.live(&path, dependent).await? {
                Some(_) => Err(e),
                None => Ok(()),
            },
            other => other.map(drop),
        }
    }
}

fn delete_options(uid: &Uid, version: Option<&Value>, policy: &str) -> Value {
    let mut conditions = json!({"uid": &**uid});
    if let Some(version) = version {
        conditions["resourceVersion"] = version.clone();
    }
    json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy, "preconditions": conditions})
}
