//! Formats of texts: `date-time`, `ipv4`, `email` and their like. A format nobody knows fits everything. Answers for
//! upstream's `k8s.io/kube-openapi/pkg/validation/strfmt`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use regex::Regex;

/// Reports whether a text has a format.
pub fn is_valid(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "uri" => is_uri(text),
        "email" => is_email(text),
        "hostname" => text.len() <= 255 && text.split('.').all(|label| label.len() <= 63) && matches(format, text),
        "byte" => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        "date" => matches("date", text) && text.parse::<jiff::civil::Date>().is_ok(),
        "date-time" | "datetime" => matches("date-time", text) && text.parse::<jiff::Timestamp>().is_ok(),
        "duration" => is_duration(text),
        "isbn" => isbn(text, 10) || isbn(text, 13),
        "isbn10" => isbn(text, 10),
        "isbn13" => isbn(text, 13),
        "creditcard" => is_credit_card(text),
        "k8s-short-name" => text.len() <= 63 && matches(format, text),
        "k8s-long-name" => text.len() <= 253 && matches(format, text),
        "bsonobjectid" | "mac" | "uuid" | "uuid3" | "uuid4" | "uuid5" | "ssn" | "hexcolor" | "rgbcolor" => {
            matches(format, text)
        }
        _ => true,
    }
}

/// Reports whether a format is validated at all. Hyphens are ignored in names, as in go-openapi.
pub fn is_known(format: &str) -> bool {
    const CHECKED_ELSEWHERE: &[&str] = &[
        "ipv4",
        "ipv6",
        "cidr",
        "uri",
        "email",
        "byte",
        "password",
        "datetime",
        "duration",
        "quantity",
        "isbn",
        "isbn10",
        "isbn13",
        "creditcard",
    ];
    let plain = |text: &str| text.replace('-', "");
    let format = plain(format);
    CHECKED_ELSEWHERE.contains(&&*format) || PATTERNS.iter().any(|(known, _)| plain(known) == format)
}

/// Formats that are regular expressions.
const PATTERNS: [(&str, &str); 14] = [
    ("bsonobjectid", "^[0-9a-fA-F]{24}$"),
    (
        "hostname",
        r"^([a-zA-Z0-9\p{S}\p{L}](-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?|([a-zA-Z0-9\p{S}\p{L}]([a-zA-Z0-9\p{S}\p{L}-]{0,61}[a-zA-Z0-9\p{S}\p{L}])?\.)+[a-zA-Z\p{L}]{2,63})$",
    ),
    (
        "mac",
        r"^([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}$|^([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}$|^([0-9A-Fa-f]{2}[:-]){7}[0-9A-Fa-f]{2}$",
    ),
    ("uuid", "(?i)^[0-9A-F]{8}-?[0-9A-F]{4}-?[0-9A-F]{4}-?[0-9A-F]{4}-?[0-9A-F]{12}$"),
    ("uuid3", "(?i)^[0-9A-F]{8}-?[0-9A-F]{4}-?3[0-9A-F]{3}-?[0-9A-F]{4}-?[0-9A-F]{12}$"),
    ("uuid4", "(?i)^[0-9A-F]{8}-?[0-9A-F]{4}-?4[0-9A-F]{3}-?[89AB][0-9A-F]{3}-?[0-9A-F]{12}$"),
    ("uuid5", "(?i)^[0-9A-F]{8}-?[0-9A-F]{4}-?5[0-9A-F]{3}-?[89AB][0-9A-F]{3}-?[0-9A-F]{12}$"),
    ("ssn", r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"),
    ("hexcolor", "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
    (
        "rgbcolor",
        r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
    ),
    ("date", r"^\d{4}-\d{2}-\d{2}$"),
    ("date-time", r"(?i)^\d{4}-\d{2}-\d{2}t\d{2}:\d{2}:\d{2}(\.\d+)?(z|[+-]\d{2}:\d{2})$"),
    ("k8s-short-name", "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    ("k8s-long-name", r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
];

fn matches(name: &str, text: &str) -> bool {
    static COMPILED: [OnceLock<Option<Regex>>; PATTERNS.len()] = [const { OnceLock::new() }; PATTERNS.len()];
    let Some(i) = PATTERNS.iter().position(|(n, _)| *n == name) else { return true };
    COMPILED[i].get_or_init(|| Regex::new(PATTERNS[i].1).ok()).as_ref().is_some_and(|r| r.is_match(text))
}

/// An absolute path or an absolute URI.
fn is_uri(text: &str) -> bool {
    !text.is_empty()
        && (text.starts_with('/') || text.parse::<http::Uri>().is_ok_and(|u| u.scheme().is_some()) || has_scheme(text))
}

fn has_scheme(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, rest)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
            && !rest.is_empty()
            && !rest.contains(char::is_whitespace)
    })
}

fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    !local.is_empty()
        && !domain.is_empty()
        && !local.contains(|c: char| c.is_whitespace() || c.is_control() || "()<>,;:\\\"[]@".contains(c))
        && !local.starts_with('.')
        && !local.ends_with('.')
        && !local.contains("..")
        && domain.split('.').all(|l| !l.is_empty() && l.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_'))
}

/// Go's durations, and `1 day` or `2 weeks`.
fn is_duration(text: &str) -> bool {
    if shared::flags::parse_duration(text).is_ok() {
        return true;
    }
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = &text[number.len()..].trim_start().to_lowercase();
    let known = [
        "ns",
        "nanosecond",
        "nanoseconds",
        "us",
        "microsecond",
        "microseconds",
        "ms",
        "millisecond",
        "milliseconds",
        "s",
        "sec",
        "secs",
        "second",
        "seconds",
        "m",
        "min",
        "mins",
        "minute",
        "minutes",
        "h",
        "hr",
        "hrs",
        "hour",
        "hours",
        "d",
        "day",
        "days",
        "w",
        "wk",
        "wks",
        "week",
        "weeks",
    ];
    !number.is_empty() && number.parse::<f64>().is_ok() && known.contains(&unit.as_str())
}

fn isbn(text: &str, length: usize) -> bool {
    let digits: Vec<u32> = text
        .chars()
        .filter(|c| !matches!(c, '-' | ' '))
        .map(|c| if matches!(c, 'X' | 'x') { 10 } else { c.to_digit(10).unwrap_or(99) })
        .collect();
    if digits.len() != length || digits[..length - 1].iter().any(|d| *d > 9) || digits[length - 1] > 10 {
        return false;
    }
    let weigh = |weight: &dyn Fn(usize) -> u32| digits.iter().enumerate().map(|(i, d)| d * weight(i)).sum::<u32>();
    if length == 10 {
        weigh(&|i| u32::try_from(i).unwrap_or(0) + 1) % 11 == 0
    } else {
        weigh(&|i| if i % 2 == 0 { 1 } else { 3 }) % 10 == 0
    }
}

/// Luhn's sum over 13 to 16 digits.
fn is_credit_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let plain = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ' '));
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, d)| match (i % 2, d * 2) {
            (0, _) => *d,
            (_, double) if double > 9 => double - 9,
            (_, double) => double,
        })
        .sum();
    plain && (13..=16).contains(&digits.len()) && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        for (format, good, bad) in [
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0"),
            ("uri", "http://a/b", "a b"),
            ("email", "a@b.c", "a.b.c"),
            ("hostname", "a.b-c.example", "a.b-c"),
            ("hostname", "a-b", "-a"),
            ("hostname", "2020", "2020-01-01"),
            ("hostname", "a.example", "a.b."),
            ("byte", "YQ==", "?"),
            ("date", "2026-01-31", "2026-02-31"),
            ("date-time", "2026-01-31T00:00:00Z", "2026-01-31"),
            ("duration", "1h30m", "soon"),
            ("duration", "2 days", "2 moons"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
            ("mac", "01:23:45:67:89:ab", "01:23"),
            ("isbn10", "3836221195", "3836221194"),
            ("isbn13", "978-3836221191", "978-3836221190"),
            ("creditcard", "4539 1488 0343 6467", "4539 1488 0343 6468"),
            ("hexcolor", "#fff", "#ff"),
            ("rgbcolor", "rgb(0, 1, 255)", "rgb(256,0,0)"),
            ("k8s-short-name", "a-b", "A"),
        ] {
            assert!(is_valid(format, good), "{format} {good}");
            assert!(!is_valid(format, bad), "{format} {bad}");
        }
        assert!(is_valid("int32", "x"));
    }
}
