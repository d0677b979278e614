//! A cloud, as controllers ask it.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{LoadBalancerStatus, Node, Service};

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
    /// Name of the cloud in `--cloud-provider`.
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
