//! `/stats/summary`.

use super::{ContainerUsage, Stats, machine};
use crate::pods;
use crate::volumes::{Usage, VolumeUsage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

fn time(nanoseconds: i64) -> Value {
    let stamp = Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or(Timestamp::UNIX_EPOCH);
    json!(Timestamp::from_second(stamp.as_second()).unwrap_or(stamp).to_string())
}

fn now() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

fn cpu(at: i64, used: u64, rate: Option<u64>) -> Value {
    let mut cpu = json!({"time": time(at), "usageCoreNanoSeconds": used});
    if let Some(rate) = rate {
        cpu["usageNanoCores"] = json!(rate);
    }
    cpu
}

fn disk(at: i64, disk: &machine::Disk) -> Value {
    json!({
        "time": time(at),
        "availableBytes": disk.available,
        "capacityBytes": disk.capacity,
        "usedBytes": disk.capacity.saturating_sub(disk.available),
        "inodesFree": disk.inodes_free,
        "inodes": disk.inodes,
        "inodesUsed": disk.inodes.saturating_sub(disk.inodes_free),
    })
}

fn of_volume(volume: &VolumeUsage, namespace: &str) -> Value {
    let Usage { available, capacity, used, inodes, inodes_free, inodes_used, is_abnormal } = volume.usage;
    let mut answer = json!({"time": time(now()), "name": volume.volume});
    for (name, number) in [
        ("availableBytes", available),
        ("capacityBytes", capacity),
        ("usedBytes", used),
        ("inodesFree", inodes_free),
        ("inodes", inodes),
        ("inodesUsed", inodes_used),
    ] {
        if let Some(number) = number {
            answer[name] = json!(number);
        }
    }
    if let Some(claim) = &volume.claim {
        answer["pvcRef"] = json!({"name": claim, "namespace": namespace});
    }
    if let Some(abnormal) = is_abnormal {
        answer["volumeHealthStats"] = json!({"abnormal": abnormal});
    }
    answer
}

impl Stats {
    /// The whole answer; without disks and networks when only CPU and memory are asked for.
    pub async fn summary(&self, short: bool) -> Value {
        let containers = self.containers().await;
        let mut by_pod: BTreeMap<&str, Vec<&ContainerUsage>> = BTreeMap::new();
        for container in &containers {
            by_pod.entry(&container.pod_uid).or_default().push(container);
        }
        let usage = self.pod_usage(self.parents()).await;
        let mut list = Vec::new();
        let all = self.manager.pods();
        let with_volumes =
            if short { all.into_iter().map(|pod| (pod, Arc::default())).collect() } else { self.volumes(all).await };
        for (pod, volumes) in with_volumes {
            let uid = pods::uid(&pod);
            let Some(containers) = by_pod.get(uid) else { continue };
            let mut answer = self.pod(&pod, containers, usage.get(uid), short);
            if !volumes.is_empty() {
                answer["volume"] = volumes.iter().map(|volume| of_volume(volume, pods::namespace(&pod))).collect();
            }
            list.push(answer);
        }
        json!({"node": self.node(short).await, "pods": list})
    }

    fn pod(
        &self,
        pod: &Pod,
        containers: &[&ContainerUsage],
        usage: Option<&crate::resources::Usage>,
        short: bool,
    ) -> Value {
        let at = now();
        let uid = pods::uid(pod);
        let sum = |of: fn(&ContainerUsage) -> u64| containers.iter().map(|container| of(container)).sum::<u64>();
        let cpu_ns = usage.map_or_else(|| sum(|c| c.cpu_ns), |usage| usage.cpu_ns);
        let working_set = usage.map_or_else(|| sum(|c| c.working_set), |usage| usage.working_set);
        let memory = usage.map_or_else(|| sum(|c| c.memory), |usage| usage.memory_usage);
        let rss = usage.map_or_else(|| sum(|c| c.rss), |usage| usage.rss);
        let started = containers.iter().map(|container| container.started_at).min().unwrap_or(at);
        let mut answer = json!({
            "podRef": {"name": pods::name(pod), "namespace": pods::namespace(pod), "uid": uid},
            "startTime": time(started),
            "containers": containers.iter().map(|container| self.container(container, short)).collect::<Vec<_>>(),
            "cpu": cpu(at, cpu_ns, self.rate(&format!("pod {uid}"), at, cpu_ns)),
            "memory": {"time": time(at), "usageBytes": memory, "workingSetBytes": working_set, "rssBytes": rss,
                "pageFaults": usage.map_or(0, |u| u.page_faults), "majorPageFaults": usage.map_or(0, |u| u.major_page_faults)},
        });
        if let Some(usage) = usage {
            answer["process_stats"] = json!({"process_count": usage.processes});
        }
        if !short {
            answer["ephemeral-storage"] =
                json!({"time": time(at), "usedBytes": sum(|c| c.disk_bytes), "inodesUsed": sum(|c| c.disk_inodes)});
        }
        answer
    }

    fn container(&self, container: &ContainerUsage, short: bool) -> Value {
        let at = container.time;
        let rate = self.rate(&container.id, at, container.cpu_ns);
        let mut answer = json!({
            "name": container.name,
            "startTime": time(container.started_at),
            "cpu": cpu(at, container.cpu_ns, rate),
            "memory": {"time": time(at), "usageBytes": container.memory, "workingSetBytes": container.working_set,
                "rssBytes": container.rss, "pageFaults": container.page_faults, "majorPageFaults": container.major_page_faults},
        });
        if !short {
            answer["rootfs"] =
                json!({"time": time(at), "usedBytes": container.disk_bytes, "inodesUsed": container.disk_inodes});
        }
        answer
    }

    async fn node(&self, short: bool) -> Value {
        let settings = &self.manager.context().settings;
        let (at, memory, cpu_ns) = (now(), machine::memory(), machine::cpu_ns());
        let mut node = json!({
            "nodeName": settings.node_name,
            "startTime": time(machine::boot_time()),
            "cpu": cpu(at, cpu_ns, self.rate("node", at, cpu_ns)),
            "memory": {"time": time(at), "availableBytes": memory.available(), "usageBytes": memory.used,
                "workingSetBytes": memory.working_set, "rssBytes": memory.rss},
        });
        if short {
            return node;
        }
        let interfaces = machine::interfaces();
        let shown = |interface: &machine::Interface| {
            let [received, receive_errors, sent, send_errors] = interface.counters;
            json!({"name": interface.name, "rxBytes": received, "rxErrors": receive_errors, "txBytes": sent, "txErrors": send_errors})
        };
        if let Some(first) =
            interfaces.iter().find(|interface| interface.name.starts_with("eth")).or(interfaces.first())
        {
            node["network"] = shown(first);
            node["network"]["time"] = time(at);
            node["network"]["interfaces"] = interfaces.iter().map(shown).collect();
        }
        if let Some(root) = machine::disk(&settings.root_dir) {
            node["fs"] = disk(at, &root);
        }
        if let Some(image_disk) = self.image_disk().await {
            node["runtime"] = json!({"imageFs": disk(at, &image_disk), "containerFs": disk(at, &image_disk)});
        }
        let (most, running) = machine::processes();
        node["rlimit"] = json!({"time": time(at), "maxpid": most, "curproc": running});
        node
    }

    /// The file system that holds the runtime's images.
    pub async fn image_disk(&self) -> Option<machine::Disk> {
        let answer = self.manager.context().runtime.image_fs().await.ok()?;
        let path = answer.image_filesystems.first()?.fs_id.as_ref()?.mountpoint.clone();
        machine::disk(path.as_ref())
    }
}
