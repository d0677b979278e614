//! The object pipeline and its parts. Filters and admission plugins use the API of the engine that asks them: they are
//! made first, over a pipeline that the engine is connected to when it is built whole.

use std::sync::Arc;

use shared::authz::Attributes;
use tokio::sync::Semaphore;

use super::Process;
use super::settings::Objects;
use crate::access::Access;
use crate::admission::{Caller, Chain};
use crate::api::{Api, NotPermitted, Permits, ServerContext};
use crate::cache::{CacheReader, CacheRegistry};
use crate::egress::Egress;
use crate::rest::{AllocationStorage, CoreActions, ServiceRanges, Services};
use crate::rows::Rows;
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
    async fn ask(&self, attributes: &Attributes) -> Result<(), NotPermitted> {
        let verdict = self.0.authorization().verdict(attributes).await;
        if verdict.is_allowed() { Ok(()) } else { Err(NotPermitted { reason: verdict.reason }) }
    }
}

/// The storages of the core group, which stand around the engine's writes.
pub(super) fn services(
    process: &Process,
    ranges: ServiceRanges,
    rows: &Rows,
    store: &Store,
    caches: &Arc<CacheRegistry>,
) -> Arc<Services> {
    let backend = AllocationStorage { rows: rows.clone(), store: store.clone(), caches: caches.clone() };
    Arc::new(Services::new(ranges, Arc::new(backend), process.tasks.clone()))
}

/// Builds the context of all components, over the pipeline that the engine will be connected to.
pub(super) fn context(
    process: &Process,
    pipeline: &InProcess,
    (rows, caches): (&Rows, &Arc<CacheRegistry>),
    addresses: &Addresses,
    egress: &Egress,
) -> ServerContext {
    ServerContext {
        flags: process.flags.clone(),
        reader: Arc::new(CacheReader::new(caches.clone(), rows.clone())),
        api: Api::new(Arc::new(pipeline.clone()), rows.clone()),
        rows: rows.clone(),
        tasks: process.tasks.clone(),
        shutdown: process.shutdown.clone(),
        answered: process.answered.clone(),
        advertise_address: addresses.advertise,
        secure_port: addresses.port,
        egress: egress.clone(),
    }
}

/// Parts of the engine that were made before it.
pub(super) struct EngineParts {
    pub(super) objects: Objects,
    pub(super) store: Store,
    pub(super) caches: Arc<CacheRegistry>,
    pub(super) services: Arc<Services>,
    pub(super) access: Arc<Access>,
    pub(super) admission: Chain,
}

/// Builds the engine from its parts.
pub(super) fn engine(process: &Process, parts: EngineParts, cx: &ServerContext) -> Arc<Engine> {
    let EngineParts { objects, store, caches, services, access, admission } = parts;
    let Objects { rows, binding, policy, gated, versions, event_ttl } = objects;
    let caller = Caller::new(
        cx.reader.clone(),
        cx.tasks.clone(),
        cx.answered.clone(),
        cx.flags.boolean("enable-aggregator-routing"),
        cx.egress.clone(),
    );
    Arc::new(Engine {
        rows,
        store,
        caches,
        etcd_lists: Semaphore::new(ETCD_LISTS),
        hook: services,
        actions: Arc::new(CoreActions { binding }),
        policy,
        gated,
        versions,
        event_ttl,
        admission,
        tokens: access.token_issuer(),
        virtuals: access.virtuals(),
        permits: Arc::new(AdmissionAuthorizer(access)),
        caller: Arc::new(caller),
        closing: process.closing.clone(),
        answered: process.answered.clone(),
    })
}
