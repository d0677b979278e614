//! `/debug/pprof/`: where profilers look, unless `--profiling` is turned off; as far as there is something to show: the
//! page that lists what there is, and the command line. Profiles of a Go runtime there are none.

use actix_web::http::{StatusCode, header};
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};

use super::pages::plain;

const ROOT: &str = "/debug/pprof/";
const INDEX: &str = "<html>\n<head><title>/debug/pprof/</title></head>\n<body>\n/debug/pprof/<br><br>\n\
    <a href='cmdline'>cmdline</a>\n</body>\n</html>\n";

/// The pages, at their paths.
pub fn profiler_pages(config: &mut ServiceConfig) {
    for path in ["/debug/pprof", "/debug/pprof/{profile:.*}"] {
        config.route(path, web::to(|request: HttpRequest| async move { profile(request.path()) }));
    }
}

/// The page at a path.
#[must_use]
pub fn profile(path: &str) -> HttpResponse {
    let Some(name) = path.strip_prefix(ROOT) else {
        return HttpResponse::Found().insert_header((header::LOCATION, ROOT)).finish();
    };
    match name {
        "" => HttpResponse::Ok().insert_header((header::CONTENT_TYPE, "text/html; charset=utf-8")).body(INDEX),
        "cmdline" => plain(StatusCode::OK, std::env::args().collect::<Vec<_>>().join("\0")),
        // No addresses of this program can be named.
        "symbol" => plain(StatusCode::OK, "num_symbols: 0\n".to_owned()),
        _ => plain(StatusCode::NOT_FOUND, "Unknown profile\n".to_owned()),
    }
}
