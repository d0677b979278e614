//! Authorities and the certificates they issue, in the data of Secrets and under kubeadm's names. What is there and good
//! is kept: an authority for ever, a certificate until a third of its time is left or its names change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The decoded data of a Secret.
pub type Data = BTreeMap<String, Vec<u8>>;

/// Validity of an authority: kubeadm's ten years.
const AUTHORITY_VALIDITY: Duration = Duration::from_hours(10 * 365 * 24);
/// Allowed difference of clocks.
const CLOCK_SKEW: Duration = Duration::from_mins(5);
/// The part of a certificate's time that must be left: one in this many.
const RENEWAL_FRACTION: u32 = 3;

/// A certificate authority.
#[derive(Clone, Debug)]
pub struct SigningAuthority {
    /// PEM of the certificate.
    pub certificate: String,
    key: String,
}

/// A certificate that somebody needs.
#[derive(Clone, Debug)]
pub struct LeafRequest {
    /// Stem of the entries in the data: `STEM.crt` and `STEM.key`.
    pub stem: &'static str,
    /// Subject's common name: the user's, of a client.
    pub common_name: String,
    /// Subject's organisation: the user's group, of a client.
    pub organisation: Option<&'static str>,
    /// Names and addresses it serves; empty for one that is a client's alone.
    pub names: Vec<String>,
}

impl LeafRequest {
    /// A client's certificate.
    #[must_use]
    pub fn client(stem: &'static str, common_name: &str, organisation: Option<&'static str>) -> Self {
        Self { stem, common_name: common_name.into(), organisation, names: Vec::new() }
    }

    /// A server's certificate, with which it may also be a client.
    #[must_use]
    pub fn server(stem: &'static str, common_name: &str, names: Vec<String>) -> Self {
        Self { stem, common_name: common_name.into(), organisation: None, names }
    }
}

/// The time at which certificates are issued, and their validity.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// Since 1970.
    pub now: Duration,
    /// Validity of a certificate.
    pub validity: Duration,
}

/// The authority in the data, made when there is none.
///
/// # Errors
/// When one half of it is missing or unreadable: an authority is never replaced, for every node trusts it.
pub fn authority(data: &mut Data, stem: &str, common_name: &str, now: Duration) -> Result<SigningAuthority> {
    let (certificate, key) = (format!("{stem}.crt"), format!("{stem}.key"));
    match (data.contains_key(&certificate), data.contains_key(&key)) {
        (true, true) => {}
        (false, false) => {
            let mut params = named(common_name, None);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages =
                vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
            set_validity(&mut params, Term { now, validity: AUTHORITY_VALIDITY });
            let pair = KeyPair::generate()?;
            data.insert(certificate.clone(), params.self_signed(&pair)?.pem().into_bytes());
            data.insert(key.clone(), pair.serialize_pem().into_bytes());
        }
        _ => anyhow::bail!("{certificate} and {key} belong together and one is missing; put it back"),
    }
    Ok(SigningAuthority { certificate: text(data, &certificate)?, key: text(data, &key)? })
}

/// The pair that service account tokens are signed with, made when there is none.
///
/// # Errors
/// When the key that is there cannot be read.
pub fn service_account_keys(data: &mut Data) -> Result<()> {
    if !data.contains_key("sa.key") {
        data.insert("sa.key".into(), KeyPair::generate()?.serialize_pem().into_bytes());
        data.remove("sa.pub");
    }
    if !data.contains_key("sa.pub") {
        let pair = KeyPair::from_pem(&text(data, "sa.key")?).context("sa.key")?;
        data.insert("sa.pub".into(), pair.public_key_pem().into_bytes());
    }
    Ok(())
}

/// Issues the certificate unless the data have a good one; the reason for which it was issued.
///
/// # Errors
/// When the authority cannot be read or a name is none.
pub fn leaf(
    data: &mut Data,
    authority: &SigningAuthority,
    leaf: &LeafRequest,
    term: Term,
) -> Result<Option<&'static str>> {
    let (certificate, key) = (format!("{}.crt", leaf.stem), format!("{}.key", leaf.stem));
    let present = data.get(&certificate).filter(|_| data.contains_key(&key));
    let Some(reason) = fault(present.map(Vec::as_slice), authority, leaf, term)? else { return Ok(None) };
    let mut params = named(&leaf.common_name, leaf.organisation);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !leaf.names.is_empty() {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.use_authority_key_identifier_extension = true;
    for name in &leaf.names {
        params.subject_alt_names.push(match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into().with_context(|| format!("{name} is no name"))?),
        });
    }
    set_validity(&mut params, term);
    let pair = KeyPair::generate()?;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
    data.insert(certificate, params.signed_by(&pair, &issuer)?.pem().into_bytes());
    data.insert(key, pair.serialize_pem().into_bytes());
    Ok(Some(reason))
}

/// The reason for which the certificate that is there will not do.
fn fault(
    present: Option<&[u8]>,
    authority: &SigningAuthority,
    leaf: &LeafRequest,
    term: Term,
) -> Result<Option<&'static str>> {
    let Some(present) = present else { return Ok(Some("missing")) };
    let Ok(der) = der(present) else { return Ok(Some("unreadable")) };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else { return Ok(Some("unreadable")) };
    let issuer = self::der(authority.certificate.as_bytes())?;
    let (_, issuer) = X509Certificate::from_der(&issuer).context("the authority's certificate")?;
    let left = certificate.validity().not_after.timestamp().saturating_sub(i64::try_from(term.now.as_secs())?);
    Ok(if issuer_key(&certificate) != own_key(&issuer) {
        Some("of another authority")
    } else if subject(&certificate) != (Some(leaf.common_name.clone()), leaf.organisation.map(str::to_owned)) {
        Some("of another subject")
    } else if names(&certificate) != leaf.names.iter().map(|name| canonical(name)).collect() {
        Some("of other names")
    } else if left < i64::try_from((term.validity / RENEWAL_FRACTION).as_secs())? {
        Some("about to end")
    } else {
        None
    })
}

