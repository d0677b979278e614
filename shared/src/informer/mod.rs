//! Informers: a local, indexed copy of one kind of object, kept current by one WATCH, with handlers that are told
//! about every change. The initial list is streamed (`sendInitialEvents`), so nothing is buffered twice; a server
//! without that feature is listed in pages. Answers for client-go's `tools/cache`.
//!
//! Objects are shared as `Arc`s and must never be copied into other caches. Handlers run on the watch task: they
//! enqueue keys and return, they never block and never call the API.

mod follow;
mod frames;
mod intern;
mod outages;
mod reflector;
mod store;
#[cfg(test)]
mod tests;
mod unreadable;

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foldhash::{HashMap, HashSet};
use kube::Client;
use kube::core::Request;
use parking_lot::Mutex;
use proto::schema::Message;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::run::{self, Shutdown, TaskGroup};
use crate::typed::{self, ReadError};

pub use follow::{Follower, follow};
pub use frames::{Broken, Raw};
pub use intern::{Interned, Memo, Signature, Text};
use outages::Outages;
pub use reflector::Formats;
use reflector::{Cache, Listed, Reflector, Revision};
use store::Key;
pub use store::{Feed, Store};
pub use unreadable::Unreadable;

/// Type that an informer can hold: an API object, or a reduced form decoded from it. The latter is for those who hold
/// very many objects and need little of each.
pub trait Cached: Clone + DeserializeOwned + Debug + Send + Sync + 'static {
    /// The kind, for logs.
    fn kind_name() -> Cow<'static, str>;
    /// Path of the collection, in one namespace or all.
    fn collection_path(namespace: Option<&str>) -> String;
    /// Namespace (empty at cluster scope) and name.
    fn cache_key(&self) -> (&str, &str);
    /// The version of the object.
    fn cache_version(&self) -> Option<&str>;
    /// The schema of the API object that is read, for members that only Go's decoder takes.
    fn schema() -> Option<&'static Message>;
    /// Drops managed fields.
    fn forget_managers(&mut self) {}
}

/// A typed API object that an informer can hold.
pub trait Object: kube::Resource<DynamicType = ()> + Cached {}
impl<K: kube::Resource<DynamicType = ()> + Cached> Object for K {}

impl<K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static> Cached for K {
    fn kind_name() -> Cow<'static, str> {
        K::kind(&())
    }

    fn collection_path(namespace: Option<&str>) -> String {
        K::url_path(&(), namespace)
    }

    fn cache_key(&self) -> (&str, &str) {
        let meta = self.meta();
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }

    fn cache_version(&self) -> Option<&str> {
        self.meta().resource_version.as_deref()
    }

    fn schema() -> Option<&'static Message> {
        proto::schema::kind(&K::group(&()), &K::version(&()), &K::kind(&()))
    }

    fn forget_managers(&mut self) {
        self.meta_mut().managed_fields = None;
    }
}

/// One change of the store, already applied when a handler sees it.
#[derive(Debug)]
pub enum Event<K> {
    /// The object is new here.
    Added(Arc<K>),
    /// The object changed.
    Updated {
        /// Object before the update.
        old: Arc<K>,
        /// Object after the update.
        new: Arc<K>,
    },
    /// The object is gone; this is the last state that was seen.
    Deleted(Arc<K>),
}

impl<K> Event<K> {
    /// The object as it is now, or last was.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted(object) => object,
        }
    }
}

/// Selection of an informer; the default is all objects of the kind.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
}

type Handler<K> = Box<dyn Fn(&Event<K>) + Send + Sync>;
type Transform<K> = Box<dyn Fn(&mut K) + Send + Sync>;
type FromProtobuf<K> = Box<dyn Fn(&[u8]) -> Result<K, ReadError> + Send + Sync>;

struct Inner<K> {
    store: Store<K>,
    scope: Scope,
    /// Held while events are delivered, so that a handler added late sees each object exactly once.
    handlers: Mutex<Vec<Handler<K>>>,
    transform: Mutex<Option<Transform<K>>>,
    from_protobuf: OnceLock<FromProtobuf<K>>,
    started: AtomicBool,
    synced: watch::Sender<bool>,
    outages: Mutex<Outages>,
}

