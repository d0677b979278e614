//! Warns of pods that could not share a volume if they came to one node. Answers for `selinux-warning`; off by default.
//!
//! In: pods with their security contexts, claims, volumes, drivers. Out: events and metrics, and nothing else. [`plan`]
//! compares, [`cache`] remembers.

pub mod cache;
pub mod plan;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use shared::informer::{Event, Scope, Store};
use shared::types::ephemeral_claim;
use shared::workqueue::Queue;

use self::cache::Cache;
use self::plan::{Conflict, Mixed, Use};
use crate::attach_detach::listed::Listed;
use crate::attach_detach::volume::Attachable;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

/// Pods by the claims of their volumes.
const BY_CLAIM: &str = "claim";

struct Warnings {
    executor: Executor,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    drivers: Store<CSIDriver>,
    used: Mutex<Cache>,
    /// Volumes are mounted with labels at all (SELinuxMountReadWriteOncePod).
    mounts_labels: bool,
}

/// A volume that can be mounted with a label, or could if its driver said so.
struct Found {
    unique_name: String,
    /// Driver of the volume; empty where the kubelet itself mounts it.
    driver: String,
}

/// Wire the SELinux warnings.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("SELinuxChangePolicy") {
            return Ok(Started::Skipped);
        }
        let Some(drivers) = cx.served::<CSIDriver>().await? else { return Ok(Started::Skipped) };
        let (claims, volumes) = (cx.informer::<PersistentVolumeClaim>(), cx.informer::<PersistentVolume>());
        // The shared cache of pods holds no security contexts.
        let pods = cx.informer_in::<Pod>(Scope::default());
        pods.set_transform(slim);
        pods.add_index(BY_CLAIM, |pod: &Pod| claims_of(pod).map(|claim| claim.to_string()).collect());
        let queue: Queue<Key> = Queue::new("selinux_warning");
        let this = Arc::new(Warnings {
            executor: cx.executor("selinux-warning-controller", "selinux_warning"),
            pods: pods.store(),
            claims: claims.store(),
            volumes: volumes.store(),
            drivers: drivers.store(),
            used: Mutex::default(),
            mounts_labels: cx.gate("SELinuxMountReadWriteOncePod"),
        });
        let wake = queue.clone();
        pods.add_handler(move |event: &Event<Pod>| {
            // What counts of a pod does not change, but for its end.
            if !matches!(event, Event::Updated { old, new } if finished(old) == finished(new)) {
                wake.add(Key::of(&event.object().metadata));
            }
        });
        let users = Users { pods: pods.store(), queue: queue.clone() };
        let also = users.clone();
        claims.add_handler(move |event: &Event<PersistentVolumeClaim>| match event {
            Event::Updated { old, new } if bound(old) == bound(new) => {}
            Event::Added(claim) | Event::Updated { new: claim, .. } => users.wake(&Key::of(&claim.metadata)),
            Event::Deleted(_) => {}
        });
        volumes.add_handler(move |event: &Event<PersistentVolume>| match event {
            Event::Updated { old, new } if claimed(old) == claimed(new) => {}
            Event::Added(volume) | Event::Updated { new: volume, .. } => {
                claimed(volume).into_iter().for_each(|(claim, _)| also.wake(&claim));
            }
            Event::Deleted(_) => {}
        });
        let (wake, state) = (queue.clone(), Arc::clone(&this));
        drivers.add_handler(move |event: &Event<CSIDriver>| {
            if !matches!(event, Event::Updated { old, new } if labels(old) == labels(new)) {
                let driver = object::name(&event.object().metadata);
                state.used.lock().pods_of(driver).for_each(|pod| wake.add(pod.clone()));
            }
        });
        worker::run(cx, "selinux-warning", 1, &queue, &this, |s, key| async move { s.sync(&key) });
        Ok(Started::Yes)
    })
}

/// The pods of claims.
#[derive(Clone)]
struct Users {
    pods: Store<Pod>,
    queue: Queue<Key>,
}

impl Users {
    fn wake(&self, claim: &Key) {
        for pod in self.pods.by_index(BY_CLAIM, &claim.to_string()) {
            self.queue.add(Key::of(&pod.metadata));
        }
    }
}

fn finished(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}

fn bound(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|v| !v.is_empty())
}

/// The claim that a volume is bound to, and its uid.
fn claimed(volume: &PersistentVolume) -> Option<(Key, &str)> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let uid = claim.uid.as_deref().filter(|uid| !uid.is_empty())?;
    Some((Key::new(claim.namespace.clone().unwrap_or_default(), claim.name.clone().unwrap_or_default()), uid))
}

fn labels(driver: &CSIDriver) -> bool {
    driver.spec.se_linux_mount == Some(true)
}

/// The claim of a pod's volume, if it is one.
fn claim_of(pod: &Pod, volume: &Volume) -> Option<Key> {
    let claim = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
    let own = || volume.ephemeral.as_ref().map(|_| ephemeral_claim(object::name(&pod.metadata), &volume.name));
    claim.or_else(own).map(|claim| Key::new(object::namespace(&pod.metadata), claim))
}

