//! An admission webhook that is a pod of a tenant's node, behind a Service: the tenant's API servers call it through the
//! tunnel and reach it in no other way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e::image;
use e2e::testing::{Cluster, Said};
use serde_json::json;
use testkit::pki::Pki;

use crate::joining::Joined;
use crate::tenant::Tenant;

const IMAGE: &str = "webhook:1";
/// Times that an object is made: each comes to either of the two API servers.
const TRIES: usize = 8;

/// Runs the webhook on the node, which still lets everybody in, and has it asked about objects that say so.
pub fn is_installed(cluster: &Cluster, tenant: &Tenant, node: &Joined) {
    let program = cluster.example("webhook");
    let folder = cluster.layout().root.join("images");
    let archive = image::program(&folder, "webhook", program.as_ref(), IMAGE).expect("an image");
    node.load(&archive);
    let certificates = Pki::new(&cluster.layout().root);
    for manifest in [pod(&certificates), configuration(&certificates)] {
        let said = tenant.fed(&["apply", "-f", "-"], Some(&manifest));
        assert!(said.ok, "{}", said.err);
    }
    tenant.kubectl("wait pod/webhook --for=condition=Ready --timeout=60s");
}

/// No API server reaches the node's pods: what the webhook has to be asked about is refused.
pub fn is_missed(cluster: &Cluster, tenant: &Tenant) {
    cluster.until("the webhook is out of reach", 60, || {
        let said = create(tenant, "unseen");
        let why = "failed calling webhook \"webhook.default.svc\"";
        if !said.ok && said.err.contains(why) { Ok(()) } else { Err(said.out + &said.err) }
    });
}

/// Whichever API server is asked, the webhook changes and refuses objects.
pub fn is_called(cluster: &Cluster, tenant: &Tenant) {
    cluster.until("the webhook is called through the tunnel", 60, || {
        for _ in 0..TRIES {
            let said = create(tenant, "seen");
            if said.out != "by-a-pod" {
                return Err(said.out + &said.err);
            }
            let refused = create(tenant, "refused");
            if !refused.err.contains("admission webhook \"webhook.default.svc\" denied the request: its name") {
                return Err(refused.out + &refused.err);
            }
        }
        Ok(())
    });
    tenant.kubectl("delete mutatingwebhookconfiguration webhook");
}

/// Asks for a ConfigMap of this name and makes none.
fn create(tenant: &Tenant, name: &str) -> Said {
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"reviewed": "yes"}}});
    let output = "-o=jsonpath={.metadata.labels.seen}";
    tenant.fed(&["create", "-f", "-", "--dry-run=server", output], Some(&map.to_string()))
}

/// The pod with its Secret and its Service.
fn pod(certificates: &Pki) -> String {
    let (certificate, key) = &certificates.server;
    let metadata = json!({"name": "webhook", "labels": {"app": "webhook"}});
    let items = json!([
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": certificate, "tls.key": key}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"selector": {"app": "webhook"}, "ports": [{"port": 443, "targetPort": 8443}]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "webhook", "image": IMAGE, "command": ["webhook"],
                "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
                "volumeMounts": [{"name": "tls", "mountPath": "/tls"}]}],
            "volumes": [{"name": "tls", "secret": {"secretName": "webhook"}}]}},
    ]);
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn configuration(certificates: &Pki) -> String {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let client =
        json!({"service": {"namespace": "default", "name": "webhook"}, "caBundle": STANDARD.encode(&certificates.ca)});
    let hook = json!({"name": "webhook.default.svc", "clientConfig": client, "rules": [rule], "failurePolicy": "Fail",
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        "objectSelector": {"matchLabels": {"reviewed": "yes"}}});
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "webhook"}, "webhooks": [hook]})
    .to_string()
}
