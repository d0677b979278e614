//! Work in the background over the object pipeline: what the server follows, and what it keeps in order.

use std::sync::Arc;
use std::time::Duration;

use shared::status::Status;
use shared::traces::{self, Tracer};
use tokio::sync::Notify;

use super::Process;
use crate::access::Access;
use crate::aggregate::Aggregator;
use crate::api::{Api, ServerContext};
use crate::backoff::Backoff;
use crate::cache::CacheRegistry;
use crate::definitions::Controller;
use crate::egress::{Egress, NetworkContext};
use crate::election;
use crate::machinery::identity;
use crate::peers::Peers;
use crate::registry::coordination::lease_candidate::LEASE_CANDIDATES;
use crate::registry::core::namespace::NAMESPACES;
use crate::registry::rbac::cluster_role::CLUSTER_ROLES;
use crate::registry::rbac::cluster_role_binding::CLUSTER_ROLE_BINDINGS;
use crate::rest::default_range::DefaultRange;
use crate::rest::kubernetes_service::Reconciler;
use crate::rest::{Services, repair, system_namespaces};
use crate::rows::builtin;
use crate::storage::Store;
use crate::verbs::engine::Engine;

const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The configuration of flow control, where it is on.
pub(super) fn follow_flow_control(process: &Process, access: &Access, api: &Api) {
    let reached = process.reaches(|m| &m.flow);
    match access.limiter().flow() {
        Some(flow) => {
            process.until_shutdown("priority-and-fairness", flow.clone().follow(api.clone(), reached));
        }
        None => reached(),
    }
}

/// Custom resources and API services: groups that come and go. API services are registered for what is defined, and the
/// caches count as filled when the definitions were seen.
pub(super) fn follow_groups(
    process: &Process,
    cx: &ServerContext,
    engine: &Arc<Engine>,
) -> anyhow::Result<Arc<Aggregator>> {
    let (defined, registrable) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    if let Some(controller) = Controller::new(engine.clone(), cx.api.clone()) {
        let (seen, registrar) = (defined.clone(), registrable.clone());
        let ready = move || {
            seen.notify_one();
            registrar.notify_one();
        };
        process.until_shutdown("custom-resources", controller.run(ready));
    }
    let aggregator = Aggregator::new(cx)?;
    let known = async move { registrable.notified().await };
    let registering = aggregator.clone().run(cx.rows.clone(), known, process.reaches(|m| &m.registered));
    process.until_shutdown("api-services", registering);
    let (caches, reached) = (engine.caches.clone(), process.reaches(|m| &m.synced));
    process.until_shutdown("sync", async move {
        filled(&caches).await;
        defined.notified().await;
        reached();
    });
    Ok(aggregator)
}

/// Servers of other versions beside this one, where they are to answer for what only they serve.
pub(super) fn follow_peers(
    process: &Process,
    cx: &ServerContext,
    aggregator: &Arc<Aggregator>,
    store: &Store,
) -> anyhow::Result<Option<Arc<Peers>>> {
    let peers = Peers::from_flags(cx, aggregator, store.clone())?;
    if let Some(peers) = peers.clone() {
        process.until_shutdown("peers", peers.run());
    }
    Ok(peers)
}

/// Starts tracing where `--tracing-config-file` configures it. Spans are exported until the very end.
pub(super) fn write_traces(process: &Process, egress: &Egress) -> anyhow::Result<Tracer> {
    let path = process.flags.string("tracing-config-file");
    if path.is_empty() {
        return Ok(Tracer::default());
    }
    let configuration = traces::Configuration::from_file(&path)?;
    let about = [("service.name", "apiserver"), ("service.instance.id", &*identity::server_id())];
    let (tracer, exporting) = Tracer::start(&configuration, &about, egress.proxied(NetworkContext::ControlPlane))?;
    let answered = process.answered.clone();
    process.tasks.spawn("traces", async move { exporting.run(answered.wait()).await });
    Ok(tracer)
}

/// The caches every request may need.
async fn filled(caches: &Arc<CacheRegistry>) {
    for resource in [NAMESPACES, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS] {
        if let Some(row) = builtin(resource.group, resource.plural) {
            caches.cacher(&row).wait_ready().await;
        }
    }
}

/// The namespaces of the system.
pub(super) fn keep_namespaces(process: &Process, api: &Api) {
    let reached = process.reaches(|m| &m.namespaces);
    process.until_shutdown("system-namespaces", system_namespaces::run(api.clone(), reached));
}

/// The service `kubernetes`, its endpoints, and the range its address is of.
pub(super) fn keep_service(process: &Process, api: &Api, reconciler: Arc<Reconciler>) {
    let ranges = reconciler.services.ranges.iter().map(ToString::to_string).collect();
    let mut range = DefaultRange::new(api.clone(), ranges);
    let (api, range_there, service_there) =
        (api.clone(), process.reaches(|m| &m.cidr), process.reaches(|m| &m.service));
    process.until_shutdown("kubernetes-service", async move {
        let mut backoff = Backoff::doubling(PAUSE, LONGEST_PAUSE);
        while let Err(error) = make_service(&api, &mut range, &reconciler).await {
            tracing::warn!(%error, "Failed to create the kubernetes service");
            backoff.wait().await;
        }
        range_there();
        service_there();
        // Endpoints that cannot be written (a loopback address) do not keep the server from being ready.
        tokio::join!(reconciler.run(), range.run());
    });
}

/// The service has a namespace, and an address of the range: both come first.
async fn make_service(api: &Api, range: &mut DefaultRange, reconciler: &Reconciler) -> Result<(), Status> {
    futures::future::try_join(system_namespaces::ensure(api, "default"), range.reconcile()).await?;
    reconciler.ensure_service().await
}

/// Elects those who lead other components, where the gate for that is on and candidates are served.
pub(super) fn hold_elections(cx: &ServerContext) {
    if cx.flags.enabled(election::GATE) && cx.rows.storage(LEASE_CANDIDATES).is_some() {
        cx.tasks.spawn("elections", election::run(cx.clone()));
    }
}

/// Brings what services have in line with what is noted as taken.
pub(super) fn repair_services(process: &Process, cx: &ServerContext, services: &Services) {
    let reached = process.reaches(|m| &m.addresses);
    let addresses = repair::addresses::run(services.backend.clone(), cx.reader.clone(), cx.api.clone(), reached);
    process.until_shutdown("cluster-address-repair", addresses);
    let ports =
        repair::ports::run(services.backend.clone(), services.ports, cx.api.clone(), process.reaches(|m| &m.ports));
    process.until_shutdown("node-port-repair", ports);
}
