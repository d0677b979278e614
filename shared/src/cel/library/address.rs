//! `ip`, `cidr` and what they do.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Args, Entry, ONE, bool, function, int, method, opaque, text};
use crate::cel::Error;
use crate::cel::cost::{CHARACTER, Cost};
use crate::cel::value::{Answer, Value};

#[derive(Debug, PartialEq, Eq)]
struct Ip(IpAddr);

opaque!(Ip, "net.IP");

#[derive(Debug, PartialEq, Eq)]
struct Cidr(IpNet);

opaque!(Cidr, "net.CIDR");

const PARSE: Cost = Cost::Parse(CHARACTER);

pub(super) const TABLE: &[Entry] = &[
    function("ip", "string", "net.IP", PARSE, ip),
    function("isIP", "string", "bool", PARSE, is_ip),
    function("ip.isCanonical", "string", "bool", Cost::Parse(2.0 * CHARACTER), is_canonical),
    method("family", "net.IP", "int", ONE, family),
    method("isUnspecified", "net.IP", "bool", ONE, is_unspecified),
    method("isLoopback", "net.IP", "bool", ONE, is_loopback),
    method("isLinkLocalMulticast", "net.IP", "bool", ONE, is_link_local_multicast),
    method("isLinkLocalUnicast", "net.IP", "bool", ONE, is_link_local_unicast),
    method("isGlobalUnicast", "net.IP", "bool", ONE, is_global_unicast),
    function("cidr", "string", "net.CIDR", PARSE, cidr),
    function("isCIDR", "string", "bool", PARSE, is_cidr),
    method("containsIP", "net.CIDR, net.IP", "bool", Cost::Network { whole: false, text: false }, contains_ip),
    method("containsIP", "net.CIDR, string", "bool", Cost::Network { whole: false, text: true }, contains_ip),
    method("containsCIDR", "net.CIDR, net.CIDR", "bool", Cost::Network { whole: true, text: false }, contains_cidr),
    method("containsCIDR", "net.CIDR, string", "bool", Cost::Network { whole: true, text: true }, contains_cidr),
    method("ip", "net.CIDR", "net.IP", ONE, address_of),
    method("masked", "net.CIDR", "net.CIDR", ONE, masked),
    method("prefixLength", "net.CIDR", "int", ONE, prefix_length),
    function("string", "net.IP", "string", ONE, printed),
    function("string", "net.CIDR", "string", ONE, printed),
];

fn parse_ip(text: &str) -> Result<IpAddr, Error> {
    let wrong = |why: &str| Error::new(format!("IP Address {text:?} parse error during conversion from string: {why}"));
    let address: IpAddr = text.parse().map_err(|_| wrong(&format!("ParseAddr({text:?}): unable to parse IP")))?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(Error::new(format!("IPv4-mapped IPv6 address {text:?} is not allowed")))
        }
        address => Ok(address),
    }
}

fn parse_cidr(text: &str) -> Result<IpNet, Error> {
    let net: Option<IpNet> = text.parse().ok();
    let mapped = |n: &IpNet| matches!(n.addr(), IpAddr::V6(a) if a.to_ipv4_mapped().is_some());
    net.filter(|n| !mapped(n))
        .ok_or_else(|| Error::new(format!("network address parse error during conversion from string: {text}")))
}

fn ip<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    parse_ip(args.text(0)?).map(|a| Value::opaque(Ip(a)))
}

fn is_ip<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(parse_ip(args.text(0)?).is_ok())
}

fn is_canonical<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let source = args.text(0)?;
    bool(parse_ip(source)?.to_string() == source)
}

fn address(args: &Args<'_, '_>) -> Result<IpAddr, Error> {
    args.inside::<Ip>(0).map(|a| a.0)
}

fn network(args: &Args<'_, '_>) -> Result<IpNet, Error> {
    args.inside::<Cidr>(0).map(|n| n.0)
}

fn family<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(if address(args)?.is_ipv4() { 4 } else { 6 })
}

fn is_unspecified<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(address(args)?.is_unspecified())
}

fn is_loopback<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(address(args)?.is_loopback())
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

fn is_link_local_multicast<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(link_local_multicast(address(args)?))
}

fn is_link_local_unicast<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(link_local_unicast(address(args)?))
}

fn is_global_unicast<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let a = address(args)?;
    let broadcast = matches!(a, IpAddr::V4(v4) if v4.is_broadcast());
    bool(!broadcast && !a.is_unspecified() && !a.is_loopback() && !a.is_multicast() && !link_local_unicast(a))
}

fn cidr<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    parse_cidr(args.text(0)?).map(|n| Value::opaque(Cidr(n)))
}

fn is_cidr<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(parse_cidr(args.text(0)?).is_ok())
}

fn contains_ip<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let inner = match args.get(1)? {
        Value::String(s) => parse_ip(s)?,
        _ => args.inside::<Ip>(1)?.0,
    };
    bool(network(args)?.contains(&inner))
}

fn contains_cidr<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let inner = match args.get(1)? {
        Value::String(s) => parse_cidr(s)?,
        _ => args.inside::<Cidr>(1)?.0,
    };
    bool(network(args)?.contains(&inner))
}

fn address_of<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(Value::opaque(Ip(network(args)?.addr())))
}

fn masked<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(Value::opaque(Cidr(network(args)?.trunc())))
}

fn prefix_length<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(network(args)?.prefix_len().into())
}

fn printed<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.inside::<Ip>(0) {
        Ok(ip) => text(ip.0.to_string()),
        Err(_) => text(args.inside::<Cidr>(0)?.0.to_string()),
    }
}
