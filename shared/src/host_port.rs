//! `host:port`, as Go joins and splits it: an IPv6 address stands in brackets.

use std::fmt::Display;

/// Both as one text.
#[must_use]
pub fn join(host: &str, port: impl Display) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The host without brackets, and the port where there is one.
#[must_use]
pub fn split(address: &str) -> (&str, Option<&str>) {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (bare(host), Some(port)),
        _ => (bare(address), None),
    }
}

/// A host as it stands in a URL, without its brackets.
#[must_use]
pub fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_joined_is_split_again() {
        for (host, port, address) in
            [("a.example", 443, "a.example:443"), ("10.0.0.1", 80, "10.0.0.1:80"), ("fd00::1", 6443, "[fd00::1]:6443")]
        {
            assert_eq!(join(host, port), address);
            assert_eq!(split(address), (host, Some(port.to_string().as_str())));
        }
    }

    #[test]
    fn a_port_may_be_missing() {
        for (address, host) in [("a.example", "a.example"), ("[fd00::1]", "fd00::1"), ("fd00::1", "fd00::1")] {
            assert_eq!(split(address), (host, None));
        }
    }
}