/// A cloneable handle on one list-watch cache.
pub struct Informer<K>(Arc<Inner<K>>);

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Cached> Informer<K> {
    fn new(scope: Scope) -> Self {
        Self(Arc::new(Inner {
            store: Store::default(),
            scope,
            handlers: Mutex::new(Vec::new()),
            transform: Mutex::new(None),
            from_protobuf: OnceLock::new(),
            started: AtomicBool::new(false),
            synced: watch::Sender::new(false),
            outages: Mutex::default(),
        }))
    }

    /// The objects.
    pub fn store(&self) -> Store<K> {
        self.0.store.clone()
    }

    /// Objects that are there and cannot be decoded. The store has their last state that could be, or nothing.
    pub fn unreadable(&self) -> &Unreadable {
        self.0.store.unreadable()
    }

    /// Calls `handler` for every change from now on, after an `Added` for each object already here. A handler must
    /// not add handlers to the same informer.
    pub fn add_handler(&self, handler: impl Fn(&Event<K>) + Send + Sync + 'static) {
        let mut handlers = self.0.handlers.lock();
        for object in self.0.store.list() {
            tell(&handler, &Event::Added(object));
        }
        handlers.push(Box::new(handler));
    }

    /// Adds an index; `keys` gives the values an object is found under.
    pub fn add_index(&self, name: &'static str, keys: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        self.add_index_unless(name, |_, _| false, keys);
    }

    /// [`Self::add_index`] for kinds that change often: `unmoved` sees without making the values that they are the same
    /// for both versions of an object. It may say no wherever that takes long.
    pub fn add_index_unless(
        &self,
        name: &'static str,
        unmoved: impl Fn(&K, &K) -> bool + Send + Sync + 'static,
        keys: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) {
        self.0.store.add_index(name, Box::new(keys), Box::new(unmoved));
    }

    /// Tells `observer` of every change of the store while it is made, after each object already here: the object before
    /// it, and after it. What it counts agrees with what readers of the store find, who see nothing in between. It must be
    /// quick and must not ask the store.
    pub fn add_observer(&self, observer: impl Fn(Option<&K>, Option<&K>) + Send + Sync + 'static) {
        self.0.store.add_observer(Box::new(observer));
    }

    /// Drops what nobody reads before an object is stored. Managed fields are dropped always. Of several
    /// transforms the last set counts, so only the component's start-up code sets them.
    pub fn set_transform(&self, transform: impl Fn(&mut K) + Send + Sync + 'static) {
        *self.0.transform.lock() = Some(Box::new(transform));
    }

    /// Watches in protobuf, and has `read` make objects from it (without its envelope); what it makes is stored as it is,
    /// without a transform. For kinds of which there are very many. Lists in pages stay JSON.
    pub fn read_protobuf(&self, read: impl Fn(&[u8]) -> Result<K, ReadError> + Send + Sync + 'static) {
        // The first counts: it may be in use already.
        let _ = self.0.from_protobuf.set(Box::new(read));
    }

    /// True once the initial list is in the store and was delivered.
    pub fn has_synced(&self) -> bool {
        *self.0.synced.borrow()
    }

    /// Time, in all, for which lists and watches failed, so that the store was behind the server. Who takes silence
    /// about an object for a sign leaves it out.
    pub fn disconnected_for(&self) -> Duration {
        self.0.outages.lock().total(Instant::now())
    }

    /// Waits until [`Informer::has_synced`].
    pub async fn synced(&self) {
        let mut synced = self.0.synced.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = synced.wait_for(|done| *done).await;
    }
}

impl<K: Cached> Cache for Informer<K> {
    fn request(&self) -> Request {
        Request::new(K::collection_path(self.0.scope.namespace.as_deref()))
    }

    fn kind(&self) -> String {
        K::kind_name().into_owned()
    }

    fn scope(&self) -> &Scope {
        &self.0.scope
    }

    fn revision(&self) -> String {
        self.0.store.resource_version()
    }

    fn formats(&self) -> Formats {
        const BOTH: &str = "application/vnd.kubernetes.protobuf, application/json";
        Formats { watch: self.0.from_protobuf.get().map(|_| BOTH), list: None }
    }

