//! Mounted volumes of a pod, and the time at which they are brought up to date again. Pure.

use crate::volumes::MountedVolume;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Volumes that are ready, by name.
pub(super) type Volumes = BTreeMap<String, MountedVolume>;
pub(super) static NO_VOLUMES: Volumes = Volumes::new();

/// Pause between two looks at volumes.
const PAUSE: Duration = Duration::from_secs(30);
/// Shortest pause before a look is tried again.
const SHORTEST: Duration = Duration::from_millis(50);

/// Volumes of a pod.
#[derive(Debug, Default)]
pub(super) struct Mounted {
    /// Volumes that were mounted last, all of the pod's.
    volumes: Option<Volumes>,
    /// Time from which on they are to be brought up to date; none for those of an earlier kubelet, which are at once.
    due: Option<Instant>,
    failures: u32,
}

impl Mounted {
    /// Remembers what was mounted and returns it when it cannot be mounted anew: the API server may be away, or an object be
    /// gone, and what is mounted serves a container that is started again. Upstream waits for volumes that never were
    /// mounted, and for no others.
    pub(super) fn keep<E>(&mut self, now: Instant, result: Result<Volumes, E>) -> Option<Volumes> {
        if let Ok(volumes) = result {
            self.volumes = Some(volumes);
            self.refreshed(now, false);
        }
        self.volumes.clone()
    }

    /// Reports whether volumes are to be brought up to date.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| now >= due)
    }

    /// Notes that volumes were brought up to date, or that a try has failed, after which the pause is less.
    pub(super) fn refreshed(&mut self, now: Instant, failed: bool) {
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        let after_failure = Duration::from_secs(1 << self.failures.min(5));
        self.due = Some(now + if failed { after_failure.min(PAUSE) } else { PAUSE });
    }

    /// Time until what has failed is tried again.
    pub(super) fn retry_in(&self, now: Instant) -> Option<Duration> {
        let due = self.due.filter(|_| self.failures > 0)?;
        Some(due.saturating_duration_since(now).max(SHORTEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_mounted_serves_when_it_cannot_be_mounted_anew() {
        let volume = |path: &str| {
            let ready = MountedVolume {
                host_path: path.into(),
                read_only: true,
                selinux_relabel: true,
                is_file: false,
                is_block: false,
            };
            Volumes::from([("config".to_owned(), ready)])
        };
        let (mut mounted, now) = (Mounted::default(), Instant::now());
        assert_eq!(mounted.keep(now, Err("the API server is away")), None);
        for (result, expected) in [(Ok(volume("/a")), "/a"), (Err("gone"), "/a"), (Ok(volume("/b")), "/b")] {
            let kept = mounted.keep(now, result).expect("volumes");
            assert_eq!(kept["config"].host_path, std::path::Path::new(expected));
        }
    }

    #[test]
    fn volumes_of_an_earlier_kubelet_are_looked_at_once_and_failures_tried_again_soon() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut mounted = Mounted::default();
        assert!(mounted.is_due(at(0)), "another kubelet mounted them");
        for (now, failed, next) in [(0, true, 2), (2, true, 6), (6, true, 14), (14, true, 30), (30, true, 60)] {
            mounted.refreshed(at(now), failed);
            assert!(!mounted.is_due(at(next - 1)) && mounted.is_due(at(next)), "{next}");
            assert_eq!(mounted.retry_in(at(now)), Some(Duration::from_secs(next - now)));
        }
        mounted.refreshed(at(60), false);
        assert!(!mounted.is_due(at(89)) && mounted.is_due(at(90)));
        assert_eq!(mounted.retry_in(at(60)), None);
        mounted.keep(at(100), Ok::<_, ()>(Volumes::new()));
        assert!(!mounted.is_due(at(129)), "what was mounted just now is up to date");
    }
}
