//! EndpointSlices of services with a selector. Answers for upstream's `pkg/controller/endpointslice`.

pub mod draft;
pub mod plan;
pub mod report;
pub mod topology;
pub mod tracker;
pub mod write;

use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Service};
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::status::field::aggregate;
use shared::workqueue::Queue;

use self::plan::{CONTROLLER, Plan, Snapshot};
use self::report::{Distributions, Names, Report};
use self::topology::{Served, Zones};
use self::tracker::Tracker;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::indices::{BY_NODE, BY_SERVICE};
use crate::engine::metrics;
use crate::engine::nodes;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::pod::Pod;
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::selectors::Selectors;
use crate::engine::services::{self, Triggers};
use crate::engine::slice::{MANAGED_BY, Slice};
use crate::engine::worker::{self, Synced};

/// A stale cache is looked at again after this long, should its watch event be lost.
const STALE_RETRY: Duration = Duration::from_secs(1);

const CHANGED: &str = "endpoint_slice_controller_endpointslices_changed_per_sync";
const NAMES: Names = Names {
    added: "endpoint_slice_controller_endpoints_added_per_sync",
    removed: "endpoint_slice_controller_endpoints_removed_per_sync",
    endpoints: "endpoint_slice_controller_endpoints_desired",
    slices: "endpoint_slice_controller_num_endpoint_slices",
    packed: "endpoint_slice_controller_desired_endpoint_slices",
};

struct Slices {
    executor: Executor,
    services: Store<Service>,
    selectors: Arc<Selectors<Service>>,
    pods: Store<Pod>,
    nodes: Store<Node>,
    slices: Store<Slice>,
    tracker: Tracker,
    triggers: Mutex<Triggers>,
    report: Mutex<Report>,
    distributions: Mutex<Distributions>,
    /// Services that were given hints by topology.
    hinted: Mutex<HashMap<Key, Hinted>>,
    max_per_slice: usize,
    /// The zones as last looked at; taken away when a node changes.
    zones: Mutex<Option<Zones>>,
}

/// State of the hints of a service.
struct Hinted {
    /// An event told of the hints.
    told: bool,
    /// By address family.
    served: Vec<Served>,
}

/// Reasons why a sync failed.
enum SyncFailure {
    /// The cache lags behind what was written.
    Stale,
    Failed(RestError),
}

/// Wire the endpointslice controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (services, pods, nodes) = (cx.informer::<Service>(), cx.pods(), cx.informer::<Node>());
        let slices = cx.slices();
        let queue: Queue<Key> =
            Queue::with_backoff("endpoint_slice", Duration::from_secs(1), Duration::from_secs(1000));
        let this = Arc::new(Slices {
            executor: cx.executor("endpointslice-controller", "endpoint-slice-controller"),
            services: services.store(),
            selectors: cx.selectors(),
            pods: pods.store(),
            nodes: nodes.store(),
            slices: slices.store(),
            tracker: Tracker::default(),
            triggers: Mutex::default(),
            report: Mutex::new(Report::new(&NAMES)),
            distributions: Mutex::default(),
            hinted: Mutex::default(),
            max_per_slice: cx.settings().max_endpoints_per_slice,
            zones: Mutex::default(),
        });
        owned::watch(&services, &queue);
        services::watch_pods(&pods, cx.selectors(), queue.clone(), cx.settings().endpointslice_batch);
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        slices.add_handler(move |event: &Event<Slice>| {
            for key in watcher.tracker.concerned(event, CONTROLLER) {
                wake.add(key);
            }
        });
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        nodes.add_handler(move |event: &Event<Node>| {
            // Endpoints wait for their node, and take its zone.
            let zone = |n: &Node| object::label(&n.metadata, nodes::ZONE).map(str::to_owned);
            let matters = match event {
                Event::Updated { old, new } => zone(old) != zone(new),
                _ => true,
            };
            let moved = match event {
                Event::Updated { old, new } => topology::moved(old, new),
                _ => true,
            };
            if moved {
                *watcher.zones.lock() = None;
                // Hints that a zone can live with stay.
                watcher.overloaded().into_iter().for_each(|key| wake.add(key));
            }
            if matters {
                for key in watcher.services_on(object::name(&event.object().metadata)) {
                    wake.add(key);
                }
            }
        });
        worker::run(cx, "endpointslice", cx.settings().workers.endpointslice, &queue, &this, |s, key| async move {
            s.sync(&key).await
        });
        Ok(Started::Yes)
    })
}

impl Slices {
    fn zones(&self) -> Zones {
        self.zones.lock().get_or_insert_with(|| Zones::of(&self.nodes.list())).clone()
    }

    /// Services whose hints leave a zone with too little.
    fn overloaded(&self) -> Vec<Key> {
        let hinted = self.hinted.lock();
        if hinted.is_empty() {
            return Vec::new();
        }
        let zones = self.zones();
        let overloaded = hinted.iter().filter(|(_, h)| h.served.iter().any(|s| topology::overloaded(s, &zones)));
        overloaded.map(|(key, _)| key.clone()).collect()
    }

