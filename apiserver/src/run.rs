//! The life of the process: configuration, connections, background work, serving, end.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use ipnet::IpNet;
use shared::flags::FlagSet;
use shared::run::{Shutdown, TaskGroup};

use crate::access::Access;
use crate::admission::Caller;
use crate::aggregate::Aggregator;
use crate::api::{Api, Context, Permits};
use crate::audit::Audit;
use crate::bootstrap;
use crate::cache::{CacheReader, Hub};
use crate::connect::Connect;
use crate::crd;
use crate::egress::{Egress, To};
use crate::negotiate::Media;
use crate::peers::Peers;
use crate::registry::core::default_range::DefaultRange;
use crate::registry::core::kubernetes_service::{self, Reconciler, Way};
use crate::registry::core::node_ports::PortRange;
use crate::registry::core::service::Services;
use crate::registry::core::{ip_allocator, repair, system_namespaces};
use crate::registry::{self, Rows, builtin};
use crate::serve::debug_socket;
use crate::serve::health::{Health, Milestones, Patience, Results};
use crate::serve::listen::{self, Addresses};
use crate::serve::{Conduct, Ending, Server};
use crate::storage::{self, Store, transform};
use crate::verbs::InProcess;
use crate::verbs::engine::{Engine, Policy};

/// Time for background work to end.
const DRAIN: Duration = Duration::from_secs(5);

struct Asks(Arc<Access>);

#[async_trait::async_trait]
impl Permits for Asks {
    async fn ask(&self, attributes: &shared::authz::Attributes) -> Result<(), String> {
        let verdict = self.0.authorization().verdict(attributes).await;
        if verdict.is_allowed() { Ok(()) } else { Err(verdict.reason) }
    }
}

fn services(flags: &FlagSet) -> anyhow::Result<Services> {
    let text = flags.string("service-cluster-ip-range");
    let text = if text.is_empty() { "10.0.0.0/24".to_owned() } else { text };
    let mut ranges = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let range: IpNet = part.parse().with_context(|| format!("invalid --service-cluster-ip-range {part:?}"))?;
        ranges.push(range.trunc());
    }
    anyhow::ensure!(ranges.len() <= 2, "service-cluster-ip-range must not contain more than two entries");
    let text = flags.string("service-node-port-range");
    let ports = PortRange::parse(&text).with_context(|| format!("invalid --service-node-port-range {text:?}"))?;
    Ok(Services::new(ranges, ports))
}

/// What the caches may keep of encoded objects, in bytes.
fn encodings(flags: &FlagSet) -> anyhow::Result<usize> {
    let megabytes = flags.integer("watch-cache-encodings-mb");
    let megabytes = usize::try_from(megabytes).ok().filter(|mb| *mb <= 1 << 20);
    Ok(megabytes.context("--watch-cache-encodings-mb must be between 0 and 1048576")? << 20)
}

/// What a resource is called in metrics, by where it is stored.
fn named(row: &proto::resources::Row) -> (String, String, String) {
    (row.etcd_prefix.to_string(), row.group.to_string(), row.plural.to_string())
}

async fn connect(flags: &FlagSet, egress: &Egress) -> anyhow::Result<Store> {
    storage::check_backend(flags)?;
    let overrides = storage::overrides(&flags.list("etcd-servers-overrides")).map_err(anyhow::Error::msg)?;
    // As upstream, what is not compiled in is not looked for.
    let overrides = overrides
        .into_iter()
        .filter_map(|o| Some((builtin(&o.group, &o.resource)?.etcd_prefix.to_string(), o.servers)))
        .collect();
    let options = storage::Options {
        servers: flags.list("etcd-servers"),
        prefix: flags.string("etcd-prefix"),
        ca_file: flags.string("etcd-cafile"),
        cert_file: flags.string("etcd-certfile"),
        key_file: flags.string("etcd-keyfile"),
        overrides,
        dialer: egress.proxied(To::Etcd),
        named: Rows::default().all().iter().map(named).collect(),
        lease_reuse: flags.integer("lease-reuse-duration-seconds").max(0),
    };
    anyhow::ensure!(!options.servers.is_empty(), "--etcd-servers must be specified");
    let store = Store::connect(&options).await.context("connecting to etcd")?;
    Ok(store)
}

