//! State that requests are served from, and its metrics.

use std::sync::Arc;
use std::time::Instant;

use prometheus::GaugeVec;
use proto::resources::Row;
use shared::metrics;
use shared::traces::Tracer;

use super::aggregated::Aggregated;
use super::constants;
use super::graceful_shutdown::GracefulShutdown;
use super::health::HealthChecks;
use super::meters::Metrics;
use super::response_policy::ResponsePolicy;
use crate::access::{Access, is_long_running};
use crate::aggregate::Aggregator;
use crate::api::RequestInfo;
use crate::audit::Audit;
use crate::connect::Connect;
use crate::flowcontrol::FlowControl;
use crate::machinery::query::Query;
use crate::openapi::Documents;
use crate::peers::Peers;
use crate::verbs::engine::Engine;

/// State that requests are served from.
pub struct Server {
    /// The object pipeline.
    pub engine: Arc<Engine>,
    /// Authentication and authorization.
    pub access: Arc<Access>,
    /// Audit, when enabled.
    pub audit: Option<Arc<Audit>>,
    /// Groups that other servers answer.
    pub aggregator: Arc<Aggregator>,
    /// Other servers of this kind, where they are asked.
    pub peers: Option<Arc<Peers>>,
    /// OpenAPI documents.
    pub documents: Arc<Documents>,
    /// Aggregated discovery.
    pub discovery: Aggregated,
    /// Logs, exec, port-forward, proxies.
    pub connect: Connect,
    /// Health checks.
    pub health: HealthChecks,
    /// Policies for every response.
    pub response_policy: ResponsePolicy,
    /// `host:port` that discovery names.
    pub address: String,
    /// Graceful shutdown.
    pub graceful_shutdown: Arc<GracefulShutdown>,
    pub(super) meters: Metrics,
    objects: GaugeVec,
    objects_of: GaugeVec,
    caches: crate::cache::Metrics,
    pub(super) tracer: Tracer,
}

impl Server {
    /// Puts the parts together.
    #[allow(clippy::too_many_arguments, reason = "each is a part, of a type of its own")]
    pub fn new(
        engine: Arc<Engine>,
        access: Arc<Access>,
        audit: Option<Arc<Audit>>,
        aggregator: Arc<Aggregator>,
        connect: Connect,
        health: HealthChecks,
        response_policy: ResponsePolicy,
        graceful_shutdown: Arc<GracefulShutdown>,
        address: String,
    ) -> Self {
        let objects = metrics::gauge(
            "apiserver_storage_objects",
            "[STABLE] Number of stored objects at the time of last check.",
            &["resource"],
        );
        let objects_of = metrics::gauge(
            "apiserver_resource_objects",
            "[ALPHA] Number of stored objects at the time of last check split by kind.",
            &["group", "resource"],
        );
        Self {
            engine,
            access,
            audit,
            aggregator,
            peers: None,
            documents: Arc::new(Documents::new(response_policy.enums)),
            discovery: Aggregated::default(),
            connect,
            health,
            response_policy,
            address,
            graceful_shutdown,
            meters: Metrics::default(),
            objects,
            objects_of,
            caches: crate::cache::Metrics::default(),
            tracer: Tracer::default(),
        }
    }

    /// With what begins traces.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// With other servers of this kind.
    #[must_use]
    pub fn beside(self, peers: Option<Arc<Peers>>) -> Self {
        Self { peers, ..self }
    }

    /// The text of `/metrics`.
    pub(super) fn metrics(&self) -> String {
        self.objects.reset();
        self.objects_of.reset();
        let counts = if self.response_policy.counts { self.engine.caches.counts() } else { Vec::new() };
        for (resource, count) in counts {
            #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
            let count = count as f64;
            let (plural, group) = resource.split_once('.').unwrap_or((&resource, ""));
            self.objects.with_label_values(&[resource.as_str()]).set(count);
            self.objects_of.with_label_values(&[group, plural]).set(count);
        }
        self.meters.publish();
        self.caches.publish(&self.engine.caches, self.response_policy.sizes);
        self.engine.hook.publish();
        constants::publish(self.response_policy.emulation);
        if let Some(flow) = self.flow() {
            flow.publish();
        }
        metrics::gather()
    }

    /// Reports whether a request is for a served resource. Others are not counted: made-up names are without bound, and
    /// every series is kept.
    pub(super) fn is_served(&self, info: &RequestInfo) -> bool {
        let part =
            |row: &Row| info.subresource.is_empty() || row.subresources.iter().any(|s| s.name == info.subresource);
        let own = self.engine.rows.find(&info.api_group, &info.api_version, &info.resource);
        own.is_some_and(|row| part(&row)) || self.aggregator.directory().lists(info)
    }

    /// Deadline of a request; `None` for long-running ones.
    pub(super) fn deadline(&self, info: &RequestInfo, query: &Query, since: Instant) -> Option<Instant> {
        let limit = self.response_policy.deadline(query).unwrap_or_default();
        (!is_long_running(info) && !limit.is_zero()).then(|| since + limit)
    }

    /// Flow control, when it is on.
    pub(super) fn flow(&self) -> Option<&Arc<FlowControl>> {
        self.access.limiter().flow()
    }
}
