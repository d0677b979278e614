//! Container logs on disk: rotation by size, removal, symlinks that lead nowhere.
//! Answers for upstream's `pkg/kubelet/logs/container_log_manager.go` (`rotateLog`).

use crate::cri::v1::ContainerState;
use crate::cri::{CriError, Runtime};
use crate::settings::Settings;
use futures::StreamExt as _;
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;

/// Names of a log's rotated files, oldest first: `0.log.20260102-150405` and the same with `.gz`.
fn rotated(log: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else { return Vec::new() };
    let prefix = format!("{name}.");
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&prefix) && !n.ends_with(".tmp"))
        })
        .collect();
    all.sort();
    all
}

/// Removes a log and its rotated files.
pub fn remove(log: &Path) {
    for path in rotated(log) {
        let _ = std::fs::remove_file(path);
    }
    let _ = std::fs::remove_file(log);
}

fn compress(path: &Path) -> std::io::Result<()> {
    let target = PathBuf::from(format!("{}.gz", path.display()));
    let temporary = PathBuf::from(format!("{}.tmp", path.display()));
    let mut input = std::fs::File::open(path)?;
    let mut output = flate2::write::GzEncoder::new(std::fs::File::create(&temporary)?, flate2::Compression::default());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = input.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        output.write_all(&buffer[..read])?;
    }
    output.finish()?;
    std::fs::rename(&temporary, &target)?;
    std::fs::remove_file(path)
}

/// Makes room: drops the oldest files, compresses those that no reader follows any more, renames the live one.
fn shift(log: &Path, max_files: usize, now: Timestamp) -> std::io::Result<()> {
    let mut old = rotated(log);
    // The live file and the one renamed below count, too.
    while old.len() + 2 > max_files.max(2) {
        std::fs::remove_file(old.remove(0))?;
    }
    for path in old.iter().filter(|p| p.extension().is_none_or(|e| e != "gz")) {
        compress(path)?;
    }
    let stamp = now.strftime("%Y%m%d-%H%M%S");
    std::fs::rename(log, format!("{}.{stamp}", log.display()))
}

/// Paths of the logs of running containers, by the containers' ids: a path stays as long as its container, so that the
/// runtime is asked for it once.
#[derive(Debug, Default)]
struct LogPaths(HashMap<String, PathBuf>);

impl LogPaths {
    /// Asks the runtime for the paths of those that are new, and forgets those that do not run any more.
    async fn update(&mut self, runtime: &dyn Runtime, workers: usize) -> Result<(), CriError> {
        let containers = runtime.list_containers(None).await?;
        let running = containers.into_iter().filter(|c| c.state() == ContainerState::ContainerRunning);
        let running: HashSet<String> = running.map(|container| container.id).collect();
        self.0.retain(|id, _| running.contains(id));
        let unknown = running.into_iter().filter(|id| !self.0.contains_key(id)).map(|id| async move {
            let status = runtime.container_status(&id).await.ok()?;
            Some((id, PathBuf::from(status.log_path)))
        });
        let unknown: Vec<_> = futures::stream::iter(unknown).buffer_unordered(workers.max(1)).collect().await;
        self.0.extend(unknown.into_iter().flatten());
        Ok(())
    }
}

/// Rotates the logs of running containers that grew too big.
async fn rotate(runtime: &dyn Runtime, settings: &Settings, paths: &mut LogPaths) {
    if paths.update(runtime, settings.log_workers).await.is_err() {
        return;
    }
    let rotations = paths.0.iter().map(|(id, log)| rotate_one(runtime, settings, id, log));
    futures::stream::iter(rotations).for_each_concurrent(settings.log_workers, |rotation| rotation).await;
}

async fn rotate_one(runtime: &dyn Runtime, settings: &Settings, id: &str, log: &Path) {
    let Ok(meta) = std::fs::metadata(log) else {
        // An earlier rotation was cut short between rename and reopen.
        if !log.as_os_str().is_empty() {
            let _ = runtime.reopen_log(id).await;
        }
        return;
    };
    if meta.len() < settings.log_max_size {
        return;
    }
    let (file, files) = (log.to_owned(), settings.log_max_files);
    let shifted = tokio::task::spawn_blocking(move || shift(&file, files, Timestamp::now())).await;
    match shifted {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(log = %log.display(), %error, "Could not rotate log");
            return;
        }
        Err(_) => return,
    }
    if let Err(error) = runtime.reopen_log(id).await {
        tracing::warn!(%id, %error, "Could not reopen log");
    }
}

/// Runs until shutdown.
pub async fn run(cx: std::sync::Arc<crate::workers::context::WorkerContext>, shutdown: CancellationToken) {
    let mut paths = LogPaths::default();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(cx.settings.log_monitor_interval) => {}
        }
        rotate(cx.runtime.as_ref(), &cx.settings, &mut paths).await;
    }
}
