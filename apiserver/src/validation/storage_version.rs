//! Validation of storage versions reported by API servers.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::{complain, dns1035_label, dns1123_subdomain, pattern, qualified_name};
use super::tree::{get, has, list, text, texts};
use crate::rules::options::FieldErrors;

/// A new object: nothing is said yet.
pub(crate) fn check(object: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(object, "status"), Path::new("status"));
    let servers = list(status, "storageVersions");
    let mut ids = BTreeSet::new();
    for (i, server) in servers.iter().enumerate() {
        let (path, id) = (path.child("storageVersions").index(i), text(server, "apiServerID"));
        if !ids.insert(id) {
            out.push(Error::duplicate(path.child("apiServerID"), id));
        }
        of_server(server, &path, out);
    }
    common(status, servers, &path.child("commonEncodingVersion"), out);
    conditions(list(status, "conditions"), &path, out);
}

/// Upstream leaves the name of the list out of the paths, and shows the type where the status is wrong.
fn conditions(conditions: &[Value], path: &Path, out: &mut FieldErrors) {
    for (i, condition) in conditions.iter().enumerate() {
        let (kind, path) = (text(condition, "type"), path.index(i));
        if let Some(first) = conditions[..i].iter().rposition(|c| text(c, "type") == kind) {
            let why = format!("the type of the condition is not unique, it also appears in conditions[{first}]");
            out.push(Error::invalid(path.child("type"), kind, &why));
        }
        complain(out, &path.child("type"), kind, qualified_name(kind));
        complain(out, &path.child("status"), kind, qualified_name(text(condition, "status")));
        for key in ["reason", "message"] {
            if text(condition, key).is_empty() {
                out.push(Error::required(path.child(key), &format!("{key} cannot be empty")));
            }
        }
    }
}

/// `status`
pub(crate) fn status(new: &Value, _: &Value, out: &mut FieldErrors) {
    check(new, out);
}

fn of_server(server: &Value, path: &Path, out: &mut FieldErrors) {
    let (id, encodes) = (text(server, "apiServerID"), text(server, "encodingVersion"));
    complain(out, &path.child("apiServerID"), id, dns1123_subdomain(id));
    version(encodes, &path.child("encodingVersion"), out);
    let (decodes, of_decoded) = (texts(server, "decodableVersions"), path.child("decodableVersions"));
    for (i, decoded) in decodes.iter().enumerate() {
        version(decoded, &of_decoded.index(i), out);
    }
    if !decodes.contains(&encodes) {
        let why = format!("decodableVersions must include encodingVersion {encodes}");
        out.push(Error::invalid(of_decoded, get(server, "decodableVersions").clone(), &why));
    }
    for (i, served) in texts(server, "servedVersions").into_iter().enumerate() {
        let path = path.child("servedVersions").index(i);
        version(served, &path, out);
        if !decodes.contains(&served) {
            let all = decodes.join(" ");
            let why = format!("individual served version : {served} must be included in decodableVersions : [{all}]");
            out.push(Error::invalid(path, served, &why));
        }
    }
}

/// `v1` or `apps/v1`.
fn version(text: &str, path: &Path, out: &mut FieldErrors) {
    let part = |what: &str, part: &str, shape: fn(&str) -> Vec<String>| -> Vec<String> {
        let wrong = if part.is_empty() { vec!["must be non-empty".to_owned()] } else { shape(part) };
        wrong.into_iter().map(|why| format!("{what} part: {why}")).collect()
    };
    let why = match text.split('/').collect::<Vec<_>>().as_slice() {
        [version] => part("version", version, dns1035_label),
        [group, version] => [part("group", group, dns1123_subdomain), part("version", version, dns1035_label)].concat(),
        _ => {
            let label = "a DNS-1035 label, which must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
            let label = pattern(label, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]);
            vec![format!(
                "an apiVersion is {label} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"
            )]
        }
    };
    if !why.is_empty() {
        out.push(Error::invalid(path.clone(), text, &why.join(",")));
    }
}

fn common(status: &Value, servers: &[Value], path: &Path, out: &mut FieldErrors) {
    let first = servers.first().map(|server| text(server, "encodingVersion"));
    let agreed = first.filter(|first| servers.iter().all(|server| text(server, "encodingVersion") == *first));
    let said = has(status, "commonEncodingVersion").then(|| text(status, "commonEncodingVersion"));
    let why = match (agreed, said) {
        (None, Some(_)) => "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet".to_owned(),
        (Some(agreed), None) => format!("the common encoding version is {agreed}"),
        (Some(agreed), Some(said)) if agreed != said => format!("the actual common encoding version is {agreed}"),
        _ => return,
    };
    out.push(Error::invalid(path.clone(), said.map_or(Value::Null, Value::from), &why));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn common_encoding_version() {
        let server = |id: &str, version: &str| json!({"apiServerID": id, "encodingVersion": version, "decodableVersions": [version]});
        let judged = |status: Value| {
            let mut out = FieldErrors::default();
            check(&json!({"status": status}), &mut out);
            out.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let serving = |versions: &[&str]| {
            let mut server = server("a", "v1");
            server["servedVersions"] = json!(versions);
            server
        };
        let both = json!([server("a", "apps/v1"), server("b", "apps/v1")]);
        let apart = json!([server("a", "v1"), server("b", "v2")]);
        for (status, want) in [
            (json!({}), None),
            (json!({"storageVersions": both, "commonEncodingVersion": "apps/v1"}), None),
            (json!({"storageVersions": apart}), None),
            (
                json!({"storageVersions": both, "commonEncodingVersion": "apps/v2"}),
                Some(
                    r#"status.commonEncodingVersion: Invalid value: "apps/v2": the actual common encoding version is apps/v1"#,
                ),
            ),
            (
                json!({"storageVersions": apart, "commonEncodingVersion": "v1"}),
                Some(
                    r#"status.commonEncodingVersion: Invalid value: "v1": should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet"#,
                ),
            ),
            (
                json!({"storageVersions": [{"apiServerID": "a", "encodingVersion": "v1"}], "commonEncodingVersion": "v1"}),
                Some(
                    r#"status.storageVersions[0].decodableVersions: Invalid value: null: decodableVersions must include encodingVersion v1"#,
                ),
            ),
            (
                json!({"storageVersions": [server("a", "v1"), server("a", "v1")], "commonEncodingVersion": "v1"}),
                Some(r#"status.storageVersions[1].apiServerID: Duplicate value: "a""#),
            ),
            (json!({"storageVersions": [serving(&["v1"])], "commonEncodingVersion": "v1"}), None),
            (
                json!({"storageVersions": [serving(&["v1", "v2"])], "commonEncodingVersion": "v1"}),
                Some(
                    r#"status.storageVersions[0].servedVersions[1]: Invalid value: "v2": individual served version : v2 must be included in decodableVersions : [v1]"#,
                ),
            ),
        ] {
            assert_eq!(judged(status), want.into_iter().collect::<Vec<_>>());
        }
    }
}
