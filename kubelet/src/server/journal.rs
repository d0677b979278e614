//! `/logs/?query=`: logs of the node's services out of the journal or of files below `/var/log`
//! (`enableSystemLogQuery`). Answers for upstream's `kubelet_server_journal.go`.
//!
//! [`LogQuery`] is pure; the driver runs `journalctl` with arguments that no shell sees, for half a minute at most, and
//! opens no file outside of its folder.

use super::answer::{Answer, error, stream};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use jiff::civil::DateTime;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde_json::json;
use shared::status::field::{Error, Path as Field, aggregate};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::sync::mpsc;

/// Longest time for an answer.
const DEADLINE: Duration = Duration::from_secs(30);
const MOST_LINES: i64 = 100_000;
const LONGEST_SERVICE: usize = 256;
const MOST_SERVICES: usize = 4;
/// Bytes read at once.
const BLOCK: usize = 32 << 10;
/// Most bytes of `journalctl`'s list of units.
const LARGEST_LIST: u64 = 4 << 20;

/// A time as it was asked for: as an instant, and as the clock of the zone it names shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AskedTime {
    at: Timestamp,
    clock: DateTime,
}

impl AskedTime {
    fn parse(text: &str) -> Option<Self> {
        let clock = text.get(..19)?.parse::<DateTime>().ok()?;
        Some(Self { at: text.parse().ok()?, clock })
    }

    /// The time in `journalctl`'s form; upstream's `dateLayout`.
    fn shown(self) -> String {
        let c = self.clock;
        format!("{}-{}-{} {:02}:{}:{}", c.year(), c.month(), c.day(), c.hour(), c.minute(), c.second())
    }
}

/// Options of a query, all about services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct QueryOptions {
    since: Option<AskedTime>,
    until: Option<AskedTime>,
    tail_lines: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

/// A query for logs (upstream's `nodeLogQuery`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogQuery {
    services: Vec<String>,
    files: Vec<String>,
    options: QueryOptions,
}

/// Parameters of a query that are refused; the text for the client.
#[derive(Debug, thiserror::Error)]
#[error("{}", aggregate(.0))]
pub(super) struct InvalidQuery(Vec<Error>);

impl LogQuery {
    /// Reads a request's parameters; none where none is of a query.
    ///
    /// # Errors
    /// A parameter has no such form.
    pub(super) fn parse(parameters: &[(String, String)]) -> Result<Option<Self>, InvalidQuery> {
        let all =
            |name: &'static str| parameters.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str());
        let first = |name: &'static str| all(name).next().filter(|value| !value.is_empty());
        let mut errors = Vec::new();
        let mut query = Self::default();
        let queries: Vec<&str> = all("query").collect();
        for text in &queries {
            // A slash hints at a file.
            if text.contains(['/', '\\']) {
                query.files.push((*text).to_owned());
            } else if !text.trim().is_empty() {
                query.services.push((*text).to_owned());
            }
        }
        if !queries.is_empty() && query.files.is_empty() && query.services.is_empty() {
            errors.push(Error::invalid(Field::new("query"), json!(queries), "query cannot be empty"));
        }
        let mut time = |name: &'static str| {
            let text = first(name)?;
            let parsed = AskedTime::parse(text);
            if parsed.is_none() {
                errors.push(Error::invalid(Field::new(name), text, "invalid time format"));
            }
            parsed
        };
        (query.options.since, query.options.until) = (time("sinceTime"), time("untilTime"));
        let mut number = |name: &'static str| {
            let text = first(name)?;
            let parsed = text.parse::<i64>().ok();
            if parsed.is_none() {
                let why = format!("strconv.Atoi: parsing {text:?}: invalid syntax");
                errors.push(Error::invalid(Field::new(name), text, &why));
            }
            parsed
        };
        (query.options.boot, query.options.tail_lines) = (number("boot"), number("tailLines"));
        query.options.pattern = first("pattern").unwrap_or_default().to_owned();
        if errors.is_empty() { Ok((query != Self::default()).then_some(query)) } else { Err(InvalidQuery(errors)) }
    }

    /// Checks a query against the bounds.
    ///
    /// # Errors
    /// The query is out of bounds.
    fn validate(&self, folder: &Path) -> Result<(), InvalidQuery> {
        let (at, files) = (Field::new("query"), json!(self.files));
        let mut errors: Vec<Error> = Vec::new();
        for service in &self.services {
            errors.extend(unsafe_service(service).map(|why| Error::invalid(at.clone(), service.clone(), why)));
        }
        if self.services.len() > MOST_SERVICES {
            errors.push(Error::too_many(at.clone(), self.services.len(), MOST_SERVICES));
        }
        match (self.files.as_slice(), self.services.as_slice()) {
            ([], []) => errors.push(Error::required(at, "cannot be empty with options")),
            ([_, ..], [_, ..]) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                errors.push(Error::invalid(at, both, "cannot specify a file and service"));
            }
            ([_, _, ..], []) => errors.push(Error::invalid(at, files, "cannot specify more than one file")),
            ([_], []) if self.options != QueryOptions::default() => {
                errors.push(Error::invalid(at, files, "cannot specify file with options"));
            }
            ([file], []) => {
                let opened = open(folder, &file.replace('\\', "/"));
                errors.extend(opened.err().map(|why| Error::invalid(at, files, &why.to_string())));
            }
            ([], [_, ..]) => {}
        }
        errors.extend(self.options.problems());
        if errors.is_empty() { Ok(()) } else { Err(InvalidQuery(errors)) }
    }

    /// Arguments of `journalctl`. Answers for `getLoggingCmd`.
    fn arguments(&self, services: &[&str]) -> Vec<String> {
        let options = &self.options;
        let mut all = ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
        all.extend(options.since.map(|time| format!("--since={}", time.shown())));
        all.extend(options.until.map(|time| format!("--until={}", time.shown())));
        if let Some(lines) = options.tail_lines {
            all.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        all.extend(services.iter().map(|service| format!("--unit={service}")));
        if !options.pattern.is_empty() {
            all.push(format!("--grep={}", options.pattern));
        }
        if let Some(boot) = options.boot {
            all.extend(["--boot".to_owned(), boot.to_string()]);
        }
        all
    }
}

