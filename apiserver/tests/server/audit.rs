//! Tests of audit.

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
- {level: Request, resources: [{group: "", resources: [services]}]}
- {level: RequestResponse, nonResourceURLs: ["/apis/apps"]}
- {level: Metadata, verbs: [create], namespaces: [guarded], resources: [{group: "", resources: [pods]}]}
- {level: Metadata, users: ["alice", "system:anonymous", ""]}
- {level: None}
"#;

fn events(text: &str, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    text.lines().filter_map(|l| serde_json::from_str(l).ok()).filter(wanted).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_log_follows_the_policy() {
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
    assert_eq!(unknown["responseStatus"]["message"], "Unauthorized");
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

/// The log has what the server made of a request, and nothing of what it could not read.
#[tokio::test(flavor = "multi_thread")]
async fn audit_log_has_decoded_content() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|dir, _| {
        std::fs::write(dir.join("audit.yaml"), POLICY).expect("written");
        let file = |name: &str| dir.join(name).display().to_string();
        vec![format!("--audit-policy-file={}", file("audit.yaml")), format!("--audit-log-path={}", file("audit.log"))]
    })
    .await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let call = async |method: &str, path: &str, id: &str, accept: &str, body: Value| {
        let headers = [("Content-Type", "application/json"), ("Audit-ID", id), ("Accept", accept)];
        c.call(method, path, &headers, (!body.is_null()).then(|| body.to_string().into())).await.code
    };
    let plain = "application/json";
    let port = json!({"metadata": {"name": "s"}, "nonsense": 1, "spec": {"ports": [{"port": 80}]}});
    call("POST", "/api/v1/namespaces/default/services", "service", plain, port).await;
    let named = json!({"metadata": {"name": "c"}});
    call("POST", maps, "made", plain, named.clone()).await;
    let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "d"}});
    assert_eq!(call("POST", maps, "unread", plain, other).await, 400);
    assert_eq!(call("GET", &format!("{maps}/c"), "unsaid", "text/plain", Value::Null).await, 406);
    assert_eq!(call("GET", &format!("{maps}?timeout=soon"), "untimely", plain, Value::Null).await, 400);
    assert_eq!(call("PATCH", &format!("{maps}/c?dryRun=some"), "options", plain, json!({})).await, 415);
    assert_eq!(call("DELETE", &format!("{maps}/c"), "deleted", plain, json!({"gracePeriodSeconds": 0})).await, 200);
    assert_eq!(call("GET", "/apis/apps", "group", plain, Value::Null).await, 200);

    let text = std::fs::read_to_string(c.dir().join("audit.log")).expect("a log");
    let of = |id: &str| events(&text, |e| e["auditID"] == id).remove(0);
    let service = &of("service")["requestObject"];
    assert_eq!(
        (&service["kind"], &service["spec"]["type"], &service["spec"]["ports"][0]["protocol"]),
        (&json!("Service"), &json!("ClusterIP"), &json!("TCP")),
        "defaults are there: {service}"
    );
    assert!(service.get("nonsense").is_none(), "{service}");
    assert_eq!(
        of("made")["requestObject"],
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    );
    let unread = of("unread");
    assert!(unread.get("requestObject").is_none() && unread["objectRef"].get("name").is_none(), "{unread}");
    let unsaid = of("unsaid");
    assert_eq!(unsaid["responseStatus"], json!({"metadata": {}, "code": 406}));
    let untimely = of("untimely");
    assert_eq!((&untimely["stage"], &untimely["user"]), (&json!("ResponseStarted"), &json!({})), "nobody was asked");
    assert!(of("options").get("requestObject").is_none());
    let deleted = of("deleted");
    assert_eq!(
        deleted["requestObject"],
        json!({"apiVersion": "meta.k8s.io/__internal", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
    );
    let status = &deleted["responseStatus"];
    assert_eq!(
        (&status["status"], &status["code"], &status["details"]["name"]),
        (&json!("Success"), &json!(200), &json!("c")),
        "{status}"
    );
    assert_eq!(of("group")["responseObject"]["kind"], "APIGroup");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_receives_batches_and_a_strict_log_refuses() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let remote = Remote::start(c.pki(), move |_, body| {
        // Any failure may pass, also one that says that the client is wrong.
        if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            return (400, "{}".to_owned());
        }
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
        "--audit-webhook-batch-throttle-qps=1000".to_owned(),
        "--audit-webhook-initial-backoff=10ms".to_owned(),
    ])
    .await;
    c.get("/api/v1/namespaces/default/configmaps").await.ok();
    let found = async {
        while let Some(list) = told.recv().await {
            assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
            assert!(list["items"][0].get("kind").is_none(), "items do not say again what they are: {list}");
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
