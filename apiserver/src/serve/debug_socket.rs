//! `--debug-socket-path`: a socket in the file system with the pages for profilers, and the verbosity of the log.
//! Whoever may open the file may ask; nobody is authenticated.

use std::path::Path;

use actix_web::dev::Server;
use actix_web::{App, HttpServer};

/// Serves on the socket, in place of what was there. Ends when it is dropped.
///
/// # Errors
/// The socket cannot be made.
pub fn serve(path: &Path) -> std::io::Result<Server> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let app = || App::new().configure(shared::serve::verbosity_pages).configure(shared::serve::profiler_pages);
    Ok(HttpServer::new(app).workers(1).disable_signals().bind_uds(path)?.run())
}
