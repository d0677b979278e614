//! Names as segments of request paths.
//!
//! In: names out of objects, which are free text. Out: the segment, escaped, or why there is none. Answers for the name checks
//! of client-go's `rest.Request`. Never: a name in a path that has not passed here.

use proto::selector::format::quote;
use thiserror::Error;

use crate::url;

/// Names that no segment can be, in client-go's words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// No name.
    #[error("resource name may not be empty")]
    Empty,
    /// A name that would lead elsewhere.
    #[error("invalid resource name {}: [{}]", quote(.name), .problems.join(" "))]
    Invalid {
        /// The name.
        name: String,
        /// Problems of it.
        problems: Vec<&'static str>,
    },
}

/// Checks and escapes a name for use as one segment of a path.
///
/// # Errors
/// [`NameError`].
pub fn segment(name: &str) -> Result<String, NameError> {
    let problems = match name {
        "" => return Err(NameError::Empty),
        "." => vec!["may not be '.'"],
        ".." => vec!["may not be '..'"],
        _ => [('/', "may not contain '/'"), ('%', "may not contain '%'")]
            .into_iter()
            .filter_map(|(sign, problem)| name.contains(sign).then_some(problem))
            .collect(),
    };
    if problems.is_empty() {
        return Ok(escape(name));
    }
    Err(NameError::Invalid { name: name.to_owned(), problems })
}

/// The path of a group and version, such as `/api/v1` or `/apis/apps/v1`.
#[must_use]
pub fn group_version(api_version: &str) -> String {
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    api_version.split('/').fold(root.to_owned(), |path, part| join(&path, part))
}

/// The path of a collection, in a namespace or of the whole cluster.
#[must_use]
pub fn collection(api_version: &str, namespace: Option<&str>, plural: &str) -> String {
    let mut path = group_version(api_version);
    if let Some(namespace) = namespace {
        path = join(&join(&path, "namespaces"), namespace);
    }
    join(&path, plural)
}

/// A text as the value of a parameter of a query (Go's `url.QueryEscape`, but for spaces, which are `%20`).
#[must_use]
pub fn query_value(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// The path of a named object in a collection.
///
/// # Errors
/// As [`segment`].
pub fn object(collection: &str, name: &str) -> Result<String, NameError> {
    Ok([collection, "/", &segment(name)?].concat())
}

/// The path of an object that is known to be there: its name was validated, and is escaped all the same.
#[must_use]
pub fn join(collection: &str, name: &str) -> String {
    [collection, "/", &escape(name).replace('/', "%2F")].concat()
}

fn escape(name: &str) -> String {
    url::escaped_path(name.as_bytes()).into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn collections_are_made_of_segments() {
        for (api_version, namespace, expected) in [
            ("v1", None, "/api/v1/pods"),
            ("v1", Some("n"), "/api/v1/namespaces/n/pods"),
            ("x.io/v1", Some("a/../b?c"), "/apis/x.io/v1/namespaces/a%2F..%2Fb%3Fc/pods"),
        ] {
            assert_eq!(collection(api_version, namespace, "pods"), expected);
        }
        assert_eq!(query_value("a=b,c in (d)&e"), "a%3Db%2Cc%20in%20%28d%29%26e");
    }

    /// Only this file writes paths of the API: names in them are free text.
    #[test]
    fn no_path_is_made_by_hand() {
        let mut found = Vec::new();
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for component in ["controller-manager", "kubelet", "kube-proxy", "scheduler", "shared"] {
            sources(&root.join(component).join("src"), &mut |path, text| {
                // Tests are at the end of a file, or in files of their own.
                let product = text.split("#[cfg(test)]").next().unwrap_or_default();
                let formats = product.match_indices("format!(").filter(|(at, _)| {
                    let literal = product[*at + "format!(".len()..].trim_start();
                    literal.starts_with("\"/api") || literal.starts_with("\"{root}/")
                });
                found
                    .extend(formats.map(|(at, _)| format!("{}:{}", path.display(), product[..at].lines().count() + 1)));
            });
        }
        assert!(found.is_empty(), "use collection() and object(): {found:#?}");
    }

    fn sources(folder: &std::path::Path, each: &mut dyn FnMut(&std::path::Path, &str)) {
        for entry in std::fs::read_dir(folder).expect("sources").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_test = name.contains("tests") || name == "sim" || name == "path.rs" && folder.ends_with("client");
            match () {
                () if is_test => {}
                () if path.is_dir() => sources(&path, each),
                () if name.ends_with(".rs") => each(&path, &std::fs::read_to_string(&path).expect("a source")),
                () => {}
            }
        }
    }

    #[test]
    fn names_that_are_no_segment_are_refused_in_client_gos_words() {
        for (name, why) in [
            ("", "resource name may not be empty"),
            (".", "invalid resource name \".\": [may not be '.']"),
            ("..", "invalid resource name \"..\": [may not be '..']"),
            ("p/log?follow=true", "invalid resource name \"p/log?follow=true\": [may not contain '/']"),
            ("%2f/", "invalid resource name \"%2f/\": [may not contain '/' may not contain '%']"),
        ] {
            assert_eq!(segment(name).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn other_names_are_escaped() {
        for (name, escaped) in [
            ("web-0", "web-0"),
            ("system:node", "system:node"),
            ("?watch=true", "%3Fwatch=true"),
            ("a b#c\n", "a%20b%23c%0A"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(segment(name).unwrap(), escaped);
        }
    }

    #[test]
    fn joined_names_are_one_segment_whatever_they_hold() {
        assert_eq!(join("/api/v1/pods", "a/b?c"), "/api/v1/pods/a%2Fb%3Fc");
    }

    proptest! {
        #[test]
        fn every_segment_is_one_segment_of_a_path(name in ".*") {
            if let Ok(path) = object("/api/v1/pods", &name) {
                let uri: http::Uri = path.parse().unwrap();
                prop_assert_eq!(uri.query(), None);
                prop_assert_eq!(uri.path().split('/').count(), 5);
            }
        }
    }
}
