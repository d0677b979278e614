//! The metadata of every object the server has, whatever its kind: what garbage collection and quota live on. Answers
//! for upstream's `client-go's` metadatainformer.
//!
//! Kinds that typed informers cache anyway are fed from those; for all others only metadata is asked of the server,
//! and nothing of it is kept here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::{Mutex, RwLock};
use proto::numbers::meta_v1::owner_reference;
use proto::protobuf::{Error, Wire, fields};
use serde::Deserialize;
use shared::informer::{Broken, Cached, Event, Follower, Formats, Informer, Raw, Text, follow};
use shared::run::Shutdown;
use shared::typed::{self, ReadError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::clock;
use super::context::Context;
use super::discovery::{Catalogue, Served, discover};
use super::object::{Held, Metadata};
use super::packed_of::{NamespacedKind, PackedOf};
use super::rest::{BRIEF_LIST, BRIEF_PROTOBUF};
use super::wire::{self, Wired, text, wired};

/// After a change of what is served, changes are gathered this long before discovery runs again.
const SETTLE: Duration = Duration::from_secs(1);
/// Discovery also runs again after this long, for aggregated servers that change without saying so.
const REDISCOVER: Duration = Duration::from_mins(5);
const RETRY: Duration = Duration::from_secs(1);
/// A resource that could not be listed for so long is not waited for; upstream's `initialSyncTimeout` of the garbage
/// collector.
const GIVE_UP: Duration = Duration::from_secs(30);

/// A reference to an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Group and version.
    pub api_version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Unique id.
    pub uid: Arc<str>,
    /// Foreground deletion of the owner waits for this dependent.
    #[serde(default)]
    pub block_owner_deletion: Option<bool>,
}

/// The metadata that matters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name.
    pub name: Arc<str>,
    /// Namespace, or empty.
    pub namespace: Text,
    /// Unique id.
    pub uid: Arc<str>,
    /// Version.
    pub resource_version: String,
    /// Owners.
    pub owner_references: Vec<Owner>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Set when deletion was asked for.
    pub deletion_timestamp: Option<Time>,
}

