//! What caches leave out: fields no controller reads, which would fill memory in large clusters.

use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec};

/// Nodes are patched, never written back whole. The images they hold are most of what they report.
pub fn node(node: &mut Node) {
    if let Some(status) = node.status.as_mut() {
        status.images = None;
    }
}

/// Pods are never written back whole, so that they need not be kept whole.
pub fn pod(pod: &mut Pod) {
    if let Some(annotations) = pod.metadata.annotations.as_mut() {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    if let Some(spec) = pod.spec.as_mut() {
        pod_spec(spec);
    }
    if let Some(status) = pod.status.as_mut() {
        status.host_ips = None;
        status.message = None;
        let kinds = [&mut status.container_statuses, &mut status.init_container_statuses];
        for c in kinds.into_iter().flatten().flatten() {
            c.image = String::new();
            c.image_id = String::new();
            c.container_id = None;
            c.volume_mounts = None;
            c.resources = None;
            c.last_state = None;
        }
        status.ephemeral_container_statuses = None;
        for c in status.conditions.iter_mut().flatten() {
            c.message = None;
            c.reason = None;
            c.last_probe_time = None;
        }
    }
}

fn pod_spec(spec: &mut PodSpec) {
    spec.ephemeral_containers = None;
    spec.security_context = None;
    spec.image_pull_secrets = None;
    spec.host_aliases = None;
    spec.dns_config = None;
    spec.topology_spread_constraints = None;
    spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()).for_each(container);
    if let Some(volumes) = spec.volumes.as_mut() {
        volumes.retain(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some());
    }
}

fn container(c: &mut Container) {
    *c = Container {
        name: std::mem::take(&mut c.name),
        ports: c.ports.take(),
        resources: c.resources.take(),
        restart_policy: c.restart_policy.take(),
        ..Container::default()
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keeps_what_controllers_read() {
        let mut p: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}],
                "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "1"}}}],
                "volumes": [{"name": "e", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "x", "ready": true, "restartCount": 2}]}}))
        .expect("pod");
        pod(&mut p);
        assert_eq!(
            serde_json::to_value(&p).expect("json"),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "1"}}}],
                    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]},
                "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 2}]}})
        );
    }
}
