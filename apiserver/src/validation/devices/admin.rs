//! Administrative access to devices that are in use: only where an administrator labelled the namespace.

use proto::Value;
use shared::status::field::{Error, Path};

use super::super::tree::{get, list};

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Administrative access that a write of a claim requests and the stored claim did not have. Specifications are immutable,
/// so only a create is looked at.
pub(crate) fn of_claim(subresource: &str, object: &Value, old: Option<&Value>) -> Option<Path> {
    match (subresource, old) {
        ("", None) => requested(get(object, "spec")),
        ("status", Some(old)) if granted(old).is_none() => granted(object),
        _ => None,
    }
}

/// Administrative access that a new template requests.
pub(crate) fn of_template(subresource: &str, object: &Value, old: Option<&Value>) -> Option<Path> {
    let is_new = subresource.is_empty() && old.is_none();
    if is_new { requested(get(get(object, "spec"), "spec")) } else { None }
}

fn asks(holder: &Value) -> bool {
    get(holder, "adminAccess").as_bool() == Some(true)
}

fn requested(spec: &Value) -> Option<Path> {
    let at = list(get(spec, "devices"), "requests").iter().position(|request| asks(get(request, "exactly")))?;
    // Of a template, too, the path is that of the claim.
    Some(Path::of(&["spec", "devices", "requests"]).index(at).child("adminAccess"))
}

fn granted(object: &Value) -> Option<Path> {
    let devices = get(get(get(object, "status"), "allocation"), "devices");
    let at = list(devices, "results").iter().position(asks)?;
    Some(Path::of(&["status", "allocation", "devices", "results"]).index(at).child("adminAccess"))
}

/// Forbids administrative access unless the namespace has the admin-access label.
pub fn may_administer(namespace: Option<&Value>, path: Path) -> Result<(), Error> {
    let label = namespace.and_then(|n| n.get("metadata")?.get("labels")?.get(LABEL)?.as_str());
    if label == Some("true") {
        return Ok(());
    }
    let why = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    Err(Error::forbidden(path, &why))
}
