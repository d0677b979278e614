//! Services, storage, policies and configuration.

use serde_json::{Value, json};

use super::{Object, child, child_or_new, if_nil, if_zero, is_empty, items, text};
use crate::scalar;

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn service(service: &mut Object) {
    if let Some(spec) = child_or_new(service, "spec") {
        service_spec(spec);
    }
    let balanced = child(service, "spec").is_some_and(|spec| text(spec, "type") == "LoadBalancer");
    let status = child(service, "status").filter(|_| balanced).and_then(|s| child(s, "loadBalancer"));
    let Some(status) = status else { return };
    for ingress in items(status, "ingress") {
        if !text(ingress, "ip").is_empty() {
            if_nil(ingress, "ipMode", "VIP");
        }
    }
}

fn service_spec(spec: &mut Object) {
    if_zero(spec, "sessionAffinity", "None");
    match text(spec, "sessionAffinity") {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP" => {
            let client_ip = child_or_new(spec, "sessionAffinityConfig").and_then(|c| child_or_new(c, "clientIP"));
            if let Some(client_ip) = client_ip {
                if_nil(client_ip, "timeoutSeconds", 10_800);
            }
        }
        _ => {}
    }
    if_zero(spec, "type", "ClusterIP");
    for port in items(spec, "ports") {
        if_zero(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_default();
        if_zero(port, "targetPort", number);
    }
    let kind = text(spec, "type").to_owned();
    let balanced = kind == "LoadBalancer";
    let external = balanced || kind == "NodePort" || (kind == "ClusterIP" && !is_empty(spec, "externalIPs"));
    if external {
        if_zero(spec, "externalTrafficPolicy", "Cluster");
    }
    if balanced || kind == "NodePort" || kind == "ClusterIP" {
        if_nil(spec, "internalTrafficPolicy", "Cluster");
    }
    if balanced {
        if_nil(spec, "allocateLoadBalancerNodePorts", true);
    }
}

pub(super) fn slice_port(port: &mut Object) {
    if_nil(port, "name", "");
    if_nil(port, "protocol", "TCP");
}

pub(super) fn secret(secret: &mut Object) {
    if_zero(secret, "type", "Opaque");
    let Some(Value::Object(strings)) = secret.remove("stringData") else { return };
    if strings.is_empty() {
        return;
    }
    if let Some(data) = child_or_new(secret, "data") {
        for (key, value) in strings {
            let encoded = scalar::encode_base64(value.as_str().unwrap_or_default().as_bytes());
            data.insert(key, Value::String(encoded));
        }
    }
}

pub(super) fn namespace(namespace: &mut Object) {
    let Some(metadata) = child(namespace, "metadata") else { return };
    let name = text(metadata, "name").to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(labels) = child_or_new(metadata, "labels") {
        labels.insert("kubernetes.io/metadata.name".to_owned(), Value::String(name));
    }
}

pub(super) fn namespace_status(status: &mut Object) {
    if_zero(status, "phase", "Active");
}

pub(super) fn node_status(status: &mut Object) {
    if let Some(capacity) = status.get("capacity").filter(|c| c.is_object()).cloned() {
        if_nil(status, "allocatable", capacity);
    }
}

pub(super) fn limit_range(item: &mut Object) {
    if text(item, "type") != "Container" {
        return;
    }
    for (target, source) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
        let Some(Value::Object(amounts)) = item.get(source).cloned() else { continue };
        if let Some(target) = child_or_new(item, target) {
            for (name, amount) in amounts {
                target.entry(name).or_insert(amount);
            }
        }
    }
}

pub(super) fn volume(spec: &mut Object) {
    if_zero(spec, "persistentVolumeReclaimPolicy", "Retain");
    volume_mode(spec);
}

pub(super) fn volume_mode(spec: &mut Object) {
    if_nil(spec, "volumeMode", "Filesystem");
}

pub(super) fn pending(status: &mut Object) {
    if_zero(status, "phase", "Pending");
}

pub(super) fn storage_class(class: &mut Object) {
    if_nil(class, "reclaimPolicy", "Delete");
    if_nil(class, "volumeBindingMode", "Immediate");
}

