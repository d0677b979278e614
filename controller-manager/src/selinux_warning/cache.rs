//! Cache of volumes, their users and the conflicts between them. Answers for upstream's volume cache; no I/O here.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::plan::{Conflict, Use, between};
use crate::engine::object::Key;

/// Volumes by their unique names. Bounded by the volumes of pods that have not ended.
#[derive(Debug, Default)]
pub struct Cache {
    volumes: HashMap<String, Used>,
    of_pod: HashMap<Key, BTreeSet<String>>,
    /// Pods may be in each other's way at several volumes.
    times: HashMap<Conflict, usize>,
}

#[derive(Debug, Default)]
struct Used {
    driver: String,
    pods: BTreeMap<Key, Use>,
}

/// Conflicts that came or went with a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConflictChange {
    /// Conflicts that it brought, from the side of both.
    pub new: Vec<Conflict>,
    /// Conflicts that are over.
    pub over: Vec<Conflict>,
}

impl Cache {
    /// A pod uses a volume of a driver, if it is one's.
    pub fn add(&mut self, volume: &str, driver: &str, pod: &Key, now: Use) -> ConflictChange {
        let used = self
            .volumes
            .entry(volume.to_owned())
            .or_insert_with(|| Used { driver: driver.to_owned(), pods: BTreeMap::new() });
        let before = used.pods.insert(pod.clone(), now.clone());
        if before.as_ref() == Some(&now) {
            return ConflictChange::default();
        }
        self.of_pod.entry(pod.clone()).or_default().insert(volume.to_owned());
        let new = conflicts(pod, &now, &used.pods);
        let over = before.map(|before| conflicts(pod, &before, &used.pods)).unwrap_or_default();
        for conflict in &new {
            *self.times.entry(conflict.clone()).or_default() += 1;
        }
        ConflictChange { over: self.less(over), new }
    }

    /// A pod is gone, or has ended; the conflicts that are over.
    pub fn remove(&mut self, pod: &Key) -> Vec<Conflict> {
        let mut over = Vec::new();
        for volume in self.of_pod.remove(pod).unwrap_or_default() {
            let Some(used) = self.volumes.get_mut(&volume) else { continue };
            if let Some(before) = used.pods.remove(pod) {
                over.extend(conflicts(pod, &before, &used.pods));
            }
            if used.pods.is_empty() {
                self.volumes.remove(&volume);
            }
        }
        self.less(over)
    }

    /// The pods that use volumes of a driver.
    pub fn pods_of<'a>(&'a self, driver: &'a str) -> impl Iterator<Item = &'a Key> {
        self.volumes.values().filter(move |v| v.driver == driver).flat_map(|v| v.pods.keys())
    }

    /// Removes conflicts, and returns those that are nowhere any more.
    fn less(&mut self, over: Vec<Conflict>) -> Vec<Conflict> {
        over.into_iter()
            .filter(|conflict| {
                let Some(times) = self.times.get_mut(conflict) else { return false };
                *times -= 1;
                let last = *times == 0;
                if last {
                    self.times.remove(conflict);
                }
                last
            })
            .collect()
    }
}

