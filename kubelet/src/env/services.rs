//! Service links: the variables that tell a container where its namespace's services are.
//! Answers for upstream's `pkg/kubelet/envvars` (`FromServices`).

use k8s_openapi::api::core::v1::{Pod, Service};
use shared::host_port;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Namespace and name of the service that every pod learns of, whatever its namespace.
const MASTER_NAMESPACE: &str = "default";
const MASTER_SERVICE: &str = "kubernetes";

/// All service variables of a pod. Services without a cluster IP have none; with
/// `enableServiceLinks: false` only the API server's remain.
pub(super) fn variables(pod: &Pod, services: &[Arc<Service>]) -> BTreeMap<String, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let (Some(name), Some(home)) = (service.metadata.name.as_deref(), service.metadata.namespace.as_deref()) else {
            continue;
        };
        if cluster_ip(service).is_none() {
            continue;
        }
        if home == namespace && links {
            chosen.insert(name, service);
        } else if home == MASTER_NAMESPACE && name == MASTER_SERVICE {
            chosen.entry(name).or_insert(service);
        }
    }
    let mut variables = BTreeMap::new();
    for (name, service) in chosen {
        add(&mut variables, name, service);
    }
    variables
}

fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

fn add(variables: &mut BTreeMap<String, String>, name: &str, service: &Service) {
    let Some(ip) = cluster_ip(service) else { return };
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let Some(first) = ports.first() else { return };
    let prefix = variable_name(name);
    variables.insert(format!("{prefix}_SERVICE_HOST"), ip.into());
    variables.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for port in ports {
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            variables.insert(format!("{prefix}_SERVICE_PORT_{}", variable_name(port_name)), port.port.to_string());
        }
    }
    for (position, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{}", protocol.to_lowercase(), host_port::join(ip, port.port));
        if position == 0 {
            variables.insert(format!("{prefix}_PORT"), url.clone());
        }
        let link = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        variables.insert(format!("{link}_PROTO"), protocol.to_lowercase());
        variables.insert(format!("{link}_PORT"), port.port.to_string());
        variables.insert(format!("{link}_ADDR"), ip.into());
        variables.insert(link, url);
    }
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}
