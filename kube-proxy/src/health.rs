//! Health of the proxy: its own `/healthz` and `/livez`, and a port for each service that asks load balancers to find
//! out where its endpoints are (`healthCheckNodePort`).
//!
//! Healthy means: every change that waited was written into the kernel within twice the sync period. `/healthz`
//! also fails when the node is being deleted (KEP-3836), `/livez` does not.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::addresses::NodePortResolver;
use crate::backend::NodePorts;
use crate::events::ProxyEvents;
use crate::http::{ProxyResponse, bind, by_path, serve};
use crate::metrics;
use crate::plan::{Desired, Family, TrafficPolicy};

/// Service health-check port: which service, and how many endpoints of it are here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServiceCheck {
    namespace: String,
    name: String,
    local: usize,
}

/// Time of the last write of rules, and the time since when changes wait.
#[derive(Clone)]
pub(crate) struct Health {
    state: Arc<Mutex<State>>,
    /// A sync that takes longer than this is a failure.
    limit: Duration,
}

struct State {
    /// Times at which rules of each family were last written.
    updated: BTreeMap<Family, Timestamp>,
    waiting_since: HashMap<Family, Instant>,
    eligible: bool,
    checks: BTreeMap<u16, ServiceCheck>,
}

impl Health {
    /// Healthy from the start, as upstream: there is nothing to write yet.
    #[must_use]
    pub(crate) fn new(sync_period: Duration) -> Self {
        let state =
            State { updated: BTreeMap::new(), waiting_since: HashMap::new(), eligible: true, checks: BTreeMap::new() };
        Self { state: Arc::new(Mutex::new(state)), limit: sync_period * 2 }
    }

    /// A change came in.
    pub(crate) fn queued(&self, families: impl IntoIterator<Item = Family>) {
        let mut state = self.state.lock();
        for family in families {
            state.waiting_since.entry(family).or_insert_with(Instant::now);
        }
    }

    /// The kernel has everything.
    pub(crate) fn written(&self, family: Family) {
        let mut state = self.state.lock();
        state.waiting_since.remove(&family);
        state.updated.insert(family, Timestamp::now());
    }

    /// The node object says whether the node should get new traffic.
    pub(crate) fn set_eligible(&self, eligible: bool) {
        self.state.lock().eligible = eligible;
    }

    fn is_written(&self) -> bool {
        self.state.lock().waiting_since.values().all(|since| since.elapsed() < self.limit)
    }

    /// State of each family that has written rules or waits to.
    fn families(&self) -> serde_json::Map<String, serde_json::Value> {
        let state = self.state.lock();
        let known: BTreeSet<Family> = state.updated.keys().chain(state.waiting_since.keys()).copied().collect();
        let status = |family: Family| {
            let healthy = state.waiting_since.get(&family).is_none_or(|since| since.elapsed() < self.limit);
            let updated = state.updated.get(&family).map_or("0001-01-01T00:00:00Z".to_owned(), ToString::to_string);
            (family.address_type().to_owned(), json!({"lastUpdated": updated, "healthy": healthy}))
        };
        known.into_iter().map(status).collect()
    }

    /// `/healthz` and `/livez`.
    #[must_use]
    pub(crate) fn page(&self, path: &str) -> ProxyResponse {
        let written = self.is_written();
        let state = self.state.lock();
        let healthy = match path {
            "/healthz" => written && state.eligible,
            "/livez" => written,
            _ => return ProxyResponse::not_found(),
        };
        let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        metrics::count_probe(path, status.as_u16());
        let now = Timestamp::now();
        // While all is well the last update is "now": nothing older waits to be written.
        let oldest = state.updated.values().min().copied().unwrap_or(now);
        let (updated, eligible) = (if written { now } else { oldest }, state.eligible);
        drop(state);
        let mut body = json!({"lastUpdated": updated.to_string(), "currentTime": now.to_string(),
            "healthy": healthy, "status": self.families()});
        if path == "/healthz" {
            body["nodeEligible"] = json!(eligible);
        }
        ProxyResponse::json(status, body.to_string())
    }

