//! Times of the last graceful shutdown of the node, kept over it for the metrics of the next kubelet. Answers for
//! upstream's `pkg/kubelet/nodeshutdown/storage.go`.

use crate::files;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Name of the file, in the kubelet's folder.
const FILE: &str = "graceful_node_shutdown_state";
/// Go's zero time, for what has not been yet.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Content of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShutdownState {
    start_time: String,
    end_time: String,
}

/// The file with the times.
pub struct ShutdownTimes(PathBuf);

impl ShutdownTimes {
    /// In the kubelet's folder.
    pub fn new(folder: &Path) -> Self {
        Self(folder.join(FILE))
    }

    /// Notes that a shutdown began.
    pub fn began(&self, at: Timestamp) {
        self.keep(at, None);
        set("start", seconds(at));
        set("end", 0.0);
    }

    /// Notes that its pods have ended.
    pub fn ended(&self, began: Timestamp, at: Timestamp) {
        self.keep(began, Some(at));
        set("end", seconds(at));
    }

    /// Shows the times of the last shutdown as metrics.
    pub fn show(&self) {
        let (began, ended) = self.read().unwrap_or_else(|error| {
            tracing::error!(%error, "Failed to load graceful shutdown state");
            (None, None)
        });
        set("start", began.map_or(0.0, seconds));
        set("end", ended.map_or(0.0, seconds));
    }

    /// The times that are kept: of the beginning, and of the end.
    pub(super) fn read(&self) -> io::Result<(Option<Timestamp>, Option<Timestamp>)> {
        let Some(kept) = files::read_json::<ShutdownState>(&self.0)? else { return Ok((None, None)) };
        let time = |text: &str| match text {
            NEVER => Ok(None),
            text => text.parse().map(Some).map_err(|error: jiff::Error| io::Error::other(error)),
        };
        Ok((time(&kept.start_time)?, time(&kept.end_time)?))
    }

    fn keep(&self, began: Timestamp, ended: Option<Timestamp>) {
        let end_time = ended.map_or_else(|| NEVER.to_owned(), |at| at.to_string());
        if let Err(error) = files::write_json(&self.0, &ShutdownState { start_time: began.to_string(), end_time }) {
            tracing::error!(%error, "Failed to store graceful shutdown state");
        }
    }
}

fn seconds(at: Timestamp) -> f64 {
    std::time::SystemTime::from(at)
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64().trunc())
}

fn set(end: &str, seconds: f64) {
    let name = format!("kubelet_graceful_shutdown_{end}_time_seconds");
    let help = format!("[ALPHA] Last graceful shutdown {end} time since unix epoch in seconds");
    crate::metrics::set(&name, &help, &[], seconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_as_upstream_has_it() {
        let folder = tempfile::tempdir().expect("folder");
        let times = ShutdownTimes::new(folder.path());
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        assert_eq!(times.read().expect("nothing"), (None, None));
        times.began(at(1_700_000_000));
        let path = folder.path().join("graceful_node_shutdown_state");
        let text = || std::fs::read_to_string(&path).expect("file");
        assert_eq!(text(), r#"{"startTime":"2023-11-14T22:13:20Z","endTime":"0001-01-01T00:00:00Z"}"#);
        assert_eq!(times.read().expect("read"), (Some(at(1_700_000_000)), None));
        times.ended(at(1_700_000_000), at(1_700_000_012));
        assert_eq!(times.read().expect("read"), (Some(at(1_700_000_000)), Some(at(1_700_000_012))));
        // Go's local times with fractions.
        let upstream = r#"{"startTime":"2026-11-28T11:00:00.123456789+01:00","endTime":"2026-11-28T11:00:09+01:00"}"#;
        std::fs::write(&path, upstream).expect("written");
        let (began, ended) = times.read().expect("read");
        let whole = |time: Option<Timestamp>| time.map(Timestamp::as_second);
        assert_eq!((whole(began), whole(ended)), (Some(1_795_860_000), Some(1_795_860_009)));
        std::fs::write(&path, "{").expect("written");
        assert!(times.read().is_err(), "damaged");
    }
}
