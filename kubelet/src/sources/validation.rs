//! Faults of static pods in their containers and volumes. An API server would refuse the pod, and its mirror pod could
//! not be made: it would run unseen. Pure. Answers for the part of upstream's `ValidatePodCreate` that manifests fail at.

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec, Probe, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::quantity::Quantity as Amount;
use shared::status::field::{Error, Path};
use shared::types::is_sidecar;
use std::collections::{BTreeMap, BTreeSet};

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MESSAGE_POLICIES: [&str; 2] = ["FallbackToLogsOnError", "File"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
const PORTS: std::ops::RangeInclusive<i32> = 1..=65535;
const PORT: &str = "must be between 1 and 65535, inclusive";
const NEGATIVE: &str = "must be greater than or equal to 0";

/// All that is wrong.
pub(super) fn problems(spec: &PodSpec) -> Vec<Error> {
    let at = Path::new("spec");
    let mut all = Vec::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        all.extend(of_volume(volume, &at.child("volumes").index(index)));
    }
    let mut host_ports = BTreeSet::new();
    let lists = [("initContainers", spec.init_containers.as_deref()), ("containers", Some(spec.containers.as_slice()))];
    for (list, containers) in lists {
        for (index, container) in containers.unwrap_or_default().iter().enumerate() {
            let at = at.child(list).index(index);
            all.extend(of_container(spec, container, &at));
            // Init containers that end have no ports to themselves.
            if list == "containers" || is_sidecar(container) {
                all.extend(shared_ports(container, &at, &mut host_ports));
            }
        }
    }
    if spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
        all.push(Error::forbidden(at.child("ephemeralContainers"), "cannot be set on create"));
    }
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    all.extend(unsupported(&at.child("dnsPolicy"), policy, &DNS_POLICIES));
    if let Some(seconds) = spec.active_deadline_seconds.filter(|seconds| !(1..=i64::from(i32::MAX)).contains(seconds)) {
        let range = format!("must be between 1 and {}, inclusive", i32::MAX);
        all.push(Error::invalid(at.child("activeDeadlineSeconds"), seconds, &range));
    }
    all
}

fn unsupported(at: &Path, value: &str, known: &[&str]) -> Option<Error> {
    (!known.contains(&value)).then(|| Error::not_supported(at.clone(), value, known))
}

/// A volume has one source, or at least one.
fn of_volume(volume: &Volume, at: &Path) -> Vec<Error> {
    let mut all = Vec::new();
    let sources = serde_json::to_value(volume).ok();
    let sources = sources.as_ref().and_then(|value| value.as_object()).map_or(0, |fields| fields.len() - 1);
    if sources == 0 {
        all.push(Error::required(at.clone(), "must specify a volume type"));
    }
    if sources > 1 {
        all.push(Error::forbidden(at.clone(), "may not specify more than 1 volume type"));
    }
    if let Some(source) = &volume.host_path {
        let at = at.child("hostPath").child("path");
        if source.path.is_empty() {
            all.push(Error::required(at, ""));
        } else if source.path.split('/').any(|part| part == "..") {
            all.push(Error::invalid(at, source.path.clone(), "must not contain '..'"));
        }
    }
    all
}

fn of_container(spec: &PodSpec, container: &Container, at: &Path) -> Vec<Error> {
    let mut all = Vec::new();
    let policy = container.image_pull_policy.as_deref().unwrap_or("Always");
    all.extend(unsupported(&at.child("imagePullPolicy"), policy, &PULL_POLICIES));
    let policy = container.termination_message_policy.as_deref().unwrap_or("File");
    all.extend(unsupported(&at.child("terminationMessagePolicy"), policy, &MESSAGE_POLICIES));
    for (index, port) in container.ports.iter().flatten().enumerate() {
        all.extend(of_port(spec, port, &at.child("ports").index(index)));
    }
    for (index, variable) in container.env.iter().flatten().enumerate() {
        if variable.name.is_empty() {
            all.push(Error::required(at.child("env").index(index).child("name"), ""));
        }
    }
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        all.extend(of_mount(mount, &mut paths, &at.child("volumeMounts").index(index)));
    }
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    for (name, probe) in probes {
        all.extend(probe.iter().flat_map(|probe| of_probe(probe, name != "readinessProbe", &at.child(name))));
    }
    if let Some(resources) = &container.resources {
        all.extend(of_resources(resources.requests.as_ref(), resources.limits.as_ref(), &at.child("resources")));
    }
    all
}

