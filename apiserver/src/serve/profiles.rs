//! `/debug/pprof/`: where profilers look. Served when `--profiling` is given; then as far as there is something to show:
//! the page that lists what there is, and the command line. Profiles of a Go runtime there are none.

use actix_web::HttpResponse;

use super::answer::{self, Shape};
use crate::verbs::Reply;

const INDEX: &str = "<html>\n<head><title>/debug/pprof/</title></head>\n<body>\n/debug/pprof/<br><br>\n\
    <a href='cmdline'>cmdline</a>\n</body>\n</html>\n";

/// The answer for what follows `/debug/pprof`; `slash` when the path ends with one.
pub(super) fn serve(rest: &[&str], slash: bool, shape: &Shape) -> HttpResponse {
    match rest {
        [] if !slash => HttpResponse::Found().insert_header(("Location", "/debug/pprof/")).finish(),
        [] => answer::reply(Reply::new(200, "text/html; charset=utf-8", INDEX.as_bytes().to_vec()), shape),
        ["cmdline"] => answer::text(200, std::env::args().collect::<Vec<_>>().join("\0"), shape),
        // No addresses of this program can be named.
        ["symbol"] => answer::text(200, "num_symbols: 0\n", shape),
        _ => answer::text(404, "Unknown profile\n", shape),
    }
}
