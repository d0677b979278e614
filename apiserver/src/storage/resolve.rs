//! Writes whose outcome is unknown: the connection to an etcd member broke, or the member was lost, after it was told.
//!
//! In: a write, its precondition, and the versions of its key that etcd has. Out: done, lost, or unknown. A key's
//! revision never comes back, so that an update or a deletion that is sent twice is done once; a key that does not
//! exist comes back whenever it is deleted, so that a creation is never sent twice, only looked for. Answers for
//! nothing of upstream, whose client returns the error of the connection. Never: an outcome that is a guess.

use std::sync::Arc;

use etcd_client::{GetOptions, KeyValue, KvClient, TxnOpResponse, TxnResponse};
use parking_lot::Mutex;
use tonic::Status;

use super::call::timed;
use super::errors::Error;
use super::grpc::EtcdCall;

/// Versions of a key that are read to find a write among those that followed it.
const VERSIONS: usize = 64;

tokio::task_local! {
    /// The write that this task is sending.
    static SENDING: Arc<Sending>;
}

/// A write under way, between the store, which knows its precondition, and the channel, which knows its connections.
#[derive(Debug)]
pub(super) struct Sending {
    /// Done at most once however often it is sent.
    repeatable: bool,
    /// The first failure after which a member may have done it.
    uncertain: Mutex<Option<Status>>,
}

impl Sending {
    /// A write whose precondition is the revision of a key's last write, 0 for none.
    pub(super) fn new(revision: i64) -> Arc<Self> {
        Arc::new(Self { repeatable: revision > 0, uncertain: Mutex::new(None) })
    }

    /// The write that the calling task is sending, if it is one of [`Sending::send`].
    pub(super) fn current() -> Option<Arc<Self>> {
        SENDING.try_with(Arc::clone).ok()
    }

    /// Lets the channel know of the write while `call` runs.
    pub(super) async fn send<T>(self: &Arc<Self>, call: impl Future<Output = T>) -> T {
        SENDING.scope(Arc::clone(self), call).await
    }

    pub(super) fn is_repeatable(&self) -> bool {
        self.repeatable
    }

    /// Records that a member may have done the write, though its answer did not come. The first reason is kept.
    pub(super) fn note_uncertain(&self, why: impl FnOnce() -> Status) {
        self.uncertain.lock().get_or_insert_with(why);
    }

    /// The reason for which the outcome is unknown.
    pub(super) fn uncertain(&self) -> Option<Status> {
        self.uncertain.lock().clone()
    }
}

/// A write with its precondition.
#[derive(Debug)]
pub(super) struct GuardedWrite<'a> {
    pub(super) key: &'a str,
    /// Revision of the last write that it builds on, 0 for none.
    pub(super) revision: i64,
    /// Bytes as etcd would hold them; none for a deletion.
    pub(super) value: Option<Vec<u8>>,
}

/// Version of a key.
#[derive(Clone, Copy, Debug)]
struct KeyVersion<'a> {
    created: i64,
    written: i64,
    value: &'a [u8],
}

impl<'a> KeyVersion<'a> {
    fn of(kv: &'a KeyValue) -> Self {
        Self { created: kv.create_revision(), written: kv.mod_revision(), value: kv.value() }
    }
}

/// Conclusion from one version of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WriteVerdict {
    /// Done, at this revision.
    Done(i64),
    /// Not done, and nothing can do it any more.
    Lost,
    /// The version at this revision tells more.
    Look(i64),
    /// Perhaps done, or done yet.
    Unknown,
}

impl GuardedWrite<'_> {
    fn judge(&self, there: Option<KeyVersion<'_>>) -> WriteVerdict {
        let Some(there) = there else { return WriteVerdict::Unknown };
        if there.written > self.revision && self.value.as_deref() == Some(there.value) {
            return WriteVerdict::Done(there.written);
        }
        if self.revision == 0 {
            // The first version of the key is the one that a creation wrote.
            let followed = there.written > there.created;
            return if followed { WriteVerdict::Look(there.created) } else { WriteVerdict::Unknown };
        }
        if there.created > self.revision {
            // It was deleted meanwhile: by this write, after it, or instead of it.
            return WriteVerdict::Unknown;
        }
        match self.value {
            Some(_) if there.written > self.revision => WriteVerdict::Look(there.written - 1),
            // It was changed instead of deleted, or the walk has come to what the write builds on.
            _ => WriteVerdict::Lost,
        }
    }
}

