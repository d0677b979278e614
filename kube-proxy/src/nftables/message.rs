//! Operations as the kernel's messages, and the batch that they go in. Numbers are those of `linux/netfilter/nf_tables.h`.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};

use super::expression::{Expressions, OwnSet, address_bytes, code, verdict_chain, verdict_code};
use super::rule::{Addresses, Element, MapKey, Rule, RuleVerdict, Statement};
use super::transaction::{Operation, SetType, TABLE, TABLE_COMMENT, Transaction};
use crate::netlink::{RawMessage, Writer};
use crate::plan::Family;

/// Kinds of messages.
mod kind {
    pub(super) const NEW_TABLE: u8 = 0;
    pub(super) const DELETE_TABLE: u8 = 2;
    pub(super) const NEW_CHAIN: u8 = 3;
    pub(super) const DELETE_CHAIN: u8 = 5;
    pub(super) const NEW_RULE: u8 = 6;
    pub(super) const DELETE_RULE: u8 = 8;
    pub(super) const NEW_SET: u8 = 9;
    pub(super) const DELETE_SET: u8 = 11;
    pub(super) const NEW_ELEMENT: u8 = 12;
    pub(super) const DELETE_ELEMENT: u8 = 14;
}

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

/// The name of what a message is about comes behind the name of its table, as attributes of these numbers; a chain's is 3.
const TABLE_NAME: u16 = 1;
const CHAIN_NAME: u16 = 3;
const NAME: u16 = 2;
pub(super) const LIST_ELEMENT: u16 = 1;

/// `NFT_SET_*`.
const ANONYMOUS: u32 = 1;
const CONSTANT: u32 = 2;
const INTERVAL: u32 = 4;
const MAP: u32 = 8;
const TIMEOUT: u32 = 0x10;
const EVALUATED: u32 = 0x20;
/// `NFT_SET_ELEM_INTERVAL_END`.
const INTERVAL_END: u32 = 1;
/// `NFT_DATA_VERDICT`.
const VERDICT_DATA: u32 = 0xffff_ff00;

/// Key types of the tool, which it lists sets by.
mod datatype {
    pub(super) const INTEGER: u32 = 4;
    pub(super) const IPV4: u32 = 7;
    pub(super) const IPV6: u32 = 8;
    pub(super) const PROTOCOL: u32 = 12;
    pub(super) const SERVICE: u32 = 13;
    /// Bits of one type among several.
    pub(super) const BITS: u32 = 6;
}

/// Byte orders of the tool.
const MIXED: u32 = 0;
const HOST: u32 = 1;
const BIG: u32 = 2;

/// `NFPROTO_*`.
pub(super) fn family_number(family: Family) -> u8 {
    let number = match family {
        Family::V4 => libc::NFPROTO_IPV4,
        Family::V6 => libc::NFPROTO_IPV6,
    };
    u8::try_from(number).unwrap_or_default()
}

/// A question to the kernel, about a table or about all.
pub(super) fn request(family: Family, kind: u8, table: Option<&str>) -> RawMessage {
    let mut out = Writer::default();
    out.bytes(&[family_number(family), 0, 0, 0]);
    if let Some(table) = table {
        out.text(TABLE_NAME, table);
    }
    RawMessage { kind: SUBSYSTEM << 8 | u16::from(kind), bytes: out.into_bytes() }
}

/// Bytes of a transaction for the kernel, and the number of its last message.
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) last: u32,
}

/// Encodes a transaction. Messages are numbered as operations are, from one; those of sets without a name have the number of the
/// rule that they are for.
pub(super) fn batch(transaction: &Transaction) -> Batch {
    let family = transaction.family();
    let mut encoder = Encoder { family, out: Writer::default(), sequence: 0, last: 0, sets: 0 };
    encoder.control(BATCH_BEGIN);
    for operation in transaction.operations() {
        encoder.sequence += 1;
        encoder.operation(operation);
    }
    encoder.acknowledge_last();
    let last = encoder.sequence;
    encoder.sequence += 1;
    encoder.control(BATCH_END);
    Batch { bytes: encoder.out.into_bytes(), last }
}

struct Encoder {
    family: Family,
    out: Writer,
    sequence: u32,
    /// Offset of the last message.
    last: usize,
    /// Sets without a name so far; their numbers hold within the batch.
    sets: u32,
}

impl Encoder {
    fn message(&mut self, kind: u8, flags: u16, inside: impl FnOnce(&mut Writer)) {
        let family = family_number(self.family);
        self.last = self.out.len();
        self.out.message(SUBSYSTEM << 8 | u16::from(kind), NLM_F_REQUEST | flags, self.sequence, |out| {
            out.bytes(&[family, 0, 0, 0]);
            out.text(TABLE_NAME, TABLE);
            inside(out);
        });
    }

    fn control(&mut self, kind: u16) {
        self.out.message(kind, NLM_F_REQUEST, self.sequence, |out| {
            out.bytes(&[0, 0]);
            out.bytes(&SUBSYSTEM.to_be_bytes());
        });
    }

