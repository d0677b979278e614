//! Authorities and the certificates that they issue, as entries of the data of Secrets under kubeadm's names. An authority
//! that is there is kept for ever, a certificate until a third of its time is left or its demand changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use x509_parser::certificate::X509Certificate;

use crate::authority::{AUTHORITY_VALIDITY, Authority, Issued, Leaf, Term, check_pair, parse};
use crate::keys::{Algorithm, PrivateKey};

/// The decoded data of a Secret.
pub type Data = BTreeMap<String, Vec<u8>>;

/// Kind of new keys: small, for a Secret holds many.
const ALGORITHM: Algorithm = Algorithm::EcdsaP256;
/// The part of a certificate's time that must be left: one in this many.
const RENEWAL_FRACTION: u32 = 3;

/// The authority of the entries `STEM.crt` and `STEM.key`, made when there is none.
///
/// # Errors
/// When one half of it is missing or unreadable: an authority is never replaced, for every node trusts it.
pub fn authority(data: &mut Data, stem: &str, common_name: &str, now: Duration) -> Result<Authority> {
    let (certificate, key) = (format!("{stem}.crt"), format!("{stem}.key"));
    match (data.contains_key(&certificate), data.contains_key(&key)) {
        (true, true) => {
            let own = PrivateKey::from_pem(&text(data, &key)?).with_context(|| key.clone())?;
            Authority::from_pem(certificate.clone(), text(data, &certificate)?, Some(own))
        }
        (false, false) => {
            let term = Term { now, validity: AUTHORITY_VALIDITY };
            let made = Authority::create(certificate.clone(), common_name, ALGORITHM, term)?;
            data.insert(key, made.key_pem().unwrap_or_default().into());
            data.insert(certificate, made.certificate_pem.clone().into_bytes());
            Ok(made)
        }
        _ => bail!("{certificate} and {key} belong together and one is missing; put it back"),
    }
}

/// The pair that service account tokens are signed with, made when there is none: `sa.key` and `sa.pub`.
///
/// # Errors
/// When the key that is there cannot be read.
pub fn service_account_keys(data: &mut Data) -> Result<()> {
    if !data.contains_key("sa.key") {
        data.insert("sa.key".into(), PrivateKey::generate(ALGORITHM)?.pem.into_bytes());
        data.remove("sa.pub");
    }
    if !data.contains_key("sa.pub") {
        let key = PrivateKey::from_pem(&text(data, "sa.key")?).context("sa.key")?;
        data.insert("sa.pub".into(), key.pair.public_key_pem().into_bytes());
    }
    Ok(())
}

/// Issues the certificate of the entries `STEM.crt` and `STEM.key` unless a good one is there; the reason for which it
/// was issued.
///
/// # Errors
/// When the authority has expired or a name is none.
pub fn certificate(
    data: &mut Data,
    stem: &str,
    ca: &Authority,
    leaf: &Leaf,
    term: Term,
) -> Result<Option<&'static str>> {
    let (certificate, key) = (format!("{stem}.crt"), format!("{stem}.key"));
    let Some(reason) = fault(text(data, &certificate), text(data, &key), ca, leaf, term)? else { return Ok(None) };
    let issued = ca.issue_at(leaf.params()?, ALGORITHM, term)?;
    data.insert(certificate, issued.certificate.into_bytes());
    data.insert(key, issued.key.into_bytes());
    Ok(Some(reason))
}

/// The certificate and the key of the entries `STEM.crt` and `STEM.key`.
///
/// # Errors
/// When one is missing or not text.
pub fn issued(data: &Data, stem: &str) -> Result<Issued> {
    Ok(Issued { certificate: text(data, &format!("{stem}.crt"))?, key: text(data, &format!("{stem}.key"))? })
}

/// An entry of the data that is text.
///
/// # Errors
/// When it is missing or not text.
pub fn text(data: &Data, key: &str) -> Result<String> {
    let bytes = data.get(key).with_context(|| format!("there is no {key}"))?;
    String::from_utf8(bytes.clone()).with_context(|| format!("{key} is not text"))
}

/// The time at which a certificate begins, since 1970.
///
/// # Errors
/// When it cannot be read.
pub fn beginning(certificate_pem: &str) -> Result<Duration> {
    let begins = parse(certificate_pem)?.parse_x509()?.validity().not_before.timestamp();
    Ok(Duration::from_secs(begins.try_into().unwrap_or_default()))
}

/// The reason for which the certificate that is there will not do.
fn fault(
    present: Result<String>,
    key: Result<String>,
    ca: &Authority,
    leaf: &Leaf,
    term: Term,
) -> Result<Option<&'static str>> {
    let (Ok(present), Ok(key)) = (present, key) else { return Ok(Some("missing")) };
    let Ok(parsed) = parse(&present) else { return Ok(Some("unreadable")) };
    let Ok(certificate) = parsed.parse_x509() else { return Ok(Some("unreadable")) };
    if !ca.has_signed(&certificate)? {
        return Ok(Some("of another authority"));
    }
    let Ok(there) = Leaf::of(&certificate) else { return Ok(Some("unreadable")) };
    Ok(if (&there.common_name, &there.organizations) != (&leaf.common_name, &leaf.organizations) {
        Some("of another subject")
    } else if names(&there) != names(leaf) {
        Some("of other names")
    } else if there.purpose != leaf.purpose {
        Some("of other uses")
    } else if check_pair(&present, &key).is_err() {
        Some("of another key")
    } else if is_ending(&certificate, ca, term)? {
        Some("about to end")
    } else {
        None
    })
}

