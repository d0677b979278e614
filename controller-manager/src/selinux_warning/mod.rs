//! Warns of pods that could not share a volume if they came to one node. Answers for `selinux-warning`; off by default.
//!
//! In: pods with their security contexts, claims, volumes, drivers. Out: events and metrics, and nothing else. [`plan`]
//! compares.

pub mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use shared::informer::{Event, Scope, Store};
use shared::workqueue::Queue;

use self::plan::{Conflict, Mixed, conflicts, mounts_labelled, user};
use crate::attach_detach::volume::Attachable;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::owned;
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
    /// What was told of each volume. Bounded by the conflicts there are.
    told: Mutex<HashMap<Key, Told>>,
}

/// What was told of a volume.
#[derive(Debug, Default)]
struct Told {
    conflicts: Vec<Conflict>,
    /// Pods that are at odds with themselves.
    mixed: HashSet<Key>,
}

/// Wire the SELinux warnings.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("SELinuxChangePolicy") {
            return Ok(Started::Skipped);
        }
        let Some(drivers) = cx.served::<CSIDriver>().await? else { return Ok(Started::Skipped) };
        let (claims, all) = (cx.informer::<PersistentVolumeClaim>(), cx.informer::<PersistentVolume>());
        // The shared cache of pods holds no security contexts.
        let pods = cx.informer_in::<Pod>(Scope::default());
        pods.set_transform(slim);
        pods.add_index(BY_CLAIM, |pod: &Pod| volumes(pod).into_iter().map(|(_, claim)| claim.to_string()).collect());
        let queue: Queue<Key> = Queue::new("selinux_warning");
        let this = Arc::new(Warnings {
            executor: cx.executor("selinux-warning-controller", "selinux_warning"),
            pods: pods.store(),
            claims: claims.store(),
            volumes: all.store(),
            drivers: drivers.store(),
            told: Mutex::default(),
        });
        let wake = queue.clone();
        pods.add_handler(move |event: &Event<Pod>| {
            for (_, claim) in volumes(event.object()) {
                wake.add(claim);
            }
        });
        owned::watch(&claims, &queue);
        let wake = queue.clone();
        all.add_handler(move |event: &Event<PersistentVolume>| wake_user(event.object(), &wake));
        let (wake, all) = (queue.clone(), all.store());
        drivers.add_handler(move |event: &Event<CSIDriver>| {
            let says = |d: &CSIDriver| d.spec.se_linux_mount == Some(true);
            if matches!(event, Event::Updated { old, new } if says(old) == says(new)) {
                return;
            }
            let driver = object::name(&event.object().metadata);
            let of_driver = |v: &PersistentVolume| Attachable::of(v).is_some_and(|found| found.driver == driver);
            all.list().iter().filter(|v| of_driver(v)).for_each(|v| wake_user(v, &wake));
        });
        worker::run(cx, "selinux-warning", 1, &queue, &this, |s, key| async move { s.sync(&key) });
        Ok(Started::Yes)
    })
}

/// Wake the claim that a volume is bound to.
fn wake_user(volume: &PersistentVolume, queue: &Queue<Key>) {
    if let Some(claim) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) {
        queue.add(Key::new(claim.namespace.clone().unwrap_or_default(), claim.name.clone().unwrap_or_default()));
    }
}

/// The volumes of a pod that are claims, with the claim.
fn volumes(pod: &Pod) -> Vec<(String, Key)> {
    let namespace = object::namespace(&pod.metadata);
    let all = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    all.filter_map(|v| {
        let claim = v.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
        let claim =
            claim.or_else(|| v.ephemeral.as_ref().map(|_| format!("{}-{}", object::name(&pod.metadata), v.name)));
        claim.map(|c| (v.name.clone(), Key::new(namespace, c)))
    })
    .collect()
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
    /// Whether the volume of a claim can be mounted with a label; None as long as there is none that this is about.
    fn labelled(&self, claim: &Key) -> Option<bool> {
        let claim = self.claims.get(&claim.namespace, &claim.name)?;
        let volume = self.volumes.get("", claim.spec.as_ref()?.volume_name.as_deref()?)?;
        let says = |driver: &str| self.drivers.get("", driver).is_some_and(|d| d.spec.se_linux_mount == Some(true));
        mounts_labelled(&volume, &says)
    }

    fn sync(&self, claim: &Key) -> Synced {
        let using = self.pods.by_index(BY_CLAIM, &claim.to_string());
        let named = |pod: &Pod| volumes(pod).into_iter().find(|(_, c)| c == claim).map(|(name, _)| name);
        let mut told = self.told.lock();
        let before = told.remove(claim).unwrap_or_default();
        let (mut users, mut now) = (Vec::new(), Told::default());
        let labelled = self.labelled(claim);
        for pod in using.iter().filter(|_| labelled.is_some()) {
            let Some(volume) = named(pod) else { continue };
            match user(pod, &volume, labelled == Some(true)) {
                Ok(user) => users.extend(user),
                Err(Mixed) => {
                    let key = Key::of(&pod.metadata);
                    if !before.mixed.contains(&key) {
                        self.warn_of_mixed(pod, &volume);
                    }
                    now.mixed.insert(key);
                }
            }
        }
        now.conflicts = conflicts(&users);
        for conflict in before.conflicts.iter().filter(|c| !now.conflicts.contains(c)) {
            show(conflict, false);
        }
        for conflict in &now.conflicts {
            show(conflict, true);
            if !before.conflicts.contains(conflict) {
                self.warn(&using, conflict);
            }
        }
        if !(now.conflicts.is_empty() && now.mixed.is_empty()) {
            told.insert(claim.clone(), now);
        }
        Ok(None)
    }

    fn warn_of_mixed(&self, pod: &Pod, volume: &str) {
        let text = format!("Volume {volume:?} is mounted twice with different SELinux labels inside this pod");
        self.executor.events.say(&object::reference::<Pod>(&pod.metadata), true, "MultipleSELinuxLabels", text);
    }

    fn warn(&self, using: &[Arc<Pod>], conflict: &Conflict) {
        let pod = using.iter().find(|p| Key::of(&p.metadata) == conflict.pod);
        let about: Option<ObjectReference> = pod.map(|p| object::reference::<Pod>(&p.metadata));
        if let Some(about) = about {
            // A warning of what may come, not of what has happened.
            self.executor.events.say(&about, false, conflict.reason, conflict.message());
        }
    }
}

/// Shows a conflict, or takes it away.
fn show(c: &Conflict, there: bool) {
    const NAME: &str = "selinux_warning_controller_selinux_volume_conflict";
    let [pod, other] = [&c.pod, &c.other];
    let labels = [&*pod.name, &pod.namespace, &c.value, &other.name, &other.namespace, &c.other_value, c.property];
    if there { metrics::set(NAME, &labels, 1.0) } else { metrics::forget(NAME, &labels) }
}
