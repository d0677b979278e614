//! Counts of the pods of replica sets, kept as pods change: a set of very many pods is looked at without a look at each of
//! them, unless some of them are to be chosen.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use shared::informer::Informer;

use super::object;
use super::pod::{Labels, Pod};
use super::pods;

/// Pods of one owner that have the same labels.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LabelGroup {
    /// Pods that neither have ended nor are being deleted.
    pub active: usize,
    /// Pods that are being deleted and have not ended.
    pub terminating: usize,
    /// Active pods that are ready.
    pub ready: usize,
    ended: usize,
    /// Ready pods by the second since which they are.
    since: BTreeMap<i64, usize>,
}

impl LabelGroup {
    /// Counts the pods that have been ready for so many seconds, and says when the next one will have been.
    #[must_use]
    pub fn available(&self, min_ready: i32, now: Timestamp) -> (usize, Option<Duration>) {
        if min_ready <= 0 {
            return (self.ready, None);
        }
        let full = now.as_second().saturating_sub(i64::from(min_ready));
        let mut waiting = self.since.range(full.saturating_add(1)..);
        let next = waiting.clone().next().map(|(since, _)| since.saturating_sub(full));
        let count: usize = waiting.by_ref().map(|(_, pods)| pods).sum();
        (self.ready - count, next.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs))
    }

    fn is_empty(&self) -> bool {
        self.active + self.terminating + self.ended == 0
    }

    fn add(&mut self, state: State) {
        match state {
            State::Ended => self.ended += 1,
            State::Terminating => self.terminating += 1,
            State::Unready => self.active += 1,
            State::Ready(since) => {
                self.active += 1;
                self.ready += 1;
                *self.since.entry(since).or_default() += 1;
            }
        }
    }

    fn remove(&mut self, state: State) {
        match state {
            State::Ended => self.ended -= 1,
            State::Terminating => self.terminating -= 1,
            State::Unready => self.active -= 1,
            State::Ready(since) => {
                self.active -= 1;
                self.ready -= 1;
                if let Some(pods) = self.since.get_mut(&since) {
                    *pods -= 1;
                    if *pods == 0 {
                        self.since.remove(&since);
                    }
                }
            }
        }
    }
}

/// Pods of one owner by their labels.
pub type Groups = HashMap<Option<Arc<Labels>>, LabelGroup>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ended,
    Terminating,
    Unready,
    /// Ready since that second.
    Ready(i64),
}

fn state(pod: &Pod) -> State {
    if pods::finished(pod) {
        State::Ended
    } else if object::deleting(&pod.metadata) {
        State::Terminating
    } else {
        pods::ready_since(pod).map_or(State::Unready, |since| State::Ready(since.as_second()))
    }
}

/// Place in which a pod is counted: its owner, its labels, its state.
type Place<'a> = (&'a str, Option<&'a Arc<Labels>>, State);

/// Pods by the uids of their owners, which are of one kind. See the module.
#[derive(Debug)]
pub struct Tallies {
    kind: Cow<'static, str>,
    by_owner: Mutex<HashMap<Box<str>, Groups>>,
}

impl Tallies {
    /// No pods yet, of owners of a kind.
    pub(crate) fn of_kind(kind: Cow<'static, str>) -> Self {
        Self { kind, by_owner: Mutex::default() }
    }

    /// Follows the store of an informer, for owners of a kind: whoever reads both finds in the tallies what has been in the
    /// store before.
    #[must_use]
    pub fn follow(pods: &Informer<Pod>, kind: Cow<'static, str>) -> Arc<Self> {
        let tallies = Arc::new(Self::of_kind(kind));
        let told = Arc::clone(&tallies);
        pods.add_observer(move |old, new| told.change(old, new));
        tallies
    }

    /// Looks at the pods of an owner.
    pub fn of<R>(&self, owner: &str, look: impl FnOnce(&Groups) -> R) -> R {
        let all = self.by_owner.lock();
        match all.get(owner) {
            Some(groups) => look(groups),
            None => look(&Groups::default()),
        }
    }

