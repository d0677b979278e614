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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::events::ProxyEvents;
use crate::http::{Page, bind, by_path, serve};
use crate::metrics;
use crate::plan::{Desired, Family, Policy};

/// Service health-check port: which service, and how many endpoints of it are here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    namespace: String,
    name: String,
    local: usize,
}

/// Time of the last write of rules, and the time since when changes wait.
#[derive(Clone)]
pub struct Health {
    state: Arc<Mutex<State>>,
    /// A sync that takes longer than this is a failure.
    limit: Duration,
}

struct State {
    /// Times at which rules of each family were last written.
    updated: BTreeMap<Family, Timestamp>,
    waiting_since: HashMap<Family, Instant>,
    eligible: bool,
    checks: BTreeMap<u16, Check>,
}

impl Health {
    /// Healthy from the start, as upstream: there is nothing to write yet.
    #[must_use]
    pub fn new(sync_period: Duration) -> Self {
        let state =
            State { updated: BTreeMap::new(), waiting_since: HashMap::new(), eligible: true, checks: BTreeMap::new() };
        Self { state: Arc::new(Mutex::new(state)), limit: sync_period * 2 }
    }

    /// A change came in.
    pub fn queued(&self, families: impl IntoIterator<Item = Family>) {
        let mut state = self.state.lock();
        for family in families {
            state.waiting_since.entry(family).or_insert_with(Instant::now);
        }
    }

    /// The kernel has everything.
    pub fn written(&self, family: Family) {
        let mut state = self.state.lock();
        state.waiting_since.remove(&family);
        state.updated.insert(family, Timestamp::now());
    }

    /// The node object says whether the node should get new traffic.
    pub fn set_eligible(&self, eligible: bool) {
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
    pub fn page(&self, path: &str) -> Page {
        let written = self.is_written();
        let state = self.state.lock();
        let healthy = match path {
            "/healthz" => written && state.eligible,
            "/livez" => written,
            _ => return Page::not_found(),
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
        Page::json(status, body.to_string())
    }

    fn check_page(&self, port: u16) -> Page {
        let written = self.is_written();
        let Some(check) = self.state.lock().checks.get(&port).cloned() else { return Page::not_found() };
        let healthy = written && check.local > 0;
        let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = json!({
            "service": {"namespace": check.namespace, "name": check.name},
            "localEndpoints": check.local,
            "serviceProxyHealthy": written,
        });
        let mut page = Page::json(status, body.to_string());
        page.headers.push(("x-load-balancing-endpoint-weight", check.local.to_string()));
        page
    }
}

/// The listeners of the services' health-check ports.
pub struct CheckPorts {
    health: Health,
    address: IpAddr,
    open: HashMap<u16, CancellationToken>,
    stop: CancellationToken,
    events: ProxyEvents,
    /// Ports that could not be opened, so that it is told once.
    failed: BTreeSet<u16>,
}

impl CheckPorts {
    /// None open yet. All close with `stop`.
    #[must_use]
    pub fn new(health: Health, address: IpAddr, stop: CancellationToken, events: ProxyEvents) -> Self {
        Self { health, address, open: HashMap::new(), stop, events, failed: BTreeSet::new() }
    }

    /// Opens and closes ports as the services want.
    pub async fn sync<'a>(&mut self, tasks: &shared::run::TaskGroup, desired: impl Iterator<Item = &'a Desired>) {
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
        for (port, check) in &wanted {
            if self.open.contains_key(port) {
                continue;
            }
            match bind(SocketAddr::new(self.address, *port)).await {
                Ok(listener) => {
                    let token = self.stop.child_token();
                    self.failed.remove(port);
                    self.open.insert(*port, token.clone());
                    let (health, port) = (self.health.clone(), *port);
                    tasks.spawn("service-health", serve(listener, token, by_path(move |_| health.check_page(port))));
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

fn checks<'a>(desired: impl Iterator<Item = &'a Desired>) -> BTreeMap<u16, Check> {
    let mut found: BTreeMap<u16, (Check, BTreeSet<IpAddr>)> = BTreeMap::new();
    for (name, port) in desired.flat_map(|desired| &desired.ports) {
        let Some(number) = port.health_check_node_port.filter(|_| port.external == Policy::Local) else { continue };
        let check = Check { namespace: name.namespace.clone(), name: name.service.clone(), local: 0 };
        // Several ports of one service lead to the same pods.
        found.entry(number).or_insert((check, BTreeSet::new())).1.extend(&port.ready_local);
    }
    let count =
        |(port, (check, ready)): (u16, (Check, BTreeSet<IpAddr>))| (port, Check { local: ready.len(), ..check });
    found.into_iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
