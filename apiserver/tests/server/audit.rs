//! What is written down of requests.

use serde_json::{Value, json};

use crate::harness::{Cluster, Identity, Remote, audited, etcd_is_missing};

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: Metadata, resources: [{group: "", resources: [secrets]}]}
- {level: RequestResponse, resources: [{group: "", resources: [configmaps]}]}
- {level: Metadata, verbs: [create], namespaces: [guarded], resources: [{group: "", resources: [pods]}]}
- {level: Metadata, users: ["alice", "system:anonymous", ""]}
- {level: None}
"#;

fn events(text: &str, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    text.lines().filter_map(|l| serde_json::from_str(l).ok()).filter(wanted).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_what_the_policy_wants() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|dir, _| audited(dir, POLICY)).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let made = c
        .call(
            "POST",
            &format!("{maps}?fieldManager=m"),
            &[("Content-Type", "application/json"), ("Audit-ID", "mine"), ("X-Forwarded-For", "192.0.2.1")],
            Some(json!({"metadata": {"name": "c"}, "data": {"k": "v"}}).to_string().into()),
        )
        .await;
    made.ok();
    assert_eq!(made.header("audit-id"), "mine");
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    c.post("/api/v1/namespaces/default/secrets", secret).await.ok();
    let labels = json!({"pod-security.kubernetes.io/audit": "baseline"});
    c.post("/api/v1/namespaces", json!({"metadata": {"name": "guarded", "labels": labels}})).await.ok();
    c.post("/api/v1/namespaces/guarded/serviceaccounts", json!({"metadata": {"name": "default"}})).await.ok();
    let spec = json!({"hostPID": true, "containers": [{"name": "c", "image": "i"}]});
    c.post("/api/v1/namespaces/guarded/pods", json!({"metadata": {"name": "p"}, "spec": spec})).await.ok();
    let alice = c.client(Identity::Alice);
    assert_eq!(alice.get("/api/v1/nodes").await.code, 403);
    assert_eq!(alice.get("/api/v1/nodes?watch=1").await.code, 403);
    assert_eq!(c.client(Identity::Token("nope".into())).get("/version").await.code, 401);
    c.get("/api/v1/namespaces/default/pods").await.ok();
    c.get(&format!("{maps}?watch=1&timeoutSeconds=1")).await;

    let text = std::fs::read_to_string(c.dir().join("audit.log")).expect("a log");
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "a secret's content is not in the log");
    let create = events(&text, |e| e["auditID"] == "mine").remove(0);
    assert_eq!((&create["level"], &create["stage"]), (&json!("RequestResponse"), &json!("ResponseComplete")));
    assert_eq!((&create["verb"], &create["requestURI"]), (&json!("create"), &json!(format!("{maps}?fieldManager=m"))));
    assert_eq!(
        create["objectRef"],
        json!({"resource": "configmaps", "namespace": "default", "name": "c", "apiVersion": "v1"})
    );
    assert_eq!(create["requestObject"]["data"], json!({"k": "v"}));
    assert!(create["responseObject"]["metadata"]["uid"].is_string(), "{create}");
    assert!(create["responseObject"]["metadata"].get("managedFields").is_none(), "{create}");
    assert_eq!(create["responseStatus"]["code"], 201);
    assert_eq!(create["sourceIPs"], json!(["192.0.2.1", "127.0.0.1"]));
    assert_eq!(create["annotations"]["authorization.k8s.io/decision"], "allow");
    let secrets = events(&text, |e| e["objectRef"]["resource"] == "secrets" && e["verb"] == "create");
    assert_eq!(secrets.len(), 1);
    assert_eq!(secrets[0]["objectRef"]["name"], "s", "which one it is is no secret");
    assert!(secrets[0].get("requestObject").is_none() && secrets[0].get("responseObject").is_none());
    let noted = events(&text, |e| e["objectRef"]["namespace"] == "guarded" && e["verb"] == "create").remove(0);
    assert!(
        noted["annotations"]["pod-security.kubernetes.io/audit-violations"]
            .as_str()
            .is_some_and(|v| v.contains("hostPID")),
        "{noted}"
    );
    let refused = events(&text, |e| e["user"]["username"] == "alice").remove(0);
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(
        (&refused["responseStatus"]["code"], &refused["responseStatus"]["reason"]),
        (&json!(403), &json!("Forbidden"))
    );
    let unknown = events(&text, |e| e["responseStatus"]["code"] == 401).remove(0);
    assert_eq!(unknown["responseStatus"]["message"], "Authentication failed, attempted: bearer");
    assert!(
        events(&text, |e| e["objectRef"]["resource"] == "pods" && e["verb"] == "list").is_empty(),
        "the policy wants nothing of lists of pods"
    );
    let stages: Vec<String> =
        events(&text, |e| e["verb"] == "watch").iter().map(|e| e["stage"].as_str().unwrap_or("").to_owned()).collect();
    assert_eq!(stages.first().map(String::as_str), Some("ResponseStarted"), "{stages:?}");
    let refused: Vec<(Value, Value)> = events(&text, |e| e["verb"] == "watch" && e["user"]["username"] == "alice")
        .iter()
        .map(|e| (e["stage"].clone(), e["responseStatus"]["code"].clone()))
        .collect();
    assert_eq!(
        refused,
        [(json!("ResponseStarted"), json!(403)), (json!("ResponseComplete"), json!(403))],
        "a refused watch begins as well"
    );
    let metrics = c.get("/metrics").await.text();
    assert!(metrics.contains(r#"apiserver_audit_level_total{level="RequestResponse"}"#), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_receives_batches_and_a_strict_log_refuses() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let remote = Remote::start(c.pki(), move |_, body| {
        let list: Value = serde_json::from_slice(body).unwrap_or_default();
        let _ = tell.send(list);
        (200, "{}".to_owned())
    })
    .await;
    let kubeconfig = remote.kubeconfig(c.dir(), "audit.conf", "/events");
    std::fs::write(c.dir().join("audit.yaml"), POLICY.replace("{level: None}", "{level: None, users: [nobody]}"))
        .expect("written");
    let policy = format!("--audit-policy-file={}", c.dir().join("audit.yaml").display());
    c.restart_with(vec![
        policy,
        format!("--audit-webhook-config-file={kubeconfig}"),
        "--audit-webhook-batch-max-wait=100ms".to_owned(),
    ])
    .await;
    c.get("/api/v1/namespaces/default/configmaps").await.ok();
    let found = async {
        while let Some(list) = told.recv().await {
            assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
            let items = list["items"].as_array().cloned().unwrap_or_default();
            if let Some(event) = items.into_iter().find(|e| {
                e["objectRef"]["resource"] == "configmaps" && e["verb"] == "list" && e["userAgent"] == "test/1"
            }) {
                return event;
            }
        }
        Value::Null
    };
    let event = tokio::time::timeout(std::time::Duration::from_secs(20), found).await.expect("in time");
    assert_eq!(event["responseObject"]["kind"], "ConfigMapList", "{event}");
}
