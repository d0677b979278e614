//! Authorisers other than the usual two, each seen through the server's own port, on yes and on no.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Cluster, Identity, Pki, Remote, etcd_is_missing, eventually, file};

/// A SubjectAccessReview webhook: alice may read pods, but none in `secret`, where she is turned away for good.
async fn reviewer(pki: &Pki) -> Remote {
    Remote::start(pki, |path, body| {
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        let spec = &review["spec"];
        let about = &spec["resourceAttributes"];
        let reads = matches!(about["verb"].as_str(), Some("get" | "list" | "watch")) && about["resource"] == "pods";
        let status = match (spec["user"].as_str(), about["namespace"].as_str()) {
            (Some("alice"), Some("secret")) => json!({"allowed": false, "denied": true, "reason": "not in there"}),
            (Some("alice"), _) if reads => json!({"allowed": true}),
            (Some("alice"), _) => json!({"allowed": false, "reason": "reading only"}),
            _ => json!({"allowed": false}),
        };
        let code = if path.starts_with("/broken") { 403 } else { 200 };
        (code, json!({"apiVersion": review["apiVersion"], "kind": "SubjectAccessReview", "status": status}).to_string())
    })
    .await
}

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_decides() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let remote = reviewer(c.pki()).await;
    let kubeconfig = remote.kubeconfig(c.dir(), "webhook.conf", "/authorize");
    c.restart_with(vec![
        "--authorization-mode=Webhook,RBAC".to_owned(),
        format!("--authorization-webhook-config-file={kubeconfig}"),
        "--authorization-webhook-version=v1".to_owned(),
    ])
    .await;
    let alice = c.client(Identity::Alice);
    alice.get(PODS).await.ok();
    alice.get("/api/v1/namespaces/default/secrets").await.fails(
        403,
        "Forbidden",
        r#"secrets is forbidden: User "alice" cannot list resource "secrets" in API group "" in the namespace "default": reading only"#,
    );
    alice.get("/api/v1/namespaces/secret/pods").await.fails(
        403,
        "Forbidden",
        r#"pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "secret": not in there"#,
    );
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "alice", "resourceAttributes": {"namespace": "secret", "verb": "list", "resource": "pods"}}});
    let answer = c.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review).await.ok();
    assert_eq!(answer["status"], json!({"allowed": false, "denied": true, "reason": "not in there"}));
    let metrics = c.get("/metrics").await.text();
    let line = r#"apiserver_authorization_decisions_total{decision="denied",name="webhook",type="Webhook"}"#;
    assert!(metrics.contains(line), "{metrics}");
    c.get(PODS).await.ok();
}

fn structured(dir: &Path, authorizers: &str) -> String {
    let file = dir.join("authorization.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n{authorizers}"
    );
    // As an administrator's tools do it: complete, and then in place.
    let draft = dir.join("authorization.draft");
    std::fs::write(&draft, text).expect("written");
    std::fs::rename(&draft, &file).expect("in place");
    file.display().to_string()
}

fn webhook(name: &str, kubeconfig: &str, policy: &str, condition: &str) -> String {
    format!(
        "- type: Webhook\n  name: {name}\n  webhook:\n    timeout: 3s\n    authorizedTTL: 1m\n    unauthorizedTTL: 1s\n    \
         subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: {policy}\n    \
         connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {kubeconfig}}}\n    matchConditions: [{{expression: \"{condition}\"}}]\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_file_names_the_chain_and_is_followed() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let remote = reviewer(c.pki()).await;
    let good = remote.kubeconfig(c.dir(), "good.conf", "/authorize");
    let broken = remote.kubeconfig(c.dir(), "broken.conf", "/broken");
    let rbac = "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n";
    let only_secret = "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'secret'";
    let file = structured(c.dir(), &format!("{}{rbac}", webhook("guard", &broken, "Deny", only_secret)));
    c.restart_with(vec!["--authorization-mode=".to_owned(), format!("--authorization-config={file}")]).await;
    let alice = c.client(Identity::Alice);
    // Not in the webhook's conditions: RBAC has no opinion, and nobody has.
    alice.get(PODS).await.fails(
        403,
        "Forbidden",
        r#"pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "default""#,
    );
    // In them, and the webhook fails: closed, and said so.
    let failed = alice.get("/api/v1/namespaces/secret/pods").await;
    assert_eq!(failed.code, 500, "{}", failed.text());
    assert!(
        failed.text().starts_with(r#"Internal Server Error: "/api/v1/namespaces/secret/pods": "#),
        "{}",
        failed.text()
    );

    structured(c.dir(), &format!("{}{rbac}", webhook("friend", &good, "NoOpinion", "request.user == 'alice'")));
    eventually("the new file is in force", async || (alice.get(PODS).await.code == 200).then_some(())).await;
    // A file that cannot be used changes nothing, and is counted.
    structured(c.dir(), "- {type: RBAC, name: rbac}\n");
    let failures = r#"apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash="sha256:"#;
    let of = |metrics: &str, status: &str| {
        metrics.lines().any(|l| l.starts_with(failures) && l.contains(&format!("status=\"{status}\"")))
    };
    let metrics = eventually("the bad file is counted", async || {
        Some(c.get("/metrics").await.text()).filter(|metrics| of(metrics, "failure"))
    })
    .await;
    assert!(of(&metrics, "success"));
    alice.get(PODS).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_file_decides() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|dir, _| {
        let line = r#"{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "alice", "namespace": "default", "resource": "pods", "readonly": true}}"#;
        let policy = format!("--authorization-policy-file={}", file(dir, "policy.jsonl", line));
        vec!["--authorization-mode=ABAC,RBAC".to_owned(), policy]
    })
    .await;
    let alice = c.client(Identity::Alice);
    alice.get(PODS).await.ok();
    alice.post(PODS, json!({"metadata": {"name": "x"}})).await.fails(
        403,
        "Forbidden",
        r#"pods is forbidden: User "alice" cannot create resource "pods" in API group "" in the namespace "default": No policy matched."#,
    );
    let rules = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "default"}});
    let refused = alice.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", rules).await;
    assert_eq!(refused.code, 201, "everybody may ask what he may do: {}", refused.text());
    let listed = refused.json();
    let pods = json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]});
    assert!(listed["status"]["resourceRules"].as_array().is_some_and(|r| r.contains(&pods)), "{listed}");
}
