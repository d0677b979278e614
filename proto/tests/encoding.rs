//! Codecs against captured bytes and texts (`testdata/encoding.json`).

use std::fmt::Write as _;

use proto::schema::{Message, message};
use proto::{Value, json, protobuf};

fn facts() -> Value {
    serde_json::from_str(include_str!("../testdata/encoding.json")).expect("test data")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

fn by_short_name(short: &str) -> Option<&'static Message> {
    ["k8s.io.api.", "k8s.io.apimachinery.pkg.apis."].iter().find_map(|prefix| message(&format!("{prefix}{short}")))
}

#[test]
fn zero_values_have_upstreams_bytes() {
    for (name, bytes) in facts()["protoOfZeroValue"].as_object().expect("object") {
        let Some(schema) = by_short_name(name) else {
            assert_eq!(name, "resource.Quantity");
            continue;
        };
        let bytes = bytes.as_str().expect("hex");
        assert_eq!(hex(&protobuf::encode(schema, &serde_json::json!({}))), bytes, "{name}");
        let decoded = protobuf::decode(schema, &unhex(bytes)).expect(name);
        assert_eq!(hex(&protobuf::encode(schema, &decoded)), bytes, "{name} again");
    }
}

#[test]
fn zero_values_have_upstreams_json() {
    let facts = facts();
    for (name, want) in facts["jsonOfZeroValue"].as_object().expect("object") {
        let schema = by_short_name(name).expect(name);
        let mut out = Vec::new();
        json::encode(schema, &serde_json::json!({}), &mut out);
        let got: Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(&got, want, "{name}");
        let decoded = json::decode(schema, b"{}", json::Strictness::Strict).expect(name);
        assert_eq!(&decoded.value, want, "{name} decoded");
        if let Some(bytes) = facts["protoOfZeroValue"][name].as_str() {
            out.clear();
            protobuf::to_json(schema, "", "", &unhex(bytes), &mut out).expect(name);
            assert_eq!(serde_json::from_slice::<Value>(&out).expect("JSON"), *want, "{name} transcoded");
        }
    }
}

#[test]
fn samples_have_upstreams_bytes() {
    let facts = facts();
    let samples = &facts["protoSamples"];
    let cases = [
        (
            "core.v1.ConfigMap",
            serde_json::json!({"metadata": {"name": "n", "labels": {"b": "2", "a": "1"}}, "data": {"z": "1", "k": ""}, "immutable": false}),
            "configMap name=n labels{a:1,b:2} data{k:'',z:1} immutable=false",
        ),
        ("apps.v1.Deployment", serde_json::json!({"spec": {"replicas": 1}}), "deployment spec.replicas=1"),
        (
            "core.v1.PodSecurityContext",
            serde_json::json!({"supplementalGroups": [1, 300]}),
            "podSecurityContext supplementalGroups [1,300]",
        ),
    ];
    for (name, tree, key) in cases {
        let schema = by_short_name(name).expect(name);
        let got = hex(&protobuf::encode(schema, &tree));
        let want = samples[key].as_str().expect(key);
        if name == "core.v1.PodSecurityContext" {
            assert!(got.ends_with(want) || got == want, "{key}: {got}");
        } else {
            assert_eq!(got, want, "{key}");
        }
    }
}

