//! `kube-proxy explain SERVICE`: the endpoints that a client on a node would reach, by which address, and why; and why it would
//! not reach the others. Against a live cluster or a dump of one. Reads only, and asks the same plan as the proxy.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::{Arg, ArgMatches, Command};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use shared::tool::{self, cluster_args, connect, output_arg};

use crate::cluster::Cluster;
use crate::plan::{
    Delta, Desired, Endpoint, EndpointUse, Family, Judged, NodeFacts, PortName, ServicePort, TrafficPolicy, judge,
};

const NAME: &str = "explain";

fn command() -> Command {
    let [kubeconfig, dump] = cluster_args();
    Command::new("kube-proxy explain")
        .about("Tells which endpoints clients on a node reach by which address of a service, and why. Changes nothing.")
        .arg(Arg::new("service").value_name("SERVICE").required(true).help("Name of the service"))
        .arg(Arg::new("namespace").short('n').long("namespace").value_name("NAMESPACE").default_value("default"))
        .arg(
            Arg::new("node")
                .long("node")
                .value_name("NODE")
                .help("The node whose proxy is asked; this machine by default"),
        )
        .args([kubeconfig, dump, output_arg()])
}

/// Runs the command if the arguments (without the program's name) ask for it.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    tool::run(NAME, command, tell, arguments)
}

async fn tell(matches: &ArgMatches) -> Result<String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let path = |name: &str| matches.get_one::<PathBuf>(name).map(PathBuf::as_path);
    let cluster = match path("from-dump") {
        Some(file) => Cluster::load(file)?,
        None => Cluster::read(&connect("kube-proxy-explain", path("kubeconfig")).await?).await?,
    };
    let (namespace, name) = (text("namespace").unwrap_or_default(), text("service").unwrap_or_default());
    let node = text("node").unwrap_or_else(shared::serve::hostname);
    let node = cluster.node(&node).with_context(|| format!("nodes {node:?} not found, name one with --node"))?;
    let service = cluster.service(&namespace, &name);
    let service = service.with_context(|| format!("services {name:?} not found in {namespace}"))?;
    let slices = cluster.slices().remove(&(namespace.as_str(), name.as_str())).unwrap_or_default();
    let found = explain(service, &slices, &NodeFacts::of(node));
    ensure!(!found.is_empty(), "{}", unserved(service));
    if text("output").as_deref() == Some("json") {
        let all: Vec<Value> = found.iter().map(PortExplanation::json).collect();
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    Ok(found.iter().map(PortExplanation::table).collect::<Vec<_>>().join("\n"))
}

/// Reason for which no proxy has rules for a service.
fn unserved(service: &Service) -> &'static str {
    let spec = service.spec.as_ref();
    let label = |name: &str| service.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(name));
    if label("service.kubernetes.io/service-proxy-name") {
        "another proxy looks after the service: it has the label service.kubernetes.io/service-proxy-name"
    } else if spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName")) {
        "a service of type ExternalName is a name in DNS, no traffic goes through a proxy"
    } else if label("service.kubernetes.io/headless")
        || spec.is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"))
    {
        "a headless service has no address, clients find its endpoints by DNS"
    } else {
        "the service has no cluster IP or no port"
    }
}

/// Answer about a port of a service in one family.
#[derive(Debug)]
struct PortExplanation {
    name: PortName,
    family: Family,
    node: NodeFacts,
    routes: Vec<Route>,
    endpoints: Vec<Judged>,
    notes: Vec<String>,
}

/// Traffic to one address, from one kind of client.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    kind: &'static str,
    address: String,
    clients: &'static str,
    policy: TrafficPolicy,
    outcome: ConnectionEnd,
}

/// End of a connection.
#[derive(Debug, PartialEq, Eq)]
enum ConnectionEnd {
    /// Goes to one of these.
    Endpoints(Vec<Endpoint>),
    /// Refused: the service has no endpoint that could serve.
    Refused,
    /// Lost: endpoints are on other nodes, and the policy is `Local`.
    Dropped,
}