impl QueryOptions {
    fn problems(&self) -> Vec<Error> {
        let mut all = Vec::new();
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since.at > until.at
        {
            let shown = until.clock.strftime("%Y-%m-%d %H:%M:%S").to_string();
            all.push(Error::invalid(Field::new("untilTime"), shown, "must be after `sinceTime`"));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            all.push(Error::invalid(Field::new("boot"), boot, "must be less than 1"));
        }
        if let Some(lines) = self.tail_lines.filter(|lines| !(0..=MOST_LINES).contains(lines)) {
            let why = format!("must be between 0 and {MOST_LINES}, inclusive");
            all.push(Error::invalid(Field::new("tailLines"), lines, &why));
        }
        if let Err(why) = shared::patterns::compile(&self.pattern) {
            all.push(Error::invalid(Field::new("pattern"), self.pattern.clone(), &why.to_string()));
        }
        all
    }
}

/// Returns what is wrong with a service's name, which becomes an argument.
fn unsafe_service(name: &str) -> Option<&'static str> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '@');
    match name {
        _ if name.len() > LONGEST_SERVICE => Some("length must be less than 100"),
        _ if !name.chars().all(is_safe) => Some("input contains unsupported characters"),
        _ => None,
    }
}

/// Opens a file below a folder, whatever links say.
fn open(folder: &Path, name: &str) -> io::Result<File> {
    let root = File::open(folder)?;
    // A pipe or a device must not hold up who asks.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let name = name.trim_start_matches('/');
    let file = File::from(rustix::fs::openat2(root, name, flags, Mode::empty(), ResolveFlags::IN_ROOT)?);
    if file.metadata()?.is_dir() { Err(io::ErrorKind::NotFound.into()) } else { Ok(file) }
}

/// Logs of the node.
#[derive(Clone, Debug)]
pub(super) struct NodeLogs {
    journalctl: PathBuf,
    folder: PathBuf,
}

impl Default for NodeLogs {
    fn default() -> Self {
        Self { journalctl: "journalctl".into(), folder: "/var/log".into() }
    }
}

/// Outcome of a request for logs.
pub(super) enum LogAnswer {
    /// The request is answered.
    Answer(Answer),
    /// The request is for this file.
    File(String),
}

