//! Shapes of names: label keys and values, DNS labels and subdomains, with upstream's complaints.
//!
//! Every check returns the complaints, empty when the text is fine.

use std::fmt::Write as _;

/// Longest DNS-1123 label, DNS-1035 label, label name and label value.
pub const LABEL_MAX: usize = 63;
/// Longest DNS-1123 subdomain.
pub const SUBDOMAIN_MAX: usize = 253;

/// Error of an empty part.
pub const EMPTY: &str = "must be non-empty";

const LABEL_KEY: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_KEY_REGEX: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const DNS1123_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const DNS1123_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const DNS1035_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";

/// `must be no more than N characters`.
#[must_use]
pub fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// `must be no more than N bytes`: what label keys and values are told, where other names are told of characters.
fn too_many_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// A complaint that names examples and the pattern.
#[must_use]
pub fn pattern(message: &str, regex: &str, examples: &[&str]) -> String {
    let mut text = message.to_owned();
    if examples.is_empty() {
        let _ = write!(text, " (regex used for validation is '{regex}')");
        return text;
    }
    text.push_str(" (e.g. ");
    for (i, example) in examples.iter().enumerate() {
        let _ = write!(text, "{}'{example}', ", if i == 0 { "" } else { " or " });
    }
    let _ = write!(text, "regex used for validation is '{regex}')");
    text
}

fn is_lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// First and last byte satisfy `edge`, the others `edge` or stand in `extra`; never empty.
fn shaped(text: &str, edge: fn(u8) -> bool, extra: &[u8]) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => edge(*first) && edge(*last) && bytes.iter().all(|b| edge(*b) || extra.contains(b)),
        _ => false,
    }
}

fn is_label_name(text: &str) -> bool {
    shaped(text, |b| b.is_ascii_alphanumeric(), b"-_.")
}

/// A lower-case RFC 1123 label (namespaces, ports, containers).
#[must_use]
pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(too_long(LABEL_MAX));
    }
    if !shaped(text, is_lower_alnum, b"-") {
        errors.push(if is_subdomain(text) {
            "must not contain dots".to_owned()
        } else {
            pattern(DNS1123_LABEL, "[a-z0-9]([-a-z0-9]*[a-z0-9])?", &["my-name", "123-abc"])
        });
    }
    errors
}

/// Reports whether a text has the form of a subdomain, of any length.
#[must_use]
pub fn is_subdomain(text: &str) -> bool {
    text.split('.').all(|part| shaped(part, is_lower_alnum, b"-"))
}

/// A lower-case RFC 1123 subdomain (most object names).
#[must_use]
pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    subdomain(text, too_long)
}

fn subdomain(text: &str, too_long: fn(usize) -> String) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        errors.push(too_long(SUBDOMAIN_MAX));
    }
    if !is_subdomain(text) {
        let regex = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
        errors.push(pattern(DNS1123_SUBDOMAIN, regex, &["example.com"]));
    }
    errors
}

/// A DNS-1035 label (older service names, replica names of some kinds).
#[must_use]
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(too_long(LABEL_MAX));
    }
    if !(shaped(text, is_lower_alnum, b"-") && text.starts_with(|c: char| c.is_ascii_lowercase())) {
        errors.push(pattern(DNS1035_LABEL, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    errors
}

/// A label or annotation key: an optional subdomain and `/`, then a name.
#[must_use]
pub fn label_key(text: &str) -> Vec<String> {
    let complaint =
        |head: &str| pattern(&format!("{head} {LABEL_KEY}"), LABEL_KEY_REGEX, &["MyName", "my.name", "123-abc"]);
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push(format!("prefix part {EMPTY}"));
            } else {
                errors.extend(subdomain(prefix, too_many_bytes).into_iter().map(|e| format!("prefix part {e}")));
            }
            *name
        }
        _ => {
            let text = complaint("a valid label key");
            return vec![format!("{text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')")];
        }
    };
    if name.is_empty() {
        errors.push(format!("name part {EMPTY}"));
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", too_many_bytes(LABEL_MAX)));
    }
    if !is_label_name(name) {
        errors.push(complaint("name part"));
    }
    errors
}

/// A qualified name (resource names, condition types, finalizers): the rule of label keys, told in its words.
#[must_use]
pub fn qualified_name(text: &str) -> Vec<String> {
    label_key(text)
}

/// A label value.
#[must_use]
pub fn label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(too_many_bytes(LABEL_MAX));
    }
    if !text.is_empty() && !is_label_name(text) {
        let regex = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
        errors.push(pattern(LABEL_VALUE, regex, &["MyValue", "my_value", "12345"]));
    }
    errors
}

/// A string as Go's `%q` prints it.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control()
                || matches!(c, '\u{feff}' | '\u{ad}' | '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200f}') =>
            {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        for ok in ["a", "a-b", "a.b/c", "A_b.9", "example.com/MyName"] {
            assert!(label_key(ok).is_empty(), "{ok}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "-a", "A.b/c", "a b", &"x".repeat(64)] {
            assert!(!label_key(bad).is_empty(), "{bad}");
        }
        for (text, ok) in [("", true), ("a_b", true), ("-", false), ("é", false)] {
            assert_eq!(label_value(text).is_empty(), ok, "{text}");
        }
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert!(dns1035_label("1x")[0].starts_with("a DNS-1035 label"));
        assert_eq!(dns1123_subdomain("a..b").len(), 1);
    }

    #[test]
    fn lengths() {
        let (label, subdomain) = ("x".repeat(64), "x".repeat(254));
        assert_eq!(dns1123_label(&label), ["must be no more than 63 characters"]);
        assert_eq!(dns1123_subdomain(&subdomain), ["must be no more than 253 characters"]);
        assert_eq!(label_value(&label), ["must be no more than 63 bytes"]);
        assert_eq!(label_key(&label), ["name part must be no more than 63 bytes"]);
        assert_eq!(qualified_name(&format!("{subdomain}/a")), ["prefix part must be no more than 253 bytes"]);
        assert!(qualified_name("a/b/c")[0].starts_with("a valid label key must consist of"));
    }
}
