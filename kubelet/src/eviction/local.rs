//! Pods that use more of the node's disk than they may: volumes, containers and pods have limits of their own, whatever
//! is left on the node. Answers for upstream's `localStorageEviction`.

use crate::trees;
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::quantity::Quantity;
use std::collections::BTreeMap;
use std::path::Path;

const RESOURCE: &str = "ephemeral-storage";

/// Unit in which the use of a disk is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes that are taken.
    Bytes,
    /// Files and folders.
    Inodes,
}

impl Unit {
    /// Counts a folder and everything below it; nothing where it cannot be read.
    pub fn of(self, folder: &Path) -> u64 {
        let size = trees::size(folder).unwrap_or_default();
        match self {
            Self::Bytes => size.bytes,
            Self::Inodes => size.inodes,
        }
    }
}

/// Use of a disk by one pod, in one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Of each `emptyDir` by volume name.
    pub volumes: BTreeMap<String, u64>,
    /// Writable layer and logs of each container.
    pub containers: BTreeMap<String, u64>,
}

impl Use {
    /// The sum without what volumes hold in memory.
    pub fn on_disk(&self, pod: &Pod) -> u64 {
        let volumes = self.volumes.iter().filter(|(name, _)| !in_memory(pod, name)).map(|(_, used)| used);
        volumes.chain(self.containers.values()).fold(0, |sum, used| sum.saturating_add(*used))
    }
}

fn limit(container: &Container) -> Option<i64> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    limits.get(RESOURCE)?.0.parse::<Quantity>().ok().map(|limit| limit.value())
}

/// A volume's name and its limit as written and in bytes.
fn volume_limits(pod: &Pod) -> impl Iterator<Item = (&str, &str, u64)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let bytes = u64::try_from(limit.0.parse::<Quantity>().ok()?.value()).ok().filter(|bytes| *bytes > 0)?;
        Some((volume.name.as_str(), limit.0.as_str(), bytes))
    })
}

fn in_memory(pod: &Pod, volume: &str) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let found = volumes.find(|v| v.name == volume).and_then(|v| v.empty_dir.as_ref());
    found.is_some_and(|source| source.medium.as_deref() == Some("Memory"))
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
}

/// Only such pods are measured.
pub fn has_limits(pod: &Pod) -> bool {
    volume_limits(pod).next().is_some() || containers(pod).any(|container| limit(container).is_some())
}

/// Finds the first limit that a pod exceeds: upstream's name of the limit, and a message.
pub fn exceeded(pod: &Pod, used: &Use) -> Option<(&'static str, String)> {
    for (name, text, bytes) in volume_limits(pod) {
        if used.volumes.get(name).is_some_and(|used| *used > bytes) {
            return Some((
                "emptydirfs.limit",
                format!("Usage of EmptyDir volume {name:?} exceeds the limit {text:?}. "),
            ));
        }
    }
    let total = used.on_disk(pod);
    let limits = pod.spec.iter().flat_map(|spec| &spec.containers).filter_map(limit);
    let most = limits.reduce(i64::saturating_add);
    if let Some(most) = most.filter(|most| u64::try_from(*most).is_ok_and(|most| total > most)) {
        let shown = Quantity::from_int(most, proto::quantity::Format::BinarySI);
        let text = format!("Pod ephemeral local storage usage exceeds the total limit of containers {shown}. ");
        return Some(("ephemeralpodfs.limit", text));
    }
    containers(pod).find_map(|container| {
        let most = limit(container)?;
        let used = used.containers.get(&container.name)?;
        let shown = container.resources.as_ref()?.limits.as_ref()?.get(RESOURCE)?;
        let too_much = u64::try_from(most).is_ok_and(|most| *used > most);
        let text =
            || format!("Container {} exceeded its local ephemeral storage limit {:?}. ", container.name, shown.0);
        too_much.then(|| ("ephemeralcontainerfs.limit", text()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn volumes_containers_and_pods_have_limits() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "a", "resources": {"limits": {"ephemeral-storage": "2Ki"}}},
                           {"name": "b", "resources": {"limits": {"ephemeral-storage": "4Ki"}}}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}, {"name": "w", "emptyDir": {}},
                        {"name": "m", "emptyDir": {"medium": "Memory"}}],
        }}))
        .expect("pod");
        let used = |v: u64, w: u64, a: u64, b: u64| Use {
            volumes: [("v".to_owned(), v), ("w".to_owned(), w), ("m".to_owned(), 1 << 20)].into(),
            containers: [("a".to_owned(), a), ("b".to_owned(), b)].into(),
        };
        for (used, expected) in [
            (used(1024, 0, 2048, 3072), None),
            (used(1025, 0, 0, 0), Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". ")),
            (
                used(0, 5000, 1000, 1000),
                Some("Pod ephemeral local storage usage exceeds the total limit of containers 6Ki. "),
            ),
            (used(0, 0, 2049, 0), Some("Container a exceeded its local ephemeral storage limit \"2Ki\". ")),
        ] {
            assert_eq!(exceeded(&pod, &used).as_ref().map(|(_, text)| text.as_str()), expected);
        }
        assert!(has_limits(&pod) && !has_limits(&Pod::default()));
    }

    #[test]
    fn all_files_below_a_folder_count() {
        let folder = std::env::temp_dir().join(format!("ironclad-local-{}", std::process::id()));
        fs::create_dir_all(folder.join("deep")).expect("folder");
        let before = Unit::Bytes.of(&folder);
        fs::write(folder.join("deep/file"), vec![1; 10_000]).expect("written");
        assert!(Unit::Bytes.of(&folder) >= before + 10_000);
        crate::trees::remove(&folder).expect("clean");
    }
}
