//! The Lease of the server that elects, kept in the server itself.

use proto::Value;
use shared::leader::{Lease, Leases};
use shared::status::Status;

use crate::api::Api;
use crate::machinery::identity::server_user;
use crate::registry::coordination::lease::LEASES;

/// Leases by way of the object pipeline.
pub(super) struct InProcess {
    pub(super) api: Api,
}

fn typed(object: Value) -> Result<Lease, Status> {
    serde_json::from_value(object).map_err(|e| Status::internal(&e.to_string()))
}

fn tree(lease: &Lease) -> Result<(String, Value), Status> {
    let namespace = lease.metadata.namespace.clone().unwrap_or_default();
    let object = serde_json::to_value(lease).map_err(|e| Status::internal(&e.to_string()))?;
    Ok((namespace, object))
}

impl Leases for InProcess {
    type Error = Status;

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Lease>, Status> {
        match self.api.get(LEASES, namespace, name).await {
            Ok(object) => typed(object).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, Status> {
        let (namespace, object) = tree(lease)?;
        self.api.create(&server_user(), LEASES, &namespace, object).await.and_then(typed)
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, Status> {
        let (_, object) = tree(lease)?;
        self.api.update(&server_user(), LEASES, "", object).await.and_then(typed)
    }
}