impl Meta {
    fn of(m: &impl Metadata) -> Self {
        let owners = m.owners().iter().map(|r| Owner {
            api_version: common(&r.api_version),
            kind: common(&r.kind),
            name: common(&r.name),
            uid: common(&r.uid),
            block_owner_deletion: r.block_owner_deletion,
        });
        Self {
            name: m.held_name(),
            namespace: m.namespace().unwrap_or_default().into(),
            uid: m.held_uid(),
            resource_version: m.resource_version().unwrap_or_default().to_owned(),
            owner_references: owners.collect(),
            finalizers: m.finalizers().to_vec(),
            deletion_timestamp: m.deleted().cloned(),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Partial {
    #[serde(default)]
    metadata: Meta,
}

wired!(Partial as meta_v1::partial_object_metadata { METADATA => metadata });
wired!(Meta as meta_v1::object_meta {
    NAME => name,
    NAMESPACE => namespace,
    UID => uid,
    RESOURCE_VERSION => resource_version,
    DELETION_TIMESTAMP => deletion_timestamp,
    OWNER_REFERENCES => owner_references,
    FINALIZERS => finalizers,
});

/// All dependents of an owner hold these once.
fn common(text: &str) -> Arc<str> {
    Text::from(text).into()
}

impl Wired for Owner {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        for field in fields(value.bytes("ownerReferences")?) {
            let (number, value) = field?;
            match number {
                owner_reference::KIND => self.kind = common(text(value)?),
                owner_reference::NAME => self.name = common(text(value)?),
                owner_reference::UID => self.uid = common(text(value)?),
                owner_reference::API_VERSION => self.api_version = common(text(value)?),
                owner_reference::BLOCK_OWNER_DELETION => self.block_owner_deletion.add(value)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Changes of objects of a resource.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "fields of variants say by their names what they are")]
pub enum MetadataChange<'a> {
    /// All objects there are.
    Listed(Vec<Meta>),
    /// The object appeared or changed.
    Applied(Meta),
    /// The object changed in ways that are of no interest: only its version is new.
    Touched { uid: &'a str, version: &'a str },
    /// The object is gone.
    Deleted(Meta),
    /// The resource is not served any more.
    Withdrawn,
}

type Listener = Box<dyn Fn(&Served, &MetadataChange<'_>) + Send + Sync>;

#[derive(Default)]
struct Shared {
    listeners: RwLock<Vec<Listener>>,
    catalogue: RwLock<Arc<Catalogue>>,
    /// Resources fed from typed informers.
    typed: Mutex<HashSet<(String, String)>>,
    rediscover: Notify,
    /// Resources that have delivered their first list.
    synced: Mutex<HashSet<(String, String)>>,
    /// Every resource that the last discovery found has been listed.
    complete: AtomicBool,
    /// Some controller needs the metadata of everything.
    wanted: AtomicBool,
}

/// Delivers the metadata of every object to its listeners.
#[derive(Clone, Default)]
pub struct Hub {
    shared: Arc<Shared>,
}

impl Hub {
    /// Hear of every change from now on. Call before [`Hub::start`].
    pub fn listen(&self, listener: impl Fn(&Served, &MetadataChange<'_>) + Send + Sync + 'static) {
        self.shared.listeners.write().push(Box::new(listener));
    }

    /// Returns the resources that the server serves, as last discovered.
    #[must_use]
    pub fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.shared.catalogue.read())
    }

    /// Ask the server again soon.
    pub fn rediscover(&self) {
        self.shared.rediscover.notify_one();
    }

    /// Reports whether every resource known at the last discovery has been listed.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.shared.complete.load(Ordering::Acquire)
    }

    /// Sees whether that is so: asked for each object, answered when something has changed.
    fn take_stock(&self) {
        let (typed, synced) = (self.shared.typed.lock(), self.shared.synced.lock());
        let catalogue = self.catalogue();
        let complete = !catalogue.preferred.is_empty()
            && catalogue.preferred.iter().filter(|s| collectable(s)).all(|s| {
                let key = (s.group.clone(), s.plural.clone());
                typed.contains(&key) || synced.contains(&key)
            });
        self.shared.complete.store(complete, Ordering::Release);
    }

    fn tell(&self, served: &Served, change: &MetadataChange<'_>) {
        for listener in self.shared.listeners.read().iter() {
            listener(served, change);
        }
        if matches!(change, MetadataChange::Applied(_) | MetadataChange::Deleted(_)) && defines_resources(served) {
            self.rediscover();
        }
    }

    /// Take the metadata of this kind from an informer.
    pub fn feed<K: Held>(&self, informer: &Informer<K>) {
        self.feed_with::<K, K::Api>(informer, |object| Meta::of(object.metadata()), touched);
    }

    /// Feeds a kind that is held packed.
    pub fn feed_packed<K: NamespacedKind + kube::Resource<DynamicType = ()>>(&self, informer: &Informer<PackedOf<K>>) {
        let read = |object: &PackedOf<K>| wire::read(object.meta().bytes()).unwrap_or_default();
        self.feed_with::<PackedOf<K>, K>(informer, read, |old, new| {
            let (old, new) = (old.meta(), new.meta());
            new.tied_as(old).then(|| MetadataChange::Touched { uid: new.uid(), version: new.version() })
        });
    }

    /// `read` reads an object, and `touched` says what there is to say of a change that needs no reading.
    fn feed_with<K: Cached, A: kube::Resource<DynamicType = ()>>(
        &self,
        informer: &Informer<K>,
        read: impl Fn(&K) -> Meta + Send + Sync + 'static,
        touched: impl for<'a> Fn(&K, &'a K) -> Option<MetadataChange<'a>> + Send + Sync + 'static,
    ) {
        let (group, version) = (A::group(&()).into_owned(), A::version(&()).into_owned());
        let served = Served {
            plural: A::plural(&()).into_owned(),
            kind: A::kind(&()).into_owned(),
            namespaced: K::collection_path(Some("n")).contains("/namespaces/"),
            verbs: Vec::new(),
            group,
            version,
        };
        self.shared.typed.lock().insert((served.group.clone(), served.plural.clone()));
        let hub = self.clone();
        informer.add_handler(move |event: &Event<K>| {
            let change = match event {
                Event::Updated { old, new } => touched(old, new).unwrap_or_else(|| MetadataChange::Applied(read(new))),
                Event::Added(object) => MetadataChange::Applied(read(object)),
                Event::Deleted(object) => MetadataChange::Deleted(read(object)),
            };
            hub.tell(&served, &change);
        });
    }

    /// Ask for [`Hub::start`] to have an effect.
    pub fn request(&self) {
        self.shared.wanted.store(true, Ordering::Relaxed);
    }

    /// Discover, watch, and follow what is served until the term ends, if anybody asked for it. Called once, when every
    /// controller has said which kinds it caches itself.
    pub fn start(&self, cx: &Context) {
        if !self.shared.wanted.load(Ordering::Relaxed) {
            return;
        }
        let (hub, cx2) = (self.clone(), cx.clone());
        cx.spawn("metadata-hub", async move { hub.follow(&cx2).await });
    }

    async fn follow(&self, cx: &Context) {
        let rest = cx.own_rest();
        let mut running: HashMap<Served, CancellationToken> = HashMap::new();
        loop {
            match discover(&rest).await {
                Ok(catalogue) => {
                    self.update(cx, &catalogue, &mut running);
                    *self.shared.catalogue.write() = Arc::new(catalogue);
                    self.take_stock();
                }
                Err(error) => {
                    super::metrics::count("garbagecollector_controller_resources_sync_error_total", &[]);
                    tracing::warn!(%error, "discovery failed");
                    tokio::select! {
                        () = tokio::time::sleep(RETRY) => continue,
                        () = cx.shutdown().wait() => return,
                    }
                }
            }
            tokio::select! {
                () = self.shared.rediscover.notified() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(REDISCOVER) => {}
                () = cx.shutdown().wait() => return,
            }
        }
    }

    /// Start watching what is new, stop watching what is gone. A group that did not answer keeps its watches.
    fn update(&self, cx: &Context, catalogue: &Catalogue, running: &mut HashMap<Served, CancellationToken>) {
        let typed = self.shared.typed.lock().clone();
        let wanted: HashSet<&Served> = catalogue
            .preferred
            .iter()
            .filter(|s| collectable(s) && !typed.contains(&(s.group.clone(), s.plural.clone())))
            .collect();
        let stale = |s: &Served| catalogue.stale.contains(&format!("{}/{}", s.group, s.version));
        running.retain(|served, token| {
            let keep = wanted.contains(served) || stale(served);
            if !keep {
                token.cancel();
                self.shared.synced.lock().remove(&(served.group.clone(), served.plural.clone()));
                self.tell(served, &MetadataChange::Withdrawn);
            }
            keep
        });
        for served in wanted {
            if running.contains_key(served) {
                continue;
            }
            let token = cx.shutdown().token().child_token();
            running.insert(served.clone(), token.clone());
            let (hub, cx2, served) = (self.clone(), cx.clone(), served.clone());
            cx.spawn("metadata-watch", async move {
                follow(cx2.main().clone(), Arc::new(Watched::new(hub, served)), Shutdown::from(token)).await;
            });
        }
    }
}

/// Follows one resource for the hub.
struct Watched {
    hub: Hub,
    served: Served,
    /// Objects listed so far, while a list is read.
    listing: Mutex<Option<Vec<Meta>>>,
    /// Time of the first of the failures since the last list; nothing once it was given up.
    failing_since: Mutex<Option<Instant>>,
}

impl Watched {
    fn new(hub: Hub, served: Served) -> Self {
        Self { hub, served, listing: Mutex::default(), failing_since: Mutex::default() }
    }

