//! Validation of a pod certificate request's status: issued, denied or failed, once. Answers for upstream's
//! `ValidatePodCertificateRequestStatusUpdate`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use proto::Value;
use shared::flags::format_nanos;
use shared::status::field::{Error, Path};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::conditions::{conditions, is_true};
use super::pem::blocks;
use super::pod_certificate::no_key;
use super::possession;
use super::tree::{get, int, list, same, text};
use crate::rules::options::FieldErrors;

const ISSUED: &str = "Issued";
const ENDS: [&str; 3] = [ISSUED, "Denied", "Failed"];
const CERTIFICATE: &str = "CERTIFICATE";
const MAX_CHAIN: usize = 100 * 1024;
const MINUTE: i64 = 60;
/// Largest difference between `notBefore` and now, in seconds.
const SKEW: i64 = 5 * MINUTE;
/// Shortest time from `notBefore` to `beginRefreshAt`, and from there to `notAfter`, in seconds.
const MARGIN: i64 = 10 * MINUTE;
const SHORTEST: i64 = 60 * MINUTE;

/// `status` of a request.
pub(crate) fn status(new: &Value, old: &Value, out: &mut FieldErrors) {
    if !out.is_empty() {
        return;
    }
    let (status, before, path) = (get(new, "status"), get(old, "status"), Path::new("status"));
    ends(status, &path, out);
    conditions(status, &path, out);
    if !out.is_empty() {
        return;
    }
    let ended = |status: &Value| ENDS.into_iter().find(|kind| is_true(status, kind));
    let why = match (ended(before), ended(status)) {
        (Some(_), _) if !same(status, before) => "immutable after PodCertificateRequest is issued, denied, or failed",
        (Some(_), _) => return,
        (None, Some(ISSUED)) => {
            out.extend(issued(new, old, Timestamp::now()).err().into_iter().flatten());
            return;
        }
        (None, Some(_)) if !same(status, &super::tree::without(status, &FIELDS)) => {
            "non-condition status fields must be empty when denying or failing the PodCertificateRequest"
        }
        (None, None) if !same(status, before) => {
            r#"status is immutable unless transitioning to "Issued", "Denied", or "Failed""#
        }
        (None, _) => return,
    };
    out.push(Error::unfit(path, why));
}

/// Fields that an issued request sets besides conditions.
const FIELDS: [&str; 4] = ["certificateChain", "notBefore", "notAfter", "beginRefreshAt"];

/// There is no way but three, and one of them at most is gone.
fn ends(status: &Value, path: &Path, out: &mut FieldErrors) {
    let mut known = 0;
    for (i, condition) in list(status, "conditions").iter().enumerate() {
        // Upstream sets a dot before an index.
        let path = path.child("conditions").child(&format!("[{i}]"));
        let kind = text(condition, "type");
        if !ENDS.contains(&kind) {
            out.push(Error::not_supported(path.child("type"), kind, &ENDS));
            continue;
        }
        known += 1;
        if known > 1 {
            let why = r#"There may be at most one condition with type "Issued", "Denied", or "Failed""#;
            out.push(Error::invalid(path.child("type"), kind, why));
        }
        if text(condition, "status") != "True" {
            out.push(Error::not_supported(path.child("status"), text(condition, "status"), &["True"]));
        }
    }
}

/// The chain begins with a certificate for the key that was asked for, and the times are its own.
fn issued(new: &Value, old: &Value, now: Timestamp) -> Result<(), Vec<Error>> {
    let chain = text(get(new, "status"), "certificateChain");
    let path = Path::of(&["status", "certificateChain"]);
    let no = |why: &str| vec![Error::invalid(&path, chain, why)];
    if chain.len() > MAX_CHAIN {
        return Err(vec![Error::too_long(&path, MAX_CHAIN)]);
    }
    let mut blocks = blocks(chain);
    let leaf = blocks.next().ok_or_else(|| no("issued certificate chain must contain at least one certificate"))?;
    if leaf.label != CERTIFICATE {
        return Err(no("issued certificate chain must consist entirely of CERTIFICATE PEM blocks"));
    }
    let Ok(([], certificate)) = X509Certificate::from_der(&leaf.contents) else {
        return Err(no("leaf certificate does not parse as valid X.509"));
    };
    // What is wrong with names is told with a key that is another, or times that are missing.
    let mut wrong = FieldErrors::default();
    names(&certificate, &path, &mut wrong);
    rest(new, old, &certificate, now, wrong.into_vec())?;
    for block in blocks {
        if block.label != CERTIFICATE {
            return Err(no("issued certificate chain must consist entirely of CERTFICATE PEM blocks"));
        }
        if !matches!(X509Certificate::from_der(&block.contents), Ok(([], _))) {
            return Err(no("intermediate certificate does not parse as valid X.509"));
        }
    }
    Ok(())
}

