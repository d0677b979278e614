//! Readings of services and their pods shared by the endpoints and endpointslice controllers.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use proto::numbers::core_v1::object_reference;
use proto::protobuf::write_bytes;
use shared::informer::{Event, Informer, Store};
use shared::workqueue::Queue;

use super::object::Metadata as _;
use super::packed::Texts;
use super::pod::{Container, Labels, Pod, Template};
use super::selectors::{self, Selecting as _, Selectors};
use super::{object, pods};

/// Annotation with the time of the oldest change behind an endpoints object, for programming-latency measurements.
pub const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Marks endpoints of services without a cluster IP.
pub const HEADLESS: &str = "service.kubernetes.io/headless";

/// The spec, if the service selects pods at all.
#[must_use]
pub fn selecting(service: &Service) -> Option<&ServiceSpec> {
    let spec = service.spec.as_ref()?;
    let selects =
        spec.selector.as_ref().is_some_and(|s| !s.is_empty()) && spec.type_.as_deref() != Some("ExternalName");
    selects.then_some(spec)
}

/// Reports whether the service has no virtual IP on purpose.
#[must_use]
pub fn headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ip.as_deref() == Some("None")
}

/// The labels of a service as its endpoints have them.
#[must_use]
pub fn labels<'a>(service: &'a Service, spec: &ServiceSpec) -> Texts<'a> {
    let own = service.metadata.labels.iter().flatten();
    let mut labels: Texts<'a> = own.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    labels.remove(HEADLESS);
    if headless(spec) {
        labels.insert(HEADLESS, "");
    }
    labels
}

/// The port number a pod serves a service port on; None if it does not.
#[must_use]
pub fn pod_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    match port.target_port.as_ref() {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(n)) => Some(*n),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let sidecars =
                spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let find = |c: &Container| {
                c.ports
                    .iter()
                    .flatten()
                    .find(|p| {
                        p.name.as_deref() == Some(name)
                            && protocol(p.protocol.as_deref()) == protocol(port.protocol.as_deref())
                    })
                    .map(|p| p.container_port)
            };
            spec.containers.iter().chain(sidecars).find_map(find)
        }
    }
}

/// A port of a service as a pod serves it: what endpoints are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port<'a> {
    /// Name of the port; may be empty.
    pub name: &'a str,
    /// Number of the port in the pod.
    pub number: i32,
    /// TCP unless something else is said.
    pub protocol: &'a str,
    /// Empty for none.
    pub app_protocol: &'a str,
}

/// The ports of a service that a pod serves, as the service has them in order.
fn ports_of<'a>(pod: &Pod, spec: &'a ServiceSpec) -> Vec<Port<'a>> {
    let ports = spec.ports.iter().flatten().filter_map(|p| {
        Some(Port {
            name: p.name.as_deref().unwrap_or_default(),
            number: pod_port(pod, p)?,
            protocol: p.protocol.as_deref().unwrap_or("TCP"),
            app_protocol: p.app_protocol.as_deref().unwrap_or_default(),
        })
    });
    ports.collect()
}

/// Sorts ports, and drops those that are there twice.
#[must_use]
pub fn sorted<'a>(ports: &[Port<'a>]) -> Vec<Port<'a>> {
    let mut sorted = ports.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// A set of ports.
#[derive(Debug)]
pub struct PortSet<'a> {
    /// In an order of their own.
    pub key: Vec<Port<'a>>,
    /// Ports in the order of the service.
    pub ports: Vec<Port<'a>>,
}

/// The sets of ports that the pods of a service serve. Most serve the same, and replicas always do.
#[derive(Debug)]
pub struct PortSets<'a> {
    spec: &'a ServiceSpec,
    /// All that were found.
    pub all: Vec<PortSet<'a>>,
    known: BTreeMap<Vec<Port<'a>>, usize>,
    /// The template of the last pod, and its set.
    last: Option<(*const Template, usize)>,
}

impl<'a> PortSets<'a> {
    /// None yet.
    #[must_use]
    pub fn new(spec: &'a ServiceSpec) -> Self {
        Self { spec, all: Vec::new(), known: BTreeMap::new(), last: None }
    }

    /// Returns the set that a pod serves.
    pub fn of(&mut self, pod: &Pod) -> usize {
        let template = pod.spec.as_ref().map_or(ptr::null(), |s| ptr::from_ref(&*s.template));
        if let Some((_, at)) = self.last.filter(|(last, _)| *last == template) {
            return at;
        }
        let ports = ports_of(pod, self.spec);
        let at = *self.known.entry(sorted(&ports)).or_insert_with_key(|key| {
            self.all.push(PortSet { key: key.clone(), ports });
            self.all.len() - 1
        });
        self.last = Some((template, at));
        at
    }
}