    fn is_empty(&self) -> bool {
        self.0.store.is_empty()
    }

    fn connected(&self) {
        self.0.outages.lock().end(Instant::now());
    }

    fn disconnected(&self) {
        self.0.outages.lock().begin(Instant::now());
    }

    fn put(&self, object: Raw<'_>, listed: Listed<'_>) -> Result<Revision, Broken> {
        let object = match self.read(object) {
            Ok(object) => object,
            Err(why) => return self.keep_last_state(object, listed, why),
        };
        let revision = object.cache_version().map(str::to_owned);
        self.0.store.unreadable().remove(object.cache_key());
        if let Some(listed) = listed {
            listed.insert(store::key(&object));
        }
        let handlers = self.0.handlers.lock();
        if let Some(event) = self.0.store.put(object) {
            handlers.iter().for_each(|handler| tell(handler, &event));
        }
        Ok(revision)
    }

    fn remove(&self, object: Raw<'_>, listed: Listed<'_>) -> Result<Revision, Broken> {
        let (key, revision, last) = match self.read(object) {
            Ok(last) => (store::key(&last), last.cache_version().map(str::to_owned), Some(last)),
            // It is gone whatever it was: its last state that could be read is the last one.
            Err(why) => {
                let gone = object.identity().ok_or(why)?;
                ((gone.namespace, gone.name), Some(gone.resource_version), None)
            }
        };
        if let Some(listed) = listed {
            listed.remove(&key);
        }
        self.0.store.unreadable().remove((&key.0, &key.1));
        self.drop_object(&key, last);
        Ok(revision)
    }

    fn finish_list(&self, seen: Option<&HashSet<Key>>, revision: String) {
        if let Some(seen) = seen {
            self.0.store.unreadable().retain(seen);
            for key in self.0.store.keys() {
                if !seen.contains(&key) {
                    self.drop_object(&key, None);
                }
            }
        }
        self.advance(revision);
        self.0.synced.send_replace(true);
    }

    fn advance(&self, revision: String) {
        if !revision.is_empty() {
            self.0.store.set_resource_version(revision);
        }
    }

    fn first_start(&self) -> bool {
        !self.0.started.swap(true, Ordering::AcqRel)
    }

    fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.synced.subscribe()
    }
}

/// Tells a handler of an event. One that panics has not heard of this event; it is told of the next, and so are others.
fn tell<K: Cached>(handler: &impl Fn(&Event<K>), event: &Event<K>) {
    if let Err(panic) = run::contained(|| handler(event)) {
        let key = event.object().cache_key();
        tracing::error!(kind = %K::kind_name(), ?key, %panic, "Observed a panic in an event handler");
    }
}

impl<K: Cached> Informer<K> {
    fn read(&self, object: Raw<'_>) -> Result<K, Broken> {
        let mut object: K = match (object, self.0.from_protobuf.get()) {
            (Raw::Protobuf(raw), Some(read)) => match read(raw) {
                Ok(object) => return Ok(object),
                Err(why) => typed::from_protobuf(K::schema().ok_or(why)?, raw)?,
            },
            (Raw::Protobuf(_), None) => return Err(Broken::Protobuf),
            (Raw::Json(text), _) => typed::from_json(K::schema, text.as_bytes())?,
        };
        object.forget_managers();
        if let Some(transform) = &*self.0.transform.lock() {
            run::contained(|| transform(&mut object)).map_err(Broken::Transform)?;
        }
        Ok(object)
    }

    /// Notes an object that cannot be read. It counts as listed, and the store keeps the state that it had.
    fn keep_last_state(&self, object: Raw<'_>, listed: Listed<'_>, why: Broken) -> Result<Revision, Broken> {
        let Some(identity) = object.identity() else { return Err(why) };
        let revision = identity.resource_version.clone();
        if let Some(listed) = listed {
            listed.insert((identity.namespace.clone(), identity.name.clone()));
        }
        self.0.store.unreadable().insert(&K::kind_name(), identity, &why.to_string());
        Ok(Some(revision))
    }

