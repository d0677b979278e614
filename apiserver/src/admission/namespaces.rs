//! The namespace of a request, for plugins that decide by what it says.

use std::sync::Arc;

use serde_json::Value;
use shared::status::Status;

use crate::api::{Api, Reader};
use crate::registry::core::namespace::NAMESPACES;

/// The namespace as the cache has it, or as it is stored where the cache has not heard of it yet: one that was just
/// made, perhaps through another server.
///
/// # Errors
/// There is none of that name, or it cannot be read.
pub(super) async fn find(reader: &dyn Reader, api: &Api, name: &str) -> Result<Arc<Value>, Status> {
    match reader.get(NAMESPACES, "", name) {
        Some(known) => Ok(known),
        None => api.get(NAMESPACES, "", name).await.map(Arc::new),
    }
}
