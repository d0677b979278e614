//! `/containerLogs`: a container's log as the runtime writes it, from the tail, from a time, and on as it grows.
//! Answers for upstream's `GetKubeletContainerLogs`, `validateContainerLogStatus` and `ReadLogs`.

use super::Server;
use super::answer::{Answer, error, stream};
use super::query;
use crate::cri::{Runtime, v1};
use bytes::Bytes;
use http::{Request, StatusCode};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

/// Read at once.
const BLOCK: usize = 32 << 10;
/// Interval at which a log that is followed is looked at.
const POLL: Duration = Duration::from_millis(100);
/// Interval at which the container of a log that is followed is looked at.
const ALIVE_PERIOD: Duration = Duration::from_millis(500);
/// A line that is longer is given out in pieces.
const MAX_LINE: usize = 1 << 20;

/// Parameters of a request for a log that are refused, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// A number is none, or too small.
    #[error("{name}: Invalid value: {text:?}: must be greater than or equal to {least}")]
    Number {
        /// The parameter.
        name: &'static str,
        /// Value of it.
        text: String,
        /// The least number.
        least: i64,
    },
    /// A time is none.
    #[error("sinceTime: Invalid value: {0:?}")]
    Time(String),
    /// A time and an age are given.
    #[error("at most one of `sinceTime` or `sinceSeconds` may be specified")]
    Both,
    /// No such stream.
    #[error("stream: Unsupported value: {0:?}: supported values: \"All\", \"Stderr\", \"Stdout\"")]
    Stream(String),
}

/// Containers that have no log, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLog {
    /// The pod's status does not name the container.
    #[error("container {container:?} in pod {pod:?} is not available")]
    NotAvailable {
        /// The container's name.
        container: String,
        /// The pod's name.
        pod: String,
    },
    /// No attempt before this one.
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious {
        /// The container's name.
        container: String,
        /// The pod's name.
        pod: String,
    },
    /// The container has ended, and the runtime does not know it any more.
    #[error("container {container:?} in pod {pod:?} is terminated")]
    Terminated {
        /// The container's name.
        container: String,
        /// The pod's name.
        pod: String,
    },
    /// The container has not begun.
    #[error("container {container:?} in pod {pod:?} is waiting to start{}", waiting(.reason.as_deref()))]
    Waiting {
        /// The container's name.
        container: String,
        /// The pod's name.
        pod: String,
        /// Reason of its status.
        reason: Option<String>,
    },
}

fn waiting(reason: Option<&str>) -> String {
    match reason {
        Some("ErrImagePull") => ": image can't be pulled".to_owned(),
        Some("ImagePullBackOff") => ": trying and failing to pull image".to_owned(),
        Some(reason) => format!(": {reason}"),
        None => " - no logs yet".to_owned(),
    }
}

/// Failures of reading a log.
#[derive(Debug, thiserror::Error)]
enum LogError {
    /// The file cannot be opened; upstream's text.
    #[error("failed to try resolving symlinks in path {:?}: {cause}", .path.display().to_string())]
    Open {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// An object, or a file, that cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Part of a log that is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Stay and send what comes.
    pub follow: bool,
    /// Of the attempt before.
    pub previous: bool,
    /// Put the time before each line.
    pub timestamps: bool,
    /// Only so many lines from the end.
    pub tail: Option<u64>,
    /// Only what is not older.
    pub since: Option<Timestamp>,
    /// Only so many bytes.
    pub limit: Option<u64>,
    /// Only `Stdout` or `Stderr`.
    pub stream: Option<&'static str>,
}

impl Options {
    /// From a request.
    ///
    /// # Errors
    /// A parameter is not usable.
    pub fn of<B>(request: &Request<B>, now: Timestamp) -> Result<Self, OptionError> {
        let number = |name: &'static str, least: i64| match query::first(request, name).filter(|text| !text.is_empty())
        {
            None => Ok(None),
            Some(text) => match text.parse::<i64>() {
                Ok(number) if number >= least => Ok(Some(number)),
                _ => Err(OptionError::Number { name, text, least }),
            },
        };
        let seconds = number("sinceSeconds", 1)?;
        let time = query::first(request, "sinceTime").filter(|text| !text.is_empty());
        let time = time.map(|text| text.parse::<Timestamp>().map_err(|_| OptionError::Time(text)));
        if seconds.is_some() && time.is_some() {
            return Err(OptionError::Both);
        }
        let since = match (seconds, time.transpose()?) {
            (Some(seconds), _) => {
                Some(now.saturating_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN))
            }
            (None, time) => time,
        };
        let stream = match query::first(request, "stream").as_deref() {
            None | Some("" | "All") => None,
            Some("Stdout") => Some("stdout"),
            Some("Stderr") => Some("stderr"),
            Some(other) => return Err(OptionError::Stream(other.to_owned())),
        };
        let size = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
        Ok(Self {
            follow: query::flag(request, "follow"),
            previous: query::flag(request, "previous"),
            timestamps: query::flag(request, "timestamps"),
            tail: size(number("tailLines", 0)?),
            since,
            limit: size(number("limitBytes", 1)?),
            stream,
        })
    }
}

