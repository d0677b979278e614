//! Upstream's defaults: what an object gets before anybody looks at it.
//!
//! A walk over the schema applies constant defaults from the tables and, per message type, the procedural ones from
//! [`RULES`]. Outer objects come before their parts. Only what depends on the object alone is here: allocation,
//! admission and strategies (finalizers, service IPs, tokens, priorities) are not.

mod apps;
mod cluster;
mod late;
mod pod;
mod scaling;

use serde_json::{Map, Value};

use crate::json::MAX_TREE_DEPTH;
use crate::schema::zero;
use crate::schema::{Card, Field, Message, ValueKind};

pub use late::may_lack;

type Object = Map<String, Value>;
type Rule = fn(&mut Object);

/// Procedural defaults by message name (without `k8s.io.`), sorted.
const RULES: &[(&str, Rule)] = &[
    ("api.admissionregistration.v1.MatchResources", cluster::match_resources),
    ("api.admissionregistration.v1.MutatingWebhook", cluster::mutating_webhook),
    ("api.admissionregistration.v1.NamedRuleWithOperations", cluster::webhook_rule),
    ("api.admissionregistration.v1.RuleWithOperations", cluster::webhook_rule),
    ("api.admissionregistration.v1.ServiceReference", cluster::https_port),
    ("api.admissionregistration.v1.ValidatingAdmissionPolicySpec", cluster::failure_policy),
    ("api.admissionregistration.v1.ValidatingWebhook", cluster::webhook),
    ("api.admissionregistration.v1alpha1.MatchResources", cluster::match_resources),
    ("api.admissionregistration.v1alpha1.MutatingAdmissionPolicySpec", cluster::failure_policy),
    ("api.admissionregistration.v1alpha1.NamedRuleWithOperations", cluster::webhook_rule),
    ("api.admissionregistration.v1beta1.MatchResources", cluster::match_resources),
    ("api.admissionregistration.v1beta1.MutatingAdmissionPolicySpec", cluster::failure_policy),
    ("api.admissionregistration.v1beta1.NamedRuleWithOperations", cluster::webhook_rule),
    ("api.apps.v1.DaemonSetSpec", apps::daemon_set),
    ("api.apps.v1.DeploymentSpec", apps::deployment),
    ("api.apps.v1.ReplicaSetSpec", apps::replicas),
    ("api.apps.v1.StatefulSetSpec", apps::stateful_set),
    ("api.authentication.v1.TokenRequestSpec", cluster::token_request),
    ("api.autoscaling.v1.HorizontalPodAutoscalerSpec", scaling::autoscaler_v1),
    ("api.autoscaling.v2.HorizontalPodAutoscalerSpec", scaling::autoscaler),
    ("api.batch.v1.CronJobSpec", apps::cron_job),
    ("api.batch.v1.Job", apps::job),
    ("api.core.v1.ConfigMapVolumeSource", pod::default_mode),
    ("api.core.v1.Container", pod::container),
    ("api.core.v1.DownwardAPIVolumeSource", pod::default_mode),
    ("api.core.v1.EndpointPort", pod::port_protocol),
    ("api.core.v1.EphemeralContainer", pod::container),
    ("api.core.v1.HTTPGetAction", pod::http_get),
    ("api.core.v1.HostPathVolumeSource", pod::host_path),
    ("api.core.v1.LimitRangeItem", cluster::limit_range),
    ("api.core.v1.Namespace", cluster::namespace),
    ("api.core.v1.NamespaceStatus", cluster::namespace_status),
    ("api.core.v1.NodeStatus", cluster::node_status),
    ("api.core.v1.ObjectFieldSelector", pod::field_selector),
    ("api.core.v1.PersistentVolumeClaimSpec", cluster::volume_mode),
    ("api.core.v1.PersistentVolumeClaimStatus", cluster::pending),
    ("api.core.v1.PersistentVolumeSpec", cluster::volume),
    ("api.core.v1.PersistentVolumeStatus", cluster::pending),
    ("api.core.v1.Pod", pod::pod),
    ("api.core.v1.PodSpec", pod::pod_spec),
    ("api.core.v1.PodTemplateSpec", pod::template),
    ("api.core.v1.Probe", pod::probe),
    ("api.core.v1.ProjectedVolumeSource", pod::default_mode),
    ("api.core.v1.ReplicationController", apps::replication_controller),
    ("api.core.v1.Secret", cluster::secret),
    ("api.core.v1.SecretVolumeSource", pod::default_mode),
    ("api.core.v1.ServiceAccountTokenProjection", pod::token_projection),
    ("api.core.v1.Service", cluster::service),
    ("api.core.v1.Volume", pod::volume),
    ("api.discovery.v1.EndpointPort", cluster::slice_port),
    ("api.flowcontrol.v1.ExemptPriorityLevelConfiguration", cluster::exempt_level),
    ("api.flowcontrol.v1.FlowSchemaSpec", cluster::flow_schema),
    ("api.flowcontrol.v1.LimitedPriorityLevelConfiguration", cluster::limited_level),
    ("api.flowcontrol.v1.PriorityLevelConfigurationSpec", cluster::priority_level),
    ("api.flowcontrol.v1.QueuingConfiguration", cluster::queuing),
    ("api.networking.v1.IngressClassParametersReference", cluster::ingress_parameters),
    ("api.networking.v1.NetworkPolicyPort", pod::port_protocol),
    ("api.networking.v1.NetworkPolicySpec", cluster::network_policy),
    ("api.rbac.v1.RoleRef", cluster::role_ref),
    ("api.rbac.v1.Subject", cluster::subject),
    ("api.resource.v1.DeviceSubRequest", cluster::device_request),
    ("api.resource.v1.ExactDeviceRequest", cluster::device_request),
    ("api.resource.v1beta1.DeviceRequest", cluster::flat_device_request),
    ("api.resource.v1beta1.DeviceSubRequest", cluster::device_request),
    ("api.resource.v1beta2.DeviceSubRequest", cluster::device_request),
    ("api.resource.v1beta2.ExactDeviceRequest", cluster::device_request),
    ("api.scheduling.v1.PriorityClass", cluster::priority_class),
    ("api.storage.v1.CSIDriverSpec", cluster::csi_driver),
    ("api.storage.v1.StorageClass", cluster::storage_class),
    ("apiextensions_apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition", cluster::definition),
    ("apiextensions_apiserver.pkg.apis.apiextensions.v1.ServiceReference", cluster::https_port),
    ("kube_aggregator.pkg.apis.apiregistration.v1.ServiceReference", cluster::https_port),
];

