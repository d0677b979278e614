//! The pages all components share.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::http::{StatusCode, header};
use actix_web::middleware::Compress;
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use parking_lot::RwLock;
use serde_json::Value;

use super::Health;
use crate::flags::FlagSet;
use crate::status::go_quote;

const PLAIN: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The configurations in force, by name, for `/configz`.
#[derive(Clone, Default)]
pub struct Configz(Arc<RwLock<BTreeMap<String, Value>>>);

impl Configz {
    /// Shows `value` under `name`.
    pub fn set(&self, name: &str, value: Value) {
        self.0.write().insert(name.to_owned(), value);
    }
}

/// The pairs of a query.
pub type Query = [(String, String)];

type Page = Arc<dyn Fn(&Query) -> String + Send + Sync>;

/// Pages for debugging, by path below `/debug/controllers`; they may be added while the process is asked.
#[derive(Clone, Default)]
pub struct Debugging(Arc<RwLock<BTreeMap<&'static str, (&'static str, Page)>>>);

impl Debugging {
    /// Shows what `page` makes of a query, as `content_type`, under `path`.
    pub fn add(
        &self,
        path: &'static str,
        content_type: &'static str,
        page: impl Fn(&Query) -> String + Send + Sync + 'static,
    ) {
        self.0.write().insert(path, (content_type, Arc::new(page)));
    }

    async fn answer(self, request: HttpRequest) -> HttpResponse {
        let found = self.0.read().get(request.path()).cloned();
        let Some((content_type, page)) = found else { return not_found().await };
        HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, content_type))
            .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
            .body(page(&super::health::parameters(request.query_string())))
    }
}

#[derive(Clone, Default)]
pub(super) struct Pages {
    pub(super) health: Option<Health>,
    pub(super) metrics: bool,
    pub(super) configz: Option<Configz>,
    pub(super) flags: Option<FlagSet>,
    /// Whether flags may be changed: where `--profiling` is not turned off.
    pub(super) debug_flags: bool,
    pub(super) debugging: Option<Debugging>,
}

pub(super) async fn not_found() -> HttpResponse {
    plain(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

fn plain(code: StatusCode, body: String) -> HttpResponse {
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, PLAIN))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(body)
}

fn json(value: &Value) -> HttpResponse {
    HttpResponse::Ok().insert_header((header::CONTENT_TYPE, "application/json")).body(value.to_string())
}

impl Pages {
    pub(super) fn configure(&self, config: &mut ServiceConfig) {
        if let Some(health) = &self.health {
            for word in ["healthz", "livez", "readyz"] {
                for path in [format!("/{word}"), format!("/{word}/{{check:.*}}")] {
                    let health = health.clone();
                    config.route(&path, web::to(move |request: HttpRequest| answer(health.clone(), request)));
                }
            }
        }
        if self.metrics {
            let exposition = || async {
                HttpResponse::Ok().insert_header((header::CONTENT_TYPE, METRICS)).body(crate::metrics::gather())
            };
            config.service(web::resource("/metrics").wrap(Compress::default()).route(web::to(exposition)));
            if let Some(health) = self.health.clone() {
                let slis = move || {
                    let body = health.metrics();
                    async { HttpResponse::Ok().insert_header((header::CONTENT_TYPE, METRICS)).body(body) }
                };
                config.route("/metrics/slis", web::to(slis));
            }
        }
        if let Some(configz) = self.configz.clone() {
            let page = move || {
                let all = Value::Object(configz.0.read().clone().into_iter().collect());
                async move { json(&all) }
            };
            config.route("/configz", web::to(page));
        }
        if let Some(debugging) = self.debugging.clone() {
            let page = move |request: HttpRequest| debugging.clone().answer(request);
            config.route("/debug/controllers/{rest:.*}", web::get().to(page));
        }
        if let Some(flags) = &self.flags {
            flag_pages(config, flags, self);
        }
    }
}

async fn answer(health: Health, request: HttpRequest) -> HttpResponse {
    match health.answer(request.path(), request.query_string()) {
        None => not_found().await,
        Some(answer) => {
            let code = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            plain(code, answer.body)
        }
    }
}

fn flag_pages(config: &mut ServiceConfig, flags: &FlagSet, pages: &Pages) {
    config.route("/version", web::get().to(|| async { json(&crate::version::info()) }));
    if pages.debug_flags {
        config.route("/debug/flags/v", web::put().to(set_verbosity));
    }
    if flags.enabled("ComponentFlagz") {
        let flags = flags.clone();
        let page = move || {
            let body = flagz(&flags);
            async { plain(StatusCode::OK, body) }
        };
        config.route("/flagz", web::get().to(page));
    }
    if flags.enabled("ComponentStatusz") {
        let (component, paths) = (flags.component(), pages.paths());
        let page = move || {
            let body = statusz(component, &paths);
            async { plain(StatusCode::OK, body) }
        };
        config.route("/statusz", web::get().to(page));
    }
}

/// `PUT /debug/flags/v`: changes how much is logged.
pub async fn set_verbosity(body: String) -> HttpResponse {
    match body.trim().parse::<u32>() {
        Ok(v) => {
            crate::run::set_verbosity(v);
            plain(StatusCode::OK, format!("successfully set klog.logging.verbosity to {v}"))
        }
        Err(_) => {
            let why = format!("strconv.ParseInt: parsing {}: invalid syntax", go_quote(&body));
            let line = format!("failed to set klog.logging.verbosity {}: {why}\n", go_quote(&body));
            plain(StatusCode::BAD_REQUEST, line)
        }
    }
}

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";

/// The page of flags and their values.
pub fn flagz(flags: &FlagSet) -> String {
    let lines: Vec<String> = flags.all().into_iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    format!("\n{} flagz\n{WARNING}\n\n{}", flags.component(), lines.concat())
}

/// The page of what runs since when.
pub fn statusz(component: &str, paths: &str) -> String {
    let up = crate::metrics::uptime();
    let seconds = up.as_secs();
    let started = jiff::Timestamp::now().checked_sub(up).map(|t| t.strftime("%a %b %e %H:%M:%S UTC %Y").to_string());
    format!(
        "\n{component} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {}\n\
         Binary version: {}\nEmulation version: {}.{}\nPaths: {paths}\n",
        started.unwrap_or_default(),
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        crate::version::GO_VERSION,
        crate::version::GIT_VERSION.trim_start_matches('v'),
        crate::version::MAJOR,
        crate::version::MINOR,
    )
}

impl Pages {
    fn paths(&self) -> String {
        let mut paths = Vec::new();
        if self.configz.is_some() {
            paths.push("/configz");
        }
        if self.health.is_some() {
            paths.extend(["/healthz", "/livez", "/readyz"]);
        }
        if self.metrics {
            paths.push("/metrics");
        }
        paths.push("/version");
        paths.sort_unstable();
        paths.join(" ")
    }
}
