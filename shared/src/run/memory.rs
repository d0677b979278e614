//! Memory of a process after its start.

use std::time::Duration;

/// Time after which most components have finished their start.
const STARTED: Duration = Duration::from_secs(1);
/// Interval at which freed memory returns to the system.
const TIDY: Duration = Duration::from_secs(30);
/// Share of one processor that an idle process uses at most.
const IDLE: f64 = 0.01;
/// Bytes of files that are resident beyond those of an idle process, for which releasing code pays.
const GROWN: u64 = 1 << 20;
/// Bytes of a page; of 64 KB pages code is found unused a little later.
const PAGE: u64 = 4096;
/// A heap in use beyond which looking through it takes too long to be done on the side, in bytes.
const TIDY_LIMIT: usize = 128 << 20;

/// Few malloc arenas keep freed memory in few places. One for each thread is plenty; where one does the work, it is the
/// first, which grows by 128 KB at a time, others by a page with a system call for each. Large blocks go back to the system
/// when they are freed: left alone, malloc takes the first of them for a habit and keeps the next ones, with holes between
/// what stays. The end of an arena does when it is larger than a burst leaves it: [`tidy`] sees to the rest.
#[allow(unsafe_code, reason = "mallopt is an unsafe call")]
pub(super) fn settle_allocator(threads: usize) {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 128 << 10;
        const ROOM: libc::c_int = 1 << 20;
        const ARENAS: libc::c_int = 8;
        let arenas = libc::c_int::try_from(threads).map_or(ARENAS, |threads| threads.clamp(1, ARENAS));
        // SAFETY: mallopt only sets a parameter of the allocator and is called before other threads exist.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, arenas);
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, ROOM);
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = threads;
}

/// Bursts leave holes that the allocator keeps; a component that is idle again gives them back, and the code that only
/// its start, or the burst, has run. Outlives everything.
pub(super) async fn tidy() {
    let mut code = Code::default();
    for (pause, is_start) in rounds() {
        tokio::time::sleep(pause).await;
        if code.is_unused(resident_files(), cpu_time(), pause) || is_start {
            release_code();
            code.settled = None;
        }
        if heap_in_use() < TIDY_LIMIT {
            release_memory();
        }
    }
}

/// Resident code of the process from round to round.
#[derive(Debug, Default)]
struct Code {
    /// Bytes that were resident a round after code was released: those that the idle process runs.
    settled: Option<u64>,
    used: Duration,
}

impl Code {
    /// Takes in the resident bytes of files, the processor time used so far, and how long it is since the last time; true
    /// when the process is idle and keeps code that only a burst of work has run.
    fn is_unused(&mut self, resident: u64, used: Duration, pause: Duration) -> bool {
        let share = used.saturating_sub(self.used).as_secs_f64() / pause.as_secs_f64().max(1e-3);
        self.used = used;
        let settled = *self.settled.get_or_insert(resident);
        share < IDLE && resident > settled + GROWN
    }
}

/// Bytes of files that are mapped and resident.
fn resident_files() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(2).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(PAGE)
}

/// Processor time that the process has used.
#[allow(unsafe_code, reason = "clock_gettime is an unsafe call")]
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is there on every Linux, and the call only writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Delays of the rounds, with whether code pages are released as well: soon after the start, and once more for
/// components that waited for a lease.
fn rounds() -> impl Iterator<Item = (Duration, bool)> {
    [(STARTED, true), (TIDY, true)].into_iter().chain(std::iter::repeat((TIDY, false)))
}

#[allow(unsafe_code, reason = "mallinfo2 is an unsafe call")]
fn heap_in_use() -> usize {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallinfo2 only reads the allocator's counters, under its own locks.
    return unsafe { libc::mallinfo2() }.uordblks;
    #[cfg(not(target_env = "gnu"))]
    0
}

/// Gives freed memory back to the system; worth calling once after a big initial load.
#[allow(unsafe_code, reason = "malloc_trim is an unsafe call")]
pub fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks and touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmaps the pages of the program's code. What runs again is mapped again as it runs, from the page cache.
#[allow(unsafe_code, reason = "madvise is an unsafe call")]
fn release_code() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Ok(program) = std::env::current_exe() else { return };
    for (start, size) in code(&maps, &program.to_string_lossy()) {
        // SAFETY: these pages hold what is in the file: they are not writable, and nothing is relocated in code that is
        // position independent. Read anew they are the same.
        unsafe {
            libc::madvise(std::ptr::with_exposed_provenance_mut(start), size, libc::MADV_DONTNEED);
        }
    }
}

/// Finds the code mappings of a program in the text of `/proc/self/maps`: starts and sizes.
fn code(maps: &str, program: &str) -> Vec<(usize, usize)> {
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        if !rest.starts_with("r-xp ") || !rest.ends_with(program) {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16));
        let start = start.ok()?;
        Some((start, end.ok()?.checked_sub(start)?))
    };
    maps.lines().filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_program_itself() {
        let maps = "\
            55d0c0000000-55d0c0100000 r--p 00000000 fe:00 7   /bin/kubelet\n\
            55d0c0100000-55d0c0300000 r-xp 00100000 fe:00 7   /bin/kubelet\n\
            55d0c0300000-55d0c0310000 rw-p 00300000 fe:00 7   /bin/kubelet\n\
            7f0000000000-7f0000001000 r-xp 00000000 fe:00 9   /lib/libc.so.6\n\
            7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0   [vdso]\n";
        assert_eq!(code(maps, "/bin/kubelet"), [(0x55d0_c010_0000, 0x20_0000)]);
        assert!(code("nonsense\n-\nx-y r-xp /bin/kubelet", "/bin/kubelet").is_empty());
    }

    #[test]
    fn code_goes_soon_after_the_start_and_once_more() {
        let first: Vec<(u64, bool)> = rounds().take(4).map(|(pause, code)| (pause.as_secs(), code)).collect();
        assert_eq!(first, [(1, true), (30, true), (30, false), (30, false)]);
    }

    #[test]
    fn code_of_a_burst_is_unused_when_the_process_is_idle_again() {
        let mut code = Code::default();
        let mut used = Duration::ZERO;
        let mut round = |(megabytes, share): (u64, f64)| {
            used += TIDY.mul_f64(share);
            let is_unused = code.is_unused(megabytes << 20, used, TIDY);
            if is_unused {
                code.settled = None;
            }
            is_unused
        };
        // Settled; a burst; idle again; settled anew; a little more; busy all the time; idle at last.
        let rounds = [(5, 0.5), (5, 0.0), (12, 0.5), (12, 0.0), (6, 0.0), (7, 0.0), (9, 0.2), (9, 0.2), (9, 0.001)];
        let found = rounds.map(&mut round);
        assert_eq!(found, [false, false, false, true, false, false, false, false, true]);
        assert!(resident_files() > 0);
    }

    #[test]
    fn processor_time_is_counted() {
        let before = cpu_time();
        let found = std::hint::black_box((0..3_000_000_u64).map(std::hint::black_box).sum::<u64>());
        assert!(cpu_time() > before && found > 0);
    }

    #[test]
    fn code_that_was_released_runs() {
        release_code();
        only_code_of_the_program_itself();
    }
}
