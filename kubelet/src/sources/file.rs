//! A folder (or single file) of manifests, watched with inotify and read again every `fileCheckFrequency`.
//! Answers for upstream's `pkg/kubelet/config/file.go` and `file_linux.go`.

use super::manifest::{self, Owner};
use super::takeover::EarlierPods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use shared::folder_watch::FolderWatch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Largest manifest that is read.
const MAX_MANIFEST: u64 = 10 * 1024 * 1024;

/// Reads every manifest under `path`; a bad one is reported and skipped. A path that is not there has none.
///
/// # Errors
/// The path cannot be read: nothing is known of its pods.
pub fn read(path: &Path, owner: &Owner, earlier: &EarlierPods, now: Timestamp) -> std::io::Result<Vec<Pod>> {
    let mut files: Vec<PathBuf> = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        Ok(meta) if meta.is_dir() => {
            std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>()?
        }
        Ok(_) => vec![path.to_owned()],
    };
    files.sort();
    let mut pods = Vec::new();
    for file in files {
        let hidden = file.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        let readable = std::fs::metadata(&file).is_ok_and(|m| m.is_file() && m.len() <= MAX_MANIFEST);
        if hidden || !readable {
            continue;
        }
        let decoded = std::fs::read_to_string(&file)
            .map_err(|e| manifest::ManifestError::Parse(e.to_string()))
            .and_then(|text| manifest::decode(&text))
            .and_then(|list| {
                let origin = file.to_string_lossy();
                list.into_iter()
                    .map(|pod| {
                        let has_uid = pod.metadata.uid.as_deref().is_some_and(|uid| !uid.is_empty());
                        let pod = manifest::adopt(pod, "file", &origin, owner, now)?;
                        Ok(if has_uid { pod } else { take_over(pod, &file, earlier) })
                    })
                    .collect::<Result<Vec<_>, _>>()
            });
        match decoded {
            Ok(list) => pods.extend(list),
            Err(error) => tracing::error!(path = %file.display(), %error, "Could not process manifest file"),
        }
    }
    Ok(pods)
}

/// The pod under the uid that it runs under already, where an earlier kubelet has begun it.
fn take_over(mut pod: Pod, file: &Path, earlier: &EarlierPods) -> Pod {
    let modified = std::fs::metadata(file).and_then(|about| about.modified());
    if let Some(uid) = modified.ok().and_then(|modified| earlier.uid(&pod, modified)) {
        pod.metadata.annotations.get_or_insert_default().insert(super::annotations::HASH.to_owned(), uid.clone());
        pod.metadata.uid = Some(uid);
    }
    pod
}

/// Keeps the "first seen" time of pods that stay the same.
fn keep_seen(pods: &mut [Pod], seen: &mut BTreeMap<String, String>) {
    let mut now = BTreeMap::new();
    for pod in pods.iter_mut() {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if let Some(marks) = &mut pod.metadata.annotations
            && let Some(mark) = marks.get_mut(super::annotations::SEEN)
        {
            if let Some(first) = seen.get(&uid) {
                first.clone_into(mark);
            }
            now.insert(uid, mark.clone());
        }
    }
    *seen = now;
}

/// Watches `path` and sends the whole set whenever it changed.
pub async fn watch(
    path: PathBuf,
    owner: Owner,
    earlier: Arc<EarlierPods>,
    every: Duration,
    sender: mpsc::Sender<super::SourceSet>,
    shutdown: CancellationToken,
) {
    let mut changes = FolderWatch::default();
    let mut watching = false;
    let mut seen = BTreeMap::new();
    let mut last: Option<Vec<Pod>> = None;
    loop {
        if !watching {
            watching = changes.watch(&path).is_ok();
        }
        let (folder, owner, earlier) = (path.clone(), owner.clone(), Arc::clone(&earlier));
        let read = tokio::task::spawn_blocking(move || read(&folder, &owner, &earlier, Timestamp::now())).await;
        if let Ok(Err(error)) = &read {
            tracing::error!(path = %path.display(), %error, "Unable to read config path");
        }
        if let Ok(Ok(mut pods)) = read {
            keep_seen(&mut pods, &mut seen);
            if last.as_ref() != Some(&pods) {
                last = Some(pods.clone());
                let set = super::SourceSet { source: super::Source::File, pods };
                if sender.send(set).await.is_err() {
                    return;
                }
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = changes.changed() => {
                // Editors write in several steps: let them finish.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            () = tokio::time::sleep(every) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_read_is_not_an_empty_one() {
        let folder = std::env::temp_dir().join(format!("ironclad-manifests-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).expect("folder");
        let owner = Owner { node_name: "n".to_owned(), prevents_references: true };
        let pods = |path: &Path| {
            read(path, &owner, &EarlierPods::default(), Timestamp::UNIX_EPOCH)
                .map(|pods| pods.len())
                .map_err(|e| e.kind())
        };
        assert_eq!(pods(&folder.join("nothing")), Ok(0));
        let manifest = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}";
        std::fs::write(folder.join("pod.yaml"), manifest).expect("manifest");
        std::fs::write(folder.join("other.yaml"), "]").expect("manifest");
        assert_eq!(pods(&folder), Ok(1));
        // A link to itself: the file system answers with an error, not with an absence.
        std::os::unix::fs::symlink("loop", folder.join("loop")).expect("link");
        assert!(pods(&folder.join("loop")).is_err());
        crate::trees::remove(&folder).expect("removed");
    }
}
