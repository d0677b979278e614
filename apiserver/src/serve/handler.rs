//! One request: who asks, may they, what is it, and the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use prometheus::{CounterVec, GaugeVec, HistogramVec};
use rustls_pki_types::CertificateDer;
use shared::metrics;
use shared::status::Status;

use super::answer::{self, Shape};
use super::health::Health;
use super::info::request_info;
use super::paths;
use crate::access::{Access, Head, Notes, Refusal};
use crate::api::RequestInfo;
use crate::connect::Connect;
use crate::verbs::engine::Engine;
use crate::verbs::query::Query;
use crate::verbs::{self, Request};

/// Largest request body.
pub const MAX_BODY: usize = 3 << 20;

/// Certificates of a connection's client.
#[derive(Clone, Default)]
pub struct Peer(pub Arc<Vec<CertificateDer<'static>>>);

/// What requests are served from.
pub struct Server {
    /// The object pipeline.
    pub engine: Arc<Engine>,
    /// The access chain; without one everybody is a master (tests).
    pub access: Option<Arc<Access>>,
    /// Logs, exec, port-forward, proxies.
    pub connect: Connect,
    /// Health checks.
    pub health: Health,
    /// `host:port` that discovery names.
    pub address: String,
    /// Requests that are being answered, streams not counted.
    pub running: Arc<AtomicUsize>,
    counters: Counters,
}

struct Counters {
    total: CounterVec,
    duration: HistogramVec,
    long_running: GaugeVec,
    objects: GaugeVec,
}

impl Server {
    /// Puts the parts together.
    pub fn new(
        engine: Arc<Engine>,
        access: Option<Arc<Access>>,
        connect: Connect,
        health: Health,
        address: String,
    ) -> Self {
        let labels = ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"];
        let timing = ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"];
        let long = ["verb", "group", "version", "resource", "subresource", "scope", "component"];
        let buckets = vec![
            0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
            20.0, 30.0, 45.0, 60.0,
        ];
        let counters = Counters {
            total: metrics::counter(
                "apiserver_request_total",
                "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
                &labels,
            ),
            duration: metrics::histogram(
                "apiserver_request_duration_seconds",
                "Response latency distribution in seconds per request.",
                &timing,
                buckets,
            ),
            long_running: metrics::gauge(
                "apiserver_longrunning_requests",
                "Gauge of all active long-running requests.",
                &long,
            ),
            objects: metrics::gauge(
                "apiserver_storage_objects",
                "Number of stored objects at the time of last check.",
                &["resource"],
            ),
        };
        Self { engine, access, connect, health, address, running: Arc::default(), counters }
    }

    /// The text of `/metrics`.
    pub(super) fn metrics(&self) -> String {
        self.counters.objects.reset();
        for (resource, count) in self.engine.hub.counts() {
            #[allow(clippy::cast_precision_loss)]
            self.counters.objects.with_label_values(&[&resource]).set(count as f64);
        }
        metrics::gather()
    }

    fn count(&self, info: &RequestInfo, dry_run: bool, code: u16, since: Instant) {
        if !info.is_resource {
            return;
        }
        let verb = info.verb.to_ascii_uppercase();
        let scope = match (info.name.is_empty() && info.verb != "create", info.namespace.is_empty()) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        };
        let dry = if dry_run { "All" } else { "" };
        let (group, version, resource, sub) = (&info.api_group, &info.api_version, &info.resource, &info.subresource);
        let code = code.to_string();
        self.counters
            .total
            .with_label_values(&[&verb, dry, group, version, resource, sub, scope, "apiserver", &code])
            .inc();
        if verb != "WATCH" {
            let labels = [&verb, dry, group, version, resource, sub, scope, "apiserver"];
            self.counters.duration.with_label_values(&labels).observe(since.elapsed().as_secs_f64());
        } else {
            self.counters
                .long_running
                .with_label_values(&[&verb, group, version, resource, sub, scope, "apiserver"])
                .set(0.0);
        }
    }
}

