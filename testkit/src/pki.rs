//! Certificates: the cluster's, and those of clients it should and should not know.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Identity of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// In `system:masters`.
    Admin,
    /// `system:node:n1` in `system:nodes`.
    Node,
    /// `alice`, in no group, with no rights.
    Alice,
    /// No certificate.
    Anonymous,
    /// The administrator's name in a certificate that is no longer valid.
    Expired,
    /// The administrator's name from an authority that only calls itself by the same name.
    Foreign,
    /// A bearer token.
    Token(String),
}

/// Addresses of machines of which there are several, in certificates of servers beside the loopback's.
pub const MACHINES: [&str; 3] = ["192.0.2.11", "192.0.2.12", "192.0.2.13"];

/// PEM of a certificate and of its key.
pub type Pair = (String, String);

pub struct Pki {
    pub ca: String,
    /// The authority of [`Identity::Foreign`].
    pub foreign_ca: String,
    pub server: Pair,
    admin: Pair,
    node: Pair,
    alice: Pair,
    expired: Pair,
    foreign: Pair,
}

fn authority() -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ca");
    let pem = params.self_signed(&key).expect("ca").pem();
    (pem, Issuer::new(params, key))
}

fn leaf(issuer: &Issuer<'static, KeyPair>, common: &str, group: Option<&str>, until: i32) -> Pair {
    let key = KeyPair::generate().expect("key");
    let services = ["api.wardle.svc", "metrics.default.svc", "webhook.default.svc", "kubernetes.default.svc"];
    let names = ["localhost", "127.0.0.1"].into_iter().chain(services).chain(MACHINES);
    let mut p = CertificateParams::new(names.map(str::to_owned).collect::<Vec<_>>()).expect("names");
    p.distinguished_name.push(DnType::CommonName, common);
    if let Some(g) = group {
        p.distinguished_name.push(DnType::OrganizationName, g);
    }
    p.not_after = rcgen::date_time_ymd(until, 1, 1);
    p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    (p.signed_by(&key, issuer).expect("signed").pem(), key.serialize_pem())
}

impl Pki {
    /// Makes all of them, and the files that the server needs.
    pub fn new(dir: &Path) -> Self {
        let (ca, issuer) = authority();
        let (foreign_ca, other) = authority();
        let masters = Some("system:masters");
        let pki = Self {
            ca,
            foreign_ca,
            server: leaf(&issuer, "kube-apiserver", None, 2999),
            admin: leaf(&issuer, "admin", masters, 2999),
            node: leaf(&issuer, "system:node:n1", Some("system:nodes"), 2999),
            alice: leaf(&issuer, "alice", None, 2999),
            expired: leaf(&issuer, "admin", masters, 2020),
            foreign: leaf(&other, "admin", masters, 2999),
        };
        for (name, text) in [
            ("ca.crt", &pki.ca),
            ("server.crt", &pki.server.0),
            ("server.key", &pki.server.1),
            ("sa.key", &pki.server.1),
        ] {
            std::fs::write(dir.join(name), text).expect("pki file");
        }
        pki
    }

    /// The certificate of somebody.
    pub fn pair(&self, identity: &Identity) -> Option<&Pair> {
        match identity {
            Identity::Admin => Some(&self.admin),
            Identity::Node => Some(&self.node),
            Identity::Alice => Some(&self.alice),
            Identity::Expired => Some(&self.expired),
            Identity::Foreign => Some(&self.foreign),
            Identity::Anonymous | Identity::Token(_) => None,
        }
    }
}
