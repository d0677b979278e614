//! The process: configuration, connection, informers, ports, and the proxier in the middle.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::StatusCode;
use ipnet::IpNet;
use k8s_openapi::Resource;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use proto::protobuf::to_json;
use shared::client;
use shared::config::Settings as Fields;
use shared::flags::FlagSet;
use shared::informer::{Event, Factory, Informer, Object, Scope};
use shared::run::{Shutdown, TaskGroup};
use shared::typed::ReadError;

use crate::addresses::NodePortResolver;
use crate::backend::{Backend, DryRun, Environment, Mode, Options, SyncError};
use crate::changes::{Changes, TRIGGERED};
use crate::config_file;
use crate::conntrack;
use crate::debug;
use crate::detect::LocalDetector;
use crate::events::ProxyEvents;
use crate::health::{CheckPorts, Health};
use crate::http::{Handler, ProxyResponse, bind, by_path, serve};
use crate::kernel;
use crate::metrics;
use crate::mode::{self, MODES};
use crate::plan::{Family, NodeFacts};
use crate::proxier::{self, FamilyProxy, Proxier, Stores};
use crate::settings::{LocalMode, Settings, from_flags, parse};

/// Services of other proxies and headless ones are not even sent to us.
const NOT_OURS: &str = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
/// Media type of the API server's own encoding.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Time that the node object has to show what a mode needs to know.
const NODE_PATIENCE: Duration = Duration::from_secs(300);
/// Longest wait for the node's addresses.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(30);
/// Before a port that is taken is tried again.
const BIND_RETRY: Duration = Duration::from_secs(5);
const DRAIN: Duration = Duration::from_secs(5);

/// Runs kube-proxy until shutdown.
///
/// # Errors
/// An unusable configuration, a port that is taken, or an API server that cannot be addressed.
pub async fn run(flags: FlagSet, shutdown: Shutdown) -> Result<()> {
    let configuration = configuration(&flags)?;
    let write_to = flags.string("write-config-to");
    if !write_to.is_empty() {
        std::fs::write(&write_to, proto::yaml::encode_any(&configuration.0)?).context("writing the configuration")?;
        return Ok(());
    }
    shared::run::set_logging(&configuration, &flags)?;
    let settings = parse(configuration, &flags.feature_gates(), flags.string("master"), &shared::serve::hostname())?;
    shared::metrics::set_feature_gates(settings.gates.clone());
    if flags.boolean("cleanup") {
        return clean_up(&settings, MODES, true).await;
    }
    if let Some(value) = settings.oom_score_adj {
        kernel::set_oom_score_adj(value);
    }
    kernel::tune_conntrack(&settings.conntrack);
    if settings.localhost_node_ports {
        kernel::allow_localhost_node_ports();
    }
    // Each failure has been logged, and rules that stay do no more than they did before.
    clean_up(&settings, mode::others(settings.mode), false).await.ok();
    if flags.boolean("init-only") {
        return Ok(());
    }
    flags.warn_unread();
    settings.gates.warn_idle();
    settings.warn_ignored();
    let file = flags.string("config");
    tokio::select! {
        ended = proxy(settings, shutdown) => ended,
        changed = config_file::changed(&file), if !file.is_empty() => changed,
    }
}

/// The file's content when there is a `--config`, else what the flags say. As upstream, a file makes other flags
/// void, except for the node's name and what is logged.
pub(crate) fn configuration(flags: &FlagSet) -> Result<Fields> {
    let path = flags.string("config");
    let mut fields = match path.as_str() {
        "" => from_flags(flags),
        path => Fields(shared::config::load(path, "KubeProxyConfiguration")?),
    };
    if flags.is_set("hostname-override") {
        fields.set("hostnameOverride", flags.string("hostname-override").into());
    }
    if flags.is_set("logging-format") {
        fields.set("logging.format", flags.string("logging-format").into());
    }
    if flags.is_set("v") {
        fields.set("logging.verbosity", flags.integer("v").into());
    }
    Ok(fields)
}

