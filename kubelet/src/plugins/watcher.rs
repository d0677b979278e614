//! Sockets in the registry folder: each is one task, which registers its plugin, and forgets it when the socket goes.
//! Answers for upstream's `pkg/kubelet/pluginmanager/pluginwatcher` and its reconciler.

use super::handler::Handlers;
use super::metrics::{self, SocketState};
use super::registration::register;
use shared::folder_watch::FolderWatch;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// First and longest wait after a failed registration, upstream's.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));
/// Longest time until a change is seen that the kernel did not tell of.
const PERIOD: Duration = Duration::from_secs(10);
/// Folders below the registry that are looked into.
const DEPTH: usize = 4;

/// Tells a socket from another of the same path: device, inode, time of its creation.
type Identity = (u64, u64, i64, i64);

/// Sockets below a folder, and the folders themselves. Names that begin with a dot are left out.
fn scan(folder: &Path, depth: usize, sockets: &mut BTreeMap<PathBuf, Identity>, folders: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    folders.insert(folder.to_path_buf());
    for entry in entries.flatten() {
        let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if metadata.is_dir() && depth > 0 {
            scan(&path, depth - 1, sockets, folders);
        } else if metadata.file_type().is_socket() {
            let identity = (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
            sockets.insert(path, identity);
        }
    }
}

/// A socket that is looked after.
struct Task {
    identity: Identity,
    gone: CancellationToken,
    handle: JoinHandle<()>,
}

/// Registers the plugins whose sockets are below `folder`, until shutdown. Sockets that are there at the start are new.
pub async fn run(folder: PathBuf, handlers: Handlers, shutdown: CancellationToken) {
    let handlers = Arc::new(handlers);
    let mut watch = FolderWatch::default();
    let mut watched = BTreeSet::new();
    let mut tasks: BTreeMap<PathBuf, Task> = BTreeMap::new();
    loop {
        let (mut sockets, mut folders) = (BTreeMap::new(), BTreeSet::new());
        scan(&folder, DEPTH, &mut sockets, &mut folders);
        let mut is_new = false;
        for folder in folders.difference(&watched) {
            is_new = true;
            if let Err(error) = watch.watch(folder) {
                tracing::warn!(folder = %folder.display(), %error, "Could not watch a folder of plugins");
            }
        }
        watched = folders;
        if is_new {
            // Its content may have changed before it was watched.
            continue;
        }
        tasks.iter().filter(|(path, task)| sockets.get(*path) != Some(&task.identity)).for_each(|(path, task)| {
            metrics::socket(path, SocketState::Desired, false);
            task.gone.cancel();
        });
        for (path, identity) in sockets {
            metrics::socket(&path, SocketState::Desired, true);
            let before = tasks.remove(&path);
            let task = match before {
                Some(task) if task.identity == identity && !task.gone.is_cancelled() => task,
                before => follow(path.clone(), identity, before.map(|task| task.handle), &handlers, &shutdown),
            };
            tasks.insert(path, task);
        }
        // One that has yet to forget its plugin is waited for by the next socket of its path.
        tasks.retain(|_, task| !task.gone.is_cancelled() || !task.handle.is_finished());
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = watch.changed() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Starts the task of a socket, which waits for that of the socket that had the path before.
fn follow(
    path: PathBuf,
    identity: Identity,
    before: Option<JoinHandle<()>>,
    handlers: &Arc<Handlers>,
    shutdown: &CancellationToken,
) -> Task {
    let (gone, handlers, shutdown) = (CancellationToken::new(), Arc::clone(handlers), shutdown.clone());
    let token = gone.clone();
    let handle = tokio::spawn(async move {
        if let Some(before) = before {
            before.await.ok();
        }
        let live = live(&path, &handlers, &token);
        tokio::select! {
            // The plugin stays as it is: the next kubelet registers it anew.
            () = shutdown.cancelled() => {}
            () = live => {}
        }
    });
    Task { identity, gone, handle }
}

async fn live(path: &Path, handlers: &Handlers, gone: &CancellationToken) {
    let mut pause = RETRY.0;
    let registered = loop {
        if gone.is_cancelled() {
            return;
        }
        // A registration that has begun is brought to its end: what it did is known then.
        match register(path, handlers).await {
            Ok(registered) => break registered,
            Err(error) => tracing::error!(%error, "RegisterPlugin failed"),
        }
        tokio::select! {
            () = gone.cancelled() => return,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
        }
    };
    let plugin = &registered.plugin;
    tracing::info!(kind = registered.kind, name = plugin.name, endpoint = %plugin.endpoint.display(), "Registered plugin");
    metrics::socket(path, SocketState::Actual, true);
    gone.cancelled().await;
    metrics::socket(path, SocketState::Actual, false);
    tracing::info!(kind = registered.kind, name = plugin.name, "Deregistering plugin, its socket is gone");
    let mut pause = RETRY.0;
    while let Err(error) = handlers[registered.kind].deregister(plugin).await {
        tracing::error!(name = plugin.name, %error, "DeregisterPlugin failed");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

#[cfg(test)]
mod tests;
