//! Admission webhooks beyond yes and no: what is written down of them, dry runs, time, versions, second thoughts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::harness::{Client, Cluster, Webhook, audited, etcd_is_missing, eventually};

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const AUDIT: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, verbs: [create], namespaces: [kube-public], resources: [{group: "", resources: [configmaps]}]}
- {level: Request, verbs: [create], resources: [{group: "", resources: [configmaps]}]}
- {level: None}
"#;

/// A cluster that writes down what is done to config maps, and what its webhook was asked.
async fn start() -> Option<(Cluster, Webhook, Arc<Mutex<Vec<Value>>>)> {
    if etcd_is_missing() {
        return None;
    }
    let c = Cluster::start_with(|dir, _| audited(dir, AUDIT)).await;
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let seen = asked.clone();
    let webhook = Webhook::start(c.pki(), move |path, request| {
        let mut about = request.clone();
        about["path"] = json!(path);
        seen.lock().push(about);
        let patch = |operations: Value| {
            let patch = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
            json!({"allowed": true, "patchType": "JSONPatch", "patch": patch, "auditAnnotations": {"seen": "yes"}})
        };
        Some(match path {
            "/label" => patch(json!([{"op": "add", "path": "/data", "value": {"k": "v"}}])),
            "/more" => patch(json!([{"op": "replace", "path": "/spec/replicas", "value": 4}])),
            "/idle" => patch(json!([{"op": "test", "path": "/kind", "value": "ConfigMap"}])),
            "/broken" => return None,
            "/deny" => {
                json!({"allowed": false, "warnings": ["a word"], "status": {"code": 403, "message": "not here"}})
            }
            _ => json!({"allowed": true, "warnings": ["a word"], "auditAnnotations": {"judged": "mildly"}}),
        })
    })
    .await;
    Some((c, webhook, asked))
}

