//! Sandbox configuration in the runtime's words. Pure.
//! Answers for `generatePodSandboxConfig` of upstream's `kuberuntime_sandbox.go`.

use super::dns::{Resolver, dns_config, hostname};
use super::security;
use crate::cri::{labels, v1};
use crate::pods;
use crate::resources;
use crate::settings::Settings;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;

/// Labels of everything that belongs to the pod.
pub fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::POD_NAME.to_owned(), pods::name(pod).to_owned()),
        (labels::POD_NAMESPACE.to_owned(), pods::namespace(pod).to_owned()),
        (labels::POD_UID.to_owned(), pods::uid(pod).to_owned()),
    ])
}

/// The sandbox's configuration; `parent` is the pod's cgroup, `users` its user namespace, and `groups` those that its volumes
/// ask for.
pub fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    (parent, users, groups): (&str, Option<v1::UserNamespace>, Vec<i64>),
    settings: &Settings,
    host: &Resolver,
) -> v1::PodSandboxConfig {
    let mut all_labels = pod.metadata.labels.clone().unwrap_or_default();
    all_labels.extend(pod_labels(pod));
    let sysctls = pod
        .spec
        .as_ref()
        .and_then(|s| s.security_context.as_ref())
        .and_then(|c| c.sysctls.as_ref())
        .into_iter()
        .flatten()
        .map(|s| (s.name.replace('/', "."), s.value.clone()))
        .collect();
    let (overhead, pod_resources) = resources::sandbox_resources(pod, &settings.resources);
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: pods::name(pod).to_owned(),
            uid: pods::uid(pod).to_owned(),
            namespace: pods::namespace(pod).to_owned(),
            attempt,
        }),
        hostname: sandbox_hostname(pod, settings),
        log_directory: settings
            .pod_log_dir(pods::namespace(pod), pods::name(pod), pods::uid(pod))
            .to_string_lossy()
            .into_owned(),
        dns_config: Some(dns_config(pod, settings, host)),
        port_mappings: port_mappings(pod),
        labels: all_labels,
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: parent.to_owned(),
            security_context: Some(security::sandbox(pod, users, &groups)),
            sysctls,
            overhead: Some(overhead),
            resources: Some(pod_resources),
        }),
    }
}

/// The host name that the sandbox is given.
fn sandbox_hostname(pod: &Pod, settings: &Settings) -> String {
    if pods::host_network(pod) {
        // The node's own name is there already, and cannot be set from here.
        return String::new();
    }
    let (name, domain) = hostname(pod, settings);
    let whole = pod.spec.as_ref().and_then(|s| s.set_hostname_as_fqdn).unwrap_or(false);
    if whole && !domain.is_empty() { format!("{name}.{domain}") } else { name }
}

/// The ports of the containers; none on the host network, where there is nothing to map.
fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    let Some(spec) = pod.spec.as_ref().filter(|_| !pods::host_network(pod)) else { return Vec::new() };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers
        .flat_map(|c| c.ports.iter().flatten())
        .map(|port| v1::PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            }
            .into(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

/// Returns the folder of seccomp profiles named in pods.
pub fn seccomp_root(settings: &Settings) -> String {
    settings.root_dir.join("seccomp").to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_overhead_is_told_apart_from_what_the_containers_need() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": {
            "overhead": {"memory": "1Mi"},
            "containers": [{"name": "c", "resources": {"limits": {"memory": "10Mi"}}}],
        }}))
        .expect("pod");
        let settings = crate::workers::container::tests::settings();
        let linux =
            sandbox_config(&pod, 0, ("/x", None, Vec::new()), &settings, &Resolver::default()).linux.expect("linux");
        let memory = |part: Option<v1::LinuxContainerResources>| part.map(|part| part.memory_limit_in_bytes);
        assert_eq!((memory(linux.overhead), memory(linux.resources)), (Some(1 << 20), Some(10 << 20)));
    }
}