/// Names of hosts and people in a certificate make sense.
fn names(certificate: &X509Certificate<'_>, path: &Path, out: &mut FieldErrors) {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.map_or(&[][..], |e| &e.value.general_names);
    for name in names {
        if let GeneralName::DNSName(host) = name {
            for (wrong, why) in [
                (host.is_empty(), "leaf certificate should not contain empty DNSName"),
                (host.contains(".."), "leaf certificate's DNSName should not contain '..'"),
                (
                    host.starts_with('.') || host.ends_with('.'),
                    "leaf certificate's DNSName should not start or end with '.'",
                ),
            ] {
                if wrong {
                    out.push(Error::invalid(path, *host, why));
                }
            }
        }
    }
    for name in names {
        if let GeneralName::RFC822Name(address) = name
            && !is_address(address)
        {
            out.push(Error::invalid(path, *address, "leaf certificate should not contain invalid EmailAddress"));
        }
    }
}

/// `somebody@somewhere`.
fn is_address(text: &str) -> bool {
    let plain = |part: &str| {
        let inner = |b: u8| b.is_ascii_graphic() && !b"()<>[]:;@\\,\"".contains(&b);
        !part.is_empty() && part.bytes().all(|b| inner(b) || !b.is_ascii())
    };
    text.rsplit_once('@').is_some_and(|(who, place)| plain(who) && plain(place))
}

/// Error for a certificate whose key is not the requested one.
fn other_key(status: &Value, old: &Value, certificate: &X509Certificate<'_>) -> Option<Error> {
    let encoded = text(get(old, "spec"), "pkixPublicKey");
    let asked = STANDARD.decode(encoded).unwrap_or_default();
    let Ok(key) = possession::key(&asked) else { return Some(no_key(encoded)) };
    let why = "leaf certificate was not issued to the requested public key";
    (!possession::same(&key, certificate.public_key()))
        .then(|| Error::invalid(path_of("certificateChain"), text(status, "certificateChain"), why))
}

/// Key, times and lifetime.
fn rest(
    new: &Value,
    old: &Value,
    certificate: &X509Certificate<'_>,
    now: Timestamp,
    mut wrong: Vec<Error>,
) -> Result<(), Vec<Error>> {
    let status = get(new, "status");
    if let Some(unfit) = other_key(status, old, certificate) {
        wrong.push(unfit);
        return Err(wrong);
    }
    let (begin_path, end_path, refresh_path) = (path_of("notBefore"), path_of("notAfter"), path_of("beginRefreshAt"));
    let mut time = |path: &Path, field: &str, why: &str| {
        let time = text(status, field).parse::<Timestamp>().ok();
        if time.is_none() {
            wrong.push(Error::required(path, why));
        }
        time
    };
    const CONSISTENT: &str = "must be present and consistent with the issued certificate";
    let begin = time(&begin_path, "notBefore", CONSISTENT);
    let end = time(&end_path, "notAfter", CONSISTENT);
    let why = "must be present and in the range [notbefore+10min, notafter-10min]";
    let refresh = time(&refresh_path, "beginRefreshAt", why);
    let (Some(begin), Some(end), Some(refresh), []) = (begin, end, refresh, &wrong[..]) else { return Err(wrong) };
    let (first, last) = (certificate.validity().not_before.timestamp(), certificate.validity().not_after.timestamp());
    let (starts, stops, renews) = (begin.as_second(), end.as_second(), refresh.as_second());
    let lifetime = last - first;
    let most = int(get(new, "spec"), "maxExpirationSeconds").unwrap_or_default();
    let (chain, lasts) = (path_of("certificateChain"), format_nanos(lifetime.saturating_mul(1_000_000_000)));
    let too_long = format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({most})");
    let checks: [(bool, &Path, String, &str); 7] = [
        (
            starts != first,
            &begin_path,
            moment(begin),
            "must be set to the NotBefore time encoded in the leaf certificate",
        ),
        (
            (starts - now.as_second()).abs() >= SKEW,
            &begin_path,
            moment(begin),
            "must be set to within 5 minutes of kube-apiserver's current time",
        ),
        (stops != last, &end_path, moment(end), "must be set to the NotAfter time encoded in the leaf certificate"),
        (lifetime < SHORTEST, &chain, lasts.clone(), "leaf certificate lifetime must be >= 1 hour"),
        (lifetime > most, &chain, lasts, &too_long),
        (
            renews < starts + MARGIN,
            &refresh_path,
            moment(refresh),
            "must be at least 10 minutes after status.notBefore",
        ),
        (renews > stops - MARGIN, &refresh_path, moment(refresh), "must be at least 10 minutes before status.notAfter"),
    ];
    match checks.into_iter().find(|(wrong, ..)| *wrong) {
        Some((_, path, shown, why)) => {
            Err(vec![Error { shown: Some(shown), ..Error::invalid(path, Value::Null, why) }])
        }
        None => Ok(()),
    }
}

fn path_of(field: &str) -> Path {
    Path::of(&["status", field])
}

/// A time as upstream's messages have it.
fn moment(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string()
}
