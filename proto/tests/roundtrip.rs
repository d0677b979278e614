//! Generated objects of every kind: JSON → tree → protobuf → tree → JSON is the identity, transcoding agrees with it,
//! and no decoder panics on damaged input.

use proto::schema::{Card, Field, Message, ValueKind, kinds, message};
use proto::{Value, defaulting, json, protobuf, yaml};
use serde_json::Map;

/// A small deterministic generator (xorshift), so that a failure names its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> usize {
        usize::try_from(self.next() % n).expect("small")
    }

    fn pick<'t>(&mut self, list: &[&'t str]) -> &'t str {
        list[self.below(list.len() as u64)]
    }

    fn text(&mut self) -> &'static str {
        self.pick(&[
            "a",
            "x-1",
            "é<&>\u{2028}",
            "\"\\\n\t\u{1}\u{8}",
            "line one\nline two",
            "日本",
            "0644",
            "yes",
            "🦀",
        ])
    }
}

fn object(schema: &Message, random: &mut Random, depth: usize, root: bool) -> Value {
    let mut map = Map::new();
    for field in schema.fields.iter() {
        // The kind of an inner object is not on the wire.
        if field.number == 0 && !root && matches!(field.json.as_ref(), "kind" | "apiVersion") {
            continue;
        }
        let wanted = if depth < 3 { 2 } else { 6 };
        if random.below(wanted) != 0 {
            continue;
        }
        if let Some(mut value) = field_value(field, random, depth) {
            if field.json == "volumeClaimTemplates" {
                for claim in value.as_array_mut().into_iter().flatten() {
                    claim["apiVersion"] = Value::from("v1");
                    claim["kind"] = Value::from("PersistentVolumeClaim");
                }
            }
            map.insert(field.json.to_string(), value);
        }
    }
    Value::Object(map)
}

fn field_value(field: &Field, random: &mut Random, depth: usize) -> Option<Value> {
    if depth > 9 {
        return None;
    }
    let count = 1 + random.below(2);
    let value = match field.card {
        Card::Single => one(&field.kind, random, depth)?,
        Card::Repeated => (0..count).filter_map(|_| one(&field.kind, random, depth)).collect(),
        Card::Map => {
            let entries: Map<String, Value> =
                (0..count).filter_map(|_| Some((random.text().to_owned(), one(&field.kind, random, depth)?))).collect();
            Value::Object(entries)
        }
    };
    let empty = match &value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => field.card == Card::Map && map.is_empty(),
        _ => false,
    };
    (!empty).then_some(value)
}

