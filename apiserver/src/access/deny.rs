//! The refusals of the access chain and of admission, as upstream's Status objects.

use shared::authz::Attributes;
use shared::status::Status;

/// `403`: `pods "x" is forbidden: <why>`; without a name `pods is forbidden: <why>`, without a resource
/// `forbidden: <why>`.
pub fn forbidden(group: &str, plural: &str, name: &str, why: &str) -> Status {
    Status::forbidden(group, plural, name, why)
}

/// `404`: `pods "x" not found`.
pub fn not_found(group: &str, plural: &str, name: &str) -> Status {
    Status::not_found(group, plural, name)
}

/// `401`: `Unauthorized`.
pub fn unauthorized() -> Status {
    Status::unauthorized()
}

/// Adds a cause to the details.
pub fn with_cause(mut status: Status, reason: &str, message: &str, field: &str) -> Status {
    status.add_cause(reason, message, field);
    status
}

/// The refusal of a request by the authorisers, with their reason when they gave one.
pub fn unauthorised_request(request: &Attributes, reason: &str) -> Status {
    let user = &request.user.name;
    let mut why = if request.resource_request {
        let resource = match request.subresource.as_str() {
            "" => request.resource.clone(),
            sub => format!("{}/{sub}", request.resource),
        };
        let place = match request.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        format!(
            "User {user:?} cannot {} resource {resource:?} in API group {:?} {place}",
            request.verb, request.api_group
        )
    } else {
        format!("User {user:?} cannot {} path {:?}", request.verb, request.path)
    };
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    forbidden(&request.api_group, &request.resource, &request.name, &why)
}
