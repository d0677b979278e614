//! Field and resource references (`fieldRef`, `resourceFieldRef`), for the environment and
//! for downward-API volumes.
//! Answers for `ExtractFieldPathAsString` and `ExtractContainerResourceValue` of upstream.

use super::EnvError;
use crate::facts::PodFacts;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::quantity::Quantity as Amount;
use shared::status::go_quote;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The value at a pod field path as the downward API spells it.
///
/// # Errors
/// The path is not one that the downward API offers.
pub fn field(pod: &Pod, facts: &PodFacts, path: &str) -> Result<String, EnvError> {
    if let Some((map, key)) = subscript(path) {
        let values = match map {
            "metadata.labels" => &pod.metadata.labels,
            "metadata.annotations" => &pod.metadata.annotations,
            _ => return Err(EnvError::Field(format!("fieldPath {path:?} does not support subscript"))),
        };
        return Ok(values.as_ref().and_then(|values| values.get(key)).cloned().unwrap_or_default());
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let spec = pod.spec.as_ref();
    Ok(match path {
        "metadata.name" => text(&pod.metadata.name),
        "metadata.namespace" => text(&pod.metadata.namespace),
        "metadata.uid" => text(&pod.metadata.uid),
        "metadata.labels" => map_lines(pod.metadata.labels.as_ref()),
        "metadata.annotations" => map_lines(pod.metadata.annotations.as_ref()),
        "spec.nodeName" => facts.node_name.clone(),
        "spec.serviceAccountName" => spec.map(|spec| text(&spec.service_account_name)).unwrap_or_default(),
        "status.hostIP" => facts.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => facts.host_ips.join(","),
        "status.podIP" => pod_ips(pod, facts).first().cloned().unwrap_or_default(),
        "status.podIPs" => pod_ips(pod, facts).join(","),
        _ => return Err(EnvError::Field(format!("unsupported fieldPath: {path}"))),
    })
}

/// A pod on the host's network has the host's addresses even before its sandbox says so.
fn pod_ips<'a>(pod: &Pod, facts: &'a PodFacts) -> &'a [String] {
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    if facts.pod_ips.is_empty() && host_network { &facts.host_ips } else { &facts.pod_ips }
}

fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// `key="value"` lines in key order, values quoted as Go quotes them.
fn map_lines(map: Option<&BTreeMap<String, String>>) -> String {
    let mut lines = String::new();
    for (index, (key, value)) in map.into_iter().flatten().enumerate() {
        let separator = if index == 0 { "" } else { "\n" };
        write!(lines, "{separator}{key}={}", go_quote(value)).ok();
    }
    lines
}

/// A container's request or limit in units of the divisor, rounded up. A limit that is not
/// set is what the node can give.
///
/// # Errors
/// The resource is not one that the downward API offers.
pub fn resource(selector: &ResourceFieldSelector, container: &Container, facts: &PodFacts) -> Result<String, EnvError> {
    let unsupported = || EnvError::Field(format!("unsupported container resource : {}", selector.resource));
    let (list, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let plain = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    let resources = container.resources.as_ref();
    let from = |map: Option<&BTreeMap<String, Quantity>>| map.and_then(|map| map.get(name)).and_then(amount);
    let limit = || from(resources.and_then(|resources| resources.limits.as_ref()));
    let value = match list {
        "limits" if plain => limit().filter(|limit| !limit.is_zero()).or_else(|| from(Some(&facts.allocatable))),
        "requests" if plain => from(resources.and_then(|resources| resources.requests.as_ref())),
        _ => return Err(unsupported()),
    };
    let divisor = selector.divisor.as_ref().and_then(amount).filter(|divisor| !divisor.is_zero());
    let value = value.unwrap_or_default();
    let (value, divisor) = if name == "cpu" {
        (value.milli_value(), divisor.map_or(1000, |divisor| divisor.milli_value()))
    } else {
        (value.value(), divisor.map_or(1, |divisor| divisor.value()))
    };
    let divisor = divisor.max(1);
    Ok((value / divisor + i64::from(value % divisor > 0)).to_string())
}

fn amount(quantity: &Quantity) -> Option<Amount> {
    quantity.0.parse().ok()
}

/// The container, init container included, that a resource reference names.
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|container| container.name == name)
}
