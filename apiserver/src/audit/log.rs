//! The log back end: one line an event, in a file that is put aside when it is large. Answers for upstream's
//! `plugin/pkg/audit/log`.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;

use super::event::Event;

/// Options of the log back end.
#[derive(Debug, Clone)]
pub(super) struct Options {
    /// `--audit-log-path`; `-` is the standard output.
    pub path: String,
    /// `--audit-log-format` is `legacy`.
    pub legacy: bool,
    /// `--audit-log-maxsize` in megabytes; 0 is 100.
    pub max_size: u64,
    /// `--audit-log-maxbackup`; 0 keeps all.
    pub max_backups: usize,
    /// `--audit-log-maxage` in days; 0 is for ever.
    pub max_age: u64,
    /// `--audit-log-compress`
    pub compress: bool,
}

enum LogOutput {
    Standard,
    File { file: Option<File>, size: u64 },
}

/// Log back end with rotation.
pub(super) struct Log {
    options: Options,
    limit: u64,
    out: Mutex<LogOutput>,
    keeper: Option<LogRotator>,
}

/// The thread that packs and removes files put aside: requests do not wait for it.
struct LogRotator {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LogRotator {
    fn start(options: Options) -> std::io::Result<Self> {
        // One that is under way and one that waits: the next look sees whatever was put aside meanwhile.
        let (wake, woken) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || rotate_old_files(&options, &woken))?;
        Ok(Self { wake: Some(wake), thread: Some(thread) })
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake.try_send(()).ok();
        }
    }
}

impl Drop for LogRotator {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn rotate_old_files(options: &Options, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        let path = Path::new(&options.path);
        for old in superfluous(rotated_files(path), options.max_backups, options.max_age, SystemTime::now()) {
            if let Err(error) = std::fs::remove_file(&old) {
                tracing::warn!(%error, file = %old.display(), "Failed to remove an old audit log");
            }
        }
        if !options.compress {
            continue;
        }
        for (file, _) in
            rotated_files(path).into_iter().filter(|(file, _)| file.extension().is_none_or(|end| end != "gz"))
        {
            if let Err(error) = squeeze(&file) {
                tracing::warn!(%error, file = %file.display(), "Failed to compress an audit log");
            }
        }
    }
}

fn open(path: &Path) -> std::io::Result<(File, u64)> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

impl Log {
    /// Opens the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn new(options: Options) -> std::io::Result<Self> {
        let (out, keeper) = match options.path.as_str() {
            "-" => (LogOutput::Standard, None),
            path => {
                let (file, size) = open(Path::new(path))?;
                (LogOutput::File { file: Some(file), size }, Some(LogRotator::start(options.clone())?))
            }
        };
        let limit = if options.max_size == 0 { 100 } else { options.max_size } << 20;
        Ok(Self { options, limit, out: Mutex::new(out), keeper })
    }

    /// Writes lines, all or none of them as far as the file system goes.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn write(&self, events: &[Arc<Event>]) -> std::io::Result<()> {
        let mut text = String::new();
        for event in events {
            text.push_str(&if self.options.legacy { event.legacy() } else { event.json() });
            text.push('\n');
        }
        let mut out = self.out.lock();
        let LogOutput::File { file, size } = &mut *out else { return std::io::stdout().write_all(text.as_bytes()) };
        let length = text.len() as u64;
        if *size > 0 && *size + length > self.limit {
            // Closed first: a file that is put aside gets no more lines.
            *file = None;
            self.put_aside()?;
        }
        if file.is_none() {
            let (fresh, there) = open(Path::new(&self.options.path))?;
            (*file, *size) = (Some(fresh), there);
        }
        if let Some(file) = file {
            file.write_all(text.as_bytes())?;
            *size += length;
        }
        Ok(())
    }

    fn put_aside(&self) -> std::io::Result<()> {
        let path = Path::new(&self.options.path);
        std::fs::rename(path, aside(path, jiff::Timestamp::now()))?;
        if let Some(keeper) = &self.keeper {
            keeper.wake();
        }
        Ok(())
    }
}

