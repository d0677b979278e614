//! Context that a controller is started with: caches, an identity, a place for its tasks. Answers for upstream's
//! `ControllerContext`.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use parking_lot::Mutex;
use shared::client::{Fence, Throttle, Transport};
use shared::events::Recorder;
use shared::informer::{Factory, Informer, Object, Scope};
use shared::run::{Shutdown, TaskGroup};
use shared::serve::Debugging;

use super::cloud_provider::Provider;
use super::endpoints::PackedEndpoints;
use super::events::Events;
use super::executor::Executor;
use super::indices::{BY_CLAIM, BY_CONTROLLER, BY_NODE, BY_SERVICE, orphans};
use super::object::Held;
use super::pod::Pod;
use super::pod_reader::PodReader;
use super::rest::{Rest, RestError};
use super::selectors::{BY_LABEL, Selecting, Selectors};
use super::settings::Settings;
use super::slice::{SERVICE_NAME, Slice};
use super::{discovery, metadata, slim, wire};

/// Between two tries to ask a server that does not answer.
const RETRY: Duration = Duration::from_secs(1);

struct ContextInner {
    main: Client,
    own: Transport,
    anonymous: Option<Transport>,
    limits: (f32, u32),
    authority: String,
    /// Resources that group versions serve, once somebody asked.
    served: tokio::sync::Mutex<HashMap<String, Vec<String>>>,
    hub: metadata::Hub,
    tasks: TaskGroup,
    shutdown: Shutdown,
    settings: Settings,
    host: String,
    debugging: Debugging,
    cloud: Option<Arc<dyn Provider>>,
    /// Informers that have been given their transform and indexes.
    prepared: Mutex<HashMap<&'static str, ()>>,
    /// The selectors of each kind.
    selectors: Mutex<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
}

/// Shared by all controllers; cheap to clone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
    factory: Factory,
}

/// The process's connections.
#[derive(Clone)]
pub struct Clients {
    /// Connection under the process's own identity.
    pub main: Transport,
    /// No identity; present when controllers use their own service accounts.
    pub anonymous: Option<Transport>,
    /// Requests per second and at once of each service account; no limit where the first is 0.
    pub limits: (f32, u32),
    /// The authority of the server's certificate as PEM; empty when it is one of the system's.
    pub authority: String,
}

impl Clients {
    /// Returns the clients of one term of leadership.
    #[must_use]
    pub fn fenced(self, fence: &Fence) -> Self {
        Self { main: self.main.fenced(fence), anonymous: self.anonymous.map(|a| a.fenced(fence)), ..self }
    }
}

/// Host and port of the process.
#[derive(Clone, Default)]
pub struct HostPort {
    /// The name of the machine.
    pub host: String,
    /// Pages of the process for debugging.
    pub debugging: Debugging,
    /// The cloud around it, in a build that has one.
    pub cloud: Option<Arc<dyn Provider>>,
}

impl Context {
    /// For one term of leadership, which ends with `shutdown`.
    #[must_use]
    pub fn new(clients: Clients, tasks: TaskGroup, shutdown: Shutdown, settings: Settings, place: HostPort) -> Self {
        let main = clients.main.client();
        let factory = Factory::new(main.clone(), tasks.clone(), shutdown.clone());
        factory.prepare(|nodes: &Informer<Node>| {
            nodes.set_transform(slim::node);
            nodes.read_protobuf(wire::node);
        });
        factory.prepare(|leases: &Informer<Lease>| leases.read_protobuf(wire::read));
        factory.prepare(|slices: &Informer<Slice>| slices.read_protobuf(Slice::read));
        factory.prepare(|endpoints: &Informer<PackedEndpoints>| endpoints.read_protobuf(PackedEndpoints::read));
        let hub = metadata::Hub::default();
        let inner = ContextInner {
            main,
            own: clients.main,
            anonymous: clients.anonymous,
            limits: clients.limits,
            authority: clients.authority,
            served: tokio::sync::Mutex::default(),
            hub,
            tasks,
            shutdown,
            settings,
            host: place.host,
            debugging: place.debugging,
            cloud: place.cloud,
            prepared: Mutex::new(HashMap::new()),
            selectors: Mutex::default(),
        };
        Self { inner: Arc::new(inner), factory }
    }