/// The id of the container whose log is meant.
pub fn container_id(pod: &str, status: &PodStatus, name: &str, previous: bool) -> Result<String, NoLog> {
    let (container, in_pod) = (|| name.to_owned(), || pod.to_owned());
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().flatten().flatten().find(|status| status.name == name);
    let Some(found) = found else { return Err(NoLog::NotAvailable { container: container(), pod: in_pod() }) };
    let id = |text: Option<&String>| {
        text.map(|id| id.rsplit("//").next().unwrap_or(id).to_owned()).filter(|id| !id.is_empty())
    };
    let state = found.state.clone().unwrap_or_default();
    let last = found.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let last_id = last.and_then(|last| id(last.container_id.as_ref()));
    if previous {
        return last_id.ok_or_else(|| NoLog::NoPrevious { container: container(), pod: in_pod() });
    }
    let ended = || NoLog::Terminated { container: container(), pod: in_pod() };
    if state.running.is_some() {
        return id(found.container_id.as_ref()).ok_or_else(ended);
    }
    if let Some(terminated) = &state.terminated {
        return id(terminated.container_id.as_ref()).or(last_id).ok_or_else(ended);
    }
    if last.is_some() {
        return last_id.ok_or_else(ended);
    }
    let reason = state.waiting.and_then(|waiting| waiting.reason);
    Err(NoLog::Waiting { container: container(), pod: in_pod(), reason })
}

fn has_container(pod: &Pod, name: &str) -> bool {
    !crate::events::field_path(pod, name).is_empty()
}

impl Server {
    pub(super) async fn container_logs<B>(
        &self,
        request: &Request<B>,
        namespace: &str,
        name: &str,
        container: &str,
    ) -> Answer {
        let options = match Options::of(request, Timestamp::now()) {
            Ok(options) => options,
            Err(problem) => return error(StatusCode::UNPROCESSABLE_ENTITY, &problem.to_string()),
        };
        let Some(pod) = self.manager.find(namespace, name, None) else {
            return error(StatusCode::NOT_FOUND, &format!("pod {name:?} does not exist"));
        };
        if !has_container(&pod, container) {
            return error(StatusCode::NOT_FOUND, &format!("container {container:?} not found in pod {name:?}"));
        }
        let status = pod.status.clone().unwrap_or_default();
        let id = match container_id(name, &status, container, options.previous) {
            Ok(id) => id,
            Err(problem) => return error(StatusCode::BAD_REQUEST, &problem.to_string()),
        };
        let runtime = Arc::clone(&self.manager.context().runtime);
        let path = match runtime.container_status(&id).await {
            Ok(status) => PathBuf::from(status.log_path),
            Err(problem) => {
                let node = self.manager.context().node.load();
                let text = format!("unable to retrieve container logs for {}://{id}", node.runtime_name);
                tracing::warn!(error = %problem, text);
                return error(StatusCode::BAD_REQUEST, &text);
            }
        };
        let (sender, receiver) = mpsc::channel(16);
        self.streams.spawn(async move {
            let reader = LogReader { path, id, runtime, options };
            if let Err(problem) = reader.run(&sender).await {
                let _ = sender.send(Bytes::from(format!("{problem}\n"))).await;
            }
        });
        stream(receiver)
    }
}

/// Turns the runtime's lines into what the client wants. Pure.
#[derive(Debug)]
pub struct Lines {
    options: Options,
    /// A line that is not complete yet.
    rest: Vec<u8>,
    /// The line so far was only a part of what the container wrote.
    within: bool,
    left: Option<u64>,
}

