//! What is not a resource: health, version, discovery, OpenAPI, metrics, token documents.

use actix_web::HttpResponse;
use proto::Value;
use proto::discovery;
use proto::resources::Row;
use shared::status::Status;

use super::answer::{self, Shape};
use super::health::Endpoint;
use super::server::Server;
use super::{logs, profiles};
use crate::aggregate::{self, Directory};
use crate::api::RequestInfo;
use crate::negotiate::{self, Media};
use crate::openapi;
use crate::verbs::Reply;
use crate::verbs::query::Query;

/// Media type of the aggregated form.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn groups(rows: &[Row]) -> Vec<discovery::Group<'_>> {
    discovery::groups(rows.iter().map(|r| &**r))
}

/// A discovery document in the accepted form.
fn document(tree: Option<Value>, kind: &str, shape: &Shape) -> HttpResponse {
    let Some(tree) = tree else { return answer::not_found(shape) };
    // Discovery has no CBOR.
    let media = Media::default();
    let accepted = match negotiate::parse(media, shape.accept.as_deref(), false) {
        Ok(a) => a,
        Err(e) => return answer::failure(&negotiate::not_acceptable(media, false, &e), shape),
    };
    let pretty = accepted.pretty || shape.pretty;
    let body = negotiate::envelope(accepted.format, pretty, proto::schema::kind("", "v1", kind), &tree);
    answer::reply(Reply::new(200, accepted.format.content_type(), body), shape)
}

