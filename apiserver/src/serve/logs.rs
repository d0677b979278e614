//! `/logs/`, behind `--enable-logs-handler`.

use actix_web::HttpResponse;
use actix_web::http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use shared::serve::Found;

use super::answer::{self, Shape};
use crate::verbs::Reply;

/// The answer for a path that begins with `/logs`.
pub(super) async fn serve(path: &str, shape: &Shape) -> HttpResponse {
    let (below, folder) = (path.trim_start_matches("/logs").to_owned(), path.ends_with('/'));
    match actix_web::web::block(move || shared::serve::logs(&below)).await {
        // Links in the page of a folder are read from there.
        Ok(Found::Folder(_)) if !folder => {
            let mut response = answer::reply(Reply::new(301, "", Vec::new()), shape);
            let last = path.rsplit('/').next().unwrap_or_default();
            if let Ok(place) = HeaderValue::from_str(&format!("{last}/")) {
                response.headers_mut().remove(CONTENT_TYPE);
                response.headers_mut().insert(LOCATION, place);
            }
            response
        }
        Ok(Found::Folder(page)) => answer::reply(Reply::new(200, "text/html; charset=utf-8", page.into_bytes()), shape),
        Ok(Found::File(content)) => answer::reply(Reply::new(200, "text/plain; charset=utf-8", content), shape),
        Ok(Found::Refused) => answer::text(400, "invalid URL path\n", shape),
        Ok(Found::Nothing) => answer::not_found(shape),
        Err(error) => answer::text(500, format!("{error}\n"), shape),
    }
}
