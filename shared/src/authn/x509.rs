//! Client certificates: common name → user, organisations → groups.
//!
//! The TLS layer only makes sure the peer owns the key; trust is decided here, so that a foreign or expired
//! certificate is answered with 401 as upstream does, not with a broken handshake.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use prometheus::HistogramVec;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

use super::{Authenticator, AuthnError, Credentials, Identity, UserInfo};
use crate::cert::{Authorities, KeyUsage};
use crate::metrics;

const CACHE_LIMIT: usize = 1024;
/// Seconds a good chain is remembered by its leaf: what else is in it may expire, or not be shown again.
const REMEMBERED: u64 = 60;

/// A chain that was good.
struct Seen {
    user: UserInfo,
    not_after: u64,
    /// Until then nothing of it is asked again.
    until: u64,
}

/// Checks chains against one set of roots and remembers the good ones for a while.
pub(super) struct Verifier {
    authorities: Authorities,
    /// None without an authority that may sign.
    trust: Option<Arc<dyn ClientCertVerifier>>,
    seen: Mutex<HashMap<[u8; 32], Seen>>,
    /// Remaining lifetime of client certificates.
    remaining: HistogramVec,
    /// Subjects may name their user's uid.
    uids: bool,
}

/// From nothing left to a year, in seconds.
const REMAINING: [f64; 14] = [
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

impl Verifier {
    pub(super) fn new(ca_pem: &[u8]) -> Result<Self, AuthnError> {
        let authorities = Authorities::from_pem(ca_pem).map_err(|e| AuthnError(e.to_string()))?;
        let roots = Arc::new(authorities.roots().clone());
        let trust = match roots.is_empty() {
            true => None,
            false => Some(
                WebPkiClientVerifier::builder_with_provider(roots, crate::cert::provider())
                    .build()
                    .map_err(|e| AuthnError(e.to_string()))?,
            ),
        };
        let remaining = metrics::histogram(
            "apiserver_client_certificate_expiration_seconds",
            "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
            &[],
            REMAINING.into(),
        );
        Ok(Self { authorities, trust, seen: Mutex::new(HashMap::new()), remaining, uids: true })
    }

    pub(super) fn verify(&self, chain: &[CertificateDer<'static>]) -> Result<UserInfo, AuthnError> {
        self.verify_at(chain, UnixTime::now())
    }

    fn verify_at(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> Result<UserInfo, AuthnError> {
        let (leaf, rest) = chain.split_first().ok_or_else(|| AuthnError("no certificate".into()))?;
        let key: [u8; 32] = Sha256::digest(leaf.as_ref()).into();
        if let Some(seen) = self.seen.lock().get(&key)
            && now.as_secs() <= seen.until
        {
            self.measure(seen.not_after, now);
            return Ok(seen.user.clone());
        }
        self.authorities
            .judge(leaf, now, KeyUsage::Client)
            .unwrap_or_else(|| {
                let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
                self.trust.as_ref().ok_or(unknown)?.verify_client_cert(leaf, rest, now)?;
                self.authorities.in_force(chain, now)
            })
            .map_err(|e| AuthnError(format!("x509: {e}")))?;
        let (user, not_after) = read(leaf, self.uids)?;
        self.measure(not_after, now);
        let mut seen = self.seen.lock();
        if seen.len() >= CACHE_LIMIT {
            seen.clear();
        }
        let until = not_after.min(now.as_secs() + REMEMBERED);
        seen.insert(key, Seen { user: user.clone(), not_after, until });
        Ok(user)
    }

    fn measure(&self, not_after: u64, now: UnixTime) {
        #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
        let left = not_after.saturating_sub(now.as_secs()) as f64;
        self.remaining.with_label_values::<&str>(&[]).observe(left);
    }
}

fn read(leaf: &CertificateDer<'_>, uids: bool) -> Result<(UserInfo, u64), AuthnError> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|e| AuthnError(format!("x509: {e}")))?;
    let subject = parsed.subject();
    let name = common_name(subject).to_owned();
    let groups = subject.iter_organization().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect();
    let uid = if uids { uid(subject)? } else { String::new() };
    let id = Sha256::digest(leaf.as_ref()).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let extra =
        BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("X509SHA256={id}")])]);
    let not_after = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
    Ok((UserInfo { name, uid, groups, extra }, not_after))
}

/// The name in a subject, or "". Of several the last one counts, as it does for Go: who signs and who believes must not
/// read different ones.
pub fn common_name<'s>(subject: &'s X509Name<'_>) -> &'s str {
    subject.iter_common_name().last().and_then(|a| a.as_str().ok()).unwrap_or("")
}

/// Upstream's attribute of subjects for the uid of a user.
const UID: &str = "1.3.6.1.4.1.57683.2";

fn uid(subject: &X509Name<'_>) -> Result<String, AuthnError> {
    let mut found = subject.iter_attributes().filter(|a| a.attr_type().to_id_string() == UID);
    let Some(first) = found.next() else { return Ok(String::new()) };
    if found.next().is_some() {
        return Err(AuthnError("expected 1 UID, but found multiple".into()));
    }
    match first.as_str() {
        Ok("") => Err(AuthnError("UID cannot be an empty string".into())),
        Ok(uid) => Ok(uid.to_owned()),
        Err(_) => Err(AuthnError("unable to parse UID into a string".into())),
    }
}