/// Reads `--encryption-provider-config` and looks after what it names.
async fn encryption(
    flags: &FlagSet,
    store: &Store,
    tasks: &TaskGroup,
    closed: &Shutdown,
) -> anyhow::Result<Option<transform::Loaded>> {
    let path = flags.string("encryption-provider-config");
    let reload = flags.boolean("encryption-provider-config-automatic-reload");
    if path.is_empty() {
        anyhow::ensure!(
            !reload,
            "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
        );
        return Ok(None);
    }
    let loaded = transform::load(&path, store.transformers(), reload).await?;
    tasks.spawn("encryption-config", until(closed, transform::watch(loaded.clone())));
    Ok(Some(loaded))
}

/// Waits for etcd as upstream does: for a while, then gives up.
async fn wait_for(store: &Store, shutdown: &Shutdown) -> anyhow::Result<()> {
    let give_up = tokio::time::Instant::now() + Duration::from_secs(60);
    let mut delay = Duration::from_millis(20);
    loop {
        let error = match store.revision().await {
            Ok(_) => return Ok(()),
            Err(e) => e,
        };
        if tokio::time::Instant::now() > give_up || shutdown.is_triggered() {
            return Err(anyhow::Error::new(error).context("error waiting for etcd connection"));
        }
        tracing::warn!(%error, "etcd is not ready");
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(Duration::from_secs(1));
    }
}

