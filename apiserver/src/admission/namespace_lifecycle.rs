//! NamespaceLifecycle: nothing is created in a namespace that is missing or going away, and the system's
//! namespaces stay.

use std::sync::Arc;

use async_trait::async_trait;
use shared::status::Status;

use super::{Attributes, Operation, Plugin};
use crate::access::tree;
use crate::api::{Api, Reader};

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// The plugin.
pub struct NamespaceLifecycle {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads, for a namespace so new that the cache has not heard of it.
    pub api: Api,
}

#[async_trait]
impl Plugin for NamespaceLifecycle {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let namespaces = a.of("", "namespaces");
        if a.operation == Operation::Delete {
            if namespaces && IMMORTAL.contains(&a.name) {
                return Err(Status::forbidden("", "namespaces", a.name, "this namespace may not be deleted"));
            }
            return Ok(());
        }
        if a.namespace.is_empty() || namespaces || a.of("authorization.k8s.io", "localsubjectaccessreviews") {
            return Ok(());
        }
        let cached = self.reader.get("", "namespaces", "", a.namespace);
        let phase = match &cached {
            Some(namespace) => tree::text(namespace, "/status/phase").to_owned(),
            None => {
                let live = self.api.get("", "namespaces", "", a.namespace).await?;
                tree::text(&live, "/status/phase").to_owned()
            }
        };
        if a.operation != Operation::Create || phase != "Terminating" {
            return Ok(());
        }
        let mut status = a.forbidden(format!(
            "unable to create new content in namespace {} because it is being terminated",
            a.namespace
        ));
        let why = format!("namespace {} is being terminated", a.namespace);
        status.add_cause("NamespaceTerminating", &why, "metadata.namespace");
        Err(status)
    }
}
