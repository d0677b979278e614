//! Attaches CSI volumes to the nodes whose pods need them, and detaches them afterwards. Answers for `attachdetach`.
//!
//! In: pods, claims, volumes, nodes, attachments. Out: VolumeAttachments, `status.volumesAttached` of nodes, events of
//! pods. Volumes of plugins that were once part of Kubernetes are left to the drivers that took over; FlexVolumes are attached
//! by programs ([`flex`]). Everything is
//! computed from what is there, node by node, so a restart continues where it was; attachments are watched and need no
//! periodic verification.

pub mod flex;
pub mod listed;
mod need;
pub mod plan;
pub mod report;
mod tell;
pub mod volume;
mod wake;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::Resource;
use parking_lot::Mutex;
use serde_json::json;
use shared::informer::{Event, Store};
use shared::metrics::Passage;
use shared::workqueue::Queue;

use self::flex::{FlexAttachable, FlexAttacher};
use self::listed::Listed;
use self::need::{Pods, Users};
use self::plan::{Attachment, NodeDecision, Snapshot, WantedVolume};
use self::report::{ByDriver, Report, VolumeOperation};
use self::volume::{Attachable, key_of};
use self::wake::{bound_now, concerns, wake_users};
use crate::engine::action::{Action, PatchKind, object_path};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::indices::BY_NODE;
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};
use crate::engine::{metrics, object, pods};

const NAME: &str = "attachdetach-controller";
/// One after the other: two nodes must not both take a volume that only one may have.
const WORKERS: usize = 1;
const BY_VOLUME: &str = "volume";
/// Attachments are watched, but a period that upstream would not run with is refused all the same.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);
/// Last event of an attachment that has succeeded.
const ATTACHED: &str = "attached";
/// An attachment that was made and is not in the cache after this long is not counted on any more.
const UNSEEN: Duration = Duration::from_mins(1);

/// State beyond the caches.
#[derive(Default)]
struct Memory {
    /// Attachments made and not yet seen: name to the volume's key, node, time.
    made: HashMap<String, (String, String, Instant)>,
    /// Since when attachments are not wanted.
    unwanted: HashMap<String, Instant>,
    /// By key, nodes that wait for a volume to come free, and what was said of it.
    blocked: HashMap<String, HashMap<String, String>>,
    /// Volumes that nodes which are gone had mounted at last. Bounded by those that volumes are attached to.
    left_mounted: HashMap<String, Vec<String>>,
    /// Last event of each attachment: its error, or [`ATTACHED`]. Volumes that are only listed go by [`mark`].
    told: HashMap<String, String>,
}

/// Wanted attachments by the names under which they are known.
struct AllWanted {
    attached: BTreeMap<String, WantedVolume>,
    listed: BTreeMap<String, WantedVolume<Listed>>,
    flex: BTreeMap<String, WantedVolume<FlexAttachable>>,
}

impl AllWanted {
    /// Returns the name of a volume in events, and the nodes that want it.
    fn called(&self, name: &str) -> Option<(&str, String)> {
        let attached = self.attached.get(name).map(|w| (w.volume.volume.as_str(), w.volume.key()));
        let listed = || self.listed.get(name).map(|w| (w.volume.volume.as_str(), name.to_owned()));
        let flex = || self.flex.get(name).map(|w| (w.volume.volume.name.as_str(), name.to_owned()));
        attached.or_else(listed).or_else(flex)
    }
}

struct AttachDetach {
    executor: Executor,
    nodes: Store<Node>,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    drivers: Store<CSIDriver>,
    csi_nodes: Store<CSINode>,
    attachments: Store<VolumeAttachment>,
    /// Volumes of every in-tree plugin are left to drivers, whatever nodes say.
    moved_everywhere: bool,
    memory: Mutex<Memory>,
    report: Mutex<Report>,
    never_force: bool,
    flex: Arc<FlexAttacher>,
}

