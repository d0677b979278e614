//! `/logs/`: the files below `/var/log`.

use super::answer::{Answer, bytes, error, not_found, text};
use http::StatusCode;
use std::path::{Path, PathBuf};

const ROOT: &str = "/var/log";
/// The end of a file is what is of interest; more than this is not sent.
const MAX_FILE: u64 = 32 << 20;

/// A folder's list or a file's content.
pub(super) async fn serve(parts: &[&str], is_folder: bool) -> Answer {
    let mut path = PathBuf::from(ROOT);
    for part in parts {
        let name = super::query::pairs(part).into_iter().next().map(|(name, _)| name).unwrap_or_default();
        if name.is_empty() || name == ".." || name == "." || name.contains('/') {
            return error(StatusCode::BAD_REQUEST, "invalid URL path");
        }
        path.push(name);
    }
    let done = tokio::task::spawn_blocking(move || look(&path, is_folder)).await;
    done.unwrap_or_else(|problem| error(StatusCode::INTERNAL_SERVER_ERROR, &problem.to_string()))
}

fn look(path: &Path, is_folder: bool) -> Answer {
    // Links may not lead out of the folder.
    let (Ok(real), Ok(root)) = (path.canonicalize(), Path::new(ROOT).canonicalize()) else { return not_found() };
    if !real.starts_with(&root) {
        return not_found();
    }
    let Ok(metadata) = real.metadata() else { return not_found() };
    if metadata.is_dir() {
        return list(&real);
    }
    if is_folder || !metadata.is_file() {
        return not_found();
    }
    match read_end(&real, metadata.len()) {
        Ok(content) => bytes("text/plain; charset=utf-8", content),
        Err(problem) => error(StatusCode::INTERNAL_SERVER_ERROR, &problem.to_string()),
    }
}

fn read_end(path: &Path, length: u64) -> std::io::Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_FILE)))?;
    let mut content = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut content)?;
    Ok(content)
}

fn list(folder: &Path) -> Answer {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let slash = if entry.path().is_dir() { "/" } else { "" };
            entry.file_name().into_string().ok().map(|name| format!("{name}{slash}"))
        })
        .collect();
    names.sort();
    let escape = |name: &str| name.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&#34;");
    let rows: String = names.iter().map(|name| format!("<a href=\"{0}\">{0}</a>\n", escape(name))).collect();
    let mut answer = text(
        StatusCode::OK,
        &format!("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{rows}</pre>\n"),
    );
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}
