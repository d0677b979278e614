//! Sessions in pods that a GET opens, as WebSocket clients do (`AuthorizePodWebsocketUpgradeCreatePermission`). In: a
//! request's info. Out: whether it opens one, and what has to be authorized then. Never: a decision.

use shared::authn::UserInfo;
use shared::authz::Attributes;

use crate::api::RequestInfo;
use crate::registry::core::pod::PODS;

/// Reports whether a GET opens a session in a pod, as WebSocket clients do: that needs the right to `create` as well.
pub(super) fn opens_by_get(info: &RequestInfo, upgrades: bool) -> bool {
    upgrades
        && info.verb == "get"
        && info.resource == PODS.plural
        && matches!(info.subresource.as_str(), "exec" | "attach" | "portforward")
}

/// Attributes of the right to create a session.
pub(super) fn as_create(info: &RequestInfo, user: &UserInfo) -> Attributes {
    Attributes {
        user: user.clone(),
        verb: "create".to_owned(),
        namespace: info.namespace.clone(),
        api_group: info.api_group.clone(),
        api_version: info.api_version.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        name: info.name.clone(),
        path: info.path.clone(),
        resource_request: true,
        ..Attributes::default()
    }
}
