//! Binds persistent volume claims to volumes, and says what becomes of volumes whose claim is gone. Answers for
//! upstream's `pkg/controller/volume/persistentvolume` (`PersistentVolumeController`).

pub mod maker;
pub mod matching;
pub mod operations;
pub mod plan;
pub mod recycle;
pub mod recycler_client;
pub mod report;

use std::collections::HashSet;
use std::path::{Component, Path};
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use parking_lot::Mutex;
use shared::client::path;
use shared::informer::{Event, Store};
use shared::types::{from_tree, volume_class};
use shared::workqueue::Queue;

use self::operations::Operations;
use self::plan::{Tie, World, waits_for_consumer};
use self::recycle::Recyclers;
use self::recycler_client::RecyclerClient;
use crate::engine::action::Action;
use crate::engine::assumed::Assumed;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct Binder {
    cx: Context,
    executor: Executor,
    volumes: Arc<Assumed<PersistentVolume>>,
    claims: Arc<Assumed<PersistentVolumeClaim>>,
    classes: Store<StorageClass>,
    dynamic: bool,
    /// There are no classes of attributes.
    without_attributes: bool,
    /// `--enable-hostpath-provisioner`
    host_path: bool,
    pods: Store<Pod>,
    recyclers: Recyclers,
    /// Uids of the volumes that are being emptied.
    emptied: Mutex<HashSet<String>>,
    operations: Mutex<Operations>,
    turn: tokio::sync::Mutex<()>,
}

/// Queues of claims and volumes.
#[derive(Clone)]
struct Queues {
    volumes: Queue<Key>,
    claims: Queue<Key>,
}

impl Queues {
    /// A key with a namespace is a claim's, one without is a volume's.
    fn add(&self, key: Key) {
        if key.namespace.is_empty() { self.volumes.add(key) } else { self.claims.add(key) }
    }
}

/// Index of volumes that are reserved for no claim, by their class.
const BY_CLASS: &str = "class";
/// Index of volumes by the claim that they are reserved for.
const BY_CLAIM: &str = "claim";
/// Index of claims that are not bound, by what they wait for: [`of_class`] or [`of_volume`].
const WAITING: &str = "waiting";

fn of_class(class: &str) -> String {
    format!("class/{class}")
}

fn of_volume(name: &str) -> String {
    format!("volume/{name}")
}

/// Index keys of the objects that can bind an unbound claim.
fn awaited(claim: &PersistentVolumeClaim) -> Vec<String> {
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound") {
        return Vec::new();
    }
    match claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|name| !name.is_empty()) {
        Some(name) => vec![of_volume(name)],
        None => vec![of_class(matching::claim_class(claim))],
    }
}

/// The claim that a volume is reserved for.
fn claim_of(volume: &PersistentVolume) -> Option<Key> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(Key::new(claim.namespace.clone().unwrap_or_default(), claim.name.clone().unwrap_or_default()))
}

/// Folder of volumes that are made on this host; nothing else on it is ever deleted.
const HOST_ROOT: &str = "/tmp/";

/// Reports whether a path is of something below [`HOST_ROOT`], which is not the folder itself.
fn below_root(path: &str) -> bool {
    let parts = path.strip_prefix(HOST_ROOT).into_iter().flat_map(|rest| Path::new(rest).components());
    let parts: Vec<Component<'_>> = parts.collect();
    parts.iter().any(|part| matches!(part, Component::Normal(_))) && !parts.contains(&Component::ParentDir)
}

