//! The driver: builds the rooms, connects their doors, starts their tasks, and ends them in order. A kubelet that
//! ends leaves its pods running; the next one adopts them.
//! Answers for upstream's `cmd/kubelet/app/server.go` (`run`, `RunKubelet`) and `NewMainKubelet`.

mod heard;
mod identity;
mod static_pods;

use crate::api::{ApiEvents, ApiObjects, ChangeDetection, InformedServices, slim_service};
use crate::certs::MoreClients;
use crate::config::{self, Config, KubeletConfiguration};
use crate::cri;
use crate::devices::{self, DeviceHandler, Devices};
use crate::events::{EventSink, EventType, LogSink};
use crate::eviction;
use crate::exclusive::Exclusive;
use crate::facts::PodFacts;
use crate::hooks;
use crate::images::Images;
use crate::images::provider::Providers;
use crate::images::pulled::PulledImages;
use crate::lock;
use crate::node::addresses::NodeAddresses;
use crate::node::agent::Agent;
use crate::node::shutdown_pods::{self, NodePods};
use crate::node::{kmsg, lease, tunables, util_chains};
use crate::objects::{ObjectSource, Standalone};
use crate::pleg;
use crate::plugins;
use crate::pod_certificates::{self, PodCertificates};
use crate::pod_resources;
use crate::probes;
use crate::resource_claims::{self, ClaimHandler, ResourceClaims};
use crate::resource_health;
use crate::resources::{self, CgroupVersion, Cgroups, FsCgroups, MachineInfo, NoCgroups, SystemCgroups};
use crate::server::access::Access;
use crate::server::{Handlers, Port, Server};
use crate::settings::Settings;
use crate::sources::api::{self, PodStream};
use crate::sources::mirror;
use crate::stats::Stats;
use crate::status::writer::Writer;
use crate::userns::{self, UserNamespaces};
use crate::volumes;
use crate::volumes::csi::{self, Drivers};
use crate::workers::context::{NoServices, NodeState, ServiceLister, WorkerContext};
use crate::workers::manager::Manager;
use crate::workers::records::ResourceRecords;
use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use heard::{ApiPods, Heard};
use identity::identity;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use nix::sys::resource::{Resource, setrlimit};
use shared::authn::{Authenticator, GroupAdder, OrAnonymous, TokenReviewAuthenticator, X509};
use shared::authz::{AlwaysAllow, Authorizer, SubjectAccessReviewAuthorizer};
use shared::events::Recorder;
use shared::flags::FlagSet;
use shared::informer::{Event, Factory, Scope};
use shared::run::{Shutdown, TaskGroup};
use shared::traces::Tracer;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// Time that tasks have to end.
const DRAIN: Duration = Duration::from_secs(5);

/// Time that the start waits for the runtime's first answer.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the kubelet until shutdown.
///
/// # Errors
/// The configuration or the machine is not usable.
pub async fn run(flags: FlagSet, shutdown: Shutdown) -> anyhow::Result<()> {
    let config = config::load(&flags)?;
    check_machine(&config)?;
    let watchdog = shared::run::systemd::watchdog()
        .map_err(|e| anyhow::anyhow!("create health checker: configure watchdog: {e}"))?;
    let _lock = lock::acquire(&config.command_line, &shutdown).await?;
    let tasks = TaskGroup::new();
    let client = crate::certs::client(&config, &tasks, &shutdown).await?;
    if client.is_none() {
        tracing::info!("Standalone mode, no API client");
    }
    let mut kubelet = Kubelet::build(config, client, &tasks, &shutdown).await?;
    let result = kubelet.start(&tasks, &shutdown).await;
    if result.is_ok() {
        shared::run::systemd::notify_ready();
        if let Some(limit) = watchdog {
            let (health, alive) = (Arc::clone(&kubelet.health), shared::run::systemd::notify_alive);
            tasks.spawn(
                "watchdog",
                crate::watchdog::run(limit, move || health.is_stuck(), alive, shutdown.token().clone()),
            );
        }
        shutdown.wait().await;
    }
    shutdown.trigger();
    kubelet.workers.close();
    let _ = tokio::time::timeout(DRAIN, kubelet.workers.wait()).await;
    tasks.drain(DRAIN).await;
    result
}