/// The aggregated form, when the client prefers it.
fn aggregated(server: &Server, rows: &[Row], directory: &Directory, core: bool, shape: &Shape) -> Option<HttpResponse> {
    let accept = shape.accept.as_deref()?;
    let clause = accept.split(',').find(|c| {
        let c: String = c.chars().filter(|c| !c.is_whitespace()).collect();
        c.starts_with("application/json;")
            && c.contains("g=apidiscovery.k8s.io")
            && c.contains("as=APIGroupDiscoveryList")
    })?;
    let version = if clause.contains("v=v2beta1") { "v2beta1" } else { "v2" };
    let body = server.discovery.document(rows, directory, core, version);
    let content_type = AGGREGATED.replace("v=v2;", &format!("v={version};"));
    let mut response = answer::reply(Reply::new(200, &content_type, body), shape);
    response
        .headers_mut()
        .insert(actix_web::http::header::VARY, actix_web::http::header::HeaderValue::from_static("Accept"));
    Some(response)
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
    paths.extend(server.conduct.logs.then(|| "/logs".to_owned()));
    paths.extend(server.conduct.flagz.as_ref().map(|_| "/flagz".to_owned()));
    paths.extend(server.conduct.statusz.then(|| "/statusz".to_owned()));
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

/// Whether the client takes a media type that is offered alone.
fn takes(shape: &Shape, offered: &str) -> bool {
    shape.accept.as_deref().is_none_or(|a| {
        a.trim().is_empty()
            || a.split(',').any(|c| {
                matches!(c.split(';').next().unwrap_or("").trim(), "*/*" | "application/*") || c.trim() == offered
            })
    })
}

fn published(content_type: &str, body: Vec<u8>, shape: &Shape) -> HttpResponse {
    use actix_web::http::header::{CACHE_CONTROL, HeaderValue};
    let mut response = answer::reply(Reply::new(200, content_type, body), shape);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
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
    for (name, endpoint) in [("healthz", Endpoint::Healthz), ("livez", Endpoint::Livez), ("readyz", Endpoint::Readyz)] {
        if segments.first() == Some(&name) {
            let only = info.path.trim_start_matches('/').trim_start_matches(name).trim_matches('/');
            return match server.health.answer(endpoint, only, query).await {
                Some((code, text)) => answer::text(code, text, shape),
                None => answer::not_found(shape),
            };
        }
    }
    if !matches!(method, "GET" | "HEAD") {
        return match segments.as_slice() {
            ["api" | "apis" | "version", ..] => answer::failure(&Status::generic_method_not_allowed(), shape),
            _ => answer::not_found(shape),
        };
    }
    let rows = match segments.first() {
        None | Some(&("api" | "apis" | "statusz")) => server.engine.rows.all(),
        _ => Vec::new(),
    };
    let directory = server.aggregator.directory();
    match segments.as_slice() {
        [] => json(&serde_json::json!({"paths": root(server, &rows, &directory)}), shape),
        ["flagz"] => match &server.conduct.flagz {
            Some(page) => answer::text(200, page.clone(), shape),
            None => answer::not_found(shape),
        },
        ["statusz"] if server.conduct.statusz => {
            let paths = root(server, &rows, &directory).join(" ");
            answer::text(200, shared::serve::statusz("kube-apiserver", &paths), shape)
        }
        ["logs", below @ ..] if server.conduct.logs => logs::serve(below.join("/"), shape).await,
        ["version"] => json(&shared::version::info(), shape),
        ["metrics", "slis"] => {
            answer::reply(Reply::new(200, "text/plain; version=0.0.4; charset=utf-8", server.health.slis()), shape)
        }
        ["metrics"] => {
            answer::reply(Reply::new(200, "text/plain; version=0.0.4; charset=utf-8", server.metrics()), shape)
        }
        ["debug", "pprof", rest @ ..] if server.conduct.profiles => {
            profiles::serve(rest, info.path.ends_with('/'), shape)
        }
        ["debug", "api_priority_and_fairness", page] => {
            let details = query.get("includeRequestDetails").is_some_and(|v| !v.is_empty());
            match server.flow().and_then(|f| f.dump(page, details)) {
                Some(text) => answer::text(200, text, shape),
                None => answer::not_found(shape),
            }
        }
        ["api"] => match aggregated(server, &rows, &directory, true, shape) {
            Some(r) => r,
            None => document(Some(discovery::api_versions(&server.address)), "APIVersions", shape),
        },
        ["api", version] => document(discovery::resource_list(&groups(&rows), "", version), "APIResourceList", shape),
        ["apis"] => match aggregated(server, &rows, &directory, false, shape) {
            Some(r) => r,
            None => {
                let first = discovery::api_group(&groups(&rows), aggregate::GROUP);
                document(Some(directory.group_list(first)), "APIGroupList", shape)
            }
        },
        ["apis", group] => {
            let own = discovery::api_group(&groups(&rows), group);
            document(directory.group(group, own), "APIGroup", shape)
        }
        ["apis", group, version] => {
            let tree = discovery::resource_list(&groups(&rows), group, version);
            if tree.is_none() && server.engine.rows.group_exists(group) {
                return answer::failure(&Status::generic_not_found(), shape);
            }
            document(tree, "APIResourceList", shape)
        }
        ["openapi", "v2"] => {
            let (accept, rows, documents) =
                (shape.accept.clone(), server.engine.rows.clone(), server.documents.clone());
            let others = server.aggregator.schemas().await;
            schema_document(move || Some(documents.v2(&rows, &others, accept.as_deref())), None, shape).await
        }
        ["openapi", "v3"] => {
            let (rows, documents) = (server.engine.rows.clone(), server.documents.clone());
            let others = server.aggregator.schema_addresses().await;
            schema_document(move || Some(Ok(documents.index(&rows, &others))), None, shape).await
        }
        ["openapi", "v3", rest @ ..] => {
            let (path, accept) = (rest.join("/"), shape.accept.clone());
            let (rows, documents) = (server.engine.rows.clone(), server.documents.clone());
            if let ["apis", group, version] = rest
                && let Some(remote) = directory.remote(group, version)
            {
                let document = server.aggregator.schema(remote, query.get("hash")).await;
                let make = move || document.map(|d| d.in_form(accept.as_deref()));
                return schema_document(make, query.get("hash"), shape).await;
            }
            schema_document(move || documents.v3(&rows, &path, accept.as_deref()), query.get("hash"), shape).await
        }
        ["openid", "v1", "jwks"] if !takes(shape, JWKS) => answer::failure(&negotiate::unavailable(&[JWKS]), shape),
        ["openid", "v1", "jwks"] => match server.access.as_ref().map(|a| a.jwks()) {
            Some(body) => published(JWKS, body, shape),
            None => answer::not_found(shape),
        },
        [".well-known", "openid-configuration"] => {
            match server.access.as_ref().and_then(|a| a.openid_configuration()) {
                Some(body) => published("application/json", body, shape),
                None => answer::not_found(shape),
            }
        }
        _ => answer::not_found(shape),
    }
}