impl Lines {
    /// For the given options.
    pub fn new(options: &Options) -> Self {
        Self { options: options.clone(), rest: Vec::new(), within: false, left: options.limit }
    }

    /// Takes bytes of the log; appends what is to be sent. False once the limit is reached.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, after) = bytes.split_at(end + 1);
            bytes = after;
            let done = if self.rest.is_empty() {
                self.line(line, out)
            } else {
                self.rest.extend_from_slice(line);
                let line = std::mem::take(&mut self.rest);
                self.line(&line, out)
            };
            if !done {
                return false;
            }
        }
        if self.rest.len() + bytes.len() > MAX_LINE {
            self.rest.clear();
        } else {
            self.rest.extend_from_slice(bytes);
        }
        true
    }

    /// `2026-01-02T15:04:05.000000000Z stdout F text`, line end included.
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) -> bool {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let (Some(time), Some(stream), Some(tag), Some(text)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return true;
        };
        let Some(stamp) = std::str::from_utf8(time).ok().and_then(|text| text.parse::<Timestamp>().ok()) else {
            return true;
        };
        let old = self.options.since.is_some_and(|since| stamp < since);
        let other = self.options.stream.is_some_and(|wanted| wanted.as_bytes() != stream);
        if old || other {
            return true;
        }
        let partial = tag.split(|byte| *byte == b':').any(|tag| tag == b"P");
        let mut piece = Vec::with_capacity(line.len());
        if self.options.timestamps && !self.within {
            piece.extend_from_slice(time);
            piece.push(b' ');
        }
        piece.extend_from_slice(if partial { text.strip_suffix(b"\n").unwrap_or(text) } else { text });
        self.within = partial;
        if let Some(left) = &mut self.left {
            let room = usize::try_from(*left).unwrap_or(usize::MAX);
            piece.truncate(room);
            *left -= piece.len() as u64;
        }
        out.extend_from_slice(&piece);
        self.left != Some(0)
    }
}

struct LogReader {
    path: PathBuf,
    id: String,
    runtime: Arc<dyn Runtime>,
    options: Options,
}

