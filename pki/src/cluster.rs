//! The certificates and kubeconfigs of a control-plane machine, as tables, and how they are made.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::authority::{AUTHORITY_VALIDITY, Authority, Leaf, Purpose};
use crate::files::{PUBLIC, SECRET, read, write};
use crate::keys::{Algorithm, PrivateKey};
use crate::kubeconfig::{self, Demand};

/// Group of administrators that RBAC can take its rights from; `manifests/rbac/cluster-admins.yaml` gives them.
pub const CLUSTER_ADMINS: &str = "kubeadm:cluster-admins";
/// Group that may do everything, whatever RBAC says.
pub const MASTERS: &str = "system:masters";

/// An authority of a cluster.
pub struct AuthorityRow {
    /// Name in tables.
    pub name: &'static str,
    /// Path of the files below the folder of certificates, without extension.
    pub file: &'static str,
    /// Common name of a new one.
    pub common_name: &'static str,
}

/// Every authority, in the order of tables.
pub const AUTHORITIES: [AuthorityRow; 3] = [
    AuthorityRow { name: "ca", file: "ca", common_name: "kubernetes" },
    AuthorityRow { name: "etcd-ca", file: "etcd/ca", common_name: "etcd-ca" },
    AuthorityRow { name: "front-proxy-ca", file: "front-proxy-ca", common_name: "front-proxy-ca" },
];

/// Bearer of a certificate, which decides how it is named.
#[derive(Clone, Copy)]
enum Bearer {
    ApiServer,
    Etcd,
    Client(&'static str, Option<&'static str>),
}

/// A certificate of a control-plane machine.
pub struct CertificateRow {
    /// Name in tables.
    pub name: &'static str,
    /// Path of the files below the folder of certificates, without extension.
    pub file: &'static str,
    /// Name of the authority that signs it.
    pub authority: &'static str,
    bearer: Bearer,
}

/// Every certificate with files of its own.
pub const CERTIFICATES: [CertificateRow; 7] = [
    row("apiserver", "apiserver", "ca", Bearer::ApiServer),
    row(
        "apiserver-etcd-client",
        "apiserver-etcd-client",
        "etcd-ca",
        Bearer::Client("kube-apiserver-etcd-client", None),
    ),
    row(
        "apiserver-kubelet-client",
        "apiserver-kubelet-client",
        "ca",
        Bearer::Client("kube-apiserver-kubelet-client", Some(CLUSTER_ADMINS)),
    ),
    row(
        "etcd-healthcheck-client",
        "etcd/healthcheck-client",
        "etcd-ca",
        Bearer::Client("kube-etcd-healthcheck-client", None),
    ),
    row("etcd-peer", "etcd/peer", "etcd-ca", Bearer::Etcd),
    row("etcd-server", "etcd/server", "etcd-ca", Bearer::Etcd),
    row("front-proxy-client", "front-proxy-client", "front-proxy-ca", Bearer::Client("front-proxy-client", None)),
];

const fn row(name: &'static str, file: &'static str, authority: &'static str, bearer: Bearer) -> CertificateRow {
    CertificateRow { name, file, authority, bearer }
}

/// A kubeconfig of a control-plane machine.
pub struct KubeconfigRow {
    /// Name of its file, and in tables.
    pub file: &'static str,
    user: User,
    /// Set where it names this machine's API server and not the whole control plane's endpoint.
    local: bool,
}

#[derive(Clone, Copy)]
enum User {
    /// Name in the kubeconfig, which is the certificate's common name, and group.
    Named(&'static str, Option<&'static str>),
    /// The node of this machine.
    Node,
}

/// Every kubeconfig: kubeadm's, and that of a kube-proxy which is not a pod.
pub const KUBECONFIGS: [KubeconfigRow; 6] = [
    KubeconfigRow { file: "admin.conf", user: User::Named("kubernetes-admin", Some(CLUSTER_ADMINS)), local: false },
    KubeconfigRow {
        file: "controller-manager.conf",
        user: User::Named("system:kube-controller-manager", None),
        local: true,
    },
    KubeconfigRow { file: "kube-proxy.conf", user: User::Named("system:kube-proxy", None), local: false },
    KubeconfigRow { file: "kubelet.conf", user: User::Node, local: false },
    KubeconfigRow { file: "scheduler.conf", user: User::Named("system:kube-scheduler", None), local: true },
    KubeconfigRow {
        file: "super-admin.conf",
        user: User::Named("kubernetes-super-admin", Some(MASTERS)),
        local: false,
    },
];

/// The row of an authority.
///
/// # Errors
/// When there is none of this name.
pub fn authority_row(name: &str) -> Result<&'static AuthorityRow> {
    AUTHORITIES.iter().find(|row| row.name == name).with_context(|| format!("no authority {name}"))
}

/// A control-plane machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Folder of certificates: `/etc/kubernetes/pki`.
    pub certificates: PathBuf,
    /// Folder of kubeconfigs: `/etc/kubernetes`.
    pub kubeconfigs: PathBuf,
    /// Name of its node.
    pub node: String,
    /// Address that its API server and etcd are reached at.
    pub address: IpAddr,
    /// Port of its API server.
    pub port: u16,
    /// Address or name of the whole control plane, with a port where it is another one.
    pub endpoint: Option<String>,
    /// First addresses of the ranges of Services.
    pub services: Vec<IpAddr>,
    /// Domain of Services.
    pub domain: String,
    /// More names and addresses of the API server.
    pub extra_names: Vec<String>,
    /// More names and addresses of etcd.
    pub etcd_names: Vec<String>,
    /// Kind of new keys.
    pub algorithm: Algorithm,
    /// Lifetime of new certificates.
    pub validity: Duration,
}