/// Counts a request while it is answered.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn read_body(mut payload: web::Payload) -> Result<Bytes, Status> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|e| Status::bad_request(&e.to_string()))?;
        if body.len() + chunk.len() > MAX_BODY {
            return Err(Status::too_large(MAX_BODY));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn decoded(path: &str) -> String {
    if !path.contains('%') {
        return path.to_owned();
    }
    let bytes = path.as_bytes();
    let digit = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%'
            && let (Some(h), Some(l)) = (digit(i + 1), digit(i + 2))
        {
            out.push(h << 4 | l);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The handler of all paths.
pub(super) async fn handle(req: HttpRequest, payload: web::Payload, server: web::Data<Server>) -> HttpResponse {
    let since = Instant::now();
    let _running = Running::new(&server.running);
    let header = |name: &str| req.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let query = Query::parse(req.query_string());
    let path = decoded(req.uri().path());
    let info = request_info(req.method().as_str(), &path, &query);
    let mut shape = Shape {
        accept: req.headers().get("accept").and_then(|v| v.to_str().ok()).map(str::to_owned),
        gzip: header("accept-encoding").split(',').any(|e| e.trim().starts_with("gzip")),
        audit_id: String::new(),
    };
    let peer = req.conn_data::<Peer>().cloned().unwrap_or_default();
    let pass = match &server.access {
        Some(access) => {
            let head = Head {
                method: req.method().as_str(),
                query: req.query_string(),
                headers: req.headers(),
                certificates: &peer.0,
                info: &info,
            };
            shape.audit_id = access.audit_id(&head);
            let mut notes = Notes::default();
            let passed = match access.authenticate(&head).await {
                Ok(user) => access.admit(&head, user, &mut notes).await,
                Err(status) => Err(status.into()),
            };
            match passed {
                Ok(pass) => Some(pass),
                Err(Refusal::Status(status)) => {
                    server.count(&info, false, status.code, since);
                    return answer::failure(&status, &shape);
                }
                Err(Refusal::Failure(why)) => {
                    server.count(&info, false, 500, since);
                    let uri = req.uri().path_and_query().map_or("/", |p| p.as_str());
                    return answer::text(500, format!("Internal Server Error: {uri:?}: {why}\n"), &shape);
                }
            }
        }
        None => None,
    };
    if !info.is_resource {
        return paths::serve(&server, &info, req.method().as_str(), &query, &shape).await;
    }
    let served = if info.api_prefix == "api" {
        info.api_version == "v1"
    } else {
        server.engine.rows.group_exists(&info.api_group)
    };
    if !served {
        return answer::not_found(&shape);
    }
    let user = match &pass {
        Some(pass) => pass.user.clone(),
        None => shared::authn::UserInfo {
            name: "admin".to_owned(),
            groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            ..shared::authn::UserInfo::default()
        },
    };
    if Connect::takes(&info) {
        let response = match verbs::route(&server.engine.rows, &info, req.method().as_str()) {
            Ok(_) => server.connect.handle(&req, payload, &info).await,
            Err(status) => Err(status),
        };
        let code = response.as_ref().map_or_else(|s| s.code, |r| r.status().as_u16());
        server.count(&info, false, code, since);
        return response.unwrap_or_else(|status| answer::failure(&status, &shape));
    }
    let noted = verbs::Noted::default();
    let outcome = async {
        let body = if matches!(req.method().as_str(), "POST" | "PUT" | "PATCH" | "DELETE") {
            read_body(payload).await?
        } else {
            Bytes::new()
        };
        let request = Request {
            info: info.clone(),
            method: req.method().as_str().to_owned(),
            query: query.clone(),
            content_type: header("content-type").to_owned(),
            accept: shape.accept.clone(),
            user_agent: header("user-agent").to_owned(),
            body,
            user,
            noted: noted.clone(),
        };
        verbs::dispatch(&server.engine, request).await
    }
    .await;
    let dry_run = query.get("dryRun").is_some();
    match outcome {
        Ok(r) => {
            server.count(&info, dry_run, r.code, since);
            answer::reply(r, &shape)
        }
        Err(status) => {
            server.count(&info, dry_run, status.code, since);
            answer::warned(answer::failure(&status, &shape), &noted.take())
        }
    }
}
