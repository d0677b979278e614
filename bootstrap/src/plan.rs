//! The Secrets of a control plane, as a function of those that are there. Each holds what one pod mounts and no more: the
//! keys of the authorities lie in one that only the controller manager has a part of.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::pki::{self, Data, LeafRequest, SigningAuthority, Term, text};

/// The most members of etcd whose names are in its certificates.
const ETCD_MEMBERS: usize = 3;

/// Names and addresses of a control plane.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Prefix of the names of its Secrets, and name of its Service.
    pub name: String,
    /// The namespace it runs in.
    pub namespace: String,
    /// The domain of the cluster it runs in.
    pub host_domain: String,
    /// `HOST:PORT` that nodes and clients use.
    pub endpoint: String,
    /// `HOST:PORT` of its Service, for those beside it.
    pub internal: String,
    /// The new cluster's Service addresses.
    pub services: IpNet,
    /// The new cluster's domain.
    pub dns_domain: String,
    /// More names and addresses of the API server.
    pub names: Vec<String>,
    /// Validity of certificates.
    pub validity: Duration,
}

/// A Secret as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Name of the Secret.
    pub name: String,
    /// Data of the Secret.
    pub data: Data,
    /// The certificates in it that were issued now, and why.
    pub issued: Vec<String>,
}

/// The Secrets that [`Plan::secrets`] makes, by what follows the name of the control plane.
pub const SECRETS: [&str; 7] = ["ca", "etcd", "apiserver", "admin", "controller-manager", "scheduler", "kube-proxy"];

