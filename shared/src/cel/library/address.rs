//! `ip`, `cidr` and what they do.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use super::{Args, Entry, ONE, bool, function, int, method, opaque, text};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Value};
use crate::status::go_quote;

#[derive(Debug, PartialEq, Eq)]
struct Ip(IpAddr);

opaque!(Ip, "net.IP", |ip| Some(if ip.0.is_ipv4() { 4 } else { 16 }), |ip| ip.0.to_string());

#[derive(Debug, PartialEq, Eq)]
struct Cidr(IpNet);

opaque!(Cidr, "net.CIDR", |net| Some(u64::from(net.0.prefix_len().div_ceil(8))), |net| net.0.to_string());

const PARSE: Cost = Cost::Scan(1.0);

pub(super) const TABLE: &[Entry] = &[
    function("ip", "string", "net.IP", PARSE, ip),
    function("isIP", "string", "bool", PARSE, is_ip),
    function("ip.isCanonical", "string", "bool", Cost::Scan(2.0), is_canonical),
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

/// Text that is no address, in the words of Go's `netip.ParseAddr`.
#[derive(Debug, thiserror::Error)]
#[error("ParseAddr({}): {problem}", go_quote(.text))]
struct AddressError {
    text: String,
    #[source]
    problem: AddressProblem,
}

/// Problems of a text that is no address.
#[derive(Debug, thiserror::Error)]
enum AddressProblem {
    #[error("unable to parse IP")]
    Form,
    #[error("missing IPv6 address")]
    ZoneAlone,
    #[error("zone must be a non-empty string")]
    EmptyZone,
    #[error("IPv4 field has octet with leading zero")]
    LeadingZero,
    #[error("IPv4 field has value >255")]
    Octet,
    #[error("unexpected character (at {})", go_quote(.0))]
    Character(String),
    #[error("IPv4 field must have at least one digit (at {})", go_quote(.0))]
    EmptyOctet(String),
    #[error("IPv4 address too long")]
    TooLong,
    #[error("IPv4 address too short")]
    TooShort,
}

/// Text that is no network, in the words of Go's `netip.ParsePrefix`.
#[derive(Debug, thiserror::Error)]
#[error("netip.ParsePrefix({}): {problem}", go_quote(.text))]
struct PrefixError {
    text: String,
    #[source]
    problem: PrefixProblem,
}

/// Problems of a text that is no network.
#[derive(Debug, thiserror::Error)]
enum PrefixProblem {
    #[error("no '/'")]
    NoSlash,
    #[error("IPv6 zones cannot be present in a prefix")]
    Zone,
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("bad bits after slash: {}", go_quote(.0))]
    Bits(String),
    #[error("prefix length out of range")]
    Length,
}

/// Parses an address.
fn parse_address(text: &str) -> Result<IpAddr, AddressError> {
    let wrong = |problem| Err(AddressError { text: text.to_owned(), problem });
    match text.bytes().find(|b| matches!(b, b'.' | b':' | b'%')) {
        None => wrong(AddressProblem::Form),
        Some(b'%') => wrong(AddressProblem::ZoneAlone),
        Some(b'.') => text.parse().map(IpAddr::V4).or_else(|_| wrong(four(text))),
        Some(_) if text.ends_with('%') => wrong(AddressProblem::EmptyZone),
        Some(_) => text.parse().map(IpAddr::V6).or_else(|_| wrong(AddressProblem::Form)),
    }
}

/// Problem of an invalid dotted IPv4 address.
fn four(text: &str) -> AddressProblem {
    let (mut number, mut digits, mut dots) = (0_u32, 0, 0);
    for (place, c) in text.char_indices() {
        match c.to_digit(10) {
            Some(_) if digits == 1 && number == 0 => return AddressProblem::LeadingZero,
            Some(digit) => {
                (number, digits) = (number * 10 + digit, digits + 1);
                if number > 255 {
                    return AddressProblem::Octet;
                }
            }
            None if c != '.' => return AddressProblem::Character(text[place..].to_owned()),
            None if digits == 0 || place + 1 == text.len() => {
                return AddressProblem::EmptyOctet(text[place..].to_owned());
            }
            None if dots == 3 => return AddressProblem::TooLong,
            None => (number, digits, dots) = (0, 0, dots + 1),
        }
    }
    AddressProblem::TooShort
}

fn parse_ip(text: &str) -> Result<IpAddr, Error> {
    let quoted = go_quote(text);
    let (bare, zone) = text.split_once('%').unwrap_or((text, ""));
    if !zone.is_empty() && bare.parse::<Ipv6Addr>().is_ok() {
        return Err(Error::new(format!("IP address {quoted} with zone value is not allowed")));
    }
    let read = parse_address(text);
    match read
        .map_err(|why| Error::new(format!("IP Address {quoted} parse error during conversion from string: {why}")))?
    {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(Error::new(format!("IPv4-mapped IPv6 address {quoted} is not allowed")))
        }
        address => Ok(address),
    }
}

/// Parses a network.
fn parse_prefix(text: &str) -> Result<IpNet, PrefixError> {
    let wrong = |problem| PrefixError { text: text.to_owned(), problem };
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| wrong(PrefixProblem::NoSlash))?;
    if address.contains('%') && address.parse::<Ipv6Addr>().is_err() {
        return Err(wrong(PrefixProblem::Zone));
    }
    let address = parse_address(address).map_err(|e| wrong(e.into()))?;
    let shape =
        !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) && (bits.len() == 1 || !bits.starts_with('0'));
    let number = bits.parse().ok().filter(|_| shape);
    let number: u32 = number.ok_or_else(|| wrong(PrefixProblem::Bits(bits.to_owned())))?;
    let prefix = u8::try_from(number).ok().and_then(|number| IpNet::new(address, number).ok());
    prefix.ok_or_else(|| wrong(PrefixProblem::Length))
}

fn parse_cidr(text: &str) -> Result<IpNet, Error> {
    const WRONG: &str = "network address parse error during conversion from string";
    let net = parse_prefix(text).map_err(|why| format!("{WRONG}: {why}"));
    let mapped = |net: &IpNet| matches!(net.addr(), IpAddr::V6(a) if a.to_ipv4_mapped().is_some());
    match net {
        Ok(net) if mapped(&net) => Err(format!("IPv4-mapped IPv6 address {} is not allowed", go_quote(text))),
        other => other,
    }
    .map_err(|why| Error::new(format!("{WRONG}: {why}")))
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
        // Nobody is told why it is none.
        Value::String(s) => parse_ip(s).map_err(|_| Error::overload())?,
        _ => args.inside::<Ip>(1)?.0,
    };
    bool(network(args)?.contains(&inner))
}

fn contains_cidr<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let inner = match args.get(1)? {
        Value::String(s) => parse_cidr(s).map_err(|_| Error::overload())?,
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
