//! Calls to etcd in traces, under upstream's names.

use proto::resources::Resource;
use shared::traces::{self, OWN, SLOW, Span, SpanKind};

use super::Store;
use super::grpc::EtcdCall;
use super::meters::StorageOperation;
use crate::registry::behavior;

/// Go type of an object in upstream's traces.
fn go_type(row: &Resource) -> String {
    match behavior(row).go_package(row) {
        Some(package) => format!("*{package}.{}", row.kind),
        None => "*unstructured.Unstructured".to_owned(),
    }
}

impl Store {
    /// Work at whose end an object is created.
    pub async fn creating<T>(&self, row: &Resource, key: &str, work: impl Future<Output = T> + Unpin) -> T {
        self.spanned("Create etcd3", (row, key), work).await
    }

    /// Work at whose end an object is changed, in as many rounds as that takes.
    pub async fn updating<T>(&self, row: &Resource, key: &str, work: impl Future<Output = T> + Unpin) -> T {
        self.spanned("GuaranteedUpdate etcd3", (row, key), work).await
    }

    async fn spanned<T>(
        &self,
        name: &'static str,
        (row, key): (&Resource, &str),
        work: impl Future<Output = T> + Unpin,
    ) -> T {
        let Some(span) = traces::child(OWN, name, SpanKind::Internal) else { return work.await };
        let outcome = traces::within(Some(&span), work).await;
        span.end(SLOW, |about| {
            let of =
                [("key", self.tail(key)), ("type", &go_type(row)), ("group", &row.group), ("resource", &row.plural)];
            of.into_iter().for_each(|(key, value)| about.text(key, value));
        });
        outcome
    }

    /// Reading what is below a prefix, as of a revision.
    pub(super) async fn listing<T>(
        &self,
        prefix: &str,
        (limit, revision): (i64, i64),
        work: impl Future<Output = T> + Unpin,
    ) -> T {
        let Some(span) = traces::child(OWN, "List(recursive=true) etcd3", SpanKind::Internal) else {
            return work.await;
        };
        let outcome = traces::within(Some(&span), work).await;
        span.end(SLOW, |about| {
            about.text("key", self.tail(prefix));
            about.text("resourceVersion", &if revision == 0 { String::new() } else { revision.to_string() });
            about.number("limit", limit);
        });
        outcome
    }
}

/// The transaction that a write ends with.
pub(super) async fn writing<T, E>(
    operation: StorageOperation,
    call: impl Future<Output = Result<T, E>> + Unpin,
) -> Result<T, E> {
    let (before, after): (Option<&str>, &[&str]) = match operation {
        StorageOperation::Create => (None, &["Txn call succeeded"]),
        StorageOperation::Update => (Some("Transaction prepared"), &["Txn call completed", "Transaction committed"]),
        _ => return call.await,
    };
    before.into_iter().for_each(traces::step);
    let outcome = call.await;
    let after = if outcome.is_ok() { after } else { &["Txn call failed"] };
    after.iter().copied().for_each(traces::step);
    outcome
}

/// The span of a call.
pub(super) fn asking(call: EtcdCall) -> Option<Span> {
    match call {
        EtcdCall::Range => traces::call("/etcdserverpb.KV/Range"),
        EtcdCall::Txn => traces::call("/etcdserverpb.KV/Txn"),
        _ => None,
    }
}
