//! The store: etcd with upstream's keys, one transaction a write, and transformers on the way. Answers for upstream's
//! `storage/etcd3` (`store`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, KvClient, PutOptions, Txn, TxnOp, WatchClient,
    WatchOptions,
};
use shared::traces;
use tokio::task::JoinSet;

use super::call::timed;
use super::connect::{self, Options};
use super::errors::Error;
use super::grpc::{self, EtcdCall, Watch};
use super::members::Members;
use super::meters::{Metrics, StorageOperation};
use super::resolve::{self, GuardedWrite, Sending, WriteVerdict};
use super::transform::Transformers;
use super::{lease, near, spans};

/// Error text of a write whose precondition on uid or resource version failed.
pub fn other_than_asked(key: &str, what: &str, asked: &str, there: &str) -> String {
    format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: {asked}, {what} in object meta: {there}"
    )
}

/// A value and the revision that wrote it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Full key.
    pub key: String,
    /// Bytes as they were encoded.
    pub value: Vec<u8>,
    /// Revision of the last write: the object's `resourceVersion`.
    pub revision: i64,
    /// Lease the key hangs on, or 0.
    pub lease: i64,
    /// The value would be encrypted differently now.
    pub stale: bool,
}

/// Outcome of a conditional write.
#[derive(Debug)]
pub enum WriteResult {
    /// Done, at this revision.
    Done(i64),
    /// The precondition failed; this is what is there now.
    Lost(Option<Stored>),
}

/// A slice of a range.
#[derive(Debug, Default)]
pub struct Page<T = Stored> {
    /// The entries, by key.
    pub items: Vec<T>,
    /// True when the range goes on.
    pub more: bool,
    /// Entries from the start of this page to the end of the range.
    pub count: i64,
    /// The store's revision at the read.
    pub revision: i64,
}

/// The keys of a slice of a range.
#[derive(Debug, Default)]
pub struct Keys {
    /// Each with the revision of its last write, by key.
    pub keys: Vec<(String, i64)>,
    /// True when the range goes on.
    pub more: bool,
}

/// Cheap-to-clone connections to etcd: to the main one, and to those that keep some resources.
///
/// A call about a key goes to the etcd that keeps it. What is about an etcd as a whole (its revision, its history) is
/// about the main one, or the one that [`Store::each`] made this one for.
#[derive(Clone)]
pub struct Store {
    etcds: Arc<[Etcd]>,
    pub(super) at: usize,
    options: Arc<Options>,
    prefix: Arc<str>,
    transformers: Transformers,
    meters: Arc<Metrics>,
}

/// The connection to one etcd.
pub(super) struct Etcd {
    pub(super) kv: KvClient,
    watch: WatchClient,
    pub(super) maintenance: etcd_client::MaintenanceClient,
    leases: lease::LeasePool,
    servers: Vec<String>,
    members: Arc<Members>,
    /// Keep the members' health up to date as long as this connection lives.
    _probes: JoinSet<()>,
    /// Below this revision its history is known to be gone.
    compacted: AtomicI64,
    /// Key prefixes with trailing slash that are kept here; the main one keeps what no other does.
    keeps: Vec<String>,
}

/// A key that nobody writes, for reads whose answer is etcd's revision.
const PROBE: &str = "\u{1}ironclad-revision-probe";
impl Etcd {
    async fn connect(options: &Options, servers: &[String], keeps: Vec<String>) -> Result<Self, Error> {
        let members = Arc::new(Members::new(servers));
        let client = connect::client(options, &members, servers).await?;
        Ok(Self {
            _probes: connect::probe(options, &members, servers),
            members,
            kv: unbounded(client.kv_client()),
            maintenance: client.maintenance_client(),
            watch: client.watch_client().max_decoding_message_size(usize::MAX),
            leases: lease::LeasePool::new(client.lease_client(), options.lease_reuse),
            servers: servers.to_vec(),
            compacted: AtomicI64::new(0),
            keeps,
        })
    }
}

impl Store {
    /// Connects as the flags say.
    pub async fn connect(options: &Options) -> Result<Self, Error> {
        let mut store = Self {
            etcds: Arc::new([]),
            at: 0,
            options: Arc::new(options.clone()),
            prefix: options.prefix.trim_end_matches('/').into(),
            transformers: Transformers::default(),
            meters: Arc::new(Metrics::new(&options.named)),
        };
        let mut etcds = vec![Etcd::connect(options, &options.servers, Vec::new()).await?];
        for (servers, paths) in options.elsewhere() {
            let keeps = paths.iter().map(|path| format!("{}/", store.key(path))).collect();
            etcds.push(Etcd::connect(options, servers, keeps).await?);
        }
        store.etcds = etcds.into();
        Ok(store)
    }

