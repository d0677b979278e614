//! The life of the process, as a sequence of steps: settings, connections, the object pipeline, work in the background,
//! serving, the way down. What each step is made of stands beside it.

mod access;
mod etcd;
mod files;
mod pipeline;
mod settings;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::dev::ServerHandle;
use anyhow::Context as _;
use shared::flags::FlagSet;
use shared::run::{Shutdown, TaskGroup};

use self::pipeline::EngineParts;
use self::settings::Settings;
use crate::audit::Audit;
use crate::bootstrap::{self, HookProgress};
use crate::connect::Connect;
use crate::election;
use crate::rest::kubernetes_service::Reconciler;
use crate::rest::{Services, ip_allocator};
use crate::serve::debug_socket;
use crate::serve::health::{HealthChecks, Milestones, Results, StartGracePeriods};
use crate::serve::{GracefulShutdown, Server, listen};
use crate::storage::transform::Loaded;
use crate::verbs::InProcess;
use crate::verbs::closing::{AT_ONCE, WatchTermination};
use crate::verbs::engine::Engine;

/// Time for background work to end.
const DRAIN: Duration = Duration::from_secs(5);
/// Time for connections to end when all is answered, and for streams where clients were sent away before.
const PARTING: Duration = Duration::from_secs(2);

/// State that all phases of the process share.
struct Process {
    flags: Arc<FlagSet>,
    tasks: TaskGroup,
    milestones: Arc<Milestones>,
    /// The beginning of the end.
    shutdown: Shutdown,
    /// Triggered when requests are no longer taken: connections that are idle end.
    closed: Shutdown,
    /// Triggered when the last request was answered: until then everything it needs goes on, and it is written down.
    answered: Shutdown,
    /// End of the watches at shutdown.
    closing: Arc<WatchTermination>,
}

impl Process {
    fn new(flags: FlagSet, shutdown: Shutdown) -> Self {
        Self {
            flags: Arc::new(flags),
            tasks: TaskGroup::new(),
            milestones: Arc::default(),
            shutdown,
            closed: Shutdown::new(),
            answered: Shutdown::new(),
            closing: Arc::default(),
        }
    }

    /// Work that ends when the server begins to go down.
    fn until_shutdown(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_until(&self.shutdown, name, work);
    }

    /// Work that requests need to the last.
    fn until_answered(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_until(&self.answered, name, work);
    }

    /// Callback for reaching a milestone.
    fn reaches(&self, milestone: fn(&Milestones) -> &AtomicBool) -> impl Fn() + Send + Sync + 'static {
        let milestones = self.milestones.clone();
        move || milestone(&milestones).store(true, Ordering::Release)
    }
}

/// Runs the server until `shutdown`.
pub async fn run(flags: FlagSet, shutdown: Shutdown) -> anyhow::Result<()> {
    let process = Process::new(flags, shutdown);
    let flags = &process.flags;
    let settings = Settings::read(flags)?;
    let addresses = settings.addresses;
    let tracer = work::write_traces(&process, &settings.egress)?;
    let listener = listen::bind(&addresses)?;
    let store = etcd::connect(&process, &settings.egress).await?;
    let encryption = etcd::encryption(&process, &store).await?;
    let caches = etcd::cache(&process, &store, settings.encodings, settings.caching);
    etcd::look_after(&process, &store);

    let (objects, in_process) = (settings.objects, InProcess::default());
    let services = pipeline::services(&process, settings.services, &objects.rows, &store, &caches);
    let cx = pipeline::context(&process, &in_process, (&objects.rows, &caches), &addresses, &settings.egress);
    let access = access::access(&cx).await?;
    let admission = access::admission(&access, &cx)?;
    let parts = EngineParts { objects, store, caches, services: services.clone(), access: access.clone(), admission };
    let engine = pipeline::engine(&process, parts, &cx);
    in_process.connect(&engine);

    work::follow_flow_control(&process, &access, &cx.api);
    let aggregator = work::follow_groups(&process, &cx, &engine)?;
    let peers = work::follow_peers(&process, &cx, &aggregator, &engine.store)?;
    let bootstrap = bootstrap::start(&cx, access.rbac_enabled(), engine.versions.clone());
    let reconciler = Arc::new(Reconciler {
        services: services.clone(),
        api: cx.api.clone(),
        address: addresses.advertise,
        port: addresses.port,
        node_port: settings.node_port,
        way: settings.way,
    });
    work::keep_namespaces(&process, &cx.api);
    work::keep_service(&process, &cx.api, reconciler.clone());
    work::repair_services(&process, &cx, &services);
    work::hold_elections(&cx);

    let health = health(&process, &engine, bootstrap, encryption);
    let names = names(&services);
    let address = SocketAddr::new(addresses.advertise, addresses.port).to_string();
    let connect = Connect::new(flags, cx.api.clone(), settings.egress)?;
    let audit = Audit::from_flags(flags, &cx.egress, &process.tasks, &process.answered).await?;
    let graceful_shutdown = Arc::new(GracefulShutdown::from_flags(flags));
    let response_policy = settings.response_policy;
    let server = Server::new(
        engine,
        access,
        audit,
        aggregator,
        connect,
        health,
        response_policy,
        graceful_shutdown.clone(),
        address,
    )
    .beside(peers.clone())
    .traced(tracer);
    let (handle, serving) = listen::serve(listener, flags, &addresses, &names, server, &process.closed)?;
    open_debug_socket(&process)?;
    flags.warn_unread();
    flags.feature_gates().warn_idle();
    tracing::info!(address = %addresses.bind, port = addresses.port, "Serving securely");
    shared::run::systemd::notify_ready();
    let mut serving = tokio::spawn(serving);
    tokio::select! {
        ended = &mut serving => return Ok(ended.context("serving")??),
        () = process.shutdown.wait() => {}
    }
    let leave = async {
        reconciler.remove_endpoint().await;
        if let Some(peers) = &peers {
            peers.remove_lease().await;
        }
    };
    go_down(&process, leave, &graceful_shutdown, &handle).await;
    Ok(())
}