/// `audit-2026-01-02T03-04-05.678.log` for `audit.log`.
fn aside(path: &Path, at: jiff::Timestamp) -> PathBuf {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let ending = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{}{ending}", at.strftime("%Y-%m-%dT%H-%M-%S%.3f")))
}

fn squeeze(path: &Path) -> std::io::Result<()> {
    let mut packed = path.as_os_str().to_owned();
    packed.push(".gz");
    let to = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&packed)?;
    let mut encoder = GzEncoder::new(to, Compression::default());
    std::io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?;
    std::fs::remove_file(path)
}

/// The files put aside, newest first.
fn rotated_files(path: &Path) -> Vec<(PathBuf, SystemTime)> {
    let prefix = path.file_stem().map(|s| format!("{}-", s.to_string_lossy())).unwrap_or_default();
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(PathBuf, SystemTime)> = entries
        .flatten()
        .filter(|e| {
            let name = e.file_name();
            let rest = name.to_string_lossy();
            // The time that follows tells ours from others.
            rest.strip_prefix(&prefix).is_some_and(|r| r.len() >= 23 && r.as_bytes()[10] == b'T')
        })
        .filter_map(|e| Some((e.path(), e.metadata().ok()?.modified().ok()?)))
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0));
    found
}

/// Selects the rotated files (newest first) that are too many or too old.
fn superfluous(files: Vec<(PathBuf, SystemTime)>, most: usize, days: u64, now: SystemTime) -> Vec<PathBuf> {
    let oldest = Duration::from_secs(days * 86_400);
    let too_many = |at: usize| most > 0 && at >= most;
    let too_old = |at: SystemTime| days > 0 && now.duration_since(at).is_ok_and(|age| age > oldest);
    files
        .into_iter()
        .enumerate()
        .filter(|(i, (_, at))| too_many(*i) || too_old(*at))
        .map(|(_, (path, _))| path)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_put_aside() {
        let at = "2026-01-02T03:04:05.678Z".parse().expect("a time");
        assert_eq!(aside(Path::new("/var/log/audit.log"), at), Path::new("/var/log/audit-2026-01-02T03-04-05.678.log"));
    }

    #[test]
    fn old_log_files_are_removed() {
        let now = SystemTime::now();
        let day = |n: u64| (PathBuf::from(format!("f{n}")), now - Duration::from_secs(n * 86_400));
        let all = || vec![day(0), day(1), day(2), day(5)];
        assert_eq!(superfluous(all(), 0, 0, now), Vec::<PathBuf>::new());
        assert_eq!(superfluous(all(), 3, 0, now), [PathBuf::from("f5")]);
        assert_eq!(superfluous(all(), 0, 1, now), [PathBuf::from("f2"), PathBuf::from("f5")]);
    }

    #[test]
    fn a_large_file_is_put_aside() {
        let folder = std::env::temp_dir().join(format!("audit-{}", uuid::Uuid::new_v4()));
        let path = folder.join("audit.log");
        let options = Options {
            path: path.display().to_string(),
            legacy: false,
            max_size: 1,
            max_backups: 1,
            max_age: 0,
            compress: true,
        };
        let log = Log::new(options).expect("opened");
        let event = Arc::new(Event { audit_id: "x".repeat(600 << 10), ..Event::default() });
        for _ in 0..4 {
            log.write(std::slice::from_ref(&event)).expect("written");
        }
        // The keeper ends what it has begun.
        drop(log);
        let aside = rotated_files(&path);
        assert_eq!(aside.len(), 1, "{aside:?}");
        assert!(aside[0].0.to_string_lossy().ends_with(".log.gz"));
        assert!(std::fs::metadata(&path).expect("there").len() < 1 << 20);
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