/// The user a certificate names, without any check of trust.
pub fn user_of_certificate(leaf: &CertificateDer<'_>) -> Result<UserInfo, AuthnError> {
    read(leaf, true).map(|(user, _)| user)
}

/// The client-certificate authenticator (`--client-ca-file`).
pub struct X509 {
    verifier: ArcSwap<Verifier>,
    uids: bool,
}

impl X509 {
    /// `ca_pem` holds one or more roots.
    pub fn new(ca_pem: &[u8]) -> Result<Self, AuthnError> {
        Self::with_uids(ca_pem, true)
    }

    /// [`Self::new`], where `uids` says whether subjects may name their user's uid (`AllowParsingUserUIDFromCertAuth`).
    pub fn with_uids(ca_pem: &[u8], uids: bool) -> Result<Self, AuthnError> {
        Ok(Self { verifier: ArcSwap::from_pointee(Verifier { uids, ..Verifier::new(ca_pem)? }), uids })
    }

    /// Takes over a changed CA file.
    pub fn replace(&self, ca_pem: &[u8]) -> Result<(), AuthnError> {
        self.verifier.store(Arc::new(Verifier { uids: self.uids, ..Verifier::new(ca_pem)? }));
        Ok(())
    }
}

#[async_trait]
impl Authenticator for X509 {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        if request.certificates.is_empty() {
            return Ok(None);
        }
        let user = self.verifier.load().verify(request.certificates)?;
        // A certificate without a common name identifies nobody.
        Ok((!user.name.is_empty()).then(|| user.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn certificate(uids: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "jane");
        params.distinguished_name.push(DnType::OrganizationName, "dev");
        for uid in uids {
            params.distinguished_name.push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), *uid);
        }
        params.self_signed(&KeyPair::generate().expect("a key")).expect("signed").der().clone()
    }

    #[test]
    fn subjects_become_users() {
        let user = user_of_certificate(&certificate(&["u-1"])).expect("a user");
        assert_eq!((user.name.as_str(), user.uid.as_str(), user.groups.join(",").as_str()), ("jane", "u-1", "dev"));
        assert_eq!(user_of_certificate(&certificate(&[])).expect("a user").uid, "");
        assert_eq!(user_of_certificate(&certificate(&[""])).expect_err("refused").0, "UID cannot be an empty string");
    }

    #[test]
    fn uids_may_be_overlooked() {
        for subject in [&["u-1"][..], &[""]] {
            let (user, _) = read(&certificate(subject), false).expect("a user");
            assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", ""));
        }
    }

    #[test]
    fn of_several_names_the_last_one_counts() {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "first");
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "last");
        let certificate = params.self_signed(&KeyPair::generate().expect("a key")).expect("signed").der().clone();
        assert_eq!(user_of_certificate(&certificate).expect("a user").name, "last");
    }

    #[test]
    fn a_chain_is_good_no_longer_than_its_parts() {
        use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, Issuer, date_time_ymd};
        let until = |name: &str, year: i32, authority: bool| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(year, 1, 1));
            match authority {
                true => params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained),
                false => params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
            }
            (params, KeyPair::generate().expect("a key"))
        };
        let (root, root_key) = until("root", 2030, true);
        let (middle, middle_key) = until("middle", 2040, true);
        let (leaf, leaf_key) = until("jane", 2050, false);
        let root_pem = root.self_signed(&root_key).expect("signed").pem();
        let root = Issuer::new(root, root_key);
        let of_middle = middle.signed_by(&middle_key, &root).expect("signed").der().clone();
        let leaf = leaf.signed_by(&leaf_key, &Issuer::new(middle, middle_key)).expect("signed").der().clone();
        let chain = [leaf.clone(), of_middle];
        let verifier = Verifier::new(root_pem.as_bytes()).expect("an authority");
        let at = |seconds: u64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        // In 2027.
        let then = 1_800_000_000;
        assert_eq!(verifier.verify_at(&chain, at(then)).expect("good").name, "jane");
        assert!(verifier.verify_at(&chain[..1], at(then + REMEMBERED)).is_ok());
        assert!(verifier.verify_at(&chain[..1], at(then + REMEMBERED + 1)).is_err(), "nobody says who signed it");
        // In 2031.
        assert!(verifier.verify_at(&chain, at(1_930_000_000)).is_err(), "the authority has expired");
    }

    #[test]
    fn certificates_of_version_1_are_known_by_their_authority() {
        let chain =
            crate::cert::certificates(include_bytes!("../../testdata/version1/jane.crt")).expect("a certificate");
        let of = |authority: &[u8]| Verifier::new(authority).expect("an authority").verify(&chain);
        let user = of(include_bytes!("../../testdata/version1/ca.crt")).expect("a user");
        assert_eq!((user.name.as_str(), user.groups.join(",").as_str()), ("jane", "dev"));
        let other = crate::cert::self_signed("authority", &[], &[]).expect("a pair");
        assert!(of(other.certificate.as_bytes()).is_err());
    }
}
