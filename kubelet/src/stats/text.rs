//! The metrics endpoints.

use super::cgroup::CgroupReader;
use super::subjects::MeasuredCgroup;
use super::{ContainerUsage, Stats, cadvisor, machine};
use crate::metrics;
use crate::pods;
use crate::resources::Usage;
use crate::volumes::Usage as VolumeUse;
use crate::workers::mailbox::Lifecycle;
use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use shared::types::is_pod_terminal;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Pieces of a page that wait for their reader.
const PIECES: usize = 4;

/// Writes families of the text format.
#[derive(Default)]
pub(super) struct Families(String);

impl Families {
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64, time_ms: Option<i64>) {
        self.0.push_str(name);
        if !labels.is_empty() {
            let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let all: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
            write!(self.0, "{{{}}}", all.join(",")).ok();
        }
        write!(self.0, " {value}").ok();
        if let Some(time) = time_ms {
            write!(self.0, " {time}").ok();
        }
        self.0.push('\n');
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
fn float(value: u64) -> f64 {
    value as f64
}

fn seconds(nanoseconds: u64) -> f64 {
    float(nanoseconds) / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
fn started(container: &ContainerUsage) -> f64 {
    container.started_at as f64 / 1e9
}

/// A metric: name, type, help, value.
type Metric<T> = (&'static str, &'static str, &'static str, fn(&T) -> Option<f64>);

/// Of each container in `/metrics/resource`.
const OF_CONTAINERS: [Metric<ContainerUsage>; 5] = [
    (
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        |c| Some(seconds(c.cpu_ns)),
    ),
    ("container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes", |c| {
        Some(float(c.working_set))
    }),
    (
        "container_start_time_seconds",
        "gauge",
        "[STABLE] Start time of the container since unix epoch in seconds",
        |c| Some(started(c)),
    ),
    (
        "container_swap_limit_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
        |c| c.swap_limit.map(float),
    ),
    (
        "container_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
        |c| c.swap.map(float),
    ),
];

/// Of each pod in `/metrics/resource`.
const OF_PODS: [Metric<Usage>; 3] = [
    (
        "pod_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
        |u| Some(seconds(u.cpu_ns)),
    ),
    ("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes", |u| {
        Some(float(u.working_set))
    }),
    (
        "pod_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
        |u| u.swap.map(float),
    ),
];

/// A metric of claims' volumes: end of its name, help, value.
type OfClaim = (&'static str, &'static str, fn(&VolumeUse) -> Option<u64>);

/// Of each claim in `/metrics`.
const OF_CLAIMS: [OfClaim; 7] = [
    ("capacity_bytes", "Capacity in bytes of the volume", |u| u.capacity),
    ("available_bytes", "Number of available bytes in the volume", |u| u.available),
    ("used_bytes", "Number of used bytes in the volume", |u| u.used),
    ("inodes", "Maximum number of inodes in the volume", |u| u.inodes),
    ("inodes_free", "Number of free inodes in the volume", |u| u.inodes_free),
    ("inodes_used", "Number of used inodes in the volume", |u| u.inodes_used),
    (
        "health_status_abnormal",
        "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates \
         volume is healthy",
        |u| u.is_abnormal.map(u64::from),
    ),
];

/// Families of claims' volumes, by namespace and claim.
fn of_claims(usage: &BTreeMap<(String, String), VolumeUse>) -> String {
    let mut out = Families(String::new());
    for (name, help, of) in OF_CLAIMS {
        let name = format!("kubelet_volume_stats_{name}");
        let mut samples = usage.iter().filter_map(|(claim, usage)| Some((claim, of(usage)?))).peekable();
        if samples.peek().is_some() {
            out.family(&name, "gauge", &format!("[ALPHA] {help}"));
        }
        for ((namespace, claim), value) in samples {
            let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim.as_str())];
            out.sample(&name, &labels, float(value), None);
        }
    }
    out.0
}

/// Families of containers' logs.
fn of_logs(logs: &[(Arc<Pod>, String, u64)]) -> String {
    let mut out = Families(String::new());
    let name = "kubelet_container_log_filesystem_used_bytes";
    if !logs.is_empty() {
        out.family(name, "gauge", "[ALPHA] Bytes used by the container's logs on the filesystem.");
    }
    for (pod, container, bytes) in logs {
        let labels = [
            ("container", container.as_str()),
            ("namespace", pods::namespace(pod)),
            ("pod", pods::name(pod)),
            ("uid", pods::uid(pod)),
        ];
        out.sample(name, &labels, float(*bytes), None);
    }
    out.0
}

impl Stats {
    /// `/metrics`: everything that is registered in this process, and the volumes of claims.
    pub async fn kubelet(&self) -> String {
        let all = self.manager.pods();
        for (label, is_static) in [("", false), ("true", true)] {
            let of = |of: &dyn Fn(&Pod) -> bool| {
                let count = all.iter().filter(|pod| pods::is_static(pod) == is_static && of(pod)).count();
                float(u64::try_from(count).unwrap_or(u64::MAX))
            };
            let labels = [("static", label)];
            let help = "[ALPHA] Number of pods that the kubelet was told to run, by whether they are static";
            metrics::set("kubelet_desired_pods", help, &labels, of(&|_| true));
            let help = "[ALPHA] Number of pods that have not ended, by whether they are static";
            metrics::set("kubelet_active_pods", help, &labels, of(&|pod| !is_pod_terminal(pod)));
        }
        self.tell_pods(&all);
        metrics::tell_certificates(jiff::Timestamp::now());
        let name = self.manager.context().settings.node_name.clone();
        let help = "[ALPHA] The node's name. The count is always 1.";
        metrics::set("kubelet_node_name", help, &[("node", &name)], 1.0);
        let mut claims = BTreeMap::new();
        for (pod, volumes) in self.volumes(all).await {
            for volume in volumes.iter() {
                let Some(claim) = &volume.claim else { continue };
                claims.insert((pods::namespace(&pod).to_owned(), claim.clone()), volume.usage);
            }
        }
        let logs = self.logs(&self.manager.pods()).await;
        shared::metrics::gather() + &of_claims(&claims) + &of_logs(&logs)
    }

    /// Tells how many pods there are of each kind.
    fn tell_pods(&self, all: &[Arc<Pod>]) {
        let ephemeral =
            |pod: &Arc<Pod>| pod.spec.as_ref().map_or(0, |spec| spec.ephemeral_containers.iter().flatten().count());
        let help = "[ALPHA] Number of ephemeral containers of the pods that the kubelet was told to run";
        let count = all.iter().map(ephemeral).sum();
        metrics::set("kubelet_managed_ephemeral_containers", help, &[], metrics::number(count));
        metrics::pod_certificates::tell(&self.manager.context().objects.pod_certificates(all));
        let help = "[ALPHA] Number of mirror pods of this node";
        metrics::set("kubelet_mirror_pods", help, &[], metrics::number(self.manager.mirrors().1.len()));
        let found = self.manager.lifecycles();
        for lifecycle in Lifecycle::ALL {
            for (config, is_desired) in [("desired", true), ("orphan", false)] {
                for (label, is_static) in [("", false), ("true", true)] {
                    let pods = found.get(&(lifecycle, is_desired, is_static)).copied().unwrap_or(0);
                    metrics::working(lifecycle.name(), config, label, pods);
                }
            }
            if lifecycle != Lifecycle::Terminating {
                // What only the runtime knows is being taken down, or gone.
                metrics::working(lifecycle.name(), "runtime_only", "unknown", 0);
            }
        }
        if let Some(records) = self.manager.context().images.records() {
            let (intents, records) = records.counts();
            let help = "[ALPHA] Number of images of which the disk says that they are being pulled";
            metrics::set("kubelet_imagemanager_ondisk_pullintents", help, &[], metrics::number(intents));
            let help = "[ALPHA] Number of images of which the disk says who may use them";
            metrics::set("kubelet_imagemanager_ondisk_pulledrecords", help, &[], metrics::number(records));
        }
    }

    /// `/metrics/resource`.
    pub async fn resource(&self) -> String {
        let containers = self.containers_measured().await;
        let usage = self.pod_usage(self.parents()).await;
        let now = jiff::Timestamp::now().as_millisecond();
        let mut out = Families(String::new());
        for (name, kind, help, of) in OF_CONTAINERS {
            if containers.iter().any(|container| of(container).is_some()) {
                out.family(name, kind, help);
            }
            for container in &containers {
                let Some(value) = of(container) else { continue };
                let labels = [
                    ("container", container.name.as_str()),
                    ("namespace", &container.namespace),
                    ("pod", &container.pod_name),
                ];
                let at = (name != "container_start_time_seconds").then_some(container.time / 1_000_000);
                out.sample(name, &labels, value, at);
            }
        }
        out.family(
            "node_cpu_usage_seconds_total",
            "counter",
            "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        );
        out.sample("node_cpu_usage_seconds_total", &[], seconds(machine::cpu_ns()), Some(now));
        out.family("node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes");
        out.sample("node_memory_working_set_bytes", &[], float(machine::memory().working_set), Some(now));
        let pods = self.manager.pods();
        for (name, kind, help, of) in OF_PODS {
            let told = |pod: &Arc<Pod>| Some((Arc::clone(pod), of(usage.get(pods::uid(pod))?)?));
            let mut samples = pods.iter().filter_map(told).peekable();
            if samples.peek().is_some() {
                out.family(name, kind, help);
            }
            for (pod, value) in samples {
                out.sample(name, &[("namespace", pods::namespace(&pod)), ("pod", pods::name(&pod))], value, Some(now));
            }
        }
        out.family("node_swap_usage_bytes", "gauge", "[ALPHA] Bytes of swap that the node uses");
        out.sample("node_swap_usage_bytes", &[], float(machine::swap_used()), Some(now));
        out.family(
            "resource_scrape_error",
            "gauge",
            "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
        );
        out.sample("resource_scrape_error", &[], 0.0, None);
        out.0
    }

    /// `/metrics/cadvisor`, in pieces: nobody waits for what nobody reads.
    pub async fn cadvisor(&self) -> mpsc::Receiver<Bytes> {
        let cx = Arc::clone(self.manager.context());
        let subjects = self.subjects().await;
        let (sender, receiver) = mpsc::channel(PIECES);
        let readings = Arc::clone(&self.readings);
        tokio::task::spawn_blocking(move || {
            let read = |subjects: &[MeasuredCgroup]| {
                let mut readings = readings.lock();
                let mut pass = readings.pass(CgroupReader::of_machine());
                subjects.iter().filter_map(|subject| cadvisor::Row::read(&mut pass, subject)).collect()
            };
            let rows: Vec<cadvisor::Row> = read(&subjects);
            let host = cadvisor::Host {
                machine: &cx.machine,
                processors: machine::processors(Path::new("/sys/devices/system/cpu")),
                mounted: machine::mounted(),
            };
            let devices = cadvisor::block_devices(Path::new("/sys/dev/block"));
            cadvisor::write(&host, &rows, &devices, &mut |piece| sender.blocking_send(piece).is_ok());
        });
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_have_the_families_that_their_kind_knows() {
        let key = |claim: &str| ("n".to_owned(), claim.to_owned());
        let full = VolumeUse { capacity: Some(10), is_abnormal: Some(true), ..VolumeUse::default() };
        let text =
            of_claims(&[(key("a"), full), (key("b"), VolumeUse { capacity: Some(5), ..VolumeUse::default() })].into());
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "kubelet_volume_stats_capacity_bytes{namespace=\"n\",persistentvolumeclaim=\"a\"} 10",
            "kubelet_volume_stats_capacity_bytes{namespace=\"n\",persistentvolumeclaim=\"b\"} 5",
            "kubelet_volume_stats_health_status_abnormal{namespace=\"n\",persistentvolumeclaim=\"a\"} 1",
        ];
        assert_eq!(samples, expected);
        assert_eq!(of_claims(&BTreeMap::new()), "");
    }
}