/// Wire the attach-detach controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if cx.settings().attach_period < SHORTEST_PERIOD {
            let why = "duration time must be greater than one second as set via command line option reconcile-sync-loop-period";
            return Err(RestError::other(why));
        }
        let (Some(attachments), Some(drivers), Some(csi_nodes)) =
            (cx.served::<VolumeAttachment>().await?, cx.served::<CSIDriver>().await?, cx.served::<CSINode>().await?)
        else {
            return Ok(Started::Skipped);
        };
        report::show_idle_families();
        attachments.add_index(BY_NODE, |a: &VolumeAttachment| vec![a.spec.node_name.clone()]);
        attachments.add_index(BY_VOLUME, |a: &VolumeAttachment| vec![key_of(a)]);
        let (nodes, pods) = (cx.informer::<Node>(), cx.pods());
        let (claims, volumes) = (cx.informer::<PersistentVolumeClaim>(), cx.informer::<PersistentVolume>());
        let queue: Queue<String> = Queue::new("attach_detach");
        let this = Arc::new(AttachDetach {
            executor: cx.executor(NAME, NAME),
            nodes: nodes.store(),
            pods: pods.store(),
            claims: claims.store(),
            volumes: volumes.store(),
            drivers: drivers.store(),
            csi_nodes: csi_nodes.store(),
            attachments: attachments.store(),
            moved_everywhere: cx.gate("InTreePluginPortworxUnregister"),
            memory: Mutex::default(),
            report: Mutex::default(),
            never_force: cx.settings().never_force_detach,
            flex: Arc::new(FlexAttacher::new(
                &cx.settings().flex_folder,
                queue.clone(),
                Some(cx.settings().attach_period).filter(|_| !cx.settings().never_verify_attached),
            )),
        });
        let wake = queue.clone();
        pods.add_handler(move |event: &Event<Pod>| {
            let pod = event.object();
            if !pods::node(pod).is_empty() && pods::volumes(pod).next().is_some() {
                wake.add(pods::node(pod).to_owned());
            }
        });
        let (wake, state) = (queue.clone(), Arc::clone(&this));
        nodes.add_handler(move |event: &Event<Node>| {
            state.remember(event);
            state.wake_waiting(event, &wake);
            if concerns(event) {
                wake.add(object::name(&event.object().metadata).to_owned());
            }
        });
        let wake = queue.clone();
        csi_nodes
            .add_handler(move |event: &Event<CSINode>| wake.add(object::name(&event.object().metadata).to_owned()));
        let (wake, state) = (queue.clone(), Arc::clone(&this));
        attachments.add_handler(move |event: &Event<VolumeAttachment>| state.observe(event, &wake));
        let (wake, all) = (queue.clone(), pods.store());
        let changes = Passage::new("pvcs");
        claims.add_handler(move |event: &Event<PersistentVolumeClaim>| {
            let _under_way = changes.begin();
            if bound_now(event) {
                let meta = &event.object().metadata;
                wake_users(&all, object::namespace(meta), object::name(meta), &wake);
            }
        });
        let (wake, all) = (queue.clone(), pods.store());
        volumes.add_handler(move |event: &Event<PersistentVolume>| {
            let claim = |v: &PersistentVolume| v.spec.as_ref().and_then(|s| s.claim_ref.clone());
            let new = claim(event.object());
            if matches!(event, Event::Updated { old, .. } if claim(old).map(|r| r.uid) == new.as_ref().map(|r| r.uid.clone())) {
                return;
            }
            if let Some(r) = new {
                wake_users(&all, r.namespace.as_deref().unwrap_or_default(), r.name.as_deref().unwrap_or_default(), &wake);
            }
        });
        worker::run(cx, "attach-detach", WORKERS, &queue, &this, |s, node| async move { s.sync(&node).await });
        Ok(Started::Yes)
    })
}

impl AttachDetach {
    fn observe(&self, event: &Event<VolumeAttachment>, queue: &Queue<String>) {
        let attachment = event.object();
        let name = object::name(&attachment.metadata);
        queue.add(attachment.spec.node_name.clone());
        self.report.lock().seen(attachment, matches!(event, Event::Deleted(_)), clock::instant());
        let mut memory = self.memory.lock();
        memory.made.remove(name);
        if let Event::Deleted(_) = event {
            memory.unwanted.remove(name);
            memory.told.remove(name);
            for node in memory.blocked.get(&key_of(attachment)).into_iter().flat_map(HashMap::keys) {
                queue.add(node.clone());
            }
        }
    }

