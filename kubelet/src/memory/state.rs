//! Memory of NUMA nodes that containers have to themselves, and its checkpoint in upstream's form, `memory_manager_state`.

use super::error::CheckpointError;
use crate::files;
use serde::{Deserialize, Deserializer, Serialize};
use shared::fnv::Fnv32;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Pod's uid and container.
pub(super) type Owner = (String, String);

/// Memory of one kind on one node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Table {
    pub(super) total: u64,
    /// Bytes of the system and the kubelet.
    pub(super) system_reserved: u64,
    pub(super) allocatable: u64,
    /// Bytes that containers have.
    pub(super) reserved: u64,
    pub(super) free: u64,
}

/// Memory of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NumaNode {
    /// Number of blocks that are here.
    pub(super) number_of_assignments: i64,
    /// Memory by kind: `memory`, `hugepages-2Mi` and so on.
    #[serde(deserialize_with = "or_nothing")]
    pub(super) memory_map: BTreeMap<String, Table>,
    /// Nodes that give memory together with this one; itself alone where each gives its own.
    #[serde(deserialize_with = "or_nothing")]
    pub(super) cells: Vec<u32>,
}

/// Memory of one kind that a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Block {
    /// NUMA nodes that it is of.
    #[serde(deserialize_with = "or_nothing")]
    pub numa_affinity: Vec<u32>,
    /// Kind: `memory`, `hugepages-2Mi` and so on.
    #[serde(rename = "type")]
    pub kind: String,
    /// Bytes.
    pub size: u64,
}

/// Memory of the machine, and who has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) machine: BTreeMap<u32, NumaNode>,
    pub(super) blocks: BTreeMap<Owner, Vec<Block>>,
}

type Entries = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MemoryCheckpoint {
    policy_name: String,
    #[serde(deserialize_with = "or_nothing")]
    machine_state: BTreeMap<u32, NumaNode>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_nothing")]
    entries: Entries,
    checksum: u64,
}

/// Reads what Go writes as null for an empty list or map.
fn or_nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn joined<T>(items: impl IntoIterator<Item = T>, text: impl FnMut(T) -> String) -> String {
    items.into_iter().map(text).collect::<Vec<String>>().join(" ")
}

fn numbers(nodes: &[u32]) -> String {
    joined(nodes, u32::to_string)
}

fn printed_node((id, node): (&u32, &NumaNode)) -> String {
    let table = |(kind, table): (&String, &Table)| {
        let Table { total, system_reserved, allocatable, reserved, free } = table;
        format!(
            "{kind}:<*>{{TotalMemSize:(uint64){total} SystemReserved:(uint64){system_reserved} \
             Allocatable:(uint64){allocatable} Reserved:(uint64){reserved} Free:(uint64){free}}}"
        )
    };
    let (tables, cells) = (joined(&node.memory_map, table), numbers(&node.cells));
    let assignments = node.number_of_assignments;
    format!(
        "{id}:<*>{{NumberOfAssignments:(int){assignments} MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{tables}] \
         Cells:([]int)[{cells}]}}"
    )
}

fn printed_block(block: &Block) -> String {
    let Block { numa_affinity, kind, size } = block;
    let nodes = numbers(numa_affinity);
    format!("{{NUMAAffinity:([]int)[{nodes}] Type:(v1.ResourceName){kind} Size:(uint64){size}}}")
}

impl MemoryCheckpoint {
    /// Upstream's checksum: FNV of the text that its `dump.ForHash` makes of the structure without one.
    fn checksum(&self) -> u64 {
        let blocks =
            |(container, blocks): (&String, &Vec<Block>)| format!("{container}:[{}]", joined(blocks, printed_block));
        let pod = |(pod, containers): (&String, &BTreeMap<String, Vec<Block>>)| {
            format!("{pod}:map[{}]", joined(containers, blocks))
        };
        let text = format!(
            "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} MachineState:(state.NUMANodeMap)map[{}] \
             Entries:(state.ContainerMemoryAssignments)map[{}] Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            joined(&self.machine_state, printed_node),
            joined(&self.entries, pod)
        );
        u64::from(Fnv32::default().write(text.as_bytes()).finish())
    }
}

