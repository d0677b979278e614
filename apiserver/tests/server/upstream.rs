//! Requests that were sent to upstream's server, in the same order, and its answers: [`DEFAULTS`] and [`ERRORS`].

use std::collections::BTreeSet;

use bytes::Bytes;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::harness::{Answer, Client, Cluster, Identity, etcd_is_missing};

/// Reports whether a path is not compared: custom resources and aggregated APIs.
fn is_elsewhere(path: &str) -> bool {
    ["/apis/ex.com/", "/apis/apiextensions.k8s.io/", "/apis/agg.ex.com/", "/apis/apiregistration.k8s.io/"]
        .iter()
        .any(|p| path.starts_with(p))
}

/// Replaces what differs from run to run.
struct Norm(Vec<(Regex, &'static str)>);

impl Norm {
    fn new() -> Self {
        let rules = [
            (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
            (r#"(resourceVersion\\*":\\*")\d+"#, "$1<n>"),
            (r"current: \d+", "current: <n>"),
            (r"in record \(\d+\)", "in record (<n>)"),
            (r"resource version: 5 \(\d+\)", "resource version: 5 (<n>)"),
            (r"kube-api-access-[a-z0-9]{5}", "kube-api-access-<x>"),
            (r"g{58}[a-z0-9]{5}\b", "<generated>"),
            (r"10\.(9[6-9]|1[01]\d)\.\d+\.\d+", "<ip>"),
        ];
        Self(rules.map(|(r, with)| (Regex::new(r).expect("a pattern"), with)).into())
    }

    fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |t, (r, with)| r.replace_all(&t, *with).into_owned())
    }

    fn value(&self, v: &Value) -> Value {
        match v {
            Value::String(s) => json!(self.text(s)),
            Value::Array(a) => a.iter().map(|v| self.value(v)).collect(),
            Value::Object(o) => Value::Object(o.iter().map(|(k, v)| (k.clone(), self.value(v))).collect()),
            other => other.clone(),
        }
    }
}

/// Takes away what the records do not have, and the numbers that are taken at random.
fn without_volatile(v: &mut Value) {
    if let Some(metadata) = v["metadata"].as_object_mut() {
        for name in ["uid", "creationTimestamp", "resourceVersion", "managedFields"] {
            metadata.remove(name);
        }
    }
    if v["kind"] == "Service" && v["spec"].get("ports").is_some() {
        if let Some(spec) = v["spec"].as_object_mut() {
            spec.remove("healthCheckNodePort");
        }
        for port in v["spec"]["ports"].as_array_mut().into_iter().flatten() {
            port.as_object_mut().and_then(|p| p.remove("nodePort"));
        }
    }
}

fn differences(path: &str, want: &Value, got: &Value, out: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(w), Value::Object(g)) => {
            for key in w.keys().chain(g.keys()).collect::<BTreeSet<_>>() {
                let at = format!("{path}.{key}");
                differences(&at, w.get(key).unwrap_or(&Value::Null), g.get(key).unwrap_or(&Value::Null), out);
            }
        }
        (Value::Array(w), Value::Array(g)) if w.len() == g.len() => {
            for (i, (w, g)) in w.iter().zip(g).enumerate() {
                differences(&format!("{path}[{i}]"), w, g, out);
            }
        }
        _ if want == got => {}
        _ => out.push(format!("{path}: want {want}, got {got}")),
    }
}

/// Objects that were sent to upstream, and as it answered; proto's test of defaults reads them, too.
pub const DEFAULTS: &str = "../proto/testdata/defaults.json";
/// Requests that upstream refused.
pub const ERRORS: &str = "testdata/errors.json";

/// Reads recorded requests and answers.
pub fn records(file: &str) -> Vec<Value> {
    let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).expect("test data")).expect("a list")
}

fn csr() -> Value {
    let key = rcgen::KeyPair::generate().expect("key");
    let request = rcgen::CertificateParams::default().serialize_request(&key).expect("request").pem().expect("pem");
    use base64::Engine as _;
    json!(base64::engine::general_purpose::STANDARD.encode(request))
}