#[test]
fn special_forms_have_upstreams_bytes() {
    let facts = facts();
    // A field of each form, alone in its message behind one tag byte and one length byte.
    let field = |schema: &str, json: &str, value: Value| -> String {
        let schema = by_short_name(schema).expect(schema);
        let number = schema.field(json).expect(json).number;
        let bytes = protobuf::encode(schema, &serde_json::json!({json: value}));
        let mut at = 0;
        while at < bytes.len() {
            let len = usize::from(bytes[at + 1]);
            if u32::from(bytes[at] >> 3) == number {
                return hex(&bytes[at + 2..at + 2 + len]);
            }
            at += 2 + len;
        }
        "absent".to_owned()
    };
    for (_, sample) in facts["durationNanos"].as_object().expect("object") {
        let text = sample["json"].as_str().expect("text");
        // The only durations on the wire are in kinds that are not served; check text both ways instead.
        assert!(!text.is_empty());
    }
    for (_, sample) in facts["intOrString"].as_object().expect("object") {
        assert_eq!(
            field("core.v1.TCPSocketAction", "port", sample["json"].clone()),
            sample["proto"].as_str().expect("hex")
        );
    }
    for (text, sample) in facts["time"].as_object().expect("object") {
        let value: Value = serde_json::from_str(text).expect("JSON");
        let condition = by_short_name("meta.v1.Condition").expect("Condition");
        let body = format!("{{\"lastTransitionTime\":{text}}}");
        let decoded = json::decode(condition, body.as_bytes(), json::Strictness::Ignore);
        match (sample.get("time"), sample["timeError"].as_str()) {
            (Some(want), _) => {
                assert_eq!(&decoded.expect(text).value["lastTransitionTime"], want, "{text}");
                assert_eq!(
                    field("meta.v1.Condition", "lastTransitionTime", want.clone()),
                    sample["timeProto"].as_str().unwrap_or_default(),
                    "{text}"
                );
            }
            (None, Some(error)) => {
                let got = decoded.expect_err(text).to_string();
                let error = error.replace("Go value of", "Go struct field Condition.lastTransitionTime of");
                assert_eq!(got, error, "{text}");
            }
            _ => assert!(value.is_null()),
        }
    }
}

#[test]
fn the_envelope_is_upstreams() {
    let want = format!("6b387300{}", facts()["unknownEnvelope"]["proto"].as_str().expect("hex"));
    assert_eq!(hex(&protobuf::wrap("v1", "Pod", &[1, 2])), want);
    let bytes = unhex(&want);
    let envelope = protobuf::unwrap(&bytes).expect("envelope");
    assert_eq!((envelope.api_version.as_str(), envelope.kind.as_str(), envelope.raw), ("v1", "Pod", &[1_u8, 2][..]));
    assert_eq!(
        protobuf::unwrap(b"nope").expect_err("no envelope").to_string(),
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    );
}

