//! Records of what really ran: each container writes into a file of the node, and a thread looks at the machine's processes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

/// The folder of the node that containers write to: not on the kubelet's disk, which is full at times.
pub const FOLDER: &str = "/opt/containerd/book";
/// Begins the name that a container's first program gives itself.
pub const MARK: &str = "chaos-of-";
const PERIOD: Duration = Duration::from_millis(200);

/// The file of a pod on the node's disk.
pub fn page(disk: &Path, pod: &str) -> PathBuf {
    disk.join("opt-containerd/book").join(pod)
}

/// Counts lines of a page that are this one.
pub fn count(page: &Path, line: &str) -> usize {
    std::fs::read_to_string(page).unwrap_or_default().lines().filter(|found| *found == line).count()
}

/// Reports whether a page has this line.
pub fn says(page: &Path, line: &str) -> bool {
    count(page, line) > 0
}

/// Watches for containers that run twice at once.
pub struct Watch {
    found: Arc<Mutex<BTreeSet<String>>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Begins to watch.
    pub fn begin() -> Self {
        let (found, over) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(false)));
        let (for_thread, until) = (Arc::clone(&found), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            let mut before: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
            while !until.load(Ordering::Relaxed) {
                let now = running();
                for (name, pids) in &now {
                    let stayed = before.get(name).into_iter().flatten().filter(|pid| pids.contains(*pid)).count();
                    // A shell that starts another program is two for a moment.
                    if stayed > 1 {
                        for_thread.lock().insert(format!("{name}: {pids:?}"));
                    }
                }
                before = now;
                std::thread::sleep(PERIOD);
            }
        });
        Self { found, over, thread }
    }

    /// Names of containers that ran twice.
    pub fn twice(&self) -> Vec<String> {
        self.found.lock().iter().cloned().collect()
    }

    /// Stops watching; returns the names of containers that ran twice.
    pub fn end(self) -> Vec<String> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the watching thread ends");
        self.found.lock().iter().cloned().collect()
    }
}

/// Processes that are a container's first, by the name it gave itself.
pub fn running() -> BTreeMap<String, BTreeSet<u32>> {
    let mut found: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let last = command.split(|byte| *byte == 0).rfind(|argument| !argument.is_empty()).unwrap_or_default();
        let last = String::from_utf8_lossy(last);
        if let Some(name) = last.strip_prefix(MARK) {
            found.entry(name.to_owned()).or_default().insert(pid);
        }
    }
    found
}
