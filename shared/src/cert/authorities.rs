//! Authorities, and certificates judged as Go's crypto/x509 judges them.
//!
//! webpki does the work. What it refuses on principle and Go takes is judged here, for it is what people have: a
//! certificate that is itself among the trusted (a webhook's own, given as its CA bundle), one that says it is an
//! authority (`openssl req -x509`), and one of version 1 (`openssl x509 -req` without extensions).

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

use super::{CertError, certificates, provider, signature};

/// Purpose of a certificate.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum KeyUsage {
    /// To be a server.
    Server,
    /// To be a client.
    Client,
}

/// Certificates that are trusted.
#[derive(Clone, Debug)]
pub struct Authorities {
    roots: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Authorities {
    /// # Errors
    /// Without a certificate, or with one that cannot be read.
    pub fn from_pem(pem: &[u8]) -> Result<Self, CertError> {
        Self::new(certificates(pem)?)
    }

    /// # Errors
    /// One cannot be read.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, CertError> {
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            // One that cannot be read is an error, whatever it may sign.
            RootCertStore::empty().add(certificate.clone())?;
            if parsed(certificate).is_some_and(|root| may_sign(&root)) {
                roots.add(certificate.clone())?;
            }
        }
        Ok(Self { roots, certificates, algorithms: provider().signature_verification_algorithms })
    }

    /// Builds the authorities from the certificates that can be parsed.
    pub(super) fn readable(certificates: Vec<CertificateDer<'static>>) -> Self {
        let mut roots = RootCertStore::empty();
        let signing = certificates.iter().filter(|root| parsed(root).is_some_and(|root| may_sign(&root)));
        roots.add_parsable_certificates(signing.cloned());
        Self { roots, certificates, algorithms: provider().signature_verification_algorithms }
    }

    /// Trust anchors for webpki: the certificates that may sign others, of which it asks no more.
    pub(crate) fn roots(&self) -> &RootCertStore {
        &self.roots
    }

    /// The judgement on what webpki would refuse on principle; none on what is left to it.
    pub(crate) fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
        usage: KeyUsage,
    ) -> Option<Result<(), Error>> {
        let (_, leaf) = X509Certificate::from_der(certificate).ok()?;
        let odd = leaf.version() != X509Version::V3 || leaf.is_ca();
        let trusted = self.certificates.contains(certificate) || (odd && self.issued(&leaf, now));
        trusted.then(|| may_be_used(&leaf, now, usage))
    }

    /// Refuses a chain when every authority that may stand behind it has expired or allows fewer intermediates: webpki
    /// does not ask that of its trust anchors.
    pub(crate) fn in_force(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Error> {
        let roots: Vec<_> = self.certificates.iter().filter_map(parsed).filter(may_sign).collect();
        let chain: Vec<_> = chain.iter().filter_map(parsed).collect();
        let behind = |root: &&X509Certificate<'_>| chain.iter().any(|c| c.issuer().as_raw() == root.subject().as_raw());
        let mut judged =
            roots.iter().filter(behind).map(|root| in_time(root, now).and_then(|()| long_enough(root, &chain)));
        let first = judged.next().unwrap_or(Ok(()));
        if first.is_ok() || judged.any(|other| other.is_ok()) { Ok(()) } else { first }
    }

    /// Reports whether one of the authorities signed the certificate. Authorities with name constraints are left to
    /// webpki.
    fn issued(&self, leaf: &X509Certificate<'_>, now: UnixTime) -> bool {
        self.certificates.iter().filter_map(|root| X509Certificate::from_der(root).ok()).any(|(_, root)| {
            root.subject().as_raw() == leaf.issuer().as_raw()
                && may_sign(&root)
                && root.name_constraints().is_ok_and(|constraints| constraints.is_none())
                && in_time(&root, now).is_ok()
                && self.signed(leaf, &root)
        })
    }

    fn signed(&self, leaf: &X509Certificate<'_>, by: &X509Certificate<'_>) -> bool {
        let oid = leaf.signature_algorithm.algorithm.as_bytes();
        let key = &by.public_key().subject_public_key.data;
        let message = leaf.tbs_certificate.as_ref();
        // The identifiers begin with a tag and a length of the object identifier.
        let mut ways = self.algorithms.all.iter().filter(|way| {
            let id = way.signature_alg_id();
            id.as_ref().get(2..2 + oid.len()) == Some(oid)
        });
        ways.any(|way| way.verify_signature(key, message, &leaf.signature_value.data).is_ok())
    }
}