/// Upstream's word on machines that have the old version of cgroups.
const CGROUP_V1: &str = "cgroup v1 support is in maintenance mode, please migrate to cgroup v2";

/// Upstream's refusals.
fn check_machine(config: &Config) -> anyhow::Result<()> {
    let kubelet = &config.kubelet;
    if resources::cgroup_version() == CgroupVersion::V1 {
        tracing::warn!("cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release");
    }
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let areas: Vec<&str> = swaps.lines().skip(1).filter(|line| !line.trim().is_empty()).collect();
    if kubelet.fail_swap_on && !areas.is_empty() {
        bail!("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false");
    }
    resources::parse_qos_reserved(&kubelet.qos_reserved)
        .map_err(|error| anyhow::anyhow!("--qos-reserved value failed to parse: {error}"))?;
    eviction::signals::thresholds(kubelet)
        .map_err(|e| anyhow::anyhow!("failed to run Kubelet: failed to create kubelet: {e}"))?;
    let files = u64::try_from(kubelet.max_open_files).unwrap_or(u64::MAX);
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, files, files) {
        tracing::error!(%error, "Failed to set rlimit on max file handles");
    }
    // Only a process that may lower its score can; the rest stay as they are.
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", kubelet.oom_score_adj.to_string()) {
        tracing::warn!(%error, "Failed to apply oom score adj");
    }
    Ok(())
}