fn protocol(p: Option<&str>) -> &str {
    p.filter(|p| !p.is_empty()).unwrap_or("TCP")
}

/// All addresses of a pod.
pub fn pod_ips(pod: &Pod) -> impl Iterator<Item = &str> + Clone {
    let status = pod.status.as_ref();
    let listed = status.and_then(|s| s.pod_ips.as_deref()).unwrap_or_default().iter().map(|p| &*p.ip);
    let listed = listed.filter(|ip| !ip.is_empty());
    let alone = status.and_then(|s| s.pod_ip.as_deref()).filter(|ip| !ip.is_empty() && listed.clone().next().is_none());
    listed.chain(alone)
}

/// Reports whether a pod belongs behind a service at all.
#[must_use]
pub fn belongs(pod: &Pod, with_terminating: bool) -> bool {
    !pods::finished(pod) && pod_ips(pod).next().is_some() && (with_terminating || !object::deleting(&pod.metadata))
}

/// The hostname published for the pod under this service.
#[must_use]
pub fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a str> {
    let spec = pod.spec.as_ref()?;
    let host = spec.hostname.as_deref().filter(|h| !h.is_empty())?;
    (spec.subdomain.as_deref() == service.metadata.name.as_deref()).then_some(host)
}

/// Writes a reference to the pod behind an address. As in everything the server writes, texts that are no pointers in Go
/// are there also when they are empty.
pub fn write_pod_reference(pod: &Pod, out: &mut Vec<u8>) {
    let meta = &pod.metadata;
    let (namespace, name, uid) = (object::namespace(meta), object::name(meta), object::uid(meta));
    let texts = [
        (object_reference::KIND, "Pod"),
        (object_reference::NAMESPACE, namespace),
        (object_reference::NAME, name),
        (object_reference::UID, uid),
        (object_reference::API_VERSION, ""),
        (object_reference::RESOURCE_VERSION, ""),
        (object_reference::FIELD_PATH, ""),
    ];
    for (number, text) in texts {
        write_bytes(number, text.as_bytes(), out);
    }
}

/// The pods a service selects.
#[must_use]
pub fn behind(pods: &Store<Pod>, service: &Service) -> Vec<Arc<Pod>> {
    let Some(selector) = service.required() else { return Vec::new() };
    let mut found = selectors::candidates(pods, object::namespace(&service.metadata), selector);
    // Replicas have their labels in common, so that the first speaks for the others.
    let mut last: Option<(*const Labels, bool)> = None;
    found.retain(|p| {
        let labels = p.metadata.labels.as_deref();
        let at = labels.map_or(ptr::null(), ptr::from_ref);
        let known = last.filter(|(seen, _)| *seen == at).map(|(_, matches)| matches);
        let matches = known.unwrap_or_else(|| object::matches_map(Some(selector), labels));
        last = Some((at, matches));
        matches
    });
    pods::sort_by_name(&mut found);
    found
}

/// Wake the services that select a pod when something about the pod changes that endpoints show.
pub fn watch_pods(pods: &Informer<Pod>, services: Arc<Selectors<Service>>, queue: Queue<object::Key>, batch: Duration) {
    let wake = move |pod: &Pod| {
        for service in services.candidates(object::namespace(&pod.metadata), pod.metadata.labels.as_deref()) {
            let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
            if object::matches_map(selector, pod.metadata.labels.as_deref()) {
                let key = object::Key::of(&service.metadata);
                if batch.is_zero() { queue.add(key) } else { queue.add_after(key, batch) }
            }
        }
    };
    pods.add_handler(move |event: &Event<Pod>| match event {
        Event::Added(pod) | Event::Deleted(pod) => wake(pod),
        Event::Updated { old, new } => {
            let relabelled = old.metadata.labels != new.metadata.labels;
            if relabelled {
                wake(old);
            }
            if relabelled || !shown_alike(old, new) {
                wake(new);
            }
        }
    });
}