/// Wire the persistent volume binder.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (volumes, claims) = (cx.informer::<PersistentVolume>(), cx.informer::<PersistentVolumeClaim>());
        let pods = cx.pods();
        let recyclers = &cx.settings().recyclers;
        let recyclers = Recyclers::load(&recyclers.host_path, &recyclers.nfs).map_err(|why| {
            RestError::other(format!("failed to probe volume plugins when starting persistentvolume controller: {why}"))
        })?;
        let queue = Queues { volumes: Queue::new("volumes"), claims: Queue::new("claims") };
        let this = Arc::new(Binder {
            cx: cx.clone(),
            executor: cx.executor("persistent-volume-binder", "persistentvolume-controller"),
            volumes: Assumed::follow(&volumes),
            claims: Assumed::follow(&claims),
            classes: cx.informer::<StorageClass>().store(),
            dynamic: cx.settings().dynamic_provisioning,
            without_attributes: !cx.gate("VolumeAttributesClass"),
            host_path: cx.settings().hostpath_provisioner,
            pods: pods.store(),
            recyclers,
            emptied: Mutex::default(),
            operations: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        });
        volumes.add_index(BY_CLASS, |volume: &PersistentVolume| match claim_of(volume) {
            None => vec![volume_class(volume).to_owned()],
            Some(_) => Vec::new(),
        });
        volumes.add_index(BY_CLAIM, |volume: &PersistentVolume| {
            claim_of(volume).map(|key| key.to_string()).into_iter().collect()
        });
        claims.add_index(WAITING, awaited);
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        volumes.add_handler(move |event: &Event<PersistentVolume>| {
            let volume = event.object();
            if let Event::Deleted(volume) = event {
                watcher.operations.lock().volume_gone(volume, clock::instant());
            }
            wake.add(Key::of(&volume.metadata));
            match claim_of(volume) {
                Some(claim) => wake.add(claim),
                None if matches!(event, Event::Deleted(_)) => {}
                // It may be what somebody waits for.
                None => {
                    for claim in watcher.waiting_for(volume) {
                        wake.add(Key::of(&claim.metadata));
                    }
                }
            }
        });
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        claims.add_handler(move |event: &Event<PersistentVolumeClaim>| {
            let claim = event.object();
            watcher.operations.lock().claim(event, clock::instant());
            wake.add(Key::of(&claim.metadata));
            if let Some(name) = claim.spec.as_ref().and_then(|s| s.volume_name.as_ref()) {
                wake.add(Key::new("", name));
            }
        });
        for queue in [&queue.volumes, &queue.claims] {
            worker::run(cx, "persistentvolume-binder", 1, queue, &this, |s, key| async move {
                // A claim and its volume are not looked at side by side.
                let _turn = s.turn.lock().await;
                s.sync(&key).await
            });
        }
        let (all, wake) = (claims.store(), queue.clone());
        let (volumes, mut told) = (volumes.store(), report::Counts::new());
        cx.every("persistentvolume-binder", cx.settings().volume_period, move || {
            let counts = report::counts(&volumes.list(), &all.list());
            report::tell(&counts, &told);
            told = counts;
            for claim in all.list() {
                if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
                    wake.add(Key::of(&claim.metadata));
                }
            }
            // What failed is tried again, and a claim may have taken another volume.
            for volume in volumes.list() {
                let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
                let (namespace, name) =
                    reference.map(|r| (r.namespace.as_deref(), r.name.as_deref())).unwrap_or_default();
                let claim = all.get(namespace.unwrap_or_default(), name.unwrap_or_default());
                let again = plan::doomed(&volume) || recycle::due(&volume);
                if again || !plan::volume(&volume, claim.as_deref()).is_empty() {
                    wake.add(Key::of(&volume.metadata));
                }
            }
            std::future::ready(())
        });
        Ok(Started::Yes)
    })
}

impl Binder {
    /// Reports whether a write gives the claim of `key` the class that it was made without.
    fn gives_class(&self, key: &Key, path: &str, body: &serde_json::Value) -> bool {
        let claim = self.claims.get(&key.namespace, &key.name);
        let without = |c: &PersistentVolumeClaim| c.spec.as_ref().is_some_and(|s| s.storage_class_name.is_none());
        !path.ends_with("/status")
            && body["spec"]["storageClassName"].is_string()
            && body["kind"] == "PersistentVolumeClaim"
            && claim.is_some_and(|c| without(&c))
    }

    async fn sync(self: &Arc<Self>, key: &Key) -> Synced {
        let actions = if key.namespace.is_empty() { self.volume(key).await? } else { self.claim(key).await };
        for action in actions {
            if matches!(&action, Action::Event { reason: "ProvisioningFailed" | "VolumeFailedDelete", .. }) {
                self.operations.lock().failed(key);
            }
            let late = matches!(&action, Action::Update { path, body } if self.gives_class(key, path, body));
            let done = self.write(action).await;
            if late {
                metrics::count("retroactive_storageclass_total", &[]);
                if done.is_err() {
                    metrics::count("retroactive_storageclass_errors_total", &[]);
                }
            }
            match done {
                Err(e) if e.not_found() => return Ok(None),
                other => other?,
            }
        }
        Ok(None)
    }