pub(super) fn csi_driver(spec: &mut Object) {
    if_nil(spec, "attachRequired", true);
    if_nil(spec, "podInfoOnMount", false);
    if_nil(spec, "storageCapacity", false);
    if_nil(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    if is_empty(spec, "volumeLifecycleModes") {
        spec.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
    }
    if_nil(spec, "requiresRepublish", false);
    if_nil(spec, "seLinuxMount", false);
}

pub(super) fn network_policy(spec: &mut Object) {
    if is_empty(spec, "policyTypes") {
        let types = if is_empty(spec, "egress") { json!(["Ingress"]) } else { json!(["Ingress", "Egress"]) };
        spec.insert("policyTypes".to_owned(), types);
    }
}

pub(super) fn ingress_parameters(reference: &mut Object) {
    if_nil(reference, "scope", "Cluster");
}

pub(super) fn role_ref(reference: &mut Object) {
    if_zero(reference, "apiGroup", RBAC_GROUP);
}

pub(super) fn subject(subject: &mut Object) {
    if matches!(text(subject, "kind"), "User" | "Group") {
        if_zero(subject, "apiGroup", RBAC_GROUP);
    }
}

pub(super) fn priority_class(class: &mut Object) {
    if_nil(class, "preemptionPolicy", "PreemptLowerPriority");
}

pub(super) fn https_port(reference: &mut Object) {
    if_nil(reference, "port", 443);
}

pub(super) fn webhook(webhook: &mut Object) {
    failure_policy(webhook);
    match_resources(webhook);
    if_nil(webhook, "timeoutSeconds", 10);
}

pub(super) fn mutating_webhook(hook: &mut Object) {
    webhook(hook);
    if_nil(hook, "reinvocationPolicy", "Never");
}

pub(super) fn failure_policy(spec: &mut Object) {
    if_nil(spec, "failurePolicy", "Fail");
}

pub(super) fn match_resources(resources: &mut Object) {
    if_nil(resources, "matchPolicy", "Equivalent");
    if_nil(resources, "namespaceSelector", Object::new());
    if_nil(resources, "objectSelector", Object::new());
}

pub(super) fn webhook_rule(rule: &mut Object) {
    if_nil(rule, "scope", "*");
}

pub(super) fn token_request(spec: &mut Object) {
    if_nil(spec, "expirationSeconds", 3600);
}

pub(super) fn flow_schema(spec: &mut Object) {
    if_zero(spec, "matchingPrecedence", 1000);
}

pub(super) fn priority_level(spec: &mut Object) {
    if text(spec, "type") == "Exempt" {
        if_nil(spec, "exempt", Object::new());
    }
}

pub(super) fn exempt_level(level: &mut Object) {
    if_nil(level, "nominalConcurrencyShares", 0);
    if_nil(level, "lendablePercent", 0);
}

pub(super) fn limited_level(level: &mut Object) {
    if_nil(level, "nominalConcurrencyShares", 30);
    if_nil(level, "lendablePercent", 0);
}

pub(super) fn queuing(queuing: &mut Object) {
    if_zero(queuing, "queues", 64);
    if_zero(queuing, "handSize", 8);
    if_zero(queuing, "queueLengthLimit", 50);
}

pub(super) fn device_request(request: &mut Object) {
    if_zero(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        if_zero(request, "count", 1);
    }
}

/// In v1beta1 a request that has alternatives wants nothing itself.
pub(super) fn flat_device_request(request: &mut Object) {
    if request.get("firstAvailable").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        device_request(request);
    }
}

pub(super) fn definition(definition: &mut Object) {
    let Some(spec) = child_or_new(definition, "spec") else { return };
    if let Some(names) = child_or_new(spec, "names") {
        let kind = text(names, "kind").to_owned();
        if !kind.is_empty() {
            if_zero(names, "singular", kind.to_lowercase());
            if_zero(names, "listKind", format!("{kind}List"));
        }
    }
    // One that is there says how it converts.
    if spec.get("conversion").is_none_or(Value::is_null)
        && let Some(conversion) = child_or_new(spec, "conversion")
    {
        conversion.insert("strategy".to_owned(), "None".into());
    }
    let stored: Vec<Value> = items(spec, "versions")
        .filter(|v| v.get("storage") == Some(&Value::Bool(true)))
        .filter_map(|v| v.get("name").cloned())
        .take(1)
        .collect();
    if let Some(status) = child_or_new(definition, "status")
        && is_empty(status, "storedVersions")
        && !stored.is_empty()
    {
        status.insert("storedVersions".to_owned(), Value::Array(stored));
    }
}
