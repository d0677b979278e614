//! Paths of the host that containers do not see unless they are privileged or ask for an unmasked `/proc`.
//! Answers for `defaultMaskedPaths` and `possibleCPUs` of upstream's `pkg/securitycontext`.

use crate::cpu_set::CpuSet;
use std::path::Path;
use std::sync::LazyLock;

/// Paths of each machine.
const EVERYWHERE: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Paths of this machine, whose processors do not change while it runs.
static HERE: LazyLock<Vec<String>> = LazyLock::new(|| of_machine(Path::new("/sys/devices/system/cpu")));

/// The paths to hide on this machine.
pub(super) fn paths() -> Vec<String> {
    HERE.clone()
}

/// Returns the paths of a machine with the processors that `folder` describes: how often a processor grew hot, too, tells
/// a container what others do.
fn of_machine(folder: &Path) -> Vec<String> {
    let possible = std::fs::read_to_string(folder.join("possible")).ok().and_then(|text| text.parse::<CpuSet>().ok());
    let counts = possible
        .iter()
        .flat_map(CpuSet::ids)
        .map(|cpu| folder.join(format!("cpu{cpu}/thermal_throttle")))
        .filter(|path| path.exists())
        .map(|path| path.to_string_lossy().into_owned());
    EVERYWHERE.iter().map(|path| (*path).to_owned()).chain(counts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_of_processors_is_hidden_where_the_kernel_counts_it() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::write(folder.path().join("possible"), "0-2\n").expect("written");
        for cpu in [0, 2, 3] {
            std::fs::create_dir_all(folder.path().join(format!("cpu{cpu}/thermal_throttle"))).expect("made");
        }
        let hidden = |cpu: u32| folder.path().join(format!("cpu{cpu}/thermal_throttle")).to_string_lossy().into_owned();
        assert_eq!(of_machine(folder.path())[EVERYWHERE.len()..], [hidden(0), hidden(2)]);
        assert_eq!(of_machine(&folder.path().join("none")), EVERYWHERE, "a kernel that tells nothing");
    }
}
