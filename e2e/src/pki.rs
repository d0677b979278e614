//! Certificates, keys and kubeconfigs, in kubeadm's layout. Existing files are kept, so
//! that a second `up` does not change a cluster's identity.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use base64::prelude::{BASE64_STANDARD as STANDARD, Engine as _};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use sha2::{Digest as _, Sha256};

use crate::layout::{APISERVER_PORT, HOST_ADDRESS, Layout, Node};

/// A certificate authority on disk.
struct Authority {
    certificate_pem: String,
    key_pem: String,
}

/// What a leaf certificate is for.
struct Leaf<'a> {
    common_name: &'a str,
    organisation: Option<&'a str>,
    names: &'a [&'a str],
}

/// Writes everything that the control plane needs.
///
/// # Errors
/// When a file cannot be written.
pub fn control_plane(layout: &Layout) -> Result<()> {
    let pki = layout.pki();
    let ca = authority(&pki.join("ca"), "kubernetes")?;
    let front = authority(&pki.join("front-proxy-ca"), "front-proxy-ca")?;
    let etcd = authority(&pki.join("etcd/ca"), "etcd-ca")?;

    let service = layout.kubernetes_service();
    let apiserver_names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        HOST_ADDRESS,
        &service,
        "127.0.0.1",
    ];
    leaf(&ca, &pki.join("apiserver"), &server("kube-apiserver", &apiserver_names))?;
    leaf(&ca, &pki.join("apiserver-kubelet-client"), &client("kube-apiserver-kubelet-client", Some("system:masters")))?;
    leaf(&front, &pki.join("front-proxy-client"), &client("front-proxy-client", None))?;
    leaf(&etcd, &pki.join("etcd/server"), &server("localhost", &["localhost", "127.0.0.1"]))?;
    leaf(&etcd, &pki.join("apiserver-etcd-client"), &client("kube-apiserver-etcd-client", None))?;
    service_account_keys(&pki)?;

    kubeconfig(layout, &ca, "admin", &client("kubernetes-admin", Some("system:masters")), &layout.admin_conf())?;
    for user in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
        let name = format!("system:{user}");
        kubeconfig(layout, &ca, user, &client(&name, None), &layout.kubeconfig(user))?;
    }
    Ok(())
}

/// Writes a node's kubelet kubeconfig and serving certificate; for a node that bootstraps, the kubeconfig with the token
/// that it shows instead.
///
/// # Errors
/// When a file cannot be written.
pub fn node(layout: &Layout, node: &Node) -> Result<()> {
    let ca = authority(&layout.pki().join("ca"), "kubernetes")?;
    if node.bootstraps() {
        let path = layout.kubeconfig("bootstrap");
        if path.exists() {
            return Ok(());
        }
        let config = config(&ca, "bootstrap", serde_json::json!({"token": bootstrap_token(layout)?}));
        return write(&path, &serde_json::to_string_pretty(&config)?, 0o600);
    }
    let user = format!("system:node:{}", node.name);
    kubeconfig(layout, &ca, &node.name, &client(&user, Some("system:nodes")), &layout.kubeconfig(&node.name))?;
    let names = [node.name.as_str(), node.address.as_str()];
    leaf(&ca, &layout.pki().join(format!("kubelet-{}", node.name)), &server(&user, &names))
}

fn server<'a>(common_name: &'a str, names: &'a [&'a str]) -> Leaf<'a> {
    Leaf { common_name, organisation: None, names }
}

fn client<'a>(common_name: &'a str, organisation: Option<&'a str>) -> Leaf<'a> {
    Leaf { common_name, organisation, names: &[] }
}

