//! Use of disks by pods: layers of containers, their logs, volumes that live as long as the pod.

use super::{ContainerUsage, Stats, machine};
use crate::blocking::WALKS;
use crate::pods;
use crate::trees;
use crate::volumes::VolumeUsage;
use k8s_openapi::api::core::v1::Pod;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiskUse {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
}

impl DiskUse {
    fn add(&mut self, bytes: u64, inodes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.inodes = self.inodes.saturating_add(inodes);
    }
}

/// Logs of containers by the pod's uid and the container's name.
pub(super) type Logs = HashMap<(String, String), DiskUse>;

/// Sum of what a pod has on the node's disk. Answers for upstream's `calcEphemeralStorage`.
pub(super) fn ephemeral(pod: &Pod, containers: &[&ContainerUsage], logs: &Logs, volumes: &[VolumeUsage]) -> DiskUse {
    let mut sum = DiskUse::default();
    for container in containers {
        sum.add(container.disk_bytes, container.disk_inodes);
        if let Some(log) = logs.get(&(container.pod_uid.clone(), container.name.clone())) {
            sum.add(log.bytes, log.inodes);
        }
    }
    let specs = || pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    for volume in volumes {
        let is_local = specs().find(|spec| spec.name == volume.volume).is_some_and(|spec| {
            let is_on_disk = |medium: Option<&str>| medium.unwrap_or_default().is_empty();
            spec.config_map.is_some()
                || spec.git_repo.is_some()
                || spec.empty_dir.as_ref().is_some_and(|source| is_on_disk(source.medium.as_deref()))
        });
        if is_local {
            sum.add(volume.usage.used.unwrap_or(0), volume.usage.inodes_used.unwrap_or(0));
        }
    }
    sum
}

impl Stats {
    /// Measures the logs of all containers of pods.
    pub(super) async fn measure_logs(&self, pods: &[Arc<Pod>]) -> Logs {
        let settings = &self.manager.context().settings;
        let folder = |pod: &Arc<Pod>| {
            let path = settings.pod_log_dir(pods::namespace(pod), pods::name(pod), pods::uid(pod));
            (pods::uid(pod).to_owned(), path)
        };
        let folders: Vec<(String, PathBuf)> = pods.iter().map(folder).collect();
        WALKS.run(move || Ok(measure(folders))).await.unwrap_or_default()
    }

    /// Bytes of the logs of each container of pods.
    pub(super) async fn logs(&self, pods: &[Arc<Pod>]) -> Vec<(Arc<Pod>, String, u64)> {
        let logs = self.measure_logs(pods).await;
        let by_uid: HashMap<&str, &Arc<Pod>> = pods.iter().map(|pod| (pods::uid(pod), pod)).collect();
        let told = logs.into_iter().filter_map(|((uid, container), size)| {
            Some((Arc::clone(by_uid.get(uid.as_str())?), container, size.bytes))
        });
        let mut told: Vec<_> = told.collect();
        told.sort_by(|a, b| {
            (pods::namespace(&a.0), pods::name(&a.0), &a.1).cmp(&(pods::namespace(&b.0), pods::name(&b.0), &b.1))
        });
        told
    }

    /// The file systems at these mount points.
    pub(super) async fn disks_at(&self, points: Vec<String>) -> HashMap<String, machine::Disk> {
        let measured = move || {
            let disk = |point: String| machine::disk(point.as_ref()).map(|disk| (point, disk));
            Ok(points.into_iter().filter_map(disk).collect())
        };
        WALKS.run(measured).await.unwrap_or_default()
    }
}

/// Sizes of the folders of containers below those of pods.
fn measure(folders: Vec<(String, PathBuf)>) -> Logs {
    let mut logs = Logs::new();
    for (uid, folder) in folders {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (Ok(name), Ok(size)) = (entry.file_name().into_string(), trees::size(&entry.path())) else { continue };
            logs.insert((uid.clone(), name), DiskUse { bytes: size.bytes, inodes: size.inodes });
        }
    }
    logs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::Usage;
    use serde_json::json;

    #[test]
    fn what_lives_as_long_as_the_pod_is_its_ephemeral_storage() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [
            {"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "map", "configMap": {"name": "m"}}, {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}}]}}))
        .expect("pod");
        let volume = |name: &str, used| VolumeUsage {
            volume: name.to_owned(),
            claim: None,
            usage: Usage { used: Some(used), inodes_used: Some(1), ..Usage::default() },
        };
        let volumes = [volume("disk", 1), volume("memory", 20), volume("map", 300), volume("claim", 4000)];
        let container = ContainerUsage {
            pod_uid: "u".to_owned(),
            name: "c".to_owned(),
            disk_bytes: 50_000,
            disk_inodes: 3,
            ..ContainerUsage::default()
        };
        let logs = Logs::from([(("u".to_owned(), "c".to_owned()), DiskUse { bytes: 600_000, inodes: 2 })]);
        let expected = DiskUse { bytes: 650_301, inodes: 7 };
        assert_eq!(ephemeral(&pod, &[&container], &logs, &volumes), expected);
    }

    #[test]
    fn logs_are_measured_by_container() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::create_dir_all(folder.path().join("c")).expect("folder");
        std::fs::write(folder.path().join("c/0.log"), vec![1; 10_000]).expect("log");
        let logs = measure(vec![("u".to_owned(), folder.path().to_owned()), ("v".to_owned(), "/nowhere".into())]);
        let [(key, size)] = logs.iter().collect::<Vec<_>>()[..] else { panic!("one: {logs:?}") };
        assert_eq!((key.0.as_str(), key.1.as_str()), ("u", "c"));
        assert!(size.bytes >= 10_000 && size.inodes >= 1, "{size:?}");
    }
}
