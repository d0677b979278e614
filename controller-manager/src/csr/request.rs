//! A certificate request, and what each signer demands of it. Answers for upstream's `pkg/apis/certificates`
//! (`IsKubeletServingCSR`, `IsKubeletClientCSR`).

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, ParsedExtension, X509Name};

use super::certificate::Oid;

/// The signers of this controller.
pub const APISERVER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// For kubelets' client certificates.
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// For kubelets' serving certificates.
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// For whatever else was signed before signers had names.
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

const ENCIPHER: &str = "key encipherment";

/// Reasons why a request cannot be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not a PEM block of a request.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Pem,
    /// The block cannot be read, or does not prove possession of its key.
    #[error("unable to parse csr: {0}")]
    Parse(String),
    /// The signer's rules.
    #[error("{0}")]
    Rule(String),
    /// A usage outside the API's list.
    #[error("unrecognized usage values: [{0:?}]")]
    Usage(String),
}

/// Contents of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Subject, as encoded.
    pub subject: Vec<u8>,
    /// Public key, as encoded.
    pub public_key: Vec<u8>,
    /// Subject alternative names, as encoded; empty without.
    pub names: Vec<u8>,
    /// Common name.
    pub common_name: String,
    /// Organizations.
    pub organizations: Vec<String>,
    /// Alternative names: DNS.
    pub hosts: usize,
    /// Alternative names: IP.
    pub addresses: usize,
    /// Alternative names: mail.
    pub mails: usize,
    /// Alternative names: URI.
    pub uris: usize,
}

/// Read the PEM text in `spec.request`.
pub fn parse(pem: &[u8]) -> Result<Request, RequestError> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| RequestError::Pem)?;
    if block.label != "CERTIFICATE REQUEST" {
        return Err(RequestError::Pem);
    }
    let bad = |e: &dyn std::fmt::Display| RequestError::Parse(e.to_string());
    let (_, csr) = X509CertificationRequest::from_der(&block.contents).map_err(|e| bad(&e))?;
    csr.verify_signature().map_err(|e| bad(&e))?;
    let info = &csr.certification_request_info;
    let (common_name, organizations) = names(&info.subject);
    let mut out = Request {
        subject: info.subject.as_raw().to_vec(),
        public_key: info.subject_pki.raw.to_vec(),
        common_name,
        organizations,
        ..Request::default()
    };
    for attribute in info.iter_attributes() {
        let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else { continue };
        for extension in &requested.extensions {
            let ParsedExtension::SubjectAlternativeName(san) = extension.parsed_extension() else { continue };
            out.names = extension.value.to_vec();
            for name in &san.general_names {
                match name {
                    GeneralName::DNSName(_) => out.hosts += 1,
                    GeneralName::IPAddress(_) => out.addresses += 1,
                    GeneralName::RFC822Name(_) => out.mails += 1,
                    GeneralName::URI(_) => out.uris += 1,
                    _ => {}
                }
            }
        }
    }
    Ok(out)
}

/// The common name, which is the last of several, and the organizations. What is no text is none.
fn names(subject: &X509Name<'_>) -> (String, Vec<String>) {
    fn texts<'s, 'x: 's>(all: impl Iterator<Item = &'s AttributeTypeAndValue<'x>>) -> Vec<String> {
        all.filter_map(|a| a.as_str().ok()).map(str::to_owned).collect()
    }
    let common = texts(subject.iter_common_name()).pop();
    (common.unwrap_or_default(), texts(subject.iter_organization()))
}

fn rule<T>(text: &str) -> Result<T, RequestError> {
    Err(RequestError::Rule(text.to_owned()))
}

/// Refuses usages that are not all of `wanted`; keys that cannot encipher need not say that they do.
fn exactly(usages: &[String], wanted: [&str; 3]) -> Result<(), RequestError> {
    let has = |u: &str| usages.iter().any(|x| x == u);
    let all = wanted.iter().all(|u| has(u) || *u == ENCIPHER);
    if all && usages.iter().all(|u| wanted.contains(&u.as_str())) {
        return Ok(());
    }
    rule(&format!("usages did not match [{}]", wanted.join(" ")))
}

impl Request {
    /// Checks a request for a kubelet's client certificate.
    pub fn check_kubelet_client(&self, usages: &[String]) -> Result<(), RequestError> {
        self.check_organization()?;
        for (names, text) in [
            (self.hosts, "DNS subjectAltNames are not allowed"),
            (self.mails, "Email subjectAltNames are not allowed"),
            (self.addresses, "IP subjectAltNames are not allowed"),
            (self.uris, "URI subjectAltNames are not allowed"),
        ] {
            if names > 0 {
                return rule(text);
            }
        }
        self.check_name()?;
        exactly(usages, ["client auth", "digital signature", ENCIPHER])
    }