    fn check_page(&self, port: u16) -> ProxyResponse {
        let written = self.is_written();
        let Some(check) = self.state.lock().checks.get(&port).cloned() else { return ProxyResponse::not_found() };
        let healthy = written && check.local > 0;
        let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = json!({
            "service": {"namespace": check.namespace, "name": check.name},
            "localEndpoints": check.local,
            "serviceProxyHealthy": written,
        });
        let mut page = ProxyResponse::json(status, body.to_string());
        page.headers.push(("x-load-balancing-endpoint-weight", check.local.to_string()));
        page
    }
}

/// The listeners of the services' health-check ports, on the addresses of node ports.
pub(crate) struct CheckPorts {
    health: Health,
    node_ports: NodePortResolver,
    open: HashMap<u16, CancellationToken>,
    stop: CancellationToken,
    events: ProxyEvents,
    /// Ports that could not be opened, so that it is told once.
    failed: BTreeSet<u16>,
}

impl CheckPorts {
    /// None open yet. All close with `stop`.
    #[must_use]
    pub(crate) fn new(
        health: Health,
        node_ports: NodePortResolver,
        stop: CancellationToken,
        events: ProxyEvents,
    ) -> Self {
        Self { health, node_ports, open: HashMap::new(), stop, events, failed: BTreeSet::new() }
    }

    /// Reports whether ports could not be opened, so that they are to be tried again.
    #[must_use]
    pub(crate) fn have_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Opens and closes ports as the services want.
    pub(crate) async fn sync<'a>(
        &mut self,
        tasks: &shared::run::TaskGroup,
        desired: impl Iterator<Item = &'a Desired>,
    ) {
        let wanted = checks(desired);
        self.health.state.lock().checks.clone_from(&wanted);
        self.open.retain(|port, token| {
            let keep = wanted.contains_key(port);
            if !keep {
                token.cancel();
            }
            keep
        });
        self.failed.retain(|port| wanted.contains_key(port));
        let addresses = listening(|family| self.node_ports.resolve(family));
        for (port, check) in &wanted {
            if self.open.contains_key(port) {
                continue;
            }
            match bind_all(&addresses, *port).await {
                Ok(listeners) => {
                    let token = self.stop.child_token();
                    self.failed.remove(port);
                    self.open.insert(*port, token.clone());
                    for listener in listeners {
                        let (health, port) = (self.health.clone(), *port);
                        let answer = by_path(move |_| health.check_page(port));
                        tasks.spawn("service-health", serve(listener, token.clone(), answer));
                    }
                }
                Err(error) => {
                    tracing::error!(port, %error, "Failed to open health check node port");
                    if self.failed.insert(*port) {
                        self.events.health_check_failed(&check.namespace, &check.name, *port, &error);
                    }
                }
            }
        }
    }
}

/// Opens a port on all of these addresses, or on none.
async fn bind_all(addresses: &[IpAddr], port: u16) -> std::io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(bind(SocketAddr::new(*address, port)).await?);
    }
    Ok(listeners)
}

/// The addresses to listen on: those that node ports answer on, and all of the machine's, of both families, where neither
/// family names any.
fn listening(node_ports: impl Fn(Family) -> NodePorts) -> Vec<IpAddr> {
    let any = |family| match family {
        Family::V4 => IpAddr::from([0; 4]),
        Family::V6 => IpAddr::from([0_u16; 8]),
    };
    match (node_ports(Family::V4), node_ports(Family::V6)) {
        // A socket of both.
        (NodePorts::All, NodePorts::All) => vec![any(Family::V4)],
        (NodePorts::Addresses(v4), NodePorts::Addresses(v6)) => v4.into_iter().chain(v6).collect(),
        (NodePorts::Addresses(v4), NodePorts::All) => v4.into_iter().collect(),
        (NodePorts::All, NodePorts::Addresses(v6)) => v6.into_iter().collect(),
    }
}