/// Applies all defaults to an object of a built-in kind, or the constant ones to a custom resource.
pub fn apply(schema: &Message, value: &mut Value) {
    if let Value::Object(map) = value {
        object(schema, map, 0);
    }
}

fn rules() -> &'static Map<String, Value> {
    use std::sync::LazyLock;
    static INDEX: LazyLock<Map<String, Value>> =
        LazyLock::new(|| RULES.iter().enumerate().map(|(i, (name, _))| ((*name).to_owned(), Value::from(i))).collect());
    &INDEX
}

fn rule(schema: &Message) -> Option<Rule> {
    let name = schema.name.strip_prefix("k8s.io.")?;
    let at = rules().get(name)?.as_u64()?;
    RULES.get(usize::try_from(at).ok()?).map(|(_, rule)| *rule)
}

fn object(schema: &Message, map: &mut Object, depth: usize) {
    if depth >= MAX_TREE_DEPTH {
        return;
    }
    if let Some(rule) = rule(schema) {
        rule(map);
    }
    for field in schema.defaulted() {
        constant(field, map);
    }
    for (name, value) in map.iter_mut().filter(|(_, v)| v.is_object() || v.is_array()) {
        match (schema.field(name), value) {
            (Some(field), Value::Object(list)) if is_resource_list(schema, field) => pod::round_up(list),
            (Some(field), value) => children(field, value, depth + 1),
            _ => {}
        }
    }
}