    /// Yields the store of each etcd cluster in their order, the main one first.
    pub fn each(&self) -> impl Iterator<Item = Self> + '_ {
        (0..self.etcds.len()).map(|at| Self { at, ..self.clone() })
    }

    /// The number of the etcd that keeps a key.
    pub fn etcd_of(&self, key: &str) -> usize {
        self.etcds.iter().position(|e| e.keeps.iter().any(|prefix| key.starts_with(prefix))).unwrap_or_default()
    }

    pub(super) fn etcd(&self) -> &Etcd {
        &self.etcds[self.at]
    }

    /// The revision below which this server knows etcd's history to be gone.
    pub fn compacted(&self) -> i64 {
        self.etcd().compacted.load(Ordering::Relaxed)
    }

    pub(super) fn note_compacted(&self, revision: i64) {
        self.etcd().compacted.fetch_max(revision, Ordering::Relaxed);
    }

    fn keeper(&self, key: &str) -> &Etcd {
        &self.etcds[self.etcd_of(key)]
    }

    /// Gives this thread connections of its own for reads and writes: their answers wake nobody on another thread. They
    /// run on this thread's runtime, which must live as long as the thread.
    pub async fn open_thread_connection(&self) -> Result<(), Error> {
        let mut clients = Vec::new();
        for etcd in self.etcds.iter() {
            clients.push(unbounded(connect::client(&self.options, &etcd.members, &etcd.servers).await?.kv_client()));
        }
        near::set_clients(&self.etcds, clients);
        Ok(())
    }

    /// The connection to an etcd for reads and writes: this thread's own, if it has one.
    fn kv(&self, at: usize) -> KvClient {
        near::kv(&self.etcds, at).unwrap_or_else(|| self.etcds[at].kv.clone())
    }

    /// The connection to the etcd that keeps a key.
    fn kv_of(&self, key: &str) -> KvClient {
        self.kv(self.etcd_of(key))
    }

    /// The key prefix of this cluster, without trailing slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The full key of a path below the prefix, such as `/pods/default/a`.
    pub fn key(&self, path: &str) -> String {
        // Rows carry upstream's `/registry/...`; another --etcd-prefix replaces that first segment.
        let tail = path.strip_prefix("/registry").unwrap_or(path);
        [&*self.prefix, tail].concat()
    }

    /// Transformers of values.
    pub fn transformers(&self) -> &Transformers {
        &self.transformers
    }

    pub(crate) fn tail<'k>(&self, key: &'k str) -> &'k str {
        key.strip_prefix(&*self.prefix).unwrap_or(key)
    }

    /// Opens a value as etcd holds it.
    pub async fn transform_from_storage(&self, kv: KeyValue) -> Result<Stored, Error> {
        let (revision, lease) = (kv.mod_revision(), kv.lease());
        let (key, value) = kv.into_key_value();
        let key = String::from_utf8(key).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        if self.transformers.none() {
            return Ok(Stored { key, value, revision, lease, stale: false });
        }
        match self.transformers.transform_from_storage(&key, self.tail(&key), value).await {
            Ok(opened) => Ok(Stored { key, value: opened.bytes, revision, lease, stale: opened.stale }),
            Err(why) => Err(Error::Transform { key, why }),
        }
    }

    async fn transform_first(&self, mut kvs: Vec<KeyValue>) -> Result<Option<Stored>, Error> {
        match kvs.pop() {
            Some(kv) => self.transform_from_storage(kv).await.map(Some),
            None => Ok(None),
        }
    }

    async fn transform_to_storage(&self, key: &str, value: Vec<u8>) -> Result<Vec<u8>, Error> {
        if self.transformers.none() {
            return Ok(value);
        }
        let sealed = self.transformers.transform_to_storage(key, self.tail(key), value).await;
        sealed.map_err(|why| Error::Transform { key: key.to_owned(), why })
    }

    /// Transforms a value for storage, and traces the step.
    async fn transform_traced(&self, key: &str, value: Vec<u8>) -> Result<Vec<u8>, Error> {
        let sealed = self.transform_to_storage(key, value).await;
        traces::step(if sealed.is_ok() { "TransformToStorage succeeded" } else { "TransformToStorage failed" });
        sealed
    }

    /// A call about a key, in time and measured.
    async fn measured<T>(
        &self,
        key: &str,
        operation: StorageOperation,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        let since = Instant::now();
        let what = if matches!(operation, StorageOperation::Get | StorageOperation::List) {
            EtcdCall::Range
        } else {
            EtcdCall::Txn
        };
        let span = spans::asking(what);
        let outcome = traces::within(span.as_ref(), pin!(timed(what, call))).await;
        self.meters.observe(self.tail(key), operation, since, outcome.is_err());
        outcome
    }

    /// Follows all keys, for the cache.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn watch(&self, options: WatchOptions) -> Result<Watch, Error> {
        self.watched(self.etcd(), "", options.with_all_keys()).await
    }

    /// Follows the keys below a prefix, with what they were before.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn watch_below(&self, prefix: &str, after: i64) -> Result<Watch, Error> {
        let range = range_end(prefix.as_bytes());
        let options = WatchOptions::new().with_range(range).with_start_revision(after + 1).with_prev_key();
        self.watched(self.keeper(prefix), prefix, options).await
    }

    async fn watched(&self, etcd: &Etcd, key: &str, options: WatchOptions) -> Result<Watch, Error> {
        EtcdCall::Watch.begin();
        match etcd.watch.clone().watch(key, Some(options)).await {
            Ok(stream) => Ok(Watch::new(stream)),
            Err(error) => {
                EtcdCall::Watch.end(grpc::code(&error));
                Err(error.into())
            }
        }
    }

    /// A linearizable read of one key, with the store's revision.
    pub async fn get(&self, key: &str) -> Result<(Option<Stored>, i64), Error> {
        let mut r = self.measured(key, StorageOperation::Get, self.kv_of(key).get(key, None)).await?;
        let revision = r.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok((self.transform_first(r.take_kvs()).await?, revision))
    }

    /// Reads a key without transforming its value.
    pub async fn raw(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        let mut r = self.measured(key, StorageOperation::Get, self.kv_of(key).get(key, None)).await?;
        Ok(r.take_kvs().pop())
    }

    /// The store's revision, agreed by a quorum. Reads no data.
    pub async fn revision(&self) -> Result<i64, Error> {
        let r = timed(EtcdCall::Range, self.kv(self.at).get(PROBE, Some(GetOptions::new().with_count_only()))).await?;
        Ok(r.header().map_or(0, etcd_client::ResponseHeader::revision))
    }

    /// Fails with [`Error::Compacted`] when etcd no longer knows what was at a revision. Reads no data.
    pub async fn check_not_compacted(&self, revision: i64) -> Result<(), Error> {
        let options = GetOptions::new().with_count_only().with_revision(revision);
        timed(EtcdCall::Range, self.kv(self.at).get(PROBE, Some(options))).await.map(drop)
    }

    /// Number of keys below `prefix`.
    pub async fn count(&self, prefix: &str) -> Result<i64, Error> {
        let r = timed(
            EtcdCall::Range,
            self.kv_of(prefix).get(prefix, Some(GetOptions::new().with_prefix().with_count_only())),
        )
        .await?;
        Ok(r.count())
    }

    /// Reads `[start, end of prefix)`, at most `limit` entries (0: all), at `revision` (0: newest).
    pub async fn page(&self, prefix: &str, start: &str, limit: i64, revision: i64) -> Result<Page, Error> {
        let raw = self.raw_page(prefix, start, limit, revision).await?;
        let mut items = Vec::with_capacity(raw.items.len());
        for kv in raw.items {
            items.push(self.transform_from_storage(kv).await?);
        }
        Ok(Page { items, more: raw.more, count: raw.count, revision: raw.revision })
    }

    /// Reads a page of keys without transforming the values.
    pub async fn raw_page(
        &self,
        prefix: &str,
        start: &str,
        limit: i64,
        revision: i64,
    ) -> Result<Page<KeyValue>, Error> {
        let options =
            GetOptions::new().with_range(range_end(prefix.as_bytes())).with_limit(limit).with_revision(revision);
        let mut kv = self.kv_of(prefix);
        let asking = pin!(self.measured(prefix, StorageOperation::List, kv.get(start, Some(options))));
        let mut r = self.listing(prefix, (limit, revision), asking).await?;
        let (more, count) = (r.more(), r.count());
        let revision = r.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(Page { items: r.take_kvs(), more, count, revision })
    }

    /// The keys in `[start, end of prefix)` and their revisions, at most `limit`, as of `revision`.
    pub async fn keys(&self, prefix: &str, start: &str, limit: i64, revision: i64) -> Result<Keys, Error> {
        let options = GetOptions::new()
            .with_range(range_end(prefix.as_bytes()))
            .with_limit(limit)
            .with_revision(revision)
            .with_keys_only();
        let mut r = timed(EtcdCall::Range, self.kv_of(prefix).get(start, Some(options))).await?;
        let more = r.more();
        let keys = r.take_kvs().into_iter().map(|kv| {
            let revision = kv.mod_revision();
            (String::from_utf8_lossy(kv.key()).into_owned(), revision)
        });
        Ok(Keys { keys: keys.collect(), more })
    }

    /// Writes a key that must not exist. `ttl` puts it on a (shared) lease.
    pub async fn create(&self, key: &str, value: Vec<u8>, ttl: Option<i64>) -> Result<WriteResult, Error> {
        self.put_if(key, value, 0, ttl).await
    }

    /// Writes a key whose last write must be `revision` (0: must not exist).
    pub async fn put_if(
        &self,
        key: &str,
        value: Vec<u8>,
        revision: i64,
        ttl: Option<i64>,
    ) -> Result<WriteResult, Error> {
        let options = match ttl {
            Some(ttl) => Some(PutOptions::new().with_lease(self.keeper(key).leases.lease(ttl).await?)),
            None => None,
        };
        let value = self.transform_traced(key, value).await?;
        let operation = if revision == 0 { StorageOperation::Create } else { StorageOperation::Update };
        let write = GuardedWrite { key, revision, value: Some(value) };
        self.conditional(write, operation, options).await
    }

    /// Writes a key on the lease it already has.
    pub async fn put_keeping_lease(
        &self,
        key: &str,
        value: Vec<u8>,
        revision: i64,
        lease: i64,
    ) -> Result<WriteResult, Error> {
        let options = (lease != 0).then(|| PutOptions::new().with_lease(lease));
        let value = self.transform_traced(key, value).await?;
        self.conditional(GuardedWrite { key, revision, value: Some(value) }, StorageOperation::Update, options).await
    }

    /// Deletes a key whose last write must be `revision`.
    pub async fn delete_if(&self, key: &str, revision: i64) -> Result<WriteResult, Error> {
        self.conditional(GuardedWrite { key, revision, value: None }, StorageOperation::Delete, None).await
    }

    async fn conditional(
        &self,
        write: GuardedWrite<'_>,
        operation: StorageOperation,
        options: Option<PutOptions>,
    ) -> Result<WriteResult, Error> {
        let GuardedWrite { key, revision, value } = &write;
        let txn = Txn::new()
            .when([Compare::mod_revision(*key, CompareOp::Equal, *revision)])
            .and_then([match value {
                Some(value) => TxnOp::put(*key, value.as_slice(), options),
                None => TxnOp::delete(*key, None::<DeleteOptions>),
            }])
            .or_else([TxnOp::get(*key, None)]);
        let mut kv = self.kv_of(key);
        let sending = Sending::new(*revision);
        let writing = pin!(self.measured(key, operation, Box::pin(sending.send(kv.txn(txn)))));
        let answer = match spans::writing(operation, writing).await {
            Ok(r) if r.succeeded() => {
                return Ok(WriteResult::Done(r.header().map_or(0, etcd_client::ResponseHeader::revision)));
            }
            Ok(r) => Ok(resolve::found(&r)),
            Err(error) => Err(error),
        };
        match sending.uncertain() {
            None => Ok(WriteResult::Lost(self.transform_first(answer?.into_iter().collect()).await?)),
            // Rare, and large: not a part of every write.
            Some(why) => Box::pin(self.resolve(&write, &sending, why, answer)).await,
        }
    }

    /// Looks for a write of which it is uncertain, for this reason, whether etcd did it; the reason is the error when nothing
    /// tells.
    ///
    /// `answer` is etcd's, if it came to one: the key as it is, because the precondition failed.
    async fn resolve(
        &self,
        write: &GuardedWrite<'_>,
        sending: &Sending,
        why: tonic::Status,
        answer: Result<Option<KeyValue>, Error>,
    ) -> Result<WriteResult, Error> {
        let kv = &mut self.kv_of(write.key);
        let newest = match answer {
            Ok(there) => there,
            // One that may be repeated has been, for as long as the deadline allowed.
            Err(error) if sending.is_repeatable() => return Err(error),
            Err(error) => match resolve::version(kv, write.key, 0).await {
                Ok(there) => there,
                Err(_) => return Err(error),
            },
        };
        match resolve::find(kv, write, newest.as_ref()).await {
            WriteVerdict::Done(revision) => Ok(WriteResult::Done(revision)),
            WriteVerdict::Lost => Ok(WriteResult::Lost(self.transform_first(newest.into_iter().collect()).await?)),
            WriteVerdict::Look(_) | WriteVerdict::Unknown => Err(etcd_client::Error::GRpcStatus(why).into()),
        }
    }
}

/// Messages of any size: etcd has a limit of its own.
fn unbounded(kv: KvClient) -> KvClient {
    kv.max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
}

/// The first key after all keys that begin with `prefix`.
fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::range_end;

    #[test]
    fn range_ends() {
        for (prefix, end) in [(&b"/a/"[..], &b"/a0"[..]), (b"a\xff", b"b"), (b"\xff", b"\0"), (b"", b"\0")] {
            assert_eq!(range_end(prefix), end);
        }
    }
}
