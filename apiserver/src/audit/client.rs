//! Client of a request, from its headers: source addresses and user agent, for audit and traces.

use std::borrow::Cow;
use std::net::IpAddr;

/// Letters of a client's name that are kept.
const USER_AGENT: usize = 1024;

/// Source addresses of a request: those that proxies added, then the peer's.
pub(crate) fn source_ips(forwarded: &str, real: &str, peer: Option<IpAddr>) -> Vec<String> {
    let ip = |text: &str| text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let mut all: Vec<IpAddr> = forwarded.split(',').filter_map(|part| ip(part.trim())).collect();
    all.extend(ip(real).filter(|real| !all.contains(real)));
    let peer = peer.map(|peer| peer.to_canonical());
    all.extend(peer.filter(|peer| all.last() != Some(peer)));
    all.iter().map(IpAddr::to_string).collect()
}

/// User agent, truncated as upstream does.
pub(crate) fn user_agent(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(USER_AGENT) {
        Some((end, _)) => Cow::Owned(format!("{}...TRUNCATED", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ips_of_a_request() {
        for (forwarded, real, peer, want) in [
            ("1.0.0.1, nonsense, 1.0.0.2", "1.0.0.2", "::ffff:1.0.0.9", ["1.0.0.1", "1.0.0.2", "1.0.0.9"].as_slice()),
            ("1.0.0.1,1.0.0.2", "1.0.0.1", "1.0.0.2", &["1.0.0.1", "1.0.0.2"]),
            ("1.0.0.1,1.0.0.1", "1.0.0.3", "1.0.0.1", &["1.0.0.1", "1.0.0.1", "1.0.0.3", "1.0.0.1"]),
            ("", " 1.0.0.3", "1.0.0.1", &["1.0.0.1"]),
            ("", "", "", &[]),
        ] {
            assert_eq!(source_ips(forwarded, real, peer.parse().ok()), want, "{forwarded} {real} {peer}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(user_agent("kubectl"), "kubectl");
        assert_eq!(user_agent(&"é".repeat(1025)), format!("{}...TRUNCATED", "é".repeat(1024)));
    }
}