    fn place<'a>(&self, pod: &'a Pod) -> Option<Place<'a>> {
        let owner = object::controller_of(&pod.metadata).filter(|owner| owner.kind == self.kind)?;
        Some((&owner.uid, pod.metadata.labels.as_ref().map(|labels| labels.arc()), state(pod)))
    }

    pub(crate) fn change(&self, old: Option<&Pod>, new: Option<&Pod>) {
        let place = |pod| self.place(pod);
        let (old, new) = (old.and_then(place), new.and_then(place));
        if old == new {
            return;
        }
        let mut all = self.by_owner.lock();
        if let Some((owner, labels, state)) = old {
            remove(&mut all, owner, labels, state);
        }
        if let Some((owner, labels, state)) = new {
            if !all.contains_key(owner) {
                all.insert(owner.into(), Groups::default());
            }
            let groups = all.get_mut(owner).expect("it is there now");
            groups.entry(labels.cloned()).or_default().add(state);
        }
    }
}

fn remove(all: &mut HashMap<Box<str>, Groups>, owner: &str, labels: Option<&Arc<Labels>>, state: State) {
    let Some(groups) = all.get_mut(owner) else { return };
    let labels = labels.cloned();
    let Some(group) = groups.get_mut(&labels) else { return };
    group.remove(state);
    if group.is_empty() {
        groups.remove(&labels);
    }
    if groups.is_empty() {
        all.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A replica: its labels, its owner, its state.
    fn pod(app: &str, owner: &str, seed: u8) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "uid": "p", "labels": {"app": app},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true}]},
            "status": {"phase": if seed.is_multiple_of(7) { "Failed" } else { "Running" }}});
        if seed.is_multiple_of(5) {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if !seed.is_multiple_of(3) {
            let since = format!("2026-01-01T00:00:{:02}Z", seed % 60);
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
        }
        if owner.is_empty() {
            pod["metadata"]["ownerReferences"] = json!([]);
        }
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn replicas_are_one_group_however_many_there_are() {
        let tallies = Tallies::of_kind("ReplicaSet".into());
        (0..5_000).for_each(|_| tallies.change(None, Some(&pod("a", "x", 1))));
        let looked_at = tallies.of("x", |groups| (groups.len(), groups.values().map(|g| g.since.len()).sum::<usize>()));
        assert_eq!(looked_at, (1, 1));
    }

    proptest::proptest! {
        /// Counts are those of the pods that there are, whatever happened to them in whatever order.
        #[test]
        fn tallies_are_what_counting_finds(changes in proptest::collection::vec((0..8_usize, 0..3_usize, 0..3_usize, proptest::num::u8::ANY, 0..4_u8), 0..60)) {
            let (tallies, mut there) = (Tallies::of_kind("ReplicaSet".into()), vec![None::<Pod>; 8]);
            for (at, app, owner, seed, kind) in changes {
                let new = (kind > 0).then(|| pod(["a", "b", "c"][app], ["", "x", "y"][owner], seed));
                tallies.change(there[at].as_ref(), new.as_ref());
                there[at] = new;
            }
            let now = "2026-01-01T00:00:50Z".parse().expect("a time");
            for owner in ["x", "y"] {
                let own: Vec<&Pod> = there.iter().flatten().filter(|p| pods::owner_uid(p) == Some(owner)).collect();
                let active: Vec<&&Pod> = own.iter().filter(|p| pods::active(p)).collect();
                let sum = |count: &dyn Fn(&LabelGroup) -> usize| tallies.of(owner, |groups| groups.values().map(count).sum::<usize>());
                proptest::prop_assert_eq!(sum(&|g| g.active), active.len());
                proptest::prop_assert_eq!(sum(&|g| g.terminating), own.iter().filter(|p| pods::terminating(p)).count());
                proptest::prop_assert_eq!(sum(&|g| g.ready), active.iter().filter(|p| pods::ready(p)).count());
                for min_ready in [0, 1, 20, i32::MAX] {
                    let available = active.iter().filter(|p| pods::available(p, min_ready, now)).count();
                    proptest::prop_assert_eq!(sum(&|g| g.available(min_ready, now).0), available);
                    let next = active.iter().filter_map(|p| pods::available_in(p, min_ready, now)).filter(|d| !d.is_zero()).min();
                    let told = tallies.of(owner, |groups| groups.values().filter_map(|g| g.available(min_ready, now).1).min());
                    proptest::prop_assert_eq!(told, next);
                }
            }
            there.iter().flatten().for_each(|pod| tallies.change(Some(pod), None));
            proptest::prop_assert!(tallies.by_owner.lock().is_empty(), "nothing is left of what is gone");
        }
    }
}
