//! The metadata of every object the server has, whatever its kind: what garbage collection and quota live on.
//!
//! Kinds that typed informers cache anyway are fed from those; for all others only metadata is asked of the server,
//! and nothing of it is kept here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{TryStreamExt, pin_mut};
use kube::Resource as _;
use kube::core::WatchEvent;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use shared::informer::{Event, Informer, Text};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::discovery::{Catalogue, Served, discover};
use super::object::{Held, Metadata};
use super::rest::RestError;
use crate::garbage_collector::graph::Owner;

const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const ONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const PAGE: usize = 500;
/// After a change of what is served, changes are gathered this long before discovery runs again.
const SETTLE: Duration = Duration::from_secs(1);
/// Discovery also runs again after this long, for aggregated servers that change without saying so.
const REDISCOVER: Duration = Duration::from_mins(5);
const RETRY: Duration = Duration::from_secs(1);
/// A resource that could not be listed so often is not waited for.
const GIVE_UP: u32 = 5;
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The metadata that matters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name.
    pub name: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Unique id.
    pub uid: String,
    /// Version.
    pub resource_version: String,
    /// Owners.
    pub owner_references: Vec<Owner>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Set when deletion was asked for.
    pub deletion_timestamp: Option<String>,
}

impl Meta {
    fn of(m: &impl Metadata) -> Self {
        let owners = m.owners().iter().map(|r| Owner {
            // All dependents of an owner hold these once.
            api_version: Text::from(r.api_version.as_str()).into(),
            kind: Text::from(r.kind.as_str()).into(),
            name: Text::from(r.name.as_str()).into(),
            uid: Text::from(r.uid.as_str()).into(),
            block_owner_deletion: r.block_owner_deletion,
        });
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        Self {
            name: text(m.name()),
            namespace: text(m.namespace()),
            uid: text(m.uid()),
            resource_version: text(m.resource_version()),
            owner_references: owners.collect(),
            finalizers: m.finalizers().to_vec(),
            deletion_timestamp: m.deleted().map(|t| t.0.to_string()),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Partial {
    #[serde(default)]
    metadata: Meta,
}

#[derive(Debug, Deserialize)]
struct PartialList {
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Partial>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// What happened to objects of a resource.
#[derive(Clone, Debug)]
pub enum Change {
    /// These are all there are.
    Listed(Vec<Meta>),
    /// It appeared or changed.
    Applied(Meta),
    /// It changed in ways that are of no interest: only its version is new.
    Touched { uid: Box<str>, version: Box<str> },
    /// It is gone.
    Deleted(Meta),
    /// The resource is not served any more.
    Withdrawn,
}

type Listener = Box<dyn Fn(&Served, &Change) + Send + Sync>;

#[derive(Default)]
struct Shared {
    listeners: RwLock<Vec<Listener>>,
    catalogue: RwLock<Arc<Catalogue>>,
    /// Resources fed from typed informers.
    typed: Mutex<HashSet<(String, String)>>,
    rediscover: Notify,
    /// How many resources have delivered their first list.
    synced: Mutex<HashSet<(String, String)>>,
    /// Whether anybody needs the metadata of everything.
    wanted: AtomicBool,
}

/// Delivers the metadata of every object to its listeners.
#[derive(Clone, Default)]
pub struct Hub {
    shared: Arc<Shared>,
}

impl Hub {
    /// Hear of every change from now on. Call before [`Hub::start`].
    pub fn listen(&self, listener: impl Fn(&Served, &Change) + Send + Sync + 'static) {
        self.shared.listeners.write().push(Box::new(listener));
    }

    /// What the server serves, as last discovered.
    #[must_use]
    pub fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.shared.catalogue.read())
    }

    /// Ask the server again soon.
    pub fn rediscover(&self) {
        self.shared.rediscover.notify_one();
    }

    /// Whether every resource known at the last discovery has been listed.
    #[must_use]
    pub fn synced(&self) -> bool {
        let catalogue = self.catalogue();
        let (typed, synced) = (self.shared.typed.lock(), self.shared.synced.lock());
        !catalogue.preferred.is_empty()
            && catalogue.preferred.iter().filter(|s| collectable(s)).all(|s| {
                let key = (s.group.clone(), s.plural.clone());
                typed.contains(&key) || synced.contains(&key)
            })
    }

    fn tell(&self, served: &Served, change: &Change) {
        for listener in self.shared.listeners.read().iter() {
            listener(served, change);
        }
        if matches!(change, Change::Applied(_) | Change::Deleted(_)) && defines_resources(served) {
            self.rediscover();
        }
    }

    /// Take the metadata of this kind from an informer.
    pub fn feed<K: Held>(&self, informer: &Informer<K>) {
        let (group, version) = (K::Api::group(&()).into_owned(), K::Api::version(&()).into_owned());
        let served = Served {
            plural: K::Api::plural(&()).into_owned(),
            kind: K::Api::kind(&()).into_owned(),
            namespaced: K::collection_path(Some("n")).contains("/namespaces/"),
            verbs: Vec::new(),
            group,
            version,
        };
        self.shared.typed.lock().insert((served.group.clone(), served.plural.clone()));
        let hub = self.clone();
        informer.add_handler(move |event: &Event<K>| {
            let change = match event {
                Event::Updated { old, new } if same(old.metadata(), new.metadata()) => Change::Touched {
                    uid: new.metadata().uid().unwrap_or_default().into(),
                    version: new.metadata().resource_version().unwrap_or_default().into(),
                },
                Event::Deleted(o) => Change::Deleted(Meta::of(o.metadata())),
                other => Change::Applied(Meta::of(other.object().metadata())),
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
                self.tell(served, &Change::Withdrawn);
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
                tokio::select! {
                    () = hub.watch(&cx2, &served) => {}
                    () = token.cancelled() => {}
                }
            });
        }
    }

    async fn watch(&self, cx: &Context, served: &Served) {
        let mut pause = RETRY;
        let mut failures = 0;
        loop {
            match self.list(cx, served).await {
                Ok(version) => {
                    (pause, failures) = (RETRY, 0);
                    self.shared.synced.lock().insert((served.group.clone(), served.plural.clone()));
                    self.stream(cx, served, version).await;
                }
                Err(error) => {
                    tracing::debug!(resource = %served.group_resource(), %error, "metadata list failed");
                    failures += 1;
                    if failures == GIVE_UP {
                        // One broken resource must not keep everything else from being collected.
                        tracing::warn!(resource = %served.group_resource(), %error, "going on without its objects");
                        self.shared.synced.lock().insert((served.group.clone(), served.plural.clone()));
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    async fn list(&self, cx: &Context, served: &Served) -> Result<String, RestError> {
        let mut all = Vec::new();
        let mut next: Option<String> = None;
        let path = served.path(None);
        loop {
            let token = next.take().map(|n| format!("&continue={n}")).unwrap_or_default();
            let uri = format!("{path}?limit={PAGE}{token}");
            let page: PartialList = cx.main().request(request(&uri, LIST)?).await?;
            all.extend(page.items.into_iter().map(|p| p.metadata));
            next = page.metadata.next.filter(|n| !n.is_empty());
            if next.is_none() {
                all.shrink_to_fit();
                self.tell(served, &Change::Listed(all));
                return Ok(page.metadata.resource_version);
            }
        }
    }

    /// Watch from a version until that is no longer possible.
    async fn stream(&self, cx: &Context, served: &Served, mut version: String) {
        let path = served.path(None);
        let mut failures = 0u32;
        while failures < 3 {
            let timeout = 300 + rand::random_range(0..300);
            let uri = format!(
                "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={timeout}&resourceVersion={version}"
            );
            let Ok(request) = request(&uri, ONE) else { return };
            let stream = match cx.main().request_events::<Partial>(request).await {
                Ok(stream) => stream,
                Err(kube::Error::Api(s)) if s.code == 410 => return,
                Err(_) => {
                    failures += 1;
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            pin_mut!(stream);
            while let Some(event) = stream.try_next().await.transpose() {
                let change = match event {
                    Ok(WatchEvent::Added(o) | WatchEvent::Modified(o)) => Change::Applied(o.metadata),
                    Ok(WatchEvent::Deleted(o)) => Change::Deleted(o.metadata),
                    Ok(WatchEvent::Bookmark(b)) => {
                        version = b.metadata.resource_version;
                        continue;
                    }
                    Ok(WatchEvent::Error(_)) => return,
                    Err(_) => {
                        failures += 1;
                        break;
                    }
                };
                failures = 0;
                if let Change::Applied(m) | Change::Deleted(m) = &change {
                    version.clone_from(&m.resource_version);
                }
                self.tell(served, &change);
            }
        }
    }
}

/// Whether a change left alone all that anybody wants to know of an object: heartbeats and progress do.
fn same<M: Metadata>(old: &M, new: &M) -> bool {
    old.uid() == new.uid()
        && old.owners() == new.owners()
        && old.finalizers() == new.finalizers()
        && old.deleted() == new.deleted()
}

fn request(uri: &str, accept: &str) -> Result<http::Request<Vec<u8>>, RestError> {
    http::Request::get(uri).header(http::header::ACCEPT, accept).body(Vec::new()).map_err(RestError::other)
}

/// Resources that can be listed, watched and deleted; events are not worth watching.
fn collectable(s: &Served) -> bool {
    s.can("list") && s.can("watch") && s.can("delete") && s.plural != "events"
}

fn defines_resources(s: &Served) -> bool {
    matches!(
        (s.group.as_str(), s.plural.as_str()),
        ("apiextensions.k8s.io", "customresourcedefinitions") | ("apiregistration.k8s.io", "apiservices")
    )
}
