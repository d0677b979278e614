//! From method, path and query to [`RequestInfo`]. Pure: the path alone decides, not what exists. Answers for
//! upstream's `RequestInfoFactory.NewRequestInfo`.

use crate::api::RequestInfo;
use crate::machinery::query::Query;
use crate::registry::core::namespace::NAMESPACES;

/// Reads a request line.
pub fn request_info(method: &str, path: &str, query: &Query) -> RequestInfo {
    let mut info = RequestInfo { verb: method.to_ascii_lowercase(), path: path.to_owned(), ..RequestInfo::default() };
    // Segments between slashes may be empty, as they may for upstream.
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let rest = match segments.as_slice() {
        ["api", version, rest @ ..] => {
            info.api_version = (*version).to_owned();
            rest
        }
        ["apis", group, version, rest @ ..] => {
            info.api_group = (*group).to_owned();
            info.api_version = (*version).to_owned();
            rest
        }
        _ => return info,
    };
    info.api_prefix = segments[0].to_owned();
    if rest.is_empty() {
        return info;
    }
    info.is_resource = true;
    info.verb = match method {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
    .to_owned();
    let mut parts = rest;
    let legacy_watch = parts[0] == "watch" && parts.len() > 1;
    if legacy_watch {
        info.verb = "watch".to_owned();
        parts = &parts[1..];
    }
    if parts[0] == NAMESPACES.plural && parts.len() > 1 {
        info.namespace = parts[1].to_owned();
        if parts.len() > 2 && !matches!(parts[2], "status" | "finalize") {
            parts = &parts[2..];
            info.below_namespace = true;
        }
    }
    info.parts = parts.iter().map(|s| (*s).to_owned()).collect();
    info.resource = parts[0].to_owned();
    info.name = parts.get(1).map(|s| (*s).to_owned()).unwrap_or_default();
    info.subresource = parts.get(2).map(|s| (*s).to_owned()).unwrap_or_default();
    if info.name.is_empty() && info.verb == "get" {
        info.verb = if query.flag("watch") { "watch" } else { "list" }.to_owned();
    }
    if info.name.is_empty() && info.verb == "delete" {
        info.verb = "deletecollection".to_owned();
    }
    // `fieldSelector=metadata.name=x` lists one object: authorisers may grant it by name.
    if info.name.is_empty()
        && matches!(info.verb.as_str(), "list" | "watch")
        && let Some(name) = query.get("fieldSelector").and_then(single_name)
    {
        info.name = name;
    }
    info
}

/// The one name that a field selector lets through, where it is one that a path could hold.
fn single_name(selector: &str) -> Option<String> {
    let name = crate::authz::field_value(selector, "metadata.name")?;
    let fits = !matches!(name.as_str(), "" | "." | "..") && !name.contains(['/', '%']);
    fits.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (method, url, want) in [
            ("GET", "/api/v1/namespaces/e/pods/p/log", "get||v1|e|pods|p|log"),
            ("GET", "/api/v1/pods", "list||v1||pods||"),
            ("GET", "/api/v1/pods?watch=true", "watch||v1||pods||"),
            ("GET", "/api/v1/watch/namespaces/e/pods", "watch||v1|e|pods||"),
            ("GET", "/api/v1/namespaces/e", "get||v1|e|namespaces|e|"),
            ("PUT", "/api/v1/namespaces/e/finalize", "update||v1|e|namespaces|e|finalize"),
            ("DELETE", "/apis/apps/v1/namespaces/e/deployments", "deletecollection|apps|v1|e|deployments||"),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1", "list||v1||nodes|n1|"),
            (
                "DELETE",
                "/api/v1/namespaces/e/configmaps?fieldSelector=metadata.name%3Da",
                "deletecollection||v1|e|configmaps||",
            ),
            (
                "GET",
                "/api/v1/nodes?fieldSelector=metadata.name%3D%3Dn1,spec.unschedulable!%3Dtrue",
                "list||v1||nodes|n1|",
            ),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name!%3Dn1", "list||v1||nodes||"),
            ("GET", "/api/v1/nodes?fieldSelector=a%5C,metadata.name%3Dn1", "list||v1||nodes||"),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Da/b", "list||v1||nodes||"),
            ("POST", "/apis/apps/v1/namespaces/e/deployments", "create|apps|v1|e|deployments||"),
            ("GET", "//api/v1/namespaces/e/pods//", "list||v1|e|pods||"),
            ("GET", "/api/v1//pods", "get||v1|||pods|"),
            ("GET", "/api/v1/namespaces//pods", "list||v1||pods||"),
            ("GET", "/api/v1/namespaces/e/pods//p", "list||v1|e|pods||p"),
        ] {
            let (path, query) = url.split_once('?').unwrap_or((url, ""));
            let i = request_info(method, path, &Query::parse(query));
            assert!(i.is_resource);
            assert_eq!(
                format!(
                    "{}|{}|{}|{}|{}|{}|{}",
                    i.verb, i.api_group, i.api_version, i.namespace, i.resource, i.name, i.subresource
                ),
                want,
                "{url}"
            );
        }
        assert!(!request_info("GET", "/healthz", &Query::parse("")).is_resource);
        assert!(!request_info("GET", "/apis/apps/v1", &Query::parse("")).is_resource);
    }
}
