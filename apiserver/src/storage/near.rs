//! Connections to etcd that belong to one thread.

use std::cell::RefCell;
use std::sync::Arc;

use etcd_client::KvClient;

use super::Etcd;

/// Etcds, and connections to them in their order.
type ThreadClients = (Arc<[Etcd]>, Vec<KvClient>);

thread_local! {
    /// This thread's connections.
    static NEAR: RefCell<Vec<ThreadClients>> = const { RefCell::new(Vec::new()) };
}

/// Keeps connections for this thread.
pub(super) fn set_clients(etcds: &Arc<[Etcd]>, clients: Vec<KvClient>) {
    NEAR.with_borrow_mut(|near| {
        near.retain(|(known, _)| !Arc::ptr_eq(known, etcds));
        near.push((etcds.clone(), clients));
    });
}

/// This thread's connection to one of them.
pub(super) fn kv(etcds: &Arc<[Etcd]>, at: usize) -> Option<KvClient> {
    NEAR.with_borrow(|near| near.iter().find(|(known, _)| Arc::ptr_eq(known, etcds))?.1.get(at).cloned())
}
