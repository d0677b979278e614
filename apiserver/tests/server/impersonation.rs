//! Impersonation that is constrained to some requests.

use serde_json::{Value, json};

use crate::harness::{Answer, Client, Cluster, Identity, audited, etcd_is_missing, eventually};

const GATE: &str = "--feature-gates=ConstrainedImpersonation=true";
const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata, users: [alice]}\n- {level: None}\n";
const RBAC: &str = "rbac.authorization.k8s.io";

async fn grant(c: &Cluster, name: &str, user: &str, rules: Value) {
    let base = format!("/apis/{RBAC}/v1");
    c.post(&format!("{base}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules})).await.ok();
    let binding = json!({"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": name, "apiGroup": RBAC},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}]});
    c.post(&format!("{base}/clusterrolebindings"), binding).await.ok();
}

async fn as_user(client: &Client, user: &str, path: &str) -> Answer {
    client.call("GET", path, &[("Impersonate-User", user)], None).await
}

#[tokio::test(flavor = "multi_thread")]
async fn constrained_impersonation_is_limited_by_action() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|dir, _| {
        let gate = std::iter::once(GATE.to_owned());
        gate.chain(audited(dir, POLICY)).collect()
    })
    .await;
    let (pods, services) = ("/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/services");
    let alice = c.client(Identity::Alice);
    grant(&c, "bob", "bob", json!([{"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["list"]}])).await;
    let who = json!({"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "resourceNames": ["bob"],
        "verbs": ["impersonate:user-info"]});
    let what = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["impersonate-on:user-info:list"]});
    grant(&c, "acts-as-bob", "alice", json!([who, what])).await;
    eventually("alice lists pods as bob", async || (as_user(&alice, "bob", pods).await.code == 200).then_some(()))
        .await;
    as_user(&alice, "bob", services).await.fails(
        403,
        "Forbidden",
        "services is forbidden: User \"alice\" cannot impersonate-on:user-info:list resource \"services\" in API group \"\" in the namespace \"default\"",
    );
    as_user(&alice, "eve", pods).await.fails(
        403,
        "Forbidden",
        "users.authentication.k8s.io \"eve\" is forbidden: User \"alice\" cannot impersonate:user-info resource \"users\" in API group \"authentication.k8s.io\" at the cluster scope",
    );
    // The administrator may do it as ever; parts need a user.
    as_user(&c, "bob", services).await.ok();
    c.call("GET", pods, &[("Impersonate-Group", "g")], None).await.fails(
        400,
        "BadRequest",
        "requested &user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"g\"}, Extra:map[string][]string(nil)} without impersonating a user name",
    );
    // A node is impersonated with its group.
    let node = json!({"apiGroups": ["authentication.k8s.io"], "resources": ["nodes"], "resourceNames": ["n1"],
        "verbs": ["impersonate:arbitrary-node"]});
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let reviews = json!({"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"],
        "verbs": ["impersonate-on:arbitrary-node:create"]});
    grant(&c, "acts-as-node", "alice", json!([node, reviews])).await;
    let headers = [("Impersonate-User", "system:node:n1"), ("Content-Type", "application/json")];
    let body = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}).to_string();
    let reviewed = eventually("alice acts as a node", async || {
        let answer = alice.call("POST", review, &headers, Some(body.clone().into())).await;
        (answer.code == 201).then(|| answer.json())
    });
    let user = &reviewed.await["status"]["userInfo"];
    assert_eq!(user["groups"], json!(["system:nodes", "system:authenticated"]), "{user}");

    let log = std::fs::read_to_string(c.dir().join("audit.log")).expect("a log");
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let constraints: Vec<Value> =
        events.map(|e| e["authenticationMetadata"]["impersonationConstraint"].clone()).collect();
    for constraint in ["impersonate:user-info", "impersonate:arbitrary-node"] {
        assert!(constraints.contains(&json!(constraint)), "{constraint}: {constraints:?}");
    }
}