/// Runs the server until `shutdown`.
pub async fn run(flags: FlagSet, shutdown: Shutdown) -> anyhow::Result<()> {
    let flags = Arc::new(flags);
    let addresses = Addresses::read(&flags);
    let services = services(&flags)?;
    let conduct = Conduct::from_flags(&flags).map_err(anyhow::Error::msg)?;
    let way = Way::from_flags(&flags).map_err(anyhow::Error::msg)?;
    let egress = Egress::from_flags(&flags)?;
    let listener = listen::bind(&addresses)?;
    let store = connect(&flags, &egress).await?;
    for store in store.each() {
        wait_for(&store, &shutdown).await?;
    }

    let media = Media { cbor: flags.enabled("CBORServingAndStorage"), stores_json: storage::stores_json(&flags)? };
    let choice = registry::chosen(&flags.map("runtime-config"), &flags.feature_gates()).map_err(anyhow::Error::msg)?;
    let rows = Rows::of(choice);
    let versions = bootstrap::StorageVersions::from_flags(&flags, &rows);
    let tasks = TaskGroup::new();
    // Cancelled when requests are no longer taken: until then everything they need goes on.
    let closing = tokio_util::sync::CancellationToken::new();
    let closed = Shutdown::from(closing.clone());
    let encryption = encryption(&flags, &store, &tasks, &closed).await?;
    let (hub, asks) = Hub::new(store.clone(), encodings(&flags)?);
    for (etcd, asks) in asks.into_iter().enumerate() {
        tasks.spawn("watch-cache", until(&closed, hub.clone().run(etcd, asks)));
    }
    if flags.enabled("DetectCacheInconsistency") {
        tasks.spawn("cache-consistency", until(&closed, hub.clone().check_forever()));
    }
    let compaction = flags.duration("etcd-compaction-interval");
    if !compaction.is_zero() {
        for store in store.each() {
            tasks.spawn("compactor", until(&shutdown, storage::compact_forever(store, compaction)));
        }
    }
    let sizes = flags.duration("etcd-db-metric-poll-interval");
    if !sizes.is_zero() {
        for store in store.each() {
            tasks.spawn("storage-size", until(&closed, storage::poll_size(store, sizes)));
        }
    }

    let engine = Arc::new(Engine {
        rows: rows.clone(),
        store: store.clone(),
        hub: hub.clone(),
        services,
        policy: Policy {
            allow_privileged: flags.boolean("allow-privileged"),
            clear_nomination: flags.enabled("ClearingNominatedNodeNameAfterBinding"),
            media,
            delete_workers: usize::try_from(flags.integer("delete-collection-workers")).unwrap_or(1).clamp(1, 64),
            collects_garbage: flags.boolean("enable-garbage-collector"),
            shortest_watch: conduct.shortest_watch,
            watch_lists: flags.enabled("WatchList"),
            deletes_unread: flags.enabled("AllowUnsafeMalformedObjectDeletion"),
        },
        gated: registry::Gated::new(&flags.feature_gates()),
        versions: versions.clone(),
        event_ttl: i64::try_from(flags.duration("event-ttl").as_secs()).unwrap_or(3600),
        admission: OnceLock::new(),
        tokens: OnceLock::new(),
        virtuals: OnceLock::new(),
        permits: OnceLock::new(),
        caller: OnceLock::new(),
        closing: closing.clone(),
    });
    let api = Api::new(Arc::new(InProcess(engine.clone())), rows.clone());
    let cx = Context {
        flags: flags.clone(),
        reader: Arc::new(CacheReader::new(hub.clone(), rows.clone())),
        api: api.clone(),
        rows: rows.clone(),
        tasks: tasks.clone(),
        shutdown: shutdown.clone(),
        advertise_address: addresses.advertise,
        secure_port: addresses.port,
        egress: egress.clone(),
    };
    let access = Access::new(&cx).await?;
    // Each is set once, here.
    let _ = engine.admission.set(access.admission(&cx)?);
    let _ = engine.tokens.set(access.token_issuer());
    let _ = engine.virtuals.set(access.virtuals());
    let _ = engine.permits.set(Arc::new(Asks(access.clone())));

    let milestones = Arc::new(Milestones::default());
    let reconciler = Arc::new(Reconciler {
        engine: engine.clone(),
        api: api.clone(),
        address: addresses.advertise,
        port: addresses.port,
        node_port: kubernetes_service::node_port(&flags, engine.services.ports).map_err(anyhow::Error::msg)?,
        way,
    });
    match access.gate().flow() {
        Some(flow) => {
            let m = milestones.clone();
            let follow = flow.clone().follow(api.clone(), move || m.flow.store(true, Ordering::Release));
            tasks.spawn("priority-and-fairness", until(&shutdown, follow));
        }
        None => milestones.flow.store(true, Ordering::Release),
    }
    let _ = engine.caller.set(Arc::new(Caller::new(
        cx.reader.clone(),
        tasks.clone(),
        shutdown.clone(),
        flags.boolean("enable-aggregator-routing"),
        egress.clone(),
    )));
    let (defined, registrable) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    if let Some(controller) = crd::controller::Controller::new(engine.clone(), api.clone()) {
        let (seen, registrar) = (defined.clone(), registrable.clone());
        let ready = move || {
            seen.notify_one();
            registrar.notify_one();
        };
        tasks.spawn("custom-resources", until(&shutdown, controller.run(ready)));
    }
    let aggregator = Aggregator::new(&cx, &closed)?;
    let peers = Peers::from_flags(&cx, &aggregator, store.clone()).map_err(anyhow::Error::msg)?;
    if let Some(peers) = peers.clone() {
        tasks.spawn("peers", until(&shutdown, peers.keep()));
    }
    let m = milestones.clone();
    let registering = aggregator.clone().run(rows.clone(), async move { registrable.notified().await }, move || {
        m.registered.store(true, Ordering::Release)
    });
    tasks.spawn("api-services", until(&shutdown, registering));
    let progress = bootstrap::start(&cx, access.rbac_enabled(), versions.clone());
    start_system(&tasks, &shutdown, &api, &reconciler, &milestones);
    start_repairs(&tasks, &shutdown, &cx, &engine, &milestones);
    tasks.spawn("sync", until(&shutdown, synced(hub, defined, milestones.clone())));

    let health = Health {
        store,
        milestones: milestones.clone(),
        bootstrap: progress,
        versions,
        results: Results::default(),
        encryption,
        etcd_timeouts: (flags.duration("etcd-healthcheck-timeout"), flags.duration("etcd-readycheck-timeout")),
        patience: Patience::from_flags(&flags),
    };
    let address = format!("{}:{}", addresses.advertise, addresses.port);
    let connect = Connect::new(&flags, api.clone(), egress)?;
    let audit = Audit::from_flags(&flags, &cx.egress, &tasks, &shutdown).await.map_err(anyhow::Error::msg)?;
    let ending = Arc::new(Ending::from_flags(&flags));
    let server =
        Server::new(engine.clone(), Some(access), audit, aggregator, connect, health, conduct, ending.clone(), address)
            .beside(peers.clone());
    let names: Vec<String> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
            .map(str::to_owned)
            .into_iter()
            .chain(engine.services.ranges.iter().map(|r| ip_allocator::first(r).to_string()))
            .collect();
    let (handle, serving) = listen::serve(listener, &flags, &addresses, &names, server, &closed)?;
    let path = flags.string("debug-socket-path");
    if !path.is_empty() {
        let socket = debug_socket::serve(path.as_ref()).with_context(|| format!("debugging socket {path}"))?;
        tasks.spawn("debug-socket", until(&closed, async move { drop(socket.await) }));
    }
    flags.warn_unread();
    tracing::info!(address = %addresses.bind, port = addresses.port, "Serving securely");
    let mut serving = tokio::spawn(serving);
    tokio::select! {
        ended = &mut serving => return Ok(ended.context("serving")??),
        () = shutdown.wait() => {}
    }

    milestones.stopping.store(true, Ordering::Release);
    reconciler.leave().await;
    if let Some(peers) = peers {
        peers.leave().await;
    }
    tokio::time::sleep(flags.duration("shutdown-delay-duration")).await;
    ending.begin();
    if ending.sends_away() {
        ending.served(DRAIN).await;
    }
    closing.cancel();
    // No new connections; idle ones would keep the server waiting, so what counts is the requests.
    let stopping = tokio::spawn(handle.stop(true));
    ending.served(DRAIN).await;
    ending.watched().await;
    tasks.drain(DRAIN).await;
    stopping.abort();
    Ok(())
}

