//! The Secrets of a control plane, as a function of those that are there. Each holds what one pod mounts and no more: the
//! keys of the authorities lie in one that only the controller manager has a part of.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::IpNet;
use pki::authority::{Authority, Leaf, Term};
use pki::cluster::MASTERS;
use pki::kubeconfig;
use pki::secret::{self, Data};
use serde_json::json;

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
    /// `HOST:PORT` for the agents of a tunnel, the host empty where it is that of `endpoint`; none has no tunnel.
    pub konnectivity: Option<String>,
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

/// The Secrets that [`Plan::secrets`] makes, by what follows the name of the control plane; that of the tunnel where
/// there is one.
pub const SECRETS: [&str; 8] =
    ["ca", "etcd", "apiserver", "admin", "controller-manager", "scheduler", "kube-proxy", KONNECTIVITY];
/// The Secret of the tunnel's servers.
pub const KONNECTIVITY: &str = "konnectivity";
/// The entries of the certificate that the tunnel's agents see.
pub const TUNNEL_CERTIFICATE: &str = "server";

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
        let ca = secret::authority(&mut authorities, "ca", "kubernetes", now)?;
        let front = secret::authority(&mut authorities, "front-proxy-ca", "front-proxy-ca", now)?;
        let etcd = secret::authority(&mut authorities, "etcd-ca", "etcd-ca", now)?;
        secret::service_account_keys(&mut authorities)?;

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
            ("admin", "kubernetes-admin", Some(MASTERS), &self.endpoint),
            ("controller-manager", "system:kube-controller-manager", None, &self.internal),
            ("scheduler", "system:kube-scheduler", None, &self.internal),
            ("kube-proxy", "system:kube-proxy", None, &self.endpoint),
        ];
        for (what, user, group, server) in users {
            let (mut data, issued) = of_user(existing(what), &ca, &Leaf::client(user, group), server, term)?;
            if what == "controller-manager" {
                // It signs certificates and tokens.
                for key in ["ca.key", "sa.key"] {
                    data.insert(key.into(), authorities[key].clone());
                }
            }
            add(what, data, issued);
        }
        if let Some(agents) = &self.konnectivity {
            let (data, issued) = self.of_konnectivity(existing(KONNECTIVITY), &ca, agents, term)?;
            add(KONNECTIVITY, data, issued);
        }
        made.insert(0, Planned { name: self.secret("ca"), data: authorities, issued: Vec::new() });
        Ok(made)
    }

    fn of_etcd(&self, mut data: Data, etcd: &Authority, term: Term) -> Result<(Data, Vec<String>)> {
        data.insert("ca.crt".into(), etcd.certificate_pem.clone().into_bytes());
        let leaf = Leaf::peer("etcd", self.etcd_names());
        let issued = issue(&mut data, &[("server", etcd, &leaf), ("peer", etcd, &leaf)], term)?;
        Ok((data, issued))
    }

    /// A certificate for the tunnel's agents, and a user that looks their tokens up.
    fn of_konnectivity(&self, data: Data, ca: &Authority, agents: &str, term: Term) -> Result<(Data, Vec<String>)> {
        let user = Leaf::client("system:konnectivity-server", None);
        let (mut data, mut issued) = of_user(data, ca, &user, &self.internal, term)?;
        let mut names = self.service_names();
        names.extend([host(&self.endpoint), host(agents)].map(str::to_owned));
        names.extend(self.names.iter().cloned());
        let leaf = Leaf::server("konnectivity-server", sorted(names));
        issued.extend(issue(&mut data, &[(TUNNEL_CERTIFICATE, ca, &leaf)], term)?);
        Ok((data, issued))
    }

    /// Host and port that agents are told.
    #[must_use]
    pub fn agents_endpoint(&self) -> Option<(&str, &str)> {
        let (own, port) = self.konnectivity.as_deref()?.rsplit_once(':')?;
        Some((if own.is_empty() { host(&self.endpoint) } else { host(self.konnectivity.as_deref()?) }, port))
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
        [ca, front, etcd]: [&Authority; 3],
        term: Term,
    ) -> Result<(Data, Vec<String>)> {
        for key in ["ca.crt", "front-proxy-ca.crt", "etcd-ca.crt", "sa.key", "sa.pub"] {
            data.insert(key.into(), authorities[key].clone());
        }
        let leaves = [
            ("apiserver", ca, &Leaf::server("kube-apiserver", self.apiserver_names()?)),
            ("apiserver-kubelet-client", ca, &Leaf::client("kube-apiserver-kubelet-client", Some(MASTERS))),
            ("front-proxy-client", front, &Leaf::client("front-proxy-client", None)),
            ("apiserver-etcd-client", etcd, &Leaf::client("kube-apiserver-etcd-client", None)),
        ];
        let issued = issue(&mut data, &leaves, term)?;
        Ok((data, issued))
    }

    fn apiserver_names(&self) -> Result<Vec<String>> {
        let mut names = vec![
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "kubernetes".to_owned(),
            "kubernetes.default".to_owned(),
            "kubernetes.default.svc".to_owned(),
            format!("kubernetes.default.svc.{}", self.dns_domain),
            service(self.services, KUBERNETES)?.to_string(),
            host(&self.endpoint).to_owned(),
        ];
        names.extend(self.service_names());
        names.extend(self.names.iter().cloned());
        Ok(sorted(names))
    }

    /// Names of the Service in the host cluster.
    fn service_names(&self) -> Vec<String> {
        let (name, namespace, domain) = (&self.name, &self.namespace, &self.host_domain);
        let short = format!("{name}.{namespace}");
        vec![name.clone(), format!("{short}.svc"), format!("{short}.svc.{domain}"), short]
    }
}

