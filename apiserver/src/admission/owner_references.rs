//! OwnerReferencesPermissionEnforcement: owners are set by those who may delete the object, and owners whose
//! deletion waits for it by those who may set the owner's finalizers. Answers for upstream's `plugin/pkg/admission/gc`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use shared::authz;
use shared::status::Status;

use super::{Attributes, Plugin};
use crate::authz::Authorization;
use crate::machinery::tree;
use crate::rows::Rows;

/// The plugin.
pub(super) struct OwnerReferencesPermissionEnforcement {
    /// Authorizer.
    pub authorization: Arc<Authorization>,
    /// Resources that owners may have.
    pub rows: Rows,
}

#[async_trait]
impl Plugin for OwnerReferencesPermissionEnforcement {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        const OWNERS: &str = "/metadata/ownerReferences";
        let Some(new) = a.object() else { return Ok(()) };
        let owners = tree::list(new, OWNERS);
        let before = a.old_object.map_or(&[][..], |old| tree::list(old, OWNERS));
        if owners == before {
            return Ok(());
        }
        let question = |verb: &str| authz::Attributes {
            user: a.user.clone(),
            verb: verb.to_owned(),
            namespace: a.namespace.to_owned(),
            api_group: a.resource.group.to_string(),
            api_version: a.resource.version.to_string(),
            resource: a.resource.plural.to_string(),
            subresource: a.subresource.to_owned(),
            name: a.name.to_owned(),
            resource_request: true,
            ..authz::Attributes::default()
        };
        if !self.authorization.allows(&question("delete")).await {
            return Err(a.forbidden("cannot set an ownerRef on a resource you can't delete: , <nil>"));
        }
        let blocks = |o: &&Value| tree::flag(o, "/blockOwnerDeletion");
        for owner in owners.iter().filter(blocks) {
            let uid = tree::text(owner, "/uid");
            if before.iter().filter(blocks).any(|o| tree::text(o, "/uid") == uid) {
                continue;
            }
            let api_version = tree::text(owner, "/apiVersion");
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let kind = tree::text(owner, "/kind");
            let Some(row) = self.rows.find_kind(group, version, kind) else {
                return Err(a.forbidden(format!(
                    "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} Kind {kind}: \
                     no matches for kind {kind:?} in version {api_version:?}"
                )));
            };
            let finalizers = authz::Attributes {
                verb: "update".to_owned(),
                namespace: if row.namespaced { a.namespace.to_owned() } else { String::new() },
                api_group: group.to_owned(),
                api_version: version.to_owned(),
                resource: row.plural.to_string(),
                subresource: "finalizers".to_owned(),
                name: tree::text(owner, "/name").to_owned(),
                ..question("update")
            };
            if !self.authorization.allows(&finalizers).await {
                return Err(a.forbidden(
                    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>",
                ));
            }
        }
        Ok(())
    }
}
