//! A certificate authority from two PEM files. Answers for upstream's `pkg/controller/certificates/authority`.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, SignatureAlgorithm,
    SigningKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use shared::cert::{CertError, ObjectIdentifier};
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};

use super::certificate::{Algorithm, Contents};
use super::request::{Request, RequestError, usages};

/// Certificates are dated back by this much, for clocks that are behind.
const BACKDATE: Duration = Duration::from_mins(5);

/// Certificates that serve for less do so from now on: five minutes matter to them.
const SHORT: Duration = Duration::from_hours(8);

/// Reasons why a key pair cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The files.
    #[error("{0}")]
    File(String),
    /// The key.
    #[error("error parsing private key: {0}")]
    Key(String),
    /// The certificate.
    #[error("error parsing CA cert: {0}")]
    Certificate(String),
}

/// Curve P-521, on which no library here signs.
const P521: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.35");

/// A private key in any of the usual PEM forms.
pub fn key_pair(pem: &[u8]) -> Result<KeyPair, AuthorityError> {
    let bad = |e: CertError| AuthorityError::Key(e.to_string());
    let pkcs8 = shared::cert::to_pkcs8(&shared::cert::private_key(pem).map_err(bad)?).map_err(bad)?;
    if shared::cert::curve(&pkcs8) == Some(P521) {
        return Err(AuthorityError::Key("keys on the elliptic curve P-521 cannot sign here".into()));
    }
    let der = PrivateKeyDer::Pkcs8(pkcs8);
    let kinds: [&'static SignatureAlgorithm; 4] =
        [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519, &PKCS_RSA_SHA256];
    let mut last = String::new();
    for kind in kinds {
        match KeyPair::from_der_and_sign_algo(&der, kind) {
            Ok(pair) => return Ok(pair),
            Err(e) => last = e.to_string(),
        }
    }
    Err(AuthorityError::Key(last))
}

/// Returns the signature algorithm of a key.
fn algorithm(key: &KeyPair) -> Algorithm {
    let kind = key.algorithm();
    let of = |oid| Algorithm { oid, null_parameters: false };
    if kind == &PKCS_RSA_SHA256 {
        Algorithm { oid: &[1, 2, 840, 113_549, 1, 1, 11], null_parameters: true }
    } else if kind == &PKCS_ECDSA_P384_SHA384 {
        of(&[1, 2, 840, 10_045, 4, 3, 3])
    } else if kind == &PKCS_ED25519 {
        of(&[1, 3, 101, 112])
    } else {
        of(&[1, 2, 840, 10_045, 4, 3, 2])
    }
}

/// A key pair that signs.
#[derive(Debug)]
pub struct Authority {
    key: KeyPair,
    subject: Vec<u8>,
    key_id: Option<Vec<u8>>,
    not_after: i64,
}

impl Authority {
    /// From PEM texts.
    pub fn new(certificate: &[u8], key: &[u8]) -> Result<Self, AuthorityError> {
        let bad = |e: &dyn std::fmt::Display| AuthorityError::Certificate(e.to_string());
        let certificates = shared::cert::certificates(certificate).map_err(|e| bad(&e))?;
        let first = certificates.first().ok_or_else(|| bad(&"no certificate in the file"))?;
        let (_, parsed) = X509Certificate::from_der(first).map_err(|e| bad(&e))?;
        let key_id = parsed.extensions().iter().find_map(|e| match e.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let key = key_pair(key)?;
        // Files that are replaced one after the other are no pair for a moment.
        if key.public_key_raw() != parsed.public_key().subject_public_key.data.as_ref() {
            return Err(bad(&"private key does not match public key"));
        }
        Ok(Self {
            key,
            subject: parsed.subject().as_raw().to_vec(),
            key_id,
            not_after: parsed.validity().not_after.timestamp(),
        })
    }

    /// End of its own certificate, in seconds since the epoch.
    #[cfg(test)]
    pub(super) fn not_after(&self) -> i64 {
        self.not_after
    }

    /// From files.
    pub async fn load(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let read = |path: String| async move {
            tokio::fs::read(&path).await.map_err(|e| AuthorityError::File(format!("open {path}: {e}")))
        };
        Self::new(&read(certificate.to_owned()).await?, &read(key.to_owned()).await?)
    }

    /// From when to when a certificate serves, in seconds.
    fn validity(&self, ttl: Duration, now: Timestamp) -> Result<(i64, i64), RequestError> {
        let (now, last) = (now.as_second(), self.not_after);
        let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX / 2);
        let start = now - seconds(BACKDATE);
        let end = if ttl < SHORT { now } else { start }.saturating_add(seconds(ttl)).min(last);
        let why = if start >= last {
            "the signer has expired"
        } else if now >= last {
            "refusing to sign a certificate that expired in the past"
        } else {
            return Ok((start, end));
        };
        let last = Timestamp::from_second(last).map(|t| t.strftime("%F %T +0000 UTC").to_string()).unwrap_or_default();
        Err(RequestError::Rule(format!("{why}: NotAfter={last}")))
    }

    /// A certificate for a request, PEM. `ttl` is cut to what the authority itself has left.
    pub fn sign(
        &self,
        request: &Request,
        wanted: &[String],
        ttl: Duration,
        now: Timestamp,
    ) -> Result<String, RequestError> {
        let (bits, purposes) = usages(wanted)?;
        let fail = |e: &dyn std::fmt::Display| RequestError::Parse(e.to_string());
        let (start, end) = self.validity(ttl, now)?;
        let at = |s: i64| Timestamp::from_second(s).map_err(|e| fail(&e));
        let mut serial = rand::random::<[u8; 16]>();
        serial[0] &= 0x7f;
        let algorithm = algorithm(&self.key);
        let contents = Contents {
            serial: &serial,
            algorithm,
            issuer: &self.subject,
            validity: (at(start)?, at(end)?),
            subject: &request.subject,
            public_key: &request.public_key,
            key_usages: &bits,
            purposes: &purposes,
            authority_key_id: self.key_id.as_deref(),
            names: &request.names,
        };
        let body = contents.to_be_signed();
        let signature = self.key.sign(&body).map_err(|e| fail(&e))?;
        Ok(chain(&[algorithm.certificate(&body, &signature)]))
    }
}

/// Certificates as one PEM text.
#[must_use]
pub fn chain(certificates: &[Vec<u8>]) -> String {
    let all: Vec<CertificateDer<'_>> = certificates.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    shared::cert::to_pem(&all)
}

#[cfg(test)]
mod tests {
    use super::super::request::{self, KUBELET_CLIENT, KUBELET_SERVING};
    use super::*;
    use crate::engine::clock;
    use base64::Engine as _;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa};

    #[test]
    fn keys_on_p521_are_refused_by_name() {
        let key = yasna::construct_der(|writer| {
            writer.write_sequence(|fields| {
                fields.next().write_u8(1);
                fields.next().write_bytes(&[7; 66]);
                fields.next().write_tagged(yasna::Tag::context(0), |curve| {
                    curve.write_oid(&yasna::models::ObjectIdentifier::from_slice(&[1, 3, 132, 0, 35]));
                });
            });
        });
        let text = base64::engine::general_purpose::STANDARD.encode(key);
        let pem = format!("-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n");
        let refused = key_pair(pem.as_bytes()).expect_err("no library signs with it").to_string();
        assert!(refused.contains("P-521"), "{refused}");
    }

    fn ca() -> (String, KeyPair) {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test-ca");
        (params.self_signed(&key).expect("ca").pem(), key)
    }

    fn list(usages: &[&str]) -> Vec<String> {
        usages.iter().map(|u| (*u).to_owned()).collect()
    }

    #[test]
    fn a_kubelets_certificate() {
        let (ca_pem, ca_key) = ca();
        let authority = Authority::new(ca_pem.as_bytes(), ca_key.serialize_pem().as_bytes()).expect("authority");
        let csr = shared::cert::signing_request("system:node:n1", &["system:nodes"], &[], &[]).expect("request");
        let request = request::parse(csr.request.as_bytes()).expect("parsed");
        let usages = list(&["digital signature", "client auth"]);
        assert_eq!(request.check(KUBELET_CLIENT, &usages), Ok(()));
        assert!(request.check(KUBELET_SERVING, &usages).is_err(), "no address");
        let now = clock::now();
        let signed = authority.sign(&request, &usages, Duration::from_hours(1), now).expect("certificate");
        let (_, block) = x509_parser::pem::parse_x509_pem(signed.as_bytes()).expect("pem");
        let certificate = block.parse_x509().expect("certificate");
        assert_eq!(certificate.subject().to_string(), "O=system:nodes, CN=system:node:n1");
        assert_eq!(certificate.issuer().to_string(), "CN=test-ca");
        assert_eq!(certificate.validity().not_after.timestamp(), now.as_second() + 3600);
        let (_, ca_block) = x509_parser::pem::parse_x509_pem(ca_pem.as_bytes()).expect("pem");
        let ca_certificate = ca_block.parse_x509().expect("ca");
        assert!(certificate.verify_signature(Some(ca_certificate.public_key())).is_ok());
        assert!(certificate.extended_key_usage().expect("usages").expect("usages").value.client_auth);
        assert!(!certificate.is_ca());
    }

    #[test]
    fn how_long_certificates_serve() {
        let (pem, key) = ca();
        let mut authority = Authority::new(pem.as_bytes(), key.serialize_pem().as_bytes()).expect("authority");
        authority.not_after = 1_000_000;
        let (hour, backdate) = (3600, 300);
        for (now, hours, want) in [
            (0, 1, Ok((-backdate, hour))),
            (0, 8, Ok((-backdate, 8 * hour - backdate))),
            (999_000, 1, Ok((998_700, 1_000_000))),
            (
                1_000_000,
                1,
                Err("refusing to sign a certificate that expired in the past: NotAfter=1970-01-12 13:46:40 +0000 UTC"),
            ),
            (1_000_300, 1, Err("the signer has expired: NotAfter=1970-01-12 13:46:40 +0000 UTC")),
        ] {
            let now = Timestamp::from_second(now).expect("time");
            let got = authority.validity(Duration::from_hours(hours), now).map_err(|e| e.to_string());
            assert_eq!(got, want.map_err(str::to_owned), "{now} {hours}");
        }
    }

    #[test]
    fn what_signers_refuse() {
        let parse = |cn: &str, orgs: &[&str], names: &[String]| {
            request::parse(shared::cert::signing_request(cn, orgs, names, &[]).expect("request").request.as_bytes())
                .expect("parsed")
        };
        let client = list(&["digital signature", "client auth"]);
        let serving = list(&["digital signature", "server auth", "key encipherment"]);
        let host = ["n1".to_owned()];
        for (name, request, signer, usages, good) in [
            ("serving", parse("system:node:n1", &["system:nodes"], &host), KUBELET_SERVING, &serving, true),
            ("wrong usages", parse("system:node:n1", &["system:nodes"], &host), KUBELET_SERVING, &client, false),
            ("wrong organization", parse("system:node:n1", &["system:masters"], &[]), KUBELET_CLIENT, &client, false),
            ("wrong name", parse("admin", &["system:nodes"], &[]), KUBELET_CLIENT, &client, false),
            (
                "names in a client certificate",
                parse("system:node:n1", &["system:nodes"], &host),
                KUBELET_CLIENT,
                &client,
                false,
            ),
            ("any client", parse("jane", &["dev"], &[]), request::APISERVER_CLIENT, &client, true),
            ("a server is no client", parse("jane", &["dev"], &[]), request::APISERVER_CLIENT, &serving, false),
        ] {
            assert_eq!(request.check(signer, usages).is_ok(), good, "{name}");
        }
        assert_eq!(request::parse(b"junk"), Err(RequestError::Pem));
        assert!(usages(&list(&["fly"])).is_err());
    }
}
