//! Empty folders, on the disk or in memory.

use super::mounts;
use crate::facts::PodFacts;
use crate::files::make_private;
use crate::resources::pod_limits;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use proto::quantity::Quantity as Amount;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Makes a folder, unless it is there.
pub(super) fn make_folder(folder: &Path, mode: u32) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

/// Bytes that a volume in memory may hold: no more than its limit, than the pod may use, than the node gives to pods.
pub(super) fn memory_size(pod: &Pod, facts: &PodFacts, source: &EmptyDirVolumeSource) -> Option<i64> {
    let own = source.size_limit.as_ref().and_then(|limit| limit.0.parse::<Amount>().ok()).map(|size| size.value());
    let pod = pod.spec.as_ref().and_then(|spec| pod_limits(spec).memory);
    let node = facts.allocatable.get("memory").and_then(|all| all.0.parse::<Amount>().ok()).map(|all| all.value());
    [own, pod, node].into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// File that says that a volume's folder is whole: upstream's name of it.
const READY: &str = "ready";

/// An empty folder that lives as long as the pod. Once it is ready it is the containers' own: a second call must not touch it.
/// One that a kubelet was killed at making is not: `record` is the folder of the file that says so, as upstream has it.
pub(super) fn empty_dir(
    (folder, record): (&Path, &Path),
    medium: &str,
    size: Option<i64>,
    group: Option<u32>,
) -> io::Result<()> {
    let is_made = if medium.is_empty() { folder.is_dir() } else { mounts::is_mount_point(folder)? };
    if is_made && record.join(READY).is_file() {
        return Ok(());
    }
    make_folder(folder, 0o777)?;
    if medium == "Memory" {
        mounts::memory(folder, "tmpfs", &size.map(|bytes| format!("size={bytes}")).unwrap_or_default())?;
    } else if let Some(page) = medium.strip_prefix("HugePages-") {
        mounts::memory(folder, "hugetlbfs", &format!("pagesize={}", page.trim_end_matches('i')))?;
    } else if !medium.is_empty() && medium != "HugePages" {
        return Err(io::Error::other(format!("unknown storage medium {medium:?}")));
    } else if medium == "HugePages" {
        mounts::memory(folder, "hugetlbfs", "")?;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
    group.map_or(Ok(()), |group| mounts::give_to_group(folder, group, false))?;
    make_private(record)?;
    fs::File::create(record.join(READY)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[test]
    fn a_folder_that_a_kubelet_was_killed_at_making_is_finished() {
        let root = tempfile::tempdir().expect("a folder");
        let (folder, record) = (root.path().join("volumes/v"), root.path().join("plugins/v"));
        let mode = || fs::metadata(&folder).expect("made").permissions().mode() & 0o7777;
        fs::create_dir_all(&folder).expect("made");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("mode");
        empty_dir((&folder, &record), "", None, Some(1234)).expect("made");
        assert_eq!(mode(), 0o2777, "everybody's, and the group's");
        assert!(record.join("ready").is_file());
        // From now on it is the container's.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("mode");
        empty_dir((&folder, &record), "", None, Some(1234)).expect("there");
        assert_eq!(mode(), 0o700);
        empty_dir((&folder, &record), "Disk", None, None).expect_err("no such medium");
    }

    #[test]
    fn a_volume_in_memory_is_as_large_as_its_pod_may_be() {
        let facts = PodFacts {
            allocatable: BTreeMap::from([("memory".to_owned(), Quantity("1Gi".to_owned()))]),
            ..PodFacts::default()
        };
        let limited = |limit: &str| json!({"name": "c", "resources": {"limits": {"memory": limit}}});
        for (size, containers, expected) in [
            (json!({}), json!([{"name": "c"}]), 1 << 30),
            (json!({"sizeLimit": "0"}), json!([limited("10Mi"), limited("6Mi")]), 16 << 20),
            (json!({"sizeLimit": "5Mi"}), json!([limited("10Mi")]), 5 << 20),
            (json!({"sizeLimit": "50Mi"}), json!([limited("10Mi")]), 10 << 20),
            (json!({"sizeLimit": "50Mi"}), json!([limited("10Mi"), {"name": "d"}]), 50 << 20),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": {"containers": containers}})).expect("pod");
            let source = serde_json::from_value(size.clone()).expect("source");
            assert_eq!(memory_size(&pod, &facts, &source), Some(expected), "{size}");
        }
    }
}