    /// A node has ceased to list a volume that others wait for.
    fn wake_waiting(&self, event: &Event<Node>, queue: &Queue<String>) {
        let (before, after) = match event {
            Event::Updated { old, new } => (attached(old), attached(new)),
            Event::Deleted(node) => (attached(node), &[][..]),
            Event::Added(_) => return,
        };
        let memory = self.memory.lock();
        let left =
            |v: &&AttachedVolume| !v.name.starts_with(volume::CSI_PREFIX) && !after.iter().any(|a| a.name == v.name);
        for gone in before.iter().filter(left) {
            memory.blocked.get(&gone.name).into_iter().flat_map(HashMap::keys).for_each(|node| queue.add(node.clone()));
        }
    }

    /// Remembers the volumes that a node which goes had mounted, until it is back or has nothing attached.
    fn remember(&self, event: &Event<Node>) {
        let name = object::name(&event.object().metadata);
        let mut memory = self.memory.lock();
        match event {
            Event::Deleted(node)
                if !self.attachments.by_index(BY_NODE, name).is_empty() || !attached(node).is_empty() =>
            {
                let mounted = node.status.as_ref().and_then(|s| s.volumes_in_use.clone()).unwrap_or_default();
                memory.left_mounted.insert(name.to_owned(), mounted);
            }
            _ => drop(memory.left_mounted.remove(name)),
        }
    }

    async fn sync(&self, name: &str) -> Synced {
        if self.nodes.unreadable().contains("", name) {
            // What it has mounted, and whether it is well, nobody knows.
            return Ok(None);
        }
        let node = self.nodes.get("", name);
        let users = self.with_attaching_drivers(self.users(name, node.as_deref())).await;
        self.count(name, &users);
        let listed = node.as_deref().map(attached).unwrap_or_default();
        let flex = self.flex.look(name, listed, users.flex.values().map(|(volume, _)| volume)).await;
        let wanted = AllWanted {
            attached: self.wanted(name, &users),
            listed: self.to_list(name, &users),
            flex: self.flex_wanted(name, &users),
        };
        let objects = self.attachments.by_index(BY_NODE, name);
        let attachments = self.attachments_of(&objects, &wanted.attached, (name, node.as_deref()));
        let (made, left_mounted) = {
            let mut memory = self.memory.lock();
            if objects.is_empty() && flex.is_empty() {
                memory.left_mounted.remove(name);
            }
            let made: BTreeSet<String> = memory.made.keys().cloned().collect();
            (made, memory.left_mounted.get(name).cloned())
        };
        let decision = plan::plan(&Snapshot {
            node: node.as_deref(),
            left_mounted: left_mounted.as_deref(),
            wanted: &wanted.attached,
            listed: &wanted.listed,
            flex_wanted: &wanted.flex,
            flex: &flex,
            attachments: &attachments,
            made: &made,
            never_force: self.never_force,
        });
        self.tell(name, &decision, &wanted, &users, &objects);
        self.tell_flex(name, &wanted, &users);
        let again = decision.again.into_iter().chain(self.flex.verify(name)).min();
        self.carry_out(name, node.as_deref(), decision, &attachments).await?;
        Ok(again)
    }

    fn count(&self, node: &str, users: &Users) {
        let (mut wanted, mut uses) = (ByDriver::new(), ByDriver::new());
        for (volume, pods) in users.attached.values() {
            let plugin = report::plugin(&volume.driver);
            *wanted.entry(plugin.clone()).or_default() += 1;
            *uses.entry(plugin).or_default() += pods.len();
        }
        for (found, pods) in users.flex.values() {
            *wanted.entry(found.volume.driver.clone()).or_default() += 1;
            *uses.entry(found.volume.driver.clone()).or_default() += pods.len();
        }
        self.report.lock().node(node, wanted, uses);
    }