impl Plan {
    /// The name of one of its Secrets.
    #[must_use]
    pub fn secret(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    /// All Secrets, with what `existing` says is in them kept where it is good.
    ///
    /// # Errors
    /// When an authority that is there cannot be used.
    pub fn secrets(&self, existing: impl Fn(&str) -> Data, now: Duration) -> Result<Vec<Planned>> {
        let term = Term { now, validity: self.validity };
        let mut authorities = existing(&self.secret("ca"));
        let ca = pki::authority(&mut authorities, "ca", "kubernetes", now)?;
        let front = pki::authority(&mut authorities, "front-proxy-ca", "front-proxy-ca", now)?;
        let etcd = pki::authority(&mut authorities, "etcd-ca", "etcd-ca", now)?;
        pki::service_account_keys(&mut authorities)?;

        let mut made = Vec::new();
        let mut add = |what: &str, data: Data, issued: Vec<String>| {
            made.push(Planned { name: self.secret(what), data, issued });
        };
        let existing = |what: &str| existing(&self.secret(what));
        let (data, issued) = self.of_etcd(existing("etcd"), &etcd, term)?;
        add("etcd", data, issued);
        let (data, issued) = self.of_apiserver(existing("apiserver"), &authorities, [&ca, &front, &etcd], term)?;
        add("apiserver", data, issued);
        let users = [
            ("admin", "kubernetes-admin", Some("system:masters"), &self.endpoint),
            ("controller-manager", "system:kube-controller-manager", None, &self.internal),
            ("scheduler", "system:kube-scheduler", None, &self.internal),
            ("kube-proxy", "system:kube-proxy", None, &self.endpoint),
        ];
        for (what, user, group, server) in users {
            let (mut data, issued) =
                of_user(existing(what), &ca, &LeafRequest::client("tls", user, group), server, term)?;
            if what == "controller-manager" {
                // It signs certificates and tokens.
                for key in ["ca.key", "sa.key"] {
                    data.insert(key.into(), authorities[key].clone());
                }
            }
            add(what, data, issued);
        }
        made.insert(0, Planned { name: self.secret("ca"), data: authorities, issued: Vec::new() });
        Ok(made)
    }

    fn of_etcd(&self, mut data: Data, etcd: &SigningAuthority, term: Term) -> Result<(Data, Vec<String>)> {
        data.insert("ca.crt".into(), etcd.certificate.clone().into_bytes());
        let names = self.etcd_names();
        let leaves = [LeafRequest::server("server", "etcd", names.clone()), LeafRequest::server("peer", "etcd", names)];
        let issued = issue(&mut data, leaves.iter().map(|leaf| (etcd, leaf)), term)?;
        Ok((data, issued))
    }

    /// Every member's own name: peers look up the names of a certificate to find the address that they are called from.
    fn etcd_names(&self) -> Vec<String> {
        let service = format!("{}-etcd", self.name);
        let domain = format!("{service}.{}.svc", self.namespace);
        let members = (0..ETCD_MEMBERS).map(|member| format!("{service}-{member}.{domain}"));
        let services = ["localhost", "127.0.0.1", &service, &domain].map(str::to_owned);
        let full: Vec<String> = members.collect();
        let with_domain = full.iter().chain([&domain]).map(|name| format!("{name}.{}", self.host_domain));
        let with_domain: Vec<String> = with_domain.collect();
        services.into_iter().chain(full).chain(with_domain).collect()
    }

    fn of_apiserver(
        &self,
        mut data: Data,
        authorities: &Data,
        [ca, front, etcd]: [&SigningAuthority; 3],
        term: Term,
    ) -> Result<(Data, Vec<String>)> {
        for key in ["ca.crt", "front-proxy-ca.crt", "etcd-ca.crt", "sa.key", "sa.pub"] {
            data.insert(key.into(), authorities[key].clone());
        }
        let leaves = [
            (ca, LeafRequest::server("apiserver", "kube-apiserver", self.apiserver_names()?)),
            (
                ca,
                LeafRequest::client(
                    "apiserver-kubelet-client",
                    "kube-apiserver-kubelet-client",
                    Some("system:masters"),
                ),
            ),
            (front, LeafRequest::client("front-proxy-client", "front-proxy-client", None)),
            (etcd, LeafRequest::client("apiserver-etcd-client", "kube-apiserver-etcd-client", None)),
        ];
        let issued = issue(&mut data, leaves.iter().map(|(by, leaf)| (*by, leaf)), term)?;
        Ok((data, issued))
    }

    fn apiserver_names(&self) -> Result<Vec<String>> {
        let (name, namespace, domain) = (&self.name, &self.namespace, &self.host_domain);
        let mut names = vec![
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "kubernetes".to_owned(),
            "kubernetes.default".to_owned(),
            "kubernetes.default.svc".to_owned(),
            format!("kubernetes.default.svc.{}", self.dns_domain),
            service(self.services, KUBERNETES)?.to_string(),
            name.clone(),
            format!("{name}.{namespace}"),
            format!("{name}.{namespace}.svc"),
            format!("{name}.{namespace}.svc.{domain}"),
            host(&self.endpoint).to_owned(),
        ];
        names.extend(self.names.iter().cloned());
        names.sort();
        names.dedup();
        names.retain(|name| !name.is_empty());
        Ok(names)
    }
}

/// The Service `kubernetes` has the first address of the range.
const KUBERNETES: u8 = 1;
/// Cluster DNS has the tenth, as kubeadm has it.
pub const DNS: u8 = 10;

/// An address of the range of Services, counted from its start.
///
/// # Errors
/// When the range is too small.
pub fn service(range: IpNet, number: u8) -> Result<IpAddr> {
    let address = match range.network() {
        IpAddr::V4(start) => u32::from(start).checked_add(number.into()).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(start) => u128::from(start).checked_add(number.into()).map(|bits| IpAddr::V6(bits.into())),
    };
    address.filter(|address| range.contains(address)).with_context(|| format!("{range} is too small"))
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
#[must_use]
pub fn host(endpoint: &str) -> &str {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn issue<'a>(
    data: &mut Data,
    leaves: impl Iterator<Item = (&'a SigningAuthority, &'a LeafRequest)>,
    term: Term,
) -> Result<Vec<String>> {
    let mut issued = Vec::new();
    for (authority, leaf) in leaves {
        if let Some(reason) = pki::leaf(data, authority, leaf, term)? {
            issued.push(format!("{} was {reason}", leaf.stem));
        }
    }
    Ok(issued)
}

/// A kubeconfig, and beside it the files that it names: those are read again when they change, embedded ones are not.
/// The administrator's is one file.
fn of_user(
    mut data: Data,
    ca: &SigningAuthority,
    leaf: &LeafRequest,
    server: &str,
    term: Term,
) -> Result<(Data, Vec<String>)> {
    let issued = issue(&mut data, std::iter::once((ca, leaf)), term)?;
    data.insert("ca.crt".into(), ca.certificate.clone().into_bytes());
    let (name, credential, cluster) = if leaf.organisation.is_some() {
        let embedded = |key: &str| text(&data, key).map(|pem| BASE64_STANDARD.encode(pem));
        (
            "admin.conf",
            json!({"client-certificate-data": embedded("tls.crt")?, "client-key-data": embedded("tls.key")?}),
            json!({"server": format!("https://{server}"), "certificate-authority-data": embedded("ca.crt")?}),
        )
    } else {
        (
            "kubeconfig",
            json!({"client-certificate": "tls.crt", "client-key": "tls.key"}),
            json!({"server": format!("https://{server}"), "certificate-authority": "ca.crt"}),
        )
    };
    let config = kubeconfig(&leaf.common_name, credential, cluster);
    data.insert(name.into(), serde_json::to_vec_pretty(&config)?);
    Ok((data, issued))
}

/// A kubeconfig with one user.
#[must_use]
pub fn kubeconfig(user: &str, credential: Value, cluster: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": format!("{user}@kubernetes"),
        "clusters": [{"name": "kubernetes", "cluster": cluster}],
        "users": [{"name": user, "user": credential}],
        "contexts": [{"name": format!("{user}@kubernetes"), "context": {"cluster": "kubernetes", "user": user}}],
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const NOW: Duration = Duration::from_hours(24 * 20_000);

    pub(crate) fn plan() -> Plan {
        Plan {
            name: "t1".into(),
            namespace: "tenants".into(),
            host_domain: "cluster.local".into(),
            endpoint: "10.89.0.11:30443".into(),
            internal: "t1.tenants.svc:6443".into(),
            services: "10.96.0.0/12".parse().expect("a range"),
            dns_domain: "cluster.local".into(),
            names: Vec::new(),
            validity: Duration::from_hours(24 * 365),
        }
    }

    fn by_name(planned: Vec<Planned>) -> BTreeMap<String, Data> {
        planned.into_iter().map(|secret| (secret.name, secret.data)).collect()
    }

    #[test]
    fn a_second_run_changes_nothing() {
        let first = by_name(plan().secrets(|_| Data::new(), NOW).expect("secrets"));
        let again = plan().secrets(|name| first[name].clone(), NOW + Duration::from_hours(24)).expect("secrets");
        assert!(again.iter().all(|secret| secret.issued.is_empty()));
        assert_eq!(by_name(again), first);
        assert_eq!(first.len(), SECRETS.len());
        for what in SECRETS {
            assert!(first.contains_key(&plan().secret(what)), "{what}");
        }
    }

    #[test]
    fn a_new_address_is_served_by_the_same_authority() {
        let first = by_name(plan().secrets(|_| Data::new(), NOW).expect("secrets"));
        let moved = Plan { endpoint: "10.89.0.12:30443".into(), ..plan() };
        let then = moved.secrets(|name| first[name].clone(), NOW).expect("secrets");
        let issued: Vec<&String> = then.iter().flat_map(|secret| &secret.issued).collect();
        assert_eq!(issued, ["apiserver was of other names"]);
        let then = by_name(then);
        assert_eq!(then["t1-ca"], first["t1-ca"]);
        let config = String::from_utf8(then["t1-admin"]["admin.conf"].clone()).expect("text");
        assert!(config.contains("https://10.89.0.12:30443"));
    }

    /// Private keys of authorities lie with the controller manager alone: whoever reads another pod's files must not be
    /// able to issue certificates.
    #[test]
    fn keys_of_authorities_lie_where_they_are_used() {
        let made = by_name(plan().secrets(|_| Data::new(), NOW).expect("secrets"));
        let ca_key = made["t1-ca"]["ca.key"].clone();
        let with_key = made.iter().filter(|(_, data)| data.values().any(|value| *value == ca_key));
        let names: Vec<&String> = with_key.map(|(name, _)| name).collect();
        assert_eq!(names, ["t1-ca", "t1-controller-manager"]);
    }

    #[test]
    fn services_are_counted_from_the_start_of_their_range() {
        for (range, number, expected) in [
            ("10.96.0.0/12", DNS, Some("10.96.0.10")),
            ("10.97.3.4/16", KUBERNETES, Some("10.97.0.1")),
            ("fd00::/112", DNS, Some("fd00::a")),
            ("10.96.0.0/29", DNS, None),
        ] {
            let range: IpNet = range.parse().expect("a range");
            assert_eq!(service(range, number).ok().map(|address| address.to_string()).as_deref(), expected, "{range}");
        }
    }

    #[test]
    fn hosts_of_endpoints() {
        for (endpoint, expected) in [("a.example:443", "a.example"), ("[fd00::1]:6443", "fd00::1"), ("", "")] {
            assert_eq!(host(endpoint), expected);
        }
    }
}