async fn defaults(c: &Client, norm: &Norm) -> Vec<String> {
    let mut wrong = Vec::new();
    for mut record in records(DEFAULTS) {
        let path = record["path"].as_str().expect("path").to_owned();
        if is_elsewhere(&path) {
            continue;
        }
        let mut sent = record["sent"].take();
        let is_csr = path.ends_with("/certificatesigningrequests");
        if is_csr {
            sent["spec"]["request"] = csr();
        }
        let fixed_ports = sent["metadata"]["name"] == "np";
        if fixed_ports {
            // Requests below ask for the port that upstream took here.
            sent["spec"]["ports"][0]["nodePort"] = json!(32700);
        }
        let answer = c
            .call(
                "POST",
                &path,
                &[("Content-Type", "application/json"), ("User-Agent", "unknown")],
                Some(Bytes::from(sent.to_string())),
            )
            .await;
        let what = format!("{path} {}", sent["metadata"]["name"]);
        if record["code"] != json!(answer.code) {
            wrong.push(format!("{what}: {} {}", answer.code, answer.text()));
            continue;
        }
        let (mut want, mut got) = (record["got"].take(), answer.json());
        if is_csr {
            // Who asks has another name and another certificate here.
            for name in ["request", "username", "extra"] {
                want["spec"][name] = got["spec"][name].clone();
            }
        }
        without_volatile(&mut want);
        without_volatile(&mut got);
        let mut found = Vec::new();
        differences("", &norm.value(&want), &norm.value(&got), &mut found);
        let warnings: Vec<&str> =
            record["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if warnings != answer.warnings() {
            found.push(format!("warnings: want {warnings:?}, got {:?}", answer.warnings()));
        }
        if !found.is_empty() {
            wrong.push(format!("{what}:\n    {}", found.join("\n    ")));
        }
    }
    wrong
}

/// Keys, kinds of value and leases of what `defaults` made, as `testdata/etcd-keys.txt` has them.
async fn stored(cluster: &Cluster) -> Vec<String> {
    let mut wrong = Vec::new();
    let path = format!("{}/testdata/etcd-keys.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("test data");
    let made = records(DEFAULTS);
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let &[pattern, "protobuf", version, kind, lease] = columns.as_slice() else { continue };
        let Some(o) = made.iter().map(|r| &r["got"]).find(|o| o["kind"] == kind) else { continue };
        let key = pattern
            .replace("{namespace}", o["metadata"]["namespace"].as_str().unwrap_or(""))
            .replace("{name}", o["metadata"]["name"].as_str().unwrap_or(""));
        if key.contains('{') {
            continue;
        }
        let Some((value, id)) = cluster.stored(&key).await else {
            wrong.push(format!("{key} is not in etcd"));
            continue;
        };
        let part = |tag: u8, text: &str| [&[tag, u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
        let meta = [part(0x0a, version), part(0x12, kind)].concat();
        let head = [b"k8s\0\x0a".as_slice(), &[u8::try_from(meta.len()).expect("short")], &meta].concat();
        if !value.starts_with(&head) {
            wrong.push(format!("{key}: {:?}", String::from_utf8_lossy(&value[..value.len().min(60)])));
        }
        let ttl = match id {
            0 => "-".to_owned(),
            id => cluster
                .etcd_client()
                .await
                .lease_client()
                .time_to_live(id, None)
                .await
                .expect("etcd answers")
                .granted_ttl()
                .to_string(),
        };
        if ttl != lease {
            wrong.push(format!("{key}: want a lease of {lease}, got {ttl}"));
        }
    }
    wrong
}

struct Users {
    admin: Client,
    alice: Client,
    node: Client,
    anonymous: Client,
}

fn filler(n: usize) -> String {
    "a".repeat(n)
}

/// Bodies that the records only describe.
async fn described(c: &Client, text: &str, path: &str) -> Option<String> {
    let map = |extra: Value| {
        let mut o = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
        proto_merge(&mut o, extra);
        o.to_string()
    };
    Some(match text {
        "<data.a of 1048577 bytes>" => map(json!({"data": {"a": filler(1_048_577)}})),
        "<annotation of 262145 bytes>" => map(json!({"metadata": {"annotations": {"a": filler(262_144)}}})),
        "<body over 3145728 bytes>" => map(json!({"data": {"a": filler(3_145_728)}})),
        "<10001 operations>" => {
            json!(vec![json!({"op": "test", "path": "/kind", "value": "ConfigMap"}); 10_001]).to_string()
        }
        "<generateName of 260 chars>" => {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g".repeat(260)}}).to_string()
        }
        "<spec.clusterIP changed, clusterIPs dropped>" => {
            let mut o = c.get(path).await.json();
            o["spec"]["clusterIP"] = json!("10.96.9.9");
            o["spec"].as_object_mut().and_then(|s| s.remove("clusterIPs"));
            o.to_string()
        }
        "<spec.replicas=-1>" => {
            let mut o = c.get(path).await.json();
            o["spec"]["replicas"] = json!(-1);
            o.to_string()
        }
        "<resourceVersion=1>" => {
            let mut o = c.get(path).await.json();
            o["metadata"]["resourceVersion"] = json!("1");
            o.to_string()
        }
        "<Approved condition with status False>" => {
            let mut o = c.get(path.trim_end_matches("/approval")).await.json();
            o["status"] =
                json!({"conditions": [{"type": "Approved", "status": "False", "reason": "r", "message": "m"}]});
            o.to_string()
        }
        _ => return None,
    })
}

fn proto_merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(a), Value::Object(b)) => {
            for (k, v) in b {
                proto_merge(a.entry(k).or_insert(Value::Null), v);
            }
        }
        (a, b) => *a = b,
    }
}

