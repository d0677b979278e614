//! iSCSI volumes: names of targets and initiators.

use proto::Value;
use shared::status::field::{Error, Path};

use crate::rules::names::between;
use crate::rules::options::FieldErrors;
use crate::rules::tree::{flag, get, has, int, text};

/// Longest name of volume and portal together.
const MAX_NAMES: usize = 64;
const TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

/// Errors of an iSCSI qualified name. Those of persistent volumes are less detailed.
fn qualified_name(name: &str, persistent: bool) -> Option<&'static str> {
    let sized = |prefix: &str, n: usize| {
        let rest = name.strip_prefix(prefix).and_then(|r| r.char_indices().nth(1).map(|(i, _)| &r[i..]));
        rest.is_some_and(|r| r.len() == n && r.bytes().all(|b| b.is_ascii_alphanumeric()))
    };
    let fits = match name.get(..3) {
        Some("iqn") => dated(name),
        Some("eui") => sized("eui", 16),
        Some("naa") => sized("naa", 32),
        _ if persistent => false,
        _ => return Some("must be valid format starting with iqn, eui, or naa"),
    };
    (!fits).then_some("must be valid format")
}

/// `iqn.2015-02.example.com:storage.1`
fn dated(name: &str) -> bool {
    let Some((head, own)) = name.strip_prefix("iqn.").and_then(|r| r.split_once(':')) else { return false };
    let date = |d: &str| {
        d.len() == 7 && d.bytes().enumerate().all(|(i, b)| if i == 4 { b == b'-' } else { b.is_ascii_digit() })
    };
    let host = |h: &str| !h.is_empty() && h.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
    head.split_once('.').is_some_and(|(d, h)| date(d) && host(h))
        && !own.is_empty()
        && !own.chars().any(|c| ",;*&$|".contains(c) || c.is_whitespace())
}

pub(super) fn iscsi(value: &Value, volume: &str, persistent: bool, holder: &Path, out: &mut FieldErrors) {
    let path = holder.child("iscsi");
    let portal = text(value, "targetPortal");
    if portal.is_empty() {
        out.push(Error::required(path.child("targetPortal"), ""));
    }
    if persistent && too_long(value, volume) {
        out.push(Error::invalid(path.child("targetportal"), portal, TOO_LONG));
    }
    match text(value, "iqn") {
        "" => out.push(Error::required(path.child("iqn"), "")),
        name => out.extend(qualified_name(name, persistent).map(|why| Error::invalid(path.child("iqn"), name, why))),
    }
    if let Some(lun) = int(value, "lun").filter(|l| !(0..=255).contains(l)) {
        out.push(Error::invalid(path.child("lun"), lun, &between(0, 255)));
    }
    let secret = get(value, "secretRef");
    if (flag(value, "chapAuthDiscovery") || flag(value, "chapAuthSession")) && secret.is_null() {
        out.push(Error::required(path.child("secretRef"), ""));
    }
    if persistent && !secret.is_null() && text(secret, "name").is_empty() {
        out.push(Error::required(path.child("secretRef").child("name"), ""));
    }
    if has(value, "initiatorName") {
        let name = text(value, "initiatorName");
        let why = qualified_name(name, persistent);
        out.extend(why.map(|why| Error::invalid(path.child("initiatorname"), name, why)));
    }
    if !persistent {
        named(value, volume, holder, out);
    }
}

fn too_long(value: &Value, volume: &str) -> bool {
    has(value, "initiatorName") && volume.len() + 1 + text(value, "targetPortal").len() > MAX_NAMES
}

/// The name of a pod's volume leaves room for the portal.
pub(super) fn named(value: &Value, volume: &str, holder: &Path, out: &mut FieldErrors) {
    if too_long(value, volume) {
        out.push(Error::invalid(holder.child("name"), volume, TOO_LONG));
    }
}
