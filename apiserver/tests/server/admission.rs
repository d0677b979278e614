//! Tests of admission plugins and webhooks.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::harness::Webhook;
use crate::{cluster, workspace};

fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_filled_in_and_kept() {
    let Some((c, ns)) = workspace("limited").await else { return };
    let pods = format!("{ns}/pods");
    let limit = json!({"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "100m"}, "default": {"cpu": "500m", "memory": "64Mi"}, "defaultRequest": {"cpu": "200m"}});
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [limit]}});
    let made = c.post(&format!("{ns}/limitranges"), range).await.ok();
    // Plugins know what the cache has seen.
    let version = made["metadata"]["resourceVersion"].as_str().expect("a version");
    c.get(&format!("{ns}/limitranges?resourceVersion={version}")).await.ok();
    let p = c.post(&pods, pod("p", json!({}))).await.ok();
    let resources = json!({"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "200m", "memory": "64Mi"}});
    assert_eq!(p["spec"]["containers"][0]["resources"], resources);
    assert_eq!(
        p["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu, memory request for container c; cpu, memory limit for container c"
    );
    assert_eq!(p["status"]["qosClass"], "Burstable");
    c.post(&pods, pod("q", json!({"limits": {"cpu": "2"}}))).await.fails(
        403,
        "Forbidden",
        r#"pods "q" is forbidden: maximum cpu usage per Container is 1, but limit is 2"#,
    );
    c.post(&pods, pod("q", json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1m"}}))).await.fails(
        403,
        "Forbidden",
        r#"pods "q" is forbidden: minimum cpu usage per Container is 100m, but request is 1m"#,
    );
    c.get(&format!("{pods}/q")).await.fails(404, "NotFound", r#"pods "q" not found"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_not_exceeded() {
    let Some((c, ns)) = workspace("quota").await else { return };
    let hard = json!({"pods": "3", "requests.cpu": "1", "count/secrets": "2"});
    c.post(&format!("{ns}/resourcequotas"), json!({"metadata": {"name": "rq"}, "spec": {"hard": hard}})).await.ok();
    let used = json!({"pods": "0", "requests.cpu": "0", "count/secrets": "0"});
    let status = json!({"status": {"hard": hard, "used": used}});
    c.patch(&format!("{ns}/resourcequotas/rq/status"), "merge-patch+json", status).await.ok();
    let pods = format!("{ns}/pods");
    c.post(&pods, pod("x", json!({}))).await.fails(
        403,
        "Forbidden",
        r#"pods "x" is forbidden: failed quota: rq: must specify requests.cpu for: c"#,
    );
    c.post(&pods, pod("a", json!({"requests": {"cpu": "600m"}}))).await.ok();
    c.post(&pods, pod("x", json!({"requests": {"cpu": "600m"}}))).await.fails(
        403,
        "Forbidden",
        r#"pods "x" is forbidden: exceeded quota: rq, requested: requests.cpu=600m, used: requests.cpu=600m, limited: requests.cpu=1"#,
    );
    // A dry run counts, and is not counted.
    c.post(&format!("{ns}/secrets?dryRun=All"), json!({"metadata": {"name": "dry"}})).await.ok();
    // Many at once get no more than there is.
    let secrets = format!("{ns}/secrets");
    let made =
        futures::future::join_all((0..8).map(|i| c.post(&secrets, json!({"metadata": {"name": format!("s{i}")}}))))
            .await;
    let codes: Vec<u16> = made.iter().map(|a| a.code).collect();
    assert_eq!(codes.iter().filter(|c| **c == 201).count(), 2, "{codes:?}");
    for refused in made.iter().filter(|a| a.code != 201) {
        let (code, reason, message) = refused.failure();
        assert_eq!((code, reason.as_str()), (403, "Forbidden"));
        assert!(
            message.ends_with(
                "exceeded quota: rq, requested: count/secrets=1, used: count/secrets=2, limited: count/secrets=2"
            ),
            "{message}"
        );
    }
    let now = c.get(&format!("{ns}/resourcequotas/rq")).await.ok();
    assert_eq!(now["status"]["used"], json!({"pods": "1", "requests.cpu": "600m", "count/secrets": "2"}));
    assert_eq!(c.get(&secrets).await.ok()["items"].as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_services_release_their_addresses() {
    let Some((c, ns)) = workspace("refused").await else { return };
    let hard = json!({"services": "0"});
    c.post(&format!("{ns}/resourcequotas"), json!({"metadata": {"name": "none"}, "spec": {"hard": hard}})).await.ok();
    let status = json!({"status": {"hard": hard, "used": {"services": "0"}}});
    c.patch(&format!("{ns}/resourcequotas/none/status"), "merge-patch+json", status).await.ok();
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "clusterIP": "10.97.7.7", "ports": [{"port": 80, "nodePort": 31777}]}});
    c.post(&format!("{ns}/services"), service.clone()).await.fails(
        403,
        "Forbidden",
        r#"services "s" is forbidden: exceeded quota: none, requested: services=1, used: services=0, limited: services=0"#,
    );
    c.delete(&format!("{ns}/resourcequotas/none")).await.ok();
    c.post(&format!("{ns}/services"), service).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_security_is_enforced() {
    let Some((c, ns)) = workspace("secured").await else { return };
    let labels =
        json!({"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"});
    c.patch(&ns, "merge-patch+json", json!({"metadata": {"labels": labels}})).await.ok();
    let what = r#"violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#;
    c.post(&format!("{ns}/pods"), pod("x", json!({}))).await.fails(
        403,
        "Forbidden",
        &format!("pods \"x\" is forbidden: {what}"),
    );
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod("x", json!({}))["spec"]});
    let deployment =
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let warned = c.post("/apis/apps/v1/namespaces/secured/deployments", deployment).await;
    warned.ok();
    assert_eq!(
        warned.warnings(),
        [format!("299 - \"would {}\"", what.replacen("violates", "violate", 1).replace('"', "\\\""))]
    );
    let metrics = c.get("/metrics").await.text();
    let counted = |decision: &str, mode: &str, resource: &str| {
        let labels = format!(
            "decision=\"{decision}\",mode=\"{mode}\",policy_level=\"restricted\",policy_version=\"latest\",request_operation=\"create\",resource=\"{resource}\",subresource=\"\""
        );
        metrics.contains(&format!("\npod_security_evaluations_total{{{labels}}} "))
    };
    assert!(counted("deny", "enforce", "pod") && counted("deny", "warn", "controller"));
    let mut good = pod("good", json!({}));
    good["spec"]["containers"][0]["securityContext"] = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
    });
    c.post(&format!("{ns}/pods"), good).await.ok();
}

