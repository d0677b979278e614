//! DenyServiceExternalIPs: services may keep or drop external IPs, never gain them. Answers for upstream's
//! `plugin/pkg/admission/network/denyserviceexternalips`.

use async_trait::async_trait;
use shared::status::Status;

use super::{Attributes, Plugin};
use crate::machinery::tree;
use crate::registry::core::service::SERVICES;

/// The plugin.
pub(super) struct DenyServiceExternalIPs;

#[async_trait]
impl Plugin for DenyServiceExternalIPs {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(new) = a.object().filter(|_| a.is(SERVICES)) else { return Ok(()) };
        let old = a.old_object.map(|o| tree::strings(o, "/spec/externalIPs")).unwrap_or_default();
        if tree::strings(new, "/spec/externalIPs").iter().all(|ip| old.contains(ip)) {
            return Ok(());
        }
        Err(a.forbidden("Use of external IPs is denied by admission control."))
    }
}