fn until(
    shutdown: &Shutdown,
    work: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let shutdown = shutdown.clone();
    async move {
        tokio::select! {
            () = shutdown.wait() => {}
            () = work => {}
        }
    }
}

fn start_system(
    tasks: &TaskGroup,
    shutdown: &Shutdown,
    api: &Api,
    reconciler: &Arc<Reconciler>,
    milestones: &Arc<Milestones>,
) {
    let m = milestones.clone();
    let namespaces = system_namespaces::keep(api.clone(), move || m.namespaces.store(true, Ordering::Release));
    tasks.spawn("system-namespaces", until(shutdown, namespaces));
    let (r, m, a) = (reconciler.clone(), milestones.clone(), api.clone());
    let ranges = r.engine.services.ranges.iter().map(ToString::to_string).collect();
    let mut range = DefaultRange::new(api.clone(), ranges);
    let service = async move {
        let mut delay = Duration::from_millis(20);
        loop {
            let done = async {
                // The service has an address of the range.
                futures::future::try_join(system_namespaces::ensure(&a, "default"), range.look()).await?;
                r.ensure_service().await
            };
            match done.await {
                Ok(()) => break,
                Err(error) => tracing::warn!(%error, "creating the kubernetes service failed"),
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(Duration::from_secs(5));
        }
        m.cidr.store(true, Ordering::Release);
        m.service.store(true, Ordering::Release);
        // Endpoints that cannot be written (a loopback address) do not keep the server from being ready.
        tokio::join!(r.keep(), range.keep());
    };
    tasks.spawn("kubernetes-service", until(shutdown, service));
}

/// Brings what services have in line with what is noted as taken.
fn start_repairs(
    tasks: &TaskGroup,
    shutdown: &Shutdown,
    cx: &Context,
    engine: &Arc<Engine>,
    milestones: &Arc<Milestones>,
) {
    let m = milestones.clone();
    let done = move || m.addresses.store(true, Ordering::Release);
    let addresses = repair::addresses::keep(engine.clone(), cx.reader.clone(), cx.api.clone(), done);
    tasks.spawn("cluster-address-repair", until(shutdown, addresses));
    let m = milestones.clone();
    let done = move || m.ports.store(true, Ordering::Release);
    tasks.spawn("node-port-repair", until(shutdown, repair::ports::keep(engine.clone(), cx.api.clone(), done)));
}

/// The caches every request may need.
async fn synced(hub: Arc<Hub>, defined: Arc<tokio::sync::Notify>, milestones: Arc<Milestones>) {
    for (group, plural) in [
        ("", "namespaces"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ] {
        if let Some(row) = builtin(group, plural) {
            hub.cacher(&row).wait_ready().await;
        }
    }
    defined.notified().await;
    milestones.synced.store(true, Ordering::Release);
}
