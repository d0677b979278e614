//! Conditions as newer kinds have them (`meta/v1.Condition`).

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::{complain, label_key, pattern};
use super::tree::{has, int, list, text};
use crate::rules::options::FieldErrors;

const MAX_REASON: usize = 1024;
const MAX_MESSAGE: usize = 32 * 1024;
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];

/// `conditions` of a status.
pub(super) fn conditions(status: &Value, path: &Path, out: &mut FieldErrors) {
    let path = path.child("conditions");
    let mut kinds = BTreeSet::new();
    for (i, condition) in list(status, "conditions").iter().enumerate() {
        let (path, kind) = (path.index(i), text(condition, "type"));
        if !kinds.insert(kind) {
            out.push(Error::duplicate(path.child("type"), kind));
        }
        one(condition, &path, out);
    }
}

/// Reports whether a status has a condition with status `True`.
pub(super) fn is_true(status: &Value, kind: &str) -> bool {
    list(status, "conditions").iter().find(|c| text(c, "type") == kind).is_some_and(|c| text(c, "status") == "True")
}

fn one(condition: &Value, path: &Path, out: &mut FieldErrors) {
    let kind = text(condition, "type");
    complain(out, &path.child("type"), kind, label_key(kind));
    let status = text(condition, "status");
    if !STATUSES.contains(&status) {
        out.push(Error::not_supported(path.child("status"), status, &STATUSES));
    }
    if let Some(n) = int(condition, "observedGeneration").filter(|n| *n < 0) {
        out.push(Error::invalid(path.child("observedGeneration"), n, "must be greater than or equal to zero"));
    }
    if !has(condition, "lastTransitionTime") {
        out.push(Error::required(path.child("lastTransitionTime"), ""));
    }
    let why = text(condition, "reason");
    if why.is_empty() {
        out.push(Error::required(path.child("reason"), ""));
    } else {
        complain(out, &path.child("reason"), why, reason(why));
        if why.len() > MAX_REASON {
            out.push(Error::too_long(path.child("reason"), MAX_REASON));
        }
    }
    if text(condition, "message").len() > MAX_MESSAGE {
        out.push(Error::too_long(path.child("message"), MAX_MESSAGE));
    }
}

/// Complaints about a reason, which is a word for programs.
fn reason(why: &str) -> Vec<String> {
    let inner = |b: &u8| b.is_ascii_alphanumeric() || b"_,:".contains(b);
    let bytes = why.as_bytes();
    let ends = bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    if ends && bytes.iter().all(inner) {
        return Vec::new();
    }
    let message = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
    let examples = ["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"];
    vec![pattern(message, "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", &examples)]
}