    /// Context of one controller, which waits for the caches that it asks for here and for no others.
    #[must_use]
    pub fn scoped(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), factory: self.factory.scoped() }
    }

    /// The flags.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Ends with the term of leadership.
    #[must_use]
    pub fn shutdown(&self) -> &Shutdown {
        &self.inner.shutdown
    }

    /// The process's own identity.
    #[must_use]
    pub fn main(&self) -> &Client {
        &self.inner.main
    }

    /// Factory of all informers, which waits for those that were asked for through this context.
    #[must_use]
    pub fn factory(&self) -> &Factory {
        &self.factory
    }

    /// The cloud, in a build that has one.
    #[must_use]
    pub fn cloud(&self) -> Option<Arc<dyn Provider>> {
        self.inner.cloud.clone()
    }

    /// Pages for debugging.
    #[must_use]
    pub fn debugging(&self) -> &Debugging {
        &self.inner.debugging
    }

    /// Metadata of every object.
    #[must_use]
    pub fn hub(&self) -> &metadata::Hub {
        &self.inner.hub
    }

    /// Run a task of this term.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.spawn(name, task);
    }

    /// Run a task that may be dropped wherever it waits, which it is at the end of the term.
    pub fn spawn_until_end(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.spawn_until(&self.inner.shutdown, name, task);
    }

    /// Do something every `period`, once the caches are filled, until the term ends; never where the period is none.
    pub fn every<F, Fut>(&self, name: &'static str, period: Duration, mut work: F)
    where
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        if period.is_zero() {
            return;
        }
        let cx = self.clone();
        self.spawn(name, async move {
            if !cx.factory().wait_synced().await {
                return;
            }
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => work().await,
                    () = cx.shutdown().wait() => return,
                }
            }
        });
    }

    /// Requests as the service account of a controller (or as the process, without
    /// `--use-service-account-credentials`).
    #[must_use]
    pub fn rest(&self, account: &'static str) -> Rest {
        match &self.inner.anonymous {
            Some(anonymous) => {
                let (qps, burst) = self.inner.limits;
                let limited = anonymous.throttled(&Throttle::new(qps, burst));
                Rest::of_account(self.inner.own.clone(), limited, account)
            }
            None => Rest::new(self.inner.own.clone()),
        }
    }

    /// Requests as the process.
    #[must_use]
    pub fn own_rest(&self) -> Rest {
        Rest::new(self.inner.own.clone())
    }

    /// Writes as `account`, with events whose source is `component`.
    #[must_use]
    pub fn executor(&self, account: &'static str, component: &str) -> Executor {
        let i = &self.inner;
        let recorder = Recorder::new(i.main.clone(), &i.tasks, &i.shutdown, component, &i.host);
        Executor { rest: self.rest(account), events: Events::new(recorder) }
    }

    /// Reports whether this is the first call for `name`.
    fn first(&self, name: &'static str) -> bool {
        self.inner.prepared.lock().insert(name, ()).is_none()
    }

    /// The informer of a kind.
    #[must_use]
    pub fn informer<K: Object>(&self) -> Informer<K> {
        self.factory().informer::<K>()
    }

    /// The informer of a kind that not every server serves, or none. Such kinds need no metadata watch besides.
    pub async fn served<K: Object>(&self) -> Result<Option<Informer<K>>, RestError> {
        let (version, plural) = (K::api_version(&()), K::plural(&()));
        if !self.serves(&version, &plural).await? {
            tracing::info!(api_version = %version, resource = %plural, "not served");
            return Ok(None);
        }
        let informer = self.informer::<K>();
        if self.first(std::any::type_name::<K>()) {
            self.hub().feed(&informer);
        }
        Ok(Some(informer))
    }

    /// Reports whether a resource is served. Waits for a server that does not answer yet, or not us.
    async fn serves(&self, api_version: &str, plural: &str) -> Result<bool, RestError> {
        let mut known = self.inner.served.lock().await;
        while !known.contains_key(api_version) {
            match discovery::resources(&self.own_rest(), api_version).await {
                Ok(resources) => drop(known.insert(api_version.to_owned(), resources)),
                Err(error) => {
                    tracing::warn!(api_version, %error, "discovery failed");
                    tokio::select! {
                        () = tokio::time::sleep(RETRY) => {}
                        () = self.shutdown().wait() => return Ok(false),
                    }
                }
            }
        }
        Ok(known.get(api_version).is_some_and(|all| all.iter().any(|r| r == plural)))
    }

    /// The authority of the server's certificate as PEM; empty when it is one of the system's.
    #[must_use]
    pub fn server_authority(&self) -> &str {
        &self.inner.authority
    }

    /// Reports whether a feature gate is on.
    #[must_use]
    pub fn gate(&self, name: &str) -> bool {
        self.settings().gates.enabled(name)
    }

    /// An informer of part of a kind.
    #[must_use]
    pub fn informer_in<K: Object>(&self, scope: Scope) -> Informer<K> {
        self.factory().informer_in::<K>(scope)
    }

    /// The informer of a kind that has owners, indexed by controller.
    #[must_use]
    pub fn owned<K: Held>(&self) -> Informer<K> {
        let informer = self.factory().informer::<K>();
        let tag = std::any::type_name::<(K,)>();
        if self.first(tag) {
            fn uid<K: Held>(object: &K) -> Option<&str> {
                super::object::controller_of(object.metadata()).map(|r| r.uid.as_str())
            }
            let unmoved = |old: &K, new: &K| uid(old) == uid(new);
            informer.add_index_unless(BY_CONTROLLER, unmoved, |object: &K| {
                let meta = object.metadata();
                vec![match super::object::controller_of(meta) {
                    Some(r) => r.uid.clone(),
                    None => orphans(super::object::namespace(meta)),
                }]
            });
        }
        informer
    }

    /// The selectors of a kind, to ask which of them pick an object.
    #[must_use]
    pub fn selectors<K: Selecting>(&self) -> Arc<Selectors<K>> {
        let informer = self.informer::<K>();
        let mut all = self.inner.selectors.lock();
        let known = all.get(&TypeId::of::<K>()).and_then(|any| any.downcast_ref::<Arc<Selectors<K>>>());
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let made = Selectors::follow(&informer);
        all.insert(TypeId::of::<K>(), Box::new(Arc::clone(&made)));
        made
    }

    /// Pods: without what no controller reads, indexed by controller, by node and by their labels.
    #[must_use]
    pub fn pods(&self) -> Informer<Pod> {
        let informer = self.owned::<Pod>();
        if self.first("pods") {
            informer.set_transform(super::pod::slim);
            let reader = Mutex::new(PodReader::default());
            informer.read_protobuf(move |raw| reader.lock().read(raw));
            informer.add_index_unless(BY_LABEL, same_labels, |pod: &Pod| super::selectors::entries(&pod.metadata));
            let unmoved = |old: &Pod, new: &Pod| super::pods::node(old) == super::pods::node(new);
            informer.add_index_unless(BY_NODE, unmoved, |pod: &Pod| {
                let node = super::pods::node(pod);
                if node.is_empty() { Vec::new() } else { vec![node.to_owned()] }
            });
            // The volumes of a pod never change.
            let same_pod = |old: &Pod, new: &Pod| old.metadata.uid == new.metadata.uid;
            informer.add_index_unless(BY_CLAIM, same_pod, super::pods::claim_keys);
        }
        informer
    }

    /// Endpoints.
    #[must_use]
    pub fn endpoints(&self) -> Informer<PackedEndpoints> {
        self.factory().informer()
    }

    /// Endpoint slices, indexed by service.
    #[must_use]
    pub fn slices(&self) -> Informer<Slice> {
        let informer = self.factory().informer::<Slice>();
        if self.first("slices") {
            fn service(slice: &Slice) -> Option<&str> {
                slice.meta().label(SERVICE_NAME)
            }
            let unmoved = |old: &Slice, new: &Slice| old.meta().labelled_as(new.meta()) || service(old) == service(new);
            informer.add_index_unless(BY_SERVICE, unmoved, |slice: &Slice| {
                service(slice).map(|s| format!("{}/{s}", slice.meta().namespace())).into_iter().collect()
            });
        }
        informer
    }
}

/// Both versions of a pod hold their labels in common, as long as those do not change.
fn same_labels(old: &Pod, new: &Pod) -> bool {
    match (&old.metadata.labels, &new.metadata.labels) {
        (Some(old), Some(new)) => old.is(new),
        _ => false,
    }
}