fn checks<'a>(desired: impl Iterator<Item = &'a Desired>) -> BTreeMap<u16, ServiceCheck> {
    let mut found: BTreeMap<u16, ServiceCheck> = BTreeMap::new();
    for desired in desired {
        let mut of_family: BTreeMap<u16, (ServiceCheck, BTreeSet<IpAddr>)> = BTreeMap::new();
        for (name, port) in &desired.ports {
            let Some(number) = port.health_check_node_port.filter(|_| port.external == TrafficPolicy::Local) else {
                continue;
            };
            let check = ServiceCheck { namespace: name.namespace.clone(), name: name.service.clone(), local: 0 };
            // Several ports of one service lead to the same pods.
            of_family.entry(number).or_insert((check, BTreeSet::new())).1.extend(&port.ready_local);
        }
        // A pod has an address of each family, and is one endpoint: each of upstream's proxiers counts its own.
        for (port, (check, ready)) in of_family {
            let known = found.entry(port).or_insert(check);
            known.local = known.local.max(ready.len());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PortName, Protocol, ServicePort};

    #[tokio::test(start_paused = true)]
    async fn a_change_that_is_not_written_makes_it_ill_until_it_is() {
        let health = Health::new(Duration::from_secs(30));
        assert_eq!(health.page("/healthz").status, 200);
        health.queued([Family::V4]);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(health.page("/healthz").status, 200);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(health.page("/healthz").status, 503);
        assert_eq!(health.page("/livez").status, 503);
        health.written(Family::V4);
        assert_eq!(health.page("/healthz").status, 200);
    }

    #[test]
    fn health_checks_are_answered_where_node_ports_are() {
        let some =
            |texts: &[&str]| NodePorts::Addresses(texts.iter().map(|t| t.parse().expect("an address")).collect());
        let all = || NodePorts::All;
        for (v4, v6, want) in [
            (all(), all(), vec!["0.0.0.0"]),
            (some(&["192.0.2.1", "192.0.2.2"]), all(), vec!["192.0.2.1", "192.0.2.2"]),
            (all(), some(&["2001:db8::1"]), vec!["2001:db8::1"]),
            (some(&["192.0.2.1"]), some(&["2001:db8::1"]), vec!["192.0.2.1", "2001:db8::1"]),
        ] {
            let found = listening(|family| if family == Family::V4 { v4.clone() } else { v6.clone() });
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, want, "{v4:?} {v6:?}");
        }
    }

    #[test]
    fn a_pod_of_two_families_is_one_local_endpoint() {
        let desired = |cluster_ip: &str, local: &[&str]| {
            let mut port = ServicePort::plain(cluster_ip, 80, Vec::new());
            (port.external, port.health_check_node_port) = (TrafficPolicy::Local, Some(32000));
            port.ready_local = local.iter().map(|t| t.parse().expect("an address")).collect();
            let name = |port: &str| PortName {
                namespace: "shop".into(),
                service: "web".into(),
                port: port.into(),
                protocol: Protocol::Tcp,
            };
            let mut desired = Desired::default();
            // Two ports of the service lead to the same pods.
            desired.ports = ["http", "https"].map(|of| (name(of), port.clone())).into();
            desired
        };
        let v4 = desired("10.96.0.9", &["10.1.0.1", "10.1.0.2"]);
        let v6 = desired("fd00::9", &["fd00:1::1", "fd00:1::2"]);
        for (families, want) in [(vec![&v4], 2), (vec![&v6], 2), (vec![&v4, &v6], 2)] {
            assert_eq!(checks(families.into_iter())[&32000].local, want);
        }
    }

    #[tokio::test]
    async fn a_port_is_opened_on_all_addresses_or_on_none() {
        let taken = TcpListener::bind("127.0.0.2:0").await.expect("a port");
        let port = taken.local_addr().expect("an address").port();
        let addresses = ["127.0.0.1", "127.0.0.2"].map(|t| t.parse().expect("an address"));
        assert!(bind_all(&addresses, port).await.is_err());
        drop(taken);
        assert_eq!(bind_all(&addresses, port).await.expect("it is free now, the first address too").len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_goes_gets_no_new_traffic_but_is_not_restarted() {
        let health = Health::new(Duration::from_secs(30));
        health.set_eligible(false);
        let page = health.page("/healthz");
        assert_eq!(page.status, 503);
        let body = String::from_utf8_lossy(&page.body);
        assert!(body.contains("\"nodeEligible\":false") && body.contains("\"healthy\":false"));
        assert_eq!(health.page("/livez").status, 200);
        assert_eq!(health.page("/elsewhere").status, 404);
    }
}