/// The key as it is, from the answer to a write whose precondition failed.
pub(super) fn found(answer: &TxnResponse) -> Option<KeyValue> {
    answer.op_responses().into_iter().find_map(|op| match op {
        TxnOpResponse::Get(mut there) => there.take_kvs().pop(),
        _ => None,
    })
}

/// Follows the versions of a key back to the write, or to what it builds on.
pub(super) async fn find(kv: &mut KvClient, write: &GuardedWrite<'_>, newest: Option<&KeyValue>) -> WriteVerdict {
    let mut verdict = write.judge(newest.map(KeyVersion::of));
    for _ in 0..VERSIONS {
        let WriteVerdict::Look(revision) = verdict else { return verdict };
        let Ok(there) = version(kv, write.key, revision).await else { return WriteVerdict::Unknown };
        verdict = write.judge(there.as_ref().map(KeyVersion::of));
    }
    WriteVerdict::Unknown
}

/// The version of a key as of a revision, 0 for the newest.
pub(super) async fn version(kv: &mut KvClient, key: &str, revision: i64) -> Result<Option<KeyValue>, Error> {
    let options = GetOptions::new().with_revision(revision);
    let mut answer = timed(EtcdCall::Range, kv.get(key, Some(options))).await?;
    Ok(answer.take_kvs().pop())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &[u8] = b"ours";
    const THEIRS: &[u8] = b"theirs";

    #[test]
    fn versions_of_a_key_tell_the_outcome_of_a_write() {
        let version = |created, written, value| Some(KeyVersion { created, written, value });
        let table: [(&str, i64, bool, Option<KeyVersion<'_>>, WriteVerdict); 14] = [
            ("a creation is there", 0, true, version(7, 7, OURS), WriteVerdict::Done(7)),
            ("a creation is not there yet", 0, true, None, WriteVerdict::Unknown),
            ("another's creation may be deleted again", 0, true, version(7, 7, THEIRS), WriteVerdict::Unknown),
            ("a creation was followed by writes", 0, true, version(7, 9, THEIRS), WriteVerdict::Look(7)),
            ("an update is there", 5, true, version(3, 8, OURS), WriteVerdict::Done(8)),
            ("an update was followed by writes", 5, true, version(3, 8, THEIRS), WriteVerdict::Look(7)),
            ("another's update came first", 5, true, version(3, 5, THEIRS), WriteVerdict::Lost),
            ("an update builds on the same bytes", 5, true, version(3, 5, OURS), WriteVerdict::Lost),
            ("an updated key is gone", 5, true, None, WriteVerdict::Unknown),
            ("an updated key was made anew", 5, true, version(6, 6, THEIRS), WriteVerdict::Unknown),
            ("a deleted key is gone", 5, false, None, WriteVerdict::Unknown),
            ("a deleted key was made anew", 5, false, version(6, 6, THEIRS), WriteVerdict::Unknown),
            ("an update came before the deletion", 5, false, version(3, 8, THEIRS), WriteVerdict::Lost),
            ("an empty value is no deletion", 5, false, version(3, 8, b""), WriteVerdict::Lost),
        ];
        for (what, revision, puts, there, expected) in table {
            let write = GuardedWrite { key: "/a", revision, value: puts.then(|| OURS.to_vec()) };
            assert_eq!(write.judge(there), expected, "{what}");
        }
    }

    #[tokio::test]
    async fn the_first_reason_is_kept_and_seen_by_the_sending_task_alone() {
        let sending = Sending::new(5);
        assert!(Sending::current().is_none());
        sending
            .send(async {
                let current = Sending::current().expect("the task sends");
                assert!(current.is_repeatable());
                current.note_uncertain(|| Status::unavailable("first"));
                current.note_uncertain(|| Status::unavailable("second"));
            })
            .await;
        assert_eq!(sending.uncertain().expect("a reason").message(), "first");
        assert!(!Sending::new(0).is_repeatable());
    }
}