fn conflicts(pod: &Key, uses: &Use, all: &BTreeMap<Key, Use>) -> Vec<Conflict> {
    let others = all.iter().filter(|(other, _)| *other != pod);
    others.flat_map(|(other, theirs)| between((pod, uses), (other, theirs))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNT: &str = "MountOption";
    const RECURSIVE: &str = "Recursive";

    fn using(label: &str, policy: &str) -> Use {
        Use { label: label.to_owned(), policy: policy.to_owned() }
    }

    /// Volume, pod, label, policy.
    type Row = (&'static str, &'static str, &'static str, &'static str);

    const THERE: [Row; 10] = [
        ("vol1", "pod1", "system_u:system_r:label1", MOUNT),
        ("vol2", "pod2", "", RECURSIVE),
        ("vol3", "pod3-1", "", RECURSIVE),
        ("vol3", "pod3-2", "", RECURSIVE),
        ("vol4", "pod4-1", "system_u:system_r:label4", MOUNT),
        ("vol4", "pod4-2", "system_u:system_r:label4", MOUNT),
        ("vol5", "pod5", "::label5", MOUNT),
        ("vol6", "pod6", ":system_r:label6", MOUNT),
        ("vol7", "pod7", "::label7:c0,c1", MOUNT),
        ("vol8", "pod8", "", MOUNT),
    ];

    fn add(cache: &mut Cache, (volume, pod, label, policy): Row) -> ConflictChange {
        cache.add(volume, &format!("driver-of-{volume}"), &Key::new("ns", pod), using(label, policy))
    }

    fn told(conflicts: &[Conflict]) -> Vec<String> {
        let brief =
            |c: &Conflict| format!("{} {}={} {}={}", c.property, c.pod.name, c.value, c.other.name, c.other_value);
        conflicts.iter().map(brief).collect()
    }

    #[test]
    fn what_another_pod_brings() {
        let label = |pod: [&str; 2], other: [&str; 2]| {
            let one = |a: [&str; 2], b: [&str; 2]| format!("SELinuxLabel {}={} {}={}", a[0], a[1], b[0], b[1]);
            vec![one(pod, other), one(other, pod)]
        };
        let policy = |pod: &str, mine: &str, other: &str, theirs: &str| {
            vec![
                format!("SELinuxChangePolicy {pod}={mine} {other}={theirs}"),
                format!("SELinuxChangePolicy {other}={theirs} {pod}={mine}"),
            ]
        };
        let none = Vec::new;
        for (name, row, want) in [
            ("a new volume", ("vol-new", "new", "system_u:system_r:label-new", MOUNT), none()),
            ("as the other", ("vol1", "new", "system_u:system_r:label1", MOUNT), none()),
            (
                "another label",
                ("vol1", "new", "system_u:system_r:label-new", MOUNT),
                label(["new", "system_u:system_r:label-new"], ["pod1", "system_u:system_r:label1"]),
            ),
            ("another policy", ("vol1", "new", "", RECURSIVE), policy("new", RECURSIVE, "pod1", MOUNT)),
            ("the only one may change", ("vol2", "pod2", "system_u:system_r:label-new", MOUNT), none()),
            (
                "one of two changes",
                ("vol3", "pod3-1", "system_u:system_r:label-new", MOUNT),
                policy("pod3-1", MOUNT, "pod3-2", RECURSIVE),
            ),
            ("nothing new", ("vol4", "pod4-1", "system_u:system_r:label4", MOUNT), none()),
            ("user and role are open", ("vol5", "new", "system_u:system_r:label5", MOUNT), none()),
            ("though they are", ("vol5", "new", "::label6", MOUNT), label(["new", "::label6"], ["pod5", "::label5"])),
            ("the user is open", ("vol6", "new", "system_u::label6", MOUNT), none()),
            ("categories are open", ("vol7", "new", "system_u:system_r:label7", MOUNT), none()),
            ("all is open", ("vol8", "new", "system_u:system_r:label8", MOUNT), none()),
        ] {
            let mut cache = Cache::default();
            for row in THERE {
                assert_eq!(add(&mut cache, row), ConflictChange::default(), "{row:?}");
            }
            let change = add(&mut cache, row);
            assert_eq!(told(&change.new), want, "{name}");
            assert_eq!(add(&mut cache, row), ConflictChange::default(), "{name}: it is told once");
            let over = cache.remove(&Key::new("ns", row.1));
            assert_eq!(told(&over), want, "{name}: it is over");
        }
    }

    #[test]
    fn a_conflict_is_over_when_it_is_at_no_volume() {
        let mut cache = Cache::default();
        for volume in ["one", "two"] {
            add(&mut cache, (volume, "a", ":::s0:c1", MOUNT));
            assert_eq!(add(&mut cache, (volume, "b", ":::s0:c2", MOUNT)).new.len(), 2);
        }
        assert!(add(&mut cache, ("one", "b", ":::s0:c1", MOUNT)).over.is_empty());
        assert_eq!(add(&mut cache, ("two", "b", ":::s0:c1", MOUNT)).over.len(), 2);
        assert!(cache.remove(&Key::new("ns", "a")).is_empty());
        cache.remove(&Key::new("ns", "b"));
        assert!(cache.volumes.is_empty() && cache.times.is_empty() && cache.of_pod.is_empty());
    }

    #[test]
    fn pods_of_a_driver() {
        let mut cache = Cache::default();
        for row in THERE {
            add(&mut cache, row);
        }
        let pods = |driver: &str| cache.pods_of(driver).map(|k| k.name.to_string()).collect::<Vec<_>>();
        assert_eq!(pods("driver-of-vol3"), ["pod3-1", "pod3-2"]);
        assert_eq!(pods("unknown"), Vec::<String>::new());
    }
}
