//! Routing: maps a request line to a row and subresource, or to the error of one that has none. Answers for upstream's
//! `pkg/endpoints/installer.go` (`APIInstaller.Install`).

use proto::resources::{Row, Subresource};
use shared::status::{Status, go_quote};

use crate::api::RequestInfo;
use crate::registry::behavior;
use crate::registry::core::namespace::NAMESPACES;
use crate::rows::Rows;

/// A request line, resolved.
pub struct Route {
    /// The resource.
    pub row: Row,
    /// Index of the subresource in the row.
    subresource: Option<usize>,
}

impl Route {
    /// The subresource.
    pub fn subresource(&self) -> Option<&Subresource> {
        self.row.subresources.get(self.subresource?)
    }
}

/// Verbs that go to a collection's URL.
const COLLECTION: [&str; 5] = ["create", "list", "watch", "deletecollection", ""];

/// Reports whether neither a resource nor a handler of a group answers a path, so that the router answers 404.
pub fn is_unserved(rows: &Rows, info: &RequestInfo) -> bool {
    if info.path.starts_with("//") {
        return true;
    }
    if info.api_prefix == "api" || rows.is_built_in(&info.api_group) {
        return false;
    }
    let Some(row) = rows.find(&info.api_group, &info.api_version, &info.resource) else { return true };
    match info.namespace.is_empty() {
        // Without a namespace a namespaced resource can only be read as a whole.
        true => row.namespaced && !matches!(info.verb.as_str(), "list" | "watch"),
        false => !row.namespaced,
    }
}

/// Explains why a name cannot be a segment of a key.
fn invalid_segment(name: &str) -> Option<String> {
    if matches!(name, "." | "..") {
        return Some(format!("may not be '{name}'"));
    }
    name.contains('%').then(|| "may not contain '%'".to_owned())
}

/// Resolves a request line.
pub fn route(rows: &Rows, info: &RequestInfo, method: &str) -> Result<Route, Status> {
    let route = resolved(rows, info, method)?;
    // One that is only watched is never looked up.
    let looked_up = info.parts.len() > 1 && info.verb != "watch";
    match looked_up.then(|| invalid_segment(&info.name)).flatten() {
        Some(why) => Err(Status::bad_request(&format!("Name parameter invalid: {}: {why}", go_quote(&info.name)))),
        None => Ok(route),
    }
}

