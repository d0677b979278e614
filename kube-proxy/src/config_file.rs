//! The file of `--config`: a proxy whose configuration changed ends, to be started with the new one.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use shared::folder_watch::FolderWatch;

/// Period of looking at a file whose folder cannot be watched.
const LOOK: Duration = Duration::from_secs(60);

/// Completes when the content of a file is another than now; a file that is away for a while has not changed.
///
/// # Errors
/// Always: the change ends the process, as upstream's `options.eventHandler` does.
pub(crate) async fn changed(path: &str) -> Result<()> {
    let mut watch = FolderWatch::default();
    // The folder, since editors and config maps put another file in the place of this one.
    if let Some(folder) = Path::new(path).parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if let Err(error) = watch.watch(folder) {
            tracing::warn!(path, %error, "Failed to watch the configuration file, looking at it now and then");
        }
    }
    let before = tokio::fs::read(path).await;
    loop {
        tokio::select! {
            () = watch.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        let now = tokio::fs::read(path).await;
        if let (Ok(before), Ok(now)) = (&before, &now)
            && before != now
            && !now.is_empty()
        {
            bail!("content of the proxy server's configuration file was updated");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn another_content_ends_the_process_and_the_same_one_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.conf");
        let write = |text: &str| {
            let new = folder.path().join("new");
            std::fs::write(&new, text).expect("written");
            std::fs::rename(&new, &path).expect("moved");
        };
        write("mode: iptables");
        let text = path.display().to_string();
        let watched = tokio::spawn(async move { changed(&text).await });
        write("mode: iptables");
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!watched.is_finished());
        write("mode: nftables");
        let ended = tokio::time::timeout(Duration::from_secs(10), watched).await.expect("in time").expect("no panic");
        assert!(ended.is_err_and(|error| error.to_string().contains("configuration file was updated")));
    }
}
