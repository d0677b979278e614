//! Fuzz targets. Each describes its outcome in words.

use std::fmt::Display;

use apiserver::cache::Entry;
use apiserver::connect::frames::Decoder;
use apiserver::connect::spdy::{Codec, put_data};
use apiserver::crd::{self, JsonPath};
use apiserver::machinery::query::Query;
use apiserver::negotiate::{self, Media, RequestBody};
use apiserver::rows::{self, Rows};
use apiserver::serve::info::request_info;
use apiserver::storage::codec;
use apiserver::verbs::delete;
use apiserver::verbs::route;
use bytes::BytesMut;
use k8s_openapi::Resource;
use proto::json::{self, Strictness};
use proto::merge::apply::{self, One, Ownable, Write as Applying};
use proto::merge::fieldset::Set;
use proto::merge::{json_patch, merge_patch, strategic};
use proto::quantity;
use proto::resources::Row;
use proto::schema::{self, Message};
use proto::selector::{FieldSelector, Selector};
use proto::{Value, defaulting};
use serde::de::DeserializeOwned;
use shared::cel::{Declared, PER_CALL_LIMIT, Program, Scope, Type};
use shared::typed;

/// A pod of one container.
pub(crate) const POD: &[u8] = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x1a\x0a\x06\x0a\x01a\x5a\x01b\x12\x0e\x12\x06\x0a\x01c\x12\x01i\x1a\x02No\x20\x1e\x1a\0";

/// A pod that is read, defaulted and written in every format.
pub(crate) const POD_JSON: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"},"creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[{"manager":"m","operation":"Apply","fieldsType":"FieldsV1","fieldsV1":{"f:a":{}}}]},"spec":{"volumes":[{"name":"v","configMap":{"name":"c"}}],"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"livenessProbe":{"httpGet":{"port":"x"}},"resources":{"limits":{"cpu":"1.5e3","memory":"100Mi"}}}]}}"#;

fn pod_tree() -> Value {
    json::decode(pod(), POD_JSON.as_bytes(), Strictness::Strict).expect("a pod").value
}

/// Encodes the pod in an envelope.
pub(crate) fn pod_protobuf() -> Vec<u8> {
    proto::protobuf::encode_envelope(pod(), &pod_tree())
}

/// Encodes the pod as CBOR.
pub(crate) fn pod_cbor() -> Vec<u8> {
    proto::cbor::encode(Some(pod()), &pod_tree())
}

/// Writes the pod as YAML.
pub(crate) fn pod_yaml() -> String {
    proto::yaml::encode(pod(), &pod_tree()).expect("a pod")
}

fn outcome<T, E: Display>(result: Result<T, E>) -> String {
    result.map_or_else(|e| e.to_string(), |_| "fine".to_owned())
}

fn pod() -> &'static Message {
    schema::kind("", "v1", "Pod").expect("a kind")
}

fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

/// Two texts with a bar between them.
fn halves(input: &[u8]) -> (&[u8], &[u8]) {
    let at = input.iter().position(|b| *b == b'|').unwrap_or(input.len());
    (&input[..at], input.get(at + 1..).unwrap_or_default())
}

/// An object and what is to be done to it.
fn trees(input: &[u8]) -> Option<(Value, Value)> {
    let (object, patch) = halves(input);
    Some((json::decode_any(object).ok()?, json::decode_any(patch).ok()?))
}

/// A canonical pod and what is to be done to it.
fn pods(input: &[u8]) -> Option<(Value, Value)> {
    let (object, patch) = halves(input);
    let object = json::decode(pod(), object, Strictness::Ignore).ok()?.value;
    Some((object, json::decode_any(patch).ok()?))
}

/// Writes a value that was read: everything readable can be written.
fn written(value: &Value) {
    let mut out = Vec::new();
    json::encode(pod(), value, &mut out);
    json::encode_pretty(pod(), value, &mut out);
    let bytes = proto::protobuf::encode(pod(), value);
    proto::protobuf::to_json(pod(), "v1", "Pod", &bytes, &mut out).expect("our own bytes");
    proto::cbor::stored_to_json(&proto::cbor::encode(Some(pod()), value)).ok();
    proto::yaml::encode(pod(), value).map(|text| assert!(!text.is_empty())).ok();
}

pub(crate) fn json(input: &[u8]) -> String {
    let any = outcome(json::decode_any(input));
    let meta = outcome(json::type_meta(input));
    match json::decode(pod(), input, Strictness::Warn) {
        Err(e) => format!("{e} {any} {meta}"),
        Ok(mut decoded) => {
            defaulting::apply(pod(), &mut decoded.value);
            written(&decoded.value);
            format!("{any} {meta} {}", decoded.warnings.join(" "))
        }
    }
}