    fn drop_object(&self, key: &Key, last: Option<K>) {
        let handlers = self.0.handlers.lock();
        if let Some(event) = self.0.store.remove(key, last) {
            handlers.iter().for_each(|handler| tell(handler, &event));
        }
    }
}

impl Made {
    fn informer<K: Cached>(&mut self, scope: Scope) -> Informer<K> {
        let informer = Informer::new(scope);
        if let Some(prepare) = self.prepare.get(&TypeId::of::<K>()) {
            prepare(&informer);
        }
        self.all.push(Arc::new(informer.clone()));
        informer
    }
}

/// Makes informers, one per kind, shared by everybody in the process.
#[derive(Clone)]
pub struct Factory {
    client: Client,
    tasks: TaskGroup,
    shutdown: Shutdown,
    made: Arc<Mutex<Made>>,
    /// Informers that were asked for through this handle and its clones; none for the handle that waits for all.
    asked: Option<Arc<Mutex<Vec<watch::Receiver<bool>>>>>,
}

type Prepare = Box<dyn Fn(&dyn Any) + Send + Sync>;

#[derive(Default)]
struct Made {
    /// Transforms to install on a new informer, by kind.
    prepare: HashMap<TypeId, Prepare>,
    shared: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
    all: Vec<Arc<dyn Cache>>,
}

impl Factory {
    /// A factory whose informers use `client` and end at `shutdown`.
    pub fn new(client: Client, tasks: TaskGroup, shutdown: Shutdown) -> Self {
        Self { client, tasks, shutdown, made: Arc::default(), asked: None }
    }

    /// A handle on the same informers that waits for those alone that are asked for through it or its clones: what
    /// others need and cannot list holds up nothing here.
    #[must_use]
    pub fn scoped(&self) -> Self {
        Self { asked: Some(Arc::default()), ..self.clone() }
    }

    fn note<K: Cached>(&self, informer: Informer<K>) -> Informer<K> {
        if let Some(asked) = &self.asked {
            asked.lock().push(informer.subscribe());
        }
        informer
    }

    /// The shared informer of all objects of `K`.
    pub fn informer<K: Cached>(&self) -> Informer<K> {
        let mut made = self.made.lock();
        let known = made.shared.get(&TypeId::of::<K>()).and_then(|any| any.downcast_ref::<Informer<K>>());
        if let Some(informer) = known {
            return self.note(informer.clone());
        }
        let informer = made.informer(Scope::default());
        made.shared.insert(TypeId::of::<K>(), Box::new(informer.clone()));
        self.note(informer)
    }

    /// Has this done to every informer of `K` that is made from now on: how objects of the kind are read and held.
    pub fn prepare<K: Cached>(&self, with: impl Fn(&Informer<K>) + Send + Sync + 'static) {
        let prepare: Prepare = Box::new(move |made| made.downcast_ref::<Informer<K>>().into_iter().for_each(&with));
        self.made.lock().prepare.insert(TypeId::of::<K>(), prepare);
    }

    /// An informer of its own for a part of the objects of `K`.
    pub fn informer_in<K: Cached>(&self, scope: Scope) -> Informer<K> {
        self.note(self.made.lock().informer(scope))
    }

    /// Starts every informer that was asked for and does not run yet.
    pub fn start(&self) {
        for cache in self.made.lock().all.iter().filter(|cache| cache.first_start()) {
            let reflector = Reflector::new(Arc::clone(cache), self.client.clone(), self.shutdown.clone());
            self.tasks.spawn("informer", reflector.run());
        }
    }

    /// Waits until all informers have synced, or those of this [scope](Self::scoped); also those that are asked for while
    /// it waits. False when the process is asked to end first.
    pub async fn wait_synced(&self) -> bool {
        for place in 0.. {
            let Some(mut synced) = self.waited_for(place) else { break };
            tokio::select! {
                // Fails only when the informer is gone, and then nobody waits for it.
                _ = synced.wait_for(|done| *done) => {}
                () = self.shutdown.wait() => return false,
            }
        }
        true
    }

    fn waited_for(&self, place: usize) -> Option<watch::Receiver<bool>> {
        match &self.asked {
            Some(asked) => asked.lock().get(place).cloned(),
            None => self.made.lock().all.get(place).map(|cache| cache.subscribe()),
        }
    }
}