fn of_port(spec: &PodSpec, port: &ContainerPort, at: &Path) -> Vec<Error> {
    let mut all = Vec::new();
    if !PORTS.contains(&port.container_port) {
        all.push(Error::invalid(at.child("containerPort"), port.container_port, PORT));
    }
    let host_port = port.host_port.filter(|port| *port != 0);
    if let Some(host_port) = host_port.filter(|port| !PORTS.contains(port)) {
        all.push(Error::invalid(at.child("hostPort"), host_port, PORT));
    }
    if let Some(host_port) = host_port.filter(|other| spec.host_network == Some(true) && *other != port.container_port)
    {
        let why = "must match `containerPort` when `hostNetwork` is true";
        all.push(Error::invalid(at.child("hostPort"), host_port, why));
    }
    all.extend(unsupported(&at.child("protocol"), port.protocol.as_deref().unwrap_or("TCP"), &PROTOCOLS));
    all
}

/// Host ports that another container has already.
fn shared_ports(container: &Container, at: &Path, taken: &mut BTreeSet<String>) -> Vec<Error> {
    let ports = container.ports.iter().flatten().enumerate();
    let again = ports.filter_map(|(index, port)| {
        let number = port.host_port.filter(|port| *port > 0)?;
        let (protocol, ip) = (port.protocol.as_deref().unwrap_or("TCP"), port.host_ip.as_deref().unwrap_or_default());
        let name = format!("{protocol}/{ip}/{number}");
        let at = at.child("ports").index(index).child("hostPort");
        (!taken.insert(name.clone())).then(|| Error::duplicate(at, name))
    });
    again.collect()
}

fn of_mount(mount: &VolumeMount, paths: &mut BTreeSet<String>, at: &Path) -> Vec<Error> {
    let mut all = Vec::new();
    if mount.mount_path.is_empty() {
        all.push(Error::required(at.child("mountPath"), ""));
    } else if !paths.insert(mount.mount_path.clone()) {
        all.push(Error::invalid(at.child("mountPath"), mount.mount_path.clone(), "must be unique"));
    }
    if let Some(sub_path) = mount.sub_path.as_ref().filter(|path| !path.is_empty()) {
        let at = at.child("subPath");
        if sub_path.starts_with('/') {
            all.push(Error::invalid(at, sub_path.clone(), "must be a relative path"));
        } else if sub_path.split('/').any(|part| part == "..") {
            all.push(Error::invalid(at, sub_path.clone(), "must not contain '..'"));
        }
    }
    all
}

/// `once` for probes of which one success is enough.
fn of_probe(probe: &Probe, once: bool, at: &Path) -> Vec<Error> {
    let mut all = Vec::new();
    let handlers = [probe.exec.is_some(), probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.grpc.is_some()];
    match handlers.into_iter().filter(|is_there| *is_there).count() {
        0 => all.push(Error::required(at.clone(), "must specify a handler type")),
        1 => {}
        _ => all.push(Error::forbidden(at.clone(), "may not specify more than 1 handler type")),
    }
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        all.extend(value.filter(|value| *value < 0).map(|value| Error::invalid(at.child(name), value, NEGATIVE)));
    }
    if let Some(successes) = probe.success_threshold.filter(|successes| once && *successes != 1) {
        all.push(Error::invalid(at.child("successThreshold"), successes, "must be 1"));
    }
    all
}

