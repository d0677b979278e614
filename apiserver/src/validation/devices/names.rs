//! Names of pools, attributes and requests.

use std::collections::BTreeMap;

use proto::Value;
use shared::status::field::{Error, Path};

use super::{MAX_ENTRIES, each, unique};
use crate::rules::names::{complain, dns1123_label, dns1123_subdomain, pattern};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{list, text};
use crate::validation::volume::driver_name;

const MAX_POOL: usize = 253;
/// Longest name of an attribute, without its domain.
const MAX_NAME: usize = 32;

/// `a.example.com/b.example.com`.
pub(super) fn pool_name(name: &str, path: &Path, out: &mut FieldErrors) {
    if name.is_empty() {
        out.push(Error::required(path, ""));
        return;
    }
    if name.len() > MAX_POOL {
        out.push(Error::too_long(path, MAX_POOL));
    }
    for part in name.split('/') {
        complain(out, path, part, dns1123_subdomain(part));
    }
}

/// `name` or `example.com/name`.
pub(super) fn qualified(name: &str, path: &Path, out: &mut FieldErrors) {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [one] => identifier(one, path, out),
        [domain, one] => {
            if domain.is_empty() {
                out.push(Error::invalid(path, "", "the domain must not be empty"));
            } else {
                driver_name(domain, path, out);
            }
            if one.is_empty() {
                out.push(Error::invalid(path, "", "the name must not be empty"));
            } else {
                identifier(one, path, out);
            }
        }
        _ => {}
    }
}

/// `example.com/name`.
pub(super) fn fully_qualified(name: &str, path: &Path, out: &mut FieldErrors) {
    qualified(name, path, out);
    if !name.contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        out.push(Error::invalid(path, name, why));
    }
}

fn identifier(name: &str, path: &Path, out: &mut FieldErrors) {
    if name.len() > MAX_NAME {
        out.push(Error::too_long(path, MAX_NAME));
    }
    let start = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !start || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        let why = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'";
        let why = pattern(why, "[A-Za-z_][A-Za-z0-9_]*", &["my_name", "MY_NAME", "MyName"]);
        out.push(Error::invalid(path, name, &why));
    }
}

/// A UUID in its usual form.
pub(super) fn share_id(id: &str, path: &Path, out: &mut FieldErrors) {
    let why = match uuid::Uuid::try_parse(id) {
        Err(_) if !matches!(id.len(), 32 | 36 | 38 | 45) => {
            format!("error validating uid: invalid UUID length: {}", id.len())
        }
        Err(_) => "error validating uid: invalid UUID format".to_owned(),
        Ok(parsed) if parsed.to_string() != id => {
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters".to_owned()
        }
        Ok(_) => return,
    };
    out.push(Error::invalid(path, id, &why));
}

/// The requests of a claim by name, with the names of their alternatives.
pub(super) struct Requests<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Requests<'a> {
    pub(super) fn of(devices: &'a Value) -> Self {
        let alternatives = |r| list(r, "firstAvailable").iter().map(|a| text(a, "name")).collect();
        Self(list(devices, "requests").iter().map(|r| (text(r, "name"), alternatives(r))).collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, one)) => self.0.get(request).is_some_and(|all| all.contains(&one)),
        }
    }

    /// A reference to a request or to one of its alternatives.
    pub(super) fn reference(&self, name: &str, path: &Path, out: &mut FieldErrors) {
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() <= 2 {
            for part in parts {
                complain(out, path, part, dns1123_label(part));
            }
            if self.has(name) {
                return;
            }
        }
        let why =
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        out.push(Error::invalid(path, name, why));
    }

    /// `requests` of a constraint or configuration.
    pub(super) fn references(&self, holder: &Value, path: &Path, out: &mut FieldErrors) {
        let judge = |name: &Value, path: &Path, out: &mut FieldErrors| {
            self.reference(name.as_str().unwrap_or_default(), path, out);
        };
        let names = each(holder, "requests", MAX_ENTRIES, path, out, judge);
        unique(names.iter().filter_map(Value::as_str), &path.child("requests"), out);
    }
}