    /// Checks a request for a kubelet's serving certificate.
    pub fn check_kubelet_serving(&self, usages: &[String]) -> Result<(), RequestError> {
        self.check_organization()?;
        if self.hosts == 0 && self.addresses == 0 {
            return rule("DNS or IP subjectAltName is required");
        }
        if self.mails > 0 {
            return rule("Email subjectAltNames are not allowed");
        }
        if self.uris > 0 {
            return rule("URI subjectAltNames are not allowed");
        }
        exactly(usages, ["digital signature", ENCIPHER, "server auth"])?;
        self.check_name()
    }

    fn check_organization(&self) -> Result<(), RequestError> {
        if self.organizations == ["system:nodes"] { Ok(()) } else { rule("subject organization is not system:nodes") }
    }

    fn check_name(&self) -> Result<(), RequestError> {
        if self.common_name.starts_with("system:node:") {
            return Ok(());
        }
        rule("subject common name does not begin with system:node:")
    }

    /// Checks a request against the demands of a signer.
    pub fn check(&self, signer: &str, usages: &[String]) -> Result<(), RequestError> {
        match signer {
            KUBELET_CLIENT => self.check_kubelet_client(usages),
            KUBELET_SERVING => self.check_kubelet_serving(usages),
            APISERVER_CLIENT => client_usages(usages),
            _ => Ok(()),
        }
    }
}

fn client_usages(usages: &[String]) -> Result<(), RequestError> {
    const CLIENT: &str = "client auth";
    let allowed = [CLIENT, "digital signature", ENCIPHER];
    if let Some(other) = usages.iter().find(|u| !allowed.contains(&u.as_str())) {
        return rule(&format!("invalid usage for client certificate: {other}"));
    }
    if !usages.iter().any(|u| u == CLIENT) {
        return rule("missing required usage for client certificate: client auth");
    }
    Ok(())
}

/// Key usages of the API by name, and the bits that stand for them.
const KEY_USAGES: [(&str, u8); 10] = [
    ("signing", 0),
    ("digital signature", 0),
    ("content commitment", 1),
    ("key encipherment", 2),
    ("data encipherment", 3),
    ("key agreement", 4),
    ("cert sign", 5),
    ("crl sign", 6),
    ("encipher only", 7),
    ("decipher only", 8),
];

