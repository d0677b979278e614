//! HTTP client for issuers: direct or through an egress proxy, with the configured authority, following redirects like
//! Go's client.

use std::time::Duration;

use http::Uri;
use http::header::LOCATION;
use shared::client::{Dialer, Remote, Reply};
use tokio::time::Instant;

use super::error::IssuerError;

/// For one document, wherever it is.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// Most redirects before a document.
pub(super) const REDIRECTS: usize = 10;

/// HTTP client for issuers.
#[derive(Clone, Default)]
pub(super) struct IssuerClient {
    /// Certificate authority (PEM); the system's when absent.
    pub(super) ca: Option<String>,
    /// Opens the connections, where they do not go straight.
    pub(super) dialer: Option<Dialer>,
}

impl IssuerClient {
    pub(super) fn remote(&self, url: &str) -> Result<Remote, IssuerError> {
        let trust = self.ca.as_deref().map(str::as_bytes);
        Ok(Remote::to(url, trust, self.dialer.clone())?)
    }

    /// Fetches a document, as who has a token where there is one. Other hosts are not shown the token.
    pub(super) async fn get(&self, first: &Remote, token: Option<&str>) -> Result<Reply, IssuerError> {
        let until = Instant::now() + DEADLINE;
        let mut remote = first.clone();
        for _ in 0..=REDIRECTS {
            let token = token.filter(|_| host(remote.url()) == host(first.url()));
            let left = until.saturating_duration_since(Instant::now());
            let reply = remote.fetch(token, left).await?;
            match next(remote.url(), &reply) {
                None => return Ok(reply),
                Some(next) => remote = self.remote(&next)?,
            }
        }
        Err(IssuerError::Redirects(remote.url().to_owned()))
    }
}

fn host(url: &str) -> Option<String> {
    Some(url.parse::<Uri>().ok()?.authority()?.to_string())
}

/// Target of a redirect; `None` when the response is none.
fn next(url: &str, reply: &Reply) -> Option<String> {
    if !matches!(reply.code, 301..=303 | 307 | 308) {
        return None;
    }
    let location = reply.headers.get(LOCATION)?.to_str().ok().filter(|location| !location.is_empty())?;
    resolved(&url.parse().ok()?, location.split('#').next().unwrap_or_default())
}

/// A location as seen from a URL.
fn resolved(from: &Uri, location: &str) -> Option<String> {
    let (scheme, host) = (from.scheme_str()?, from.authority()?);
    if location.split(['/', '?']).next().is_some_and(|begin| begin.ends_with(':')) {
        return Some(location.to_owned());
    }
    Some(match location.as_bytes() {
        [b'/', b'/', ..] => format!("{scheme}:{location}"),
        [b'/', ..] => format!("{scheme}://{host}{location}"),
        [b'?', ..] => format!("{scheme}://{host}{}{location}", from.path()),
        _ => {
            let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{host}{folder}/{location}")
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use shared::client::BoxStream;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The first host leads to itself, then to another one, whose answers go round in a circle.
    #[tokio::test]
    async fn other_hosts_are_not_shown_a_token() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = heard.clone();
        let dialer = Dialer::new(move |_| {
            let (near, mut far) = tokio::io::duplex(1 << 12);
            let heard = heard.clone();
            Box::pin(async move {
                tokio::spawn(async move {
                    let mut asked = vec![0; 1 << 12];
                    let some = far.read(&mut asked).await.unwrap_or_default();
                    let asked = String::from_utf8_lossy(&asked[..some]).to_lowercase();
                    let line = asked.lines().next().unwrap_or_default().to_owned();
                    let leads = if line.contains("/first") { "second" } else { "http://b/third" };
                    heard.lock().push((line, asked.contains("\r\nauthorization: bearer t\r\n")));
                    let answer = format!("HTTP/1.1 302 Found\r\nLocation: {leads}\r\nContent-Length: 0\r\n\r\n");
                    // Nobody may be there any more.
                    far.write_all(answer.as_bytes()).await.ok();
                });
                let near: BoxStream = Box::pin(near);
                Ok(near)
            })
        });
        let source = IssuerClient { ca: None, dialer: Some(dialer) };
        let first = source.remote("http://a/first").expect("a remote");
        let why = source.get(&first, Some("t")).await.map(|reply| reply.code).map_err(|e| e.to_string());
        assert_eq!(why, Err("Get \"http://b/third\": stopped after 10 redirects".to_owned()));
        let heard = told.lock();
        let line = |path: &str| format!("get {path} http/1.1");
        assert_eq!(heard[..3], [(line("/first"), true), (line("/second"), true), (line("/third"), false)]);
        assert_eq!(heard.len(), 11);
    }

    #[test]
    fn redirect_targets() {
        for (code, location, want) in [
            (200, "/z", None),
            (304, "/z", None),
            (302, "", None),
            (301, "/z", Some("https://a:9/z")),
            (302, "z?q=1", Some("https://a:9/x/z?q=1")),
            (303, "?q=1", Some("https://a:9/x/y?q=1")),
            (307, "//b/z#there", Some("https://b/z")),
            (308, "http://b/z?u=http://c", Some("http://b/z?u=http://c")),
            (308, "z?u=http://c", Some("https://a:9/x/z?u=http://c")),
        ] {
            let headers = [(LOCATION, location.parse().expect("a value"))].into_iter().collect();
            let reply = Reply { code, headers, body: bytes::Bytes::new() };
            assert_eq!(next("https://a:9/x/y?p", &reply).as_deref(), want, "{code} {location}");
        }
    }
}
