//! `/stats/summary`.

use super::cgroup::CgroupReader;
use super::disks::{self, Logs};
use super::pressure::Pressure;
use super::{ContainerUsage, Stats, machine, now};
use crate::pods;
use crate::resources::cgroup_version;
use crate::volumes::{Usage, VolumeUsage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

fn time(nanoseconds: i64) -> Value {
    let stamp = Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or(Timestamp::UNIX_EPOCH);
    json!(Timestamp::from_second(stamp.as_second()).unwrap_or(stamp).to_string())
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

/// Use of a part of a file system; without what the file system tells where it is not known.
fn part(at: i64, used: disks::DiskUse, around: Option<&machine::Disk>) -> Value {
    let mut answer = around.map_or_else(|| json!({"time": time(at)}), |around| disk(at, around));
    answer["usedBytes"] = json!(used.bytes);
    answer["inodesUsed"] = json!(used.inodes);
    answer
}

/// Swap that is used; what is left of it where it is limited.
fn swap(at: i64, used: Option<u64>, limit: Option<u64>) -> Option<Value> {
    let mut answer = json!({"time": time(at), "swapUsageBytes": used?});
    if let Some(limit) = limit {
        answer["swapAvailableBytes"] = json!(limit.saturating_sub(used?));
    }
    Some(answer)
}

/// File systems that the answer is about.
struct FileSystems {
    /// File system of the kubelet's root directory.
    root: Option<machine::Disk>,
    /// File system of the pods' logs.
    logs: Option<machine::Disk>,
    /// File systems of the containers' layers, by mount point.
    layers: HashMap<String, machine::Disk>,
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

/// Adds what waited, where the kernel counts it.
fn add_pressure(answer: &mut Value, pressure: &Pressure, at: i64) {
    for resource in ["cpu", "memory"] {
        if let Some(waited) = pressure.read(resource) {
            answer[resource]["psi"] = waited;
        }
    }
    if let Some(waited) = pressure.read("io") {
        answer["io"] = json!({"time": time(at), "psi": waited});
    }
}

/// Reads what a pod's cgroup tells besides its use: pressure, and traffic of the network that is its own.
async fn of_pod(parent: Option<String>, has_no_network: bool) -> Option<(Option<Pressure>, Option<Value>)> {
    let read = move |path: &str| {
        let pressure = Pressure::of_cgroup(path, cgroup_version());
        let first = CgroupReader::of_machine().first_process(path)?;
        Some((pressure, (!has_no_network).then(|| network(&first.to_string(), now())).flatten()))
    };
    let parent = parent?;
    tokio::task::spawn_blocking(move || read(&parent)).await.ok().flatten()
}

/// Traffic of the network that a process is in.
fn network(process: &str, at: i64) -> Option<Value> {
    let all = machine::traffic(process);
    let shown = |traffic: &machine::Traffic| {
        let [rx, _, rx_errors, _, tx, _, tx_errors, _] = traffic.counters;
        json!({"name": traffic.interface, "rxBytes": rx, "rxErrors": rx_errors, "txBytes": tx, "txErrors": tx_errors})
    };
    let mut answer = shown(all.iter().find(|traffic| traffic.interface == "eth0").or(all.first())?);
    answer["time"] = time(at);
    answer["interfaces"] = all.iter().map(shown).collect();
    Some(answer)
}

impl Stats {
    /// The whole answer; without disks and networks when only CPU and memory are asked for.
    pub async fn summary(&self, short: bool) -> Value {
        let containers = if short { self.containers_measured().await } else { self.containers_with_disks().await };
        let mut by_pod: BTreeMap<&str, Vec<&ContainerUsage>> = BTreeMap::new();
        for container in &containers {
            by_pod.entry(&container.pod_uid).or_default().push(container);
        }
        let parents: BTreeMap<String, String> = self.parents().into_iter().collect();
        let usage = self.pod_usage(parents.clone().into_iter().collect()).await;
        let mut list = Vec::new();
        let all = self.manager.pods();
        let logs = if short { Logs::new() } else { self.measure_logs(&all).await };
        let disks = self.file_systems(&containers, short).await;
        let with_volumes =
            if short { all.into_iter().map(|pod| (pod, Arc::default())).collect() } else { self.volumes(all).await };
        for (pod, volumes) in with_volumes {
            let uid = pods::uid(&pod);
            let Some(containers) = by_pod.get(uid) else { continue };
            let mut answer = self.pod(&pod, containers, usage.get(uid));
            if !short {
                let used = disks::ephemeral(&pod, containers, &logs, &volumes);
                answer["ephemeral-storage"] = part(now(), used, disks.root.as_ref());
                answer["containers"] =
                    containers.iter().map(|container| self.container_on_disk(container, &logs, &disks)).collect();
            }
            let parent = parents.get(uid).cloned();
            if let Some((pressure, traffic)) = of_pod(parent, short || pods::host_network(&pod)).await {
                if let Some(pressure) = pressure {
                    add_pressure(&mut answer, &pressure, now());
                }
                if let Some(traffic) = traffic {
                    answer["network"] = traffic;
                }
            }
            if !volumes.is_empty() {
                answer["volume"] = volumes.iter().map(|volume| of_volume(volume, pods::namespace(&pod))).collect();
            }
            list.push(answer);
        }
        json!({"node": self.node(short).await, "pods": list})
    }

    fn pod(&self, pod: &Pod, containers: &[&ContainerUsage], usage: Option<&crate::resources::Usage>) -> Value {
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
            "containers": containers.iter().map(|container| self.container(container)).collect::<Vec<_>>(),
            "cpu": cpu(at, cpu_ns, self.rate(&format!("pod {uid}"), at, cpu_ns)),
            "memory": {"time": time(at), "usageBytes": memory, "workingSetBytes": working_set, "rssBytes": rss,
                "pageFaults": usage.map_or(0, |u| u.page_faults), "majorPageFaults": usage.map_or(0, |u| u.major_page_faults)},
        });
        if let Some(usage) = usage {
            answer["process_stats"] = json!({"process_count": usage.processes});
            if let Some(limit) = usage.memory_limit {
                answer["memory"]["availableBytes"] = json!(limit.saturating_sub(usage.working_set));
            }
            if let Some(swap) = swap(at, usage.swap, usage.swap_limit) {
                answer["swap"] = swap;
            }
        }
        answer
    }

    fn container(&self, container: &ContainerUsage) -> Value {
        let at = container.time;
        let rate = self.rate(&container.id, at, container.cpu_ns);
        let mut answer = json!({
            "name": container.name,
            "startTime": time(container.started_at),
            "cpu": cpu(at, container.cpu_ns, rate),
            "memory": {"time": time(at), "usageBytes": container.memory, "workingSetBytes": container.working_set,
                "rssBytes": container.rss, "pageFaults": container.page_faults, "majorPageFaults": container.major_page_faults},
        });
        if let Some(limit) = container.memory_limit {
            answer["memory"]["availableBytes"] = json!(limit.saturating_sub(container.working_set));
        }
        if let Some(swap) = swap(at, container.swap, container.swap_limit) {
            answer["swap"] = swap;
        }
        if let Some(pressure) =
            Pressure::of_cgroup(&container.cgroup, cgroup_version()).filter(|_| !container.cgroup.is_empty())
        {
            add_pressure(&mut answer, &pressure, at);
        }
        answer
    }

    /// A container with its layer and its logs.
    fn container_on_disk(&self, container: &ContainerUsage, logs: &Logs, disks: &FileSystems) -> Value {
        let mut answer = self.container(container);
        let layer = disks::DiskUse { bytes: container.disk_bytes, inodes: container.disk_inodes };
        answer["rootfs"] = part(container.time, layer, disks.layers.get(&container.disk));
        let log = logs.get(&(container.pod_uid.clone(), container.name.clone())).copied().unwrap_or_default();
        answer["logs"] = part(container.time, log, disks.logs.as_ref());
        answer
    }

    async fn file_systems(&self, containers: &[ContainerUsage], short: bool) -> FileSystems {
        if short {
            return FileSystems { root: None, logs: None, layers: HashMap::new() };
        }
        let settings = &self.manager.context().settings;
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let (root, logs) = (path(&settings.root_dir), path(&settings.pod_logs_dir));
        let points: BTreeSet<&str> = containers.iter().map(|container| container.disk.as_str()).collect();
        let points = points.into_iter().filter(|point| !point.is_empty()).chain([root.as_str(), &logs]);
        let layers = self.disks_at(points.map(str::to_owned).collect()).await;
        FileSystems { root: layers.get(&root).copied(), logs: layers.get(&logs).copied(), layers }
    }

    /// The kubelet's own cgroup and that of all pods.
    async fn system_containers(&self, at: i64) -> Value {
        let cgroups = Arc::clone(&self.manager.context().cgroups);
        let read = tokio::task::spawn_blocking(move || {
            let own = machine::own_cgroup().map(|path| ("kubelet", path));
            let pods = cgroups.tree().into_iter().next().map(|path| ("pods", path));
            let mut reader = CgroupReader::of_machine();
            let found = own.into_iter().chain(pods);
            found.filter_map(|(name, path)| Some((name, reader.read(&path)?, path))).collect::<Vec<_>>()
        });
        let mut all = Vec::new();
        for (name, stats, path) in read.await.unwrap_or_default() {
            let cpu_ns = stats.cpu[0].unwrap_or(0);
            let made = i64::try_from(stats.made.unwrap_or(0)).unwrap_or(0).saturating_mul(1_000_000_000);
            let mut one = json!({
                "name": name,
                "startTime": time(made),
                "cpu": cpu(at, cpu_ns, self.rate(&format!("system {name}"), at, cpu_ns)),
                "memory": {"time": time(at), "usageBytes": stats.memory.unwrap_or(0),
                    "workingSetBytes": stats.working_set(), "rssBytes": stats.parts.rss,
                    "pageFaults": stats.parts.faults_below[0], "majorPageFaults": stats.parts.faults_below[1]},
            });
            if let Some(swap) = swap(at, stats.parts.swap, stats.swap_limit) {
                one["swap"] = swap;
            }
            if let Some(limit) = stats.memory_limit {
                one["memory"]["availableBytes"] = json!(limit.saturating_sub(stats.working_set()));
            }
            if let Some(pressure) = Pressure::of_cgroup(&path, cgroup_version()) {
                add_pressure(&mut one, &pressure, at);
            }
            all.push(one);
        }
        Value::Array(all)
    }

    async fn node(&self, short: bool) -> Value {
        let settings = &self.manager.context().settings;
        let (at, memory, cpu_ns) = (now(), machine::memory(), machine::cpu_ns());
        let pressure = Pressure::of_machine();
        let mut node = json!({
            "nodeName": settings.node_name,
            "startTime": time(machine::boot_time()),
            "cpu": cpu(at, cpu_ns, self.rate("node", at, cpu_ns)),
            "memory": {"time": time(at), "availableBytes": memory.available(), "usageBytes": memory.used,
                "workingSetBytes": memory.working_set, "rssBytes": memory.rss,
                "pageFaults": memory.page_faults, "majorPageFaults": memory.major_page_faults},
        });
        add_pressure(&mut node, &pressure, at);
        node["systemContainers"] = self.system_containers(at).await;
        if short {
            return node;
        }
        let (swap, used) = (self.manager.context().machine.swap, machine::swap_used());
        node["swap"] =
            json!({"time": time(at), "swapAvailableBytes": swap.saturating_sub(used), "swapUsageBytes": used});
        if let Some(traffic) = network("self", at) {
            node["network"] = traffic;
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
