//! Tests of authorization.

use serde_json::{Value, json};

use crate::harness::Identity;
use crate::{cluster, workspace};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces";

#[tokio::test(flavor = "multi_thread")]
async fn service_accounts_use_their_tokens() {
    let Some((c, ns)) = workspace("accounts").await else { return };
    let Some(server) = cluster().await else { return };
    let account = format!("{ns}/serviceaccounts/default");
    let request = |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    c.post(&format!("{account}/token"), request(json!({"expirationSeconds": 1}))).await.fails(
        422,
        "Invalid",
        r#"TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes"#,
    );
    let made = c.post(&format!("{account}/token"), request(json!({}))).await.ok();
    assert!(made["status"]["expirationTimestamp"].is_string(), "{made}");
    let token = made["status"]["token"].as_str().expect("a token").to_owned();
    let robot = server.client(Identity::Token(token.clone()));
    let pods = format!("{ns}/pods");
    robot.get(&pods).await.fails(
        403,
        "Forbidden",
        r#"pods is forbidden: User "system:serviceaccount:accounts:default" cannot list resource "pods" in API group "" in the namespace "accounts""#,
    );
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]});
    c.post(&format!("{RBAC}/accounts/roles"), json!({"metadata": {"name": "r"}, "rules": [rule]})).await.ok();
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"});
    let subject = json!({"kind": "ServiceAccount", "name": "default", "namespace": "accounts"});
    c.post(
        &format!("{RBAC}/accounts/rolebindings"),
        json!({"metadata": {"name": "r"}, "roleRef": role, "subjects": [subject]}),
    )
    .await
    .ok();
    robot.get(&pods).await.ok();
    assert_eq!(robot.get("/api/v1/namespaces/default/pods").await.code, 403, "in that namespace only");
    assert_eq!(robot.get(&format!("{pods}/x")).await.code, 403, "that verb only");

    let me = robot
        .post(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
        )
        .await
        .ok();
    assert_eq!(me["status"]["userInfo"]["username"], "system:serviceaccount:accounts:default");
    assert_eq!(
        me["status"]["userInfo"]["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:accounts", "system:authenticated"])
    );
    let review =
        |t: &str| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": t}});
    let good = c.post("/apis/authentication.k8s.io/v1/tokenreviews", review(&token)).await.ok();
    assert_eq!(
        (&good["status"]["authenticated"], &good["status"]["user"]["username"]),
        (&json!(true), &json!("system:serviceaccount:accounts:default"))
    );
    let bad = c.post("/apis/authentication.k8s.io/v1/tokenreviews", review("nope")).await.ok();
    assert!(
        bad["status"]["authenticated"] != json!(true) && bad["status"].get("user").is_none_or(|u| u == &json!({})),
        "{bad}"
    );
    let access = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"namespace": "accounts", "verb": "list", "resource": "pods"}}});
    assert_eq!(
        robot.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", access).await.ok()["status"]["allowed"],
        true
    );

    // Bound to a pod, it ends with the pod.
    let pod = c
        .post(&pods, json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .await
        .ok();
    let bound =
        json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}});
    let token = c.post(&format!("{account}/token"), request(bound)).await.ok()["status"]["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let robot = server.client(Identity::Token(token.clone()));
    robot.get(&pods).await.ok();
    c.delete(&format!("{pods}/p")).await.ok();
    robot.get(&pods).await.fails(401, "Unauthorized", "Unauthorized");
    let gone = c.post("/apis/authentication.k8s.io/v1/tokenreviews", review(&token)).await.ok();
    let why = gone["status"]["error"].as_str().unwrap_or_default();
    assert!(why.contains("invalid bearer token, service account token has been invalidated"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_name_the_request() {
    let Some(server) = cluster().await else { return };
    let (alice, anonymous, admin) =
        (server.client(Identity::Alice), server.client(Identity::Anonymous), server.client(Identity::Admin));
    let said = |user: &str, rest: &str| rest.replace("USER", &format!("User {user:?}"));
    for (path, message) in [
        (
            "/api/v1/namespaces/e/pods",
            r#"pods is forbidden: USER cannot list resource "pods" in API group "" in the namespace "e""#,
        ),
        ("/api/v1/pods", r#"pods is forbidden: USER cannot list resource "pods" in API group "" at the cluster scope"#),
        (
            "/api/v1/pods?watch=1",
            r#"pods is forbidden: USER cannot watch resource "pods" in API group "" at the cluster scope"#,
        ),
        (
            "/apis/apps/v1/namespaces/e/deployments/x",
            r#"deployments.apps "x" is forbidden: USER cannot get resource "deployments" in API group "apps" in the namespace "e""#,
        ),
        (
            "/api/v1/namespaces/e/pods/x/log",
            r#"pods "x" is forbidden: USER cannot get resource "pods/log" in API group "" in the namespace "e""#,
        ),
        (
            "/api/v1/nodes/n1",
            r#"nodes "n1" is forbidden: USER cannot get resource "nodes" in API group "" at the cluster scope"#,
        ),
        ("/metrics", r#"forbidden: USER cannot get path "/metrics""#),
    ] {
        alice.get(path).await.fails(403, "Forbidden", &said("alice", message));
        anonymous.get(path).await.fails(403, "Forbidden", &said("system:anonymous", message));
    }
    // What everybody may see.
    assert_eq!(alice.get("/api").await.code, 200);
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(anonymous.get(path).await.code, 200, "{path}");
    }
    let as_bob = [("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters")];
    let list = "/api/v1/namespaces/default/pods";
    assert_eq!(admin.call("GET", list, &as_bob, None).await.code, 200);
    admin.call("GET", list, &as_bob[..1], None).await.fails(
        403,
        "Forbidden",
        r#"pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default""#,
    );
    alice.call("GET", list, &as_bob[..1], None).await.fails(
        403,
        "Forbidden",
        r#"users "bob" is forbidden: User "alice" cannot impersonate resource "users" in API group "" at the cluster scope"#,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_keep_to_themselves() {
    let Some((c, ns)) = workspace("nodes").await else { return };
    let Some(server) = cluster().await else { return };
    let node = server.client(Identity::Node);
    node.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.ok();
    let other = node.post("/api/v1/nodes", json!({"metadata": {"name": "n2"}})).await;
    assert_eq!(other.code, 403, "{}", other.text());
    c.post("/api/v1/nodes", json!({"metadata": {"name": "n2"}})).await.ok();
    let label = |key: &str| json!({"metadata": {"labels": {key: "b"}}});
    node.patch("/api/v1/nodes/n2/status", "merge-patch+json", label("a")).await.fails(
        403,
        "Forbidden",
        r#"nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2""#,
    );
    node.patch("/api/v1/nodes/n1", "merge-patch+json", label("node-restriction.kubernetes.io/a")).await.fails(
        403,
        "Forbidden",
        r#"nodes "n1" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/a"#,
    );
    node.patch("/api/v1/nodes/n1/status", "merge-patch+json", json!({"status": {"phase": "Running"}})).await.ok();

    // Secrets of pods that are on it, and those only.
    for name in ["mine", "theirs"] {
        c.post(&format!("{ns}/secrets"), json!({"metadata": {"name": name}})).await.ok();
    }
    let denied = |name: &str| {
        format!(
            "secrets {name:?} is forbidden: User \"system:node:n1\" cannot get resource \"secrets\" in API group \"\" in the namespace \"nodes\": no relationship found between node 'n1' and this object"
        )
    };
    node.get(&format!("{ns}/secrets/mine")).await.fails(403, "Forbidden", &denied("mine"));
    let volumes = json!([{"name": "v", "secret": {"secretName": "mine"}}]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "volumes": volumes, "containers": [{"name": "c", "image": "i"}]}});
    c.post(&format!("{ns}/pods"), pod).await.ok();
    node.get(&format!("{ns}/secrets/mine")).await.ok();
    node.get(&format!("{ns}/secrets/theirs")).await.fails(403, "Forbidden", &denied("theirs"));
    assert_eq!(node.get(&format!("{ns}/secrets")).await.code, 403);
    // Its pods: seen, reported on, ended; nobody else's.
    let pods = node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.ok();
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "{pods}");
    assert_eq!(node.get("/api/v1/pods").await.code, 403);
    node.patch(&format!("{ns}/pods/p/status"), "merge-patch+json", json!({"status": {"phase": "Running"}})).await.ok();
    let pod =
        json!({"metadata": {"name": "q"}, "spec": {"nodeName": "n2", "containers": [{"name": "c", "image": "i"}]}});
    c.post(&format!("{ns}/pods"), pod).await.ok();
    assert_eq!(
        node.patch(&format!("{ns}/pods/q/status"), "merge-patch+json", json!({"status": {"phase": "Running"}}))
            .await
            .code,
        403
    );
    assert_eq!(node.delete(&format!("{ns}/pods/q")).await.code, 403);
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    assert_eq!(
        node.post(&format!("{ns}/serviceaccounts/default/token"), token).await.code,
        403,
        "not bound to a pod of its own"
    );
    node.delete_with(&format!("{ns}/pods/p"), json!({"gracePeriodSeconds": 0})).await.ok();
    // Seen a moment later: who may what follows the events.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while node.get(&format!("{ns}/secrets/mine")).await.code == 200 && std::time::Instant::now() < until {
        tokio::task::yield_now().await;
    }
    node.get(&format!("{ns}/secrets/mine")).await.fails(403, "Forbidden", &denied("mine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_are_about_the_impersonated_user() {
    let Some((c, _)) = workspace("impersonated").await else { return };
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let headers = [
        ("content-type", "application/json"),
        ("Impersonate-User", "mallory"),
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Group", "crew"),
        ("Impersonate-Extra-Scopes", "view"),
    ];
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let me = c.call("POST", path, &headers, Some(review.clone().into())).await.ok();
    assert_eq!(
        me["status"]["userInfo"],
        json!({"username": "mallory", "uid": "u-1", "groups": ["crew", "system:authenticated"], "extra": {"scopes": ["view"]}})
    );
    let nobody = [headers[0], headers[2]];
    assert!(c.call("POST", path, &nobody, Some(review.into())).await.code >= 400, "a uid alone is nobody");

    // A local review is about its own namespace and no other.
    let local = |namespace: &str, user: &str| {
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "LocalSubjectAccessReview",
        "metadata": {"namespace": "impersonated"}, "spec": {"user": user, "resourceAttributes": {"namespace": namespace, "verb": "list", "resource": "pods"}}})
    };
    let path = "/apis/authorization.k8s.io/v1/namespaces/impersonated/localsubjectaccessreviews";
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]});
    c.post(&format!("{RBAC}/impersonated/roles"), json!({"metadata": {"name": "r"}, "rules": [rule]})).await.ok();
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"});
    let bound = json!({"metadata": {"name": "r"}, "roleRef": role, "subjects": [subject]});
    c.post(&format!("{RBAC}/impersonated/rolebindings"), bound).await.ok();
    let allowed = async |user: &str| c.post(path, local("impersonated", user)).await.ok()["status"]["allowed"] == true;
    crate::harness::eventually("the role counts", async || allowed("mallory").await.then_some(())).await;
    assert!(!allowed("eve").await);
    let (code, reason, _) = c.post(path, local("default", "mallory")).await.failure();
    assert_eq!((code, reason.as_str()), (422, "Invalid"), "it may not ask about another namespace");
}
