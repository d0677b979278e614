//! Addresses that Services of type `LoadBalancer` get, and the nodes that each address leads to.
//!
//! In: the cluster's Services, EndpointSlices and Nodes, and the pools. Out: statuses to write and routes to have. Never:
//! a request, a route. Answers for the decisions of upstream's service controller and of a cloud's load balancer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// Label of nodes that upstream's service controller leaves out, too.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The cluster at one moment.
#[derive(Default)]
pub(super) struct View {
    /// All Services.
    pub services: Vec<Arc<Service>>,
    /// All EndpointSlices.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// All Nodes.
    pub nodes: Vec<Arc<Node>>,
}

/// Next hops, which are nodes, of each address; none of an address that refuses connections.
pub(super) type Routes = BTreeMap<IpAddr, BTreeSet<IpAddr>>;

/// Addresses to write into a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ingress {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Addresses by family, in the order of `spec.ipFamilies`; none takes them away.
    pub addresses: Vec<IpAddr>,
}

/// Desired state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Addresses that differ from what the Services' statuses have.
    pub ingresses: Vec<Ingress>,
    /// Ways to the nodes.
    pub routes: Routes,
    /// Services without an address, and why.
    pub pending: Vec<String>,
}

/// Plans addresses and routes. Services keep the addresses that their statuses have; the older of two is served first.
#[must_use]
pub(super) fn plan(view: &View, pools: &[IpNet]) -> Plan {
    let mut plan = Plan::default();
    let mut services: Vec<&Service> = view.services.iter().map(AsRef::as_ref).collect();
    services.sort_by_key(|service| {
        let meta = &service.metadata;
        (meta.creation_timestamp.as_ref().map(|time| time.0), meta.uid.clone())
    });
    let mut taken = BTreeSet::new();
    let mut kept = BTreeMap::new();
    for (at, service) in services.iter().enumerate().filter(|(_, service)| is_ours(service)) {
        let has: Vec<IpAddr> = shown(service, pools).into_iter().filter(|address| taken.insert(*address)).collect();
        kept.insert(at, has);
    }
    for (at, service) in services.iter().enumerate() {
        let Some(has) = kept.get(&at) else {
            if !shown(service, pools).is_empty() {
                plan.ingresses.push(ingress(service, Vec::new()));
            }
            continue;
        };
        let mut addresses = Vec::new();
        for v6 in families(service) {
            match address_for(service, v6, has, pools, &mut taken) {
                Ok(address) => addresses.push(address),
                Err(why) => plan.pending.push(format!("{}: {why}", name_of(service))),
            }
        }
        let nodes = nodes_for(service, view);
        for address in &addresses {
            let hops = nodes.iter().filter_map(|node| internal(node, address.is_ipv6())).collect();
            plan.routes.insert(*address, hops);
        }
        if addresses != shown(service, pools) {
            plan.ingresses.push(ingress(service, addresses));
        }
    }
    plan
}

/// A Service that gets no address.
#[derive(Debug)]
enum NoAddress {
    /// No pool is of the family.
    Family,
    /// An address outside of the pool.
    Outside(IpAddr, IpNet),
    /// An address that another Service has.
    Taken(IpAddr),
    /// All addresses of the pool are taken.
    Exhausted(IpNet),
}

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Family => f.write_str("the cluster has no addresses of its family"),
            Self::Outside(asked, pool) => write!(f, "{asked} is not in {pool}"),
            Self::Taken(asked) => write!(f, "{asked} is taken"),
            Self::Exhausted(pool) => write!(f, "{pool} has no free address"),
        }
    }
}

fn address_for(
    service: &Service,
    v6: bool,
    has: &[IpAddr],
    pools: &[IpNet],
    taken: &mut BTreeSet<IpAddr>,
) -> Result<IpAddr, NoAddress> {
    let asked = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref()).unwrap_or_default();
    let asked = asked.parse::<IpAddr>().ok().filter(|address| address.is_ipv6() == v6);
    let current = has.iter().copied().find(|address| address.is_ipv6() == v6);
    if let Some(current) = current.filter(|current| asked.is_none_or(|asked| asked == *current)) {
        return Ok(current);
    }
    let pool = pools.iter().find(|pool| pool.addr().is_ipv6() == v6).ok_or(NoAddress::Family)?;
    let found = match asked {
        Some(asked) if !pool.contains(&asked) => return Err(NoAddress::Outside(asked, *pool)),
        Some(asked) if taken.contains(&asked) => return Err(NoAddress::Taken(asked)),
        Some(asked) => asked,
        None => pool.hosts().find(|address| !taken.contains(address)).ok_or(NoAddress::Exhausted(*pool))?,
    };
    taken.insert(found);
    Ok(found)
}

/// Nodes that take traffic for a Service: those with an endpoint of it where its policy is `Local`.
fn nodes_for<'a>(service: &Service, view: &'a View) -> Vec<&'a Node> {
    let local = service.spec.as_ref().and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local");
    let with_endpoints = local.then(|| nodes_with_endpoints(service, &view.slices));
    let serves = |node: &Node| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        with_endpoints.as_ref().is_none_or(|names| names.contains(name))
    };
    view.nodes.iter().map(AsRef::as_ref).filter(|node| takes_traffic(node) && serves(node)).collect()
}

/// Names of nodes with a ready endpoint, or, where there is none at all, with one that still serves.
fn nodes_with_endpoints<'a>(service: &Service, slices: &'a [Arc<EndpointSlice>]) -> BTreeSet<&'a str> {
    let of_service = |slice: &&Arc<EndpointSlice>| {
        slice.metadata.namespace == service.metadata.namespace
            && slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME))
                == service.metadata.name.as_ref()
    };
    let endpoints = || slices.iter().filter(of_service).flat_map(|slice| slice.endpoints.iter());
    let named = |wanted: fn(&Endpoint) -> bool| -> BTreeSet<&str> {
        endpoints().filter(|endpoint| wanted(endpoint)).filter_map(|endpoint| endpoint.node_name.as_deref()).collect()
    };
    let ready = named(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true));
    if !ready.is_empty() {
        return ready;
    }
    named(|endpoint| endpoint.conditions.as_ref().is_some_and(|c| c.serving.unwrap_or(false)))
}

fn takes_traffic(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    labels.is_none_or(|labels| !labels.contains_key(EXCLUDED))
        && node.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn internal(node: &Node, v6: bool) -> Option<IpAddr> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse().ok()).find(|address: &IpAddr| address.is_ipv6() == v6)
}

/// Reports whether the Service wants a load balancer that no other implementation is named for.
fn is_ours(service: &Service) -> bool {
    let Some(spec) = &service.spec else { return false };
    spec.type_.as_deref() == Some("LoadBalancer")
        && spec.load_balancer_class.is_none()
        && service.metadata.deletion_timestamp.is_none()
}

/// Returns the addresses of the pools that a Service's status shows.
fn shown(service: &Service, pools: &[IpNet]) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    let addresses = ingress.filter_map(|ingress| ingress.ip.as_deref()?.parse().ok());
    addresses.filter(|address| pools.iter().any(|pool| pool.contains(address))).collect()
}

/// Returns the families of a Service: true stands for IPv6.
fn families(service: &Service) -> Vec<bool> {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref());
    families.into_iter().flatten().map(|family| family == "IPv6").collect()
}

fn name_of(service: &Service) -> String {
    let meta = &service.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn ingress(service: &Service, addresses: Vec<IpAddr>) -> Ingress {
    let meta = &service.metadata;
    Ingress {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        addresses,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
