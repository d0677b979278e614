//! Facts of the node that do not change, out of flags, configuration and machine.

use crate::config::{CommandLine, Config};
use crate::node::object::NodeIdentity;
use crate::resources::{self, MachineInfo};
use crate::settings::Settings;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The addresses that a cloud's controller is told to look for.
fn provided_ips(line: &CommandLine) -> Option<String> {
    let ips: Vec<String> = line.node_ips.iter().map(IpAddr::to_string).collect();
    (line.external_cloud && !ips.is_empty()).then(|| ips.join(","))
}

/// Taints of a new node; one that a cloud's controller has to look at first takes no pods before.
fn taints(config: &Config) -> Vec<Taint> {
    let mut taints = config.kubelet.register_with_taints.clone();
    if config.command_line.external_cloud {
        let (key, value) = ("node.cloudprovider.kubernetes.io/uninitialized".to_owned(), Some("true".to_owned()));
        taints.push(Taint { key, value, effect: "NoSchedule".to_owned(), time_added: None });
    }
    taints
}

/// Returns the facts of the node that do not change.
pub(super) fn identity(
    config: &Config,
    settings: &Settings,
    machine: MachineInfo,
    allocatable: BTreeMap<String, Quantity>,
) -> NodeIdentity {
    let kubelet = &config.kubelet;
    NodeIdentity {
        name: settings.node_name.clone(),
        labels: config.command_line.node_labels.clone(),
        taints: taints(config),
        provider_id: kubelet.provider_id.clone(),
        port: kubelet.port,
        attach_detach: kubelet.enable_controller_attach_detach,
        provided_ips: provided_ips(&config.command_line),
        external_cloud: config.command_line.external_cloud,
        capacity: resources::capacity(&machine, &settings.resources),
        machine,
        allocatable,
        max_images: usize::try_from(kubelet.node_status_max_images).ok(),
        declared_features: settings.declared_features.clone(),
    }
}