fn authority(stem: &Path, common_name: &str) -> Result<Authority> {
    let (certificate, key) = (extended(stem, "crt"), extended(stem, "key"));
    if !certificate.exists() || !key.exists() {
        let mut params = named(common_name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let pair = KeyPair::generate()?;
        write(&key, &pair.serialize_pem(), 0o600)?;
        write(&certificate, &params.self_signed(&pair)?.pem(), 0o644)?;
    }
    Ok(Authority { certificate_pem: read(&certificate)?, key_pem: read(&key)? })
}

fn leaf(ca: &Authority, stem: &Path, leaf: &Leaf) -> Result<()> {
    let (certificate, key) = (extended(stem, "crt"), extended(stem, "key"));
    if certificate.exists() && key.exists() {
        return Ok(());
    }
    let (certificate_pem, key_pem) = issue(ca, leaf)?;
    write(&key, &key_pem, 0o600)?;
    write(&certificate, &certificate_pem, 0o644)
}

fn issue(ca: &Authority, leaf: &Leaf) -> Result<(String, String)> {
    sign(ca, &params(leaf)?)
}

fn sign(ca: &Authority, params: &CertificateParams) -> Result<(String, String)> {
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate_pem, KeyPair::from_pem(&ca.key_pem)?)?;
    let pair = KeyPair::generate()?;
    Ok((params.signed_by(&pair, &issuer)?.pem(), pair.serialize_pem()))
}

fn params(leaf: &Leaf) -> Result<CertificateParams> {
    let mut params = named(leaf.common_name, leaf.organisation);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !leaf.names.is_empty() {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    for name in leaf.names {
        params.subject_alt_names.push(match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName((*name).try_into()?),
        });
    }
    Ok(params)
}

fn named(common_name: &str, organisation: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    if let Some(organisation) = organisation {
        params.distinguished_name.push(DnType::OrganizationName, organisation);
    }
    params
}

fn service_account_keys(pki: &Path) -> Result<()> {
    let (private, public) = (pki.join("sa.key"), pki.join("sa.pub"));
    if private.exists() && public.exists() {
        return Ok(());
    }
    let pair = KeyPair::generate()?;
    write(&private, &pair.serialize_pem(), 0o600)?;
    write(&public, &pair.public_key_pem(), 0o644)
}

fn kubeconfig(layout: &Layout, ca: &Authority, user: &str, leaf: &Leaf, path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let stem = layout.pki().join("clients").join(user);
    self::leaf(ca, &stem, leaf)?;
    let data = |path: PathBuf| read(&path).map(|pem| STANDARD.encode(pem));
    let credential = serde_json::json!({
        "client-certificate-data": data(extended(&stem, "crt"))?,
        "client-key-data": data(extended(&stem, "key"))?,
    });
    write(path, &serde_json::to_string_pretty(&config(ca, user, credential))?, 0o600)
}

/// A kubeconfig for this cluster with one user.
fn config(ca: &Authority, user: &str, credential: serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "ironclad",
        "clusters": [{"name": "ironclad", "cluster": {
            "server": format!("https://{HOST_ADDRESS}:{APISERVER_PORT}"),
            "certificate-authority-data": STANDARD.encode(&ca.certificate_pem),
        }}],
        "users": [{"name": user, "user": credential}],
        "contexts": [{"name": "ironclad", "context": {"cluster": "ironclad", "user": user}}],
    })
}

/// The token that nodes join with, made at the first call.
///
/// # Errors
/// When its file cannot be read or written.
pub fn bootstrap_token(layout: &Layout) -> Result<String> {
    let path = layout.pki().join("bootstrap-token");
    if !path.exists() {
        let random = Sha256::digest(KeyPair::generate()?.serialize_der());
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        write(&path, &format!("{}.{}", &digits[..6], &digits[6..22]), 0o600)?;
    }
    read(&path)
}

/// A node's client certificate and key that are about to end: most of their time is over.
///
/// # Errors
/// When the authority is not there.
pub fn ending_client(layout: &Layout, node: &str) -> Result<String> {
    let ca = authority(&layout.pki().join("ca"), "kubernetes")?;
    let user = format!("system:node:{node}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let moment = |since_1970: Duration| rcgen::date_time_ymd(1970, 1, 1) + since_1970;
    let mut params = params(&client(&user, Some("system:nodes")))?;
    params.not_before = moment(now - Duration::from_secs(2 * 60 * 60));
    params.not_after = moment(now + Duration::from_secs(8 * 60));
    let (certificate, key) = sign(&ca, &params)?;
    Ok(format!("{certificate}{key}"))
}

fn extended(stem: &Path, extension: &str) -> PathBuf {
    PathBuf::from(format!("{}.{extension}", stem.display()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
