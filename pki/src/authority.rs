//! Certificate authorities, and the certificates that they sign: in memory, and on disk.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType,
};
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

use crate::files::{PUBLIC, SECRET, extended, read, write};
use crate::keys::{Algorithm, PrivateKey};

/// Time before now at which certificates begin, for clocks that are late: kubeadm's `CertificateBackdate`.
pub const BACKDATE: Duration = Duration::from_secs(5 * 60);
/// Lifetime of an authority: kubeadm's `CACertificateValidityPeriod`.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// Lifetime of a certificate: kubeadm's `CertificateValidityPeriod`.
pub const VALIDITY: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time of an issue, and how long what is issued lasts.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// Since 1970.
    pub now: Duration,
    /// Lifetime from then on.
    pub validity: Duration,
}

impl Term {
    /// A term that starts now.
    ///
    /// # Errors
    /// When the clock is before 1970.
    pub fn from_now(validity: Duration) -> Result<Self> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Self { now: now.context("the clock is before 1970")?, validity })
    }

    fn limit(self, params: &mut CertificateParams) {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + self.now.saturating_sub(BACKDATE);
        params.not_after = epoch + self.now + self.validity;
    }
}

/// Uses of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// By clients.
    Client,
    /// By servers.
    Server,
    /// By servers that are clients of each other.
    Both,
}

/// A certificate to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Common name of the subject: the user, of a client.
    pub common_name: String,
    /// Organizations of the subject: the groups, of a client.
    pub organizations: Vec<String>,
    /// DNS names and addresses of a server.
    pub names: Vec<String>,
    /// Uses of it.
    pub purpose: Purpose,
}

impl Leaf {
    /// The certificate of a client.
    #[must_use]
    pub fn client(common_name: &str, organization: Option<&str>) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organizations: organization.map(str::to_owned).into_iter().collect(),
            names: Vec::new(),
            purpose: Purpose::Client,
        }
    }

    /// The certificate of a server with these DNS names and addresses.
    #[must_use]
    pub fn server(common_name: &str, names: Vec<String>) -> Self {
        Self { common_name: common_name.to_owned(), organizations: Vec::new(), names, purpose: Purpose::Server }
    }

    /// The certificate of a server that is a client of others of its kind.
    #[must_use]
    pub fn peer(common_name: &str, names: Vec<String>) -> Self {
        Self { purpose: Purpose::Both, ..Self::server(common_name, names) }
    }

    /// The demand that a certificate in PEM was made of.
    ///
    /// # Errors
    /// As [`Leaf::of`], and when it is none.
    pub fn of_pem(certificate: &str) -> Result<Self> {
        Self::of(&parse(certificate)?.parse_x509()?)
    }

    /// The demand that a certificate was made of.
    ///
    /// # Errors
    /// When it has a name of another kind than DNS names and addresses, or no common name.
    pub fn of(certificate: &X509Certificate) -> Result<Self> {
        let subject = certificate.subject();
        let common_name = subject.iter_common_name().next().context("has no common name")?.as_str()?.to_owned();
        let organizations = subject.iter_organization().map(|name| name.as_str().map(str::to_owned));
        let mut names = Vec::new();
        for name in certificate.subject_alternative_name()?.iter().flat_map(|names| &names.value.general_names) {
            names.push(match name {
                GeneralName::DNSName(name) => (*name).to_owned(),
                GeneralName::IPAddress(bytes) => {
                    address(bytes).context("has an address of no known length")?.to_string()
                }
                other => bail!("has a name that is neither of DNS nor an address: {other}"),
            });
        }
        let usages = certificate.extended_key_usage()?.context("says nothing of its uses")?.value;
        let purpose = match (usages.client_auth, usages.server_auth) {
            (true, true) => Purpose::Both,
            (_, true) => Purpose::Server,
            _ => Purpose::Client,
        };
        Ok(Self { common_name, organizations: organizations.collect::<Result<_, _>>()?, names, purpose })
    }

    /// The parameters that an authority is asked to sign.
    ///
    /// # Errors
    /// When a name is neither an address nor one that a certificate can hold.
    pub fn params(&self) -> Result<CertificateParams> {
        let mut params = named(&self.common_name, &self.organizations);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        if self.purpose != Purpose::Client {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if self.purpose != Purpose::Server {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        for name in &self.names {
            let name = match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into().with_context(|| format!("{name} is no name"))?),
            };
            if !params.subject_alt_names.contains(&name) {
                params.subject_alt_names.push(name);
            }
        }
        Ok(params)
    }
}

/// A certificate and its key, as PEM.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Private key of the certificate.
    pub key: String,
}

/// A certificate authority.
pub struct Authority {
    /// PEM of the authority's certificate.
    pub certificate_pem: String,
    /// Name in messages: a file, or an entry of a Secret.
    origin: String,
    key: Option<PrivateKey>,
}