    /// An answer to the last message tells that all before it were taken, too.
    fn acknowledge_last(&mut self) {
        self.out.add_flags(self.last, NLM_F_ACK);
    }

    fn operation(&mut self, operation: &Operation) {
        match operation {
            Operation::AddTable => self.message(kind::NEW_TABLE, NLM_F_CREATE, |out| {
                out.attribute(2, &0_u32.to_be_bytes());
                out.attribute(6, &note(TABLE_COMMENT));
            }),
            Operation::DeleteTable => self.message(kind::DELETE_TABLE, 0, |_| {}),
            Operation::AddBaseChain(chain) => self.message(kind::NEW_CHAIN, NLM_F_CREATE, |out| {
                out.text(CHAIN_NAME, chain.name);
                out.nest(4, |out| {
                    out.attribute(1, &(chain.hook as u32).to_be_bytes());
                    out.attribute(2, &chain.priority.to_be_bytes());
                });
                out.text(7, chain.kind);
            }),
            Operation::AddChain(name) => {
                self.message(kind::NEW_CHAIN, NLM_F_CREATE, |out| out.text(CHAIN_NAME, name));
            }
            Operation::FlushChain(name) => self.message(kind::DELETE_RULE, 0, |out| out.text(NAME, name)),
            Operation::DeleteChain(name) => self.message(kind::DELETE_CHAIN, 0, |out| out.text(CHAIN_NAME, name)),
            Operation::AddRule(chain, rule) => self.rule(chain, rule),
            Operation::AddSet(name, of) => self.set(name, *of),
            Operation::FlushSet(name) => self.message(kind::DELETE_ELEMENT, 0, |out| out.text(NAME, name)),
            Operation::DeleteSet(name) => self.message(kind::DELETE_SET, 0, |out| out.text(NAME, name)),
            Operation::AddElement(map, key, verdict) => {
                self.element(kind::NEW_ELEMENT, map, &key_bytes(key), Some(verdict))
            }
            Operation::DeleteElement(map, key) => self.element(kind::DELETE_ELEMENT, map, &key_bytes(key), None),
            Operation::AddAddress(set, address) => self.element(kind::NEW_ELEMENT, set, &address_bytes(*address), None),
            Operation::DeleteAddress(set, address) => {
                self.element(kind::DELETE_ELEMENT, set, &address_bytes(*address), None);
            }
        }
    }

    fn element(&mut self, kind: u8, set: &str, key: &[u8], verdict: Option<&RuleVerdict>) {
        let flags = if kind == kind::NEW_ELEMENT { NLM_F_CREATE } else { 0 };
        self.message(kind, flags, |out| {
            out.text(NAME, set);
            out.nest(3, |out| element(out, key, verdict, 0));
        });
    }

    fn address_type(&self) -> (u32, u32) {
        match self.family {
            Family::V4 => (datatype::IPV4, 4),
            Family::V6 => (datatype::IPV6, 16),
        }
    }

    fn set(&mut self, name: &str, of: SetType) {
        let (address, length) = self.address_type();
        let node_port = datatype::PROTOCOL << datatype::BITS | datatype::SERVICE;
        let (key, length, order, flags) = match of {
            SetType::Map(MapKey::NodePort) => (node_port, 8, MIXED, MAP),
            SetType::Map(MapKey::Service) => (address << (2 * datatype::BITS) | node_port, length + 8, MIXED, MAP),
            SetType::Addresses => (address, length, BIG, 0),
            SetType::Clients(_) => (address, length, BIG, EVALUATED | TIMEOUT),
        };
        self.sets += 1;
        let id = self.sets;
        self.message(kind::NEW_SET, NLM_F_CREATE, |out| {
            set(out, (name, id), (key, length), flags, None, order);
            if let SetType::Clients(seconds) = of {
                out.attribute(11, &(u64::from(seconds) * 1000).to_be_bytes());
            }
        });
    }

    fn rule(&mut self, chain: &str, rule: &Rule) {
        let mut own = Vec::new();
        for statement in &rule.statements {
            match statement {
                Statement::Address(_, _, Addresses::Networks(networks)) => own.push(self.networks(networks)),
                Statement::Choice(chains) => own.push(self.choices(chains)),
                _ => {}
            }
        }
        let mut own = own.into_iter();
        let family = self.family;
        self.message(kind::NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, |out| {
            out.text(NAME, chain);
            out.nest(4, |out| {
                let mut expressions = Expressions { family, out };
                rule.statements.iter().for_each(|statement| expressions.statement(statement, &mut own));
            });
            if let Some(comment) = rule.comment {
                out.attribute(7, &note(comment));
            }
        });
    }