fn claims_of(pod: &Pod) -> impl Iterator<Item = Key> {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter_map(|v| claim_of(pod, v))
}

/// Leave what labels and volumes need.
fn slim(pod: &mut Pod) {
    pod.metadata.annotations = None;
    if let Some(status) = pod.status.as_mut() {
        let phase = status.phase.take();
        *status = k8s_openapi::api::core::v1::PodStatus { phase, ..Default::default() };
    }
    let Some(spec) = pod.spec.as_mut() else { return };
    spec.affinity = None;
    spec.tolerations = None;
    spec.topology_spread_constraints = None;
    for c in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        *c = k8s_openapi::api::core::v1::Container {
            name: std::mem::take(&mut c.name),
            security_context: c.security_context.take(),
            volume_mounts: c.volume_mounts.take(),
            volume_devices: c.volume_devices.take(),
            ..Default::default()
        };
    }
}

impl Warnings {
    fn sync(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name).filter(|pod| !finished(pod)) else {
            self.used.lock().remove(key).iter().for_each(|c| show(c, false));
            return Ok(None);
        };
        let mut mixed = None;
        let volumes = || pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        for name in plan::mounted(&pod) {
            let Some(volume) = volumes().find(|v| v.name == name) else { continue };
            let claim = claim_of(&pod, volume);
            let found = match &claim {
                // Whatever binds it wakes the pod.
                Some(claim) => match self.behind(&pod, volume, claim) {
                    Some(volume) => found(&volume),
                    None => continue,
                },
                None => inline(volume, &key.namespace),
            };
            let wanted = match self.mounts_labels {
                true => plan::wanted(&pod, name, found.as_ref().is_some_and(|f| self.labelled(f))),
                false => Ok(Use::unlabelled()),
            };
            match wanted {
                Err(Mixed) => {
                    let text =
                        format!("Volume {name:?} is mounted twice with different SELinux labels inside this pod");
                    let about = object::reference::<Pod>(&pod.metadata);
                    self.executor.events.say(&about, true, "MultipleSELinuxLabels", text);
                    mixed = Some(RestError::other(format!("multiple SELinux labels at volume {name:?}")));
                }
                Ok(wanted) => {
                    let Some(found) = found else { continue };
                    let change = self.used.lock().add(&found.unique_name, &found.driver, key, wanted);
                    change.over.iter().for_each(|c| show(c, false));
                    change.new.iter().for_each(|c| self.warn(c));
                }
            }
        }
        // As long as it is so, it is told again and again, as upstream.
        mixed.map_or(Ok(None), Err)
    }

    /// The volume behind a claim of a pod, once it is bound both ways.
    fn behind(&self, pod: &Pod, volume: &Volume, claim: &Key) -> Option<Arc<PersistentVolume>> {
        let claim = self.claims.get(&claim.namespace, &claim.name)?;
        let own = object::controller_of(&claim.metadata).is_some_and(|o| o.uid == object::uid(&pod.metadata));
        if volume.ephemeral.is_some() && !own {
            return None;
        }
        let volume = self.volumes.get("", bound(&claim)?)?;
        let back = claimed(&volume).is_some_and(|(_, uid)| uid == object::uid(&claim.metadata));
        back.then_some(volume)
    }

    /// Reports whether a volume can be mounted with a label.
    fn labelled(&self, found: &Found) -> bool {
        found.driver.is_empty() || self.drivers.get("", &found.driver).is_some_and(|d| labels(&d))
    }

    fn warn(&self, conflict: &Conflict) {
        show(conflict, true);
        if let Some(pod) = self.pods.get(&conflict.pod.namespace, &conflict.pod.name) {
            // A warning of what may come, not of what has happened.
            let about = object::reference::<Pod>(&pod.metadata);
            self.executor.events.say(&about, false, conflict.reason, conflict.message());
        }
    }
}

fn found(volume: &PersistentVolume) -> Option<Found> {
    of_kubelet(Listed::of(volume)).or_else(|| of_driver(Attachable::of(volume)))
}

/// One that a pod names itself. Those of drivers that are made for the pod alone are in nobody's way.
fn inline(volume: &Volume, namespace: &str) -> Option<Found> {
    of_kubelet(Listed::of_disk(volume)).or_else(|| of_driver(Attachable::of_disk(volume, namespace)))
}

fn of_kubelet(listed: Option<Listed>) -> Option<Found> {
    listed.map(|l| Found { unique_name: l.unique_name, driver: String::new() })
}

fn of_driver(attachable: Option<Attachable>) -> Option<Found> {
    attachable.map(|a| Found { unique_name: a.unique_name(), driver: a.driver })
}

/// Shows a conflict, or takes it away.
fn show(c: &Conflict, there: bool) {
    const NAME: &str = "selinux_warning_controller_selinux_volume_conflict";
    let [pod, other] = [&c.pod, &c.other];
    let labels = [&*pod.name, &pod.namespace, &c.value, &other.name, &other.namespace, &c.other_value, c.property];
    if there { metrics::set(NAME, &labels, 1.0) } else { metrics::forget(NAME, &labels) }
}