impl LogReader {
    async fn run(&self, out: &mpsc::Sender<Bytes>) -> Result<(), LogError> {
        let failed = |cause| LogError::Open { path: self.path.clone(), cause };
        let mut file = File::open(&self.path).await.map_err(failed)?;
        let start = match self.options.tail {
            Some(lines) => tail_start(&mut file, lines).await?,
            None => 0,
        };
        file.seek(SeekFrom::Start(start)).await?;
        let mut lines = Lines::new(&self.options);
        let mut block = vec![0; BLOCK];
        let mut ended = false;
        let mut asked = Instant::now();
        loop {
            let read = file.read(&mut block).await?;
            if read > 0 {
                let mut piece = Vec::with_capacity(read);
                let more = lines.take(&block[..read], &mut piece);
                if !piece.is_empty() && out.send(piece.into()).await.is_err() || !more {
                    return Ok(());
                }
                continue;
            }
            if let Some(next) = self.rotated(&file).await {
                file = next;
                continue;
            }
            if !self.options.follow || ended {
                return Ok(());
            }
            if asked.elapsed() >= ALIVE_PERIOD {
                // What was written before the end is still read once more.
                ended = !self.is_alive().await;
                asked = Instant::now();
                continue;
            }
            tokio::select! {
                () = out.closed() => return Ok(()),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    /// The new file, if the log was rotated away under the reader.
    async fn rotated(&self, file: &File) -> Option<File> {
        if !self.options.follow {
            return None;
        }
        let (open, named) = (file.metadata().await.ok()?, tokio::fs::metadata(&self.path).await.ok()?);
        if (open.dev(), open.ino()) == (named.dev(), named.ino()) {
            return None;
        }
        File::open(&self.path).await.ok()
    }

    async fn is_alive(&self) -> bool {
        match self.runtime.container_status(&self.id).await {
            Ok(status) => status.state() == v1::ContainerState::ContainerRunning,
            Err(problem) => !problem.is_not_found(),
        }
    }
}

/// Returns the offset at which the last `lines` lines begin.
async fn tail_start(file: &mut File, lines: u64) -> std::io::Result<u64> {
    let length = file.metadata().await?.len();
    if lines == 0 {
        return Ok(length);
    }
    let mut block = vec![0; BLOCK];
    let mut end = length;
    let mut seen = 0;
    while end > 0 {
        let start = end.saturating_sub(BLOCK as u64);
        file.seek(SeekFrom::Start(start)).await?;
        let part = usize::try_from(end - start).unwrap_or(BLOCK);
        file.read_exact(&mut block[..part]).await?;
        for (offset, byte) in block[..part].iter().enumerate().rev() {
            let position = start + offset as u64;
            // The line end that closes the file ends its last line, it does not begin another.
            if *byte == b'\n' && position + 1 < length {
                seen += 1;
                if seen == lines {
                    return Ok(position + 1);
                }
            }
        }
        end = start;
    }
    Ok(0)
}

/// The last lines of a log file, for those that need no stream.
pub async fn tail(path: &Path, lines: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path).await?;
    let start = tail_start(&mut file, lines).await?;
    file.seek(SeekFrom::Start(start)).await?;
    let mut content = Vec::new();
    file.take(MAX_LINE as u64).read_to_end(&mut content).await?;
    let mut out = Vec::new();
    Lines::new(&Options::default()).take(&content, &mut out);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LOG: &str = "2026-01-02T00:00:01.000000000Z stdout F one\n2026-01-02T00:00:02.000000000Z stderr F two\n\
                       2026-01-02T00:00:03.000000000Z stdout P thr\n2026-01-02T00:00:03.100000000Z stdout F ee\n";

    fn read(options: Options) -> String {
        let mut lines = Lines::new(&options);
        let mut out = Vec::new();
        for chunk in LOG.as_bytes().chunks(7) {
            if !lines.take(chunk, &mut out) {
                break;
            }
        }
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn lines_are_what_the_container_wrote() {
        assert_eq!(read(Options::default()), "one\ntwo\nthree\n");
        assert_eq!(read(Options { stream: Some("stderr"), ..Options::default() }), "two\n");
        assert_eq!(read(Options { limit: Some(5), ..Options::default() }), "one\nt");
        assert_eq!(read(Options { since: "2026-01-02T00:00:02Z".parse().ok(), ..Options::default() }), "two\nthree\n");
        assert_eq!(
            read(Options { timestamps: true, since: "2026-01-02T00:00:03Z".parse().ok(), ..Options::default() }),
            "2026-01-02T00:00:03.000000000Z three\n"
        );
    }

    #[tokio::test]
    async fn the_tail_begins_at_a_line() {
        let path = std::env::temp_dir().join(format!("ironclad-tail-{}", std::process::id()));
        std::fs::write(&path, LOG).expect("written");
        for (lines, expected) in [(0, ""), (1, "ee\n"), (2, "three\n"), (3, "two\nthree\n"), (9, "one\ntwo\nthree\n")] {
            assert_eq!(String::from_utf8(tail(&path, lines).await.expect("read")).expect("text"), expected, "{lines}");
        }
        std::fs::remove_file(&path).expect("clean");
    }

    #[test]
    fn containers_without_a_log_say_why() {
        let status = |status: serde_json::Value| -> PodStatus {
            serde_json::from_value(json!({"containerStatuses": [status]})).expect("status")
        };
        let base = json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0});
        let with = |state: serde_json::Value, last: serde_json::Value| {
            let mut all = base.clone();
            all["state"] = state;
            all["lastState"] = last;
            all["containerID"] = json!("containerd://now");
            status(all)
        };
        let waiting = |reason: &str| with(json!({"waiting": {"reason": reason}}), json!({}));
        let ended = json!({"terminated": {"exitCode": 1, "containerID": "containerd://before"}});
        for (status, previous, expected) in [
            (with(json!({"running": {}}), json!({})), false, Ok("now")),
            (with(json!({"running": {}}), ended.clone()), true, Ok("before")),
            (with(ended.clone(), json!({})), false, Ok("before")),
            (with(json!({"waiting": {"reason": "CrashLoopBackOff"}}), ended), false, Ok("before")),
            (
                with(json!({"running": {}}), json!({})),
                true,
                Err("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (
                waiting("ContainerCreating"),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
            ),
            (
                waiting("ImagePullBackOff"),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"),
            ),
            (PodStatus::default(), false, Err("container \"c\" in pod \"p\" is not available")),
        ] {
            let found = container_id("p", &status, "c", previous).map_err(|error| error.to_string());
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned));
        }
    }
}
