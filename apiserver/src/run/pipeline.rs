//! The object pipeline, and what is plugged into it: policies need its API, and it needs their verdicts, so that it is
//! made first and completed when they are there.

use std::sync::{Arc, OnceLock};

use shared::authz::Attributes;
use tokio::sync::Semaphore;

use super::Process;
use super::settings::Objects;
use crate::access::Access;
use crate::admission::Caller;
use crate::api::{Api, Permits, ServerContext};
use crate::cache::{CacheReader, CacheRegistry};
use crate::egress::Egress;
use crate::rest::{AllocationStorage, CoreActions, Services};
use crate::serve::listen::Addresses;
use crate::storage::Store;
use crate::verbs::InProcess;
use crate::verbs::engine::Engine;

/// Long lists read from etcd at one time.
const ETCD_LISTS: usize = 4;

/// Authorizer for admission, backed by the filters.
struct AdmissionAuthorizer(Arc<Access>);

#[async_trait::async_trait]
impl Permits for AdmissionAuthorizer {
    async fn ask(&self, attributes: &Attributes) -> Result<(), String> {
        let verdict = self.0.authorization().verdict(attributes).await;
        if verdict.is_allowed() { Ok(()) } else { Err(verdict.reason) }
    }
}

/// The engine with the storages of the core group above it.
pub(super) fn engine(
    process: &Process,
    objects: Objects,
    store: Store,
    caches: Arc<CacheRegistry>,
) -> (Arc<Engine>, Arc<Services>) {
    let Objects { rows, services, binding, policy, gated, versions, event_ttl } = objects;
    let backend = AllocationStorage { rows: rows.clone(), store: store.clone(), caches: caches.clone() };
    let services = Arc::new(Services::new(services, Arc::new(backend), process.tasks.clone()));
    let engine = Engine {
        rows,
        store,
        caches,
        etcd_lists: Semaphore::new(ETCD_LISTS),
        hook: services.clone(),
        actions: Arc::new(CoreActions { binding }),
        policy,
        gated,
        versions,
        event_ttl,
        admission: OnceLock::new(),
        tokens: OnceLock::new(),
        virtuals: OnceLock::new(),
        permits: OnceLock::new(),
        caller: OnceLock::new(),
        closing: process.closing.clone(),
        answered: process.answered.clone(),
    };
    (Arc::new(engine), services)
}

/// Builds the context of all components.
pub(super) fn context(
    process: &Process,
    engine: &Arc<Engine>,
    addresses: &Addresses,
    egress: &Egress,
) -> ServerContext {
    ServerContext {
        flags: process.flags.clone(),
        reader: Arc::new(CacheReader::new(engine.caches.clone(), engine.rows.clone())),
        api: Api::new(Arc::new(InProcess(engine.clone())), engine.rows.clone()),
        rows: engine.rows.clone(),
        tasks: process.tasks.clone(),
        shutdown: process.shutdown.clone(),
        answered: process.answered.clone(),
        advertise_address: addresses.advertise,
        secure_port: addresses.port,
        egress: egress.clone(),
    }
}

/// Plugs in what was made over the engine's own context.
pub(super) fn complete(engine: &Engine, access: &Arc<Access>, cx: &ServerContext) -> anyhow::Result<()> {
    let caller = Caller::new(
        cx.reader.clone(),
        cx.tasks.clone(),
        cx.answered.clone(),
        cx.flags.boolean("enable-aggregator-routing"),
        cx.egress.clone(),
    );
    // Each is set once, here.
    let _ = engine.admission.set(super::access::admission(access, cx)?);
    let _ = engine.tokens.set(access.token_issuer());
    let _ = engine.virtuals.set(access.virtuals());
    let _ = engine.permits.set(Arc::new(AdmissionAuthorizer(access.clone())));
    let _ = engine.caller.set(Arc::new(caller));
    Ok(())
}
