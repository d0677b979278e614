//! Lifetime of an issuer's documents, from their cache headers. Only these delay a fetch: an issuer without them is
//! asked again whenever a token names an unknown key.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CACHE_CONTROL, DATE, EXPIRES, LAST_MODIFIED};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

/// The longest time that can be said.
const LONGEST: u64 = i32::MAX as u64;
/// The longest time that is guessed from how old a document is.
const LONGEST_GUESS: Duration = Duration::from_secs(24 * 60 * 60);

/// Of an answer that came at a time; zero where nothing is said, and where it cannot be understood.
pub(super) fn lifetime(headers: &HeaderMap, now: Timestamp) -> Duration {
    said(headers, now).unwrap_or_default()
}

fn said(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name| headers.get(name).map_or(Some(""), |value| value.to_str().ok());
    let time = |name| text(name).filter(|t| !t.is_empty()).map(|t| DateTimeParser::new().parse_timestamp(t));
    let [shared, own] = ["s-maxage", "max-age"].map(|name| seconds(text(CACHE_CONTROL)?, name));
    let (shared, own) = (shared?, own?);
    let (date, modified) = (time(DATE).transpose().ok()?, time(LAST_MODIFIED).transpose().ok()?);
    if let Some(seconds) = shared.or(own) {
        return Some(Duration::from_secs(seconds));
    }
    // A time that is none says that it is over.
    if let Some(Ok(expires)) = time(EXPIRES) {
        return Duration::try_from(expires.duration_since(date.unwrap_or(now))).ok();
    }
    let age = Duration::try_from(now.duration_since(modified?)).ok()?;
    Some((age / 10).min(LONGEST_GUESS))
}

/// The seconds that a directive names, when it is there; `None` where it is and names none.
fn seconds(directives: &str, name: &str) -> Option<Option<u64>> {
    let named = |directive: &str| {
        let (found, value) = directive.split_once('=').unwrap_or((directive, ""));
        found.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"').to_owned())
    };
    let Some(value) = directives.split(',').find_map(named) else { return Some(None) };
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    // More than a number holds is as long as can be.
    digits.then(|| Some(value.parse().unwrap_or(LONGEST).min(LONGEST)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;

    #[test]
    fn lifetime_follows_cache_headers() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
        for (said, want) in [
            ("", 0),
            ("cache-control: no-store", 0),
            ("cache-control: public, max-age=3600, must-revalidate", 3600),
            ("cache-control: MAX-AGE=\"60\",private", 60),
            ("cache-control: max-age=60, s-maxage=7", 7),
            ("cache-control: max-age=99999999999999999999", LONGEST),
            ("cache-control: max-age", 0),
            ("cache-control: max-age=-1\nexpires: Thu, 01 Jan 2026 13:00:00 GMT", 0),
            ("expires: Thu, 01 Jan 2026 13:00:00 GMT", 3600),
            ("date: Thu, 01 Jan 2026 12:30:00 GMT\nexpires: Thu, 01 Jan 2026 13:00:00 GMT", 1800),
            ("expires: Thu, 01 Jan 2026 11:00:00 GMT", 0),
            ("expires: 0", 0),
            ("date: yesterday\ncache-control: max-age=60", 0),
            ("last-modified: Thu, 01 Jan 2026 02:00:00 GMT", 3600),
            ("last-modified: Tue, 01 Jan 2019 02:00:00 GMT", 86_400),
        ] {
            let pairs = said.lines().filter_map(|line| line.split_once(": "));
            let headers = pairs
                .map(|(name, value)| (name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value")));
            assert_eq!(lifetime(&headers.collect(), now).as_secs(), want, "{said}");
        }
    }
}
