//! `/debug/pprof/`: the pages of [`shared::serve::profile`] on this server.

use super::answer::{Answer, error};
use super::query;
use actix_web::body::to_bytes;
use http::status::InvalidStatusCode;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::runtime::Handle;
use tokio::task::JoinError;

/// Pages that cannot be had.
#[derive(Debug, thiserror::Error)]
enum ProfileError {
    /// The profiler panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
    /// The page broke off; its message, as the error itself is of one thread.
    #[error("{0}")]
    Body(String),
    /// The page has a status that there is not.
    #[error(transparent)]
    Status(#[from] InvalidStatusCode),
}

/// Answers from the profiler, which keeps to one thread.
pub(super) async fn serve<B>(request: &Request<B>) -> Answer {
    let (path, seconds) = (request.uri().path().to_owned(), query::first(request, "seconds"));
    let handle = Handle::current();
    let page = move || handle.block_on(page(&path, seconds.as_deref()));
    let answer = tokio::task::spawn_blocking(page).await.map_err(ProfileError::from).flatten();
    answer.unwrap_or_else(|problem| error(StatusCode::INTERNAL_SERVER_ERROR, &problem.to_string()))
}

async fn page(path: &str, seconds: Option<&str>) -> Result<Answer, ProfileError> {
    let (head, body) = shared::serve::profile(path, seconds).await.into_parts();
    let body = to_bytes(body).await.map_err(|problem| ProfileError::Body(problem.to_string()))?;
    let mut answer = Response::new(Full::new(body).boxed());
    *answer.status_mut() = StatusCode::from_u16(head.status().as_u16())?;
    for (name, value) in head.headers() {
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            answer.headers_mut().append(name, value);
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_of_the_profiler_are_served() {
        let ask = async |path: &str| {
            let request = Request::builder().uri(path).body(()).expect("a request");
            let answer = serve(&request).await;
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            (status, headers, answer.into_body().collect().await.expect("a body").to_bytes())
        };
        let (status, _, body) = ask("/debug/pprof/").await;
        assert_eq!(status, 200);
        assert!(body.starts_with(b"<html>"), "{body:?}");
        let (status, headers, _) = ask("/debug/pprof").await;
        assert_eq!((status, headers["location"].as_bytes()), (302, &b"/debug/pprof/"[..]));
        let (status, _, body) = ask("/debug/pprof/profile?seconds=1").await;
        assert_eq!((status, &body[..2]), (200, &[0x1f, 0x8b][..]), "a packed profile");
        assert_eq!(ask("/debug/pprof/heap").await.0, 404);
    }
}