/// Starts the exporter of traces, where the configuration asks for them.
fn write_traces(
    kubelet: &KubeletConfiguration,
    settings: &Settings,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> anyhow::Result<Tracer> {
    let Some(configuration) = &kubelet.tracing else { return Ok(Tracer::default()) };
    let about = [("service.name", "kubelet"), ("host.name", &settings.node_name)];
    let (tracer, exporting) = Tracer::start(configuration, &about, None)?;
    let end = shutdown.token().clone();
    tasks.spawn("traces", async move { exporting.run(end.cancelled()).await });
    Ok(tracer)
}

/// Everything that was built.
struct Kubelet {
    config: Config,
    client: Option<kube::Client>,
    /// The client of the node's lease and status.
    heartbeats: Option<kube::Client>,
    factory: Option<Factory>,
    manager: Arc<Manager>,
    agent: Arc<Agent>,
    writer: Arc<Writer>,
    health: Arc<pleg::Health>,
    heard: Arc<Heard>,
    probe_updates: mpsc::Receiver<probes::ProbeUpdate>,
    workers: TaskTracker,
    drivers: Arc<Drivers>,
    certificates: Option<Arc<PodCertificates>>,
}

impl Kubelet {
    async fn build(
        config: Config,
        client: Option<kube::Client>,
        tasks: &TaskGroup,
        shutdown: &Shutdown,
    ) -> anyhow::Result<Self> {
        let kubelet = &config.kubelet;
        let settings = config.settings();
        let node_name = settings.node_name.clone();
        settings.make_folders(plugins::REGISTRY)?;
        let tracer = write_traces(kubelet, &settings, tasks, shutdown)?;
        let runtime = cri::Client::new(
            &kubelet.container_runtime_endpoint,
            &kubelet.image_service_endpoint,
            kubelet.runtime_request_timeout.0,
            &tracer,
        )
        .map_err(|e| anyhow::anyhow!("failed to run Kubelet: {e}"))?;
        let differing = tunables::Differing::of(kubelet.protect_kernel_defaults, &config.gates);
        tunables::set_up(Path::new("/proc/sys"), differing)
            .map_err(|e| anyhow::anyhow!("Failed to start ContainerManager: {e}"))?;
        let machine = resources::machine_info(&settings.root_dir);
        let allocatable = resources::allocatable(&machine, &settings.resources);
        let cgroups = cgroups(&config, &machine, &runtime).await?;
        limit_pods(kubelet, &cgroups, resources::enforced(&machine, &settings.resources)).await?;
        let version = if resources::cgroup_version() == CgroupVersion::V1 { 1.0 } else { 2.0 };
        crate::metrics::set("kubelet_cgroup_version", "[ALPHA] Version of the host's control groups", &[], version);
        crate::metrics::show();
        let own = Exclusive::new(&config, &settings, &machine)?;
        let addresses = NodeAddresses::find(config.command_line.node_ips.clone(), &node_name).await;
        let more = match &client {
            Some(_) => Some(MoreClients::new(&config).await?),
            None => None,
        };
        let events = events(more.as_ref().map(|more| more.events.clone()), tasks, shutdown, &node_name);
        let heartbeats = more.as_ref().map(|more| more.heartbeats.clone());
        let factory = client.as_ref().map(|client| Factory::new(client.clone(), tasks.clone(), shutdown.clone()));
        let with_certificates = config.gates.enabled(pod_certificates::GATE);
        let certificates = client.clone().zip(factory.as_ref()).filter(|_| with_certificates);
        let certificates = certificates.map(|(client, factory)| PodCertificates::new(client, factory, &node_name));
        let objects: Arc<dyn ObjectSource> = match client.clone().zip(more) {
            Some((client, more)) => {
                let strategy = &kubelet.config_map_and_secret_change_detection_strategy;
                let strategy = ChangeDetection::parse(strategy).map_err(anyhow::Error::msg)?;
                let (clients, of_config) = ((client, more.watches), (strategy, &config.gates));
                Arc::new(ApiObjects::new(clients, of_config, certificates.clone(), tasks, shutdown))
            }
            None => Arc::new(Standalone),
        };
        let counts_change = config.gates.enabled("MutableCSINodeAllocatableCount");
        let drivers = Arc::new(Drivers::new(client.clone(), &node_name).with_changing_counts(counts_change));
        let verification = kubelet.image_verification().map_err(|problems| anyhow::Error::msg(problems.join(", ")))?;
        let records = config
            .gates
            .enabled("KubeletEnsureSecretPulledImages")
            .then(|| Arc::new(PulledImages::new(&settings.root_dir, verification)));
        let line = &config.command_line;
        let (file, folder) = (&line.image_credential_provider_config, &line.image_credential_provider_bin_dir);
        let providers = Providers::of(file, folder, &config.gates)?;
        let (prober, probe_updates) = probes::Manager::new(Arc::new(runtime.clone()), Arc::clone(&events));
        let writer = Writer::new(client.clone());
        let identity = identity(&config, &settings, machine.clone(), allocatable.clone());
        let facts = PodFacts {
            node_name: node_name.clone(),
            host_ips: addresses.known().iter().map(IpAddr::to_string).collect(),
            pod_ips: Vec::new(),
            allocatable,
        };
        let userns = user_namespaces(&config, &settings, &machine)?;
        let network_error = Some("network state unknown".to_owned());
        let cx = Arc::new(WorkerContext {
            images: Images::new(settings.pulls, &settings.root_dir, records, providers),
            volumes: Arc::new(volumes::Manager::new(
                &settings,
                Arc::clone(&objects),
                Arc::clone(&drivers),
                Arc::clone(&events),
            )),
            cpus: own.cpus,
            memory: own.memory,
            topology: own.topology,
            claims: ResourceClaims::new((&settings.root_dir, &node_name), Arc::clone(&objects), client.clone()),
            devices: Devices::new(&settings.root_dir, own.nodes),
            userns,
            probes: Arc::new(prober),
            hooks: Arc::new(hooks::Runner::new(Arc::new(runtime.clone()), Arc::clone(&events))),
            runtime: Arc::new(runtime),
            machine,
            records: ResourceRecords::load(&settings.root_dir, &settings.gates)?,
            cgroups,
            objects,
            services: services(factory.as_ref()),
            events,
            statuses: Arc::clone(&writer) as _,
            node: ArcSwap::from_pointee(NodeState {
                facts,
                network_error,
                // Until the runtime has said its name.
                runtime_name: "containerd".to_owned(),
                ..NodeState::default()
            }),
            tracer,
            settings,
        });
        let workers = TaskTracker::new();
        let manager = Manager::new(Arc::clone(&cx), workers.clone(), shutdown.token().clone());
        writer.connect(&manager);
        let health = Arc::new(pleg::Health::default());
        let agent = Agent::new(
            cx,
            heartbeats.clone(),
            (identity, addresses),
            Arc::clone(&health),
            (kubelet.node_status_update_frequency.0, kubelet.node_status_report_frequency.0),
            kubelet.register_node,
            &kubelet.pod_cidr,
        );
        let here = || Scope { fields: Some(format!("spec.nodeName={node_name}")), ..Scope::default() };
        let heard = Arc::new(Heard {
            api: AtomicBool::new(factory.is_none()),
            file: AtomicBool::new(kubelet.static_pod_path.is_empty()),
            url: AtomicBool::new(kubelet.static_pod_url.is_empty()),
            pods: factory.as_ref().map(|factory| factory.informer_in::<Pod>(here())),
        });
        Ok(Self {
            config,
            client,
            heartbeats,
            factory,
            manager,
            agent,
            writer,
            health,
            heard,
            probe_updates,
            workers,
            drivers,
            certificates,
        })
    }

    /// Starts every task; returns once the ports are open.
    async fn start(&mut self, tasks: &TaskGroup, shutdown: &Shutdown) -> anyhow::Result<()> {
        let token = shutdown.token();
        let cx = Arc::clone(self.manager.context());
        cx.events.node(EventType::Normal, "Starting", "Starting kubelet.");
        if resources::cgroup_version() == CgroupVersion::V1 {
            cx.events.node(EventType::Warning, "CgroupV1", CGROUP_V1);
        }
        self.listen(tasks, shutdown).await?;
        let _ = tokio::time::timeout(RUNTIME_PATIENCE, self.agent.prepare()).await;
        self.informers(tasks, shutdown);
        tasks.spawn("status", Arc::clone(&self.writer).run(token.clone()));
        tasks.spawn("node", Arc::clone(&self.agent).run(token.clone()));
        tasks.spawn("pleg", pleg::run(Arc::clone(&self.manager), Arc::clone(&self.health), token.clone()));
        tasks.spawn("logs", pleg::logs::run(Arc::clone(&cx), token.clone()));
        let (heard, present) = (Arc::clone(&self.heard), Arc::clone(&self.heard));
        let present = move |uid: &str| present.is_unreadable(uid);
        let dead = self.config.command_line.dead_containers;
        let (manager, health) = (Arc::clone(&self.manager), Arc::clone(&self.health));
        let (ready, listed) = (move || heard.all(), move || health.listed());
        tasks.spawn("gc", pleg::gc::run(manager, dead, ready, present, listed, token.clone()));
        tasks.spawn("resizes", Arc::clone(&self.manager).retry_resizes_periodically());
        let kubelet = &self.config.kubelet;
        let images = Arc::new(eviction::images::ImageCollector::new(Arc::clone(&cx), kubelet.into()));
        let (manager, agent) = (Arc::clone(&self.manager), Arc::clone(&self.agent));
        let eviction = eviction::Eviction::new(manager, agent, Arc::clone(&images), kubelet, dead);
        let eviction = eviction.map_err(|e| anyhow::anyhow!("failed to run Kubelet: failed to create kubelet: {e}"))?;
        tasks.spawn("eviction", eviction.run(token.clone()));
        tasks.spawn("images", images.run(token.clone()));
        let (manager, writer, agent) = (Arc::clone(&self.manager), Arc::clone(&self.writer), Arc::clone(&self.agent));
        let node = NodePods { manager, writer, agent };
        tasks.spawn("shutdown", shutdown_pods::watch(&self.config, node, &cx.settings.root_dir, token.clone()));
        tasks.spawn("util-chains", util_chains::run(kubelet.make_iptables_util_chains, token.clone()));
        let system = SystemCgroups::new(resources::cgroup_version(), &kubelet.system_cgroups, &kubelet.kubelet_cgroups);
        if let Some(system) = system.map_err(|e| anyhow::anyhow!("Failed to start ContainerManager: {e}"))? {
            tasks.spawn("system-cgroups", system.run(token.clone()));
        }
        tasks.spawn("oom", kmsg::run(Arc::clone(&cx.events), token.clone()));
        self.static_pods(tasks, shutdown);
        self.plugins(tasks, shutdown);
        self.wake_workers(tasks, shutdown);
        if let (Some(client), Some(heartbeats)) = (&self.client, &self.heartbeats) {
            let uid = |agent: &Arc<Agent>| {
                let agent = Arc::clone(agent);
                move || agent.uid()
            };
            let seconds = self.config.kubelet.node_lease_duration_seconds;
            let name = cx.settings.node_name.clone();
            tasks.spawn("lease", lease::run(heartbeats.clone(), name, seconds, uid(&self.agent), token.clone()));
            if let Some(certificates) = self.certificates.clone() {
                let manager = Arc::clone(&self.manager);
                tasks.spawn("pod-certificates", certificates.run(manager, uid(&self.agent), token.clone()));
            }
            let heard = Arc::clone(&self.heard);
            let manager = Arc::clone(&self.manager);
            tasks.spawn(
                "mirror",
                mirror::run(manager, client.clone(), uid(&self.agent), move || heard.all(), token.clone()),
            );
        }
        self.enforce_reservations(&cx).await?;
        if enforces_allocatable(&self.config.kubelet) {
            cx.events.node(EventType::Normal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods");
        }
        // Whoever has a gate has asked for it by now.
        self.config.gates.warn_idle();
        tracing::info!(node = cx.settings.node_name, "Started kubelet");
        Ok(())
    }

    /// Holds the cgroups of the system and of the kubelet to what is reserved for them, where that is wanted.
    async fn enforce_reservations(&self, cx: &WorkerContext) -> anyhow::Result<()> {
        let kubelet = &self.config.kubelet;
        let wanted = |key: &str| kubelet.enforce_node_allocatable.iter().any(|wanted| wanted == key);
        for (whose, key, path, amounts) in [
            ("System", "system-reserved", &kubelet.system_reserved_cgroup, &kubelet.system_reserved),
            ("Kube", "kube-reserved", &kubelet.kube_reserved_cgroup, &kubelet.kube_reserved),
        ] {
            let compressible = wanted(&format!("{key}-compressible"));
            if !compressible && !wanted(key) {
                continue;
            }
            let (tree, path, reserved) =
                (Arc::clone(&cx.cgroups), path.clone(), resources::reservation(amounts, compressible));
            let held = path.clone();
            let done = tokio::task::spawn_blocking(move || tree.enforce(&held, &reserved)).await?;
            if let Err(error) = done {
                let text = format!("Failed to enforce {whose} Reserved Cgroup Limits on {path:?}: {error}");
                cx.events.node(EventType::Warning, "FailedNodeAllocatableEnforcement", &text);
                bail!("Failed to start ContainerManager: {text}");
            }
            let text = format!("Updated limits on {} reserved cgroup {path}", whose.to_lowercase());
            cx.events.node(EventType::Normal, "NodeAllocatableEnforced", &text);
        }
        Ok(())
    }

    /// Pods and node out of the API server.
    fn informers(&self, tasks: &TaskGroup, shutdown: &Shutdown) {
        let Some(factory) = &self.factory else { return };
        if let Some(pods) = &self.heard.pods {
            pods.set_transform(api::transform);
            let sink = ApiPods { manager: Arc::clone(&self.manager), writer: Arc::clone(&self.writer) };
            let stream = Arc::new(PodStream::new(sink));
            let told = Arc::clone(&stream);
            pods.add_handler(move |event| told.tell(event));
            let (pods, heard, token) = (pods.clone(), Arc::clone(&self.heard), shutdown.token().clone());
            tasks.spawn("api-pods", async move {
                tokio::select! {
                    () = token.cancelled() => return,
                    () = pods.synced() => stream.deliver(),
                }
                heard.api.store(true, Ordering::Relaxed);
            });
        }
        let name = &self.manager.context().settings.node_name;
        let node =
            factory.informer_in::<Node>(Scope { fields: Some(format!("metadata.name={name}")), ..Scope::default() });
        node.set_transform(|node: &mut Node| node.metadata.managed_fields = None);
        let agent = Arc::clone(&self.agent);
        node.add_handler(move |event| {
            if let Event::Added(node) | Event::Updated { new: node, .. } = event {
                agent.observed(node);
            }
        });
        factory.start();
    }

    /// Plugins that register themselves: a type is a line.
    fn plugins(&self, tasks: &TaskGroup, shutdown: &Shutdown) {
        let folder = self.manager.context().settings.root_dir.join(plugins::REGISTRY);
        let devices = Arc::clone(&self.manager.context().devices);
        let claims = Arc::clone(&self.manager.context().claims);
        if self.manager.context().settings.gates.enabled(resource_health::GATE) {
            claims.watch_health();
            let (manager, devices, claims) = (Arc::clone(&self.manager), Arc::clone(&devices), Arc::clone(&claims));
            let token = shutdown.token().clone();
            tasks.spawn("resource-health", async move {
                loop {
                    let uids = tokio::select! {
                        () = token.cancelled() => return,
                        uids = devices.updates.take() => uids,
                        uids = claims.updates.take() => uids,
                    };
                    for uid in uids {
                        manager.poke(&uid);
                    }
                }
            });
        }
        let handlers: [(_, Arc<dyn plugins::Handler>); 3] = [
            (csi::KIND, Arc::clone(&self.drivers) as _),
            (devices::KIND, Arc::new(DeviceHandler(Arc::clone(&devices)))),
            (resource_claims::KIND, Arc::new(ClaimHandler(Arc::clone(&claims)))),
        ];
        let handlers: plugins::Handlers = handlers.into();
        tasks.spawn("plugins", plugins::run(folder, handlers, shutdown.token().clone()));
        let (drivers, token) = (Arc::clone(&self.drivers), shutdown.token().clone());
        let objects = Arc::clone(&self.manager.context().objects);
        tasks.spawn("csi-node", async move { drivers.run(&*objects, token).await });
        let cx = self.manager.context();
        tasks.spawn("cpus", Arc::clone(&cx.cpus).run(Arc::clone(&cx.runtime), shutdown.token().clone()));
        tasks.spawn("resource-claims", claims.run(shutdown.token().clone()));
        tasks.spawn("devices", Arc::clone(&devices).run(shutdown.token().clone()));
        let (manager, token) = (Arc::clone(&self.manager), shutdown.token().clone());
        tasks.spawn("pod-resources", async move {
            let root = manager.context().settings.root_dir.clone();
            pod_resources::run(&root, manager, devices, token).await;
        });
    }

    /// A probe that changed its mind wakes the pod's worker, a runtime that did wakes all.
    fn wake_workers(&mut self, tasks: &TaskGroup, shutdown: &Shutdown) {
        let (_, closed) = mpsc::channel(1);
        let mut updates = std::mem::replace(&mut self.probe_updates, closed);
        let (manager, agent, token) = (Arc::clone(&self.manager), Arc::clone(&self.agent), shutdown.token().clone());
        tasks.spawn("wake", async move {
            loop {
                tokio::select! {
                    () = token.cancelled() => return,
                    () = agent.runtime_changed.notified() => manager.poke_all(),
                    update = updates.recv() => match update {
                        Some(update) => drop(manager.poke(&update.pod_uid)),
                        None => return,
                    },
                }
            }
        });
    }

    async fn listen(&self, tasks: &TaskGroup, shutdown: &Shutdown) -> anyhow::Result<()> {
        let kubelet = &self.config.kubelet;
        let server = Arc::new(Server {
            manager: Arc::clone(&self.manager),
            agent: Arc::clone(&self.agent),
            stats: Arc::new(Stats::new(Arc::clone(&self.manager))),
            health: Arc::clone(&self.health),
            access: self.access(tasks, shutdown)?,
            configuration: self.config.document.clone(),
            handlers: Handlers {
                debugging: kubelet.enable_debugging_handlers,
                system_logs: kubelet.enable_system_log_handler,
                system_log_query: kubelet.enable_system_log_query && self.config.gates.enabled("NodeLogQuery"),
                checkpoints: self.config.gates.enabled("ContainerCheckpoint"),
                profiling: kubelet.enable_profiling_handler,
                debug_flags: kubelet.enable_debug_flags_handler,
            },
            streams: TaskTracker::new(),
        });
        let token = shutdown.token();
        if kubelet.healthz_port > 0 {
            let listener = bind(&kubelet.healthz_bind_address, kubelet.healthz_port).await?;
            tasks.spawn("healthz", Arc::clone(&server).plain(listener, Port::Health, token.clone()));
        }
        if !kubelet.enable_server {
            return Ok(());
        }
        if kubelet.read_only_port > 0 {
            let listener = bind(&kubelet.address, kubelet.read_only_port).await?;
            tasks.spawn("read-only", Arc::clone(&server).plain(listener, Port::ReadOnly, token.clone()));
        }
        let addresses = self.agent.addresses();
        let key = crate::certs::serving_key(&self.config, addresses, self.client.as_ref(), tasks, shutdown)?;
        let tls = shared::cert::server_config_with(key, true, &kubelet.tls_options()?)?;
        let listener = bind(&kubelet.address, kubelet.port).await?;
        tasks.spawn("server", server.secure(listener, tls, token.clone()));
        Ok(())
    }

    /// Returns the access check of the secure port.
    fn access(&self, tasks: &TaskGroup, shutdown: &Shutdown) -> anyhow::Result<Access> {
        let (authentication, authorization) = (&self.config.kubelet.authentication, &self.config.kubelet.authorization);
        let mut members: Vec<Arc<dyn Authenticator>> = Vec::new();
        let ca = &authentication.x509.client_ca_file;
        if !ca.is_empty() {
            let pem = std::fs::read(ca).with_context(|| format!("unable to load client CA file {ca}"))?;
            let x509 =
                Arc::new(X509::new(&pem).map_err(|e| anyhow::anyhow!("unable to load client CA file {ca}: {e}"))?);
            members.push(Arc::clone(&x509) as _);
            tasks.spawn("client-ca", crate::certs::follow_client_ca(ca.clone(), pem, x509, shutdown.token().clone()));
        }
        if authentication.webhook.enabled {
            let Some(client) = &self.client else {
                bail!("no client provided, cannot use webhook authentication");
            };
            members.push(Arc::new(TokenReviewAuthenticator::new(
                client.clone(),
                Vec::new(),
                authentication.webhook.cache_ttl.0,
            )));
        }
        let known = GroupAdder(shared::authn::Union::new(members));
        let authenticator: Arc<dyn Authenticator> = if authentication.anonymous.enabled {
            Arc::new(OrAnonymous { chain: known, paths: Vec::new() })
        } else {
            Arc::new(known)
        };
        let authorizer: Arc<dyn Authorizer> = match authorization.mode.as_str() {
            "AlwaysAllow" => Arc::new(AlwaysAllow),
            "Webhook" => {
                let Some(client) = &self.client else {
                    bail!("no client provided, cannot use webhook authorization");
                };
                let times = &authorization.webhook;
                Arc::new(SubjectAccessReviewAuthorizer::new(
                    client.clone(),
                    times.cache_authorized_ttl.0,
                    times.cache_unauthorized_ttl.0,
                ))
            }
            "" => bail!("no authorization mode specified"),
            other => bail!("unknown authorization mode {other}"),
        };
        Ok(Access { authenticator, authorizer, node_name: self.config.node_name() })
    }
}

/// Makes the groups that pods run in, held to what pods may have together where that is wanted.
async fn limit_pods(
    kubelet: &KubeletConfiguration,
    cgroups: &Arc<dyn Cgroups>,
    enforced: BTreeMap<String, Quantity>,
) -> anyhow::Result<()> {
    let limits = if enforces_allocatable(kubelet) { enforced } else { Default::default() };
    let tree = Arc::clone(cgroups);
    tokio::task::spawn_blocking(move || tree.ensure_tree(&limits))
        .await?
        .map_err(|e| anyhow::anyhow!("Failed to start ContainerManager: {e}"))
}

fn enforces_allocatable(kubelet: &KubeletConfiguration) -> bool {
    kubelet.enforce_node_allocatable.iter().any(|what| what == "pods")
}

/// The ids of the node that pods with `hostUsers: false` get.
fn user_namespaces(
    config: &Config,
    settings: &Settings,
    machine: &MachineInfo,
) -> anyhow::Result<Option<UserNamespaces>> {
    if !config.gates.enabled(userns::GATE) {
        return Ok(None);
    }
    let per_pod = config.kubelet.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod);
    let failed = "failed to run Kubelet: failed to create kubelet: create user namespace manager";
    let ids = userns::IdRange::of_node(&machine.kernel_version)
        .map_err(|error| anyhow::anyhow!("{failed}: kubelet mappings: {error}"))?;
    let made = UserNamespaces::new(&settings.root_dir, ids, per_pod, config.kubelet.max_pods);
    made.map(Some).map_err(|error| anyhow::anyhow!("{failed}: {error}"))
}

/// Returns the recorder of events: to the API server, or to the log where there is none.
fn events(client: Option<kube::Client>, tasks: &TaskGroup, shutdown: &Shutdown, node: &str) -> Arc<dyn EventSink> {
    match client {
        Some(client) => {
            let recorder = Recorder::new(client, tasks, shutdown, "kubelet", node);
            Arc::new(ApiEvents::new(recorder, node))
        }
        None => Arc::new(LogSink),
    }
}

/// The services that pods are told of in their environment.
fn services(factory: Option<&Factory>) -> Arc<dyn ServiceLister> {
    match factory {
        Some(factory) => {
            let informer = factory.informer::<Service>();
            informer.set_transform(slim_service);
            Arc::new(InformedServices(informer))
        }
        None => Arc::new(NoServices),
    }
}

async fn cgroups(config: &Config, machine: &MachineInfo, runtime: &cri::Client) -> anyhow::Result<Arc<dyn Cgroups>> {
    let kubelet = &config.kubelet;
    let driver = resources::driver::of_runtime(runtime, &kubelet.cgroup_driver).await?;
    if !kubelet.cgroups_per_qos {
        return Ok(Arc::new(NoCgroups));
    }
    let root = if kubelet.cgroup_root.is_empty() { "/" } else { &kubelet.cgroup_root };
    let tree = || {
        let driver = resources::driver::named(&driver)?;
        let (sizes, resources) = (machine.hugepages.keys().copied().collect(), config.settings().resources);
        let memory = resources::enforced(machine, &resources).get("memory").and_then(|memory| memory.0.parse().ok());
        let memory = memory.map_or(0, |memory: proto::quantity::Quantity| memory.value());
        let tree = FsCgroups::new(root, resources::cgroup_version(), resources, driver, sizes)?;
        Ok::<_, resources::CgroupError>(tree.with_allocatable(memory))
    };
    Ok(Arc::new(tree().map_err(|e| anyhow::anyhow!("Failed to start ContainerManager: {e}"))?))
}

async fn bind(address: &str, port: i32) -> anyhow::Result<TcpListener> {
    let ip: IpAddr = address.parse().with_context(|| format!("invalid address {address:?}"))?;
    let port = u16::try_from(port).with_context(|| format!("invalid port {port}"))?;
    TcpListener::bind((ip, port)).await.with_context(|| format!("failed to listen on {address}:{port}"))
}
