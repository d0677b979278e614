//! Compaction of etcd's history, shared by all apiservers of a cluster. Answers for upstream's
//! `pkg/storage/etcd3/compact.go`.
//!
//! The key `compact_rev_key` counts rounds by its version: who moves it compacts to the revision seen in the round
//! before, the others learn where the round is, and what was compacted. So history is kept for one to two intervals.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};

use super::call::timed;
use super::grpc::EtcdCall;
use super::{Error, Store};

const KEY: &str = "compact_rev_key";

#[derive(Clone, Copy, Default)]
struct CompactionRound {
    version: i64,
    revision: i64,
}

/// Compacts every `interval` until cancelled by being dropped.
pub async fn compact_forever(store: Store, interval: Duration) {
    let mut round = CompactionRound::default();
    loop {
        tokio::time::sleep(interval).await;
        match step(&store, round).await {
            Ok(next) => round = next,
            Err(error) => tracing::warn!(%error, "Failed to compact etcd"),
        }
    }
}

async fn step(store: &Store, round: CompactionRound) -> Result<CompactionRound, Error> {
    let txn = Txn::new()
        .when([Compare::version(KEY, CompareOp::Equal, round.version)])
        .and_then([TxnOp::put(KEY, round.revision.to_string(), None)])
        .or_else([TxnOp::get(KEY, None)]);
    let r = timed(EtcdCall::Txn, store.etcd().kv.clone().txn(txn)).await?;
    let revision = r.header().map_or(0, etcd_client::ResponseHeader::revision);
    if !r.succeeded() {
        let moved = r.op_responses().into_iter().find_map(|op| match op {
            TxnOpResponse::Get(g) => {
                g.kvs().first().map(|kv| (kv.version(), kv.value_str().ok().and_then(|v| v.parse().ok())))
            }
            _ => None,
        });
        let (version, compacted) = moved.unwrap_or_default();
        store.note_compacted(compacted.unwrap_or(0));
        return Ok(CompactionRound { version, revision });
    }
    let next = CompactionRound { version: round.version + 1, revision };
    if round.revision != 0 {
        match timed(EtcdCall::Compact, store.etcd().kv.clone().compact(round.revision, None)).await {
            Ok(_) | Err(Error::Compacted) => store.note_compacted(round.revision),
            Err(e) => return Err(e),
        }
    }
    Ok(next)
}
