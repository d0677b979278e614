//! Processors that containers have to themselves, and their checkpoint in upstream's form, `cpu_manager_state`.

use super::error::CheckpointError;
use crate::cpu_set::CpuSet;
use crate::files;
use serde::{Deserialize, Serialize};
use shared::fnv::Fnv32;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Pod's uid and container.
pub(super) type Owner = (String, String);

/// Processors by owner; those of nobody are everybody's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) shared: CpuSet,
    pub(super) exclusive: BTreeMap<Owner, CpuSet>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Checkpoint {
    policy_name: String,
    default_cpu_set: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    checksum: u64,
}

impl Checkpoint {
    /// Upstream's checksum: FNV of the text that its `dump.ForHash` makes of the structure without one.
    fn checksum(&self) -> u64 {
        let entries = self.entries.iter().map(|(pod, containers)| {
            let containers: Vec<String> = containers.iter().map(|(name, set)| format!("{name}:{set}")).collect();
            format!("{pod}:map[{}]", containers.join(" "))
        });
        let entries: Vec<String> = entries.collect();
        let text = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string)map[{}] Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            self.default_cpu_set,
            entries.join(" ")
        );
        u64::from(Fnv32::default().write(text.as_bytes()).finish())
    }
}

impl State {
    /// Processors of a container: its own, or everybody's.
    pub(super) fn of(&self, owner: &Owner) -> &CpuSet {
        self.exclusive.get(owner).unwrap_or(&self.shared)
    }

    /// Gives processors to a container alone.
    pub(super) fn give(&mut self, owner: Owner, cpus: CpuSet) {
        self.shared = self.shared.difference(&cpus);
        self.exclusive.insert(owner, cpus);
    }

    /// Gives back what pods have that are not there any more. Reports whether there was something.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let before = self.exclusive.len();
        let mut freed = CpuSet::default();
        self.exclusive.retain(|(uid, _), cpus| {
            let stays = is_there(uid);
            if !stays {
                freed = freed.union(cpus);
            }
            stays
        });
        self.shared = self.shared.union(&freed);
        self.exclusive.len() != before
    }

    /// Writes the checkpoint of a policy, whole or not at all.
    pub(super) fn write(&self, file: &Path, policy: &str) -> io::Result<()> {
        let mut entries: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for ((uid, container), cpus) in &self.exclusive {
            entries.entry(uid.clone()).or_default().insert(container.clone(), cpus.to_string());
        }
        let (policy_name, default_cpu_set) = (policy.to_owned(), self.shared.to_string());
        let mut checkpoint = Checkpoint { policy_name, default_cpu_set, entries, checksum: 0 };
        checkpoint.checksum = checkpoint.checksum();
        files::write_json(file, &checkpoint)
    }

    /// Reads the checkpoint of a policy; none where there is none.
    ///
    /// # Errors
    /// It is damaged, or another policy's.
    pub(super) fn read(file: &Path, policy: &str) -> Result<Option<Self>, CheckpointError> {
        let Some(checkpoint) = files::read_json::<Checkpoint>(file)? else { return Ok(None) };
        if checkpoint.policy_name != policy {
            let (policy, known) = (policy.to_owned(), checkpoint.policy_name);
            return Err(CheckpointError::OtherPolicy { policy, known });
        }
        if checkpoint.checksum != 0 && checkpoint.checksum != checkpoint.checksum() {
            return Err(CheckpointError::Corrupt);
        }
        let mut exclusive = BTreeMap::new();
        for (uid, containers) in checkpoint.entries {
            for (container, cpus) in containers {
                exclusive.insert((uid.clone(), container), cpus.parse()?);
            }
        }
        Ok(Some(Self { shared: checkpoint.default_cpu_set.parse()?, exclusive }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn owner(container: &str) -> Owner {
        ("u".to_owned(), container.to_owned())
    }

    #[test]
    fn checkpoints_are_upstreams() {
        let none = Checkpoint { policy_name: "none".to_owned(), ..Checkpoint::default() };
        assert_eq!(none.checksum(), 1_353_318_690, "the number of every node without a policy");
        let entries = [("u".to_owned(), [("a".to_owned(), "1-2".to_owned()), ("b".to_owned(), "5".to_owned())].into())];
        let (policy_name, default_cpu_set) = ("static".to_owned(), "0,3-4".to_owned());
        let full = Checkpoint { policy_name, default_cpu_set, entries: entries.into(), checksum: 0 };
        assert_eq!(full.checksum(), 4_051_435_725);
    }

    #[test]
    fn what_is_given_comes_back_with_the_pod() {
        let mut state = State { shared: "0-7".parse().expect("a set"), exclusive: BTreeMap::new() };
        state.give(owner("a"), "2-3".parse().expect("a set"));
        state.give(("v".to_owned(), "a".to_owned()), "4".parse().expect("a set"));
        assert_eq!(
            (state.of(&owner("a")).to_string(), state.of(&owner("b")).to_string()),
            ("2-3".into(), "0-1,5-7".into())
        );
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("cpu_manager_state");
        assert_eq!(State::read(&file, "static").expect("nothing"), None);
        state.write(&file, "static").expect("written");
        assert_eq!(State::read(&file, "static").expect("read"), Some(state.clone()));
        let other = "configured policy \"none\" differs from state checkpoint policy \"static\"";
        assert_eq!(State::read(&file, "none").expect_err("another").to_string(), other);
        let text = fs::read_to_string(&file).expect("read").replace("2-3", "2-5");
        fs::write(&file, text).expect("written");
        assert_eq!(State::read(&file, "static").expect_err("damaged").to_string(), "checkpoint is corrupted");
        assert!(state.retain(|uid| uid != "u") && !state.retain(|_| true));
        assert_eq!(state.shared.to_string(), "0-3,5-7");
    }
}
