//! Our table in the kernel: its presence, and the names of chains and sets in it.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_REQUEST};
use netlink_packet_netfilter::nftables::NfTablesMessage;
use serde_json::Value;

use super::render::header;
use super::transaction::TABLE;
use crate::backend::{SyncError, output};
use crate::netlink::Netfilter;
use crate::plan::Family;

/// `NFT_MSG_GETTABLE`.
const GET_TABLE: u8 = 1;
/// `NFTA_TABLE_NAME`.
const TABLE_NAME: u16 = 1;

/// Names in our table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Existing {
    pub(super) chains: BTreeSet<String>,
    /// Maps are not among them.
    pub(super) sets: BTreeSet<String>,
}

impl Existing {
    /// Reads the names. There are none without a table.
    pub(super) async fn read(family: Family) -> Result<Self, SyncError> {
        let there = tokio::task::spawn_blocking(move || is_there(family, TABLE)).await;
        if matches!(there, Ok(Ok(false))) {
            return Ok(Self::default());
        }
        let listed = |what: &'static str| async move { output("nft", &["-j", "list", what, header(family)], "").await };
        let (chains, sets) = (listed("chains").await?, listed("sets").await?);
        Ok(Self { chains: names(&chains, "chain"), sets: names(&sets, "set") })
    }
}

/// Names of one kind of things in our table, out of the tool's JSON.
fn names(listed: &str, kind: &str) -> BTreeSet<String> {
    let listed: Value = serde_json::from_str(listed).unwrap_or_default();
    let all = listed["nftables"].as_array().into_iter().flatten().filter_map(|entry| entry.get(kind));
    let ours = all.filter(|entry| entry["table"] == TABLE);
    ours.filter_map(|entry| entry["name"].as_str()).map(str::to_owned).collect()
}

/// Asks the kernel for a table by its name: the cost does not grow with what is in it, as that of the tool does.
pub(super) fn is_there(family: Family, table: &str) -> io::Result<bool> {
    let kernel = Netfilter::open(family)?;
    let name = DefaultNla::new(TABLE_NAME, [table.as_bytes(), &[0]].concat());
    let request = NfTablesMessage::Other { message_type: GET_TABLE, attributes: vec![name] };
    kernel.send(NLM_F_REQUEST | NLM_F_ACK, request)?;
    kernel.acknowledged()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_our_table_alone() {
        let listed = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"chain": {"family": "ip", "table": "kube-proxy", "name": "services"}},
            {"chain": {"family": "ip", "table": "other", "name": "x"}}, {"set": {"table": "kube-proxy", "name": "cluster-ips"}}]}"#;
        assert_eq!(names(listed, "chain"), BTreeSet::from(["services".to_owned()]));
        assert_eq!(names(listed, "set"), BTreeSet::from(["cluster-ips".to_owned()]));
        assert_eq!(names("", "set"), BTreeSet::new());
    }

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
