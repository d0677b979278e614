//! A cluster's services at one moment, for commands that print.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;

use crate::plan::{Delta, Desired, Family, NodeFacts, service_of};

shared::dump! {
    /// Objects that rules depend on.
    Cluster
    services: Service,
    slices: EndpointSlice,
    nodes: Node,
    networks: ServiceCIDR,
}

impl Cluster {
    /// The node of a name.
    #[must_use]
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name))
    }

    /// The service of a name.
    #[must_use]
    pub(crate) fn service(&self, namespace: &str, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| {
            let meta = &service.metadata;
            meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name)
        })
    }

    /// Slices by namespace and name of their service.
    #[must_use]
    pub(crate) fn slices(&self) -> BTreeMap<(&str, &str), Vec<Arc<EndpointSlice>>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for slice in &self.slices {
            if let Some(service) = service_of(slice) {
                found.entry(service).or_default().push(Arc::new(slice.clone()));
            }
        }
        found
    }

    /// Plans all services for a node.
    #[must_use]
    pub(crate) fn desired(&self, node: &NodeFacts, family: Family) -> Desired {
        let slices = self.slices();
        let mut desired = Desired::default();
        for service in &self.services {
            let meta = &service.metadata;
            let (Some(namespace), Some(name)) = (meta.namespace.as_deref(), meta.name.as_deref()) else { continue };
            let slices = slices.get(&(namespace, name)).map(Vec::as_slice).unwrap_or_default();
            desired.replace((namespace, name), Some(service), slices, (node, family), &mut Delta::default());
        }
        desired
    }
}
