//! Rules of the table as values: [`Display`](fmt::Display) is the tool's syntax, `message` makes what the kernel reads.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::plan::{Family, Protocol};

/// A rule of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Rule {
    /// From left to right; the first match that fails ends the rule.
    pub(super) statements: Vec<Statement>,
    /// Text for people who list the table.
    pub(super) comment: Option<&'static str>,
}

impl From<Vec<Statement>> for Rule {
    fn from(statements: Vec<Statement>) -> Self {
        Self { statements, comment: None }
    }
}

/// A match or an action.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Statement {
    /// Match of an address of the packet.
    Address(Side, Is, Addresses),
    /// Match of an address that is one of this machine.
    Local(Side),
    /// Match of the transport protocol.
    Protocol(Protocol),
    /// Match of the transport protocol and the destination port.
    Port(Protocol, u16),
    /// Match of the interface that the packet came in by: its name, or how that begins.
    Interface(Is, InterfaceName),
    /// Match of packets that begin a connection.
    NewConnection,
    /// Match of packets without this bit in their mark.
    Unmarked(u32),
    /// Sets bits of the packet's mark.
    SetMark(u32),
    /// Flips bits of the packet's mark.
    FlipMark(u32),
    /// Ends the look at the packet, here or elsewhere.
    Verdict(RuleVerdict),
    /// Goes on in a chain and returns.
    Jump(String),
    /// Refuses with "port unreachable".
    Reject,
    /// Goes where an element of a verdict map says, by the packet's destination.
    LookUp(MapKey, &'static str),
    /// Goes to one of these chains by chance.
    Choice(Vec<String>),
    /// Notes the client in a set, or that it was seen again.
    Remember(String),
    /// Changes the destination.
    Destination(SocketAddr),
    /// Changes the source to an address of this machine.
    Masquerade,
}

/// End of a packet that an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    /// Sender.
    Source,
    /// Receiver.
    Destination,
}

/// Sense of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Is {
    /// `==`, which is not written.
    Equal,
    /// `!=`.
    Other,
}

/// Addresses to compare with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Addresses {
    /// A network; a host is one of full length.
    Network(IpNet),
    /// Elements of a set of the table.
    Set(String),
    /// Several networks.
    Networks(Vec<IpNet>),
}

impl From<IpAddr> for Addresses {
    fn from(address: IpAddr) -> Self {
        Self::Network(address.into())
    }
}

impl From<Vec<IpNet>> for Addresses {
    fn from(networks: Vec<IpNet>) -> Self {
        match networks.as_slice() {
            [network] => Self::Network(*network),
            _ => Self::Networks(networks),
        }
    }
}

/// Name of an interface to compare with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum InterfaceName {
    /// The name as a whole.
    Whole(String),
    /// Beginning of the name.
    Prefix(String),
}

/// Last word on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RuleVerdict {
    /// Goes on in a chain for good.
    Goto(String),
    /// Loses it.
    Drop,
    /// Goes on behind the jump that led here.
    Return,
}

/// Key type of a verdict map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MapKey {
    /// Destination address, protocol and port.
    Service,
    /// Protocol and port.
    NodePort,
}

/// Key of an element of a verdict map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Element {
    /// Of services alone.
    pub(super) address: Option<IpAddr>,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
}

/// `ip` or `ip6`: the table's family, and the header's name in matches.
pub(super) fn header(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// A rule or a part of it for a family, as text.
pub(super) struct FamilyText<'a, T>(pub(super) Family, pub(super) &'a T);

impl fmt::Display for FamilyText<'_, Rule> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, statement) in self.1.statements.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(out, "{space}{}", FamilyText(self.0, statement))?;
        }
        match self.1.comment {
            Some(comment) => write!(out, " comment \"{comment}\""),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FamilyText<'_, Statement> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = header(self.0);
        match self.1 {
            Statement::Address(side, is, addresses) => write!(out, "{ip} {side}{is} {addresses}"),
            Statement::Local(side) => write!(out, "fib {side} type local"),
            Statement::Protocol(protocol) => write!(out, "meta l4proto {}", protocol.as_str()),
            Statement::Port(protocol, port) => write!(out, "{} dport {port}", protocol.as_str()),
            Statement::Interface(is, InterfaceName::Whole(name)) => write!(out, "iifname{is} \"{name}\""),
            Statement::Interface(is, InterfaceName::Prefix(name)) => write!(out, "iifname{is} \"{name}*\""),
            Statement::NewConnection => out.write_str("ct state new"),
            Statement::Unmarked(mark) => write!(out, "mark and {mark:#x} == 0"),
            Statement::SetMark(mark) => write!(out, "mark set mark or {mark:#x}"),
            Statement::FlipMark(mark) => write!(out, "mark set mark xor {mark:#x}"),
            Statement::Verdict(verdict) => verdict.fmt(out),
            Statement::Jump(chain) => write!(out, "jump {chain}"),
            Statement::Reject => out.write_str("reject"),
            Statement::LookUp(MapKey::Service, map) => {
                write!(out, "{ip} daddr . meta l4proto . th dport vmap @{map}")
            }
            Statement::LookUp(MapKey::NodePort, map) => write!(out, "meta l4proto . th dport vmap @{map}"),
            Statement::Choice(chains) => {
                let choices = chains.iter().enumerate().map(|(index, chain)| format!("{index} : goto {chain}"));
                let choices = choices.collect::<Vec<_>>().join(", ");
                write!(out, "numgen random mod {} vmap {{ {choices} }}", chains.len())
            }
            Statement::Remember(set) => write!(out, "update @{set} {{ {ip} saddr }}"),
            Statement::Destination(endpoint) => write!(out, "dnat to {endpoint}"),
            Statement::Masquerade => out.write_str("masquerade fully-random"),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Source => "saddr",
            Self::Destination => "daddr",
        })
    }
}

impl fmt::Display for Is {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Equal => "",
            Self::Other => " !=",
        })
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = |network: &IpNet| match network.prefix_len() == network.max_prefix_len() {
            true => network.addr().to_string(),
            false => network.to_string(),
        };
        match self {
            Self::Network(network) => out.write_str(&host(network)),
            Self::Set(set) => write!(out, "@{set}"),
            Self::Networks(networks) => {
                write!(out, "{{ {} }}", networks.iter().map(host).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl fmt::Display for RuleVerdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Goto(chain) => write!(out, "goto {chain}"),
            Self::Drop => out.write_str("drop"),
            Self::Return => out.write_str("return"),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(out, "{address} . ")?;
        }
        write!(out, "{} . {}", self.protocol.as_str(), self.port)
    }
}