async fn proxy(settings: Settings, shutdown: Shutdown) -> Result<()> {
    let tasks = TaskGroup::new();
    let client = client::new(&client::Options {
        kubeconfig: settings.kubeconfig.clone(),
        master: settings.master.clone(),
        qps: settings.qps,
        burst: settings.burst,
        user_agent: client::user_agent("kube-proxy"),
    })
    .await?;
    let health = Health::new(settings.sync_period);
    let changes = Arc::new(Changes::default());
    open_ports(&settings, &health, &changes, &tasks, &shutdown).await?;
    let families = supported_families(&settings).await?;
    let events = ProxyEvents::new(client.clone(), &tasks, &shutdown, &settings.node_name);

    // A cluster without these objects is served all the same.
    let networks = Factory::new(client.clone(), tasks.clone(), shutdown.clone());
    let service_networks = networks.informer_in::<ServiceCIDR>(Scope::default());
    let factory = Factory::new(client, tasks.clone(), shutdown.clone());
    let ours = Scope { labels: Some(NOT_OURS.to_owned()), ..Scope::default() };
    let this = Scope { fields: Some(format!("metadata.name={}", settings.node_name)), ..Scope::default() };
    let services = factory.informer_in::<Service>(ours.clone());
    let slices = factory.informer_in::<EndpointSlice>(ours);
    let nodes = factory.informer_in::<Node>(this);
    read(&services, &settings.content_type, slim_service);
    read(&slices, &settings.content_type, slim_slice);
    read(&nodes, &settings.content_type, slim_node);

    proxier::index(&slices);
    follow(&services, &changes, &health, &families, (Changes::of_service, metrics::service_changed));
    follow(&slices, &changes, &health, &families, (Changes::of_slice, metrics::endpoint_changed));
    watch_node(&nodes, &changes, &health);
    let of_networks = Arc::clone(&changes);
    service_networks.add_handler(move |_| of_networks.of_environment());
    networks.start();
    factory.start();
    if !factory.wait_synced().await {
        return Ok(());
    }
    let Some(node) = node_facts(&settings, &nodes, &shutdown).await? else { return Ok(()) };
    let node_ports =
        NodePortResolver { configured: settings.node_port_addresses.clone(), node: node.addresses.clone() };
    let of_family = |family: &Family| {
        let environment = Environment { node_ports: node_ports.resolve(*family), ..Environment::default() };
        FamilyProxy::new(*family, backend(&settings, *family, &node, environment, None))
    };
    let (flows, reconciler) = conntrack::reconciler();
    tasks.spawn("conntrack", reconciler.run(shutdown.clone()));
    let proxier = Proxier {
        flows,
        mode: settings.mode,
        families: families.iter().map(of_family).collect(),
        stores: Stores {
            services: services.store(),
            slices: slices.store(),
            nodes: nodes.store(),
            service_networks: service_networks.store(),
        },
        node_name: settings.node_name.clone(),
        check_ports: CheckPorts::new(
            health.clone(),
            node_ports.clone(),
            shutdown.token().child_token(),
            events.clone(),
        ),
        health,
        changes,
        node_ports,
        sync_period: settings.sync_period,
        min_sync_period: settings.min_sync_period,
    };
    events.starting();
    proxier.run(tasks.clone(), shutdown).await;
    tasks.drain(DRAIN).await;
    Ok(())
}

/// Facts of the node object that modes need.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeNetworks {
    /// At most one for each family.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) pods: Vec<IpNet>,
}

/// The node's addresses, the internal one of a family before its external one, and the networks of its pods.
pub(crate) fn networks(node: &Node) -> NodeNetworks {
    let listed = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of = |kind: &'static str| {
        let listed = listed.clone().filter(move |address| address.type_ == kind);
        listed.filter_map(|address| address.address.parse::<IpAddr>().ok())
    };
    let all: Vec<IpAddr> = of("InternalIP").chain(of("ExternalIP")).collect();
    let first = |family: Family| all.iter().copied().find(|address| family.holds(*address));
    let spec = node.spec.as_ref();
    let pods = spec.and_then(|spec| spec.pod_cidrs.as_ref()).into_iter().flatten();
    NodeNetworks {
        addresses: [Family::V4, Family::V6].into_iter().filter_map(first).collect(),
        pods: pods.filter_map(|cidr| cidr.parse().ok()).collect(),
    }
}

/// Waits for what the configured modes need; `None` when the process is to end first. Without pod networks a proxy that tells
/// pods by them cannot work; without addresses of the node it goes on, as upstream's does.
async fn node_facts(settings: &Settings, nodes: &Informer<Node>, shutdown: &Shutdown) -> Result<Option<NodeNetworks>> {
    let (sender, mut receiver) = tokio::sync::watch::channel(NodeNetworks::default());
    nodes.add_handler(move |event| {
        sender.send_replace(networks(event.object()));
    });
    let is_bound = !settings.bind_address.is_unspecified();
    let known = async {
        tokio::time::timeout(ADDRESS_PATIENCE, receiver.wait_for(|found| is_bound || !found.addresses.is_empty()))
            .await
            .ok();
        if settings.local == LocalMode::NodeCidr {
            tokio::time::timeout(NODE_PATIENCE, receiver.wait_for(|found| !found.pods.is_empty())).await.ok();
        }
        receiver.borrow().clone()
    };
    let mut found = tokio::select! {
        () = shutdown.wait() => return Ok(None),
        found = known => found,
    };
    if settings.local == LocalMode::NodeCidr && found.pods.is_empty() {
        bail!("timeout waiting for PodCIDR allocation on node {}", settings.node_name);
    }
    if is_bound {
        found.addresses.retain(|address| address.is_ipv4() != settings.bind_address.is_ipv4());
        found.addresses.push(settings.bind_address);
    }
    if found.addresses.is_empty() {
        tracing::warn!(node = settings.node_name, "Failed to retrieve node IPs");
    }
    Ok(Some(found))
}

