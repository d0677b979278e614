//! Pods that use more of the node's disk than they may: volumes, containers and pods have limits of their own, whatever
//! is left on the node. Answers for upstream's `localStorageEviction`.

use super::disks::{DiskLayout, MeasuredFiles};
use crate::resources::at_peak;
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
    /// Of each `emptyDir` and `configMap` by volume name.
    pub volumes: BTreeMap<String, u64>,
    /// Writable layer of each container.
    pub layers: BTreeMap<String, u64>,
    /// Logs of each container.
    pub logs: BTreeMap<String, u64>,
}

impl Use {
    /// The sum of what counts, without what volumes hold in memory. Answers for upstream's `podDiskUsage`.
    pub fn on_disk(&self, pod: &Pod, counted: MeasuredFiles) -> u64 {
        let volumes = self.volumes.iter().filter(|(name, _)| counted.volumes && !in_memory(pod, name));
        let layers = self.layers.iter().filter(|_| counted.layers);
        let logs = self.logs.iter().filter(|_| counted.logs);
        volumes.chain(layers).chain(logs).fold(0, |sum, (_, used)| sum.saturating_add(*used))
    }

    /// Writable layer and logs of each container together.
    pub fn containers(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let logs = |name: &String| self.logs.get(name).copied().unwrap_or(0);
        self.layers.iter().map(move |(name, layer)| (name.clone(), layer.saturating_add(logs(name))))
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

/// Sum of the limits of what runs together, with the pod's overhead; none where no container has one (`PodLimits`).
fn pod_limit(pod: &Pod) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    containers(pod).find_map(limit)?;
    let most = at_peak(spec, |container| limit(container).unwrap_or(0), i64::saturating_add, i64::max);
    let overhead = spec.overhead.as_ref().and_then(|list| list.get(RESOURCE)?.0.parse::<Quantity>().ok());
    Some(most.saturating_add(overhead.filter(|_| most != 0).map_or(0, |overhead| overhead.value())))
}

/// Everything of a pod: `EphemeralStorage` of its statistics.
const WHOLE: MeasuredFiles = MeasuredFiles { layers: true, logs: true, volumes: true };

/// Finds the first limit that a pod exceeds: upstream's name of the limit, and a message. The writable layer does not count
/// for a container's own limit where images have a disk of their own (`containerEphemeralStorageLimitEviction`).
pub fn exceeded(pod: &Pod, used: &Use, layout: DiskLayout) -> Option<(&'static str, String)> {
    for (name, text, bytes) in volume_limits(pod) {
        if used.volumes.get(name).is_some_and(|used| *used > bytes) {
            return Some((
                "emptydirfs.limit",
                format!("Usage of EmptyDir volume {name:?} exceeds the limit {text:?}. "),
            ));
        }
    }
    let total = used.on_disk(pod, WHOLE);
    let most = pod_limit(pod);
    if let Some(most) = most.filter(|most| u64::try_from(*most).is_ok_and(|most| total > most)) {
        let shown = Quantity::from_int(most, proto::quantity::Format::BinarySI);
        let text = format!("Pod ephemeral local storage usage exceeds the total limit of containers {shown}. ");
        return Some(("ephemeralpodfs.limit", text));
    }
    pod.spec.iter().flat_map(|spec| &spec.containers).find_map(|container| {
        let most = limit(container).filter(|most| *most != 0)?;
        let of = |uses: &BTreeMap<String, u64>| uses.get(&container.name).copied();
        let layer = of(&used.layers)?;
        let layer = if layout == DiskLayout::Shared { layer } else { 0 };
        let used = layer.saturating_add(of(&used.logs).unwrap_or(0));
        let shown = container.resources.as_ref()?.limits.as_ref()?.get(RESOURCE)?;
        let too_much = u64::try_from(most).is_ok_and(|most| used > most);
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
            layers: [("a".to_owned(), a / 2), ("b".to_owned(), b)].into(),
            logs: [("a".to_owned(), a - a / 2)].into(),
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
            let found = exceeded(&pod, &used, DiskLayout::Shared);
            assert_eq!(found.as_ref().map(|(_, text)| text.as_str()), expected);
        }
        let layers = used(0, 0, 4000, 0);
        assert!(exceeded(&pod, &layers, DiskLayout::Shared).is_some());
        assert_eq!(exceeded(&pod, &layers, DiskLayout::Dedicated), None, "2000 bytes of logs alone");
        assert!(has_limits(&pod) && !has_limits(&Pod::default()));
    }

    #[test]
    fn sidecars_and_overhead_are_within_the_pods_limit() {
        let with =
            |name: &str, limit: &str| json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}});
        let mut sidecar = with("s", "1Ki");
        sidecar["restartPolicy"] = json!("Always");
        let pod = |spec: serde_json::Value| serde_json::from_value(json!({"spec": spec})).expect("pod");
        for (spec, expected) in [
            (json!({"containers": [{"name": "a"}]}), None),
            (json!({"containers": [with("a", "2Ki"), {"name": "b"}]}), Some(2048)),
            (json!({"containers": [with("a", "2Ki")], "initContainers": [sidecar, with("i", "4Ki")]}), Some(5120)),
            (json!({"containers": [with("a", "2Ki")], "overhead": {"ephemeral-storage": "1"}}), Some(2049)),
        ] {
            assert_eq!(pod_limit(&pod(spec)), expected);
        }
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
