//! `/logs/`: the files below `/var/log`.
//! Answers for upstream's `ServeLogs`.

use http::StatusCode;
use shared::serve::Found;

use super::answer::{Answer, bytes, error, not_found};

/// A folder's list or a file's content.
pub(super) async fn serve(parts: &[&str], is_folder: bool) -> Answer {
    let mut below = String::new();
    for part in parts {
        let name = super::query::pairs(part).into_iter().next().map(|(name, _)| name).unwrap_or_default();
        if name.is_empty() || name == ".." || name == "." || name.contains('/') {
            return error(StatusCode::BAD_REQUEST, "invalid URL path");
        }
        below = format!("{below}/{name}");
    }
    if is_folder {
        below.push('/');
    }
    show(below).await
}

/// A folder's list or a file's content, by its decoded path below `/var/log`.
pub(super) async fn show(below: String) -> Answer {
    match tokio::task::spawn_blocking(move || shared::serve::logs(&below)).await {
        Ok(Found::Folder(page)) => bytes("text/html; charset=utf-8", page.into_bytes()),
        Ok(Found::File(content)) => bytes("text/plain; charset=utf-8", content),
        Ok(Found::Refused) => error(StatusCode::BAD_REQUEST, "invalid URL path"),
        Ok(Found::Nothing) => not_found(),
        Err(problem) => error(StatusCode::INTERNAL_SERVER_ERROR, &problem.to_string()),
    }
}