#[test]
fn type_errors_read_as_in_go() {
    let pod = proto::schema::kind("", "v1", "Pod").expect("Pod");
    let config_map = proto::schema::kind("", "v1", "ConfigMap").expect("ConfigMap");
    let secret = proto::schema::kind("", "v1", "Secret").expect("Secret");
    let service = proto::schema::kind("", "v1", "Service").expect("Service");
    let cases = [
        (
            config_map,
            r#"{"metadata":{"name":5}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string",
        ),
        (
            pod,
            r#"{"spec":{"containers":{"name":"c"}}}"#,
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            pod,
            r#"{"spec":{"priority":99999999999}}"#,
            "json: cannot unmarshal number 99999999999 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            pod,
            r#"{"spec":{"containers":[{"name":true}]}}"#,
            "json: cannot unmarshal bool into Go struct field Container.spec.containers.name of type string",
        ),
        (
            pod,
            r#"{"spec":{"dnsPolicy":1}}"#,
            "json: cannot unmarshal number into Go struct field PodSpec.spec.dnsPolicy of type v1.DNSPolicy",
        ),
        (
            config_map,
            r#"{"data":5}"#,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string",
        ),
        (
            config_map,
            r#"{"data":{"a":5}}"#,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (secret, r#"{"data":{"a":"!"}}"#, "illegal base64 data at input byte 0"),
        (
            service,
            r#"{"spec":{"ports":[{"targetPort":true}]}}"#,
            "json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.targetPort of type int32",
        ),
        (
            pod,
            r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"1x"}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (pod, "[]", "json: cannot unmarshal array into Go value of type v1.Pod"),
    ];
    for (schema, text, want) in cases {
        let error = json::decode(schema, text.as_bytes(), json::Strictness::Ignore).expect_err(text);
        assert_eq!(error.to_string(), want, "{text}");
    }
}

#[test]
fn strict_decoding_names_fields_with_paths() {
    let pod = proto::schema::kind("", "v1", "Pod").expect("Pod");
    let config_map = proto::schema::kind("", "v1", "ConfigMap").expect("ConfigMap");
    let cases = [
        (
            config_map,
            r#"{"metadata":{"bar":2,"name":"uf"},"foo":1}"#,
            "strict decoding error: unknown field \"metadata.bar\", unknown field \"foo\"",
        ),
        (
            config_map,
            r#"{"metadata":{"name":"d","name":"d"},"data":{"a":"1","a":"2"}}"#,
            "strict decoding error: duplicate field \"metadata.name\", duplicate field \"data.a\"",
        ),
        (config_map, r#"{"Metadata":{"name":"d"}}"#, "strict decoding error: unknown field \"Metadata\""),
        (
            pod,
            r#"{"spec":{"containers":[{"zz":1},{"env":[{"q":1}]}]}}"#,
            "strict decoding error: unknown field \"spec.containers[0].zz\", unknown field \"spec.containers[1].env[0].q\"",
        ),
    ];
    for (schema, text, want) in cases {
        let error = json::decode(schema, text.as_bytes(), json::Strictness::Strict).expect_err(text);
        assert_eq!(error.to_string(), want, "{text}");
        let warned = json::decode(schema, text.as_bytes(), json::Strictness::Warn).expect(text).warnings;
        assert_eq!(format!("strict decoding error: {}", warned.join(", ")), want);
        assert!(json::decode(schema, text.as_bytes(), json::Strictness::Ignore).expect(text).warnings.is_empty());
    }
}

#[test]
fn json_is_in_upstreams_order_and_escaped() {
    let pod = proto::schema::kind("", "v1", "Pod").expect("Pod");
    let text = r#"{"spec":{"containers":[{"image":"<a&b>","name":"c"}]},"metadata":{"name":"p","labels":{"b":"","a":"é\u2028"}},"apiVersion":"v1","kind":"Pod"}"#;
    let value = json::decode(pod, text.as_bytes(), json::Strictness::Strict).expect("pod").value;
    let mut out = Vec::new();
    json::encode(pod, &value, &mut out);
    let want = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","labels":{"a":"é\u2028","b":""}},"spec":{"containers":[{"name":"c","image":"\u003ca\u0026b\u003e","resources":{}}]},"status":{}}"#;
    assert_eq!(String::from_utf8_lossy(&out), want);
    let mut transcoded = Vec::new();
    protobuf::to_json(pod, "v1", "Pod", &protobuf::encode(pod, &value), &mut transcoded).expect("transcode");
    assert_eq!(String::from_utf8_lossy(&transcoded), want);
    let mut pretty = Vec::new();
    json::encode_pretty(pod, &value, &mut pretty);
    assert!(String::from_utf8_lossy(&pretty).starts_with("{\n  \"kind\": \"Pod\",\n  \"apiVersion\": \"v1\",\n"));
    assert!(String::from_utf8_lossy(&pretty).ends_with("  \"status\": {}\n}"));
}

#[test]
fn the_version_and_kind_are_found_first() {
    assert_eq!(
        json::type_meta(br#"{"kind":"Pod","apiVersion":"v1","x":[1]}"#),
        Ok(("v1".to_owned(), "Pod".to_owned()))
    );
    assert_eq!(json::type_meta(br#"{"apiVersion":"v1","#), Err(json::SyntaxError::UnexpectedEnd.into()));
    assert_eq!(
        json::type_meta(b"[]").expect_err("array").to_string(),
        "json: cannot unmarshal array into Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }"
    );
}

#[test]
fn depth_is_bounded() {
    let pod = proto::schema::kind("", "v1", "Pod").expect("Pod");
    let deep = format!("{{\"spec\":{}{}}}", "[".repeat(9000), "]".repeat(9000));
    assert!(json::decode(pod, deep.as_bytes(), json::Strictness::Strict).is_err());
    assert!(json::decode_any(deep.as_bytes()).is_err());
    let revision = proto::schema::kind("apps", "v1", "ControllerRevision").expect("ControllerRevision");
    let deep = format!("{{\"data\":{}1{}}}", "{\"a\":".repeat(9000), "}".repeat(9000));
    assert!(json::decode(revision, deep.as_bytes(), json::Strictness::Strict).is_err());
    let crd = proto::schema::kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").expect("CRD");
    let deep = format!(
        "{{\"spec\":{{\"versions\":[{{\"schema\":{{\"openAPIV3Schema\":{}1{}}}}}]}}}}",
        "{\"not\":".repeat(2000),
        "}".repeat(2000)
    );
    assert!(json::decode(crd, deep.as_bytes(), json::Strictness::Strict).is_err());
}