/// Reports whether endpoints show both versions of a pod alike.
fn shown_alike(old: &Pod, new: &Pod) -> bool {
    fn view(pod: &Pod) -> (bool, bool, bool, &str, Option<&str>, Option<&str>) {
        let spec = pod.spec.as_ref();
        let hostname = spec.and_then(|s| s.hostname.as_deref());
        let subdomain = spec.and_then(|s| s.subdomain.as_deref());
        let deleting = object::deleting(&pod.metadata);
        (pods::ready(pod), deleting, pods::finished(pod), pods::node(pod), hostname, subdomain)
    }
    view(old) == view(new) && pod_ips(old).eq(pod_ips(new))
}

/// Remembers what triggered earlier syncs, to date the next change by its oldest new cause.
#[derive(Debug, Default)]
pub struct Triggers {
    seen: HashMap<object::Key, Seen>,
}

/// Times of the last change of a service and its pods.
#[derive(Debug)]
struct Seen {
    service: Timestamp,
    /// In the order of their names.
    pods: Vec<(Arc<str>, Timestamp)>,
}

impl Seen {
    /// A pod changed then; when it was known to have changed before. Pods come in the order of their names, `at` counts
    /// them, and `moved` are those known before that are not where they were.
    fn pod(
        &mut self,
        at: usize,
        pod: &Pod,
        time: Timestamp,
        moved: &mut Vec<(Arc<str>, Timestamp)>,
    ) -> Option<Timestamp> {
        let name = object::name(&pod.metadata);
        if let Some((known, before)) = self.pods.get_mut(at)
            && **known == *name
        {
            return Some(std::mem::replace(before, time));
        }
        moved.extend(self.pods.drain(at.min(self.pods.len())..));
        self.pods.push((pod.metadata.held_name(), time));
        let found = moved.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(moved[found].1)
    }
}

impl Triggers {
    /// The oldest cause that is new since the last call for this service. `behind` is in the order of names.
    pub fn next(&mut self, key: &object::Key, service: &Service, behind: &[Arc<Pod>]) -> Option<Timestamp> {
        let created = object::created(&service.metadata);
        let mut oldest = None;
        let mut cause = |time: Timestamp, known: Option<Timestamp>| {
            if known.is_none_or(|known| time > known) && time != Timestamp::UNIX_EPOCH {
                oldest = Some(oldest.map_or(time, |oldest| time.min(oldest)));
            }
        };
        if !self.seen.contains_key(key) {
            cause(created, None);
            self.seen.insert(key.clone(), Seen { service: created, pods: Vec::new() });
        }
        let seen = self.seen.get_mut(key)?;
        cause(created, Some(std::mem::replace(&mut seen.service, created)));
        let (mut count, mut moved) = (0, Vec::new());
        for pod in behind {
            let ready = pods::condition(pod, "Ready").and_then(|c| c.last_transition_time.as_ref());
            let Some(time) = ready.map(|time| time.0) else { continue };
            cause(time, seen.pod(count, pod, time, &mut moved));
            count += 1;
        }
        seen.pods.truncate(count);
        oldest
    }

    /// The service is gone.
    pub fn forget(&mut self, key: &object::Key) {
        self.seen.remove(key);
    }
}

/// A trigger time as the annotation spells it.
#[must_use]
pub fn trigger_text(at: Timestamp) -> String {
    at.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_is_dated_by_its_oldest_new_cause() {
        let at = |second: u32| -> Timestamp { format!("2026-01-01T00:00:{second:02}Z").parse().expect("time") };
        let pod = |name: &str, second: u32| -> Arc<Pod> {
            let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": at(second).to_string()});
            let pod = json!({"metadata": {"name": name}, "status": {"conditions": [condition]}});
            Arc::new(serde_json::from_value(pod).expect("pod"))
        };
        let service: Service =
            serde_json::from_value(json!({"metadata": {"name": "s", "creationTimestamp": at(1).to_string()}}))
                .expect("service");
        let (mut triggers, key) = (Triggers::default(), object::Key::new("ns", "s"));
        let mut next = |pods: &[Arc<Pod>]| triggers.next(&key, &service, pods);
        assert_eq!(next(&[pod("a", 3), pod("b", 2)]), Some(at(1)), "the service itself");
        assert_eq!(next(&[pod("a", 3), pod("b", 2)]), None);
        assert_eq!(next(&[pod("a", 9), pod("b", 8), pod("c", 7)]), Some(at(7)));
        assert_eq!(next(&[pod("a", 9), pod("c", 7)]), None, "a pod that leaves has no date");
        assert_eq!(next(&[pod("a", 9), pod("b", 8), pod("c", 7)]), Some(at(8)), "it is new when it comes back");
        assert_eq!(next(&[pod("b", 8), pod("c", 9)]), Some(at(9)), "others move up");
    }
}
