//! The refusal of what the authorisers do not allow, in upstream's words. Answers for upstream's `forbiddenMessage`,
//! `responsewriters.Forbidden`.

use shared::authz::Attributes;
use shared::status::Status;

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
    Status::forbidden(&request.api_group, &request.resource, &request.name, &why)
}
