//! IP addresses as Kubernetes reads them in fields that are older than strict ones.
//!
//! Octets and prefix lengths may begin with zeros, and an IPv4 address may be written within an IPv6 one. Such
//! spellings are accepted, warned of, and mean the IPv4 address.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

/// An address in any accepted spelling; an IPv4 one within IPv6 is IPv4.
#[must_use]
pub fn ip(text: &str) -> Option<IpAddr> {
    read(text).map(|ip| ip.to_canonical())
}

/// A network in any accepted spelling, as it is written: bits beyond its prefix stay.
#[must_use]
pub fn network(text: &str) -> Option<IpNet> {
    let (address, prefix) = split(text)?;
    match address {
        IpAddr::V4(v4) => Ipv4Net::new(v4, prefix).ok().map(IpNet::V4),
        IpAddr::V6(v6) => Ipv6Net::new(v6, prefix).ok().map(canonical),
    }
}

/// Upstream's warning for an address that [`ip`] accepts, without the field.
#[must_use]
pub fn ip_warning(text: &str) -> Option<String> {
    let ip = ip(text)?;
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => None,
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => (v6.to_string() != text)
            .then(|| format!("IPv6 address {text:?} should be in RFC 5952 canonical format ({:?})", v6.to_string())),
        _ => Some(format!(
            "non-standard IP address {text:?} will be considered invalid in a future Kubernetes release: use {:?}",
            ip.to_string()
        )),
    }
}

/// Upstream's warnings for a network that [`network`] accepts, without the field.
#[must_use]
pub fn network_warnings(text: &str) -> Vec<String> {
    let (Some((address, _)), Some(network)) = (split(text), network(text)) else { return Vec::new() };
    let (masked, mut out) = (network.trunc(), Vec::new());
    if masked.addr() != network.addr() {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        out.push(format!(
            "CIDR value {text:?} is ambiguous in this context (should be {:?} or {:?}?)",
            masked.to_string(),
            format!("{}/{bits}", network.addr())
        ));
    }
    if !is_standard(text) {
        out.push(format!(
            "non-standard CIDR value {text:?} will be considered invalid in a future Kubernetes release: use {:?}",
            masked.to_string()
        ));
    }
    if out.is_empty() && address.is_ipv6() && network.to_string() != text {
        let canonical = network.to_string();
        out.push(format!("IPv6 CIDR value {text:?} should be in RFC 5952 canonical format ({canonical:?})"));
    }
    out
}

/// Errors of the strict forms of addresses and networks, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StrictError {
    /// No network.
    #[error("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")]
    Network,
    /// A network of IPv4 within IPv6.
    #[error("must not have an IPv4-mapped IPv6 address")]
    MappedNetwork,
    /// Zeros in front of a number of a network.
    #[error("must not have leading 0s in IP or prefix length")]
    NetworkZeros,
    /// A network with bits of a host.
    #[error("must not have bits set beyond the prefix length")]
    HostBits,
    /// No address.
    #[error("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]
    Address,
    /// Zeros in front of a number of an address.
    #[error("must not have leading 0s")]
    AddressZeros,
    /// An address of IPv4 within IPv6.
    #[error("must not be an IPv4-mapped IPv6 address")]
    MappedAddress,
    /// Another form than this one.
    #[error("must be in canonical form ({0:?})")]
    NotCanonical(String),
}

/// Parses a network strictly.
///
/// # Errors
/// The first thing that is wrong.
pub fn strict_network(text: &str) -> Result<IpNet, StrictError> {
    let network = network(text).ok_or(StrictError::Network)?;
    if !is_standard(text) {
        let mapped = matches!(split(text), Some((IpAddr::V6(v6), _)) if v6.to_ipv4_mapped().is_some());
        return Err(if mapped && !has_zeros(text) { StrictError::MappedNetwork } else { StrictError::NetworkZeros });
    }
    if network.trunc() != network {
        return Err(StrictError::HostBits);
    }
    let canonical = network.to_string();
    if canonical == text { Ok(network) } else { Err(StrictError::NotCanonical(canonical)) }
}

