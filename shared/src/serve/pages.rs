//! The pages all components share.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::http::{Method, StatusCode, header};
use actix_web::middleware::Compress;
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use parking_lot::RwLock;
use serde_json::Value;

use super::Health;
use super::profiles::profiler_pages;
use super::zpages::{self, PageForm, ZPage};
use crate::flags::{FlagSet, NumberError, NumberProblem};
use crate::status::Status;

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
    /// Profiling is enabled (`--profiling`): profiles and `/debug/flags` are served.
    pub(super) profiling: bool,
    /// `/flagz` is served (ComponentFlagz).
    pub(super) flagz: bool,
    /// `/statusz` is served (ComponentStatusz).
    pub(super) statusz: bool,
    pub(super) debugging: Option<Debugging>,
}

pub(super) async fn not_found() -> HttpResponse {
    plain(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

pub(super) fn plain(code: StatusCode, body: String) -> HttpResponse {
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, PLAIN))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(body)
}

fn json(value: &Value) -> HttpResponse {
    HttpResponse::Ok().insert_header((header::CONTENT_TYPE, "application/json")).body(value.to_string())
}

/// A page of metrics, and how to begin them anew.
fn exposition(method: &Method, reset: impl FnOnce(), text: impl FnOnce() -> String) -> HttpResponse {
    let (kind, body) = if *method == Method::DELETE {
        reset();
        (PLAIN, crate::metrics::WAS_RESET.to_owned())
    } else {
        (METRICS, text())
    };
    HttpResponse::Ok().insert_header((header::CONTENT_TYPE, kind)).body(body)
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
            let page =
                |method: Method| async move { exposition(&method, crate::metrics::reset, crate::metrics::gather) };
            config.service(web::resource("/metrics").wrap(Compress::default()).route(web::to(page)));
            if let Some(health) = self.health.clone() {
                let slis = move |method: Method| {
                    let health = health.clone();
                    async move { exposition(&method, || health.reset(), || health.metrics()) }
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
    let emulation = flags.emulation();
    config.route("/version", web::get().to(move || async move { json(&crate::version::info_of(emulation)) }));
    if pages.profiling {
        verbosity_pages(config);
        profiler_pages(config);
    }
    if pages.flagz {
        let flags = flags.clone();
        let page = move |request: HttpRequest| {
            let page = z_page(zpages::flagz(&flags, wanted(&request)));
            async { page }
        };
        config.route("/flagz", web::to(page));
    }
    if pages.statusz {
        let (component, paths) = (flags.component(), pages.paths());
        let page = move |request: HttpRequest| {
            let page = z_page(zpages::statusz((component, emulation), &paths, wanted(&request)));
            async { page }
        };
        config.route("/statusz", web::to(page));
    }
}

fn wanted(request: &HttpRequest) -> PageForm<'_> {
    let accept = request.headers().get(header::ACCEPT).and_then(|v| v.to_str().ok());
    PageForm { accept, pretty: request.query_string().split('&').any(|p| matches!(p, "pretty=true" | "pretty=1")) }
}

fn z_page(page: Result<ZPage, Box<Status>>) -> HttpResponse {
    match page {
        Ok(page) => HttpResponse::Ok().insert_header((header::CONTENT_TYPE, page.content_type)).body(page.body),
        Err(status) => {
            let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let kind = (header::CONTENT_TYPE, "application/json");
            HttpResponse::build(code).insert_header(kind).body(status.to_json())
        }
    }
}

/// `/debug/flags` and what is below: how much is logged can be changed.
pub fn verbosity_pages(config: &mut ServiceConfig) {
    config.route("/debug/flags", web::to(|| async { verbosity_index() }));
    config.route("/debug/flags/v", web::to(|method: Method, level: String| async move { verbosity(&method, &level) }));
    config.route("/debug/flags/{other:.*}", web::to(|| async { verbosity_index() }));
}

/// The page of what can be changed.
#[must_use]
pub fn verbosity_index() -> HttpResponse {
    const PAGE: &str = "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\n\
                        flags:<br>\n<table>\n<tr>v<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n";
    HttpResponse::Ok().insert_header((header::CONTENT_TYPE, "text/html; charset=utf-8")).body(PAGE)
}

/// `PUT /debug/flags/v`: changes how much is logged.
#[must_use]
pub fn verbosity(method: &Method, level: &str) -> HttpResponse {
    let (code, line) = match (method, read_level(level)) {
        (&Method::PUT, Ok(read)) => {
            crate::run::set_verbosity(read);
            (StatusCode::OK, format!("successfully set klog.logging.verbosity to {level}\n"))
        }
        (&Method::PUT, Err(why)) => (StatusCode::BAD_REQUEST, format!("{why}\n")),
        _ => (StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".to_owned()),
    };
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, "text/plain"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(line)
}

/// Errors of reading a level, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum LevelError {
    /// No number without a sign.
    #[error(transparent)]
    Number(#[from] NumberError),
    /// klog, whose levels have a sign, refuses it.
    #[error("failed set klog.logging.verbosity {text}: {source}")]
    Klog { text: String, source: NumberError },
}

/// A level, as Go reads it first without a sign and then with one.
fn read_level(text: &str) -> Result<u32, LevelError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = |function, problem| NumberError::new(function, text, problem);
    match text.parse::<u32>() {
        _ if !digits => Err(number("ParseUint", NumberProblem::Syntax).into()),
        Err(_) => Err(number("ParseUint", NumberProblem::Range).into()),
        Ok(level) if i32::try_from(level).is_err() => {
            Err(LevelError::Klog { text: text.to_owned(), source: number("ParseInt", NumberProblem::Range) })
        }
        Ok(level) => Ok(level),
    }
}

impl Pages {
    fn paths(&self) -> Vec<String> {
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
        paths.into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_begin_anew_for_who_deletes_them() {
        let health = Health::with_ping();
        health.answer("/healthz", "").expect("an answer");
        let body = |method: Method| {
            let answer = exposition(&method, || health.reset(), || health.metrics());
            let kind = answer.headers().get(header::CONTENT_TYPE).expect("a type").to_str().expect("text").to_owned();
            let body = actix_web::body::MessageBody::try_into_bytes(answer.into_body()).expect("all of it");
            (kind, String::from_utf8_lossy(&body).into_owned())
        };
        let passed = "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1\n";
        assert!(body(Method::GET).1.contains(passed));
        assert_eq!(body(Method::DELETE), (PLAIN.to_owned(), "metrics reset\n".to_owned()));
        assert!(!body(Method::GET).1.contains("ping"));
    }

    #[test]
    fn levels() {
        for (text, want) in [
            ("4", Ok(4)),
            ("010", Ok(10)),
            ("x", Err(r#"strconv.ParseUint: parsing "x": invalid syntax"#)),
            ("", Err(r#"strconv.ParseUint: parsing "": invalid syntax"#)),
            ("+4", Err(r#"strconv.ParseUint: parsing "+4": invalid syntax"#)),
            ("4\n", Err(r#"strconv.ParseUint: parsing "4\n": invalid syntax"#)),
            ("4294967296", Err(r#"strconv.ParseUint: parsing "4294967296": value out of range"#)),
            (
                "2147483648",
                Err(
                    r#"failed set klog.logging.verbosity 2147483648: strconv.ParseInt: parsing "2147483648": value out of range"#,
                ),
            ),
        ] {
            assert_eq!(read_level(text).map_err(|e| e.to_string()), want.map_err(str::to_owned), "{text}");
        }
        assert_eq!(verbosity(&Method::GET, "4").status(), StatusCode::NOT_ACCEPTABLE);
    }
}