pub(crate) fn yaml(input: &[u8]) -> String {
    let any = proto::yaml::decode_any(input);
    // What was read and can be written is read again as what it was.
    if let Some(text) = any.as_ref().ok().and_then(|value| proto::yaml::encode_any(value).ok()) {
        let again = proto::yaml::decode_any(text.as_bytes()).expect("our own text");
        assert_eq!(proto::yaml::encode_any(&again).ok(), Some(text));
    }
    let mut documents = 0;
    let all = proto::yaml::each::<json::DecodeError>(input, |_| {
        documents += 1;
        Ok(())
    });
    format!(
        "{} {} {documents} {}",
        outcome(any),
        outcome(all),
        outcome(proto::yaml::decode(pod(), input, Strictness::Warn).map(|d| written(&d.value)))
    )
}

pub(crate) fn protobuf(input: &[u8]) -> String {
    let Ok(envelope) = proto::protobuf::unwrap(input) else { return "no envelope".to_owned() };
    let mut out = Vec::new();
    let transcoded = outcome(proto::protobuf::to_json(pod(), "v1", "Pod", envelope.raw, &mut out));
    match proto::protobuf::decode(pod(), envelope.raw) {
        Err(e) => format!("{e} {transcoded}"),
        Ok(tree) => {
            written(&tree);
            transcoded
        }
    }
}

pub(crate) fn cbor(input: &[u8]) -> String {
    proto::cbor::stored_to_json(input).ok();
    match proto::cbor::to_json(input) {
        Err(e) => e.to_string(),
        Ok(text) => outcome(json::decode(pod(), &text, Strictness::Strict).map(|d| written(&d.value))),
    }
}