/// Parses an address strictly.
///
/// # Errors
/// The first thing that is wrong.
pub fn strict_ip(text: &str) -> Result<IpAddr, StrictError> {
    let ip = ip(text).ok_or(StrictError::Address)?;
    match text.parse::<IpAddr>() {
        Err(_) => Err(StrictError::AddressZeros),
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => Err(StrictError::MappedAddress),
        Ok(_) if ip.to_string() != text => Err(StrictError::NotCanonical(ip.to_string())),
        Ok(_) => Ok(ip),
    }
}

/// Reports whether a Service may get an address of a network: not the network address, nor the broadcast address of
/// IPv4.
#[must_use]
pub fn may_be_given(network: &IpNet, ip: IpAddr) -> bool {
    network.contains(&ip) && ip != network.network() && !(ip.is_ipv4() && ip == network.broadcast())
}

/// An address as it is written, IPv4 within IPv6 as IPv6.
fn read(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    // Only the dotted part may have zeros in front.
    let dotted = text.rfind(':').map_or(0, |colon| colon + 1);
    let (head, octets) = text.split_at(dotted);
    let octets: Vec<Cow<'_, str>> = octets.split('.').map(without_zeros).collect();
    (octets.len() == 4).then(|| [head, &octets.join(".")].concat().parse().ok())?
}

fn split(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((read(address)?, without_zeros(prefix).parse().ok()?))
}

fn without_zeros(digits: &str) -> Cow<'_, str> {
    let rest = digits.trim_start_matches('0');
    if rest.is_empty() && !digits.is_empty() { Cow::Borrowed("0") } else { Cow::Borrowed(rest) }
}

/// Reports whether strict parsers accept the spelling and see no IPv4-mapped IPv6 address.
fn is_standard(text: &str) -> bool {
    !has_zeros(text) && !matches!(split(text), Some((IpAddr::V6(v6), _)) if v6.to_ipv4_mapped().is_some())
}

fn has_zeros(text: &str) -> bool {
    text.split_once('/')
        .is_none_or(|(address, prefix)| address.parse::<IpAddr>().is_err() || without_zeros(prefix) != prefix)
}