    fn wanted(&self, node: &str, users: &Users) -> BTreeMap<String, WantedVolume> {
        let mut memory = self.memory.lock();
        let now = clock::instant();
        memory.made.retain(|_, (_, _, at)| now.saturating_duration_since(*at) < UNSEEN);
        let wanted = users.attached.iter().map(|(name, (volume, pods))| {
            let mut elsewhere: BTreeSet<String> = BTreeSet::new();
            if volume.exclusive {
                let key = volume.key();
                let there = self.attachments.by_index(BY_VOLUME, &key);
                elsewhere.extend(there.iter().map(|a| a.spec.node_name.clone()).filter(|n| n != node));
                let made = memory.made.values().filter(|(v, n, _)| *v == key && n != node);
                elsewhere.extend(made.map(|(_, n, _)| n.clone()));
            }
            let used = |there: &Users| {
                let same = there.attached.values().filter(|(v, _)| v.key() == volume.key());
                same.flat_map(|(_, pods)| pods.clone()).collect()
            };
            let used_by = self.users_on(&elsewhere, used);
            (name.clone(), WantedVolume { volume: volume.clone(), elsewhere, used_by, namespace: namespace_of(pods) })
        });
        wanted.collect()
    }

    /// The volumes that the node has to list, and who else does.
    fn to_list(&self, node: &str, users: &Users) -> BTreeMap<String, WantedVolume<Listed>> {
        let wanted = users.listed.iter().map(|(name, (volume, pods))| {
            let lists = |n: &Arc<Node>| attached(n).iter().any(|v| v.name == *name);
            let others = if volume.exclusive { self.nodes.list() } else { Vec::new() };
            let others = others.into_iter().filter(lists).map(|n| object::name(&n.metadata).to_owned());
            let elsewhere: BTreeSet<String> = others.filter(|n| n != node).collect();
            let used = |there: &Users| there.pods(name).cloned().collect();
            let used_by = self.users_on(&elsewhere, used);
            (name.clone(), WantedVolume { volume: volume.clone(), elsewhere, used_by, namespace: namespace_of(pods) })
        });
        wanted.collect()
    }

    /// The pods on other nodes that use a volume.
    fn users_on(&self, nodes: &BTreeSet<String>, used: impl Fn(&Users) -> Pods) -> Vec<(String, String)> {
        let there = nodes.iter().flat_map(|n| used(&self.users(n, self.nodes.get("", n).as_deref())));
        there.map(|p| (object::namespace(&p.metadata).to_owned(), object::name(&p.metadata).to_owned())).collect()
    }

