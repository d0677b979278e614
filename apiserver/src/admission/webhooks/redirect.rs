//! Redirects of webhook responses, followed as Go's HTTP client does.

use super::target::WebhookAddress;

/// Most redirects of one call.
const MOST: usize = 10;

/// An answer that leads nowhere, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RedirectError {
    /// There were too many before it.
    #[error("stopped after {MOST} redirects")]
    TooMany,
    /// The location is not to be asked over HTTPS.
    #[error("unsupported protocol scheme {0:?}")]
    Scheme(String),
    /// The location is no URL.
    #[error("failed to parse Location header {0:?}")]
    Location(String),
}

/// One request of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallStep {
    /// Asks for something and brings nothing: what becomes of a POST that is sent elsewhere for its answer.
    pub(super) get: bool,
    pub(super) target: WebhookAddress,
    /// With its query.
    pub(super) path: String,
    /// Redirects before it.
    followed: usize,
}

impl CallStep {
    /// The first request of a call.
    pub(super) fn first(target: &WebhookAddress, path: &str) -> Self {
        Self { get: false, target: target.clone(), path: path.to_owned(), followed: 0 }
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}{}", self.target.host, self.path)
    }

    /// The request that follows an answer, if one does.
    ///
    /// # Errors
    /// [`RedirectError`].
    pub(super) fn next(&self, code: u16, location: Option<&str>) -> Result<Option<Self>, RedirectError> {
        let get = match code {
            301..=303 => true,
            307 | 308 => self.get,
            _ => return Ok(None),
        };
        let Some(location) = location.filter(|l| !l.is_empty()) else { return Ok(None) };
        if self.followed >= MOST {
            return Err(RedirectError::TooMany);
        }
        let (target, path) = self.resolve(location)?;
        Ok(Some(Self { get, target, path, followed: self.followed + 1 }))
    }

    /// A location as seen from here.
    fn resolve(&self, location: &str) -> Result<(WebhookAddress, String), RedirectError> {
        let location = location.split('#').next().unwrap_or_default();
        let here = |path: String| Ok((self.target.clone(), path));
        let own = self.path.split('?').next().unwrap_or_default();
        let url = match location.split_once("://") {
            Some(("https", _)) => location.to_owned(),
            Some((scheme, _)) if !scheme.contains(['/', '?']) => {
                return Err(RedirectError::Scheme(scheme.to_owned()));
            }
            _ if location.starts_with("//") => format!("https:{location}"),
            _ if location.starts_with('/') => return here(location.to_owned()),
            _ if location.starts_with('?') => return here(format!("{own}{location}")),
            _ => {
                let folder = own.rsplit_once('/').map_or("", |(folder, _)| folder);
                return here(format!("{folder}/{location}"));
            }
        };
        let target = WebhookAddress::at(&url).map_err(|_| RedirectError::Location(location.to_owned()))?;
        let path = target.path.clone();
        if target.host == self.target.host {
            return here(path);
        }
        Ok((self.target.elsewhere(target), path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_targets() {
        let first = CallStep::first(&WebhookAddress::at("https://a:9443/x/y").expect("a target"), "/x/y?timeout=5s");
        for (code, location, want) in [
            (200, "/z", None),
            (304, "/z", None),
            (302, "", None),
            (301, "/z", Some((true, "https://a:9443/z"))),
            (302, "z?q=1", Some((true, "https://a:9443/x/z?q=1"))),
            (303, "?q=1", Some((true, "https://a:9443/x/y?q=1"))),
            (307, "/z?timeout=5s#there", Some((false, "https://a:9443/z?timeout=5s"))),
            (308, "https://b/z?u=http://c", Some((false, "https://b/z?u=http://c"))),
            (307, "//b:1/z", Some((false, "https://b:1/z"))),
        ] {
            let next = first.next(code, Some(location)).expect("well formed");
            let next = next.map(|step| (step.get, step.url()));
            assert_eq!(next, want.map(|(get, url)| (get, url.to_owned())), "{code} {location}");
        }
        assert_eq!(first.next(307, None), Ok(None));
        let refused = first.next(307, Some("http://a/z"));
        assert_eq!(refused, Err(RedirectError::Scheme("http".to_owned())));
    }

    #[test]
    fn redirect_loops_end() {
        let mut step = CallStep::first(&WebhookAddress::at("https://a/x").expect("a target"), "/x");
        step = step.next(303, Some("/y")).expect("well formed").expect("a step");
        for _ in 1..10 {
            step = step.next(307, Some("/y")).expect("well formed").expect("a step");
            assert!(step.get, "what became a GET stays one");
        }
        assert_eq!(step.next(307, Some("/y")), Err(RedirectError::TooMany));
        assert_eq!(RedirectError::TooMany.to_string(), "stopped after 10 redirects");
    }
}
