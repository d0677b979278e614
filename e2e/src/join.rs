//! Joining of a node that has no certificate: its kubelet shows a bootstrap token and requests one, as after `kubeadm
//! join`. The client certificate is approved by the controller manager, the serving certificate by the operator, which
//! is here.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::layout::{Layout, Node};
use crate::shell::{READY_LIMIT, kubectl};
use crate::supervisor::log_file;
use crate::{pki, shell};

/// Lets nodes in that show the token: the token itself, and who may ask for certificates and has them approved.
///
/// # Errors
/// When the API server refuses it.
pub fn allow(layout: &Layout) -> Result<()> {
    let token = pki::bootstrap_token(layout)?;
    let (id, secret) = token.split_once('.').context("a bootstrap token has two parts")?;
    let certificates = "system:certificates.k8s.io:certificatesigningrequests";
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
            "stringData": {"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true"}},
        binding("kubelet-bootstrap", "system:node-bootstrapper", "system:bootstrappers"),
        binding("node-autoapprove-bootstrap", &format!("{certificates}:nodeclient"), "system:bootstrappers"),
        binding("node-autoapprove-certificate-rotation", &format!("{certificates}:selfnodeclient"), "system:nodes"),
    ]});
    let file = layout.root.join("bootstrap.json");
    // The token in it lets anybody join.
    ::pki::files::write(&file, &list.to_string(), ::pki::files::SECRET)?;
    kubectl(layout, &["apply", "-f", &file.display().to_string()]).map(drop)
}

fn binding(name: &str, role: &str, group: &str) -> Value {
    let rbac = "rbac.authorization.k8s.io";
    json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": rbac, "kind": "Group", "name": group}]})
}

/// Approves the node's serving certificate and waits until the kubelet has it.
///
/// # Errors
/// When it does not come.
pub fn approve_serving(layout: &Layout, node: &Node) -> Result<()> {
    let issued = layout.disk(&node.name).join("var-lib-kubelet/pki/kubelet-server-current.pem");
    let log = log_file(&layout.machine(&node.name), "kubelet");
    shell::wait_for(&format!("{} got no serving certificate", node.name), READY_LIMIT, &log, || {
        // The link leads to a path of the node's own.
        if fs::symlink_metadata(&issued).is_ok() {
            return true;
        }
        for request in waiting(layout, node) {
            kubectl(layout, &["certificate", "approve", &request]).ok();
        }
        false
    })
}

/// The node's requests for a serving certificate that nobody has decided about.
fn waiting(layout: &Layout, node: &Node) -> Vec<String> {
    let listed = kubectl(layout, &["get", "csr", "-o", "json"]).unwrap_or_default();
    let list: Value = serde_json::from_str(&listed).unwrap_or_default();
    let user = format!("system:node:{}", node.name);
    let items = list["items"].as_array().cloned().unwrap_or_default().into_iter();
    items
        .filter(|r| r["spec"]["signerName"] == "kubernetes.io/kubelet-serving" && r["spec"]["username"] == *user)
        .filter(|r| r["status"]["conditions"].as_array().is_none_or(Vec::is_empty))
        .filter_map(|r| r["metadata"]["name"].as_str().map(str::to_owned))
        .collect()
}