    /// The node's attachments that this controller makes: those with the name it would give them.
    fn attachments_of<'a>(
        &self,
        objects: &'a [Arc<VolumeAttachment>],
        wanted: &BTreeMap<String, WantedVolume>,
        node: (&str, Option<&Node>),
    ) -> BTreeMap<String, Attachment<'a>> {
        let mut memory = self.memory.lock();
        let mut out = BTreeMap::new();
        for object in objects {
            let name = object::name(&object.metadata);
            let unique_name = match Attachable::attached(object, |name| self.volumes.get("", name)) {
                Some(v) if v.attachment(&object.spec.node_name) == name => v.unique_name(),
                Some(_) => continue,
                None if volume::of(object).is_some_and(|v| self.volumes.unreadable().contains("", v)) => continue,
                // The volume is gone, or its informer is behind: the node may have it mounted all the same.
                None if volume::is_given_name(name) => volume::name_known(name, node, memory.left_mounted.get(node.0)),
                None => continue,
            };
            let unwanted_for = if wanted.contains_key(name) {
                memory.unwanted.remove(name);
                Duration::ZERO
            } else {
                let now = clock::instant();
                now.saturating_duration_since(*memory.unwanted.entry(name.to_owned()).or_insert(now))
            };
            out.insert(name.to_owned(), Attachment { object: object.as_ref(), unique_name, unwanted_for });
        }
        out
    }

    /// Reads `status.volumesInUse` of a node from the server: its kubelet may have written since a cache was filled. Empty
    /// when the node is gone. Answers for `verifyVolumeIsSafeToDetach`.
    async fn in_use_now(&self, node: &Node) -> Result<HashSet<String>, RestError> {
        match self.executor.rest.get(&object_path::<Node>(&node.metadata)).await {
            Ok(live) => {
                let names = live["status"]["volumesInUse"].as_array().into_iter().flatten();
                Ok(names.filter_map(|name| name.as_str().map(str::to_owned)).collect())
            }
            Err(e) if e.not_found() => Ok(HashSet::new()),
            Err(e) => Err(e),
        }
    }

    /// Writes what was decided on a node, which has these `attachments`.
    async fn carry_out(
        &self,
        name: &str,
        node: Option<&Node>,
        decision: NodeDecision,
        attachments: &BTreeMap<String, Attachment<'_>>,
    ) -> Result<(), RestError> {
        if let (Some(report), Some(node)) = (&decision.report, node) {
            let body = json!({"status": {"volumesAttached": report}});
            match self.executor.one(Action::patch_status::<Node>(&node.metadata, PatchKind::Merge, body)).await {
                Err(e) if e.not_found() => {}
                other => other?,
            }
        }
        // From here on the kubelet mounts nothing anew of what is not listed.
        let in_use = match node {
            Some(node) if decision.detach.iter().chain(&decision.flex_detach).any(|(_, forced)| forced.is_none()) => {
                self.in_use_now(node).await?
            }
            _ => HashSet::new(),
        };
        let mut mounted = None;
        for (unique, forced) in &decision.flex_detach {
            if let Some(used) = in_use.get(unique).filter(|_| forced.is_none()) {
                mounted = Some(used);
                continue;
            }
            if let Some(reason) = forced {
                metrics::count("attach_detach_controller_attachdetach_controller_forced_detaches", &[reason]);
                tracing::warn!(node = name, volume = unique, reason, "detaching a volume that may still be mounted");
            }
            self.flex.detach(name, unique);
        }
        decision.flex_attach.iter().for_each(|unique| self.flex.attach(name, unique));
        for (attachment, forced) in decision.detach {
            let found = attachments.get(&attachment).filter(|_| forced.is_none());
            let used = found.and_then(|found| volume::used_as(&found.unique_name, (&attachment, name), &in_use));
            if used.is_some() {
                mounted = used;
                continue;
            }
            if let Some(reason) = forced {
                metrics::count("attach_detach_controller_attachdetach_controller_forced_detaches", &[reason]);
                tracing::warn!(node = name, %attachment, reason, "detaching a volume that may still be mounted");
            }
            let path = format!("{}/{attachment}", VolumeAttachment::url_path(&(), None));
            self.report.lock().began(&attachment, VolumeOperation::Detach, clock::instant());
            let shown = self.attachments.get("", &attachment);
            let uid = shown.as_ref().map(|a| object::uid(&a.metadata));
            self.executor.one(Action::Delete { path, options: json!({"preconditions": {"uid": uid}}) }).await?;
        }
        for (attachment, volume) in decision.attach {
            let object: VolumeAttachment = serde_json::from_value(json!({"metadata": {"name": attachment},
                "spec": {"attacher": volume.driver, "nodeName": name, "source": volume.source()}}))
            .map_err(RestError::other)?;
            let made = (volume.key(), name.to_owned(), clock::instant());
            self.memory.lock().made.insert(attachment.clone(), made);
            self.report.lock().began(&attachment, VolumeOperation::Attach, clock::instant());
            match self.executor.one(Action::create(&object)).await {
                Err(e) if e.already_exists() => {}
                Err(e) => {
                    self.memory.lock().made.remove(&attachment);
                    return Err(e);
                }
                Ok(()) => {}
            }
        }
        let text = |volume| format!("volume {volume:?} is still in use by node {name:?}, according to Node status");
        mounted.map_or(Ok(()), |volume| Err(RestError::other(text(volume))))
    }
}

fn attached(node: &Node) -> &[AttachedVolume] {
    node.status.as_ref().and_then(|s| s.volumes_attached.as_deref()).unwrap_or_default()
}

fn namespace_of(pods: &[Arc<Pod>]) -> String {
    pods.first().map(|p| object::namespace(&p.metadata).to_owned()).unwrap_or_default()
}