impl Authority {
    /// Makes an authority, which messages call `origin`.
    ///
    /// # Errors
    /// When the name is none that a certificate can hold.
    pub fn create(origin: String, common_name: &str, algorithm: Algorithm, term: Term) -> Result<Self> {
        let key = PrivateKey::generate(algorithm)?;
        let mut params = named(common_name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
        params.subject_alt_names = vec![SanType::DnsName(common_name.try_into()?)];
        term.limit(&mut params);
        let certificate_pem = params.self_signed(&key.pair)?.pem();
        Ok(Self { certificate_pem, origin, key: Some(key) })
    }

    /// The authority of a certificate and, unless it is somebody else's, its key; messages call it `origin`.
    ///
    /// # Errors
    /// When the certificate is none of an authority, or the key is another's.
    pub fn from_pem(origin: String, certificate_pem: String, key: Option<PrivateKey>) -> Result<Self> {
        let parsed = parse(&certificate_pem).with_context(|| origin.clone())?;
        let x509 = parsed.parse_x509().with_context(|| origin.clone())?;
        ensure!(x509.is_ca(), "{origin} is not the certificate of an authority");
        let own = |key: &PrivateKey| x509.public_key().subject_public_key.data == key.pair.public_key_raw();
        let stem = origin.strip_suffix(".crt").unwrap_or(&origin);
        ensure!(key.as_ref().is_none_or(own), "{stem}.key is not the key of {origin}");
        Ok(Self { certificate_pem, origin, key })
    }

    /// PEM of its key, unless that is elsewhere.
    #[must_use]
    pub fn key_pem(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.pem.as_str())
    }

    /// The authority of `stem`.crt and `stem`.key. Without a certificate it is made; without a key alone it is somebody
    /// else's, and signs nothing here.
    ///
    /// # Errors
    /// When a file cannot be read or written, the certificate is none of an authority, or the key is another's.
    pub fn open_or_create(stem: &Path, common_name: &str, algorithm: Algorithm, validity: Duration) -> Result<Self> {
        let (certificate, key) = (extended(stem, "crt"), extended(stem, "key"));
        if !certificate.exists() {
            ensure!(!key.exists(), "{} is there without {}", key.display(), certificate.display());
            let origin = certificate.display().to_string();
            let made = Self::create(origin, common_name, algorithm, Term::from_now(validity)?)?;
            // The key first: a certificate without a key would be an authority of somebody else.
            write(&key, made.key_pem().unwrap_or_default(), SECRET)?;
            write(&certificate, &made.certificate_pem, PUBLIC)?;
        }
        Self::open(stem)
    }

    /// The authority that is there.
    ///
    /// # Errors
    /// See [`Authority::open_or_create`].
    pub fn open(stem: &Path) -> Result<Self> {
        let (file, key) = (extended(stem, "crt"), extended(stem, "key"));
        let certificate_pem = read(&file)?;
        let own = if key.exists() {
            Some(PrivateKey::from_pem(&read(&key)?).with_context(|| key.display().to_string())?)
        } else {
            None
        };
        Self::from_pem(file.display().to_string(), certificate_pem, own)
    }

    /// Reports whether its key is elsewhere: it signs nothing here.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.key.is_none()
    }

    /// Makes a key and signs a certificate for it that lasts `validity` from now on, and no longer than the authority.
    ///
    /// # Errors
    /// When the authority's key is elsewhere or the authority has expired.
    pub fn issue(&self, params: CertificateParams, algorithm: Algorithm, validity: Duration) -> Result<Issued> {
        self.issue_at(params, algorithm, Term::from_now(validity)?)
    }

    /// Makes a key and signs a certificate for it as [`Authority::issue`] does, at another time than now.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_at(&self, mut params: CertificateParams, algorithm: Algorithm, term: Term) -> Result<Issued> {
        term.limit(&mut params);
        let own = parse(&self.certificate_pem)?;
        let end = own.parse_x509()?.validity().not_after.to_datetime();
        ensure!(end > params.not_before + BACKDATE, "{} has expired", self.origin);
        params.not_after = params.not_after.min(end);
        self.sign(params, algorithm)
    }

    /// Makes a key and signs a certificate for it with exactly these limits of time.
    ///
    /// # Errors
    /// When the authority's key is elsewhere.
    pub fn sign(&self, mut params: CertificateParams, algorithm: Algorithm) -> Result<Issued> {
        let own = self.key.as_ref().with_context(|| {
            format!("{} has no key here: certificates have to come from whoever holds it", self.origin)
        })?;
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate_pem, &own.pair)?;
        let key = PrivateKey::generate(algorithm)?;
        Ok(Issued { certificate: params.signed_by(&key.pair, &issuer)?.pem(), key: key.pem })
    }

    /// Refuses a certificate that this authority did not sign or that has expired.
    ///
    /// # Errors
    /// In these cases, and when it cannot be read.
    pub fn verify(&self, certificate: &str) -> Result<()> {
        let leaf = parse(certificate)?;
        let leaf = leaf.parse_x509()?;
        ensure!(self.has_signed(&leaf)?, "not signed by {}", self.origin);
        ensure!(leaf.validity().is_valid(), "expired or not valid yet: {}", leaf.validity().not_after);
        Ok(())
    }

    /// Reports whether it has signed this certificate.
    ///
    /// # Errors
    /// When its own certificate cannot be read.
    pub fn has_signed(&self, leaf: &X509Certificate) -> Result<bool> {
        let own = parse(&self.certificate_pem)?;
        Ok(leaf.verify_signature(Some(own.parse_x509()?.public_key())).is_ok())
    }

    /// Keeps the certificate of `stem` that is there, or makes it.
    ///
    /// # Errors
    /// When one is there that this authority did not sign, that has expired, that has no key or lacks a name that is asked
    /// for, as kubeadm refuses it, or when a file cannot be read or written.
    pub fn keep_or_issue(&self, stem: &Path, leaf: &Leaf, algorithm: Algorithm, validity: Duration) -> Result<()> {
        let (certificate, key) = (extended(stem, "crt"), extended(stem, "key"));
        if certificate.exists() {
            let pem = read(&certificate)?;
            self.verify(&pem).with_context(|| certificate.display().to_string())?;
            check_names(&pem, &leaf.names).with_context(|| certificate.display().to_string())?;
            return check_pair(&pem, &read(&key)?).with_context(|| certificate.display().to_string());
        }
        let issued = self.issue(leaf.params()?, algorithm, validity)?;
        write(&key, &issued.key, SECRET)?;
        write(&certificate, &issued.certificate, PUBLIC)
    }
}

