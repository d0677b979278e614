//! A service mesh in small: a webhook puts a sidecar into pods of the namespaces that ask for it, and they run.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use e2e::testing::Cluster;
use testkit::pki::Pki;
use testkit::webhook::Webhook;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: app, namespace: meshed}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'mkdir /www; echo hello >/www/index.html; exec httpd -f -p 8080 -h /www']
"#;

/// A sidecar as it is today, beside one of the old kind.
fn patch(pod: &Value) -> Option<Value> {
    if pod["spec"]["containers"].as_array()?.len() > 1 {
        return None;
    }
    let run =
        |name: &str, script: &str| json!({"name": name, "image": "busybox:1.36", "command": ["sh", "-c", script]});
    let mut first = run("certs", "trap exit TERM; echo first; while true; do sleep 1; done");
    first["restartPolicy"] = json!("Always");
    let proxy = run("proxy", "trap exit TERM; echo proxied; while true; do sleep 1; done");
    Some(json!([
        {"op": "add", "path": "/spec/initContainers", "value": [first]},
        {"op": "add", "path": "/spec/containers/-", "value": proxy},
    ]))
}

fn review(request: &Value) -> Value {
    let Some(patch) = patch(&request["object"]) else { return json!({"allowed": true}) };
    json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()),
        "warnings": ["a sidecar was added"]})
}

fn configuration(webhook: &Webhook) -> String {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let hook = json!({"name": "sidecar.mesh.io", "clientConfig": webhook.config("/inject"), "rules": [rule],
        "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        "namespaceSelector": {"matchLabels": {"mesh": "yes"}}});
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mesh"}, "webhooks": [hook]})
    .to_string()
}

/// The sidecars run beside the pod's own container and reach it; without the webhook no pod of that namespace is made.
pub fn by_webhook(cluster: &Cluster) {
    // Nobody else installs one in this program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let certificates = Pki::new(&cluster.layout().root);
    let webhook = runtime.block_on(Webhook::start(&certificates, |_, request| Some(review(request))));
    cluster.namespace("meshed");
    cluster.kubectl("label namespace meshed mesh=yes");
    cluster.feed("create -f -", &configuration(&webhook));

    let made = cluster.try_kubectl(&["create", "-f", "-"], Some(POD));
    assert_eq!((made.ok, made.err.trim()), (true, "Warning: a sidecar was added"), "{}", made.out);
    cluster.kubectl("wait --for=condition=Ready pod/app -n meshed --timeout=60s");
    assert_eq!(cluster.kubectl("get pod app -n meshed -o jsonpath={.spec.containers[*].name}"), "main proxy");
    let line = cluster.kubectl("get pod app -n meshed --no-headers");
    assert_eq!(line.split_whitespace().nth(1), Some("3/3"), "{line}");
    assert_eq!(cluster.kubectl("logs app -n meshed -c certs"), "first\n");
    assert_eq!(cluster.kubectl("exec app -n meshed -c proxy -- wget -qO- http://localhost:8080/index.html"), "hello\n");
    let elsewhere = POD.replace("meshed", "default");
    let plain = cluster.feed("create -f - --dry-run=server -o jsonpath={.spec.containers[*].name}", &elsewhere);
    assert_eq!(plain, "main", "the namespace has not asked for it");

    drop(runtime);
    let refused = cluster.try_kubectl(&["create", "-f", "-"], Some(&POD.replace("name: app", "name: late")));
    let why = "Internal error occurred: failed calling webhook \"sidecar.mesh.io\"";
    assert!(!refused.ok && refused.err.contains(why), "{}", refused.err);
    cluster.kubectl("delete mutatingwebhookconfiguration mesh");
    cluster.kubectl("delete namespace meshed");
}