/// The families that the machine can serve.
///
/// # Errors
/// That of the address that is bound is not among them.
async fn supported_families(settings: &Settings) -> Result<Vec<Family>> {
    let primary = if settings.bind_address.is_ipv4() { Family::V4 } else { Family::V6 };
    let mut supported = Vec::new();
    for family in [Family::V4, Family::V6] {
        let backend = backend(settings, family, &NodeNetworks::default(), Environment::default(), None);
        let outcome = match kernel::has_family(family) {
            true => backend.check_support().await.map_err(|error| error.to_string()),
            false => Err("no interface has an address of it".to_owned()),
        };
        match outcome {
            Ok(()) => supported.push(family),
            Err(error) if family == primary => {
                bail!("no support for primary IP family \"{}\": {error}", family.address_type());
            }
            Err(error) => tracing::info!(family = family.address_type(), %error, "No support for IP family"),
        }
    }
    Ok(supported)
}

/// The back end of the configured mode for a family. With a dry run it does nothing but note what it would do.
pub(crate) fn backend(
    settings: &Settings,
    family: Family,
    node: &NodeNetworks,
    environment: Environment,
    dry_run: Option<DryRun>,
) -> Box<dyn Backend> {
    let detector = match &settings.local {
        LocalMode::ClusterCidr(networks) if networks.is_empty() => LocalDetector::None,
        LocalMode::ClusterCidr(networks) => LocalDetector::Networks(networks.clone()),
        LocalMode::NodeCidr => LocalDetector::Networks(node.pods.clone()),
        LocalMode::Bridge(name) => LocalDetector::Bridge(name.clone()),
        LocalMode::Prefix(prefix) => LocalDetector::Prefix(prefix.clone()),
    };
    let options = Options {
        masquerade_all: settings.masquerade_all,
        masquerade_mark: settings.masquerade_mark,
        detector,
        localhost_node_ports: settings.localhost_node_ports,
        node_addresses: node.addresses.iter().copied().filter(|address| family.holds(*address)).collect(),
        drop_invalid: !kernel::is_liberal(),
        environment,
        dry_run,
        ..Options::new(family)
    };
    (settings.mode.backend)(options, &settings.configuration)
}