    fn services_on(&self, node: &str) -> Vec<Key> {
        let pods = self.pods.by_index(BY_NODE, node);
        let mut keys: Vec<Key> = pods
            .iter()
            .flat_map(|p| {
                let labels = p.metadata.labels.as_deref();
                let mut found = self.selectors.candidates(object::namespace(&p.metadata), labels);
                found.retain(|s| object::matches_map(s.spec.as_ref().and_then(|x| x.selector.as_ref()), labels));
                found.into_iter().map(|s| Key::of(&s.metadata))
            })
            .collect();
        keys.sort();
        keys.dedup();
        keys
    }

    async fn sync(&self, key: &Key) -> Synced {
        let (result, synced) = match self.reconcile(key).await {
            Ok(()) => ("success", Ok(self.tracker.missed(key).then_some(Duration::ZERO))),
            Err(SyncFailure::Stale) => ("stale", Ok(Some(STALE_RETRY))),
            Err(SyncFailure::Failed(e)) => ("error", Err(e)),
        };
        metrics::count("endpoint_slice_controller_syncs", &[result]);
        synced
    }

    async fn reconcile(&self, key: &Key) -> Result<(), SyncFailure> {
        let Some(service) = self.services.get(&key.namespace, &key.name) else {
            // The slices go by garbage collection.
            self.triggers.lock().forget(key);
            self.tracker.forget(key);
            self.report.lock().forget(key);
            self.distributions.lock().note(key, None);
            self.hinted.lock().remove(key);
            return Ok(());
        };
        if services::selecting(&service).is_none() {
            return Ok(());
        }
        let mut slices = self.slices.by_index(BY_SERVICE, &key.to_string());
        slices.retain(|s| s.meta().label(MANAGED_BY) == Some(CONTROLLER));
        slices.sort_by(|a, b| a.meta().name().cmp(b.meta().name()));
        if self.tracker.stale(key, &slices, clock::instant()) {
            return Err(SyncFailure::Stale);
        }
        let snapshot = self.snapshot(key, service, slices);
        let Plan { writes, hinted, served, lost } = plan::plan(&snapshot);
        self.remember_hints(key, Hinted { told: hinted, served });
        write::count("endpoint_slice_controller_changes", &writes);
        let sync = report::read(&snapshot.slices, &writes, self.max_per_slice);
        let mut failed = Vec::new();
        for writes in write::by_family(writes) {
            failed.extend(write::carry_out(&self.executor, &self.tracker, key, writes).await.err());
        }
        if failed.is_empty() {
            self.note(key, &snapshot, &sync);
        }
        failed.retain(|f| !f.for_good());
        let lost =
            lost.iter().map(|(pod, node)| format!("skipping Pod {pod} for Service {key}: Node {node} Not Found"));
        let why = failed.iter().map(|f| format!("failed to {} for Service {key}: {}", f.what, f.error));
        let errors: Vec<String> = lost.chain(why).collect();
        if errors.is_empty() {
            return Ok(());
        }
        let text = aggregate(&errors);
        let about = object::reference::<Service>(&snapshot.service.metadata);
        let event = format!("Error updating Endpoint Slices for Service {key}: {text}");
        self.executor.events.say(&about, true, "FailedToUpdateEndpointSlices", event);
        Err(SyncFailure::Failed(failed.into_iter().next().map_or_else(|| RestError::other(text), |f| f.error)))
    }

    /// Gathers the inputs of the plan for a service.
    fn snapshot(&self, key: &Key, service: Arc<Service>, slices: Vec<Arc<Slice>>) -> Snapshot {
        let pods = services::behind(&self.pods, &service);
        let trigger = self.triggers.lock().next(key, &service, &pods);
        let mut nodes: HashMap<String, Arc<Node>> = HashMap::default();
        for name in pods.iter().map(|p| pods::node(p)) {
            if !nodes.contains_key(name)
                && let Some(node) = self.nodes.get("", name)
            {
                nodes.insert(name.to_owned(), node);
            }
        }
        let zones = topology::wanted(&service).then(|| self.zones());
        let hinted = self.hinted.lock().get(key).is_some_and(|h| h.told);
        Snapshot { service, pods, nodes, slices, max_per_slice: self.max_per_slice, trigger, zones, hinted }
    }

    /// Count what has been written.
    fn note(&self, key: &Key, snapshot: &Snapshot, sync: &report::Sync) {
        let topology = snapshot.zones.is_some();
        let wish = snapshot.service.spec.as_ref().and_then(|s| s.traffic_distribution.as_deref());
        let wish = wish.filter(|w| draft::DISTRIBUTIONS.contains(w) && !topology);
        let labels = [if topology { "Auto" } else { "Disabled" }, wish.unwrap_or_default()];
        metrics::observe(CHANGED, &labels, metrics::float(sync.changed));
        self.report.lock().synced(key, sync);
        self.distributions.lock().note(key, wish);
    }

    fn remember_hints(&self, key: &Key, hinted: Hinted) {
        let mut all = self.hinted.lock();
        if hinted.told || !hinted.served.is_empty() {
            all.insert(key.clone(), hinted);
        } else {
            all.remove(key);
        }
    }
}