/// Extended key usages of the API by name, in the order in which certificates have them.
const EXTENDED_KEY_USAGES: [(&str, Oid); 13] = [
    ("any", &[2, 5, 29, 37, 0]),
    ("server auth", &[1, 3, 6, 1, 5, 5, 7, 3, 1]),
    ("client auth", &[1, 3, 6, 1, 5, 5, 7, 3, 2]),
    ("code signing", &[1, 3, 6, 1, 5, 5, 7, 3, 3]),
    ("email protection", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("s/mime", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("ipsec end system", &[1, 3, 6, 1, 5, 5, 7, 3, 5]),
    ("ipsec tunnel", &[1, 3, 6, 1, 5, 5, 7, 3, 6]),
    ("ipsec user", &[1, 3, 6, 1, 5, 5, 7, 3, 7]),
    ("timestamping", &[1, 3, 6, 1, 5, 5, 7, 3, 8]),
    ("ocsp signing", &[1, 3, 6, 1, 5, 5, 7, 3, 9]),
    ("microsoft sgc", &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3]),
    ("netscape sgc", &[2, 16, 840, 1, 113_730, 4, 1]),
];

/// Returns the key usage bits and the extended key usages of a list, each once. Answers for upstream's
/// `keyUsagesFromStrings`.
pub(super) fn usages(list: &[String]) -> Result<(Vec<u8>, Vec<Oid>), RequestError> {
    let known = |usage: &str| {
        KEY_USAGES.iter().any(|(name, _)| *name == usage) || EXTENDED_KEY_USAGES.iter().any(|(name, _)| *name == usage)
    };
    if let Some(other) = list.iter().find(|usage| !known(usage)) {
        return Err(RequestError::Usage(other.clone()));
    }
    let listed = |name: &str| list.iter().any(|usage| usage == name);
    let mut bits: Vec<u8> = KEY_USAGES.iter().filter(|(name, _)| listed(name)).map(|(_, bit)| *bit).collect();
    bits.dedup();
    let extended = EXTENDED_KEY_USAGES.iter().filter(|(name, _)| listed(name));
    let mut purposes: Vec<Oid> = extended.map(|(_, purpose)| *purpose).collect();
    purposes.dedup();
    Ok((bits, purposes))
}

#[cfg(test)]
mod tests {
    use yasna::Tag;
    use yasna::models::ObjectIdentifier;
    use yasna::tags::{TAG_INTEGER, TAG_PRINTABLESTRING, TAG_UTF8STRING};

    use super::*;

    fn request(change: impl FnOnce(&mut Request)) -> Request {
        let mut request = Request {
            common_name: "system:node:a".into(),
            organizations: vec!["system:nodes".into()],
            ..Request::default()
        };
        change(&mut request);
        request
    }

    fn says(signer: &str, request: &Request, usages: &[&str]) -> String {
        let usages: Vec<String> = usages.iter().map(|u| (*u).to_owned()).collect();
        request.check(signer, &usages).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_last_common_name_counts() {
        let attribute = |n: u64, tag: Tag, value: &'static [u8]| (n, tag, value);
        let (utf8, printable, integer) = (TAG_UTF8STRING, TAG_PRINTABLESTRING, TAG_INTEGER);
        let parts = [
            attribute(3, utf8, b"system:node:a"),
            attribute(10, printable, b"system:nodes"),
            attribute(10, integer, &[7]),
            attribute(3, printable, b"system:node:b"),
            attribute(3, integer, &[7]),
            attribute(10, utf8, b"others"),
        ];
        let subject = yasna::construct_der(|writer| {
            writer.write_sequence(|sets| {
                for (n, tag, value) in parts {
                    sets.next().write_set(|set| {
                        set.next().write_sequence(|fields| {
                            fields.next().write_oid(&ObjectIdentifier::from_slice(&[2, 5, 4, n]));
                            fields.next().write_tagged_implicit(tag, |writer| writer.write_bytes(value));
                        });
                    });
                }
            });
        });
        let (_, subject) = X509Name::from_der(&subject).expect("a name");
        assert_eq!(names(&subject), ("system:node:b".to_owned(), vec!["system:nodes".to_owned(), "others".to_owned()]));
    }

    #[test]
    fn what_each_signer_refuses() {
        const CLIENT: &[&str] = &["digital signature", "client auth"];
        const SERVER: &[&str] = &["digital signature", "key encipherment", "server auth"];
        let mismatch = "usages did not match [client auth digital signature key encipherment]";
        for (signer, request, usages, want) in [
            (KUBELET_CLIENT, request(|_| ()), CLIENT, ""),
            (KUBELET_CLIENT, request(|_| ()), SERVER, mismatch),
            (KUBELET_CLIENT, request(|_| ()), &["client auth"], mismatch),
            (KUBELET_CLIENT, request(|r| r.hosts = 1), CLIENT, "DNS subjectAltNames are not allowed"),
            (KUBELET_CLIENT, request(|r| r.mails = 1), CLIENT, "Email subjectAltNames are not allowed"),
            (KUBELET_CLIENT, request(|r| r.addresses = 1), CLIENT, "IP subjectAltNames are not allowed"),
            (KUBELET_CLIENT, request(|r| r.uris = 1), CLIENT, "URI subjectAltNames are not allowed"),
            (KUBELET_CLIENT, request(|r| r.organizations.clear()), CLIENT, "subject organization is not system:nodes"),
            (
                KUBELET_CLIENT,
                request(|r| r.common_name = "a".into()),
                CLIENT,
                "subject common name does not begin with system:node:",
            ),
            (KUBELET_SERVING, request(|r| r.addresses = 1), SERVER, ""),
            (KUBELET_SERVING, request(|_| ()), SERVER, "DNS or IP subjectAltName is required"),
            (
                KUBELET_SERVING,
                request(|r| r.hosts = 1),
                CLIENT,
                "usages did not match [digital signature key encipherment server auth]",
            ),
            (APISERVER_CLIENT, Request::default(), CLIENT, ""),
            (APISERVER_CLIENT, Request::default(), SERVER, "invalid usage for client certificate: server auth"),
            (
                APISERVER_CLIENT,
                Request::default(),
                &["digital signature"],
                "missing required usage for client certificate: client auth",
            ),
            (LEGACY, Request::default(), SERVER, ""),
        ] {
            assert_eq!(says(signer, &request, usages), want, "{signer} {request:?} {usages:?}");
        }
    }
}
