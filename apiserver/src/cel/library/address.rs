//! `ip`, `cidr` and what they do.

use std::net::IpAddr;

use ::cel::Value;
use ::cel::objects::Opaque;
use ipnet::IpNet;

use super::{ANY, Answer, Entry, TEXT, entry, inside, opaque, overload, string, text};

#[derive(Debug, PartialEq, Eq)]
struct Ip(IpAddr);

impl Opaque for Ip {
    fn runtime_type_name(&self) -> &str {
        "net.IP"
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Cidr(IpNet);

impl Opaque for Cidr {
    fn runtime_type_name(&self) -> &str {
        "net.CIDR"
    }
}

pub(super) const TABLE: &[Entry] = &[
    entry!("ip", false, [TEXT], ip),
    entry!("isIP", false, [TEXT], is_ip),
    entry!("ip.isCanonical", false, [TEXT], is_canonical),
    entry!("family", true, [ANY], family),
    entry!("isUnspecified", true, [ANY], is_unspecified),
    entry!("isLoopback", true, [ANY], is_loopback),
    entry!("isLinkLocalMulticast", true, [ANY], is_link_local_multicast),
    entry!("isLinkLocalUnicast", true, [ANY], is_link_local_unicast),
    entry!("isGlobalUnicast", true, [ANY], is_global_unicast),
    entry!("cidr", false, [TEXT], cidr),
    entry!("isCIDR", false, [TEXT], is_cidr),
    entry!("containsIP", true, [ANY, ANY], contains_ip),
    entry!("containsCIDR", true, [ANY, ANY], contains_cidr),
    entry!("ip", true, [ANY], address_of),
    entry!("masked", true, [ANY], masked),
    entry!("prefixLength", true, [ANY], prefix_length),
    entry!("string", false, [ANY], printed),
];

fn parse_ip(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr =
        text.parse().map_err(|_| format!("IP Address {text:?} parse error during conversion from string"))?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        address => Ok(address),
    }
}

fn parse_cidr(text: &str) -> Result<IpNet, String> {
    text.parse().map_err(|_| format!("network address parse error during conversion from string: {text:?}"))
}

fn ip(args: &[Value]) -> Answer {
    parse_ip(text(args, 0)?).map(|a| opaque(Ip(a)))
}

fn is_ip(args: &[Value]) -> Answer {
    Ok(Value::Bool(parse_ip(text(args, 0)?).is_ok()))
}

fn is_canonical(args: &[Value]) -> Answer {
    let source = text(args, 0)?;
    Ok(Value::Bool(parse_ip(source)?.to_string() == source))
}

fn address(args: &[Value], i: usize) -> Result<IpAddr, String> {
    match args.get(i) {
        Some(Value::String(s)) if i > 0 => parse_ip(s),
        _ => inside::<Ip>(args, i).map(|a| a.0).ok_or_else(|| overload("ip")),
    }
}

fn network(args: &[Value], i: usize) -> Result<IpNet, String> {
    match args.get(i) {
        Some(Value::String(s)) if i > 0 => parse_cidr(s),
        _ => inside::<Cidr>(args, i).map(|n| n.0).ok_or_else(|| overload("cidr")),
    }
}

fn family(args: &[Value]) -> Answer {
    Ok(Value::Int(if address(args, 0)?.is_ipv4() { 4 } else { 6 }))
}

fn is_unspecified(args: &[Value]) -> Answer {
    Ok(Value::Bool(address(args, 0)?.is_unspecified()))
}

fn is_loopback(args: &[Value]) -> Answer {
    Ok(Value::Bool(address(args, 0)?.is_loopback()))
}

fn link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.octets()[..3] == [224, 0, 0],
        IpAddr::V6(a) => a.segments()[0] & 0xff0f == 0xff02,
    }
}

fn link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_multicast(args: &[Value]) -> Answer {
    Ok(Value::Bool(link_local_multicast(address(args, 0)?)))
}

fn is_link_local_unicast(args: &[Value]) -> Answer {
    Ok(Value::Bool(link_local_unicast(address(args, 0)?)))
}

fn is_global_unicast(args: &[Value]) -> Answer {
    let a = address(args, 0)?;
    let broadcast = matches!(a, IpAddr::V4(v4) if v4.is_broadcast());
    Ok(Value::Bool(
        !broadcast && !a.is_unspecified() && !a.is_loopback() && !a.is_multicast() && !link_local_unicast(a),
    ))
}

fn cidr(args: &[Value]) -> Answer {
    parse_cidr(text(args, 0)?).map(|n| opaque(Cidr(n)))
}

fn is_cidr(args: &[Value]) -> Answer {
    Ok(Value::Bool(parse_cidr(text(args, 0)?).is_ok()))
}

fn contains_ip(args: &[Value]) -> Answer {
    Ok(Value::Bool(network(args, 0)?.contains(&address(args, 1)?)))
}

fn contains_cidr(args: &[Value]) -> Answer {
    Ok(Value::Bool(network(args, 0)?.contains(&network(args, 1)?)))
}

fn address_of(args: &[Value]) -> Answer {
    Ok(opaque(Ip(network(args, 0)?.addr())))
}

fn masked(args: &[Value]) -> Answer {
    Ok(opaque(Cidr(network(args, 0)?.trunc())))
}

fn prefix_length(args: &[Value]) -> Answer {
    Ok(Value::Int(i64::from(network(args, 0)?.prefix_len())))
}

fn printed(args: &[Value]) -> Answer {
    if let Some(Ip(a)) = inside(args, 0) {
        return Ok(string(a.to_string()));
    }
    inside::<Cidr>(args, 0).map(|n| string(n.0.to_string())).ok_or_else(|| overload("string"))
}
