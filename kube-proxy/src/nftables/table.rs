//! Our table in the kernel: its presence, and the names of chains and sets in it.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::message::{family_number, request};
use super::transaction::{MAPS, TABLE};
use crate::netlink::{Kernel, RawMessage, find};
use crate::plan::Family;

/// `NFT_MSG_GET*`.
const GET_TABLE: u8 = 1;
const GET_CHAIN: u8 = 4;
const GET_SET: u8 = 10;
/// Attributes of an answer: the names of the table, and of the chain or set.
const TABLE_NAME: u16 = 1;
const CHAIN_NAME: u16 = 3;
const SET_NAME: u16 = 2;
/// Sets of rules have names that users cannot give.
const OF_A_RULE: &str = "__";
/// Bytes of `struct nfgenmsg`, which attributes follow.
const HEADER: usize = 4;

/// Names in our table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Existing {
    pub(super) chains: BTreeSet<String>,
    /// Maps are not among them.
    pub(super) sets: BTreeSet<String>,
}

impl Existing {
    /// Reads the names. There are none without a table.
    pub(super) fn read(family: Family) -> io::Result<Self> {
        let chains = names(family, GET_CHAIN, CHAIN_NAME)?;
        let mut sets = names(family, GET_SET, SET_NAME)?;
        sets.retain(|name| !name.starts_with(OF_A_RULE) && MAPS.iter().all(|(map, _)| map != name));
        Ok(Self { chains, sets })
    }
}

/// Names of one kind of things in our table.
fn names(family: Family, get: u8, name: u16) -> io::Result<BTreeSet<String>> {
    let kernel = Kernel::<RawMessage>::open(NETLINK_NETFILTER)?;
    kernel.send(NLM_F_REQUEST | NLM_F_DUMP, request(family, get, None))?;
    let mut found = BTreeSet::new();
    kernel.receive_all(|answer| {
        let attributes = answer.bytes.get(HEADER..).unwrap_or_default();
        // The kernel may tell of other families, too.
        let is_ours = answer.bytes.first() == Some(&family_number(family))
            && text(attributes, TABLE_NAME).as_deref() == Some(TABLE);
        found.extend(text(attributes, name).filter(|_| is_ours));
    })?;
    Ok(found)
}

fn text(attributes: &[u8], kind: u16) -> Option<String> {
    let bytes = find(attributes, kind)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.get(..end).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Asks the kernel for a table by its name.
pub(super) fn is_there(family: Family, table: &str) -> io::Result<bool> {
    let kernel = Kernel::<RawMessage>::open(NETLINK_NETFILTER)?;
    kernel.send(NLM_F_REQUEST | NLM_F_ACK, request(family, GET_TABLE, Some(table)))?;
    kernel.acknowledged()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_asked_for_by_name() {
        let asked = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            let before = is_there(Family::V4, TABLE);
            let made = std::process::Command::new("nft").args(["add", "table", "ip", TABLE]).status();
            made.ok().filter(std::process::ExitStatus::success)?;
            Some((before.expect("an answer"), is_there(Family::V4, TABLE).expect("an answer")))
        });
        match asked.join().expect("the thread ends") {
            Some(asked) => assert_eq!(asked, (false, true)),
            None => eprintln!("skipped: no network namespace of one's own, or no nft"),
        }
    }
}
