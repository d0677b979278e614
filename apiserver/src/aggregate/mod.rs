//! Aggregation: which server answers a group and version, and how it is reached.
//!
//! In come the APIServices and the requests for their groups; out go proxied answers, the services that this server's
//! own groups need ([`registrar`]), whether those of others can be used ([`availability`]), and what the discovery and
//! OpenAPI documents say of groups served elsewhere. Answers for upstream's kube-aggregator. Nothing is stored here but
//! through the pipeline, and nothing of a proxied request is read.

mod availability;
mod backend;
mod controller;
pub mod discovery;
mod error;
mod identity;
mod meters;
pub mod openapi;
mod pool;
mod proxy;
mod registrar;
mod service;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use serde_json::Value;
use shared::authn::UserInfo;
use shared::cert::{Authorities, ReloadingKey, Trust};
use shared::flags::FlagSet;
use shared::run::{Shutdown, TaskGroup};

use crate::api::{Api, Reader, ServerContext};
use crate::egress::Egress;
pub use backend::Backend;
pub use error::{BackendError, ForwardError};
pub use proxy::holding;
pub use service::{ApiService, GROUP, GroupVersion, PROXIED, preference};

/// A group version that another server answers.
pub struct Remote {
    /// API service.
    pub service: ApiService,
    /// Connections to it, or why there can be none.
    backend: Result<Arc<Backend>, Arc<BackendError>>,
}

/// Discovery of an aggregated server.
#[derive(Clone)]
pub struct Discovered {
    /// An `APIVersionDiscovery` without its freshness.
    pub entry: Arc<Value>,
    /// The server answered when it was asked last.
    pub fresh: bool,
}

/// Snapshot of all API services.
#[derive(Default, Clone)]
pub struct Directory {
    /// API services by group and version.
    pub services: BTreeMap<GroupVersion, Arc<ApiService>>,
    remotes: BTreeMap<GroupVersion, Arc<Remote>>,
    /// Discovery of the servers behind them.
    found: BTreeMap<GroupVersion, Discovered>,
}

impl Directory {
    /// The group versions other servers answer.
    pub fn remotes(&self) -> impl Iterator<Item = &Arc<Remote>> {
        self.remotes.values()
    }

    /// The server that answers a group version, unless it is this one.
    pub fn remote(&self, group: &str, version: &str) -> Option<&Arc<Remote>> {
        if self.remotes.is_empty() { None } else { self.remotes.get(&(group.into(), version.into())) }
    }

    /// Priorities of a group and of a version in it, in aggregated discovery: of what is answered here it knows by
    /// itself.
    fn priorities(&self, group: &str, version: &str) -> (i64, i64) {
        match self.remote(group, version).map(|remote| &remote.service) {
            Some(service) => (service.group_priority, service.version_priority),
            None => preference(group, version),
        }
    }
}

/// Aggregation of API servers: the directory of API services, their connections and documents.
pub struct Aggregator {
    reader: Arc<dyn Reader>,
    api: Api,
    /// Shown to other servers.
    pair: Option<Arc<ReloadingKey>>,
    /// Services are called at an endpoint and not at their cluster IP.
    direct: bool,
    /// `--aggregator-reject-forwarding-redirect`
    keeps_redirects: bool,
    headers: identity::Headers,
    directory: ArcSwap<Directory>,
    schemas: openapi::OpenApiCache,
    tasks: TaskGroup,
    answered: Shutdown,
    egress: Egress,
    meters: meters::Metrics,
}

impl Aggregator {
    /// Reads the front proxy's pair. Connections end with the last answer.
    ///
    /// # Errors
    /// A pair that cannot be used.
    pub fn new(cx: &ServerContext) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            reader: cx.reader.clone(),
            api: cx.api.clone(),
            pair: pair(&cx.flags)?,
            direct: cx.flags.boolean("enable-aggregator-routing"),
            keeps_redirects: cx.flags.boolean("aggregator-reject-forwarding-redirect"),
            headers: identity::Headers::from_flags(&cx.flags),
            directory: ArcSwap::default(),
            schemas: openapi::OpenApiCache::default(),
            tasks: cx.tasks.clone(),
            answered: cx.answered.clone(),
            egress: cx.egress.clone(),
            meters: meters::Metrics::new(),
        }))
    }

    /// The server that answers a group version, unless it is this one. Asked of every request.
    pub fn remote(&self, group: &str, version: &str) -> Option<Arc<Remote>> {
        self.directory.load().remote(group, version).cloned()
    }

    /// Counts that discovery was put together anew.
    pub fn count_discovery(&self) {
        self.meters.aggregations.with_label_values::<&str>(&[]).inc();
    }

    /// Connections to other servers of this kind, whose authorities are in a file, or the system's.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn to_peers(&self, authorities: &str) -> Result<Backend, BackendError> {
        let read = || Authorities::from_pem(&shared::cert::read(authorities)?);
        let trust = if authorities.is_empty() { Ok(Trust::System) } else { read().map(Trust::Authorities) };
        Backend::peers(trust?, self)
    }

    /// Asks another server of this kind, as a user; code and body of the answer.
    ///
    /// # Errors
    /// It cannot be reached, or says too much.
    pub async fn ask_peer(
        &self,
        backend: &Backend,
        place: (&str, &str),
        user: &UserInfo,
        headers: &[(&str, &str)],
        limit: usize,
    ) -> Result<(u16, Bytes), ForwardError> {
        backend.fetch_as(place, user, headers, limit).await.map(|fetched| (fetched.code, fetched.body))
    }

    /// Returns the current snapshot.
    pub fn directory(&self) -> Arc<Directory> {
        self.directory.load_full()
    }
}

fn pair(flags: &FlagSet) -> anyhow::Result<Option<Arc<ReloadingKey>>> {
    let (certificate, key) = (flags.string("proxy-client-cert-file"), flags.string("proxy-client-key-file"));
    match (certificate.is_empty(), key.is_empty()) {
        (true, true) => Ok(None),
        (false, false) => Ok(Some(Arc::new(ReloadingKey::from_files(certificate, key)?))),
        _ => anyhow::bail!("--proxy-client-cert-file and --proxy-client-key-file must be specified together"),
    }
}
