//! Loops that ask a cloud: routes between nodes, load balancers of services, nodes whose machines are gone.
//!
//! None is built in: the clouds' loops live outside, in their own controller managers, as upstream's do. What is here is
//! the interface that a build with a cloud implements ([`Provider`]) and hands to [`crate::run_in`], and the loops over
//! it; without one they say so and stop.

pub mod lifecycle;
pub mod load_balancer;
pub mod routes;

use futures::future::BoxFuture;

pub use crate::engine::cloud_provider::{CloudError, Machine, Provider, Route};
use crate::engine::context::Context;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;

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
