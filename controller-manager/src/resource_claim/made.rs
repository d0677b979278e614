//! Claims that were made and that the cache does not show yet: a look at a stale cache must not make them twice.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::engine::object::Key;

/// A claim that the cache does not show for so long is not counted on any more, as upstream has it.
const UNSEEN: Duration = Duration::from_mins(1);

/// By the uid of the pod, and by the name of its entry.
#[derive(Debug, Default)]
pub struct Made {
    claims: HashMap<String, HashMap<String, (Key, Instant)>>,
}

impl Made {
    /// A claim was made for an entry of a pod.
    pub fn note(&mut self, pod: &str, entry: &str, claim: Key, now: Instant) {
        self.claims.entry(pod.to_owned()).or_default().insert(entry.to_owned(), (claim, now));
    }

    /// The name of the claim that was made for an entry.
    #[must_use]
    pub fn find(&self, pod: &str, entry: &str, now: Instant) -> Option<&str> {
        let (claim, since) = self.claims.get(pod)?.get(entry)?;
        (now.saturating_duration_since(*since) < UNSEEN).then_some(claim.name.as_str())
    }

    /// The watch told of a claim of this pod.
    pub fn seen(&mut self, pod: &str, claim: &Key) {
        let Some(entries) = self.claims.get_mut(pod) else { return };
        entries.retain(|_, (made, _)| made != claim);
        if entries.is_empty() {
            self.claims.remove(pod);
        }
    }

    /// The pod is gone.
    pub fn forget(&mut self, pod: &str) {
        self.claims.remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_counts_until_it_is_seen_or_has_been_lost() {
        let (mut made, now) = (Made::default(), Instant::now());
        let claim = |name: &str| Key::new("ns", name);
        made.note("pod", "gpu", claim("pod-gpu-x"), now);
        made.note("pod", "nic", claim("pod-nic-x"), now);
        assert_eq!(made.find("pod", "gpu", now), Some("pod-gpu-x"));
        assert_eq!(made.find("other", "gpu", now), None);
        assert_eq!(made.find("pod", "gpu", now + UNSEEN), None, "lost");
        made.seen("pod", &claim("another"));
        assert_eq!(made.find("pod", "gpu", now), Some("pod-gpu-x"));
        made.seen("pod", &claim("pod-gpu-x"));
        assert_eq!((made.find("pod", "gpu", now), made.find("pod", "nic", now)), (None, Some("pod-nic-x")));
        made.forget("pod");
        assert_eq!(made.find("pod", "nic", now), None);
    }
}
