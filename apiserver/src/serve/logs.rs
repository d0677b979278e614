//! `/logs/`, behind `--enable-logs-handler`.

use actix_web::HttpResponse;
use shared::serve::Found;

use super::answer::{self, Shape};
use crate::verbs::Reply;

/// The answer for what follows `/logs/`.
pub(super) async fn serve(below: String, shape: &Shape) -> HttpResponse {
    match actix_web::web::block(move || shared::serve::logs(&below)).await {
        Ok(Found::Folder(page)) => answer::reply(Reply::new(200, "text/html; charset=utf-8", page.into_bytes()), shape),
        Ok(Found::File(content)) => answer::reply(Reply::new(200, "text/plain; charset=utf-8", content), shape),
        Ok(Found::Refused) => answer::text(400, "invalid URL path\n", shape),
        Ok(Found::Nothing) => answer::not_found(shape),
        Err(error) => answer::text(500, format!("{error}\n"), shape),
    }
}
