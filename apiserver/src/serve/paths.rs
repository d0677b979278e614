//! Paths that are not resources: health, version, discovery, OpenAPI, metrics, OpenID documents.

use actix_web::HttpResponse;
use proto::Value;
use proto::discovery;
use proto::resources::Row;
use shared::serve::{HealthResponse, Probe};
use shared::status::Status;

use super::aggregated;
use super::answer::{self, Shape};
use super::logs;
use super::server::Server;
use crate::aggregate::{self, Directory};
use crate::api::RequestInfo;
use crate::machinery::query::Query;
use crate::negotiate::{self, Media, NotAcceptable};
use crate::openapi;
use crate::verbs::Reply;

/// Media types of discovery documents, which are not served in CBOR.
const MEDIA: Media = Media { cbor: false, stores_json: false };
/// Media type of most other documents.
const JSON: &str = "application/json";

fn groups(rows: &[Row]) -> Vec<discovery::Group<'_>> {
    discovery::groups(rows.iter().map(|r| &**r))
}

/// The resources of a group's version, with how they are stored where that is said.
fn resource_list(server: &Server, rows: &[Row], group: &str, version: &str) -> Option<Value> {
    let mut list = discovery::resource_list(&groups(rows), group, version)?;
    if !server.response_policy.hashes {
        let resources = list["resources"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
        resources.for_each(|resource| drop(resource.remove("storageVersionHash")));
    }
    Some(list)
}

/// Reports whether the client accepts a form of discovery documents.
fn takes_any(shape: &Shape) -> bool {
    negotiate::names_any(MEDIA.bodies(), shape.accept.as_deref())
}

/// A discovery document in the accepted form.
fn document(tree: Option<Value>, kind: &str, shape: &Shape) -> HttpResponse {
    let Some(tree) = tree else { return answer::not_found(shape) };
    let accepted = match negotiate::parse_plain(MEDIA, shape.accept.as_deref()) {
        Ok(a) => a,
        Err(e) => return answer::failure(&negotiate::not_acceptable(MEDIA, false, &e), shape),
    };
    let pretty = accepted.pretty || shape.pretty;
    let body = negotiate::envelope(accepted.format, pretty, proto::schema::kind("", "v1", kind), &tree);
    answer::reply(Reply::new(200, accepted.format.content_type(), body), shape)
}

fn root(server: &Server, rows: &[Row], directory: &Directory) -> Vec<String> {
    let mut paths: Vec<String> =
        ["/.well-known/openid-configuration", "/api", "/api/v1", "/apis", "/apis/"].map(str::to_owned).into();
    let own = rows.iter().filter(|r| !r.group.is_empty()).map(|r| (r.group.to_string(), r.version.to_string()));
    let others = directory.remotes().map(|r| (r.service.group.clone(), r.service.version.clone()));
    for (group, version) in own.chain(others) {
        for p in [format!("/apis/{group}"), format!("/apis/{group}/{version}")] {
            if !paths.contains(&p) {
                paths.push(p);
            }
        }
    }
    paths.extend(
        [
            "/healthz",
            "/livez",
            "/metrics",
            "/metrics/slis",
            "/openapi/v2",
            "/openapi/v3",
            "/openapi/v3/",
            "/openid/v1/jwks",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned),
    );
    paths.extend(server.response_policy.logs.then(|| "/logs".to_owned()));
    paths.extend(server.response_policy.flagz.as_ref().map(|_| "/flagz".to_owned()));
    paths.extend(server.response_policy.statusz.then(|| "/statusz".to_owned()));
    paths.extend(server.health.paths());
    paths.sort();
    paths
}

fn json(tree: &Value, shape: &Shape) -> HttpResponse {
    let mut body = serde_json::to_vec_pretty(tree).unwrap_or_default();
    body.truncate(body.trim_ascii_end().len());
    answer::reply(Reply::json(body), shape)
}

/// An OpenAPI document, made on a thread of its own: it takes a while.
async fn schema_document(
    make: impl FnOnce() -> Option<Result<openapi::Document, Status>> + Send + 'static,
    hash: Option<&str>,
    shape: &Shape,
) -> HttpResponse {
    use actix_web::http::header::{CACHE_CONTROL, ETAG, HeaderValue, VARY};
    let document = match actix_web::web::block(make).await {
        Ok(Some(Ok(d))) => d,
        Ok(Some(Err(status))) => return answer::failure(&status, shape),
        Ok(None) => return answer::not_found(shape),
        Err(e) => return answer::failure(&Status::internal(&e.to_string()), shape),
    };
    let named = hash.is_some_and(|h| document.etag.trim_matches('"') == h);
    let known = shape.known.as_deref().is_some_and(|tags| {
        tags.split(',')
            .any(|tag| matches!(tag.trim().trim_start_matches("W/"), tag if tag == "*" || tag == document.etag))
    });
    let (code, body) = if known { (304, Vec::new()) } else { (200, document.body) };
    let mut response = answer::reply(Reply::new(code, document.content_type, body), shape);
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    if let Ok(etag) = HeaderValue::from_str(&document.etag) {
        headers.insert(ETAG, etag);
    }
    if named {
        // The address names the content.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    response
}

/// Media type of key sets.
const JWKS: &str = "application/jwk-set+json";

/// Reports whether the client accepts the only media type that is offered.
fn takes(shape: &Shape, offered: &str) -> bool {
    negotiate::names_any(&[offered], shape.accept.as_deref())
}

fn published(content_type: &str, body: Vec<u8>, shape: &Shape) -> HttpResponse {
    use actix_web::http::header::{CACHE_CONTROL, HeaderValue};
    let mut response = answer::reply(Reply::new(200, content_type, body), shape);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}

/// The pages that do not ask for the method.
async fn for_any_method(
    server: &Server,
    method: &str,
    path: &str,
    query: &Query,
    shape: &Shape,
) -> Option<HttpResponse> {
    let (first, rest) = path.strip_prefix('/')?.split_once('/').map_or((&path[1..], None), |(a, b)| (a, Some(b)));
    if let Some(probe) = Probe::ALL.into_iter().find(|probe| probe.word() == first) {
        return Some(match server.health.answer(probe, rest, query).await {
            Some(HealthResponse { code: 200, body }) if rest.is_some() => answer::page_text(body, shape),
            Some(HealthResponse { code, body }) => answer::text(code, body, shape),
            None => answer::not_found(shape),
        });
    }
    let wanted = shared::serve::PageForm { accept: shape.accept.as_deref(), pretty: shape.pretty };
    match (first, rest) {
        ("flagz", None) => {
            server.response_policy.flagz.as_ref().map(|flags| z_page(shared::serve::flagz(flags, wanted), shape))
        }
        ("statusz", None) if server.response_policy.statusz => {
            let paths = root(server, &server.engine.rows.all(), &server.aggregator.directory());
            Some(z_page(
                shared::serve::statusz(("kube-apiserver", server.response_policy.emulation), &paths, wanted),
                shape,
            ))
        }
        ("metrics", None | Some("slis")) if method == "DELETE" && server.response_policy.profiling => {
            if rest.is_none() {
                shared::metrics::reset()
            } else {
                server.health.reset()
            }
            Some(answer::page_text(shared::metrics::WAS_RESET, shape))
        }
        ("metrics", None) => Some(exposition(server.metrics(), shape)),
        ("metrics", Some("slis")) => Some(exposition(server.health.slis(), shape)),
        ("debug", Some(page)) => {
            if server.response_policy.profiling && (page == "flags" || page.starts_with("flags/")) {
                return Some(shared::serve::verbosity_index());
            }
            let details = query.get("includeRequestDetails").is_some_and(|v| !v.is_empty());
            let page = page.strip_prefix("api_priority_and_fairness/")?;
            server.flow().and_then(|f| f.dump(page, details)).map(|text| answer::page_text(text, shape))
        }
        _ => None,
    }
}

fn z_page(page: Result<shared::serve::ZPage, Box<Status>>, shape: &Shape) -> HttpResponse {
    match page {
        Ok(page) => answer::reply(Reply::new(200, &page.content_type, page.body.into_bytes()), shape),
        Err(status) => answer::failure(&status, shape),
    }
}

fn exposition(body: String, shape: &Shape) -> HttpResponse {
    use actix_web::http::header::{HeaderName, HeaderValue};
    const KIND: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    let mut response = answer::reply(Reply::new(200, KIND, body), shape);
    let since = HeaderValue::from(shared::metrics::started());
    response.headers_mut().insert(HeaderName::from_static("process-start-time-unix"), since);
    response
}

/// Reports whether a path answers a method: only the routes of upstream's go-restful router check it; the handlers
/// before it, for groups and custom resources, do not.
fn takes_method(server: &Server, segments: &[&str], method: &str) -> bool {
    match segments {
        ["apis"] => true,
        ["apis", group] if *group != aggregate::GROUP => true,
        ["apis", group, _] if !server.engine.rows.is_built_in(group) => true,
        ["api" | "apis" | "version", ..] => method == "GET",
        _ => matches!(method, "GET" | "HEAD"),
    }
}

/// Answers a path that is no resource.
pub(super) async fn serve(
    server: &Server,
    info: &RequestInfo,
    method: &str,
    query: &Query,
    shape: &Shape,
) -> HttpResponse {
    let segments: Vec<&str> = info.path.split('/').filter(|s| !s.is_empty()).collect();
    if info.path.starts_with("//") {
        return answer::not_found(shape);
    }
    if let Some(response) = for_any_method(server, method, &info.path, query, shape).await {
        return response;
    }
    if !takes_method(server, &segments, method) {
        return match segments.as_slice() {
            ["apis", group, version] if resource_list(server, &server.engine.rows.all(), group, version).is_none() => {
                answer::failure(&Status::generic_not_found(), shape)
            }
            ["api" | "apis" | "version", ..] => answer::failure(&Status::generic_method_not_allowed(), shape),
            _ => answer::not_found(shape),
        };
    }
    match segments.as_slice() {
        [] => {
            let paths = root(server, &server.engine.rows.all(), &server.aggregator.directory());
            json(&serde_json::json!({"paths": paths}), shape)
        }
        ["api" | "apis", ..] => discover(server, &segments, shape),
        ["openapi", "v2"] if info.path.ends_with('/') => answer::not_found(shape),
        ["openapi", version, rest @ ..] => schemas(server, version, rest, query.get("hash"), shape).await,
        ["logs", ..] if server.response_policy.logs => logs::serve(&info.path, shape).await,
        ["version"] | [".well-known", "openid-configuration"] if !takes(shape, JSON) => {
            answer::failure(&negotiate::unavailable(&[JSON]), shape)
        }
        ["version"] => json(&shared::version::info_of(server.response_policy.emulation), shape),
        ["debug", "pprof", ..] if server.response_policy.profiling => {
            shared::serve::profile(&info.path, query.get("seconds")).await
        }
        ["openid", "v1", "jwks"] if !takes(shape, JWKS) => answer::failure(&negotiate::unavailable(&[JWKS]), shape),
        ["openid", "v1", "jwks"] => published(JWKS, server.access.jwks(), shape),
        [".well-known", "openid-configuration"] => match server.access.openid_configuration() {
            Some(body) => published("application/json", body, shape),
            None => answer::not_found(shape),
        },
        _ => answer::not_found(shape),
    }
}

/// Answers discovery: groups, versions and resources.
fn discover(server: &Server, segments: &[&str], shape: &Shape) -> HttpResponse {
    let (rows, directory) = (server.engine.rows.all(), server.aggregator.directory());
    // What comes from a router is asked for by name.
    let routed = |document: &dyn Fn() -> HttpResponse| match takes_any(shape) {
        true => document(),
        false => answer::failure(&negotiate::not_acceptable(MEDIA, false, &NotAcceptable::Format), shape),
    };
    match segments {
        ["api"] => routed(&|| {
            aggregated::answer(server, &rows, &directory, true, shape)
                .unwrap_or_else(|| document(Some(discovery::api_versions(&server.address)), "APIVersions", shape))
        }),
        ["api", version] => match resource_list(server, &rows, "", version) {
            None => answer::failure(&Status::generic_not_found(), shape),
            list => routed(&|| document(list.clone(), "APIResourceList", shape)),
        },
        ["apis"] => aggregated::answer(server, &rows, &directory, false, shape).unwrap_or_else(|| {
            let first = discovery::api_group(&groups(&rows), aggregate::GROUP);
            document(Some(directory.group_list(first)), "APIGroupList", shape)
        }),
        ["apis", group] => {
            let own = discovery::api_group(&groups(&rows), group);
            document(directory.group(group, own), "APIGroup", shape)
        }
        ["apis", group, version] => {
            let tree = resource_list(server, &rows, group, version);
            match server.engine.rows.is_built_in(group) {
                false => document(tree, "APIResourceList", shape),
                true if tree.is_none() => answer::failure(&Status::generic_not_found(), shape),
                true => routed(&|| document(tree.clone(), "APIResourceList", shape)),
            }
        }
        _ => answer::not_found(shape),
    }
}

/// OpenAPI: version 2 in one document, version 3 as an index and a document for each group and version.
async fn schemas(server: &Server, version: &str, rest: &[&str], hash: Option<&str>, shape: &Shape) -> HttpResponse {
    let (rows, documents, accept) = (server.engine.rows.clone(), server.documents.clone(), shape.accept.clone());
    match (version, rest) {
        ("v2", []) => {
            let others = server.aggregator.schemas().await;
            schema_document(move || Some(documents.v2(&rows, &others, accept.as_deref())), None, shape).await
        }
        ("v3", []) => {
            let others = server.aggregator.schema_addresses().await;
            schema_document(move || Some(Ok(documents.index(&rows, &others))), None, shape).await
        }
        ("v3", rest) => {
            if let ["apis", group, version] = rest
                && let Some(remote) = server.aggregator.remote(group, version)
            {
                let document = server.aggregator.schema(&remote, hash).await;
                return schema_document(move || document.map(|d| d.in_form(accept.as_deref())), hash, shape).await;
            }
            let path = rest.join("/");
            schema_document(move || documents.v3(&rows, &path, accept.as_deref()), hash, shape).await
        }
        _ => answer::not_found(shape),
    }
}
