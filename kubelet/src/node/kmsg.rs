//! The kernel's own words on processes that it ended for want of memory: lines of `/dev/kmsg` become events of the node
//! (`SystemOOM`) and counts of containers. Answers for upstream's `pkg/kubelet/oom` and the parser it uses.

use crate::events::{EventSink, EventType};
use crate::files;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

/// Most bytes of one record.
const RECORD: usize = 8192;
const ROOT: &str = "/";

/// A process that the kernel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Killed {
    /// Cgroup whose limit was reached; `/` where the machine ran out of memory.
    pub cgroup: String,
    /// Cgroup of the process.
    pub victim: String,
    /// Name of the process.
    pub process: String,
    /// Number of the process.
    pub pid: i32,
}

/// Puts the lines of one occurrence together.
#[derive(Debug, Default)]
pub struct Parser(Option<(String, String)>);

impl Parser {
    /// Takes a line; the last of an occurrence tells all.
    pub fn line(&mut self, line: &str) -> Option<Killed> {
        if line.contains("invoked oom-killer:") {
            self.0 = Some((ROOT.to_owned(), ROOT.to_owned()));
            return None;
        }
        let (cgroup, victim) = self.0.as_mut()?;
        if let Some(about) = line.split_once("oom-kill:").map(|(_, about)| about) {
            let field = |name: &str| about.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            if let (Some(limited), Some(task)) = (field("oom_memcg"), field("task_memcg")) {
                (*cgroup, *victim) = (limited.to_owned(), task.to_owned());
            }
            return None;
        }
        let (_, rest) = line.split_once("Killed process ")?;
        let (pid, rest) = rest.split_once(" (")?;
        let (process, _) = rest.split_once(')')?;
        let pid = pid.parse().ok()?;
        let (cgroup, victim) = self.0.take()?;
        Some(Killed { cgroup, victim, process: process.to_owned(), pid })
    }
}

/// The text of a record: `6,1234,5678,-;text`, and lines that go on.
fn text(record: &str) -> &str {
    record.split_once(';').map_or("", |(_, text)| text)
}

/// Opens the kernel's messages behind those that were there before.
fn open(path: &Path) -> io::Result<AsyncFd<File>> {
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    file.seek(SeekFrom::End(0))?;
    files::pollable(file)
}

/// Watches until shutdown; a machine whose messages cannot be read is not watched.
pub async fn run(events: Arc<dyn EventSink>, shutdown: CancellationToken) {
    let messages = match open(Path::new("/dev/kmsg")) {
        Ok(messages) => messages,
        Err(error) => {
            tracing::warn!(%error, "Failed to start OOM watcher");
            return;
        }
    };
    let mut parser = Parser::default();
    let mut buffer = vec![0; RECORD];
    loop {
        let read = tokio::select! {
            () = shutdown.cancelled() => return,
            read = next(&messages, &mut buffer) => read,
        };
        match read {
            Ok(length) => {
                let record = String::from_utf8_lossy(&buffer[..length]);
                for killed in text(&record).lines().filter_map(|line| parser.line(line)) {
                    report(events.as_ref(), &killed);
                }
            }
            // Messages were overwritten before they were read: the next read goes on behind them.
            Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
            Err(error) => {
                tracing::error!(%error, "Failed to read the kernel's messages");
                return;
            }
        }
    }
}

async fn next(messages: &AsyncFd<File>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut ready = messages.readable().await?;
        if let Ok(read) = ready.try_io(|messages| messages.get_ref().read(buffer)) {
            return read;
        }
    }
}

fn report(events: &dyn EventSink, killed: &Killed) {
    tracing::info!(cgroup = killed.victim, process = killed.process, pid = killed.pid, "Got sys oom event");
    if killed.victim != ROOT {
        return;
    }
    let mut message = "System OOM encountered".to_owned();
    if !killed.process.is_empty() && killed.pid != 0 {
        message = format!("{message}, victim process: {}, pid: {}", killed.process, killed.pid);
    }
    events.node(EventType::Warning, "SystemOOM", &message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::Recorded;

    const MACHINE: [&str; 4] = [
        "mysqld invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
        "CPU: 1 PID: 1 Comm: mysqld Not tainted 6.1.0",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=stress,pid=17,uid=0",
        "Out of memory: Killed process 17 (stress) total-vm:1kB, anon-rss:1kB",
    ];
    const CONTAINER: [&str; 3] = [
        "stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=-997",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods/podu,task_memcg=/kubepods/podu/c,task=stress,pid=18,uid=0",
        "Memory cgroup out of memory: Killed process 18 (stress) total-vm:1kB",
    ];

    fn parsed(lines: &[&str]) -> Vec<Killed> {
        let mut parser = Parser::default();
        lines.iter().filter_map(|line| parser.line(line)).collect()
    }

    #[test]
    fn occurrences_of_machines_and_cgroups_are_told_apart() {
        let killed = |cgroup: &str, victim: &str, pid| Killed {
            cgroup: cgroup.to_owned(),
            victim: victim.to_owned(),
            process: "stress".to_owned(),
            pid,
        };
        assert_eq!(parsed(&MACHINE), [killed("/", "/", 17)]);
        assert_eq!(parsed(&CONTAINER), [killed("/kubepods/podu", "/kubepods/podu/c", 18)]);
        assert_eq!(parsed(&MACHINE[2..]), [], "an occurrence whose beginning was lost");
        assert_eq!(parsed(&["x invoked oom-killer: y", "Killed process z (q)"]), []);
    }

    #[test]
    fn only_the_machines_shortage_is_an_event() {
        let events = Recorded::default();
        for killed in parsed(&MACHINE).iter().chain(&parsed(&CONTAINER)) {
            report(&events, killed);
        }
        assert_eq!(events.taken(), ["Warning SystemOOM System OOM encountered, victim process: stress, pid: 17"]);
    }

    #[test]
    fn records_have_a_head() {
        assert_eq!(text("6,1,2,-;hello\n SUBSYSTEM=x\n"), "hello\n SUBSYSTEM=x\n");
        assert_eq!(text("nothing"), "");
    }
}