/// Names once each, without empty ones.
fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names.retain(|name| !name.is_empty());
    names
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

fn issue(data: &mut Data, leaves: &[(&str, &Authority, &Leaf)], term: Term) -> Result<Vec<String>> {
    let mut issued = Vec::new();
    for (stem, authority, leaf) in leaves {
        if let Some(reason) = secret::certificate(data, stem, authority, leaf, term)? {
            issued.push(format!("{stem} was {reason}"));
        }
    }
    Ok(issued)
}

/// A kubeconfig, and beside it the files that it names: those are read again when they change, embedded ones are not.
/// The administrator's is one file.
fn of_user(mut data: Data, ca: &Authority, leaf: &Leaf, server: &str, term: Term) -> Result<(Data, Vec<String>)> {
    let issued = issue(&mut data, &[("tls", ca, leaf)], term)?;
    data.insert("ca.crt".into(), ca.certificate_pem.clone().into_bytes());
    let server = format!("https://{server}");
    let (name, config) = if leaf.organizations.is_empty() {
        let credential = json!({"client-certificate": "tls.crt", "client-key": "tls.key"});
        let cluster = json!({"server": server, "certificate-authority": "ca.crt"});
        ("kubeconfig", kubeconfig::of_cluster(&cluster, &leaf.common_name, &credential))
    } else {
        let credential = kubeconfig::certificate(&secret::issued(&data, "tls")?);
        ("admin.conf", kubeconfig::build(&ca.certificate_pem, &server, &leaf.common_name, &credential))
    };
    data.insert(name.into(), serde_json::to_vec_pretty(&config)?);
    Ok((data, issued))
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
            konnectivity: Some(":30444".into()),
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
        assert_eq!(issued, ["apiserver was of other names", "server was of other names"]);
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

    /// Agents trust the cluster's authority and ask for the host that they are told.
    #[test]
    fn a_tunnel_serves_the_names_that_agents_are_told() {
        for (konnectivity, told) in [
            (":30444", ("10.89.0.11", "30444")),
            ("tunnel.example:8132", ("tunnel.example", "8132")),
            ("[fd00::1]:8132", ("fd00::1", "8132")),
        ] {
            let plan = Plan { konnectivity: Some(konnectivity.into()), ..plan() };
            assert_eq!(plan.agents_endpoint(), Some(told), "{konnectivity}");
            let made = by_name(plan.secrets(|_| Data::new(), NOW).expect("secrets"));
            let certificate = secret::text(&made["t1-konnectivity"], "server.crt").expect("text");
            let names = Leaf::of_pem(&certificate).expect("a certificate").names;
            for name in [told.0, "10.89.0.11", "t1.tenants.svc"] {
                assert!(names.contains(&name.to_owned()), "{name}: {names:?}");
            }
            assert!(!names.iter().any(|name| name.starts_with("kubernetes")), "it is no API server");
        }
        let without = Plan { konnectivity: None, ..plan() };
        let made = by_name(without.secrets(|_| Data::new(), NOW).expect("secrets"));
        assert!(!made.contains_key("t1-konnectivity"));
        assert_eq!(without.agents_endpoint(), None);
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
