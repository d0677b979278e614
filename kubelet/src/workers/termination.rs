//! The message a container leaves when it ends: its termination file, or the end of its log.
//! Answers for `getTerminationMessage` of upstream's kuberuntime.

use super::observed::Container;
use nix::fcntl::OFlag;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Longest message from the file.
const MAX_FILE: u64 = 4096;
/// Longest message from the log.
const MAX_LOG: usize = 2048;
/// Most lines from the log.
const MAX_LINES: usize = 80;

/// Reads at most the first 4096 bytes.
///
/// The file is the container's: a pipe would hold up the kubelet, and a link would lead it to files of the node.
fn head(path: &Path) -> String {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let regular = file.ok().filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()));
    let mut text = Vec::new();
    if let Some(file) = regular {
        let _ = file.take(MAX_FILE).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The last lines of a log in the runtime's format, without their prefixes.
fn log_tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        // Prefixes take room, too: read some more than is shown.
        file.seek(SeekFrom::Start(length.saturating_sub(16 * 1024)))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    let text = read().unwrap_or_default();
    let mut tail = content(&text);
    while tail.len() > MAX_LOG {
        let cut = tail.char_indices().map(|(i, _)| i).find(|i| *i >= tail.len() - MAX_LOG).unwrap_or(tail.len());
        tail.drain(..cut);
    }
    tail
}

/// Returns the text of the last lines of a log: `<time> <stream> <F or P> <text>`, where P goes on in the next line, if
/// one comes.
fn content(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
    let mut text = String::new();
    for line in last {
        let mut parts = line.splitn(4, ' ').skip(2);
        let (Some(tag), Some(part)) = (parts.next(), parts.next()) else { continue };
        text.push_str(part);
        if tag != "P" {
            text.push('\n');
        }
    }
    text
}

/// Fills in the message of an ended container.
pub fn fill(container: &mut Container) {
    let mut text = String::new();
    if !container.termination_file.is_empty() {
        text = head(Path::new(&container.termination_file));
    }
    let fallback = container.termination_policy == "FallbackToLogsOnError" && container.exit_code != 0;
    if text.is_empty() && fallback {
        text = log_tail(Path::new(&container.log_path));
    }
    if !text.is_empty() {
        container.message = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container may put a pipe or a link in the file's place.
    #[test]
    fn only_a_regular_file_is_read() {
        let folder = std::env::temp_dir().join(format!("termination-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (pipe, secret, link) = (folder.join("pipe"), folder.join("secret"), folder.join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).expect("a pipe");
        std::fs::write(&secret, "of the node").expect("written");
        std::os::unix::fs::symlink(&secret, &link).expect("a link");
        assert_eq!([head(&pipe), head(&link), head(&secret)], ["", "", "of the node"]);
        crate::trees::remove(&folder).expect("removed");
    }

    #[test]
    fn a_line_that_was_not_ended_is_not_ended_here() {
        for (log, expected) in [
            ("t stdout F one\nt stderr F two\n", "one\ntwo\n"),
            ("t stdout P DONE\n", "DONE"),
            ("t stdout P on\nt stdout F e\nt stdout F \n", "one\n\n"),
            ("broken\n", ""),
        ] {
            assert_eq!(content(log), expected);
        }
        let many = "t stdout F x\n".repeat(100);
        assert_eq!(content(&many), "x\n".repeat(MAX_LINES));
    }
}