impl ConnectionEnd {
    fn of(port: &ServicePort, policy: TrafficPolicy) -> Self {
        match port.endpoints(policy) {
            _ if !port.has_endpoints => Self::Refused,
            [] => Self::Dropped,
            endpoints => Self::Endpoints(endpoints.to_vec()),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Endpoints(endpoints) => endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            Self::Refused => "refused: no endpoint is ready".to_owned(),
            Self::Dropped => "dropped: no endpoint on this node, and the policy is Local".to_owned(),
        }
    }
}

const ANYBODY: &str = "anybody";
const PODS: &str = "pods and nodes";
const OUTSIDE: &str = "outside";

/// Explains every port of a service for a node. Empty for a service that has no rules.
fn explain(service: &Service, slices: &[Arc<EndpointSlice>], node: &NodeFacts) -> Vec<PortExplanation> {
    let meta = &service.metadata;
    let key = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    let mut found = Vec::new();
    for family in [Family::V4, Family::V6] {
        let mut desired = Desired::default();
        desired.replace(key, Some(service), slices, (node, family), &mut Delta::default());
        for (name, port) in desired.ports {
            let endpoints = judge(&name, slices, node, family);
            found.push(PortExplanation {
                routes: routes(&port),
                notes: notes(&port),
                endpoints,
                name,
                family,
                node: node.clone(),
            });
        }
    }
    found
}

fn routes(port: &ServicePort) -> Vec<Route> {
    let at = |address: std::net::IpAddr, number: u16| std::net::SocketAddr::new(address, number).to_string();
    let route = |kind, address, clients, policy| Route {
        kind,
        address,
        clients,
        policy,
        outcome: ConnectionEnd::of(port, policy),
    };
    let mut routes = vec![route("cluster IP", at(port.cluster_ip, port.port), ANYBODY, port.internal)];
    let node_port = port.node_port.map(|number| ("node port", format!("*:{number}")));
    let external = port.external_ips.iter().map(|address| ("external IP", at(*address, port.port)));
    let balancer = port.load_balancer_ips.iter().map(|address| ("load balancer", at(*address, port.port)));
    for (kind, address) in node_port.into_iter().chain(external).chain(balancer) {
        match port.external {
            TrafficPolicy::Cluster => routes.push(route(kind, address, ANYBODY, TrafficPolicy::Cluster)),
            // The policy is for what comes from outside.
            TrafficPolicy::Local => {
                routes.push(route(kind, address.clone(), OUTSIDE, TrafficPolicy::Local));
                routes.push(route(kind, address, PODS, TrafficPolicy::Cluster));
            }
        }
    }
    routes
}

fn notes(port: &ServicePort) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(seconds) = port.affinity {
        notes.push(format!("A client stays with its endpoint for {seconds} s after its last connection."));
    }
    if !port.source_ranges.is_empty() {
        let ranges = port.source_ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        notes.push(format!("The load balancer's addresses take connections from {ranges} alone."));
    }
    if let Some(number) = port.health_check_node_port {
        let ready = port.ready_local.len();
        let answer = if ready == 0 { "503" } else { "200" };
        notes.push(format!("Health checks of load balancers on port {number} get {answer}: {ready} ready here."));
    }
    notes
}

fn reason(used: &EndpointUse) -> String {
    match used {
        EndpointUse::Chosen => "yes".to_owned(),
        EndpointUse::LastResort => "yes, it terminates and none is ready".to_owned(),
        EndpointUse::NotReady => "no, not ready".to_owned(),
        EndpointUse::Terminating => "no, it terminates and others are ready".to_owned(),
        EndpointUse::OtherNode => "no, on another node".to_owned(),
        EndpointUse::HintedToNodes(nodes) => format!("no, hints are for node {}", nodes.join(", ")),
        EndpointUse::HintedToZones(zones) => format!("no, hints are for zone {}", zones.join(", ")),
    }
}