    /// Makes a set of a rule's own, and returns it.
    fn networks(&mut self, networks: &[IpNet]) -> OwnSet {
        let bounds = bounds(self.family, networks);
        let (key, length) = self.address_type();
        self.sets += 1;
        let id = self.sets;
        let name = own_name();
        let count = u32::try_from(bounds.len()).ok();
        self.message(kind::NEW_SET, NLM_F_CREATE, |out| {
            set(out, (&name, id), (key, length), ANONYMOUS | CONSTANT | INTERVAL, count, BIG);
        });
        for bounds in bounds.chunks(PART) {
            self.message(kind::NEW_ELEMENT, NLM_F_CREATE, |out| {
                out.text(NAME, &name);
                out.attribute(4, &id.to_be_bytes());
                out.nest(3, |out| {
                    for (bound, is_end) in bounds {
                        element(out, &address_bytes(*bound), None, if *is_end { INTERVAL_END } else { 0 });
                    }
                });
            });
        }
        OwnSet { name, id }
    }

    /// Makes a map of a rule's own, from numbers to chains, and returns it.
    fn choices(&mut self, chains: &[String]) -> OwnSet {
        self.sets += 1;
        let id = self.sets;
        let name = own_name();
        let count = u32::try_from(chains.len()).ok();
        self.message(kind::NEW_SET, NLM_F_CREATE, |out| {
            set(out, (&name, id), (datatype::INTEGER, 4), ANONYMOUS | CONSTANT | MAP, count, HOST);
        });
        for (part, chains) in chains.chunks(PART).enumerate() {
            let first = part * PART;
            self.message(kind::NEW_ELEMENT, NLM_F_CREATE, |out| {
                out.text(NAME, &name);
                out.attribute(4, &id.to_be_bytes());
                out.nest(3, |out| {
                    for (index, chain) in chains.iter().enumerate() {
                        let number = u32::try_from(first + index).unwrap_or(u32::MAX);
                        element(out, &number.to_ne_bytes(), Some(&RuleVerdict::Goto(chain.clone())), 0);
                    }
                });
            });
        }
        OwnSet { name, id }
    }
}

/// A name that no other set has. The kernel would find one itself, but it parses the names of all sets for that.
fn own_name() -> String {
    static LAST: LazyLock<AtomicU64> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        AtomicU64::new(u64::try_from(since.as_nanos()).unwrap_or_default())
    });
    format!("__{:x}", LAST.fetch_add(1, Ordering::Relaxed))
}

/// Elements in one message: an attribute holds less than 64 KiB.
const PART: usize = 128;

/// The attributes of a set.
fn set(
    out: &mut Writer,
    (name, id): (&str, u32),
    (key, length): (u32, u32),
    flags: u32,
    size: Option<u32>,
    order: u32,
) {
    out.text(NAME, name);
    out.attribute(3, &flags.to_be_bytes());
    out.attribute(4, &key.to_be_bytes());
    out.attribute(5, &length.to_be_bytes());
    if flags & MAP != 0 {
        out.attribute(6, &VERDICT_DATA.to_be_bytes());
        out.attribute(7, &0_u32.to_be_bytes());
    }
    out.attribute(10, &id.to_be_bytes());
    if let Some(size) = size {
        out.nest(9, |out| out.attribute(1, &size.to_be_bytes()));
    }
    // The tool's notes: byte orders of keys and values.
    let mut notes = vec![0, 4];
    notes.extend(order.to_ne_bytes());
    if flags & MAP != 0 {
        notes.extend([1, 4, 0, 0, 0, 0]);
    }
    out.attribute(13, &notes);
}

fn element(out: &mut Writer, key: &[u8], verdict: Option<&RuleVerdict>, flags: u32) {
    out.nest(LIST_ELEMENT, |out| {
        if flags != 0 {
            out.attribute(3, &flags.to_be_bytes());
        }
        out.nest(1, |out| out.attribute(1, key));
        if let Some(verdict) = verdict {
            out.nest(2, |out| code(out, verdict_code(verdict), verdict_chain(verdict)));
        }
    });
}

/// A comment as the tool keeps it in user data, of tables and rules alike.
fn note(comment: &str) -> Vec<u8> {
    let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
    [&[0, length], comment.as_bytes(), &[0]].concat()
}

/// Fields of a key are filled up to four bytes.
fn key_bytes(key: &Element) -> Vec<u8> {
    let [high, low] = key.port.to_be_bytes();
    let mut bytes = key.address.map(address_bytes).unwrap_or_default();
    bytes.extend([key.protocol.number(), 0, 0, 0, high, low, 0, 0]);
    bytes
}

/// Networks as the kernel has intervals: where one begins, and the first address behind it. What overlaps or touches is one.
pub(super) fn bounds(family: Family, networks: &[IpNet]) -> Vec<(IpAddr, bool)> {
    let zero: IpAddr = match family {
        Family::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut merged: Vec<(IpAddr, IpAddr)> = Vec::new();
    let mut ranges: Vec<(IpAddr, IpAddr)> =
        networks.iter().filter(|net| family.holds(net.addr())).map(|net| (net.network(), net.broadcast())).collect();
    ranges.sort_unstable();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if after(*end).is_none_or(|next| first <= next) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    let mut bounds = Vec::new();
    if merged.first().is_some_and(|(first, _)| *first != zero) {
        bounds.push((zero, true));
    }
    for (first, last) in merged {
        bounds.push((first, false));
        bounds.extend(after(last).map(|end| (end, true)));
    }
    bounds
}

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}
