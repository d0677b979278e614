//! Shapes of names and scalar values beyond DNS names.

use std::borrow::Cow;
use std::net::IpAddr;

pub(crate) use proto::selector::format::{
    SUBDOMAIN_MAX, dns1035_label, dns1123_label, dns1123_subdomain, is_subdomain, label_key, label_value, pattern,
    qualified_name, too_long,
};
use shared::address;
use shared::status::field::{Error, Path};

use super::options::{ValidationOption, ValidationOptions};

/// Rule for names of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameRule {
    Subdomain,
    /// Like `Subdomain`, with `generateName` checked only as part of the final name.
    WholeSubdomain,
    Label,
    /// A DNS-1035 label, which may be a DNS-1123 label where options relax it.
    Service,
    PathSegment,
    /// An address.
    Address,
    /// A group, a dot, a plural.
    StorageVersion,
    ConfigKey,
}

impl NameRule {
    /// The rule for a validation with these options.
    pub(crate) const fn relaxed(self, options: ValidationOptions) -> Self {
        match self {
            Self::Service if options.allows(ValidationOption::RelaxedServiceNameValidation) => Self::Label,
            rule => rule,
        }
    }

    /// Complaints about a name, or about a prefix that something will be appended to.
    pub(crate) fn check(self, name: &str, prefix: bool) -> Vec<String> {
        let part = if prefix { masked(name) } else { name.into() };
        match self {
            Self::WholeSubdomain if prefix => Vec::new(),
            Self::Subdomain | Self::WholeSubdomain => dns1123_subdomain(&part),
            Self::Label => dns1123_label(&part),
            Self::Service => dns1035_label(&part),
            Self::Address => address::strict_ip(name).err().map(|e| e.to_string()).into_iter().collect(),
            Self::PathSegment => path_segment(name, prefix),
            Self::StorageVersion => storage_version(name),
            Self::ConfigKey => config_key(name),
        }
    }
}

/// A prefix as it is judged: a dash at its end, which what is appended makes part of the name, goes with what is before
/// it.
fn masked(prefix: &str) -> Cow<'_, str> {
    match prefix.as_bytes() {
        [begin @ .., _, b'-'] => format!("{}a", String::from_utf8_lossy(begin)).into(),
        _ => prefix.into(),
    }
}

fn storage_version(name: &str) -> Vec<String> {
    let Some((group, resource)) = name.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".to_owned()];
    };
    let group = dns1123_subdomain(group).into_iter().map(|why| format!("the group segment {why}"));
    group.chain(dns1035_label(resource).into_iter().map(|why| format!("the resource segment {why}"))).collect()
}

/// Something that can stand in a URL path.
pub(crate) fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].into_iter().filter(|c| name.contains(c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// Adds a complaint for each message.
pub(crate) fn complain(out: &mut Vec<Error>, path: &Path, value: &str, messages: Vec<String>) {
    out.extend(messages.into_iter().map(|m| Error::invalid(path, value, &m)));
}

/// A key of a config map or secret.
pub(crate) fn config_key(key: &str) -> Vec<String> {
    let mut out = Vec::new();
    if key.len() > 253 {
        out.push(too_long(253));
    }
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        let message = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        out.push(pattern(message, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    if matches!(key, "." | "..") {
        out.push(format!("must not be '{key}'"));
    } else if key.starts_with("..") {
        out.push("must not start with '..'".to_owned());
    }
    out
}

/// An environment variable name: printable ASCII without `=`.
pub(crate) fn env_var(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// A port name of a container or service.
pub(crate) fn port_name(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    if name.len() > 15 {
        out.push(too_long(15));
    }
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        out.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_owned());
    }
    out
}

/// A port number.
pub(crate) fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) { Vec::new() } else { vec![between(1, 65535)] }
}

/// `must be between 1 and 9, inclusive`.
pub(crate) fn between(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// A number that may not be negative.
pub(crate) fn not_negative(out: &mut Vec<Error>, path: Path, value: Option<i64>) {
    if let Some(value) = value.filter(|v| *v < 0) {
        out.push(Error::invalid(path, value, "must be greater than or equal to 0"));
    }
}

/// An IP address in any accepted spelling.
pub(crate) fn ip(out: &mut Vec<Error>, path: &Path, value: &str) -> Option<IpAddr> {
    let parsed = address::ip(value);
    if parsed.is_none() {
        out.push(Error::invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"));
    }
    parsed
}

/// A network such as `10.0.0.0/8` in any accepted spelling.
pub(crate) fn cidr(out: &mut Vec<Error>, path: &Path, value: &str) -> Option<ipnet::IpNet> {
    let parsed = address::network(value);
    if parsed.is_none() {
        out.push(Error::invalid(path, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"));
    }
    parsed
}

/// An address that services and endpoints may not use.
pub(crate) fn special_ip(out: &mut Vec<Error>, path: &Path, value: &str) {
    let Some(ip) = address::ip(value) else { return };
    let mut no = |what: &str| out.push(Error::invalid(path, value, what));
    if ip.is_unspecified() {
        no(&format!("may not be unspecified ({value})"));
    }
    if ip.is_loopback() {
        no("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    if link_local {
        no("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    let local_multicast = match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    };
    if local_multicast {
        no("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// A percentage such as `25%`, as a whole number.
pub(crate) fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// Error text for a malformed percentage.
pub(crate) fn percent_complaint() -> String {
    pattern("a valid percent string must be a numeric string followed by an ending '%'", "[0-9]+%", &["1%", "93%"])
}

/// `1.2.3-rc.1+build` of semver.org.
pub(crate) fn is_semver(text: &str) -> bool {
    let number = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()) && (p == "0" || !p.starts_with('0'));
    let word = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let (rest, build) = text.split_once('+').map_or((text, None), |(r, b)| (r, Some(b)));
    let (core, early) = rest.split_once('-').map_or((rest, None), |(c, e)| (c, Some(e)));
    let digits = |p: &str| p.bytes().all(|b| b.is_ascii_digit());
    core.split('.').count() == 3
        && core.split('.').all(number)
        && early.is_none_or(|e| e.split('.').all(|p| word(p) && (!digits(p) || number(p))))
        && build.is_none_or(|b| b.split('.').all(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(NameRule::PathSegment.check("a/b%", false), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(NameRule::PathSegment.check("..", false), ["may not be '..'"]);
        assert!(NameRule::Subdomain.check("web-", true).is_empty());
        assert!(!NameRule::Subdomain.check("web-", false).is_empty());
        assert!(NameRule::Subdomain.check("_-", true).is_empty(), "what is before the dash is not looked at");
        assert!(!NameRule::Subdomain.check("-", true).is_empty());
        assert!(NameRule::WholeSubdomain.check("_", true).is_empty());
        assert!(!NameRule::WholeSubdomain.check("_", false).is_empty());
        assert_eq!(NameRule::Address.check("10.0.0.", true).len(), 1);
        assert!(port_name("http-2").is_empty());
        assert_eq!(
            port_name("1--"),
            [
                "must contain at least one letter (a-z)",
                "must not contain consecutive hyphens",
                "must not begin or end with a hyphen"
            ]
        );
        assert_eq!(config_key("..a"), ["must not start with '..'"]);
        assert_eq!((percent("25%"), percent("%"), percent("2")), (Some(25), None, None));
    }
}