impl State {
    /// Writes the checkpoint of a policy, whole or not at all.
    pub(super) fn write(&self, file: &Path, policy: &str) -> io::Result<()> {
        let mut entries = Entries::new();
        for ((uid, container), blocks) in &self.blocks {
            entries.entry(uid.clone()).or_default().insert(container.clone(), blocks.clone());
        }
        let (policy_name, machine_state) = (policy.to_owned(), self.machine.clone());
        let mut checkpoint = MemoryCheckpoint { policy_name, machine_state, entries, checksum: 0 };
        checkpoint.checksum = checkpoint.checksum();
        files::write_json(file, &checkpoint)
    }

    /// Reads the checkpoint of a policy; none where there is none.
    ///
    /// # Errors
    /// It is damaged, or another policy's; upstream's texts.
    pub(super) fn read(file: &Path, policy: &str) -> Result<Option<Self>, CheckpointError> {
        let Some(checkpoint) = files::read_json::<MemoryCheckpoint>(file)? else { return Ok(None) };
        if checkpoint.checksum != checkpoint.checksum() {
            return Err(CheckpointError::Corrupt);
        }
        if checkpoint.policy_name != policy {
            let (policy, known) = (policy.to_owned(), checkpoint.policy_name);
            return Err(CheckpointError::OtherPolicy { policy, known });
        }
        let mut blocks = BTreeMap::new();
        for (uid, containers) in checkpoint.entries {
            blocks.extend(containers.into_iter().map(|(container, own)| ((uid.clone(), container), own)));
        }
        Ok(Some(Self { machine: checkpoint.machine_state, blocks }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Written by upstream's `MarshalCheckpoint`.
    const NONE: &str = r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#;
    const STATIC: &str = concat!(
        r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":2,"memoryMap":{"hugepages-2Mi":{"total":50,"#,
        r#""systemReserved":1,"allocatable":49,"reserved":2,"free":47},"memory":{"total":100,"systemReserved":1,"#,
        r#""allocatable":99,"reserved":2,"free":97}},"cells":[0,1]},"1":{"numberOfAssignments":2,"memoryMap":{"memory":"#,
        r#"{"total":10,"systemReserved":1,"allocatable":9,"reserved":2,"free":7}},"cells":[0,1]}},"entries":{"u":{"a":"#,
        r#"[{"numaAffinity":[0,1],"type":"memory","size":5},{"numaAffinity":[0],"type":"hugepages-2Mi","size":7}],"b":"#,
        r#"[{"numaAffinity":[1],"type":"memory","size":1}]}},"checksum":1157631449}"#
    );

    #[test]
    fn checkpoints_are_upstreams() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("memory_manager_state");
        assert_eq!(State::read(&file, "None").expect("nothing"), None);
        for (written, policy) in [(NONE, "None"), (STATIC, "Static")] {
            fs::write(&file, written).expect("written");
            let state = State::read(&file, policy).expect("upstream's sum is right").expect("a state");
            state.write(&file, policy).expect("written");
            assert_eq!(fs::read_to_string(&file).expect("read"), written);
        }
    }

    #[test]
    fn damaged_checkpoints_and_those_of_other_policies_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("memory_manager_state");
        let read = |text: &str, policy: &str| {
            fs::write(&file, text).expect("written");
            State::read(&file, policy).expect_err("refused").to_string()
        };
        let other = "[memorymanager] configured policy \"None\" differs from state checkpoint policy \"Static\"";
        assert_eq!(read(STATIC, "None"), other);
        assert_eq!(read(&STATIC.replace("\"size\":5", "\"size\":6"), "Static"), "checkpoint is corrupted");
        assert!(read("nonsense", "None").starts_with("expected ident"));
        fs::write(&file, NONE.replace("{}", "null")).expect("written");
        assert_eq!(State::read(&file, "None").expect("read"), Some(State::default()), "null is an empty map");
    }
}