/// kubeadm's `--discovery-token-ca-cert-hash` of an authority: the SHA-256 of its public key.
///
/// # Errors
/// When the certificate cannot be read.
pub fn public_key_hash(certificate_pem: &str) -> Result<String> {
    let parsed = parse(certificate_pem)?;
    let digest = Sha256::digest(parsed.parse_x509()?.public_key().raw);
    Ok(format!("sha256:{digest:x}"))
}

/// Refuses a certificate and a key that are not each other's.
pub(crate) fn check_pair(certificate: &str, key: &str) -> Result<()> {
    let key = PrivateKey::from_pem(key)?;
    let parsed = parse(certificate)?;
    ensure!(
        parsed.parse_x509()?.public_key().subject_public_key.data == key.pair.public_key_raw(),
        "the key beside it is another's"
    );
    Ok(())
}

/// Refuses a certificate that lacks one of these names; more than these are fine.
fn check_names(certificate: &str, wanted: &[String]) -> Result<()> {
    let parsed = parse(certificate)?;
    let x509 = parsed.parse_x509()?;
    let own = x509.subject_alternative_name()?.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let own: Vec<String> = own.iter().filter_map(text).collect();
    let missing: Vec<&str> =
        wanted.iter().filter(|name| !own.iter().any(|own| covers(own, name))).map(String::as_str).collect();
    ensure!(
        missing.is_empty(),
        "is valid for {}, not for {}; remove the certificate and its key to have them made anew",
        own.join(", "),
        missing.join(", ")
    );
    Ok(())
}

/// A DNS name or an address, as text.
fn text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
        _ => None,
    }
}

/// Reports whether a name of a certificate stands for another one: the same, or with `*` in place of the first label.
fn covers(own: &str, name: &str) -> bool {
    if let (Ok(own), Ok(name)) = (own.parse::<IpAddr>(), name.parse::<IpAddr>()) {
        return own == name;
    }
    let rest = |name: &str| name.split_once('.').map(|(_, rest)| rest.to_ascii_lowercase());
    own.eq_ignore_ascii_case(name)
        || own.strip_prefix("*.").is_some_and(|own| rest(name).is_some_and(|rest| rest.eq_ignore_ascii_case(own)))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    v4.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}

/// The first certificate of a file.
pub(crate) fn parse(pem: &str) -> Result<Pem> {
    let blocks = Pem::iter_from_buffer(pem.as_bytes()).take_while(Result::is_ok).flatten();
    blocks.into_iter().find(|block| block.label == "CERTIFICATE").ok_or_else(|| anyhow!("holds no certificate"))
}

fn named(common_name: &str, organizations: &[String]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for organization in organizations {
        params.distinguished_name.push(DnType::OrganizationName, organization.as_str());
    }
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against openssl x509 -pubkey | openssl pkey -pubin -outform der | sha256sum.
    #[test]
    fn the_hash_is_of_the_public_key() {
        let certificate = include_str!("../tests/data/ca.crt");
        let expected = include_str!("../tests/data/ca.hash").trim();
        assert_eq!(public_key_hash(certificate).unwrap(), format!("sha256:{expected}"));
    }
}
