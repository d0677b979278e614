//! Plugins as the chain sees them: what a write is about ([`Attributes`]), and what may refuse or change it. Answers
//! for upstream's `admission.Attributes`, `admission.Interface`.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use proto::resources::Row;
use serde_json::Value;
use shared::authn::UserInfo;
use shared::status::Status;

use super::reinvocation::Reinvocation;
use crate::machinery::GroupResource;
use crate::machinery::tree;

/// Operation under admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// POST, and PUT or apply of something new.
    Create,
    /// PUT and PATCH.
    Update,
    /// DELETE.
    Delete,
    /// exec, attach, port-forward, proxy.
    Connect,
}

impl Operation {
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// Attributes of a write on its way to storage.
pub struct Attributes<'a> {
    /// The resource written to.
    pub resource: &'a Row,
    /// Subresource, or "".
    pub subresource: &'a str,
    /// Namespace, or "".
    pub namespace: &'a str,
    /// The name in the request path; "" on create.
    pub name: &'a str,
    /// Operation.
    pub operation: Operation,
    /// User who asks.
    pub user: &'a UserInfo,
    /// New object; mutating plugins change it in place.
    pub object: Option<&'a mut Value>,
    /// Stored object.
    pub old_object: Option<&'a Value>,
    /// CreateOptions, UpdateOptions or DeleteOptions.
    pub options: &'a Value,
    /// A dry run: nothing will be stored.
    pub dry_run: bool,
    /// Warnings for the client.
    pub warnings: &'a mut Vec<String>,
    /// Annotations for the audit log.
    pub annotations: &'a mut BTreeMap<String, String>,
    /// State of the rounds of mutation.
    pub reinvocation: Reinvocation,
}

impl Attributes<'_> {
    /// The object as it is now.
    pub fn object(&self) -> Option<&Value> {
        self.object.as_deref()
    }

    /// Reports whether the request is for this resource (not a subresource of it).
    pub fn is(&self, resource: GroupResource<'_>) -> bool {
        self.subresource.is_empty() && self.of(resource)
    }

    /// Reports whether the request is for this resource or a subresource of it.
    pub fn of(&self, resource: GroupResource<'_>) -> bool {
        GroupResource::of(self.resource) == resource
    }

    /// The name to use in messages: from the path, the object, its `generateName`, or `Unknown`.
    pub fn object_name(&self) -> &str {
        if !self.name.is_empty() {
            return self.name;
        }
        let Some(object) = self.object.as_deref() else { return "Unknown" };
        match (tree::name(object), tree::text(object, "/metadata/generateName")) {
            ("", "") => "Unknown",
            ("", generate) => generate,
            (name, _) => name,
        }
    }

    /// `403`: `pods "x" is forbidden: <why>`.
    pub fn forbidden(&self, why: impl AsRef<str>) -> Status {
        Status::forbidden(&self.resource.group, &self.resource.plural, self.object_name(), why.as_ref())
    }
}

/// An admission plugin. What it is about is said in the table of [`plugins`]: it is asked about nothing else.
#[async_trait]
pub trait Plugin: Send + Sync {
    /// May change the object, or refuse it.
    async fn admit(&self, _attributes: &mut Attributes<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// May refuse the object, warn or note; must not change it.
    async fn validate(&self, _attributes: &mut Attributes<'_>) -> Result<(), Status> {
        Ok(())
    }
}

/// Null, read where a request has no object (deletes).
pub(super) const NOTHING: &Value = &Value::Null;

/// A plugin as the chain holds it.
pub type Shared = Arc<dyn Plugin>;

/// Reasons for which admission cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that is no plugin's.
    #[error("{flag} plugin {name:?} is unknown")]
    Unknown {
        /// The flag it stood in.
        flag: &'static str,
        /// The name.
        name: String,
    },
    /// A name both enabled and disabled.
    #[error("[{0}] in enable-admission-plugins and disable-admission-plugins overlapped")]
    Overlap(String),
    /// A configuration that cannot be read or used.
    #[error("{0}")]
    Configuration(String),
    /// A kubeconfig of webhooks.
    #[error(transparent)]
    Credentials(#[from] super::CredentialsError),
    /// The address of a webhook.
    #[error(transparent)]
    Target(#[from] super::TargetError),
    /// The default levels of pod security.
    #[error(transparent)]
    PodSecurity(#[from] super::PolicyConfigError),
}