impl Machine {
    /// Makes what is not there yet, and checks what is.
    ///
    /// # Errors
    /// When a file is there that does not fit the others, or cannot be read or written.
    pub fn init(&self) -> Result<()> {
        for row in &AUTHORITIES {
            let stem = self.certificates.join(row.file);
            let ca = Authority::open_or_create(&stem, row.common_name, self.algorithm, AUTHORITY_VALIDITY)?;
            for row in CERTIFICATES.iter().filter(|certificate| certificate.authority == row.name) {
                let stem = self.certificates.join(row.file);
                ca.keep_or_issue(&stem, &self.leaf(row.bearer), self.algorithm, self.validity)?;
            }
        }
        service_account_keys(&self.certificates, self.algorithm)?;
        let ca = Authority::open(&self.certificates.join("ca"))?;
        for row in &KUBECONFIGS {
            self.kubeconfig(&ca, row)?;
        }
        Ok(())
    }

    fn kubeconfig(&self, ca: &Authority, row: &KubeconfigRow) -> Result<()> {
        let node = format!("system:node:{}", self.node);
        let (user, group) = match row.user {
            User::Named(user, group) => (user, group),
            User::Node => (node.as_str(), Some("system:nodes")),
        };
        let server = if row.local { self.local_server() } else { self.server() };
        let leaf = Leaf::client(user, group);
        let demand = Demand { user, leaf, algorithm: self.algorithm, validity: self.validity };
        kubeconfig::keep_or_issue(&self.kubeconfigs.join(row.file), ca, &server, &demand)
    }

    fn leaf(&self, bearer: Bearer) -> Leaf {
        match bearer {
            Bearer::Client(name, group) => Leaf::client(name, group),
            Bearer::ApiServer => Leaf::server("kube-apiserver", self.api_server_names()),
            Bearer::Etcd => Leaf {
                common_name: self.node.clone(),
                organizations: Vec::new(),
                names: self.etcd_names(),
                purpose: Purpose::Both,
            },
        }
    }

    /// Names and addresses of the API server, as kubeadm's `GetAPIServerAltNames`.
    fn api_server_names(&self) -> Vec<String> {
        let mut names = vec![
            self.node.clone(),
            "kubernetes".into(),
            "kubernetes.default".into(),
            "kubernetes.default.svc".into(),
            format!("kubernetes.default.svc.{}", self.domain),
        ];
        names.extend(self.services.iter().map(IpAddr::to_string));
        names.push(self.address.to_string());
        names.extend(self.endpoint.as_deref().map(|endpoint| split_port(endpoint).0.to_owned()));
        names.extend(self.extra_names.iter().cloned());
        names
    }

    /// Names and addresses of etcd, as kubeadm's `GetEtcdAltNames`.
    fn etcd_names(&self) -> Vec<String> {
        let mut names =
            vec![self.node.clone(), "localhost".into(), self.address.to_string(), "127.0.0.1".into(), "::1".into()];
        names.extend(self.etcd_names.iter().cloned());
        names
    }

    /// The URL of the whole control plane.
    #[must_use]
    pub fn server(&self) -> String {
        let Some(endpoint) = &self.endpoint else { return self.local_server() };
        let (host, port) = split_port(endpoint);
        url(host, port.unwrap_or(self.port))
    }

    fn local_server(&self) -> String {
        url(&self.address.to_string(), self.port)
    }
}

/// Keys of service accounts' tokens.
///
/// # Errors
/// When a file cannot be read or written.
pub fn service_account_keys(certificates: &Path, algorithm: Algorithm) -> Result<()> {
    let (private, public) = (certificates.join("sa.key"), certificates.join("sa.pub"));
    if private.exists() && public.exists() {
        return Ok(());
    }
    let key = if private.exists() {
        PrivateKey::from_pem(&read(&private)?).with_context(|| private.display().to_string())?
    } else {
        PrivateKey::generate(algorithm)?
    };
    if !private.exists() {
        write(&private, &key.pem, SECRET)?;
    }
    write(&public, &key.pair.public_key_pem(), PUBLIC)
}

fn url(host: &str, port: u16) -> String {
    if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") }
}

/// Host and port of an endpoint; an IPv6 address has brackets where it has a port.
fn split_port(endpoint: &str) -> (&str, Option<u16>) {
    if endpoint.parse::<IpAddr>().is_ok() {
        return (endpoint, None);
    }
    let (host, port) = match endpoint.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (endpoint, None),
    };
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_ports_or_not() {
        for (endpoint, expected) in [
            ("10.0.0.1", ("10.0.0.1", None)),
            ("10.0.0.1:443", ("10.0.0.1", Some(443))),
            ("fd00::1", ("fd00::1", None)),
            ("[fd00::1]", ("fd00::1", None)),
            ("[fd00::1]:443", ("fd00::1", Some(443))),
            ("api.example:8443", ("api.example", Some(8443))),
            ("api.example", ("api.example", None)),
        ] {
            assert_eq!(split_port(endpoint), expected, "{endpoint}");
        }
    }

    #[test]
    fn urls_of_addresses_of_both_families() {
        assert_eq!(url("10.0.0.1", 6443), "https://10.0.0.1:6443");
        assert_eq!(url("fd00::1", 6443), "https://[fd00::1]:6443");
    }
}