fn policy(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

fn conditions([ready, serving, terminating]: [bool; 3]) -> String {
    let named = [(ready, "ready"), (serving, "serving"), (terminating, "terminating")];
    let names: Vec<&str> = named.iter().filter(|(holds, _)| *holds).map(|(_, name)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

impl PortExplanation {
    fn table(&self) -> String {
        let zone = self.node.zone.as_ref().map(|zone| format!(" in zone {zone}")).unwrap_or_default();
        let protocol = self.name.protocol.as_str().to_uppercase();
        let family = self.family.address_type();
        let mut text = format!("{} {protocol} {family} from node {}{zone}\n", self.name, self.node.name);
        let routes = self.routes.iter().map(|route| {
            vec![
                route.kind.to_owned(),
                route.address.clone(),
                route.clients.to_owned(),
                policy(route.policy).to_owned(),
                route.outcome.text(),
            ]
        });
        text += &columns(&["BY", "ADDRESS", "CLIENTS", "POLICY", "REACH"], routes.collect());
        let endpoints = self.endpoints.iter().map(|judged| {
            let place = if judged.endpoint.local { "here" } else { "elsewhere" };
            vec![
                judged.endpoint.to_string(),
                place.to_owned(),
                conditions(judged.conditions),
                reason(&judged.cluster),
                reason(&judged.local),
            ]
        });
        text += &columns(&["ENDPOINT", "PLACE", "CONDITIONS", "CLUSTER", "LOCAL"], endpoints.collect());
        for note in &self.notes {
            writeln!(text, "  {note}").ok();
        }
        text
    }

    fn json(&self) -> Value {
        let routes = self.routes.iter().map(|route| {
            let (endpoints, why) = match &route.outcome {
                ConnectionEnd::Endpoints(endpoints) => (endpoints.iter().map(ToString::to_string).collect(), None),
                other => (Vec::new(), Some(other.text())),
            };
            json!({"by": route.kind, "address": route.address, "clients": route.clients,
                "policy": policy(route.policy), "endpoints": endpoints, "reason": why})
        });
        let endpoints = self.endpoints.iter().map(|judged| {
            let [ready, serving, terminating] = judged.conditions;
            json!({"endpoint": judged.endpoint.to_string(), "local": judged.endpoint.local,
                "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                "cluster": reason(&judged.cluster), "localPolicy": reason(&judged.local)})
        });
        json!({"port": self.name.to_string(), "protocol": self.name.protocol.as_str().to_uppercase(),
            "family": self.family.address_type(), "node": self.node.name, "zone": self.node.zone,
            "routes": routes.collect::<Vec<_>>(), "endpoints": endpoints.collect::<Vec<_>>(), "notes": self.notes})
    }
}

/// Lines of aligned columns under a head, without one where there are no lines.
fn columns(head: &[&str], lines: Vec<Vec<String>>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let all: Vec<Vec<String>> =
        std::iter::once(head.iter().map(|name| (*name).to_owned()).collect()).chain(lines).collect();
    let width = |column: usize| all.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for line in &all {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(text, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end()).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: Value) -> Service {
        let mut object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.96.0.5",
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}});
        if let (Some(into), Value::Object(more)) = (object["spec"].as_object_mut(), spec) {
            into.extend(more);
        }
        serde_json::from_value(object).expect("a service")
    }

    fn slice(endpoints: Value) -> Arc<EndpointSlice> {
        let object = json!({"metadata": {"name": "web-1", "namespace": "shop",
            "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080}]});
        Arc::new(serde_json::from_value(object).expect("a slice"))
    }

    fn node() -> NodeFacts {
        NodeFacts { name: "n1".to_owned(), zone: Some("a".to_owned()) }
    }

    fn told(spec: Value, endpoints: Value) -> String {
        let found = explain(&service(spec), &[slice(endpoints)], &node());
        found.iter().map(PortExplanation::table).collect()
    }

    #[test]
    fn every_address_and_every_endpoint_has_a_line() {
        let text = told(
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"}),
            json!([
                {"addresses": ["10.244.1.1"], "nodeName": "n1"},
                {"addresses": ["10.244.2.1"], "nodeName": "n2"},
                {"addresses": ["10.244.2.2"], "nodeName": "n2", "conditions": {"ready": false}},
                {"addresses": ["10.244.2.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            ]),
        );
        let expected = "\
shop/web:http TCP IPv4 from node n1 in zone a
  BY          ADDRESS       CLIENTS         POLICY   REACH
  cluster IP  10.96.0.5:80  anybody         Cluster  10.244.1.1:8080, 10.244.2.1:8080
  node port   *:30080       outside         Local    10.244.1.1:8080
  node port   *:30080       pods and nodes  Cluster  10.244.1.1:8080, 10.244.2.1:8080
  ENDPOINT         PLACE      CONDITIONS           CLUSTER                                 LOCAL
  10.244.1.1:8080  here       ready,serving        yes                                     yes
  10.244.2.1:8080  elsewhere  ready,serving        yes                                     no, on another node
  10.244.2.2:8080  elsewhere  serving              no, not ready                           no, on another node
  10.244.2.3:8080  elsewhere  serving,terminating  no, it terminates and others are ready  no, on another node
  A client stays with its endpoint for 10800 s after its last connection.
";
        assert_eq!(text, expected);
    }

    #[test]
    fn hints_and_last_resorts_are_named() {
        let zone = |name: &str| json!({"forZones": [{"name": name}]});
        let hinted = |hints: [Value; 2]| {
            let [one, two] = hints;
            let endpoints =
                json!([{"addresses": ["10.244.1.1"], "hints": one}, {"addresses": ["10.244.2.1"], "hints": two}]);
            told(json!({}), endpoints)
        };
        assert!(hinted([zone("a"), zone("b")]).contains("no, hints are for zone b"));
        let both = |node: &str, zone: &str| json!({"forNodes": [{"name": node}], "forZones": [{"name": zone}]});
        assert!(hinted([both("n1", "a"), both("n2", "a")]).contains("no, hints are for node n2"));
        assert!(hinted([both("n3", "a"), both("n2", "b")]).contains("no, hints are for zone b"));
        let terminating = json!([{"addresses": ["10.244.1.1"],
            "conditions": {"ready": false, "serving": true, "terminating": true}}]);
        assert!(told(json!({}), terminating).contains("yes, it terminates and none is ready"));
    }

    #[test]
    fn ends_without_an_endpoint_are_told_apart() {
        let away = json!([{"addresses": ["10.244.2.1"], "nodeName": "n2"}]);
        let outcome = |spec: Value, endpoints: Value| {
            let found = explain(&service(spec), &[slice(endpoints)], &node());
            found[0].routes.iter().map(|route| route.outcome.text()).collect::<Vec<_>>()
        };
        let dropped = "dropped: no endpoint on this node, and the policy is Local";
        assert_eq!(outcome(json!({"internalTrafficPolicy": "Local"}), away)[0], dropped);
        assert_eq!(outcome(json!({}), json!([])), ["refused: no endpoint is ready"; 2]);
    }

    #[test]
    fn services_without_rules_say_why() {
        let cases = [
            (json!({"type": "ExternalName"}), "ExternalName"),
            (json!({"clusterIP": "None"}), "headless"),
            (json!({"ports": []}), "no port"),
        ];
        for (spec, reason) in cases {
            let service = service(spec);
            assert!(explain(&service, &[], &node()).is_empty());
            assert!(unserved(&service).contains(reason), "{reason}");
        }
    }
}