fn issuer_key(certificate: &X509Certificate) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(found) => found.key_identifier.as_ref().map(|key| key.0.to_vec()),
        _ => None,
    })
}

fn own_key(certificate: &X509Certificate) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
        _ => None,
    })
}

fn subject(certificate: &X509Certificate) -> (Option<String>, Option<String>) {
    let subject = certificate.subject();
    let first = |value: Option<&x509_parser::x509::AttributeTypeAndValue>| {
        value.and_then(|value| value.as_str().ok()).map(str::to_owned)
    };
    (first(subject.iter_common_name().next()), first(subject.iter_organization().next()))
}

fn names(certificate: &X509Certificate) -> BTreeSet<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    let name = |name: &GeneralName| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    };
    names.value.general_names.iter().filter_map(name).collect()
}

fn canonical(name: &str) -> String {
    name.parse::<IpAddr>().map_or_else(|_| name.to_owned(), |address| address.to_string())
}

fn named(common_name: &str, organisation: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    if let Some(organisation) = organisation {
        params.distinguished_name.push(DnType::OrganizationName, organisation);
    }
    params
}

fn set_validity(params: &mut CertificateParams, term: Term) {
    let moment = |since_1970: Duration| rcgen::date_time_ymd(1970, 1, 1) + since_1970;
    params.not_before = moment(term.now.saturating_sub(CLOCK_SKEW));
    params.not_after = moment(term.now + term.validity);
}

/// The first block of a PEM file.
///
/// # Errors
/// When it has none.
pub fn der(pem: &[u8]) -> Result<Vec<u8>> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).map_err(|error| anyhow!("not PEM: {error}"))?;
    Ok(block.contents)
}

/// An entry of the data that is text.
///
/// # Errors
/// When it is missing or not text.
pub fn text(data: &Data, key: &str) -> Result<String> {
    let bytes = data.get(key).with_context(|| format!("there is no {key}"))?;
    String::from_utf8(bytes.clone()).with_context(|| format!("{key} is not text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term { now: Duration::from_hours(24 * 20_000), validity: Duration::from_hours(24 * 365) };

    fn serving(names: &[&str]) -> LeafRequest {
        LeafRequest::server("apiserver", "kube-apiserver", names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn issued() -> (Data, SigningAuthority) {
        let mut data = Data::new();
        let ca = authority(&mut data, "ca", "kubernetes", TERM.now).expect("an authority");
        let reason = leaf(&mut data, &ca, &serving(&["t1", "10.96.0.1"]), TERM).expect("a certificate");
        assert_eq!(reason, Some("missing"));
        (data, ca)
    }

    #[test]
    fn good_certificates_and_authorities_are_kept() {
        let (mut data, ca) = issued();
        let before = data.clone();
        authority(&mut data, "ca", "kubernetes", TERM.now).expect("an authority");
        // The order of names, and how an address is written, say nothing.
        assert_eq!(leaf(&mut data, &ca, &serving(&["10.96.0.1", "t1"]), TERM).expect("a certificate"), None);
        assert_eq!(data, before);
    }

    #[test]
    fn certificates_are_issued_anew_for_each_reason() {
        let later = |days: u64| Term { now: TERM.now + Duration::from_hours(24 * days), ..TERM };
        let mut client = serving(&["t1", "10.96.0.1"]);
        client.common_name = "somebody".into();
        for (wanted, term, reason) in [
            (serving(&["t1", "10.96.0.1"]), later(240), None),
            (serving(&["t1", "10.96.0.1"]), later(250), Some("about to end")),
            (serving(&["t1"]), TERM, Some("of other names")),
            (serving(&["t1", "10.96.0.1", "fd00::1"]), TERM, Some("of other names")),
            (client, TERM, Some("of another subject")),
        ] {
            let (mut data, ca) = issued();
            assert_eq!(leaf(&mut data, &ca, &wanted, term).expect("a certificate"), reason, "{wanted:?}");
            assert_eq!(leaf(&mut data, &ca, &wanted, term).expect("a certificate"), None, "{wanted:?}");
        }
        let (mut data, _) = issued();
        let other = authority(&mut Data::new(), "ca", "kubernetes", TERM.now).expect("an authority");
        let reason = leaf(&mut data, &other, &serving(&["t1", "10.96.0.1"]), TERM).expect("a certificate");
        assert_eq!(reason, Some("of another authority"));
        data.insert("apiserver.crt".into(), b"rubbish".to_vec());
        let reason = leaf(&mut data, &other, &serving(&["t1"]), TERM).expect("a certificate");
        assert_eq!(reason, Some("unreadable"));
    }

    #[test]
    fn half_an_authority_is_not_replaced() {
        let (mut data, _) = issued();
        data.remove("ca.key");
        let before = data.clone();
        let error = authority(&mut data, "ca", "kubernetes", TERM.now).expect_err("half an authority");
        assert_eq!(error.to_string(), "ca.crt and ca.key belong together and one is missing; put it back");
        assert_eq!(data, before);
    }

    #[test]
    fn service_account_keys_are_kept_and_belong_together() {
        let mut data = Data::new();
        service_account_keys(&mut data).expect("keys");
        let before = data.clone();
        data.remove("sa.pub");
        service_account_keys(&mut data).expect("keys");
        assert_eq!(data, before);
    }
}
