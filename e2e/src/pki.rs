//! The harness's certificates and kubeconfigs: those of `ironclad pki`, at the places of a run directory. Existing files are
//! kept, so that a second `up` does not change a cluster's identity.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ::pki::authority::{AUTHORITY_VALIDITY, Authority, Leaf, Purpose, VALIDITY};
use ::pki::cluster::{AUTHORITIES, MASTERS, service_account_keys};
use ::pki::keys::Algorithm;
use ::pki::kubeconfig::{self, Demand};
use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::ha;
use crate::layout::{APISERVER_PORT, Layout, Node};

/// Kind of the harness's keys: made in no time.
const ALGORITHM: Algorithm = Algorithm::EcdsaP256;

/// Writes everything that the control plane needs.
///
/// # Errors
/// When a file cannot be written.
pub fn control_plane(layout: &Layout) -> Result<()> {
    let pki = layout.pki();
    for row in &AUTHORITIES {
        Authority::open_or_create(&pki.join(row.file), row.common_name, ALGORITHM, AUTHORITY_VALIDITY)?;
    }
    let (ca, front, etcd) = (open(layout, "ca")?, open(layout, "front-proxy-ca")?, open(layout, "etcd/ca")?);

    let service = layout.kubernetes_service();
    let (host, loopback) = (layout.network.host.as_str(), layout.network.loopback.as_str());
    let fixed = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        host,
        &service,
        loopback,
    ];
    let servers = ha::servers(&layout.network);
    let names = |fixed: &[&str]| fixed.iter().map(|name| (*name).to_owned()).chain(servers.clone()).collect();
    let member = |name: &str| Leaf {
        common_name: name.to_owned(),
        organizations: Vec::new(),
        // Members that are one machine call each other from its first address, and etcd looks at that.
        names: names(&["localhost", loopback, host]),
        purpose: Purpose::Both,
    };
    leaf(&ca, &pki.join("apiserver"), &Leaf::server("kube-apiserver", names(&fixed)))?;
    let kubelets = Leaf::client("kube-apiserver-kubelet-client", Some(MASTERS));
    leaf(&ca, &pki.join("apiserver-kubelet-client"), &kubelets)?;
    leaf(&front, &pki.join("front-proxy-client"), &Leaf::client("front-proxy-client", None))?;
    leaf(&etcd, &pki.join("etcd/server"), &member("localhost"))?;
    leaf(&etcd, &pki.join("etcd/peer"), &member("localhost"))?;
    leaf(&etcd, &pki.join("apiserver-etcd-client"), &Leaf::client("kube-apiserver-etcd-client", None))?;
    service_account_keys(&pki, ALGORITHM)?;

    let user = |name: &str, group, path: &Path| user(&ca, &server(layout), (name, group), path);
    user("kubernetes-admin", Some(MASTERS), &layout.admin_conf())?;
    for component in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
        user(&format!("system:{component}"), None, &layout.kubeconfig(component))?;
    }
    Ok(())
}

/// Writes a node's kubelet kubeconfig and serving certificate; for a node that bootstraps, the kubeconfig with the token
/// that it shows instead.
///
/// # Errors
/// When a file cannot be written.
pub fn node(layout: &Layout, node: &Node) -> Result<()> {
    let ca = open(layout, "ca")?;
    if node.bootstraps() {
        let path = layout.kubeconfig("bootstrap");
        if path.exists() {
            return Ok(());
        }
        let token = json!({"token": bootstrap_token(layout)?});
        return kubeconfig::write(&path, &kubeconfig::build(&ca.certificate_pem, &server(layout), "bootstrap", &token));
    }
    let name = format!("system:node:{}", node.name);
    user(&ca, &server(layout), (&name, Some("system:nodes")), &layout.kubeconfig(&node.name))?;
    let names = vec![node.name.clone(), node.address.clone()];
    leaf(&ca, &layout.pki().join(format!("kubelet-{}", node.name)), &Leaf::server(&name, names))
}

fn open(layout: &Layout, name: &str) -> Result<Authority> {
    Authority::open(&layout.pki().join(name))
}

fn leaf(ca: &Authority, stem: &Path, leaf: &Leaf) -> Result<()> {
    ca.keep_or_issue(stem, leaf, ALGORITHM, VALIDITY)
}

fn user(ca: &Authority, server: &str, (user, group): (&str, Option<&str>), path: &Path) -> Result<()> {
    let demand = Demand { user, leaf: Leaf::client(user, group), algorithm: ALGORITHM, validity: VALIDITY };
    kubeconfig::keep_or_issue(path, ca, server, &demand)
}

fn server(layout: &Layout) -> String {
    format!("https://{}:{APISERVER_PORT}", layout.network.host)
}

/// The token that nodes join with, made at the first call.
///
/// # Errors
/// When its file cannot be read or written.
pub fn bootstrap_token(layout: &Layout) -> Result<String> {
    let path = layout.pki().join("bootstrap-token");
    if !path.exists() {
        let random = Sha256::digest(rcgen::KeyPair::generate()?.serialize_der());
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        ::pki::files::write(&path, &format!("{}.{}", &digits[..6], &digits[6..22]), ::pki::files::SECRET)?;
    }
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// A node's client certificate and key that are about to end: most of their time is over.
///
/// # Errors
/// When the authority is not there.
pub fn ending_client(layout: &Layout, node: &str) -> Result<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let moment = |since_1970: Duration| rcgen::date_time_ymd(1970, 1, 1) + since_1970;
    let mut params = Leaf::client(&format!("system:node:{node}"), Some("system:nodes")).params()?;
    params.not_before = moment(now - Duration::from_secs(2 * 60 * 60));
    params.not_after = moment(now + Duration::from_secs(8 * 60));
    let issued = open(layout, "ca")?.sign(params, ALGORITHM)?;
    Ok(format!("{}{}", issued.certificate, issued.key))
}
