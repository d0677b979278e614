//! Loops that ask a cloud: routes between nodes, load balancers of services, nodes whose machines are gone.
//!
//! None is built in: the clouds' loops live outside, in their own controller managers, as upstream's do. What is here is
//! the interface that a build with a cloud implements ([`Provider`]) and hands to [`crate::run_in`], and the loops over
//! it; without one they say so and stop.

pub mod lifecycle;
pub mod load_balancer;
pub mod routes;

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{LoadBalancerStatus, Node, Service};

use crate::engine::context::Context;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;

/// A route to the pods of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The cloud's name of it.
    pub name: String,
    /// The node.
    pub node: String,
    /// Network that the route leads to.
    pub destination: String,
    /// The route leads nowhere: its node is gone.
    pub blackhole: bool,
}

/// States of a node's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The machine runs.
    Running,
    /// The machine is switched off.
    Shutdown,
    /// The machine does not exist.
    Gone,
}

/// Failure of a cloud.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CloudError(pub String);

/// A cloud. Each question is answered within the caller's patience or fails.
#[async_trait]
pub trait Provider: Send + Sync {
    /// As `--cloud-provider` names it.
    fn name(&self) -> &str;
    /// Reports whether the cloud routes between nodes.
    fn has_routes(&self) -> bool;
    /// Reports whether the cloud balances loads.
    fn has_load_balancers(&self) -> bool;
    /// All routes of the cluster.
    async fn routes(&self, cluster: &str) -> Result<Vec<Route>, CloudError>;
    /// Make a route; its name is the cloud's to choose, `hint` is unique.
    async fn create_route(&self, cluster: &str, hint: &str, route: &Route) -> Result<(), CloudError>;
    /// Take a route away.
    async fn delete_route(&self, cluster: &str, route: &Route) -> Result<(), CloudError>;
    /// Make or mend a service's load balancer.
    async fn ensure_load_balancer(
        &self,
        cluster: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<LoadBalancerStatus, CloudError>;
    /// Have a service's load balancer send to these nodes; one that does not exist is a success.
    async fn update_load_balancer(
        &self,
        cluster: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<(), CloudError>;
    /// Take a service's load balancer away; one that does not exist is a success.
    async fn delete_load_balancer(&self, cluster: &str, service: &Service) -> Result<(), CloudError>;
    /// Returns the state of a node's machine.
    async fn machine(&self, node: &Node) -> Result<Machine, CloudError>;
}

/// Wire the routes between nodes.
pub fn start_routes(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let settings = cx.settings();
        if !settings.allocate_node_cidrs || !settings.cloud.routes {
            tracing::info!("Will not configure cloud provider routes for allocate-node-cidrs");
            return Ok(Started::Skipped);
        }
        match cx.cloud() {
            Some(cloud) if cloud.has_routes() => routes::start(cx, cloud),
            found => Ok(without("node-route-controller", settings.cloud.provider.as_str(), found.as_deref())),
        }
    })
}

/// Wire the load balancers of services.
pub fn start_load_balancers(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        match cx.cloud() {
            Some(cloud) if cloud.has_load_balancers() => load_balancer::start(cx, cloud),
            found => Ok(without("service-lb-controller", &cx.settings().cloud.provider, found.as_deref())),
        }
    })
}

/// Wire the watch over nodes' machines.
pub fn start_lifecycle(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        match cx.cloud() {
            Some(cloud) => lifecycle::start(cx, cloud),
            None => Ok(without("cloud-node-lifecycle-controller", &cx.settings().cloud.provider, None)),
        }
    })
}

fn without(controller: &str, flag: &str, provider: Option<&dyn Provider>) -> Started {
    let provider = provider.map_or("none", Provider::name);
    tracing::info!(controller, cloud_provider = flag, provider, "Skipping a cloud provider controller");
    Started::Skipped
}