/// Decodes stored values of kinds in each storage format.
pub(crate) fn stored_values(input: &[u8]) -> String {
    let kinds = [
        ("", "pods"),
        ("", "configmaps"),
        ("autoscaling", "horizontalpodautoscalers"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
    ];
    let mut rows: Vec<Row> = kinds.iter().filter_map(|(group, plural)| rows::builtin(group, plural)).collect();
    rows.extend(crd::rows(&definition(
        &serde_json::json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
    )));
    let read = |row: &Row| match Entry::from_stored(row, "a/b", input, 7) {
        Err(e) => e.to_string(),
        Ok(entry) => {
            codec::restamp(&entry.raw, 8);
            codec::is_stored_as(row, &entry.raw, input);
            codec::to_json(row, &entry.raw, &mut Vec::new()).ok();
            outcome(codec::value(row, &entry.raw).map(|tree| written(&tree)))
        }
    };
    rows.iter().map(read).collect::<Vec<_>>().join(" ")
}

pub(crate) fn quantities(input: &[u8]) -> String {
    outcome(quantity::canonicalize(&text(input)))
}

pub(crate) fn label_selectors(input: &[u8]) -> String {
    outcome(Selector::parse(&text(input)).map(|s| {
        s.matches_with(|_| Some("5"));
        assert!(Selector::parse(&s.to_string()).is_ok(), "what it prints can be read: {s}");
    }))
}

pub(crate) fn field_selectors(input: &[u8]) -> String {
    outcome(FieldSelector::parse(&text(input)).map(|s| s.matches_with(|_| Some("a"))))
}

pub(crate) fn json_patches(input: &[u8]) -> String {
    let Some((mut object, patch)) = trees(input) else { return "no JSON".to_owned() };
    match json_patch::Patch::decode(patch) {
        Err(e) => e.to_string(),
        Ok(patch) => outcome(patch.apply(&mut object)),
    }
}

pub(crate) fn merge_patches(input: &[u8]) -> String {
    let Some((mut object, patch)) = trees(input) else { return "no JSON".to_owned() };
    let before = object.clone();
    merge_patch::apply(&mut object, patch);
    let mut again = before.clone();
    merge_patch::apply(&mut again, merge_patch::diff(&before, &object));
    let nulls = object.to_string().contains("null");
    assert!(nulls || again == object, "a difference leads from one to the other");
    outcome(json::decode_touched(pod(), &mut object, &Value::Null, Strictness::Warn))
}

pub(crate) fn strategic_patches(input: &[u8]) -> String {
    let Some((mut object, patch)) = pods(input) else { return "no pod".to_owned() };
    outcome(strategic::apply(pod(), &mut object, patch))
}

pub(crate) fn applies(input: &[u8]) -> String {
    let Some((live, config)) = pods(input) else { return "no pod".to_owned() };
    let ownable = Ownable::Except(Set::of_fields(&[&["status"]]));
    let now = "2026-01-01T00:00:00Z";
    let write = Applying { manager: "x", api_version: "v1", subresource: "", now, ownable: &ownable, versions: &One };
    let mut new = config.clone();
    if json::decode_touched(pod(), &mut new, &Value::Null, Strictness::Ignore).is_ok() {
        apply::update(pod(), &live, &mut new, &write);
    }
    apply::configure(pod(), &live, &config).ok();
    outcome(apply::apply(pod(), &live, &config, &write, config.is_null()).map(|applied| written(&applied.object)))
}

pub(crate) fn field_sets(input: &[u8]) -> String {
    let Ok(tree) = json::decode_any(input) else { return "no JSON".to_owned() };
    let Some(set) = Set::parse(&tree) else { return "no set".to_owned() };
    assert_eq!(Set::parse(&set.to_value()).as_ref(), Some(&set), "what it prints can be read");
    format!("{} paths", set.paths().len())
}

pub(crate) fn expressions(input: &[u8]) -> String {
    let declared = Declared::from([("self".to_owned(), Type::Dyn)]);
    match Program::compile(&text(input), &declared) {
        Err(e) => e.to_string(),
        Ok(program) => {
            let tree = serde_json::json!({"a": 1, "n": 3, "list": ["b", "a"], "t": "x", "m": {"k": null}});
            outcome(program.run(&Scope::of(&[("self", &tree)]), PER_CALL_LIMIT).0)
        }
    }
}

pub(crate) fn json_paths(input: &[u8]) -> String {
    let tree = serde_json::json!({"spec": {"a": {"b": [1, 2]}}, "status": {"conditions": [{"type": "Ready"}]}});
    outcome(JsonPath::parse(&text(input)).map(|path| path.find(&tree).len()))
}

pub(crate) fn queries(input: &[u8]) -> String {
    let query = Query::parse(&text(input));
    let numbers = query.int("limit").map(|_| ());
    query.maybe_flag("watch");
    format!("{:?} {}", query.get("labelSelector").is_some(), numbers.map_or_else(|s| s.message, |()| "fine".to_owned()))
}

pub(crate) fn paths(input: &[u8]) -> String {
    let line = text(input);
    let (method, rest) = line.split_once(' ').unwrap_or(("GET", &line));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let info = request_info(method, path, &Query::parse(query));
    format!("{} {} {} {}", info.verb, info.is_resource, info.namespace.is_empty(), info.name.is_empty())
}

/// Holds that what is authorised is what is done: the resolved row and the request's attributes name one thing.
pub(crate) fn routes(input: &[u8]) -> String {
    let line = text(input);
    let (method, rest) = line.split_once(' ').unwrap_or(("GET", &line));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let info = request_info(method, path, &Query::parse(query));
    let route = match route(&Rows::default(), &info, method) {
        Ok(route) => route,
        Err(status) => return status.code.to_string(),
    };
    let row = &route.row;
    assert_eq!((&*row.group, &*row.version, &*row.plural), (&*info.api_group, &*info.api_version, &*info.resource));
    assert_eq!(route.subresource().map_or("", |sub| &sub.name), info.subresource);
    let is_itself = info.resource == "namespaces" && info.name == info.namespace && !info.below_namespace;
    assert!(row.namespaced || info.namespace.is_empty() || is_itself, "{info:?}");
    assert!(!(row.namespaced && info.names_object() && info.namespace.is_empty()), "{info:?}");
    assert!(!matches!(info.name.as_str(), "." | "..") || info.verb == "watch", "{info:?}");
    let of_collection = matches!(info.verb.as_str(), "list" | "deletecollection");
    assert!(!(of_collection && info.names_object()), "{info:?}");
    assert!(info.verb != "deletecollection" || info.name.is_empty(), "{info:?}");
    format!("{} {}", info.verb, row.plural)
}

/// Reads an object as a typed client does, from JSON and from protobuf. What the API server's decoder takes is read.
fn typed_read<T: DeserializeOwned + Resource>(input: &[u8]) -> String {
    let schema = schema::kind_of(T::API_VERSION, T::KIND).expect("a kind");
    let taken = json::decode(schema, input, Strictness::Ignore).is_ok();
    let read = typed::from_json::<T>(|| Some(schema), input);
    assert!(!taken || read.is_ok(), "{} {}: {:?}", T::API_VERSION, T::KIND, read.err());
    let from_protobuf = typed::from_protobuf::<T>(schema, input);
    let identity = (typed::Identity::of_json(input), typed::Identity::of_protobuf(input));
    format!("{taken} {} {} {}", from_protobuf.is_ok(), identity.0.is_some(), identity.1.is_some())
}

/// The first byte chooses the kind.
pub(crate) fn typed_reads(input: &[u8]) -> String {
    use k8s_openapi::api::{apps, autoscaling, batch, coordination, core, discovery, policy, rbac, resource, storage};
    let kinds: [fn(&[u8]) -> String; 16] = [
        typed_read::<core::v1::Pod>,
        typed_read::<core::v1::Service>,
        typed_read::<core::v1::Node>,
        typed_read::<core::v1::PersistentVolumeClaim>,
        typed_read::<core::v1::Event>,
        typed_read::<discovery::v1::EndpointSlice>,
        typed_read::<coordination::v1::Lease>,
        typed_read::<apps::v1::Deployment>,
        typed_read::<apps::v1::StatefulSet>,
        typed_read::<batch::v1::CronJob>,
        typed_read::<autoscaling::v2::HorizontalPodAutoscaler>,
        typed_read::<policy::v1::PodDisruptionBudget>,
        typed_read::<rbac::v1::ClusterRole>,
        typed_read::<resource::v1::ResourceSlice>,
        typed_read::<storage::v1::VolumeAttachment>,
        typed_read::<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>,
    ];
    let Some((first, rest)) = input.split_first() else { return "nothing".to_owned() };
    kinds[usize::from(first % 16)](rest)
}

pub(crate) fn accept_headers(input: &[u8]) -> String {
    format!(
        "{:?}",
        negotiate::parse(Media { cbor: true, ..Media::default() }, Some(&text(input)), input.len().is_multiple_of(2))
    )
}

pub(crate) fn delete_options(input: &[u8]) -> String {
    let (body, query) = halves(input);
    let query = Query::parse(&text(query));
    let words = ["application/json", "application/yaml", "application/cbor", "application/vnd.kubernetes.protobuf"]
        .map(|content_type| {
            let sent = RequestBody { media: Media { cbor: true, ..Media::default() }, content_type, body };
            delete::options(sent, &query, true).map_or_else(|s| s.message, |_| "fine".to_owned())
        });
    words.join(" ")
}

fn definition(schema: &Value) -> Value {
    let names = serde_json::json!({"plural": "foos", "singular": "foo", "kind": "Foo"});
    let version =
        serde_json::json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    serde_json::json!({"metadata": {"name": "foos.x.io"}, "status": {"acceptedNames": names},
        "spec": {"group": "x.io", "scope": "Namespaced", "names": names, "versions": [version]}})
}

pub(crate) fn schemas(input: &[u8]) -> String {
    let Some((schema, mut object)) = trees(input) else { return "no JSON".to_owned() };
    let mut words = Vec::new();
    for row in crd::rows(&definition(&schema)) {
        let Some(served) = crd::version_of(&row) else { continue };
        words.extend(crd::objects::prune_and_default(served, &mut object).unwrap_or_else(|e| vec![e.to_string()]));
        words.extend(crd::objects::create(&row, served, &object, Vec::new()).iter().map(ToString::to_string));
    }
    words.join(" ")
}

/// A stream that is opened, and something said on it.
pub(crate) fn spdy() -> Vec<u8> {
    let mut out = BytesMut::new();
    Codec::default().open(&mut out, 1, &[("streamtype", "stdout"), ("port", "80")]).expect("headers");
    put_data(&mut out, 1, b"hello", true);
    out.to_vec()
}

pub(crate) fn spdy_frames(input: &[u8]) -> String {
    let (mut codec, mut buffer, mut frames) = (Codec::default(), BytesMut::from(input), 0);
    loop {
        match codec.decode(&mut buffer) {
            Ok(Some(_)) => frames += 1,
            Ok(None) => return format!("{frames} frames"),
            Err(e) => return e.to_string(),
        }
    }
}

pub(crate) fn websocket_frames(input: &[u8]) -> String {
    let (mut decoder, mut bytes, mut heard) = (Decoder::default(), BytesMut::from(input), 0);
    loop {
        match decoder.decode(&mut bytes) {
            Ok(Some(_)) => heard += 1,
            Ok(None) => return format!("{heard} and more"),
            Err(over) => return format!("{heard}, {over:?}"),
        }
    }
}

pub(crate) fn http_heads(input: &[u8]) -> String {
    match shared::upgrade::judged(input) {
        Err((code, why)) => format!("{code} {why}"),
        Ok(head) => {
            let ends = head.windows(4).filter(|window| window == b"\r\n\r\n").count();
            assert!(ends == 1 && head.ends_with(b"\r\n\r\n"), "one head is made of it");
            String::from_utf8_lossy(&head).into_owned()
        }
    }
}