    /// One step. What it made of a volume or a claim counts before the caches show it.
    async fn write(&self, action: Action) -> Result<(), RestError> {
        let Action::Update { path, body } = action else { return self.executor.one(action).await };
        let stored = self.executor.rest.put_whole(&path, &body).await?;
        match body["kind"].as_str() {
            Some("PersistentVolume") => self.volumes.wrote(from_tree(&stored).map_err(RestError::other)?),
            _ => self.claims.wrote(from_tree(&stored).map_err(RestError::other)?),
        }
        Ok(())
    }

    async fn claim(&self, key: &Key) -> Vec<Action> {
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Vec::new() };
        let class = Some(matching::claim_class(&claim)).filter(|c| !c.is_empty()).and_then(|c| self.classes.get("", c));
        let default_class = plan::default_class(&self.classes.list());
        let (dynamic, without_attributes) = (self.dynamic, self.without_attributes);
        let mut world = World { class, dynamic, default_class, without_attributes, ..World::default() };
        world.volumes = self.candidates(&claim, key, world.delayed());
        if world.delayed() {
            world.unscheduled = self.unscheduled(key);
        }
        let actions = plan::claim(&claim, &world);
        if matches!(actions.first(), Some(Action::Event { reason: "ExternalProvisioning", .. })) {
            self.operations.lock().provision(&claim, clock::instant());
        }
        let provisioner = object::annotation(&claim.metadata, plan::PROVISIONER);
        match world.class.as_deref() {
            Some(class)
                if self.host_path && provisioner == Some(plan::HOST_PATH) && class.provisioner == plan::HOST_PATH =>
            {
                let bound = !claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default().is_empty();
                let made = world.volumes.iter().any(|v| matching::bound_to(v, &claim));
                if !bound {
                    self.operations.lock().provision(&claim, clock::instant());
                }
                if bound || made { actions } else { self.make_on_host(&claim, class).await }
            }
            _ => actions,
        }
    }

    /// The volumes that a claim may be bound to, by name: the one that it names, or those reserved for it and, unless the
    /// scheduler chooses, those of its class.
    fn candidates(&self, claim: &PersistentVolumeClaim, key: &Key, delayed: bool) -> Vec<Arc<PersistentVolume>> {
        if let Some(name) = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|name| !name.is_empty()) {
            return self.volumes.get("", name).into_iter().collect();
        }
        let mut volumes = self.volumes.by_index(BY_CLAIM, &key.to_string());
        if !delayed {
            volumes.extend(self.volumes.by_index(BY_CLASS, matching::claim_class(claim)));
        }
        volumes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        volumes.dedup_by(|a, b| a.metadata.name == b.metadata.name);
        volumes
    }

    /// Claims that wait for a volume such as this: of its class, unless the scheduler chooses, or by its name.
    fn waiting_for(&self, volume: &PersistentVolume) -> Vec<Arc<PersistentVolumeClaim>> {
        let class = volume_class(volume);
        let delayed = self.classes.get("", class).is_some_and(|class| waits_for_consumer(&class));
        let mut claims = self.claims.by_index(WAITING, &of_volume(object::name(&volume.metadata)));
        if !delayed {
            claims.extend(self.claims.by_index(WAITING, &of_class(class)));
        }
        claims
    }

    /// A directory on this host, as a volume for a claim.
    async fn make_on_host(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Vec<Action> {
        let about = object::reference::<PersistentVolumeClaim>(&claim.metadata);
        let path = format!("{HOST_ROOT}hostpath_pv/{}", object::uid(&claim.metadata));
        let volume = plan::host_path_volume(claim, class, &path);
        match tokio::fs::create_dir_all(&path).await {
            Ok(()) => {
                let name = object::name(&volume.metadata);
                let text = format!("Successfully provisioned volume {name} using {}", plan::HOST_PATH);
                vec![Action::create(&volume), Action::normal(&about, "ProvisioningSucceeded", text)]
            }
            Err(error) => {
                let text = format!(
                    "Failed to provision volume with StorageClass \"{}\": {error}",
                    object::name(&class.metadata)
                );
                vec![Action::warning(&about, "ProvisioningFailed", text)]
            }
        }
    }

    /// Remove what a released volume on this host holds, then the volume.
    async fn delete_on_host(volume: &PersistentVolume, path: &str) -> Vec<Action> {
        if !below_root(path) {
            return plan::not_deleted(
                volume,
                format!("host_path deleter only supports /tmp/.+ but received provided {path}"),
            );
        }
        match tokio::fs::remove_dir_all(path).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => plan::not_deleted(volume, error.to_string()),
            _ => plan::deleted(volume),
        }
    }

    async fn volume(self: &Arc<Self>, key: &Key) -> Result<Vec<Action>, RestError> {
        let Some(volume) = self.volumes.get("", &key.name) else { return Ok(Vec::new()) };
        let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
        let mut claim = reference.and_then(|r| {
            self.claims.get(r.namespace.as_deref().unwrap_or_default(), r.name.as_deref().unwrap_or_default())
        });
        if let Some(r) = reference
            && claim.as_ref().is_none_or(|c| c.metadata.uid != r.uid)
            && r.uid.as_deref().is_some_and(|u| !u.is_empty())
        {
            // A volume must not be released on the word of a cache.
            let claims =
                path::collection("v1", Some(r.namespace.as_deref().unwrap_or_default()), "persistentvolumeclaims");
            let path = path::object(&claims, r.name.as_deref().unwrap_or_default()).map_err(RestError::other)?;
            claim = match self.executor.rest.get(&path).await {
                Ok(v) => Some(Arc::new(from_tree(&v).map_err(RestError::other)?)),
                Err(e) if e.not_found() => None,
                Err(e) => return Err(e),
            };
        }
        if plan::tie(&volume, claim.as_deref()) == Tie::Released {
            if plan::doomed(&volume) {
                self.operations.lock().delete(&volume, clock::instant());
            }
            if let Some(path) = plan::deletable_path(&volume) {
                return Ok(Self::delete_on_host(&volume, path).await);
            }
            if recycle::due(&volume) {
                return Ok(self.recycle(&volume, claim.is_some()));
            }
        }
        Ok(plan::volume(&volume, claim.as_deref()))
    }

    /// Have a volume emptied, once at a time. `renamed`: its claim's name is another claim's by now, and so are the
    /// pods that use it.
    fn recycle(self: &Arc<Self>, volume: &Arc<PersistentVolume>, renamed: bool) -> Vec<Action> {
        let users = self.users(volume);
        if !users.is_empty() && !renamed {
            return vec![recycle::in_use(volume, &users)];
        }
        let Some(pod) = self.recyclers.pod(volume) else { return Vec::new() };
        let uid = object::uid(&volume.metadata).to_owned();
        if !self.emptied.lock().insert(uid.clone()) {
            return Vec::new();
        }
        let (this, volume) = (Arc::clone(self), Arc::clone(volume));
        self.cx.spawn_until_end("recycle", async move {
            let about = object::reference::<PersistentVolume>(&volume.metadata);
            let client = RecyclerClient::new(this.cx.main().clone(), this.executor.clone());
            let outcome = client.run(&about, &pod).await;
            for action in recycle::done(&volume, outcome) {
                if let Err(error) = this.write(action).await {
                    // The next look at the volume begins anew.
                    tracing::debug!(volume = about.name, %error, "what became of a volume cannot be said");
                    break;
                }
            }
            this.emptied.lock().remove(&uid);
        });
        Vec::new()
    }

    /// The running pods that use the claim a volume was bound to.
    fn users(&self, volume: &PersistentVolume) -> Vec<String> {
        let Some(claim) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return Vec::new() };
        let key = Key::new(claim.namespace.clone().unwrap_or_default(), claim.name.clone().unwrap_or_default());
        let mut names: Vec<String> = self.active(&key).map(|p| Key::of(&p.metadata).to_string()).collect();
        names.sort();
        names
    }

    /// The pods that use a claim and are on no node yet.
    fn unscheduled(&self, claim: &Key) -> Vec<String> {
        let waiting = self.active(claim).filter(|p| pods::node(p).is_empty());
        let mut names: Vec<String> = waiting.map(|p| object::name(&p.metadata).to_owned()).collect();
        names.sort();
        names
    }

    /// The pods that use a claim, or have it made, and may still run.
    fn active(&self, claim: &Key) -> impl Iterator<Item = Arc<Pod>> {
        pods::users_of(&self.pods, &claim.namespace, &claim.name).into_iter().filter(|p| !pods::over(p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_deleted_on_this_host() {
        for (path, may) in [
            ("/tmp/a", true),
            ("/tmp/a/b/", true),
            ("/tmp//a", true),
            ("/tmp/./a", true),
            ("/tmp/", false),
            ("/tmp//", false),
            ("/tmp/.", false),
            ("/tmp/a/../..", false),
            ("/tmp/../etc", false),
            ("/tmpfs/a", false),
            ("/etc", false),
        ] {
            assert_eq!(below_root(path), may, "{path}");
        }
    }
}