/// One webhook about the creation of config maps, with what `more` says instead.
fn hook(name: &str, config: Value, more: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let mut hook = json!({
        "name": name, "clientConfig": config, "rules": [rule], "failurePolicy": "Fail", "timeoutSeconds": 1,
        "sideEffects": "NoneOnDryRun", "admissionReviewVersions": ["v1"],
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        hook[field] = value.clone();
    }
    hook
}

/// Puts a configuration in the place of the one before.
/// Returns when admission knows them: it reads what lists from the cache show.
async fn set(c: &Client, kind: &str, hooks: Value) {
    let path = format!("{REGISTRATION}/{kind}webhookconfigurations");
    c.delete(&format!("{path}/hooks")).await;
    let made = c.post(&path, json!({"metadata": {"name": "hooks"}, "webhooks": hooks})).await.ok();
    let revision = made["metadata"]["resourceVersion"].as_str().expect("a revision");
    c.get(&format!("{path}?resourceVersion={revision}")).await.ok();
}

fn written_down(c: &Cluster, name: &str) -> Value {
    let text = std::fs::read_to_string(c.dir().join("audit.log")).expect("a log");
    let mut events = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    events.find(|e| e["objectRef"]["name"] == name).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_calls_are_audited() {
    let Some((c, webhook, _)) = start().await else { return };
    let nobody = json!({"url": "https://127.0.0.1:1/x"});
    let hooks = json!([
        hook("label.test.io", webhook.config("/label"), json!({})),
        hook("idle.test.io", webhook.config("/idle"), json!({})),
        hook("gone.test.io", nobody, json!({"failurePolicy": "Ignore"})),
    ]);
    set(&c, "mutating", hooks).await;
    set(
        &c,
        "validating",
        json!([
            hook("broken.test.io", webhook.config("/broken"), json!({"failurePolicy": "Ignore"})),
            hook("judge.test.io", webhook.config("/judge"), json!({})),
        ]),
    )
    .await;
    let made = c.post(MAPS, json!({"metadata": {"name": "noted"}})).await;
    assert_eq!(made.ok()["data"], json!({"k": "v"}));
    assert_eq!(made.warnings(), [r#"299 - "a word""#]);
    let event = written_down(&c, "noted");
    let about = |webhook: &str, mutated: bool| {
        format!(r#"{{"configuration":"hooks","webhook":"{webhook}","mutated":{mutated}}}"#)
    };
    let patch = |webhook: &str, operation: &str| {
        format!(r#"{{"configuration":"hooks","webhook":"{webhook}","patch":[{operation}],"patchType":"JSONPatch"}}"#)
    };
    for (key, wanted) in [
        ("label.test.io/seen", "yes".to_owned()),
        ("judge.test.io/judged", "mildly".to_owned()),
        ("mutation.webhook.admission.k8s.io/round_0_index_0", about("label.test.io", true)),
        ("mutation.webhook.admission.k8s.io/round_0_index_1", about("idle.test.io", false)),
        ("mutation.webhook.admission.k8s.io/round_0_index_2", about("gone.test.io", false)),
        (
            "patch.webhook.admission.k8s.io/round_0_index_0",
            patch("label.test.io", r#"{"op":"add","path":"/data","value":{"k":"v"}}"#),
        ),
        (
            "patch.webhook.admission.k8s.io/round_0_index_1",
            patch("idle.test.io", r#"{"op":"test","path":"/kind","value":"ConfigMap"}"#),
        ),
        ("failed-open.mutation.webhook.admission.k8s.io/round_0_index_2", "gone.test.io".to_owned()),
        ("failed-open.validating.webhook.admission.k8s.io/round_0_index_0", "broken.test.io".to_owned()),
    ] {
        assert_eq!(event["annotations"][key], wanted, "{key} in {}", event["annotations"]);
    }
    // What a patch says is written down where requests are.
    c.post("/api/v1/namespaces/kube-public/configmaps", json!({"metadata": {"name": "hushed"}})).await.ok();
    let hushed = written_down(&c, "hushed")["annotations"].clone();
    assert!(hushed["mutation.webhook.admission.k8s.io/round_0_index_0"].is_string(), "{hushed}");
    assert!(hushed.get("patch.webhook.admission.k8s.io/round_0_index_0").is_none(), "{hushed}");
    let metrics = c.get("/metrics").await.text();
    for row in [
        r#"apiserver_admission_webhook_request_total{code="200",name="label.test.io",operation="CREATE",rejected="false",type="admit"}"#,
        r#"apiserver_admission_webhook_request_total{code="503",name="gone.test.io",operation="CREATE",rejected="false",type="admit"}"#,
        r#"apiserver_admission_webhook_request_total{code="503",name="broken.test.io",operation="CREATE",rejected="false",type="validating"}"#,
    ] {
        assert!(metrics.contains(row), "{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_runs_and_time_have_their_limits() {
    let Some((c, webhook, asked)) = start().await else { return };
    // A webhook that does things may not be asked about what will not happen: the API takes no such webhook.
    let harmful = json!([hook("harm.test.io", webhook.config("/judge"), json!({"sideEffects": "Some"}))]);
    let refused = c
        .post(
            &format!("{REGISTRATION}/validatingwebhookconfigurations"),
            json!({"metadata": {"name": "hooks"}, "webhooks": harmful}),
        )
        .await;
    let (code, reason, message) = refused.failure();
    assert_eq!((code, reason.as_str()), (422, "Invalid"), "{message}");
    assert!(
        message.contains(
            r#"webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun""#
        ),
        "{message}"
    );
    set(&c, "validating", json!([hook("judge.test.io", webhook.config("/judge"), json!({}))])).await;
    c.post(&format!("{MAPS}?dryRun=All"), json!({"metadata": {"name": "dry"}})).await.ok();
    c.post(MAPS, json!({"metadata": {"name": "wet"}})).await.ok();
    let dry: Vec<Value> = asked.lock().iter().map(|r| r["dryRun"].clone()).collect();
    assert_eq!(dry, [json!(true), json!(false)], "it is told");
    assert_eq!(asked.lock()[1]["options"]["kind"], "CreateOptions");

    // It takes connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}/x", silent.local_addr().expect("an address"));
    set(&c, "validating", json!([hook("slow.test.io", json!({"url": url}), json!({}))])).await;
    let since = Instant::now();
    c.post(MAPS, json!({"metadata": {"name": "late"}})).await.fails(
        500,
        "InternalError",
        &format!(r#"Internal error occurred: failed calling webhook "slow.test.io": failed to call webhook: Post "{url}?timeout=1s": context deadline exceeded"#),
    );
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
    assert_eq!(c.get(&format!("{MAPS}/late")).await.code, 404);
    let patient = json!({"failurePolicy": "Ignore"});
    set(&c, "validating", json!([hook("slow.test.io", json!({"url": url}), patient)])).await;
    c.post(MAPS, json!({"metadata": {"name": "late"}})).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_receive_the_matched_version() {
    let Some((c, webhook, asked)) = start().await else { return };
    let taken = || std::mem::take(&mut *asked.lock());
    let rule = json!([{"apiGroups": ["autoscaling"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["horizontalpodautoscalers"]}]);
    let hooks = json!([
        hook("equivalent.test.io", webhook.config("/equivalent"), json!({"rules": rule, "matchPolicy": "Equivalent"})),
        hook("exact.test.io", webhook.config("/exact"), json!({"rules": rule, "matchPolicy": "Exact"})),
    ]);
    set(&c, "validating", hooks).await;
    let scaler = |name: &str| json!({"metadata": {"name": name}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    c.post("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", scaler("new")).await.ok();
    let seen = taken();
    assert_eq!(seen.iter().map(|r| r["path"].as_str().unwrap_or("")).collect::<Vec<_>>(), ["/equivalent"]);
    assert_eq!((&seen[0]["kind"]["version"], &seen[0]["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(seen[0]["object"]["apiVersion"], "autoscaling/v1", "in the version that it knows");
    c.post("/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", scaler("old")).await.ok();
    assert_eq!(taken().len(), 2);

    let selector = json!({"matchLabels": {"watched": "yes"}});
    let condition = |expression: &str| json!([{"name": "c", "expression": expression}]);
    set(
        &c,
        "validating",
        json!([
            hook("selected.test.io", webhook.config("/selected"), json!({"objectSelector": selector})),
            hook("elsewhere.test.io", webhook.config("/elsewhere"), json!({"namespaceSelector": selector})),
            hook(
                "met.test.io",
                webhook.config("/met"),
                json!({"matchConditions": condition("request.userInfo.username == 'admin'")})
            ),
            hook(
                "unmet.test.io",
                webhook.config("/unmet"),
                json!({"matchConditions": condition("object.metadata.name == 'other'")})
            ),
        ]),
    )
    .await;
    c.post(MAPS, json!({"metadata": {"name": "selected", "labels": {"watched": "yes"}}})).await.ok();
    let mut paths: Vec<String> = taken().iter().map(|r| r["path"].as_str().unwrap_or("").to_owned()).collect();
    paths.sort();
    assert_eq!(paths, ["/met", "/selected"]);
    // A condition that cannot be told: the failure policy decides, and nobody is asked.
    for (policy, code) in [("Fail", 403), ("Ignore", 201)] {
        let unclear = json!({"failurePolicy": policy, "matchConditions": condition("object.data.missing == 'x'")});
        set(&c, "validating", json!([hook("unclear.test.io", webhook.config("/unclear"), unclear)])).await;
        let made = c.post(MAPS, json!({"metadata": {"name": format!("unclear-{}", policy.to_lowercase())}})).await;
        assert_eq!(made.code, code, "{policy}: {}", made.text());
        assert!(taken().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mutating_webhooks_are_reinvoked() {
    let Some((c, webhook, asked)) = start().await else { return };
    let again = |policy: &str| json!({"reinvocationPolicy": policy});
    set(
        &c,
        "mutating",
        json!([
            hook("first.test.io", webhook.config("/first"), again("IfNeeded")),
            hook("once.test.io", webhook.config("/once"), again("Never")),
            hook("label.test.io", webhook.config("/label"), again("IfNeeded")),
        ]),
    )
    .await;
    c.post(MAPS, json!({"metadata": {"name": "again"}})).await.ok();
    let paths: Vec<String> = asked.lock().iter().map(|r| r["path"].as_str().unwrap_or("").to_owned()).collect();
    assert_eq!(paths, ["/first", "/once", "/label", "/first"], "who changed it last has seen it");
    let last = asked.lock().last().cloned().unwrap_or_default();
    assert_eq!(last["object"]["data"], json!({"k": "v"}), "{last}");
}

/// A client that does not wait for its answer leaves its trace all the same.
#[tokio::test(flavor = "multi_thread")]
async fn disconnected_clients_are_audited() {
    let Some((c, _, _)) = start().await else { return };
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}/x", silent.local_addr().expect("an address"));
    set(&c, "validating", json!([hook("slow.test.io", json!({"url": url}), json!({"timeoutSeconds": 10}))])).await;
    let mut connection = c.connection().await;
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gone"}}).to_string();
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(head.as_bytes()).await.expect("sent");
    connection.flush().await.expect("sent");
    let _asked = silent.accept().await.expect("the webhook is asked");
    drop(connection);
    let event = eventually("the event of who went away", async || {
        Some(written_down(&c, "gone")).filter(|event| !event.is_null())
    })
    .await;
    assert_eq!((&event["verb"], &event["stage"]), (&json!("create"), &json!("ResponseComplete")));
    assert_eq!(c.get(&format!("{MAPS}/gone")).await.code, 404);
}

/// Admission sees the objects of a collection one by one; the name of each is in the object alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_deleted_object_by_object() {
    let Some((c, webhook, asked)) = start().await else { return };
    for name in ["one", "two"] {
        let map = json!({"metadata": {"name": name, "labels": {"go": "yes"}}});
        c.post(MAPS, map).await.ok();
    }
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["configmaps"]});
    for kind in ["mutating", "validating"] {
        set(
            &c,
            kind,
            json!([hook("delete.example.com", webhook.config(&format!("/{kind}")), json!({"rules": [rule]}))]),
        )
        .await;
    }
    eventually("the webhooks are known", async || {
        c.post(MAPS, json!({"metadata": {"name": "probe"}})).await;
        c.delete(&format!("{MAPS}/probe")).await;
        let asked = asked.lock();
        let told = |path: &str| asked.iter().any(|a| a["name"] == "probe" && a["path"] == path);
        (told("/mutating") && told("/validating")).then_some(())
    })
    .await;
    asked.lock().clear();
    c.delete(&format!("{MAPS}?labelSelector=go%3Dyes")).await.ok();
    let mut seen: Vec<(String, String, String)> = asked
        .lock()
        .iter()
        .map(|a| {
            let text = |pointer: &str| a.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
            (text("/path"), text("/name"), text("/oldObject/metadata/name"))
        })
        .collect();
    seen.sort();
    let each = |path: &str, object: &str| (path.to_owned(), String::new(), object.to_owned());
    let wanted =
        [each("/mutating", "one"), each("/mutating", "two"), each("/validating", "one"), each("/validating", "two")];
    assert_eq!(seen, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_requests_are_admitted() {
    let Some((c, webhook, asked)) = start().await else { return };
    let rule = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"],
        "resources": ["pods/attach", "pods/exec", "services/proxy"]}]);
    set(&c, "validating", json!([hook("deny.test.io", webhook.config("/deny"), json!({"rules": rule}))])).await;
    let core = "/api/v1/namespaces/default";
    c.post(&format!("{core}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await.ok();
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]});
    c.post(&format!("{core}/pods"), json!({"metadata": {"name": "p"}, "spec": spec})).await.ok();
    for (path, object) in [
        (
            "pods/p/attach?container=c&stdin=true&stdout=true",
            json!({"kind": "PodAttachOptions", "apiVersion": "v1", "container": "c", "stdin": true, "stdout": true}),
        ),
        (
            "pods/p/exec?command=ls&command=-l&stdout=true",
            json!({"kind": "PodExecOptions", "apiVersion": "v1", "command": ["ls", "-l"], "stdout": true}),
        ),
        ("services/s/proxy/a/b", json!({"kind": "ServiceProxyOptions", "apiVersion": "v1", "path": "/a/b"})),
    ] {
        let refused = c.post(&format!("{core}/{path}"), Value::Null).await;
        assert_eq!(refused.failure().2, "admission webhook \"deny.test.io\" denied the request: not here", "{path}");
        assert_eq!((refused.code, refused.warnings()), (403, vec![r#"299 - "a word""#]));
        let review = asked.lock().pop().expect("a review");
        assert_eq!((&review["operation"], &review["object"]), (&json!("CONNECT"), &object));
        assert_eq!(review["kind"]["kind"], object["kind"]);
    }
    // Nobody has a say in logs: they are asked of a node that is not there.
    let failed = c.get(&format!("{core}/pods/p/log")).await;
    assert_eq!(failed.failure().2, "nodes \"n1\" not found");
    assert!(asked.lock().is_empty());
}

/// A Scale is what webhooks are asked about, and what they change.
#[tokio::test(flavor = "multi_thread")]
async fn scale_writes_are_admitted_as_scale() {
    let Some((c, webhook, asked)) = start().await else { return };
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    c.post(deployments, json!({"metadata": {"name": "d"}, "spec": spec})).await.ok();
    let rule = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments/scale"]}]);
    set(&c, "mutating", json!([hook("more.test.io", webhook.config("/more"), json!({"rules": rule}))])).await;
    set(&c, "validating", json!([hook("judge.test.io", webhook.config("/judge"), json!({"rules": rule}))])).await;
    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 2}});
    let scaled = c.put(&format!("{deployments}/d/scale"), &scale).await.ok();
    assert_eq!((&scaled["kind"], &scaled["spec"]["replicas"]), (&json!("Scale"), &json!(4)));
    let there = c.get(&format!("{deployments}/d")).await.ok();
    assert_eq!(
        (&there["spec"]["replicas"], &there["spec"]["template"]["metadata"]),
        (&json!(4), &template["metadata"])
    );
    let asked = asked.lock();
    let shown: Vec<Value> = asked
        .iter()
        .map(|r| {
            json!([
                r["path"],
                r["kind"]["kind"],
                r["resource"]["resource"],
                r["subResource"],
                r["oldObject"]["spec"],
                r["object"]["spec"]
            ])
        })
        .collect();
    let about = |path: &str, replicas: i64| json!([path, "Scale", "deployments", "scale", {"replicas": 1}, {"replicas": replicas}]);
    assert_eq!(shown, [about("/more", 2), about("/judge", 4)]);
    let owners = asked[0]["object"]["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!(owners[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
}

/// Deletes of objects that are already in deletion call no webhooks.
#[tokio::test(flavor = "multi_thread")]
async fn deletions_in_progress_call_no_webhooks() {
    let Some((c, webhook, _)) = start().await else { return };
    let pods = "/api/v1/namespaces/default/pods";
    c.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    c.post(pods, pod.clone()).await.ok();
    let path = format!("{pods}/p");
    c.delete(&path).await.ok();
    let rule = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}]);
    set(&c, "validating", json!([hook("deny.test.io", webhook.config("/deny"), json!({"rules": rule}))])).await;
    let again = c.delete(&path).await.ok();
    assert_eq!(again["metadata"]["deletionGracePeriodSeconds"], 30);
    let hurry = c.delete(&format!("{path}?gracePeriodSeconds=1")).await;
    hurry.fails(403, "", "admission webhook \"deny.test.io\" denied the request: not here");
    c.post(pods, pod).await.fails(409, "AlreadyExists", "object is being deleted: pods \"p\" already exists");
}