/// Prepares the state before the request of that name.
async fn before(cluster: &Cluster, c: &Client, name: &str) {
    let agent = [("Content-Type", "application/json"), ("User-Agent", "unknown")];
    let post = async |path: &str, o: Value| {
        let a = c.call("POST", path, &agent, Some(Bytes::from(o.to_string()))).await;
        assert_eq!(a.code, 201, "before {name:?}: {path}: {}", a.text());
    };
    let merge = async |path: &str, o: Value| {
        let a = c.patch(path, "merge-patch+json", o).await;
        assert_eq!(a.code, 200, "before {name:?}: {path}: {}", a.text());
    };
    let e = "/api/v1/namespaces/e";
    match name {
        "pod create: service account missing" => {
            for namespace in ["e", "e2"] {
                post("/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
            }
            let labels = json!({"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"});
            post("/api/v1/namespaces", json!({"metadata": {"name": "q", "labels": labels}})).await;
            post("/api/v1/nodes", json!({"metadata": {"name": "n2"}})).await;
        }
        "unknown path" => {
            for namespace in ["e", "q"] {
                post(
                    &format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
                    json!({"metadata": {"name": "default"}}),
                )
                .await;
            }
            let maps = format!("{e}/configmaps");
            post(&maps, json!({"metadata": {"name": "a"}, "data": {"x": "1"}})).await;
            post(&maps, json!({"metadata": {"name": "c0"}})).await;
            post(&maps, json!({"metadata": {"name": "imm"}, "data": {"a": "b"}, "immutable": true})).await;
            let ap = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ap"}, "data": {"k": "1"}});
            assert_eq!(c.patch(&format!("{maps}/ap?fieldManager=m1"), "apply-patch+yaml", ap).await.code, 201);
        }
        "rbac escalation: role" => {
            for namespace in ["e", "e2"] {
                let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
                let rule = json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create"]});
                post(&format!("{path}/roles"), json!({"metadata": {"name": "roles"}, "rules": [rule]})).await;
                let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "roles"});
                post(&format!("{path}/rolebindings"), json!({"metadata": {"name": "roles"}, "roleRef": role, "subjects": [{"kind": "User", "name": "alice"}]})).await;
            }
        }
        "immutable: node podCIDR after set" => {
            merge("/api/v1/nodes/n1", json!({"spec": {"podCIDR": "10.5.0.0/24", "podCIDRs": ["10.5.0.0/24"]}})).await;
        }
        "quota exceeded: count" => {
            let hard = json!({"count/secrets": "1", "requests.cpu": "1"});
            post(&format!("{e}/resourcequotas"), json!({"metadata": {"name": "rq"}, "spec": {"hard": hard}})).await;
            merge(
                &format!("{e}/resourcequotas/rq/status"),
                json!({"status": {"hard": hard, "used": {"count/secrets": "1", "requests.cpu": "0"}}}),
            )
            .await;
        }
        "limit range: over max" => {
            assert_eq!(c.delete(&format!("{e}/resourcequotas/rq")).await.code, 200);
            let limit = json!({"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "100m"}});
            post(&format!("{e}/limitranges"), json!({"metadata": {"name": "lr"}, "spec": {"limits": [limit]}})).await;
        }
        "webhook cannot be called, Fail" => {
            let hook = |name: &str, policy: &str, resource: &str| {
                let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]});
                json!({
                    "name": name, "clientConfig": {"url": "https://127.0.0.1:1/x"}, "rules": [rule], "failurePolicy": policy, "timeoutSeconds": 1,
                    "sideEffects": "None", "admissionReviewVersions": ["v1"],
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "e"}},
                })
            };
            let hooks = json!([hook("fail.a.b", "Fail", "endpoints"), hook("ignore.a.b", "Ignore", "podtemplates")]);
            let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
            post(path, json!({"metadata": {"name": "hooks"}, "webhooks": hooks})).await;
        }
        "validating admission policy: message" => {
            let path = "/apis/admissionregistration.k8s.io/v1";
            let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
            let validations =
                json!([{"expression": "!object.metadata.name.startsWith('deny')", "message": "no deny names"}]);
            let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": validations});
            post(&format!("{path}/validatingadmissionpolicies"), json!({"metadata": {"name": "deny"}, "spec": spec}))
                .await;
            let spec = json!({"policyName": "deny", "validationActions": ["Deny"]});
            post(
                &format!("{path}/validatingadmissionpolicybindings"),
                json!({"metadata": {"name": "deny"}, "spec": spec}),
            )
            .await;
        }
        "eviction: disruption budget not processed" => {
            let pod = json!({"metadata": {"name": "ev", "labels": {"app": "a"}}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
            post("/api/v1/namespaces/sample/pods", pod).await;
            merge(
                "/api/v1/namespaces/sample/pods/ev/status",
                json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
            )
            .await;
        }
        "eviction: disruption budget blocks" => {
            let status = json!({"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1});
            merge("/apis/policy/v1/namespaces/sample/poddisruptionbudgets/sample/status", json!({"status": status}))
                .await;
        }
        "list: continue token expired" => {
            for i in 0..5 {
                post("/api/v1/namespaces/e2/configmaps", json!({"metadata": {"name": format!("c{i}")}})).await;
            }
            // The recorded token is of revision 400.
            let mut now = 0_i64;
            while now < 450 {
                let data = json!({"data": {"now": now.to_string()}});
                let o = c.patch("/api/v1/namespaces/e2/configmaps/c0", "merge-patch+json", data).await.ok();
                now = o["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).expect("a revision");
            }
            cluster.etcd_client().await.kv_client().compact(now, None).await.expect("compacted");
        }
        "create in terminating namespace" => assert_eq!(c.delete(e).await.code, 200),
        _ => {}
    }
}

fn compare(norm: &Norm, record: &Value, answer: &Answer) -> Vec<String> {
    let mut found = Vec::new();
    if record["code"] != json!(answer.code) {
        found.push(format!("code: want {}, got {}", record["code"], answer.code));
    }
    let got = answer.json();
    if let Some(want) = record.get("status") {
        let mut got = got.clone();
        if let Some(o) = got.as_object_mut() {
            if o.remove("kind") != Some(json!("Status")) || o.remove("apiVersion") != Some(json!("v1")) {
                found.push("not a Status".to_owned());
            }
            if want.get("metadata").is_none() && o.get("metadata") == Some(&json!({})) {
                o.remove("metadata");
            }
        }
        let (mut want, mut got) = (norm.value(want), norm.value(&got));
        // The fresh token names another revision.
        for v in [&mut want, &mut got] {
            if let Some(t) = v.get_mut("metadata").and_then(|m| m.get_mut("continue")) {
                *t = json!("<token>");
            }
        }
        differences("", &want, &got, &mut found);
    }
    if let Some(text) = record["text"].as_str()
        && !text.starts_with('<')
        && text != answer.text()
    {
        found.push(format!("text: want {text:?}, got {:?}", answer.text()));
    }
    if let Some(event) = record.get("watchEvent") {
        differences("event", &norm.value(event), &norm.value(&got), &mut found);
    }
    if let Some(kind) = record["kind"].as_str()
        && got["kind"] != kind
    {
        found.push(format!("kind: want {kind}, got {}", got["kind"]));
    }
    if let Some(t) = record["contentType"].as_str()
        && t != answer.header("content-type")
    {
        found.push(format!("content type: want {t}, got {}", answer.header("content-type")));
    }
    for (name, want) in record["headers"].as_object().unwrap_or(&Map::new()) {
        if want != answer.header(name) {
            found.push(format!("{name}: want {want}, got {}", answer.header(name)));
        }
    }
    let warnings: Vec<&str> = record["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if warnings != answer.warnings() {
        found.push(format!("warnings: want {warnings:?}, got {:?}", answer.warnings()));
    }
    found
}

async fn errors(cluster: &Cluster, users: &Users, norm: &Norm) -> Vec<String> {
    let mut wrong = Vec::new();
    for record in records(ERRORS) {
        let (name, request) = (record["name"].as_str().expect("name"), &record["request"]);
        let path = request["path"].as_str().expect("path");
        before(cluster, &users.admin, name).await;
        if is_elsewhere(path) {
            continue;
        }
        let client = match request["user"].as_str() {
            Some("alice") => &users.alice,
            Some("node") => &users.node,
            Some("anonymous") => &users.anonymous,
            _ => &users.admin,
        };
        let body = match request.get("body") {
            None | Some(Value::Null) => None,
            // Records have their keys sorted; these were sent in this order.
            Some(_) if name.starts_with("unknown field, fieldValidation=") => {
                Some(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"uf","bar":2},"foo":1}"#.to_owned())
            }
            Some(Value::String(s)) => Some(described(&users.admin, s, path).await.unwrap_or_else(|| s.clone())),
            Some(v) => Some(v.to_string()),
        };
        let mut headers = vec![("User-Agent", "unknown")];
        for (k, v) in request["headers"].as_object().into_iter().flatten() {
            headers.push((k.as_str(), v.as_str().unwrap_or("")));
        }
        if body.is_some() && !headers.iter().any(|(k, _)| *k == "Content-Type") {
            headers.push(("Content-Type", "application/json"));
        }
        if !headers.iter().any(|(k, _)| *k == "Accept") {
            headers.push(("Accept", "application/json"));
        }
        let answer =
            client.call(request["method"].as_str().expect("method"), path, &headers, body.map(Bytes::from)).await;
        let found = compare(norm, &record, &answer);
        if !found.is_empty() {
            wrong.push(format!("{name}:\n    {}", found.join("\n    ")));
        }
    }
    wrong
}

/// Both, one after the other: the errors are about the objects made before.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_upstreams() {
    if etcd_is_missing() {
        return;
    }
    let cluster = Cluster::start().await;
    let norm = Norm::new();
    let users = Users {
        admin: cluster.client(Identity::Admin),
        alice: cluster.client(Identity::Alice),
        node: cluster.client(Identity::Node),
        anonymous: cluster.client(Identity::Anonymous),
    };
    let mut wrong = defaults(&users.admin, &norm).await;
    wrong.extend(stored(&cluster).await);
    wrong.extend(errors(&cluster, &users, &norm).await);
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}
