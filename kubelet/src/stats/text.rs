//! The metrics endpoints.

use super::cgroup::CgroupReader;
use super::{ContainerUsage, Stats, cadvisor, machine};
use crate::cri::labels;
use crate::metrics;
use crate::pods;
use crate::resources::{Usage, cgroup_version};
use crate::volumes::Usage as VolumeUse;
use k8s_openapi::api::core::v1::Pod;
use shared::types::is_pod_terminal;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// Writes families of the text format.
#[derive(Default)]
pub(super) struct Families(String);

impl Families {
    pub(super) fn into_text(self) -> String {
        self.0
    }

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
type Metric<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

/// Of each container in `/metrics/resource`.
const OF_CONTAINERS: [Metric<ContainerUsage>; 3] = [
    (
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        |c| seconds(c.cpu_ns),
    ),
    ("container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes", |c| {
        float(c.working_set)
    }),
    (
        "container_start_time_seconds",
        "gauge",
        "[STABLE] Start time of the container since unix epoch in seconds",
        started,
    ),
];

/// Of each pod in `/metrics/resource`.
const OF_PODS: [Metric<Usage>; 2] = [
    (
        "pod_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
        |u| seconds(u.cpu_ns),
    ),
    ("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes", |u| {
        float(u.working_set)
    }),
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
        shared::metrics::gather() + &of_claims(&claims)
    }

    /// `/metrics/resource`.
    pub async fn resource(&self) -> String {
        let containers = self.containers().await;
        let usage = self.pod_usage(self.parents()).await;
        let now = jiff::Timestamp::now().as_millisecond();
        let mut out = Families(String::new());
        for (name, kind, help, of) in OF_CONTAINERS {
            out.family(name, kind, help);
            for container in &containers {
                let labels = [
                    ("container", container.name.as_str()),
                    ("namespace", &container.namespace),
                    ("pod", &container.pod_name),
                ];
                let at = (name != "container_start_time_seconds").then_some(container.time / 1_000_000);
                out.sample(name, &labels, of(container), at);
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
            out.family(name, kind, help);
            for pod in &pods {
                let Some(usage) = usage.get(pods::uid(pod)) else { continue };
                out.sample(
                    name,
                    &[("namespace", pods::namespace(pod)), ("pod", pods::name(pod))],
                    of(usage),
                    Some(now),
                );
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

    /// `/metrics/cadvisor`.
    pub async fn cadvisor(&self) -> String {
        let cx = Arc::clone(self.manager.context());
        let abouts = self.abouts().await;
        let read = tokio::task::spawn_blocking(move || {
            let reader = CgroupReader::new(Path::new("/sys/fs/cgroup"), cgroup_version());
            let rows: Vec<cadvisor::Row> =
                abouts.into_iter().filter_map(|about| cadvisor::Row::read(&reader, about)).collect();
            let host = cadvisor::Host {
                machine: &cx.machine,
                processors: machine::processors(Path::new("/sys/devices/system/cpu")),
                mounted: machine::mounted(),
                now: jiff::Timestamp::now().as_millisecond(),
            };
            cadvisor::text(&host, &rows, &cadvisor::block_devices(Path::new("/sys/dev/block")))
        });
        read.await.unwrap_or_default()
    }

    /// Returns the subjects of series: the machine, all pods, the tiers, each pod, its sandbox and its containers.
    async fn abouts(&self) -> Vec<cadvisor::About> {
        let cx = self.manager.context();
        let (containers, sandboxes) = tokio::join!(cx.runtime.list_containers(None), cx.runtime.list_sandboxes(None));
        let mut known: BTreeMap<String, (String, String, i64, bool)> = BTreeMap::new();
        for container in containers.unwrap_or_default() {
            let name = container.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default();
            let image = container.image.map(|image| image.image).unwrap_or_default();
            known.insert(container.id, (name, image, container.created_at, false));
        }
        for sandbox in sandboxes.unwrap_or_default() {
            known.insert(sandbox.id, (String::new(), String::new(), sandbox.created_at, true));
        }
        let of = |id: String| cadvisor::About { id, ..cadvisor::About::default() };
        let mut all = vec![of("/".to_owned())];
        all.extend(cx.cgroups.tree().into_iter().map(of));
        let (pods, cx) = (self.manager.pods(), Arc::clone(cx));
        let below = tokio::task::spawn_blocking(move || {
            let reader = CgroupReader::new(Path::new("/sys/fs/cgroup"), cgroup_version());
            let parent = |pod: &Arc<Pod>| (Arc::clone(pod), cx.cgroups.pod_parent(pod));
            let found = pods.iter().map(parent).filter(|(_, parent)| !parent.is_empty());
            found.map(|(pod, parent)| (pod, reader.children(&parent), parent)).collect::<Vec<_>>()
        });
        for (pod, children, parent) in below.await.unwrap_or_default() {
            let (namespace, name) = (pods::namespace(&pod).to_owned(), pods::name(&pod).to_owned());
            let base = cadvisor::About { namespace, pod: name, ..cadvisor::About::default() };
            all.push(cadvisor::About { id: parent.clone(), ..base.clone() });
            for child in children {
                let Some((name, (container, image, started, is_sandbox))) = known.get_key_value(&scoped(&child)) else {
                    continue;
                };
                all.push(cadvisor::About {
                    id: format!("{parent}/{child}"),
                    name: name.clone(),
                    container: container.clone(),
                    image: image.clone(),
                    started: Some(*started),
                    has_network: *is_sandbox,
                    ..base.clone()
                });
            }
        }
        all
    }
}

/// The id of a container whose cgroup has this name: `id`, or `cri-containerd-id.scope` where systemd makes them.
fn scoped(cgroup: &str) -> String {
    let Some(scope) = cgroup.strip_suffix(".scope") else { return cgroup.to_owned() };
    scope.rsplit('-').next().unwrap_or(scope).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_known_by_their_cgroups() {
        for (cgroup, id) in [("abc", "abc"), ("cri-containerd-abc.scope", "abc"), ("crio-abc.scope", "abc")] {
            assert_eq!(scoped(cgroup), id);
        }
    }

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
