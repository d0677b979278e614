//! Defaults against objects as upstream stores them (`testdata/defaults.json`). What admission, allocation and
//! strategies add is taken out of the expected side.

use proto::{Value, defaulting, json, schema};

/// Fields that somebody else sets, by path of names.
const OTHERS: &[&str] = &[
    "metadata.generation",
    "metadata.namespace",
    "metadata.finalizers",
    "metadata.annotations.deprecated.daemonset.template.generation",
    "PersistentVolume:status.lastPhaseTransitionTime",
    "Namespace:spec.finalizers",
    "Node:spec.taints",
    "Pod:spec.preemptionPolicy",
    "Pod:spec.priority",
    "Pod:spec.serviceAccount",
    "Pod:spec.serviceAccountName",
    "Pod:spec.tolerations",
    "Pod:status.phase",
    "Pod:status.qosClass",
    "Service:spec.clusterIP",
    "Service:spec.clusterIPs",
    "Service:spec.ipFamilies",
    "Service:spec.ipFamilyPolicy",
    "Service:spec.healthCheckNodePort",
    "CertificateSigningRequest:spec.extra",
    "CertificateSigningRequest:spec.groups",
    "CertificateSigningRequest:spec.username",
];

fn remove(value: &mut Value, path: &str) {
    let mut at = value;
    let mut rest = path;
    loop {
        let Some(map) = at.as_object_mut() else { return };
        if map.remove(rest).is_some() {
            return;
        }
        let Some((head, tail)) = rest.split_once('.') else { return };
        let Some(next) = map.get_mut(head) else { return };
        (at, rest) = (next, tail);
    }
}

fn forget_others(kind: &str, name: &str, value: &mut Value) {
    for path in OTHERS {
        match path.split_once(':') {
            Some((only, path)) if only == kind => remove(value, path),
            None => remove(value, path),
            _ => {}
        }
    }
    if kind == "Pod" {
        // The token volume.
        let token = |v: &Value| v["name"].as_str().is_some_and(|n| n.starts_with("kube-api-access"));
        if let Some(list) = value["spec"]["volumes"].as_array_mut() {
            list.retain(|v| !token(v));
            if list.is_empty() {
                remove(value, "spec.volumes");
            }
        }
        for list in ["containers", "initContainers"] {
            for container in value["spec"][list].as_array_mut().into_iter().flatten() {
                remove(container, "volumeMounts");
            }
        }
        if value["spec"]["initContainers"].is_null() {
            remove(value, "spec.initContainers");
        }
        if value["spec"]["volumes"].is_null() {
            remove(value, "spec.volumes");
        }
    }
    if kind == "Job" {
        for path in ["metadata.labels", "spec.selector", "spec.template.metadata"] {
            remove(value, path);
        }
    }
    for port in value["spec"]["ports"].as_array_mut().into_iter().flatten().filter(|_| kind == "Service") {
        remove(port, "nodePort");
    }
    if kind == "Service" && value["spec"]["ports"].is_null() {
        remove(value, "spec.ports");
    }
    if name == "p" && value["spec"].is_null() {
        remove(value, "spec");
    }
    if value["metadata"]["annotations"] == serde_json::json!({}) {
        remove(value, "metadata.annotations");
    }
    if value["spec"] == serde_json::json!({}) && kind == "Node" {
        remove(value, "spec");
    }
}

#[test]
fn objects_get_upstreams_defaults() {
    let cases: Value = serde_json::from_str(include_str!("../testdata/defaults.json")).expect("test data");
    let mut failed = Vec::new();
    for case in cases.as_array().expect("list") {
        let (sent, got) = (&case["sent"], &case["got"]);
        let text = |name: &str| sent[name].as_str().expect("text");
        let Some(schema) = schema::kind_of(text("apiVersion"), text("kind")) else {
            assert_eq!(text("kind"), "Foo");
            continue;
        };
        if text("kind") == "CertificateSigningRequest" {
            // The request's bytes are elided in the test data.
            continue;
        }
        let body = serde_json::to_vec(sent).expect("JSON");
        let mut value = json::decode(schema, &body, json::Strictness::Strict).expect("decode").value;
        defaulting::apply(schema, &mut value);
        // Through the store and back, as upstream's answer.
        if schema.has_protobuf {
            let bytes = proto::protobuf::encode_envelope(schema, &value);
            value = proto::protobuf::decode_envelope(&bytes).expect("stored");
        }
        let mut twice = value.clone();
        defaulting::apply(schema, &mut twice);
        assert_eq!(twice, value, "defaulting twice");
        let mut want = got.clone();
        let name = sent["metadata"]["name"].as_str().unwrap_or_default();
        forget_others(text("kind"), name, &mut want);
        forget_others(text("kind"), name, &mut value);
        if value != want {
            failed.push(format!("{} {name}\n  got  {value}\n  want {want}", text("kind")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