fn resolved(rows: &Rows, info: &RequestInfo, method: &str) -> Result<Route, Status> {
    let missing = Status::generic_not_found;
    let row = rows.find(&info.api_group, &info.api_version, &info.resource).ok_or_else(missing)?;
    let behavior = behavior(&row);
    let refused = || behavior.unserved_verb(&row, &info.verb);
    let named = info.parts.len() > 1;
    let in_namespace = !info.namespace.is_empty();
    if row.namespaced && named && !in_namespace {
        return Err(missing());
    }
    // A namespace is in no namespace: its own path names it once.
    if !row.namespaced && in_namespace && (row.plural != NAMESPACES.plural || info.below_namespace) {
        return Err(missing());
    }
    if info.parts.len() > 2 {
        let unknown = || behavior.unknown_subresource(&row, &info.name);
        let index = row.subresources.iter().position(|s| s.name == info.subresource).ok_or_else(unknown)?;
        let sub = &row.subresources[index];
        // There is no watching of subresources, so that who may watch may not open what stands behind them.
        if (info.parts.len() > 3 && sub.name != "proxy") || info.verb == "watch" {
            return Err(missing());
        }
        // What is proxied may be asked for by methods that have no verb.
        let answered = match method {
            "HEAD" if !behavior.is_routed_by_path() => sub.verbs.iter().any(|v| *v == "get"),
            "HEAD" | "OPTIONS" => sub.name == "proxy",
            _ => sub.verbs.iter().any(|v| *v == info.verb),
        };
        return if answered { Ok(Route { row, subresource: Some(index) }) } else { Err(refused()) };
    }
    if (method == "HEAD" && behavior.is_routed_by_path()) || (info.verb == "watch" && method != "GET") {
        return Err(refused());
    }
    let names_allowed = row.verbs.iter().any(|v| matches!(&**v, "get" | "update" | "patch" | "delete"));
    if named && !names_allowed {
        return Err(missing());
    }
    if !behavior.is_routed_by_path() && !named && matches!(info.verb.as_str(), "update" | "patch") {
        return Err(Status::bad_request("name must be provided"));
    }
    let collection = COLLECTION.contains(&info.verb.as_str());
    // Where no path decides, an object may be created where it will be, or where another would be: nobody compares.
    let by_name = named && (info.verb == "watch" || info.verb == "create" && !behavior.is_routed_by_path());
    if (collection == named && !by_name) || !behavior.serves(&row, &info.verb) {
        return Err(refused());
    }
    // Without a namespace a namespaced resource can only be read.
    if row.namespaced && !in_namespace && !matches!(info.verb.as_str(), "list" | "watch") {
        return Err(refused());
    }
    Ok(Route { row, subresource: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machinery::query::Query;
    use crate::serve::info::request_info;

    #[test]
    fn lines() {
        for (method, path, want) in [
            ("GET", "/api/v1/pods", 200),
            ("GET", "/api/v1/namespaces/e/pods/x", 200),
            ("GET", "/api/v1/namespaces/e", 200),
            ("GET", "/apis/apps/v9/deployments", 404),
            ("GET", "/api/v1/namespaces/e/pods/x/nosuch", 404),
            ("GET", "/api/v1/pods/x", 404),
            ("GET", "/api/v1/namespaces/e/nodes", 404),
            ("GET", "/api/v1/namespaces/e/namespaces", 404),
            ("GET", "/api/v1/namespaces/e/namespaces/e", 404),
            ("DELETE", "/api/v1/namespaces/e/namespaces/other", 404),
            ("GET", "/api/v1/watch/namespaces/e/namespaces", 404),
            ("PUT", "/api/v1/namespaces/e/namespaces/e/finalize", 404),
            ("PUT", "/api/v1/namespaces/e/configmaps", 405),
            ("DELETE", "/api/v1/namespaces", 405),
            ("POST", "/api/v1/namespaces/e/configmaps/a", 405),
            ("GET", "/apis/authentication.k8s.io/v1/tokenreviews", 405),
            ("PATCH", "/api/v1/namespaces/e/bindings/x", 404),
            ("OPTIONS", "/api/v1/namespaces/e/configmaps", 405),
            ("HEAD", "/api/v1/namespaces/e/configmaps", 405),
            ("POST", "/api/v1/configmaps", 405),
            ("PUT", "/api/v1/namespaces/e/pods/x/status", 200),
            ("POST", "/api/v1/namespaces/e/pods/x/status", 405),
            ("POST", "/api/v1/namespaces/e/pods/x/binding", 200),
            ("PUT", "/api/v1/namespaces/e/finalize", 200),
            ("GET", "/api/v1/namespaces/e/pods/x/exec", 200),
            ("POST", "/api/v1/namespaces/e/pods/x/exec", 200),
            ("PUT", "/api/v1/namespaces/e/pods/x/exec", 405),
            ("DELETE", "/api/v1/namespaces/e/pods/x/attach", 405),
            ("PATCH", "/api/v1/namespaces/e/pods/x/portforward", 405),
            ("POST", "/api/v1/namespaces/e/pods/x/log", 405),
            ("HEAD", "/api/v1/namespaces/e/pods/x/log", 405),
            ("HEAD", "/api/v1/namespaces/e/pods/x/proxy/a", 200),
            ("OPTIONS", "/api/v1/nodes/x/proxy/a", 200),
            ("DELETE", "/api/v1/namespaces/e/services/x/proxy/a", 200),
            ("GET", "/api/v1/watch/pods", 200),
            ("GET", "/api/v1/watch/namespaces/e/pods/x", 200),
            ("DELETE", "/api/v1/watch/namespaces/e/pods/x", 405),
            ("GET", "/api/v1/watch/namespaces/e/pods/x/exec", 404),
            ("GET", "/api/v1/watch/nodes/x/proxy/logs", 404),
        ] {
            let info = request_info(method, path, &Query::default());
            let got = route(&Rows::default(), &info, method).map_or_else(|e| e.code, |_| 200);
            assert_eq!(got, want, "{method} {path}");
        }
    }

    /// Every resource, by every form of path and every method: what authorizers are asked about is what storage is
    /// asked for.
    #[test]
    fn route_matches_request_info() {
        let rows = Rows::default();
        let forms = [
            "",
            "/n",
            "/n/status",
            "/n/finalize",
            "/n/scale",
            "/n/proxy/a/b",
            "/",
            "//n",
            "/./n",
            "/../n",
            "/n/..",
            "?fieldSelector=metadata.name%3Dn",
            "?watch=true&fieldSelector=metadata.name%3Dn",
        ];
        let mut routed = 0;
        for row in rows.built_in() {
            let root = match row.group.as_ref() {
                "" => format!("/api/{}", row.version),
                group => format!("/apis/{group}/{}", row.version),
            };
            for above in
                ["", "/namespaces/e", "/namespaces/n", "/watch", "/watch/namespaces/e", "/namespaces/e/namespaces/n"]
            {
                for (form, method) in forms.iter().flat_map(|f| METHODS.map(move |method| (f, method))) {
                    let url = format!("{root}{above}/{}{form}", row.plural);
                    let (path, query) = url.split_once('?').unwrap_or((&url, ""));
                    let info = request_info(method, path, &Query::parse(query));
                    let Ok(route) = route(&rows, &info, method) else { continue };
                    routed += 1;
                    let own = info.resource == "namespaces" && info.name == info.namespace && !info.below_namespace;
                    assert!(route.row.namespaced || info.namespace.is_empty() || own, "{method} {url}: {info:?}");
                    let stored = info.parts.get(1).map(String::as_str).unwrap_or_default();
                    let may_be_selected = matches!(info.verb.as_str(), "list" | "watch");
                    assert!(info.name == stored || stored.is_empty() && may_be_selected, "{method} {url}: {info:?}");
                    let sub = route.subresource.map(|at| &*route.row.subresources[at].name).unwrap_or_default();
                    assert_eq!(info.subresource, sub, "{method} {url}");
                }
            }
        }
        assert!(routed > 1000, "{routed} requests were routed");
    }

    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
}