/// A network of IPv4 addresses within IPv6 is one of IPv4, where its prefix leaves that.
fn canonical(network: Ipv6Net) -> IpNet {
    const MAPPED: u8 = 96;
    let mapped = Ipv6Addr::to_ipv4_mapped(&network.addr());
    let rest = network.prefix_len().checked_sub(MAPPED);
    let v4 = mapped.zip(rest).and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok());
    v4.map_or(IpNet::V6(network), IpNet::V4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_read_in_any_accepted_spelling() {
        for (text, want) in [
            ("1.2.3.4", "1.2.3.4"),
            ("1.1.1.01", "1.1.1.1"),
            ("010.000.1.1", "10.0.1.1"),
            ("::ffff:1.1.1.1", "1.1.1.1"),
            ("::ffff:01.1.1.1", "1.1.1.1"),
            ("2001:DB8:0::2", "2001:db8::2"),
        ] {
            assert_eq!(ip(text).map(|ip| ip.to_string()).as_deref(), Some(want), "{text}");
        }
        for text in
            ["", "aaaaaaa", "1.2.3.400", "1.2.3", "1.2.3.", "-1.0.0.0", "1.2.3.4:80", "1234::abcd%eth0", "1.2.3.0/24"]
        {
            assert_eq!(ip(text), None, "{text}");
        }
    }

    #[test]
    fn odd_addresses_are_warned_of() {
        const ODD: &str = "will be considered invalid in a future Kubernetes release: use";
        for (text, want) in [
            ("192.12.2.2", None),
            ("2001:db8::2", None),
            ("192.012.2.2", Some(format!("non-standard IP address \"192.012.2.2\" {ODD} \"192.12.2.2\""))),
            ("::ffff:192.12.2.2", Some(format!("non-standard IP address \"::ffff:192.12.2.2\" {ODD} \"192.12.2.2\""))),
            (
                "2001:db8:0:0::2",
                Some(
                    "IPv6 address \"2001:db8:0:0::2\" should be in RFC 5952 canonical format (\"2001:db8::2\")".into(),
                ),
            ),
        ] {
            assert_eq!(ip_warning(text), want, "{text}");
        }
    }

    #[test]
    fn odd_networks_are_warned_of() {
        let odd = |text: &str, now: &str| {
            format!(
                "non-standard CIDR value \"{text}\" will be considered invalid in a future Kubernetes release: use \"{now}\""
            )
        };
        let vague = |text: &str, a: &str, b: &str| {
            format!("CIDR value \"{text}\" is ambiguous in this context (should be \"{a}\" or \"{b}\"?)")
        };
        for (text, want) in [
            ("192.12.2.0/24", vec![]),
            ("2001:db8::/64", vec![]),
            ("192.012.2.0/24", vec![odd("192.012.2.0/24", "192.12.2.0/24")]),
            ("192.12.2.0/024", vec![odd("192.12.2.0/024", "192.12.2.0/24")]),
            ("::ffff:192.12.2.0/120", vec![odd("::ffff:192.12.2.0/120", "192.12.2.0/24")]),
            ("192.12.2.8/24", vec![vague("192.12.2.8/24", "192.12.2.0/24", "192.12.2.8/32")]),
            (
                "192.012.2.8/24",
                vec![vague("192.012.2.8/24", "192.12.2.0/24", "192.12.2.8/32"), odd("192.012.2.8/24", "192.12.2.0/24")],
            ),
            (
                "2001:db8:0:0::/64",
                vec![
                    "IPv6 CIDR value \"2001:db8:0:0::/64\" should be in RFC 5952 canonical format (\"2001:db8::/64\")"
                        .into(),
                ],
            ),
            ("junk", vec![]),
        ] {
            assert_eq!(network_warnings(text), want, "{text}");
        }
    }

    #[test]
    fn strict_fields_take_one_spelling() {
        let zeros = "must not have leading 0s in IP or prefix length";
        let valid = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        for (text, want) in [
            ("1.0.0.0/8", ""),
            ("2a00:79e0:2:0::/64", "must be in canonical form (\"2a00:79e0:2::/64\")"),
            ("1.1.01.0/24", zeros),
            ("192.168.0.0/016", zeros),
            ("::ffff:1.1.1.0/24", "must not have an IPv4-mapped IPv6 address"),
            ("1.2.3.4/24", "must not have bits set beyond the prefix length"),
            ("192.168.0.0/+16", valid),
            ("192.168.0.1/0/99", valid),
            ("1.2.3.4", valid),
        ] {
            assert_eq!(strict_network(text).err().map(|e| e.to_string()).unwrap_or_default(), want, "{text}");
        }
        for (text, want) in [
            ("::", ""),
            ("0:0:0:0:0:0:0:0", "must be in canonical form (\"::\")"),
            ("1.1.1.01", "must not have leading 0s"),
            ("::ffff:1.1.1.1", "must not be an IPv4-mapped IPv6 address"),
        ] {
            assert_eq!(strict_ip(text).err().map(|e| e.to_string()).unwrap_or_default(), want, "{text}");
        }
    }

    #[test]
    fn ends_of_a_range_are_not_given_out() {
        for (net, ip, want) in [
            ("10.96.0.0/12", "10.96.0.0", false),
            ("10.96.0.0/12", "10.96.0.1", true),
            ("10.96.0.0/12", "10.111.255.255", false),
            ("10.96.0.0/12", "1.2.3.4", false),
            ("fd00::/64", "fd00::", false),
            ("fd00::/64", "fd00::ffff:ffff:ffff:ffff", true),
        ] {
            let (net, ip): (IpNet, IpAddr) = (net.parse().expect("net"), ip.parse().expect("ip"));
            assert_eq!(may_be_given(&net, ip), want, "{net} {ip}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_has_one_strict_spelling(text in "[0-9a-f:./]{0,20}|(::ffff:)?[0-9]{1,4}([.][0-9]{1,4}){3}(/[0-9]{1,4})?") {
            if let Some(address) = ip(&text) {
                prop_assert_eq!(strict_ip(&address.to_string()), Ok(address));
                prop_assert_eq!(ip_warning(&text).is_none(), strict_ip(&text).is_ok());
            }
            if let Some(network) = network(&text) {
                let masked = network.trunc();
                prop_assert_eq!(strict_network(&masked.to_string()), Ok(masked));
                prop_assert_eq!(network_warnings(&text).is_empty(), strict_network(&text).is_ok());
            }
        }
    }
}
