//! Validation of common text fields: required, well formed, one of a few words.

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::complain;
use super::tree::{has, text};
use crate::rules::options::FieldErrors;

/// Texts that have to be there.
pub(super) fn required(holder: &Value, keys: &[&str], path: &Path, out: &mut FieldErrors) {
    for key in keys.iter().filter(|key| text(holder, key).is_empty()) {
        out.push(Error::required(path.child(key), ""));
    }
}

/// A text that has to be there, and of a shape.
pub(super) fn shaped(
    holder: &Value,
    key: &str,
    shape: impl Fn(&str) -> Vec<String>,
    path: &Path,
    out: &mut FieldErrors,
) {
    match text(holder, key) {
        "" => out.push(Error::required(path.child(key), "")),
        value => complain(out, &path.child(key), value, shape(value)),
    }
}

/// A text that, where it says something, is of a shape.
pub(super) fn shaped_if_said(
    holder: &Value,
    key: &str,
    shape: impl Fn(&str) -> Vec<String>,
    path: &Path,
    out: &mut FieldErrors,
) {
    let value = text(holder, key);
    if !value.is_empty() {
        complain(out, &path.child(key), value, shape(value));
    }
}

/// A text that has to be there, and one of the words allowed.
pub(super) fn choice(holder: &Value, key: &str, allowed: &[&str], path: &Path, out: &mut FieldErrors) {
    match text(holder, key) {
        "" => out.push(Error::required(path.child(key), "")),
        value if allowed.contains(&value) => {}
        value => out.push(Error::not_supported(path.child(key), value, allowed)),
    }
}

/// A text that, where it is there, is one of the words allowed.
pub(super) fn one_of(holder: &Value, key: &str, allowed: &[&str], path: &Path, out: &mut FieldErrors) {
    let value = text(holder, key);
    if has(holder, key) && !allowed.contains(&value) {
        out.push(Error::not_supported(path.child(key), value, allowed));
    }
}
