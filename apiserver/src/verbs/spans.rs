//! Reads in traces, under the names that upstream's cache gives them. Where nobody writes traces nothing is done for
//! them.

use proto::resources::{Resource, Row};
use shared::traces::{self, OWN, SLOW, SpanKind};

use super::engine::Engine;
use super::{VerbRequest, namespace_of};

/// Reading one object that there is a cache for.
pub(super) async fn getting<T>(
    engine: &Engine,
    r: &VerbRequest,
    row: &Row,
    work: impl Future<Output = T> + Unpin,
) -> T {
    let storage = &row.storage();
    if !engine.caches.is_cached(storage) {
        return work.await;
    }
    let Some(span) = traces::child(OWN, "cacher.Get", SpanKind::Internal) else { return work.await };
    let at = r.query.get("resourceVersion").unwrap_or_default();
    span.step(if at.is_empty() { "About to Get from underlying storage" } else { "About to fetch object from cache" });
    let outcome = traces::within(Some(&span), work).await;
    span.end(SLOW, |about| {
        let (prefix, namespace) = (engine.store.key(&storage.etcd_prefix), namespace_of(&r.info, row));
        let key = [&*prefix, namespace, &r.info.name]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("/");
        about.text("audit-id", &traces::audit_id());
        about.text("key", engine.store.tail(&key));
        about.text("resource-version", at);
    });
    outcome
}

/// Reading many objects from a cache.
pub(super) async fn listing<T>(storage: &Resource, work: impl Future<Output = T> + Unpin) -> T {
    let Some(span) = traces::child(OWN, "cacher.GetList", SpanKind::Internal) else { return work.await };
    let outcome = traces::within(Some(&span), work).await;
    span.end(SLOW, |about| {
        about.text("audit-id", &traces::audit_id());
        let kind = if storage.group.is_empty() {
            storage.plural.to_string()
        } else {
            format!("{}.{}", storage.plural, storage.group)
        };
        about.text("type", &kind);
    });
    outcome
}