fn hook(name: &str, config: Value, policy: &str, namespace: &str) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE", "DELETE"], "resources": ["configmaps"]});
    json!({
        "name": name, "clientConfig": config, "rules": [rule], "failurePolicy": policy, "timeoutSeconds": 1, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_called() {
    let Some((c, ns)) = workspace("hooked").await else { return };
    let Some(server) = cluster().await else { return };
    let webhook = Webhook::start(server.pki(), |path, request| {
        Some(match path {
            "/mutate" => {
                let patch = json!([{"op": "add", "path": "/data", "value": {"by": request["userInfo"]["username"], "operation": request["operation"]}}]);
                let patch = base64::engine::general_purpose::STANDARD.encode(patch.to_string());
                match request["operation"].as_str() {
                    Some("DELETE") => json!({"allowed": true}),
                    _ => json!({"allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": ["mind the gap"]}),
                }
            }
            "/judge" if request["name"] == "bad" => json!({"allowed": false, "status": {"message": "it is bad", "code": 418}}),
            "/judge" if request["operation"] == "DELETE" && request["oldObject"]["metadata"]["labels"]["keep"] == "true" => json!({"allowed": false}),
            // What mutation made of it is what is judged.
            "/judge" if request["operation"] == "CREATE" && request["object"]["data"]["by"] != "admin" => json!({"allowed": false, "status": {"message": "not mutated"}}),
            "/judge" => json!({"allowed": true}),
            _ => return None,
        })
    })
    .await;
    let path = "/apis/admissionregistration.k8s.io/v1";
    let configuration = |name: &str, hooks: Value| json!({"metadata": {"name": name}, "webhooks": hooks});
    let mutating =
        configuration("hooked", json!([hook("mutate.test.io", webhook.config("/mutate"), "Fail", "hooked")]));
    c.post(&format!("{path}/mutatingwebhookconfigurations"), mutating).await.ok();
    let judging = configuration("hooked", json!([hook("judge.test.io", webhook.config("/judge"), "Fail", "hooked")]));
    c.post(&format!("{path}/validatingwebhookconfigurations"), judging).await.ok();

    let maps = format!("{ns}/configmaps");
    let made = c.post(&maps, json!({"metadata": {"name": "a", "labels": {"keep": "true"}}})).await;
    assert_eq!(made.ok()["data"], json!({"by": "admin", "operation": "CREATE"}));
    assert_eq!(made.warnings(), [r#"299 - "mind the gap""#]);
    let changed = c.patch(&format!("{maps}/a"), "merge-patch+json", json!({"data": null})).await.ok();
    assert_eq!(changed["data"], json!({"by": "admin", "operation": "UPDATE"}));
    let bad = c.post(&maps, json!({"metadata": {"name": "bad"}})).await;
    assert_eq!(
        (bad.code, bad.failure().2.as_str()),
        (418, r#"admission webhook "judge.test.io" denied the request: it is bad"#)
    );
    let kept = c.delete(&format!("{maps}/a")).await;
    assert_eq!(
        (kept.code, kept.failure().2.as_str()),
        (400, r#"admission webhook "judge.test.io" denied the request without explanation"#)
    );
    assert_eq!(c.get(&format!("{maps}/bad")).await.code, 404);
    // Elsewhere it is not asked.
    c.post("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "bad"}})).await.ok();
    c.delete("/api/v1/namespaces/default/configmaps/bad").await.ok();

    // One that answers nonsense, and one that does not answer.
    let set = async |config: Value, policy: &str| {
        let body = configuration("hooked", json!([hook("judge.test.io", config, policy, "hooked")]));
        c.patch(&format!("{path}/validatingwebhookconfigurations/hooked"), "merge-patch+json", body).await.ok();
    };
    set(webhook.config("/nonsense"), "Fail").await;
    let failed = c.post(&maps, json!({"metadata": {"name": "f"}})).await;
    let (code, reason, message) = failed.failure();
    assert_eq!((code, reason.as_str()), (500, "InternalError"), "{message}");
    assert!(message.starts_with(r#"Internal error occurred: failed calling webhook "judge.test.io": "#), "{message}");
    set(json!({"url": "https://127.0.0.1:1/x"}), "Fail").await;
    c.post(&maps, json!({"metadata": {"name": "f"}})).await.fails(
        500,
        "InternalError",
        r#"Internal error occurred: failed calling webhook "judge.test.io": failed to call webhook: Post "https://127.0.0.1:1/x?timeout=1s": dial tcp 127.0.0.1:1: connect: connection refused"#,
    );
    assert_eq!(c.get(&format!("{maps}/f")).await.code, 404);
    set(json!({"url": "https://127.0.0.1:1/x"}), "Ignore").await;
    c.post(&maps, json!({"metadata": {"name": "f"}})).await.ok();
    // A certificate that the bundle does not vouch for.
    set(json!({"url": format!("https://127.0.0.1:{}/judge", webhook.port())}), "Fail").await;
    assert_eq!(c.post(&maps, json!({"metadata": {"name": "g"}})).await.code, 500);
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        c.delete(&format!("{path}/{kind}/hooked")).await.ok();
    }
}
/// A sidecar is injected, what was injected is defaulted and admitted like the rest, and a webhook that came before is
/// asked again.
#[tokio::test(flavor = "multi_thread")]
async fn sidecars_are_injected() {
    let Some((c, ns)) = workspace("meshed").await else { return };
    let Some(server) = cluster().await else { return };
    let webhook = Webhook::start(server.pki(), |path, request| {
        let encode = |patch: Value| base64::engine::general_purpose::STANDARD.encode(patch.to_string());
        let containers = request["object"]["spec"]["containers"].as_array().map_or(0, Vec::len);
        Some(match path {
            // Counts what it sees, so that it shows how often and when it was asked.
            "/count" => {
                let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"seen": containers.to_string()}}]);
                json!({"allowed": true, "patchType": "JSONPatch", "patch": encode(patch), "auditAnnotations": {"seen": "yes"}})
            }
            "/inject" if containers == 1 => {
                let sidecar = json!({"name": "proxy", "image": "proxy"});
                let patch = json!([{"op": "add", "path": "/spec/containers/-", "value": sidecar}]);
                json!({"allowed": true, "patchType": "JSONPatch", "patch": encode(patch)})
            }
            _ => json!({"allowed": true}),
        })
    })
    .await;
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let pods = |name: &str, config: Value, policy: &str| {
        let mut hook = hook(name, config, "Fail", "meshed");
        hook["rules"][0]["resources"] = json!(["pods"]);
        hook["rules"][0]["operations"] = json!(["CREATE"]);
        hook["reinvocationPolicy"] = json!(policy);
        hook["matchConditions"] = json!([{"name": "wanted", "expression": "!has(object.metadata.labels) || !('inject' in object.metadata.labels)"}]);
        hook
    };
    let hooks = json!([
        pods("a.mesh.io", webhook.config("/count"), "IfNeeded"),
        pods("b.mesh.io", webhook.config("/inject"), "Never")
    ]);
    c.post(path, json!({"metadata": {"name": "mesh"}, "webhooks": hooks})).await.ok();
    let made = c.post(&format!("{ns}/pods"), pod("p", json!({}))).await.ok();
    let containers = made["spec"]["containers"].as_array().expect("containers");
    assert_eq!(containers.len(), 2);
    assert_eq!(made["metadata"]["annotations"]["seen"], "2", "it was asked again after the injection");
    assert_eq!(containers[1]["imagePullPolicy"], "Always", "defaults");
    assert_eq!(
        containers[1]["volumeMounts"][0]["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount",
        "the service account's plugin saw it in the second round"
    );
    c.delete(&format!("{path}/mesh")).await.ok();
    let metrics = c.get("/metrics").await.text();
    for line in [
        "apiserver_admission_webhook_request_total{code=\"200\",name=\"b.mesh.io\",operation=\"CREATE\",rejected=\"false\",type=\"admit\"} ",
        "apiserver_admission_controller_admission_duration_seconds_count{name=\"LimitRanger\",operation=\"CREATE\",rejected=\"false\",type=\"validate\"} ",
        "apiserver_admission_step_admission_duration_seconds_count{operation=\"CREATE\",rejected=\"false\",type=\"admit\"} ",
    ] {
        assert!(metrics.contains(&format!("\n{line}")), "{line}");
    }
}
