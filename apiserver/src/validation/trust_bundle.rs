//! Bundles of certificates that a cluster trusts, in general or for a signer. Answers for upstream's
//! `ValidateClusterTrustBundle`.

use std::collections::BTreeMap;

use proto::Value;
use shared::status::field::{Error, Path};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::certificates::signer_name;
use super::meta::immutable;
use super::names::{NameRule, complain};
use super::pem::{Block, blocks};
use super::tree::{get, text};
use crate::rules::options::FieldErrors;

const MAX_SIZE: usize = 1024 * 1024;
const OMITTED: &str = "<value omitted>";

/// A new bundle.
pub(crate) fn bundle(object: &Value, out: &mut FieldErrors) {
    named(object, out);
    anchors(text(get(object, "spec"), "trustBundle"), out);
}

/// A changed bundle; what it trusts is looked at where it changed only: libraries become stricter.
pub(crate) fn bundle_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    named(new, out);
    if text(spec, "trustBundle") != text(before, "trustBundle") {
        anchors(text(spec, "trustBundle"), out);
    }
    immutable(get(spec, "signerName"), get(before, "signerName"), &Path::of(&["spec", "signerName"]), out);
}

/// The signer, and the name that goes with it.
fn named(object: &Value, out: &mut FieldErrors) {
    let signer = text(get(object, "spec"), "signerName");
    for (field, prefix) in [("generateName", true), ("name", false)] {
        let name = text(get(object, "metadata"), field);
        if !name.is_empty() {
            complain(out, &Path::of(&["metadata", field]), name, misnamed(name, signer, prefix));
        }
    }
    if !signer.is_empty() {
        signer_name(signer, &Path::of(&["spec", "signerName"]), out);
    }
}

/// Complaints about the name of a signer's bundle, or of one that is nobody's.
pub(super) fn misnamed(name: &str, signer: &str, prefix: bool) -> Vec<String> {
    if signer.is_empty() {
        if name.contains(':') {
            return vec![r#"ClusterTrustBundle without signer name must not have ":" in its name"#.to_owned()];
        }
        return NameRule::Subdomain.check(name, prefix);
    }
    let begin = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&begin) {
        Some(rest) => NameRule::Subdomain.check(rest, prefix),
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {begin}")],
    }
}

/// Validates a trust bundle: certificates of authorities, each of them once.
fn anchors(bundle: &str, out: &mut FieldErrors) {
    let path = Path::of(&["spec", "trustBundle"]);
    if bundle.len() > MAX_SIZE {
        out.push(Error::too_long(path, MAX_SIZE));
        return;
    }
    let mut seen: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (i, block) in blocks(bundle).enumerate() {
        match unfit(&block) {
            Some(why) => wrong.push(format!("entry {i} {why}")),
            None => seen.entry(block.contents).or_default().push(i),
        }
    }
    if wrong.is_empty() && seen.is_empty() {
        wrong.push("at least one trust anchor must be provided".to_owned());
    }
    if wrong.is_empty() {
        let twice = seen.values().filter(|indices| indices.len() > 1);
        let list = |indices: &Vec<usize>| indices.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        wrong.extend(twice.map(|indices| format!("duplicate trust anchor (indices [{}])", list(indices))));
    }
    out.extend(wrong.iter().map(|why| Error::invalid(&path, OMITTED, why)));
}

/// Explains why a PEM block is not a trust anchor.
fn unfit(block: &Block) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    if block.headers {
        return Some("has PEM block headers".to_owned());
    }
    let Ok(([], certificate)) = X509Certificate::from_der(&block.contents) else {
        return Some("does not parse as X.509".to_owned());
    };
    let constraints = certificate.basic_constraints().ok().flatten();
    (!constraints.is_some_and(|c| c.value.ca)).then(|| "does not have the CA bit set".to_owned())
}