fn health(
    process: &Process,
    engine: &Engine,
    bootstrap: Arc<HookProgress>,
    encryption: Option<Loaded>,
) -> HealthChecks {
    let flags = &process.flags;
    HealthChecks {
        store: engine.store.clone(),
        milestones: process.milestones.clone(),
        bootstrap,
        versions: engine.versions.clone(),
        elections: flags.enabled(election::GATE),
        results: Results::default(),
        encryption,
        etcd_timeouts: (flags.duration("etcd-healthcheck-timeout"), flags.duration("etcd-readycheck-timeout")),
        grace: StartGracePeriods::from_flags(flags),
    }
}

/// Names in the server's own certificate besides its addresses.
fn names(services: &Services) -> Vec<String> {
    ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        .map(str::to_owned)
        .into_iter()
        .chain(services.ranges.iter().map(|range| ip_allocator::first(range).to_string()))
        .collect()
}

/// Profiles over `--debug-socket-path`.
fn open_debug_socket(process: &Process) -> anyhow::Result<()> {
    let path = process.flags.string("debug-socket-path");
    if !path.is_empty() {
        let socket = debug_socket::serve(path.as_ref()).with_context(|| format!("debugging socket {path}"))?;
        process.until_answered("debug-socket", async move { drop(socket.await) });
    }
    Ok(())
}

/// Others are told to go elsewhere, which is to `leave`, and get some time for that meanwhile; what was begun is ended,
/// as long as any request may take and watches are given, and nothing more is taken. Streams that were given no time go
/// on until nobody waits for them any more.
async fn go_down(
    process: &Process,
    leave: impl Future<Output = ()>,
    graceful_shutdown: &GracefulShutdown,
    handle: &ServerHandle,
) {
    process.milestones.stopping.store(true, Ordering::Release);
    tokio::join!(leave, tokio::time::sleep(graceful_shutdown.delay()));
    graceful_shutdown.begin();
    if let Some(pace) = graceful_shutdown.watches_per_second() {
        process.closing.begin(pace);
    }
    let drained = async { tokio::join!(graceful_shutdown.drain_requests(), graceful_shutdown.drain_watches()) };
    // No new connections; idle ones would keep the server waiting, so what counts is the requests.
    let stopping = if graceful_shutdown.sends_retry_after() {
        drained.await;
        let stopping = close(process, handle);
        graceful_shutdown.drain_streams(PARTING).await;
        stopping
    } else {
        let stopping = close(process, handle);
        tokio::join!(drained, graceful_shutdown.drain_streams(process.flags.duration("request-timeout")));
        stopping
    };
    process.closing.begin(AT_ONCE);
    // What was said last is to be heard, too: ends of watches, and that connections close. Some never do.
    drop(tokio::time::timeout(PARTING, stopping).await);
    process.answered.trigger();
    process.tasks.drain(DRAIN).await;
}

fn close(process: &Process, handle: &ServerHandle) -> impl Future<Output = ()> + use<> {
    process.closed.trigger();
    handle.stop(true)
}
