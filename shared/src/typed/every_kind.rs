//! Every kind in every version: an object that has one member in one of many ways, all others left out. What the API
//! server's decoder takes, the typed reader takes, as it came and as the API server sends it, in JSON and in protobuf.

use std::collections::{BTreeMap, BTreeSet};

use proto::schema::{Card, Field, Message, ValueKind, kind_of};
use proto::{json, protobuf};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ReadError, from_json, from_protobuf};

/// Counts of the objects of a kind.
#[derive(Debug, Default)]
struct KindCounts {
    tried: usize,
    /// By the API server's decoder.
    taken: usize,
    /// Taken there, refused here: object and reason.
    refused: Vec<(String, String)>,
}

type Try = fn(&'static Message, &Value, &mut KindCounts);

fn read<T: DeserializeOwned>(schema: &'static Message, object: &Value, outcome: &mut KindCounts) {
    outcome.tried += 1;
    let text = object.to_string();
    let Ok(decoded) = json::decode(schema, text.as_bytes(), json::Strictness::Ignore) else { return };
    outcome.taken += 1;
    let mut sent = Vec::new();
    json::encode(schema, &decoded.value, &mut sent);
    let mut note = |form: &str, read: Result<T, ReadError>| {
        if let Err(why) = read {
            outcome.refused.push((text.clone(), format!("{form}: {why}")));
        }
    };
    note("as it came", from_json(|| Some(schema), text.as_bytes()));
    note("as it is sent", from_json(|| Some(schema), &sent));
    if schema.has_protobuf {
        note("in protobuf", from_protobuf(schema, &protobuf::encode(schema, &decoded.value)));
    }
}

macro_rules! one {
    (($($module:ident)::+) $kind:ident) => {{
        type Kind = k8s_openapi::$($module)::+::$kind;
        (Kind::API_VERSION, Kind::KIND, read::<Kind> as Try)
    }};
}

macro_rules! kinds {
    ($($module:tt { $($kind:ident)+ })+) => {
        fn kinds() -> Vec<(&'static str, &'static str, Try)> {
            use k8s_openapi::Resource as _;
            vec![$($(one!($module $kind)),+),+]
        }
    };
}

kinds! {
    (api::admissionregistration::v1) {
        MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
        ValidatingWebhookConfiguration
    }
    (api::admissionregistration::v1alpha1) { MutatingAdmissionPolicy MutatingAdmissionPolicyBinding }
    (api::admissionregistration::v1beta1) { MutatingAdmissionPolicy MutatingAdmissionPolicyBinding }
    (api::apiserverinternal::v1alpha1) { StorageVersion }
    (api::apps::v1) { ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet }
    (api::authentication::v1) { SelfSubjectReview TokenRequest TokenReview }
    (api::authorization::v1) {
        LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview
    }
    (api::autoscaling::v1) { HorizontalPodAutoscaler Scale }
    (api::autoscaling::v2) { HorizontalPodAutoscaler }
    (api::batch::v1) { CronJob Job }
    (api::certificates::v1) { CertificateSigningRequest }
    (api::certificates::v1alpha1) { ClusterTrustBundle }
    (api::certificates::v1beta1) { ClusterTrustBundle PodCertificateRequest }
    (api::coordination::v1) { Lease }
    (api::coordination::v1alpha2) { LeaseCandidate }
    (api::coordination::v1beta1) { LeaseCandidate }
    (api::core::v1) {
        Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume
        PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount
    }
    (api::discovery::v1) { EndpointSlice }
    (api::events::v1) { Event }
    (api::flowcontrol::v1) { FlowSchema PriorityLevelConfiguration }
    (api::networking::v1) { IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR }
    (api::networking::v1beta1) { IPAddress ServiceCIDR }
    (api::node::v1) { RuntimeClass }
    (api::policy::v1) { Eviction PodDisruptionBudget }
    (api::rbac::v1) { ClusterRole ClusterRoleBinding Role RoleBinding }
    (api::resource::v1) { DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice }
    (api::resource::v1alpha3) { DeviceTaintRule }
    (api::resource::v1beta1) { DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice }
    (api::resource::v1beta2) { DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice }
    (api::scheduling::v1) { PriorityClass }
    (api::scheduling::v1alpha1) { Workload }
    (api::storage::v1) { CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass }
    (api::storage::v1beta1) { VolumeAttributesClass }
    (api::storagemigration::v1beta1) { StorageVersionMigration }
    (apiextensions_apiserver::pkg::apis::apiextensions::v1) { CustomResourceDefinition }
    (kube_aggregator::pkg::apis::apiregistration::v1) { APIService }
}

/// Values of a member, of its type and of others.
fn values(field: &Field) -> Vec<Value> {
    let one = match &field.kind {
        ValueKind::Bool => vec![json!(true), json!(false)],
        ValueKind::Int32 => vec![json!(0), json!(i32::MIN), json!(i32::MAX), json!(i64::MAX)],
        ValueKind::Int64 => vec![json!(0), json!(i64::MIN), json!(i64::MAX), json!(u64::MAX)],
        ValueKind::Double => vec![json!(0), json!(-1.5), json!(1e300), json!(i64::MAX)],
        ValueKind::String => vec![json!(""), json!("a"), json!("\u{0}\u{10ffff}/../?%"), json!("x".repeat(10_000))],
        ValueKind::Bytes => vec![json!(""), json!("YQ=="), json!("YQ"), json!("Y\nQ==")],
        ValueKind::Quantity => {
            [json!("1"), json!(1), json!(1.5), json!(""), json!("9223372036854775807Ei"), json!("-1e-9")].into()
        }
        ValueKind::IntOrString => vec![json!(0), json!(i32::MIN), json!("50%"), json!(""), json!(i64::MAX)],
        ValueKind::Time | ValueKind::MicroTime => [
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:04:05.123456789+14:00",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "2026-01-02",
            "",
        ]
        .map(Value::from)
        .into(),
        ValueKind::StringList => vec![json!([]), json!(["a", ""]), json!([null])],
        ValueKind::SchemaOrBool => vec![json!(true), json!({})],
        ValueKind::SchemaOrArray => vec![json!({}), json!([{}])],
        ValueKind::SchemaOrStrings => vec![json!({}), json!(["a"])],
        ValueKind::RawExtension | ValueKind::FieldsV1 | ValueKind::Json | ValueKind::Any => {
            vec![json!({}), json!({"a": [1, {"b": null}]}), json!("a"), json!([]), json!(1)]
        }
        ValueKind::Message(_) | ValueKind::Nested(_) => vec![json!({})],
    };
    let mut all = vec![Value::Null, json!("text"), json!(7), json!(false), json!([]), json!({})];
    match field.card {
        Card::Single => all.extend(one),
        Card::Repeated => {
            all.push(json!([null]));
            all.extend(one.into_iter().map(|value| json!([value])));
        }
        Card::Map => {
            all.extend([json!({"a": null}), json!({"": null})]);
            all.extend(one.into_iter().map(|value| json!({"a": value})));
        }
    }
    all
}

/// Tries each member below a message, in an object that has nothing else but the way there. A message that was walked
/// before, in another kind, is the same type here.
fn walk(
    schema: &'static Message,
    walked: &mut BTreeSet<&'static str>,
    try_one: &mut dyn FnMut(Value),
    wrap: &dyn Fn(Value) -> Value,
) {
    if !walked.insert(&schema.name) {
        return;
    }
    // Which type an object is read as was decided by these.
    let type_meta = |field: &&Field| schema.gvk.is_some() && matches!(field.json.as_ref(), "kind" | "apiVersion");
    for field in schema.fields.iter().filter(|field| !type_meta(field)) {
        let within = |value: Value| wrap(json!({field.json.as_ref(): value}));
        for value in values(field) {
            try_one(within(value));
        }
        if let Some(below) = field.message() {
            let deeper = |value: Value| match field.card {
                Card::Single => within(value),
                Card::Repeated => within(json!([value])),
                Card::Map => within(json!({"k": value})),
            };
            walk(below, walked, try_one, &deeper);
        }
    }
}

#[test]
fn what_the_api_server_takes_and_sends_every_component_reads() {
    let mut failures = BTreeMap::new();
    let (mut tried, mut taken, mut walked) = (0, 0, BTreeSet::new());
    for (api_version, kind, read) in kinds() {
        let schema = kind_of(api_version, kind).unwrap_or_else(|| panic!("no schema of {api_version} {kind}"));
        let mut outcome = KindCounts::default();
        walk(schema, &mut walked, &mut |object| read(schema, &object, &mut outcome), &|value| value);
        (tried, taken) = (tried + outcome.tried, taken + outcome.taken);
        for (object, why) in outcome.refused {
            failures.entry(why).or_insert(format!("{api_version} {kind} {object}"));
        }
    }
    assert!(failures.is_empty(), "of {tried} objects, {taken} taken by the API server: {failures:#?}");
    assert!(taken > 10_000, "{taken} of {tried} objects are taken");
}
