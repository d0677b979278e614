//! Keeps one route per node and pod range in the cloud. Answers for `node-route-controller`.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use shared::flags::format_duration;
use shared::informer::Store;

use super::{CloudError, Provider, Route};
use crate::engine::action::{Action, PatchKind};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::nodes;
use crate::engine::object;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;

const UNAVAILABLE: &str = "NetworkUnavailable";

/// Routes to make and to delete.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// Routes to make.
    pub create: Vec<Route>,
    /// Routes to take away.
    pub delete: Vec<Route>,
}

/// Compare nodes with routes. Routes outside of the cluster's ranges are somebody else's.
#[must_use]
pub fn plan(all: &[Arc<Node>], routes: &[Route], ours: &dyn Fn(&str) -> bool) -> Plan {
    let mut wanted: Vec<(String, String)> = Vec::new();
    for node in all {
        let name = object::name(&node.metadata);
        let ranges = node.spec.iter().flat_map(|s| s.pod_cidrs.iter().flatten());
        wanted.extend(ranges.map(|range| (name.to_owned(), range.clone())));
    }
    let there: HashSet<(&str, &str)> =
        routes.iter().filter(|r| !r.blackhole).map(|r| (r.node.as_str(), r.destination.as_str())).collect();
    let needed = |r: &Route| !r.blackhole && wanted.iter().any(|(n, d)| *n == r.node && *d == r.destination);
    Plan {
        delete: routes.iter().filter(|r| ours(&r.destination) && !needed(r)).cloned().collect(),
        create: wanted
            .iter()
            .filter(|(n, d)| !there.contains(&(n.as_str(), d.as_str())))
            .map(|(n, d)| Route { name: String::new(), node: n.clone(), destination: d.clone(), blackhole: false })
            .collect(),
    }
}

/// The write that says whether the node's network works, unless it says so already.
#[must_use]
pub fn condition(node: &Node, routed: bool, now: Timestamp) -> Option<Action> {
    let value = if routed { "False" } else { "True" };
    if nodes::condition(node, UNAVAILABLE).is_some_and(|c| c.status == value) {
        return None;
    }
    let (reason, message) = if routed {
        ("RouteCreated", "RouteController created a route")
    } else {
        ("NoRouteCreated", "RouteController failed to create a route")
    };
    let body = json!({"status": {"conditions": [{"type": UNAVAILABLE, "status": value, "reason": reason,
        "message": message, "lastTransitionTime": object::seconds(now)}]}});
    Some(Action::patch_status::<Node>(&node.metadata, PatchKind::Strategic, body))
}

struct Routes {
    executor: Executor,
    nodes: Store<Node>,
    cloud: Arc<dyn Provider>,
    cluster: String,
    ranges: Vec<ipnet::IpNet>,
}

/// Wire the routes over a cloud.
pub(super) fn start(cx: &Context, cloud: Arc<dyn Provider>) -> Result<Started, RestError> {
    let settings = cx.settings();
    let this = Arc::new(Routes {
        executor: cx.executor("route-controller", "route_controller"),
        nodes: cx.informer::<Node>().store(),
        cloud,
        cluster: settings.cloud.cluster_name.clone(),
        ranges: settings.cluster_cidrs.iter().filter_map(|c| c.parse().ok()).collect(),
    });
    cx.every("node-route", settings.cloud.route_period, move || {
        let this = Arc::clone(&this);
        async move {
            if let Err(error) = this.look().await {
                tracing::warn!(controller = "node-route", %error, "Couldn't reconcile node routes");
            }
        }
    });
    Ok(Started::Yes)
}

impl Routes {
    async fn look(&self) -> Result<(), CloudError> {
        let routes = self.cloud.routes(&self.cluster).await?;
        let all = self.nodes.list();
        let ours = |destination: &str| {
            let net: Option<ipnet::IpNet> = destination.parse().ok();
            net.is_some_and(|n| self.ranges.iter().any(|r| r.contains(&n)))
        };
        let plan = plan(&all, &routes, &ours);
        let mut failed: HashSet<String> = HashSet::new();
        for route in &plan.delete {
            if let Err(error) = self.cloud.delete_route(&self.cluster, route).await {
                tracing::warn!(route = %route.name, %error, "Could not delete route");
            }
        }
        for route in &plan.create {
            let node = all.iter().find(|n| object::name(&n.metadata) == route.node);
            let (hint, began) = (node.map(|n| object::uid(&n.metadata)).unwrap_or_default(), clock::instant());
            if let Err(error) = self.cloud.create_route(&self.cluster, hint, route).await {
                failed.insert(route.node.clone());
                if let Some(node) = node {
                    let took = clock::instant().saturating_duration_since(began);
                    let text = format!(
                        "Could not create route {hint} {} for node {} after {}: {error}",
                        route.destination,
                        route.node,
                        format_duration(took)
                    );
                    let about = object::reference::<Node>(&node.metadata);
                    self.executor.events.say(&about, true, "FailedToCreateRoute", text);
                }
            }
        }
        for node in &all {
            let routed = node.spec.as_ref().is_some_and(|s| s.pod_cidrs.is_some())
                && !failed.contains(object::name(&node.metadata));
            if let Some(action) = condition(node, routed, clock::now())
                && let Err(error) = self.executor.one(action).await
            {
                tracing::warn!(node = object::name(&node.metadata), %error, "Error updating node condition");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ranges: &[&str]) -> Arc<Node> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"podCIDRs": ranges}})).expect("node"),
        )
    }

    fn route(node: &str, destination: &str, blackhole: bool) -> Route {
        Route { name: format!("r-{node}"), node: node.into(), destination: destination.into(), blackhole }
    }

    #[test]
    fn routes_follow_nodes() {
        let all = [node("a", &["10.0.1.0/24"]), node("b", &["10.0.2.0/24", "fd00::/64"])];
        let routes = [
            route("a", "10.0.1.0/24", false),
            route("b", "10.0.2.0/24", true),
            route("gone", "10.0.3.0/24", false),
            route("x", "192.168.0.0/24", false),
        ];
        let plan = plan(&all, &routes, &|d| d.starts_with("10.") || d.starts_with("fd"));
        let shown = |list: &[Route]| list.iter().map(|r| format!("{} {}", r.node, r.destination)).collect::<Vec<_>>();
        assert_eq!(shown(&plan.delete), ["b 10.0.2.0/24", "gone 10.0.3.0/24"]);
        assert_eq!(shown(&plan.create), ["b 10.0.2.0/24", "b fd00::/64"]);
    }

    #[test]
    fn the_node_says_whether_it_is_reachable() {
        let now = "2026-01-01T00:00:00Z".parse().expect("time");
        let n = node("a", &[]);
        let Some(Action::Patch { body, .. }) = condition(&n, true, now) else { panic!("no patch") };
        assert_eq!(body["status"]["conditions"][0]["reason"], "RouteCreated");
        let said: Node =
            serde_json::from_value(json!({"status": {"conditions": [{"type": UNAVAILABLE, "status": "False"}]}}))
                .expect("node");
        assert_eq!(condition(&said, true, now), None);
    }
}