/// Lists of resources, whoever has one, have a default of a kind: what is finer than they count. Maps of quantities of
/// other groups are no such lists.
fn is_resource_list(schema: &Message, field: &Field) -> bool {
    let lists = || ["k8s.io.api.core.v1.", "k8s.io.api.node.v1."].iter().any(|of| schema.name.starts_with(of));
    matches!((&field.kind, field.card), (ValueKind::Quantity, Card::Map)) && lists()
}

fn constant(field: &Field, map: &mut Object) {
    let name = field.json.as_ref();
    let unset = match map.get(name) {
        None => true,
        Some(Value::Null) => !field.nullable,
        Some(Value::String(s)) => s.is_empty() && !field.pointer,
        Some(_) => false,
    };
    if !unset {
        return;
    }
    match field.default.as_deref().map(serde_json::from_str) {
        // A zero that is not written anyway.
        Some(Ok(zero)) if !field.pointer && zero::is_omitted(field, &zero) => {}
        Some(Ok(default)) => {
            map.insert(name.to_owned(), default);
        }
        _ => {}
    }
}

fn children(field: &Field, value: &mut Value, depth: usize) {
    match (&field.kind, field.card, value) {
        (ValueKind::Message(inner), Card::Single, Value::Object(map)) => object(inner, map, depth),
        (ValueKind::Message(inner), Card::Repeated, Value::Array(list)) => {
            for item in list {
                if let Value::Object(map) = item {
                    object(inner, map, depth);
                }
            }
        }
        (ValueKind::Message(inner), Card::Map, Value::Object(entries)) => {
            for (_, item) in entries.iter_mut() {
                if let Value::Object(map) = item {
                    object(inner, map, depth);
                }
            }
        }
        (ValueKind::Nested(inner), Card::Single, value) if depth < MAX_TREE_DEPTH => children(inner, value, depth + 1),
        (ValueKind::Nested(inner), Card::Repeated, Value::Array(list)) if depth < MAX_TREE_DEPTH => {
            for item in list {
                children(inner, item, depth + 1);
            }
        }
        (ValueKind::Nested(inner), Card::Map, Value::Object(entries)) if depth < MAX_TREE_DEPTH => {
            for (_, item) in entries.iter_mut() {
                children(inner, item, depth + 1);
            }
        }
        _ => {}
    }
}

/// Sets a field that is absent (a nil pointer).
fn if_nil(map: &mut Object, name: &str, value: impl Into<Value>) {
    if map.get(name).is_none_or(Value::is_null) {
        map.insert(name.to_owned(), value.into());
    }
}

/// Sets a field that is absent or zero.
fn if_zero(map: &mut Object, name: &str, value: impl Into<Value>) {
    let zero = match map.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Number(n)) => n.as_i64() == Some(0),
        _ => false,
    };
    if zero {
        map.insert(name.to_owned(), value.into());
    }
}

fn text<'m>(map: &'m Object, name: &str) -> &'m str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn child<'m>(map: &'m mut Object, name: &str) -> Option<&'m mut Object> {
    map.get_mut(name).and_then(Value::as_object_mut)
}

/// The object in a field, made when absent.
fn child_or_new<'m>(map: &'m mut Object, name: &str) -> Option<&'m mut Object> {
    if_nil(map, name, Object::new());
    child(map, name)
}

fn items<'m>(map: &'m mut Object, name: &str) -> impl Iterator<Item = &'m mut Object> {
    map.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn is_empty(map: &Object, name: &str) -> bool {
    match map.get(name) {
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(entries)) => entries.is_empty(),
        Some(Value::Null) | None => true,
        _ => false,
    }
}