fn any(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth > 4 { 4 } else { 6 }) {
        0 => Value::from(random.text()),
        1 => Value::from(random.next().cast_signed() >> 20),
        2 => Value::from(0.5),
        3 => Value::Bool(true),
        4 => Value::Array(vec![any(random, depth + 1)]),
        _ => Value::Object([(random.text().to_owned(), any(random, depth + 1))].into_iter().collect()),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any number will do")]
fn one(kind: &ValueKind, random: &mut Random, depth: usize) -> Option<Value> {
    const SCHEMA: &str = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let schema = |random: &mut Random| Some(object(message(SCHEMA)?, random, depth + 2, false));
    Some(match kind {
        ValueKind::Bool => Value::Bool(random.below(2) == 1),
        ValueKind::Int32 => Value::from((random.next() >> 32).cast_signed() as i32 >> random.below(32)),
        ValueKind::Int64 => Value::from(random.next().cast_signed() >> random.below(64)),
        ValueKind::Double => {
            [Value::from(1), Value::from(-2.25), Value::from(1e-9), Value::from(6e25)][random.below(4)].clone()
        }
        ValueKind::String => Value::from(random.text()),
        ValueKind::Bytes => Value::from(random.pick(&["YQ==", "AP8Q", "aGVsbG8gd29ybGQ="])),
        ValueKind::Message(inner) => object(inner, random, depth + 1, false),
        ValueKind::Quantity => Value::from(random.pick(&["1", "100m", "1Gi", "-2k", "12e6", "0"])),
        ValueKind::IntOrString => [Value::from(80), Value::from("http"), Value::from(-1)][random.below(3)].clone(),
        ValueKind::Time => Value::from(random.pick(&["2023-11-14T22:13:20Z", "1969-01-01T00:00:00Z"])),
        ValueKind::MicroTime => {
            Value::from(random.pick(&["2023-11-14T22:13:20.123456Z", "2023-11-14T22:13:20.000000Z"]))
        }
        ValueKind::RawExtension | ValueKind::FieldsV1 | ValueKind::Json => {
            Value::Object([("f:a".to_owned(), any(random, 0))].into_iter().collect())
        }
        ValueKind::SchemaOrBool => [Value::Bool(random.below(2) == 1), schema(random)?][random.below(2)].clone(),
        ValueKind::SchemaOrArray => [Value::Array(vec![schema(random)?]), schema(random)?][random.below(2)].clone(),
        ValueKind::SchemaOrStrings => [Value::from(vec!["a", "b"]), schema(random)?][random.below(2)].clone(),
        ValueKind::StringList => Value::from(vec!["get", "list"]),
        ValueKind::Any | ValueKind::Nested(_) => return None,
    })
}

fn encoded(schema: &Message, value: &Value) -> String {
    let mut out = Vec::new();
    json::encode(schema, value, &mut out);
    String::from_utf8(out).expect("UTF-8")
}

fn seeded(seed: u64) -> Random {
    Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

#[test]
fn every_kind_survives_json_protobuf_json() {
    for ((group, version, kind), schema) in kinds() {
        for seed in 0..12 {
            let generated = object(schema, &mut seeded(seed * 1000 + kind.len() as u64), 0, false);
            let body = serde_json::to_vec(&generated).expect("JSON");
            let decoded = json::decode(schema, &body, json::Strictness::Strict)
                .map_err(|e| format!("{group}/{version} {kind} seed {seed}: {e}"))
                .expect("decodes");
            let text = encoded(schema, &decoded.value);
            let again = json::decode(schema, text.as_bytes(), json::Strictness::Strict).expect("again").value;
            assert_eq!(again, decoded.value, "{kind} seed {seed}: JSON");
            assert_eq!(encoded(schema, &again), text, "{kind} seed {seed}: text");
            let mut canonical = generated;
            json::canonicalize(schema, &mut canonical);
            assert_eq!(canonical, decoded.value, "{kind} seed {seed}: canonical form");
            if !schema.has_protobuf {
                continue;
            }
            let bytes = protobuf::encode(schema, &decoded.value);
            let back = protobuf::decode(schema, &bytes).expect("protobuf");
            assert_eq!(encoded(schema, &back), text, "{group}/{version} {kind} seed {seed}: through protobuf");
            assert_eq!(back, decoded.value, "{kind} seed {seed}: tree");
            assert_eq!(protobuf::encode(schema, &back), bytes, "{kind} seed {seed}: bytes");
            let mut transcoded = Vec::new();
            protobuf::to_json(schema, "", "", &bytes, &mut transcoded).expect("transcode");
            assert_eq!(String::from_utf8_lossy(&transcoded), text, "{kind} seed {seed}: transcoded");
        }
    }
}

#[test]
fn defaulting_is_idempotent_and_keeps_objects_valid() {
    for ((_, _, kind), schema) in kinds() {
        for seed in 0..6 {
            let mut value = object(schema, &mut seeded(seed + 77), 0, false);
            json::canonicalize(schema, &mut value);
            defaulting::apply(schema, &mut value);
            let mut twice = value.clone();
            defaulting::apply(schema, &mut twice);
            assert_eq!(twice, value, "{kind} seed {seed}");
            let text = encoded(schema, &value);
            assert!(json::decode(schema, text.as_bytes(), json::Strictness::Strict).is_ok(), "{kind} seed {seed}");
        }
    }
}

#[test]
fn yaml_survives_too() {
    for ((_, _, kind), schema) in kinds() {
        let mut value = object(schema, &mut seeded(kind.len() as u64), 0, false);
        json::canonicalize(schema, &mut value);
        let text = yaml::encode(schema, &value).expect("nothing odd");
        let back = yaml::decode(schema, text.as_bytes(), json::Strictness::Strict)
            .map_err(|e| format!("{kind}: {e}\n{text}"))
            .expect("reads back");
        assert_eq!(encoded(schema, &back.value), encoded(schema, &value), "{kind}");
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any byte will do")]
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len() as u64);
        match random.below(5) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.next() as u8),
            _ => {
                let end = (at + random.below(20)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
}

/// More rounds find more; `FUZZ_ROUNDS=5000` is a good soak.
fn rounds() -> usize {
    std::env::var("FUZZ_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(40)
}

#[test]
fn damaged_input_never_panics() {
    for ((_, _, kind), schema) in kinds() {
        let mut random = seeded(kind.len() as u64 + 5);
        let value = object(schema, &mut random, 0, true);
        let text = encoded(schema, &value).into_bytes();
        let bytes = protobuf::encode(schema, &value);
        let envelope = protobuf::wrap("v1", kind, &bytes);
        for _ in 0..rounds() {
            let mut json_text = text.clone();
            damage(&mut json_text, &mut random);
            if let Ok(decoded) = json::decode(schema, &json_text, json::Strictness::Warn) {
                let _ = protobuf::encode(schema, &decoded.value);
                let mut value = decoded.value;
                defaulting::apply(schema, &mut value);
            }
            let _ = json::decode_any(&json_text);
            let _ = json::type_meta(&json_text);
            let _ = yaml::decode(schema, &json_text, json::Strictness::Ignore);
            let mut wire = bytes.clone();
            damage(&mut wire, &mut random);
            let decoded = protobuf::decode(schema, &wire);
            let mut out = Vec::new();
            let _ = protobuf::to_json(schema, "v1", kind, &wire, &mut out);
            if let Ok(decoded) = decoded {
                out.clear();
                protobuf::to_json(schema, "", "", &wire, &mut out).expect("transcode");
                assert_eq!(String::from_utf8_lossy(&out), encoded(schema, &decoded), "{kind}");
            }
            let mut wrapped = envelope.clone();
            damage(&mut wrapped, &mut random);
            let _ = protobuf::unwrap(&wrapped);
            let _ = protobuf::decode_envelope(&wrapped);
        }
    }
}

#[test]
fn the_deepest_object_fits_the_stack_of_a_worker() {
    let crd = proto::schema::kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").expect("CRD");
    let levels = json::MAX_TREE_DEPTH - 8;
    let (open, close) = ("{\"not\":".repeat(levels), "}".repeat(levels));
    let text = format!("{{\"spec\":{{\"versions\":[{{\"schema\":{{\"openAPIV3Schema\":{open}{{}}{close}}}}}]}}}}");
    let mut value = json::decode(crd, text.as_bytes(), json::Strictness::Strict).expect("deep").value;
    defaulting::apply(crd, &mut value);
    json::canonicalize(crd, &mut value);
    let want = encoded(crd, &value);
    let bytes = protobuf::encode(crd, &value);
    assert_eq!(encoded(crd, &protobuf::decode(crd, &bytes).expect("decode")), want);
    let mut out = Vec::new();
    protobuf::to_json(crd, "", "", &bytes, &mut out).expect("transcode");
    assert_eq!(String::from_utf8_lossy(&out), want);
}

#[test]
fn objects_in_raw_extensions_are_of_the_same_depth() {
    let revision = proto::schema::kind("apps", "v1", "ControllerRevision").expect("a kind");
    let nested = |times: usize| {
        let mut object = Vec::new();
        for _ in 0..times {
            let envelope = protobuf::wrap("apps/v1", "ControllerRevision", &object);
            object.clear();
            protobuf::write_nested(2, &mut object, |out| protobuf::write_bytes(1, &envelope, out));
        }
        object
    };
    assert!(protobuf::decode(revision, &nested(3)).is_ok());
    let object = nested(20_000);
    assert_eq!(protobuf::decode(revision, &object), Err(protobuf::Error::Depth));
    let mut out = Vec::new();
    assert_eq!(protobuf::to_json(revision, "", "", &object, &mut out), Err(protobuf::Error::Depth));
}
