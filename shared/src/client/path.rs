//! Names as segments of request paths.
//!
//! In: names out of objects, which are free text. Out: the segment, escaped, or why there is none. Answers for the name checks
//! of client-go's `rest.Request`. Never: a name in a path that has not passed here.

use crate::url;

/// Checks and escapes a name for use as one segment of a path.
///
/// # Errors
/// client-go's text for names that no segment can be.
pub fn segment(name: &str) -> Result<String, String> {
    let problems = match name {
        "" => return Err("resource name may not be empty".to_owned()),
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
    Err(format!("invalid resource name {}: [{}]", proto::selector::format::quote(name), problems.join(" ")))
}

/// The path of a named object in a collection.
///
/// # Errors
/// As [`segment`].
pub fn object(collection: &str, name: &str) -> Result<String, String> {
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
    fn names_that_are_no_segment_are_refused_in_client_gos_words() {
        for (name, why) in [
            ("", "resource name may not be empty"),
            (".", "invalid resource name \".\": [may not be '.']"),
            ("..", "invalid resource name \"..\": [may not be '..']"),
            ("p/log?follow=true", "invalid resource name \"p/log?follow=true\": [may not contain '/']"),
            ("%2f/", "invalid resource name \"%2f/\": [may not contain '/' may not contain '%']"),
        ] {
            assert_eq!(segment(name).unwrap_err(), why);
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
