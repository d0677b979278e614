//! `/debug/pprof/` and `/debug/flags/v` on the metrics port (`enableProfiling`), in the form in which the other components serve
//! them.

use actix_web::HttpResponse;
use actix_web::http::Method;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use shared::serve::{profile, verbosity, verbosity_index};

use crate::http::ProxyResponse;

/// Longest level that is read.
const LEVEL: usize = 64;

/// True for a path below which these pages are.
pub(crate) fn has(path: &str) -> bool {
    path == "/debug/pprof"
        || path == "/debug/flags"
        || path.starts_with("/debug/pprof/")
        || path.starts_with("/debug/flags/")
}

/// Answers a request for one of them.
pub(crate) async fn page(request: Request<Incoming>) -> ProxyResponse {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if !path.starts_with("/debug/flags") {
        let seconds =
            parts.uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("seconds=")));
        let seconds = seconds.map(str::to_owned);
        return converted(async move || profile(&path, seconds.as_deref()).await).await;
    }
    let level = match Limited::new(body, LEVEL).collect().await {
        Ok(level) => String::from_utf8_lossy(&level.to_bytes()).into_owned(),
        Err(_) => {
            return ProxyResponse { status: StatusCode::BAD_REQUEST, ..ProxyResponse::text("cannot read the level\n") };
        }
    };
    let method = Method::from_bytes(parts.method.as_str().as_bytes()).unwrap_or(Method::GET);
    let is_level = path == "/debug/flags/v";
    converted(async move || if is_level { verbosity(&method, &level) } else { verbosity_index() }).await
}

/// Runs what answers in the other components' form, which stays on its thread.
async fn converted(answer: impl AsyncFnOnce() -> HttpResponse + Send + 'static) -> ProxyResponse {
    let runtime = tokio::runtime::Handle::current();
    let answered = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            let (head, body) = answer().await.into_parts();
            let text = |name: &str| head.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let kept = ["location", "content-disposition", "x-go-pprof"];
            let headers = kept.into_iter().filter_map(|name| Some((name, text(name)?))).collect();
            let content_type = text("content-type").unwrap_or_default();
            let body = actix_web::body::to_bytes(body).await.unwrap_or_default();
            let status = StatusCode::from_u16(head.status().as_u16()).unwrap_or_default();
            ProxyResponse { status, content_type: content_type.into(), headers, body }
        })
    });
    let failed =
        |_| ProxyResponse { status: StatusCode::INTERNAL_SERVER_ERROR, ..ProxyResponse::text("the page panicked\n") };
    answered.await.unwrap_or_else(failed)
}
