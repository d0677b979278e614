//! `--debug-socket-path`: a socket in the file system with the pages for profilers, and the verbosity of the log. Whoever
//! may open the file may ask; nobody is authenticated.

use std::path::Path;

use actix_web::dev::Server;
use actix_web::{App, HttpRequest, HttpServer, web};

use super::answer::Shape;
use super::profiles;

const PROFILES: &str = "/debug/pprof";

/// Serves on the socket, in place of what was there. Ends when it is dropped.
///
/// # Errors
/// The socket cannot be made.
pub fn serve(path: &Path) -> std::io::Result<Server> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let app = || {
        App::new()
            .configure(shared::serve::verbosity_pages)
            .route(PROFILES, web::to(page))
            .route("/debug/pprof/{rest:.*}", web::to(page))
    };
    Ok(HttpServer::new(app).workers(1).disable_signals().bind_uds(path)?.run())
}

async fn page(request: HttpRequest) -> actix_web::HttpResponse {
    let rest = request.path().trim_start_matches(PROFILES);
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    profiles::serve(&parts, rest.ends_with('/'), &Shape::default())
}
