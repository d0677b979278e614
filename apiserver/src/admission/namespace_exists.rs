//! NamespaceExists and NamespaceAutoProvision: refuse writes into missing namespaces, or make them. Answers for
//! upstream's `plugin/pkg/admission/namespace`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use shared::status::Status;

use super::{Attributes, Plugin, namespaces};
use crate::api::{Api, Reader};
use crate::machinery::identity::server_user;
use crate::registry::authorization::local_subject_access_review::LOCAL_SUBJECT_ACCESS_REVIEWS;
use crate::registry::core::namespace::NAMESPACES;

fn concerned(a: &Attributes<'_>) -> bool {
    !a.namespace.is_empty() && !a.of(NAMESPACES) && !a.of(LOCAL_SUBJECT_ACCESS_REVIEWS)
}

/// Refuses.
pub(super) struct NamespaceExists {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads.
    pub api: Api,
}

#[async_trait]
impl Plugin for NamespaceExists {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if concerned(a) {
            namespaces::find(self.reader.as_ref(), &self.api, a.namespace).await?;
        }
        Ok(())
    }
}

/// Makes.
pub(super) struct NamespaceAutoProvision {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Creates the namespace.
    pub api: Api,
}

#[async_trait]
impl Plugin for NamespaceAutoProvision {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if !concerned(a) || a.dry_run || self.reader.get(NAMESPACES, "", a.namespace).is_some() {
            return Ok(());
        }
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": a.namespace}});
        match self.api.create(&server_user(), NAMESPACES, "", object).await {
            Err(status) if status.reason != "AlreadyExists" => Err(status),
            _ => Ok(()),
        }
    }
}