    fn now_synced(&self) {
        self.hub.shared.synced.lock().insert((self.served.group.clone(), self.served.plural.clone()));
        self.hub.take_stock();
    }
}

fn read(object: Raw<'_>) -> Result<Meta, ReadError> {
    match object {
        Raw::Json(text) => {
            let schema = || proto::schema::kind("meta.k8s.io", "v1", "PartialObjectMetadata");
            typed::from_json::<Partial>(schema, text.as_bytes()).map(|o| o.metadata)
        }
        Raw::Protobuf(raw) => wire::read::<Partial>(raw).map(|o| o.metadata),
    }
}

impl Follower for Watched {
    fn path(&self) -> String {
        self.served.path(None)
    }

    fn kind(&self) -> String {
        self.served.kind.clone()
    }

    fn formats(&self) -> Formats {
        Formats { watch: Some(BRIEF_PROTOBUF), list: Some(BRIEF_LIST) }
    }

    fn begin(&self) {
        *self.listing.lock() = Some(Vec::new());
    }

    fn put(&self, object: Raw<'_>) -> Result<String, Broken> {
        let meta = read(object)?;
        let version = meta.resource_version.clone();
        if let Some(listing) = &mut *self.listing.lock() {
            listing.push(meta);
            return Ok(version);
        }
        self.hub.tell(&self.served, &MetadataChange::Applied(meta));
        Ok(version)
    }