/// Takes away what these modes left, in both families: all that may be there (`--cleanup`), or what is seen to be there. A
/// tool that is not installed has left nothing.
async fn clean_up(settings: &Settings, modes: impl IntoIterator<Item = &'static Mode>, all: bool) -> Result<()> {
    let mut failed = false;
    for mode in modes {
        let settings = Settings { mode, ..settings.clone() };
        for family in [Family::V4, Family::V6].into_iter().filter(|family| kernel::has_family(*family)) {
            let mut backend = backend(&settings, family, &NodeNetworks::default(), Environment::default(), None);
            if !all && !backend.is_present().await {
                continue;
            }
            match backend.clean_up().await {
                Ok(()) | Err(SyncError::Start { .. }) => {}
                Err(error) => {
                    failed = true;
                    tracing::error!(mode = mode.name, %error, "Failed to clean up");
                }
            }
        }
    }
    if failed {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}

/// Watches in protobuf where the configuration says so, and drops what rules are not made from.
fn read<K: Object + Resource>(informer: &Informer<K>, content_type: &str, slim: fn(&mut K)) {
    informer.set_transform(slim);
    if content_type != PROTOBUF {
        return;
    }
    informer.read_protobuf(move |raw| {
        let schema = proto::schema::kind(K::GROUP, K::VERSION, K::KIND).ok_or(ReadError::UnknownKind)?;
        let mut text = Vec::new();
        to_json(schema, K::API_VERSION, K::KIND, raw, &mut text)?;
        let mut object: K = serde_json::from_slice(&text)?;
        slim(&mut object);
        Ok(object)
    });
}

fn slim_service(service: &mut Service) {
    service.metadata.annotations = None;
    service.metadata.managed_fields = None;
}

fn slim_slice(slice: &mut EndpointSlice) {
    if let Some(annotations) = &mut slice.metadata.annotations {
        annotations.retain(|name, _| name == TRIGGERED);
    }
    slice.metadata.managed_fields = None;
    slice.endpoints.iter_mut().for_each(|endpoint| endpoint.target_ref = None);
}

fn slim_node(node: &mut Node) {
    node.metadata.annotations = None;
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}

/// Takes an event in; false for one that no rule depends on.
type Note<K> = fn(&Changes, &Event<K>) -> bool;

/// Notes the changes that rules depend on.
fn follow<K: Object>(
    informer: &Informer<K>,
    changes: &Arc<Changes>,
    health: &Health,
    families: &[Family],
    (note, count): (Note<K>, fn()),
) {
    let (changes, health, families) = (Arc::clone(changes), health.clone(), families.to_vec());
    informer.add_handler(move |event| {
        if !note(&changes, event) {
            return;
        }
        count();
        families.iter().for_each(|family| metrics::queued(*family));
        health.queued(families.iter().copied());
    });
}

fn watch_node(nodes: &Informer<Node>, changes: &Arc<Changes>, health: &Health) {
    let (changes, health) = (Arc::clone(changes), health.clone());
    nodes.add_handler(move |event| {
        let node = event.object();
        // Of a node that was deleted the last state counts, as upstream's.
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        let going = node.metadata.deletion_timestamp.is_some()
            || taints.into_iter().any(|taint| taint.key == "ToBeDeletedByClusterAutoscaler");
        health.set_eligible(!going);
        let moved = match event {
            Event::Updated { old, new } => NodeFacts::of(old) != NodeFacts::of(new),
            Event::Added(_) | Event::Deleted(_) => true,
        };
        if moved {
            changes.of_node();
        }
    });
}

/// Serves health and metrics. A port that is taken is tried again, unless `bindAddressHardFail` says otherwise: the pod
/// before this one may still have it.
async fn open_ports(
    settings: &Settings,
    health: &Health,
    changes: &Arc<Changes>,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> Result<()> {
    if let Some(address) = settings.healthz {
        let health = health.clone();
        let page = by_path(move |path: &str| health.page(path));
        serve_at(settings, address, "healthz", page, tasks, shutdown).await?;
    }
    if let Some(address) = settings.metrics {
        let pages = by_path(diagnostics(settings, changes));
        let has_debug = settings.profiling;
        let handler: Handler = Arc::new(move |request| match has_debug && debug::has(request.uri().path()) {
            true => Box::pin(debug::page(request)),
            false => pages(request),
        });
        serve_at(settings, address, "metrics", handler, tasks, shutdown).await?;
    }
    Ok(())
}

async fn serve_at(
    settings: &Settings,
    address: std::net::SocketAddr,
    what: &'static str,
    pages: Handler,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> Result<()> {
    let mut listener = match bind(address).await {
        Err(error) if settings.bind_hard_fail => {
            return Err(error).with_context(|| format!("cannot serve {what} on {address}"));
        }
        bound => bound,
    };
    let token = shutdown.token().clone();
    tasks.spawn(what, async move {
        loop {
            match listener {
                Ok(listener) => return serve(listener, token, pages).await,
                Err(error) => tracing::error!(%address, %error, "Failed to serve {what}, trying again"),
            }
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(BIND_RETRY) => {}
            }
            listener = bind(address).await;
        }
    });
    Ok(())
}

/// The pages of the metrics port.
fn diagnostics(settings: &Settings, changes: &Arc<Changes>) -> impl Fn(&str) -> ProxyResponse + Send + Sync + use<> {
    let (mode, changes) = (settings.mode.name, Arc::clone(changes));
    let configuration = serde_json::json!({"kubeproxy.config.k8s.io": settings.configuration.0}).to_string();
    move |path| match path {
        "/metrics" => {
            metrics::pending(changes.pending());
            ProxyResponse {
                content_type: "text/plain; version=0.0.4; charset=utf-8".into(),
                ..ProxyResponse::text(shared::metrics::gather())
            }
        }
        "/proxyMode" => ProxyResponse::text(mode),
        "/healthz" => ProxyResponse::text("ok"),
        "/configz" => ProxyResponse::json(StatusCode::OK, configuration.clone()),
        _ => ProxyResponse::not_found(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_the_same_in_both_encodings() {
        let object = serde_json::json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"},
                "annotations": {TRIGGERED: "2026-01-01T00:00:00Z"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "n1", "conditions": {"ready": true}}]});
        let schema = proto::schema::kind(EndpointSlice::GROUP, EndpointSlice::VERSION, EndpointSlice::KIND);
        let schema = schema.expect("a schema");
        let bytes = proto::protobuf::encode(schema, &object);
        let mut text = Vec::new();
        to_json(schema, EndpointSlice::API_VERSION, EndpointSlice::KIND, &bytes, &mut text).expect("JSON");
        let read: EndpointSlice = serde_json::from_slice(&text).expect("a slice");
        assert_eq!(read, serde_json::from_value(object).expect("a slice"));
    }
}
