//! Metrics of etcd's database size.

use std::time::Duration;

use shared::metrics;

use super::Store;
use super::call::timed;
use super::grpc::EtcdCall;

/// Asks every `interval`, until dropped.
pub async fn poll_size(store: Store, interval: Duration) {
    let size = metrics::gauge(
        "apiserver_storage_size_bytes",
        "[STABLE] Size of the storage database file physically allocated in bytes.",
        &["storage_cluster_id"],
    );
    let cluster = format!("etcd-{}", store.at);
    let mut tick = tokio::time::interval(interval);
    loop {
        tick.tick().await;
        match timed(EtcdCall::Status, store.etcd().maintenance.clone().status()).await {
            #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
            Ok(status) => size.with_label_values(&[&cluster]).set(status.db_size() as f64),
            Err(error) => tracing::debug!(%error, "Failed to get the database size of etcd"),
        }
    }
}