fn of_resources(
    requests: Option<&BTreeMap<String, Quantity>>,
    limits: Option<&BTreeMap<String, Quantity>>,
    at: &Path,
) -> Vec<Error> {
    let parse = |quantity: &Quantity| quantity.0.parse::<Amount>().ok();
    let mut all = Vec::new();
    for (name, limit) in limits.into_iter().flatten() {
        let request = requests.and_then(|requests| requests.get(name));
        if let (Some(request), Some(limit_amount)) = (request, parse(limit))
            && parse(request).is_some_and(|amount| amount > limit_amount)
        {
            let why = format!("must be less than or equal to {name} limit of {}", limit.0);
            all.push(Error::invalid(at.child("requests"), request.0.clone(), &why));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn told(spec: Value) -> Vec<String> {
        let spec: PodSpec = serde_json::from_value(spec).expect("a spec");
        problems(&spec).iter().map(ToString::to_string).collect()
    }

    fn container(fields: Value) -> Value {
        let mut container = json!({"name": "c", "image": "i"});
        container.as_object_mut().expect("fields").extend(fields.as_object().expect("fields").clone());
        json!({"containers": [container]})
    }

    #[test]
    fn manifests_are_held_to_upstreams_rules() {
        let c = "spec.containers[0]";
        for (spec, expected) in [
            (container(json!({})), String::new()),
            (container(json!({"imagePullPolicy": "Often"})), format!("{c}.imagePullPolicy: Unsupported value: \"Often\": supported values: \"Always\", \"IfNotPresent\", \"Never\"")),
            (container(json!({"terminationMessagePolicy": "Log"})), format!("{c}.terminationMessagePolicy: Unsupported value: \"Log\": supported values: \"FallbackToLogsOnError\", \"File\"")),
            (container(json!({"ports": [{"containerPort": 0}]})), format!("{c}.ports[0].containerPort: Invalid value: 0: must be between 1 and 65535, inclusive")),
            (container(json!({"ports": [{"containerPort": 1, "hostPort": 70000}]})), format!("{c}.ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive")),
            (container(json!({"ports": [{"containerPort": 1, "protocol": "tcp"}]})), format!("{c}.ports[0].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \"TCP\", \"UDP\"")),
            (container(json!({"ports": [{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}]})), format!("{c}.ports[1].hostPort: Duplicate value: \"TCP//5\"")),
            (container(json!({"env": [{"name": ""}]})), format!("{c}.env[0].name: Required value")),
            (container(json!({"volumeMounts": [{"name": "v", "mountPath": ""}]})), format!("{c}.volumeMounts[0].mountPath: Required value")),
            (container(json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "w", "mountPath": "/a"}]})), format!("{c}.volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique")),
            (container(json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "../x"}]})), format!("{c}.volumeMounts[0].subPath: Invalid value: \"../x\": must not contain '..'")),
            (container(json!({"livenessProbe": {}})), format!("{c}.livenessProbe: Required value: must specify a handler type")),
            (container(json!({"startupProbe": {"tcpSocket": {"port": 1}, "periodSeconds": -1}})), format!("{c}.startupProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0")),
            (container(json!({"livenessProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}})), format!("{c}.livenessProbe.successThreshold: Invalid value: 2: must be 1")),
            (container(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})), format!("{c}.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1")),
            (json!({"containers": [], "volumes": [{"name": "v"}]}), "spec.volumes[0]: Required value: must specify a volume type".into()),
            (json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}), "spec.volumes[0]: Forbidden: may not specify more than 1 volume type".into()),
            (json!({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": "/x/../y"}}]}), "spec.volumes[0].hostPath.path: Invalid value: \"/x/../y\": must not contain '..'".into()),
            (json!({"containers": [], "dnsPolicy": "Cluster"}), "spec.dnsPolicy: Unsupported value: \"Cluster\": supported values: \"ClusterFirst\", \"ClusterFirstWithHostNet\", \"Default\", \"None\"".into()),
            (json!({"containers": [], "ephemeralContainers": [{"name": "e"}]}), "spec.ephemeralContainers: Forbidden: cannot be set on create".into()),
            (json!({"containers": [], "activeDeadlineSeconds": 0}), "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive".into()),
        ] {
            let expected: Vec<String> = (!expected.is_empty()).then_some(expected).into_iter().collect();
            assert_eq!(told(spec.clone()), expected, "{spec}");
        }
        let mut host = container(json!({"ports": [{"containerPort": 1, "hostPort": 2}]}));
        host["hostNetwork"] = json!(true);
        let text = "spec.containers[0].ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is true";
        assert_eq!(told(host), [text]);
    }
}
