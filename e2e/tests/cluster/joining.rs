//! A node that came with a bootstrap token only: its certificates, and how they are renewed.

use serde_json::Value;

use e2e::testing::{Cluster, text};

/// The node that joined with a token.
const NODE: &str = "node-2";
const PAIR: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";

/// The decided requests of a user to a signer, with what was said at their approval.
fn approved(cluster: &Cluster, user: &str, signer: &str) -> Vec<String> {
    let list = cluster.json("get csr");
    let all = list["items"].as_array().cloned().unwrap_or_default().into_iter();
    let theirs = all.filter(|r| {
        text(r, "/spec/username").starts_with(user)
            && text(r, "/spec/signerName") == signer
            && !text(r, "/status/certificate").is_empty()
    });
    let words = |request: Value| {
        let conditions = request.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        conditions.iter().find(|c| c["type"] == "Approved").map(|c| text(c, "/message").to_owned())
    };
    theirs.filter_map(words).collect()
}

/// The token was exchanged for a client certificate that the controller manager approved and signed; the serving
/// certificate comes from the cluster too, and the API server verifies it.
pub fn by_token(cluster: &Cluster) {
    const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
    let why = "Auto approving kubelet client certificate after SubjectAccessReview.";
    assert_eq!(approved(cluster, "system:bootstrap:", CLIENT), [why]);
    let own = format!("system:node:{NODE}");
    assert_eq!(approved(cluster, &own, "kubernetes.io/kubelet-serving").len(), 1);
    let kubeconfig = cluster.on_node(NODE, &["cat", "/etc/kubernetes/kubelet.conf"]);
    assert!(kubeconfig.contains(PAIR) && !kubeconfig.contains("token"), "{kubeconfig}");
    let mode = cluster.on_node(NODE, &["stat", "--dereference", "--format=%a", PAIR]);
    assert_eq!(mode.trim(), "600", "its key is nobody else's");
    assert_eq!(cluster.kubectl(&format!("get --raw /api/v1/nodes/{NODE}/proxy/healthz")), "ok");

    // A pair that is about to end is renewed in the node's own name.
    let pem = e2e::pki::ending_client(&cluster.layout(), NODE).expect("a certificate");
    let file = cluster.layout().disk(NODE).join("var-lib-kubelet/pki/kubelet-client-ending.pem");
    std::fs::write(&file, pem).expect("written");
    cluster.on_node(NODE, &["ln", "-sfn", "/var/lib/kubelet/pki/kubelet-client-ending.pem", PAIR]);
    cluster.must(&["stop", NODE, "kubelet"]);
    cluster.must(&["start", NODE, "kubelet"]);
    cluster.until("the client certificate is renewed", 60, || {
        let now = cluster.on_node(NODE, &["readlink", PAIR]);
        if now.trim().ends_with("ending.pem") { Err(now) } else { Ok(()) }
    });
    let why = "Auto approving self kubelet client certificate after SubjectAccessReview.";
    assert_eq!(approved(cluster, &own, CLIENT), [why]);
    cluster.kubectl(&format!("wait --for=condition=Ready node/{NODE} --timeout=60s"));
}
