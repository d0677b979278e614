//! Mirrors Endpoints of services without a selector into EndpointSlices. Answers for upstream's
//! `pkg/controller/endpointslicemirroring`.
//!
//! In: Endpoints, services, slices. Out: slices made, updated and deleted beside each Endpoints object that somebody
//! maintains by hand; [`plan`] decides. Slices of other managers are left alone.

pub mod plan;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::plan::{CONTROLLER, Mirrored};
use crate::endpointslice::report::{self, Names, Report};
use crate::endpointslice::tracker::Tracker;
use crate::endpointslice::write;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::endpoints::PackedEndpoints;
use crate::engine::executor::Executor;
use crate::engine::indices::BY_SERVICE;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::slice::{MANAGED_BY, Slice};
use crate::engine::worker::{self, Synced};

const STALE_RETRY: Duration = Duration::from_secs(1);
const UPDATED: &str = "endpoint_slice_mirroring_controller_endpoints_updated_per_sync";
const SKIPPED: &str = "endpoint_slice_mirroring_controller_addresses_skipped_per_sync";
const NAMES: Names = Names {
    added: "endpoint_slice_mirroring_controller_endpoints_added_per_sync",
    removed: "endpoint_slice_mirroring_controller_endpoints_removed_per_sync",
    endpoints: "endpoint_slice_mirroring_controller_endpoints_desired",
    slices: "endpoint_slice_mirroring_controller_num_endpoint_slices",
    packed: "endpoint_slice_mirroring_controller_desired_endpoint_slices",
};

struct Mirror {
    executor: Executor,
    endpoints: Store<PackedEndpoints>,
    services: Store<Service>,
    slices: Store<Slice>,
    tracker: Tracker,
    report: Mutex<Report>,
    limit: usize,
}

/// Wire endpoint slice mirroring.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (endpoints, services, slices) = (cx.endpoints(), cx.informer::<Service>(), cx.slices());
        let (base, most) = (Duration::from_secs(1), Duration::from_secs(100));
        let queue: Queue<Key> = Queue::with_backoff("endpoint_slice_mirroring", base, most);
        let this = Arc::new(Mirror {
            executor: cx.executor("endpointslicemirroring-controller", "endpoint-slice-mirroring-controller"),
            endpoints: endpoints.store(),
            services: services.store(),
            slices: slices.store(),
            tracker: Tracker::default(),
            report: Mutex::new(Report::new(&NAMES)),
            limit: cx.settings().mirroring_max_endpoints,
        });
        let (wake, batch, known) = (queue.clone(), cx.settings().mirroring_batch, services.store());
        endpoints.add_handler(move |event: &Event<PackedEndpoints>| {
            let meta = event.object().meta();
            // Most are another controller's. Should their service lose its selector, that wakes them.
            let service = known.get(meta.namespace(), meta.name());
            if service.is_some_and(|s| plan::selects(&s)) {
                return;
            }
            let key = Key::new(meta.namespace(), meta.name());
            if batch.is_zero() { wake.add(key) } else { wake.add_after(key, batch) }
        });
        owned::watch(&services, &queue);
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        slices.add_handler(move |event: &Event<Slice>| {
            for key in watcher.tracker.concerned(event, CONTROLLER) {
                wake.add(key);
            }
        });
        worker::run(
            cx,
            "endpointslice-mirroring",
            cx.settings().workers.mirroring,
            &queue,
            &this,
            |s, key| async move { s.sync(&key).await },
        );
        Ok(Started::Yes)
    })
}

impl Mirror {
    /// The endpoints of a service that are to be mirrored.
    fn by_hand(&self, key: &Key, service: &Service) -> Option<Endpoints> {
        if plan::selects(service) {
            return None;
        }
        let endpoints = self.endpoints.get(&key.namespace, &key.name)?;
        endpoints.typed().ok().filter(|e| plan::wanted(e, service))
    }

    async fn sync(&self, key: &Key) -> Synced {
        let service = self.services.get(&key.namespace, &key.name);
        if self.services.unreadable().contains(&key.namespace, &key.name)
            || self.endpoints.unreadable().contains(&key.namespace, &key.name)
        {
            // What cannot be read keeps the slices that it has.
            return Ok(None);
        }
        let endpoints = service.as_deref().and_then(|service| self.by_hand(key, service));
        let mut slices = self.slices.by_index(BY_SERVICE, &key.to_string());
        slices.retain(|s| s.meta().label(MANAGED_BY) == Some(CONTROLLER) && !s.meta().deleting());
        slices.sort_by(|a, b| a.meta().name().cmp(b.meta().name()));
        if endpoints.is_none() && slices.is_empty() {
            self.tracker.forget(key);
            self.report.lock().forget(key);
            return Ok(None);
        }
        if self.tracker.stale(key, &slices, clock::instant()) {
            return Ok(Some(STALE_RETRY));
        }
        let began = clock::instant();
        let mirrored = endpoints.as_ref().map(|e| (e, plan::mirror(e, self.limit)));
        let skipped = mirrored.as_ref().map_or(0, |(_, m)| m.skipped);
        if let Some((endpoints, mirrored)) = &mirrored {
            self.complain(endpoints, mirrored);
        }
        let writes = plan::plan(mirrored, &slices);
        write::count("endpoint_slice_mirroring_controller_changes", &writes);
        let sync = report::read(&slices, &writes, self.limit);
        let written = write::carry_out(&self.executor, &self.tracker, key, writes).await;
        if written.is_ok() {
            self.report.lock().synced(key, &sync);
            metrics::observe(UPDATED, &[], metrics::float(sync.updated));
            metrics::observe(SKIPPED, &[], metrics::float(skipped));
        }
        let took = clock::instant().saturating_duration_since(began);
        metrics::observe("endpoint_slice_mirroring_controller_endpoints_sync_duration", &[], took.as_secs_f64());
        match written {
            Err(f) if !f.for_good() => Err(f.error),
            _ => Ok(self.tracker.missed(key).then_some(Duration::ZERO)),
        }
    }

    /// Tell of addresses that are not mirrored.
    fn complain(&self, endpoints: &Endpoints, &Mirrored { skipped, invalid, .. }: &Mirrored) {
        let about = object::reference::<Endpoints>(&endpoints.metadata);
        if invalid > 0 {
            let text = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
            self.executor.events.say(&about, true, "InvalidIPAddress", text);
        }
        if skipped > invalid {
            let limit = self.limit;
            let text = format!(
                "A max of {limit} addresses can be mirrored to EndpointSlices per Endpoints subset. \
                 {skipped} addresses were skipped"
            );
            self.executor.events.say(&about, true, "TooManyAddressesToMirror", text);
        }
    }
}