fn may_be_used(leaf: &X509Certificate<'_>, now: UnixTime, usage: KeyUsage) -> Result<(), Error> {
    in_time(leaf, now)?;
    let stated = leaf.extended_key_usage().map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let fits = stated.is_none_or(|stated| {
        let stated = stated.value;
        stated.any || if usage == KeyUsage::Server { stated.server_auth } else { stated.client_auth }
    });
    if fits { Ok(()) } else { Err(Error::InvalidCertificate(CertificateError::InvalidPurpose)) }
}

/// True for an authority whose signature below another certificate counts (`Certificate.CheckSignatureFrom`): version 3
/// has to say so, older versions cannot.
fn may_sign(root: &X509Certificate<'_>) -> bool {
    (root.is_ca() || root.version() != X509Version::V3)
        && root.key_usage().is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()))
}

/// Refuses a chain with more intermediates below an authority than its `pathLenConstraint` allows.
fn long_enough(root: &X509Certificate<'_>, chain: &[X509Certificate<'_>]) -> Result<(), Error> {
    let constraint = root.basic_constraints().ok().flatten().and_then(|found| found.value.path_len_constraint);
    let (Some(allowed), Some((leaf, rest))) = (constraint, chain.split_first()) else { return Ok(()) };
    let (mut below, mut intermediates) = (leaf, 0);
    while below.issuer().as_raw() != root.subject().as_raw() && intermediates < chain.len() {
        let Some(next) = rest.iter().find(|next| next.subject().as_raw() == below.issuer().as_raw()) else { break };
        (below, intermediates) = (next, intermediates + 1);
    }
    let fits = u32::try_from(intermediates).is_ok_and(|count| count <= allowed);
    if fits { Ok(()) } else { Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) }
}

fn parsed<'c>(certificate: &'c CertificateDer<'_>) -> Option<X509Certificate<'c>> {
    X509Certificate::from_der(certificate).ok().map(|(_, parsed)| parsed)
}

fn in_time(certificate: &X509Certificate<'_>, now: UnixTime) -> Result<(), Error> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = certificate.validity();
    let refused = |why| Err(Error::InvalidCertificate(why));
    match () {
        () if now < validity.not_before.timestamp() => refused(CertificateError::NotValidYet),
        () if now > validity.not_after.timestamp() => refused(CertificateError::Expired),
        () => Ok(()),
    }
}