impl NodeLogs {
    /// Answers a query that was asked at `below`, the rest of the path.
    pub(super) fn answer(&self, query: LogQuery, below: &str, headers: &HeaderMap) -> LogAnswer {
        if !matches!(below, "" | "/") {
            return LogAnswer::Answer(error(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode"));
        }
        if let Err(why) = query.validate(&self.folder) {
            return LogAnswer::Answer(error(StatusCode::NOT_ACCEPTABLE, &why.to_string()));
        }
        if let [file] = query.files.as_slice() {
            return LogAnswer::File(file.replace('\\', "/"));
        }
        let is_packed = headers.get("accept-encoding").is_some_and(|wanted| wanted == "gzip");
        let (sender, receiver) = mpsc::channel(4);
        let logs = self.clone();
        // It ends by its deadline, or with the client.
        tokio::spawn(async move {
            let mut out =
                LogWriter { sender, gzip: is_packed.then(|| GzEncoder::new(Vec::new(), Compression::fast())) };
            let _ = tokio::time::timeout(DEADLINE, logs.copy(&query, &mut out)).await;
            out.finish().await;
        });
        let mut answer = stream(receiver);
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain;charset=UTF-8"));
        if is_packed {
            answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        LogAnswer::Answer(answer)
    }

    /// Writes the logs of services: of those that the journal knows from there, of others from files. Answers for
    /// `copyForBoot`.
    async fn copy(&self, query: &LogQuery, out: &mut LogWriter) -> io::Result<()> {
        let units = self.units().await;
        let is_native = |service: &&str| units.contains(&format!("{service}.service"));
        let services = query.services.iter().map(String::as_str);
        let (native, files): (Vec<&str>, Vec<&str>) = services.partition(is_native);
        if !native.is_empty()
            && self.journal(&query.arguments(&native), out).await.is_err()
            && query.options.boot.is_none()
        {
            out.put(b"\nerror: journal output not available\n").await?;
        }
        if !files.is_empty() && query.options != QueryOptions::default() {
            let names = files.join(" ");
            let text = format!(
                "\noptions present and query resolved to log files for [{names}]\ntry without specifying options\n"
            );
            return out.put(text.as_bytes()).await;
        }
        for service in files {
            self.file(service, out).await?;
        }
        Ok(())
    }

    /// The units that the journal knows; nothing where there is no journal. Answers for `checkForNativeLogger`.
    async fn units(&self) -> String {
        let mut command = Command::new(&self.journalctl);
        command.args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
        let Ok(mut child) = command.kill_on_drop(true).spawn() else { return String::new() };
        let mut text = Vec::new();
        if let Some(output) = child.stdout.take() {
            let _ = output.take(LARGEST_LIST).read_to_end(&mut text).await;
        }
        match child.wait().await {
            Ok(status) if status.success() => String::from_utf8_lossy(&text).into_owned(),
            _ => String::new(),
        }
    }

    /// Runs `journalctl` and writes what it says on either channel. An error where it cannot be run.
    async fn journal(&self, arguments: &[String], out: &mut LogWriter) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new(&self.journalctl);
        command.args(arguments).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).kill_on_drop(true);
        let mut child = command.spawn()?;
        // Its ends of the pipe close with it.
        drop(command);
        let mut output = pipe::Receiver::from_owned_fd(reader.into())?;
        let mut block = vec![0; BLOCK];
        loop {
            match output.read(&mut block).await? {
                0 => break,
                read if out.put(&block[..read]).await.is_err() => return Ok(()),
                _ => {}
            }
        }
        child.wait().await.map(drop)
    }

    /// Writes a service's log file: `<service>`, `<service>.log` or `<service>/<service>.log`, the first that is there.
    /// Answers for `heuristicsCopyFileLogs`.
    async fn file(&self, service: &str, out: &mut LogWriter) -> io::Result<()> {
        let names = [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")];
        for name in names {
            let folder = self.folder.clone();
            let opened = tokio::task::spawn_blocking(move || open(&folder, &name)).await.map_err(io::Error::other)?;
            match opened {
                Ok(file) => {
                    let mut file = tokio::fs::File::from_std(file);
                    let mut block = vec![0; BLOCK];
                    loop {
                        match file.read(&mut block).await? {
                            0 => return Ok(()),
                            read => out.put(&block[..read]).await?,
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return out.put(format!("\nerror getting log for {service}: {error}\n").as_bytes()).await;
                }
            }
        }
        out.put(format!("\nlog not found for {service}\n").as_bytes()).await
    }
}

/// The client's end, compressed where it asked for that.
struct LogWriter {
    sender: mpsc::Sender<Bytes>,
    gzip: Option<GzEncoder<Vec<u8>>>,
}

impl LogWriter {
    async fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let chunk = match &mut self.gzip {
            None => bytes.to_vec(),
            Some(gzip) => {
                gzip.write_all(bytes)?;
                std::mem::take(gzip.get_mut())
            }
        };
        self.send(chunk).await
    }

    async fn send(&self, chunk: Vec<u8>) -> io::Result<()> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.sender.send(chunk.into()).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    async fn finish(mut self) {
        let rest = self.gzip.take().and_then(|gzip| gzip.finish().ok()).unwrap_or_default();
        let _ = tokio::time::timeout(DEADLINE, self.send(rest)).await;
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
