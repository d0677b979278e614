//! MutatingAdmissionPolicies as clients meet them, on a server that was asked to serve them.

use serde_json::{Value, json};

use crate::harness::{Client, Cluster, Identity, etcd_is_missing, eventually};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1beta1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn start() -> Option<Cluster> {
    if etcd_is_missing() {
        return None;
    }
    let flags = [
        "--feature-gates=MutatingAdmissionPolicy=true",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true,admissionregistration.k8s.io/v1alpha1=true",
    ];
    Some(Cluster::start_with(|_, _| flags.map(str::to_owned).into()).await)
}

fn policy(name: &str, mutations: Value, more: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let mut object = json!({"apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [rule]}, "mutations": mutations, "reinvocationPolicy": "Never"}});
    if let (Some(own), Value::Object(more)) = (object["spec"].as_object_mut(), more) {
        own.extend(more);
    }
    object
}

fn binding(name: &str, more: Value) -> Value {
    let mut object = json!({"apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name}});
    if let (Some(own), Value::Object(more)) = (object["spec"].as_object_mut(), more) {
        own.extend(more);
    }
    object
}

fn merge(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

/// Puts a policy and its binding there and waits until a new config map shows that they count.
async fn bind(c: &Client, policy: Value, binding: Value, counts: impl Fn(u16, &Value) -> bool) {
    c.post(&format!("{GROUP}/mutatingadmissionpolicies"), policy).await.ok();
    c.post(&format!("{GROUP}/mutatingadmissionpolicybindings"), binding).await.ok();
    eventually("the policy counts", async || {
        let answer = c.post(&format!("{MAPS}?dryRun=All"), json!({"metadata": {"name": "probe"}})).await;
        counts(answer.code, &answer.json()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mutating_policies_change_objects_or_fail() {
    let Some(c) = start().await else { return };
    c.post(MAPS, json!({"metadata": {"name": "limits"}, "data": {"team": "blue"}})).await.ok();
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "team", "expression": "params.data.team"}],
        "matchConditions": [{"name": "c", "expression": "!object.metadata.name.startsWith('free')"}]});
    let mutations = json!([
        merge("Object{metadata: Object.metadata{labels: {'team': variables.team}}}"),
        {"patchType": "JSONPatch", "jsonPatch": {"expression":
            "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('example.com/by'), value: request.userInfo.username}]"}}
    ]);
    let param = json!({"paramRef": {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"}});
    bind(&c, policy("labels", mutations, spec), binding("labels", param), |_, o| {
        o["metadata"]["labels"]["team"] == "blue"
    })
    .await;
    let labels = json!({"team": "blue", "example.com/by": "admin"});
    let made = c.post(MAPS, json!({"metadata": {"name": "x"}, "data": {"a": "1"}})).await.ok();
    assert_eq!((&made["metadata"]["labels"], &made["data"]), (&labels, &json!({"a": "1"})));
    assert_eq!(c.get(&format!("{MAPS}/x")).await.ok()["metadata"]["labels"], labels, "and so it is stored");
    let free = c.post(MAPS, json!({"metadata": {"name": "free"}})).await.ok();
    assert_eq!(free["metadata"]["labels"], Value::Null);

    let strict = policy("strict", json!([merge("Object{data: {'n': string(object.data.n)}}")]), json!({}));
    bind(&c, strict, binding("strict", json!({})), |code, _| code == 403).await;
    let refused = c.post(MAPS, json!({"metadata": {"name": "y"}})).await;
    let why = "policy 'strict' with binding 'strict' denied request: expression 'Object{data: {'n': string(object.data.n)}}' resulted in error: no such key: data";
    refused.fails(403, "Invalid", why);
    assert_eq!(c.get(&format!("{MAPS}/y")).await.code, 404);
    c.post(MAPS, json!({"metadata": {"name": "y"}, "data": {"n": "1"}})).await.ok();
    let metrics = c.get("/metrics").await.text();
    assert!(metrics.contains("apiserver_mutating_admission_policy_check_total{error_type=\"invalid_error\",policy=\"strict\",policy_binding=\"strict\"}"), "no metric");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_are_served_with_runtime_config() {
    let Some(c) = start().await else { return };
    let alpha = GROUP.replace("v1beta1", "v1alpha1");
    c.post(&format!("{GROUP}/mutatingadmissionpolicies"), policy("p", json!([merge("Object{}")]), json!({})))
        .await
        .ok();
    let old = c.get(&format!("{alpha}/mutatingadmissionpolicies/p")).await.ok();
    assert_eq!(old["apiVersion"], "admissionregistration.k8s.io/v1alpha1");
    assert_eq!((&old["spec"]["failurePolicy"], &old["metadata"]["generation"]), (&json!("Fail"), &json!(1)));
    assert_eq!(old["spec"]["matchConstraints"]["resourceRules"][0]["scope"], "*", "defaults");
    let key = "/registry/mutatingadmissionpolicies/p";
    let (bytes, _) = c.stored(key).await.expect("it is stored");
    assert_eq!(&bytes[..4], b"k8s\0");
    assert!(bytes.windows(36).any(|w| w == b"admissionregistration.k8s.io/v1beta1"), "in the version upstream stores");
    let accept = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = c.call("GET", &format!("{GROUP}/mutatingadmissionpolicies"), &[accept], None).await.ok();
    assert_eq!(
        table["rows"][0]["cells"].as_array().map(|c| c[..3].to_vec()),
        Some(vec![json!("p"), json!(1), json!("<unset>")])
    );
    let group = c.get("/apis/admissionregistration.k8s.io").await.ok();
    let versions: Vec<_> = group["versions"].as_array().into_iter().flatten().map(|v| v["version"].clone()).collect();
    assert_eq!(versions, ["v1", "v1beta1", "v1alpha1"]);
    let resources = c.get(GROUP).await.ok();
    assert_eq!(resources["resources"][1]["storageVersionHash"], "90V5FRZZ3Zg=");
    let document = c.get("/openapi/v3/apis/admissionregistration.k8s.io/v1beta1").await.ok();
    assert!(document["components"]["schemas"]["io.k8s.api.admissionregistration.v1beta1.Mutation"].is_object());
    let index = c.get("/openapi/v3").await.ok();
    assert!(index["paths"]["apis/admissionregistration.k8s.io/v1alpha1"].is_object());
    let all = c.get("/openapi/v2").await.ok();
    for version in ["v1beta1", "v1alpha1"] {
        let definition = format!("io.k8s.api.admissionregistration.{version}.MutatingAdmissionPolicy");
        assert!(all["definitions"][&definition].is_object(), "{definition}");
        let path = format!("/apis/admissionregistration.k8s.io/{version}/mutatingadmissionpolicies");
        assert!(all["paths"][&path].is_object(), "{path}");
    }

    let Some(other) = crate::cluster().await else { return };
    assert_eq!(other.get(GROUP).await.code, 404, "elsewhere they are not");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_policies_are_refused() {
    let Some(c) = start().await else { return };
    let policies = format!("{GROUP}/mutatingadmissionpolicies");
    let fine = || json!([merge("Object{}")]);
    let rules = |operation: &str| json!({"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["pods"]}]}});
    for (mutations, more, why) in [
        (json!([]), json!({}), "spec.mutations: Required value: mutations must contain at least one item"),
        (
            fine(),
            json!({"reinvocationPolicy": "x"}),
            "spec.reinvocationPolicy: Unsupported value: \"x\": supported values: \"IfNeeded\", \"Never\"",
        ),
        (fine(), json!({"reinvocationPolicy": ""}), "spec.reinvocationPolicy: Required value"),
        (
            fine(),
            rules("DELETE"),
            "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"",
        ),
        (
            json!([{"patchType": "x"}]),
            json!({}),
            "spec.mutations[0].patchType: Unsupported value: \"x\": supported values: \"ApplyConfiguration\", \"JSONPatch\"",
        ),
        (
            json!([{"patchType": "JSONPatch"}]),
            json!({}),
            "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
        ),
        (json!([merge("  ")]), json!({}), "spec.mutations[0].applyConfiguration.expression: Required value"),
        (
            json!([merge("1")]),
            json!({}),
            "spec.mutations[0].applyConfiguration.expression: Invalid value: \"1\": must evaluate to Object but got int",
        ),
        (
            json!([merge("object.")]),
            json!({}),
            "spec.mutations[0].applyConfiguration.expression: Invalid value: \"object.\": compilation failed: ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'\n | object.\n | .......^",
        ),
    ] {
        let message = format!("MutatingAdmissionPolicy.admissionregistration.k8s.io \"bad\" is invalid: {why}");
        c.post(&policies, policy("bad", mutations, more)).await.fails(422, "Invalid", &message);
    }
    let both = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'test', path: '/kind'}]"}, "applyConfiguration": {"expression": "Object{}"}}]);
    c.post(&policies, policy("bad", both, json!({}))).await.fails(422, "Invalid", "MutatingAdmissionPolicy.admissionregistration.k8s.io \"bad\" is invalid: spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when patchType is JSONPatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_params_need_read_permission() {
    let Some(c) = start().await else { return };
    let rules = json!([{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    c.post(&format!("{RBAC}/clusterroles"), json!({"metadata": {"name": "author"}, "rules": rules})).await.ok();
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "author"});
    let bound = json!({"metadata": {"name": "author"}, "roleRef": role, "subjects": [subject]});
    c.post(&format!("{RBAC}/clusterrolebindings"), bound).await.ok();
    let author = c.client(Identity::Alice);
    let policies = format!("{GROUP}/mutatingadmissionpolicies");
    let of = |kind: &str| {
        policy(
            &kind.to_lowercase(),
            json!([merge("Object{}")]),
            json!({"paramKind": {"apiVersion": "v1", "kind": kind}}),
        )
    };
    eventually("the role counts", async || (author.post(&policies, of("ConfigMap")).await.code == 201).then_some(()))
        .await;
    let (code, reason, message) = author.post(&policies, of("Secret")).await.failure();
    assert_eq!((code, reason.as_str()), (422, "Invalid"));
    let who = "MutatingAdmissionPolicy.admissionregistration.k8s.io \"secret\" is invalid: spec.paramKind: Forbidden: user &{alice  [";
    let why = "must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)";
    assert!(message.starts_with(who) && message.ends_with(why), "{message}");
    c.post(&policies, of("Secret")).await.ok();
    let bindings = format!("{GROUP}/mutatingadmissionpolicybindings");
    let param = json!({"paramRef": {"name": "s", "namespace": "default", "parameterNotFoundAction": "Deny"}});
    // The policy counts once the cache has it.
    let allowed = async || author.post(&bindings, binding("configmap", param.clone())).await.code == 201;
    eventually("its writer may bind it", async || allowed().await.then_some(())).await;
    let (code, _, message) = eventually("the policy is known", async || {
        let answer = author.post(&format!("{bindings}?dryRun=All"), binding("secret", param.clone())).await;
        answer.text().contains("paramRef").then(|| answer.failure())
    })
    .await;
    let why = "does not have \"get\" permission on the object referenced by paramRef";
    assert!(
        code == 422 && message.contains("spec.paramRef: Forbidden: user &{alice ") && message.ends_with(why),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_a_policy_adds_to_a_role_are_rules_its_writer_must_hold() {
    let Some(c) = start().await else { return };
    let alice = c.client(Identity::Alice);
    let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    let writes = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"]}]);
    let roles = format!("{RBAC}/namespaces/default/roles");
    c.post(&roles, role("writer", writes)).await.ok();
    let bound = json!({"metadata": {"name": "writer"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role", "name": "writer"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    c.post(&format!("{RBAC}/namespaces/default/rolebindings"), bound).await.ok();
    eventually("alice may write roles", async || {
        (alice.post(&roles, role("empty", json!([]))).await.code == 201).then_some(())
    })
    .await;
    let rule = json!({"apiGroups": ["rbac.authorization.k8s.io"], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["roles"]});
    let adds = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression":
        "[JSONPatch{op: 'add', path: '/rules', value: [{'apiGroups': [''], 'resources': ['secrets'], 'verbs': ['get']}]}]"}}]);
    let adding = policy("adds", adds, json!({"matchConstraints": {"resourceRules": [rule]}}));
    c.post(&format!("{GROUP}/mutatingadmissionpolicies"), adding).await.ok();
    c.post(&format!("{GROUP}/mutatingadmissionpolicybindings"), binding("adds", json!({}))).await.ok();
    eventually("the policy counts", async || {
        let probe = c.post(&format!("{roles}?dryRun=All"), role("probe", json!([]))).await;
        (probe.json()["rules"][0]["resources"][0] == "secrets").then_some(())
    })
    .await;
    let refused = alice.post(&roles, role("larger", json!([]))).await;
    assert_eq!(refused.code, 403, "{}", refused.text());
    assert!(refused.text().contains("attempting to grant RBAC permissions not currently held"), "{}", refused.text());
}