impl ServerCertVerifier for Authorities {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        self.judge(certificate, now, KeyUsage::Server).unwrap_or_else(|| {
            let all = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, all)?;
            let chain: Vec<_> = [certificate].into_iter().chain(intermediates).cloned().collect();
            self.in_force(&chain, now)
        })?;
        verify_server_name(&parsed, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature::tls12(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature::tls13(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use super::*;

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    /// The certificate of an authority, and one signed by it.
    fn signed(leaf: &CertificateParams) -> [CertificateDer<'static>; 2] {
        let (key, own) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
        let mut authority = params("authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = authority.self_signed(&key).expect("an authority").der().clone();
        let leaf = leaf.signed_by(&own, &Issuer::new(authority, key)).expect("signed").der().clone();
        [root, leaf]
    }

    fn serves(trusted: &CertificateDer<'static>, shown: &CertificateDer<'static>, name: &str) -> Result<(), Error> {
        let authorities = Authorities::new(vec![trusted.clone()]).expect("authorities");
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        authorities.verify_server_cert(shown, &[], &name, &[], UnixTime::now()).map(|_| ())
    }

    #[test]
    fn what_is_trusted_needs_no_authority() {
        let [root, leaf] = signed(&params("leaf"));
        assert_eq!(serves(&root, &leaf, "localhost"), Ok(()));
        assert_eq!(serves(&leaf, &leaf, "localhost"), Ok(()));
        // An authority may serve by itself.
        assert_eq!(serves(&root, &root, "localhost"), Ok(()));
        let [other, _] = signed(&params("leaf"));
        assert!(serves(&other, &leaf, "localhost").is_err());
        assert!(serves(&leaf, &root, "localhost").is_err());
        assert!(serves(&leaf, &leaf, "elsewhere").is_err());
    }

    #[test]
    fn authorities_below_an_authority_serve() {
        let mut leaf = params("leaf");
        leaf.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let [root, leaf] = signed(&leaf);
        assert_eq!(serves(&root, &leaf, "localhost"), Ok(()));
        let [other, _] = signed(&params("leaf"));
        assert!(serves(&other, &leaf, "localhost").is_err(), "the same name, and another key");
    }

    /// A certificate signed by one of these parameters, which is trusted.
    fn below(authority: CertificateParams) -> [CertificateDer<'static>; 2] {
        let (key, own) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
        let root = authority.self_signed(&key).expect("a root").der().clone();
        let leaf = params("leaf").signed_by(&own, &Issuer::new(authority, key)).expect("signed").der().clone();
        [root, leaf]
    }

    #[test]
    fn a_trusted_certificate_that_is_no_authority_signs_nothing() {
        let plain = params("client");
        let mut not_ca = params("client");
        not_ca.is_ca = IsCa::ExplicitNoCa;
        let mut signs_data_only = params("authority");
        signs_data_only.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        signs_data_only.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        for (name, authority) in [("plain", plain), ("CA:FALSE", not_ca), ("usage", signs_data_only)] {
            let [root, leaf] = below(authority);
            assert!(serves(&root, &leaf, "localhost").is_err(), "{name}");
            let authorities = Authorities::new(vec![root.clone()]).expect("read");
            assert!(authorities.roots().is_empty(), "{name}");
        }
    }

    #[test]
    fn an_authority_allows_no_more_intermediates_than_it_says() {
        let chain = |allowed: u8| {
            let [root_key, middle_key, key] = [(); 3].map(|()| KeyPair::generate().expect("a key"));
            let mut authority = params("authority");
            authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(allowed));
            let root = authority.self_signed(&root_key).expect("an authority").der().clone();
            let mut middle = params("middle");
            middle.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let issuer = Issuer::new(authority, root_key);
            let shown = middle.signed_by(&middle_key, &issuer).expect("signed").der().clone();
            let leaf = params("leaf").signed_by(&key, &Issuer::new(middle, middle_key)).expect("signed").der().clone();
            let authorities = Authorities::new(vec![root]).expect("authorities");
            let name = ServerName::try_from("localhost").expect("a name");
            authorities.verify_server_cert(&leaf, &[shown], &name, &[], UnixTime::now()).map(|_| ())
        };
        assert_eq!(chain(1), Ok(()));
        assert_eq!(chain(0), Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)));
    }

    #[test]
    fn time_and_purpose_count_for_what_is_trusted() {
        let refused = |change: fn(&mut CertificateParams), usage| {
            let mut leaf = params("leaf");
            change(&mut leaf);
            let [_, leaf] = signed(&leaf);
            let authorities = Authorities::new(vec![leaf.clone()]).expect("authorities");
            match authorities.judge(&leaf, UnixTime::now(), usage) {
                Some(Err(Error::InvalidCertificate(why))) => Some(why),
                Some(Ok(())) => None,
                other => panic!("{other:?}"),
            }
        };
        let client = |p: &mut CertificateParams| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let past = |p: &mut CertificateParams| p.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let future = |p: &mut CertificateParams| p.not_before = rcgen::date_time_ymd(3000, 1, 1);
        assert_eq!(refused(|_| (), KeyUsage::Server), None);
        assert_eq!(refused(client, KeyUsage::Client), None);
        assert_eq!(refused(client, KeyUsage::Server), Some(CertificateError::InvalidPurpose));
        assert_eq!(refused(past, KeyUsage::Server), Some(CertificateError::Expired));
        assert_eq!(refused(future, KeyUsage::Server), Some(CertificateError::NotValidYet));
    }
}
