//! The expressions of a rule as attributes. Numbers are those of `linux/netfilter/nf_tables.h`.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::message::{LIST_ELEMENT, family_number};
use super::rule::{Addresses, InterfaceName, Is, MapKey, RuleVerdict, Side, Statement};
use crate::netlink::Writer;
use crate::plan::{Family, Protocol};

/// Registers: that of verdicts, and two of 16 bytes each; what follows four bytes of the first or all of it has others.
const VERDICT: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;
const FOURS: u32 = 8;

/// `NFT_META_*`.
const MARK: u32 = 3;
const INPUT_NAME: u32 = 6;
const TRANSPORT: u32 = 16;
/// `IFNAMSIZ`.
const NAME_LENGTH: usize = 16;

const JUMP: i32 = -3;

/// A set that a rule has for itself.
pub(super) struct OwnSet {
    pub(super) name: String,
    /// Number within the batch.
    pub(super) id: u32,
}

/// The expressions of a rule.
pub(super) struct Expressions<'a> {
    pub(super) family: Family,
    pub(super) out: &'a mut Writer,
}

impl Expressions<'_> {
    fn add(&mut self, name: &str, inside: impl FnOnce(&mut Writer)) {
        self.out.nest(LIST_ELEMENT, |out| {
            out.text(1, name);
            out.nest(2, inside);
        });
    }

    /// Sets of the rule's own come from `own`, in the order of the statements.
    pub(super) fn statement(&mut self, statement: &Statement, own: &mut impl Iterator<Item = OwnSet>) {
        match statement {
            Statement::Address(side, is, addresses) => self.address(*side, *is, addresses, own),
            Statement::Local(side) => {
                let side: u32 = if *side == Side::Source { 1 } else { 2 };
                self.add("fib", |out| registers(out, &[(1, FIRST), (2, 3), (3, side)]));
                self.compare(Is::Equal, &2_u32.to_ne_bytes());
            }
            Statement::Protocol(protocol) => self.protocol(*protocol),
            Statement::Port(protocol, port) => {
                self.protocol(*protocol);
                self.payload(FIRST, 2, 2, 2);
                self.compare(Is::Equal, &port.to_be_bytes());
            }
            Statement::Interface(is, name) => self.interface(*is, name),
            Statement::NewConnection => {
                self.add("ct", |out| registers(out, &[(2, 0), (1, FIRST)]));
                self.bits(8, 0);
                self.compare(Is::Other, &0_u32.to_ne_bytes());
            }
            Statement::Unmarked(mark) => {
                self.load_meta(FIRST, MARK);
                self.bits(*mark, 0);
                self.compare(Is::Equal, &0_u32.to_ne_bytes());
            }
            Statement::SetMark(mark) => self.mark(!mark, *mark),
            Statement::FlipMark(mark) => self.mark(u32::MAX, *mark),
            Statement::Verdict(verdict) => self.verdict(verdict_code(verdict), verdict_chain(verdict)),
            Statement::Jump(chain) => self.verdict(JUMP, Some(chain)),
            Statement::Reject => {
                let code = if self.family == Family::V4 { 3 } else { 4 };
                self.add("reject", |out| {
                    registers(out, &[(1, 0)]);
                    out.attribute(2, &[code]);
                });
            }
            Statement::LookUp(key, map) => self.look_up(*key, map),
            Statement::Choice(chains) => self.choice(chains.len(), own.next()),
            Statement::Remember(set) => {
                self.load_address(Side::Source);
                self.add("dynset", |out| {
                    out.text(1, set);
                    registers(out, &[(3, 1), (4, FIRST)]);
                });
            }
            Statement::Destination(endpoint) => self.destination(*endpoint),
            Statement::Masquerade => self.add("masq", |out| registers(out, &[(1, 16)])),
        }
    }

    fn verdict(&mut self, value: i32, chain: Option<&str>) {
        self.add("immediate", |out| {
            registers(out, &[(1, VERDICT)]);
            out.nest(2, |out| code(out, value, chain));
        });
    }

    fn immediate(&mut self, register: u32, value: &[u8]) {
        self.add("immediate", |out| {
            registers(out, &[(1, register)]);
            out.nest(2, |out| out.attribute(1, value));
        });
    }

    fn compare(&mut self, is: Is, value: &[u8]) {
        let operator = if is == Is::Equal { 0 } else { 1 };
        self.add("cmp", |out| {
            registers(out, &[(1, FIRST), (2, operator)]);
            out.nest(3, |out| out.attribute(1, value));
        });
    }

    fn mask(&mut self, mask: &[u8], flipped: &[u8]) {
        let length = u32::try_from(mask.len()).unwrap_or_default();
        self.add("bitwise", |out| {
            registers(out, &[(1, FIRST), (2, FIRST), (6, 0), (3, length)]);
            out.nest(4, |out| out.attribute(1, mask));
            out.nest(5, |out| out.attribute(1, flipped));
        });
    }

    fn bits(&mut self, mask: u32, flipped: u32) {
        self.mask(&mask.to_ne_bytes(), &flipped.to_ne_bytes());
    }

    fn payload(&mut self, register: u32, base: u32, offset: u32, length: u32) {
        self.add("payload", |out| registers(out, &[(1, register), (2, base), (3, offset), (4, length)]));
    }

    fn load_meta(&mut self, register: u32, key: u32) {
        self.add("meta", |out| registers(out, &[(2, key), (1, register)]));
    }

    fn protocol(&mut self, protocol: Protocol) {
        self.load_meta(FIRST, TRANSPORT);
        self.compare(Is::Equal, &[protocol.number()]);
    }

    fn mark(&mut self, kept: u32, flipped: u32) {
        self.load_meta(FIRST, MARK);
        self.bits(kept, flipped);
        self.add("meta", |out| registers(out, &[(2, MARK), (3, FIRST)]));
    }

    /// Offset and length of an address in its header.
    fn place(&self, side: Side) -> (u32, u32) {
        match (self.family, side) {
            (Family::V4, Side::Source) => (12, 4),
            (Family::V4, Side::Destination) => (16, 4),
            (Family::V6, Side::Source) => (8, 16),
            (Family::V6, Side::Destination) => (24, 16),
        }
    }

    fn load_address(&mut self, side: Side) {
        let (offset, length) = self.place(side);
        self.payload(FIRST, 1, offset, length);
    }

    fn address(&mut self, side: Side, is: Is, addresses: &Addresses, own: &mut impl Iterator<Item = OwnSet>) {
        match addresses {
            Addresses::Network(network) => self.network(side, is, network),
            Addresses::Set(name) => {
                self.load_address(side);
                self.member(is, name, None);
            }
            Addresses::Networks(_) => {
                self.load_address(side);
                if let Some(set) = own.next() {
                    self.member(is, &set.name, Some(set.id));
                }
            }
        }
    }

    /// Of a network that ends with a byte only those bytes are read.
    fn network(&mut self, side: Side, is: Is, network: &IpNet) {
        let (offset, _) = self.place(side);
        let (prefix, network_bytes) = (network.prefix_len(), address_bytes(network.network()));
        let whole = usize::from(prefix / 8);
        if prefix % 8 == 0 && whole > 0 {
            self.payload(FIRST, 1, offset, u32::from(prefix / 8));
            return self.compare(is, network_bytes.get(..whole).unwrap_or_default());
        }
        self.load_address(side);
        self.mask(&address_bytes(network.netmask()), &vec![0; network_bytes.len()]);
        self.compare(is, &network_bytes);
    }

    fn member(&mut self, is: Is, set: &str, id: Option<u32>) {
        self.add("lookup", |out| {
            out.text(1, set);
            registers(out, &[(2, FIRST)]);
            if let Some(id) = id {
                registers(out, &[(4, id)]);
            }
            if is == Is::Other {
                registers(out, &[(5, 1)]);
            }
        });
    }

    fn interface(&mut self, is: Is, name: &InterfaceName) {
        self.load_meta(FIRST, INPUT_NAME);
        let (InterfaceName::Whole(text) | InterfaceName::Prefix(text)) = name;
        let mut bytes: Vec<u8> = text.bytes().take(NAME_LENGTH - 1).collect();
        if let InterfaceName::Whole(_) = name {
            bytes.resize(NAME_LENGTH, 0);
        }
        self.compare(is, &bytes);
    }

    fn look_up(&mut self, key: MapKey, map: &str) {
        let (_, length) = self.place(Side::Destination);
        // Each field has the next four bytes of registers; whole registers of sixteen have numbers of their own.
        let (protocol, port) = match (key, self.family) {
            (MapKey::NodePort, _) => (FIRST, FOURS + 1),
            (MapKey::Service, Family::V4) => (FOURS + 1, FOURS + 2),
            (MapKey::Service, Family::V6) => (SECOND, FOURS + length / 4 + 1),
        };
        if key == MapKey::Service {
            self.load_address(Side::Destination);
        }
        self.load_meta(protocol, TRANSPORT);
        self.payload(port, 2, 2, 2);
        self.add("lookup", |out| {
            out.text(1, map);
            registers(out, &[(2, FIRST), (3, VERDICT)]);
        });
    }

    fn choice(&mut self, count: usize, map: Option<OwnSet>) {
        let Some(map) = map else { return };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.add("numgen", |out| registers(out, &[(1, FIRST), (2, count), (3, 1), (4, 0)]));
        self.add("lookup", |out| {
            out.text(1, &map.name);
            registers(out, &[(2, FIRST), (3, VERDICT), (4, map.id)]);
        });
    }

    fn destination(&mut self, endpoint: SocketAddr) {
        let family = u32::from(family_number(self.family));
        self.immediate(FIRST, &address_bytes(endpoint.ip()));
        self.immediate(SECOND, &endpoint.port().to_be_bytes());
        self.add("nat", |out| registers(out, &[(1, 1), (2, family), (3, FIRST), (5, SECOND), (7, 2)]));
    }
}

/// Attributes that are numbers.
fn registers(out: &mut Writer, numbers: &[(u16, u32)]) {
    numbers.iter().for_each(|(kind, number)| out.attribute(*kind, &number.to_be_bytes()));
}

/// `NFTA_DATA_VERDICT`.
pub(super) fn code(out: &mut Writer, code: i32, chain: Option<&str>) {
    out.nest(2, |out| {
        out.attribute(1, &code.to_be_bytes());
        if let Some(chain) = chain {
            out.text(2, chain);
        }
    });
}

pub(super) fn verdict_code(verdict: &RuleVerdict) -> i32 {
    match verdict {
        RuleVerdict::Drop => 0,
        RuleVerdict::Goto(_) => -4,
        RuleVerdict::Return => -5,
    }
}

pub(super) fn verdict_chain(verdict: &RuleVerdict) -> Option<&str> {
    match verdict {
        RuleVerdict::Goto(chain) => Some(chain),
        RuleVerdict::Drop | RuleVerdict::Return => None,
    }
}

pub(super) fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
