//! Waiting before each request as long as the server says that it is overloaded, longer each time. Off unless the
//! environment asks for it. Answers for client-go's `rest.URLBackoff`.

use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The first wait and the longest one, in seconds.
const VARIABLES: [&str; 2] = ["KUBE_CLIENT_BACKOFF_BASE", "KUBE_CLIENT_BACKOFF_DURATION"];

/// Back-off towards one overloaded server.
pub(super) struct Overload {
    base: Duration,
    longest: Duration,
    /// Current delay, and the time it was set.
    wait: Mutex<Option<(Duration, Instant)>>,
}

impl Overload {
    /// Reads the settings from the environment.
    pub(super) fn from_env() -> Option<Self> {
        let [base, longest] = VARIABLES.map(|name| std::env::var(name).ok());
        Self::of(base.as_deref(), longest.as_deref())
    }

    fn of(base: Option<&str>, longest: Option<&str>) -> Option<Self> {
        let seconds = |text: Option<&str>| Some(Duration::from_secs(text?.parse().ok()?));
        Some(Self { base: seconds(base)?, longest: seconds(longest)?, wait: Mutex::default() })
    }

    /// Delay before the next request.
    pub(super) fn wait(&self) -> Duration {
        self.wait.lock().map_or(Duration::ZERO, |(wait, _)| wait)
    }

    /// A request was answered, or failed without an answer.
    pub(super) fn answered(&self, status: Option<StatusCode>, now: Instant) {
        let busy = |code: StatusCode| code == StatusCode::TOO_MANY_REQUESTS || code.is_server_error();
        let mut wait = self.wait.lock();
        *wait = status.filter(|code| busy(*code)).map(|_| {
            let recent = wait.filter(|(_, at)| now.duration_since(*at) <= self.longest * 2);
            (recent.map_or(self.base, |(wait, _)| (wait * 2).min(self.longest)), now)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_asks() {
        for (base, longest, asked) in [
            (None, None, false),
            (Some("1"), None, false),
            (Some("1"), Some("2s"), false),
            (Some("-1"), Some("2"), false),
            (Some("1"), Some("2"), true),
        ] {
            assert_eq!(Overload::of(base, longest).is_some(), asked, "{base:?} {longest:?}");
        }
    }

    #[test]
    fn waits_grow_until_the_server_takes_a_request() {
        let overload = Overload::of(Some("1"), Some("5")).expect("asked for");
        let mut now = Instant::now();
        for (after, code, wait) in [
            (0, 200, 0),
            (1, 429, 1),
            (1, 503, 2),
            (1, 500, 4),
            (10, 504, 5),
            (11, 429, 1),
            (1, 429, 2),
            (1, 404, 0),
            (1, 429, 1),
            (1, 0, 0),
        ] {
            now += Duration::from_secs(after);
            overload.answered(StatusCode::from_u16(code).ok(), now);
            assert_eq!(overload.wait().as_secs(), wait, "{code} after {after}");
        }
    }
}