    fn remove(&self, object: Raw<'_>) -> Result<String, Broken> {
        let meta = read(object)?;
        let version = meta.resource_version.clone();
        if let Some(listing) = &mut *self.listing.lock() {
            listing.retain(|listed| listed.uid != meta.uid);
        }
        self.hub.tell(&self.served, &MetadataChange::Deleted(meta));
        Ok(version)
    }

    fn listed(&self) {
        if let Some(all) = self.listing.lock().take() {
            self.hub.tell(&self.served, &MetadataChange::Listed(all));
        }
        *self.failing_since.lock() = None;
        self.now_synced();
    }

    fn failed(&self, error: &str) {
        tracing::debug!(resource = %self.served.group_resource(), %error, "metadata list or watch failed");
        let now = clock::instant();
        let since = *self.failing_since.lock().get_or_insert(now);
        if now.saturating_duration_since(since) >= GIVE_UP {
            // One broken resource must not keep everything else from being collected.
            tracing::warn!(resource = %self.served.group_resource(), %error, "going on without its objects");
            self.now_synced();
        }
    }
}

/// A change that left alone all that anybody wants to know of an object: heartbeats and progress do.
fn touched<'a, K: Held>(old: &K, new: &'a K) -> Option<MetadataChange<'a>> {
    let (old, new) = (old.metadata(), new.metadata());
    let same = old.uid() == new.uid()
        && old.owners() == new.owners()
        && old.finalizers() == new.finalizers()
        && old.deleted() == new.deleted();
    same.then(|| MetadataChange::Touched {
        uid: new.uid().unwrap_or_default(),
        version: new.resource_version().unwrap_or_default(),
    })
}

/// Resources that can be listed, watched and deleted; events are not worth watching.
#[must_use]
pub fn collectable(s: &Served) -> bool {
    s.can("list") && s.can("watch") && s.can("delete") && s.plural != "events"
}

fn defines_resources(s: &Served) -> bool {
    matches!(
        (s.group.as_str(), s.plural.as_str()),
        ("apiextensions.k8s.io", "customresourcedefinitions") | ("apiregistration.k8s.io", "apiservices")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_forms_say_the_same() {
        let object = json!({"metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "7", "finalizers": ["f"],
            "deletionTimestamp": "2026-01-02T03:04:05Z", "ownerReferences": [
                {"apiVersion": "v1", "kind": "K", "name": "o", "uid": "ou", "blockOwnerDeletion": true},
                {"apiVersion": "v1", "kind": "K", "name": "p", "uid": "pu"}]}});
        let schema = proto::schema::kind("meta.k8s.io", "v1", "PartialObjectMetadata").expect("a known kind");
        let bytes = proto::protobuf::encode(schema, &object);
        let text = object.to_string();
        let [a, b] = [Raw::Json(&text), Raw::Protobuf(&bytes)].map(|raw| read(raw).expect("metadata"));
        assert_eq!(a, b);
        assert_eq!((&*a.uid, a.owner_references.len(), a.deletion_timestamp.is_some()), ("u", 2, true));
    }
}