/// Reports whether too little of a certificate's time is left, and a new one would last longer: none outlives its
/// authority.
fn is_ending(certificate: &X509Certificate, ca: &Authority, term: Term) -> Result<bool> {
    let own = parse(&ca.certificate_pem)?;
    let authority_end = own.parse_x509()?.validity().not_after.timestamp();
    let end = certificate.validity().not_after.timestamp();
    let left = end.saturating_sub(i64::try_from(term.now.as_secs())?);
    Ok(end < authority_end && left < i64::try_from((term.validity / RENEWAL_FRACTION).as_secs())?)
}

/// The names of a certificate in any order, and however an address is written.
fn names(leaf: &Leaf) -> BTreeSet<String> {
    let canonical = |name: &String| name.parse::<IpAddr>().map_or_else(|_| name.clone(), |address| address.to_string());
    leaf.names.iter().map(canonical).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term { now: Duration::from_hours(24 * 20_000), validity: Duration::from_hours(24 * 365) };

    fn serving(names: &[&str]) -> Leaf {
        Leaf::server("kube-apiserver", names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn issue(data: &mut Data, ca: &Authority, leaf: &Leaf, term: Term) -> Option<&'static str> {
        certificate(data, "apiserver", ca, leaf, term).unwrap()
    }

    fn made() -> (Data, Authority) {
        let mut data = Data::new();
        let ca = authority(&mut data, "ca", "kubernetes", TERM.now).unwrap();
        assert_eq!(issue(&mut data, &ca, &serving(&["t1", "10.96.0.1"]), TERM), Some("missing"));
        (data, ca)
    }

    #[test]
    fn good_certificates_and_authorities_are_kept() {
        let (mut data, ca) = made();
        let before = data.clone();
        authority(&mut data, "ca", "kubernetes", TERM.now).unwrap();
        // The order of names, and how an address is written, say nothing.
        assert_eq!(issue(&mut data, &ca, &serving(&["10.96.0.1", "t1"]), TERM), None);
        assert_eq!(data, before);
    }

    #[test]
    fn certificates_are_issued_anew_for_each_reason() {
        let later = |days: u64| Term { now: TERM.now + Duration::from_hours(24 * days), ..TERM };
        let same = || serving(&["t1", "10.96.0.1"]);
        for (wanted, term, reason) in [
            (same(), later(240), None),
            (same(), later(250), Some("about to end")),
            (serving(&["t1"]), TERM, Some("of other names")),
            (serving(&["t1", "10.96.0.1", "fd00::1"]), TERM, Some("of other names")),
            (Leaf { common_name: "somebody".into(), ..same() }, TERM, Some("of another subject")),
            (Leaf { organizations: vec!["system:masters".into()], ..same() }, TERM, Some("of another subject")),
            (Leaf::peer("kube-apiserver", same().names), TERM, Some("of other uses")),
        ] {
            let (mut data, ca) = made();
            assert_eq!(issue(&mut data, &ca, &wanted, term), reason, "{wanted:?}");
            assert_eq!(issue(&mut data, &ca, &wanted, term), None, "{wanted:?}");
        }
        let (mut data, ca) = made();
        data.insert("apiserver.key".into(), PrivateKey::generate(ALGORITHM).unwrap().pem.into_bytes());
        assert_eq!(issue(&mut data, &ca, &same(), TERM), Some("of another key"));
        let other = authority(&mut Data::new(), "ca", "kubernetes", TERM.now).unwrap();
        assert_eq!(issue(&mut data, &other, &same(), TERM), Some("of another authority"));
        data.insert("apiserver.crt".into(), b"rubbish".to_vec());
        assert_eq!(issue(&mut data, &other, &same(), TERM), Some("unreadable"));
    }

    #[test]
    fn no_certificate_is_issued_over_and_over_in_its_authoritys_last_days() {
        let (mut data, ca) = made();
        let term = Term { now: TERM.now + AUTHORITY_VALIDITY - Duration::from_hours(24), ..TERM };
        assert_eq!(issue(&mut data, &ca, &serving(&["t1"]), term), Some("of other names"));
        assert_eq!(issue(&mut data, &ca, &serving(&["t1"]), term), None);
        let ended = Term { now: TERM.now + AUTHORITY_VALIDITY + Duration::from_hours(1), ..TERM };
        let error = certificate(&mut data, "apiserver", &ca, &serving(&["t2"]), ended).unwrap_err();
        assert_eq!(error.to_string(), "ca.crt has expired");
    }

    #[test]
    fn half_an_authority_is_not_replaced() {
        let (mut data, _) = made();
        let key = data.remove("ca.key");
        let before = data.clone();
        let error = authority(&mut data, "ca", "kubernetes", TERM.now).err().unwrap();
        assert_eq!(error.to_string(), "ca.crt and ca.key belong together and one is missing; put it back");
        assert_eq!(data, before);
        data.insert("ca.key".into(), PrivateKey::generate(ALGORITHM).unwrap().pem.into_bytes());
        let error = authority(&mut data, "ca", "kubernetes", TERM.now).err().unwrap();
        assert_eq!(error.to_string(), "ca.key is not the key of ca.crt");
        data.extend(key.map(|key| ("ca.key".to_owned(), key)));
        authority(&mut data, "ca", "kubernetes", TERM.now).unwrap();
    }

    #[test]
    fn service_account_keys_are_kept_and_belong_together() {
        let mut data = Data::new();
        service_account_keys(&mut data).unwrap();
        let before = data.clone();
        data.remove("sa.pub");
        service_account_keys(&mut data).unwrap();
        assert_eq!(data, before);
    }
}
