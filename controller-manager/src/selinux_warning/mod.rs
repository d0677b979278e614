//! Warns of pods that could not share a volume if they came to one node. Answers for `selinux-warning`; off by default.

pub mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use parking_lot::Mutex;
use shared::informer::{Event, Scope, Store};
use shared::workqueue::Queue;

use self::plan::{Conflict, conflicts, user};
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
    /// What was told of each volume. Bounded by the conflicts there are.
    told: Mutex<HashMap<Key, Vec<Conflict>>>,
}

/// Wire the SELinux warnings.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("SELinuxChangePolicy") {
            return Ok(Started::Skipped);
        }
        // The shared cache of pods holds no security contexts.
        let pods = cx.informer_in::<Pod>(Scope::default());
        pods.set_transform(slim);
        pods.add_index(BY_CLAIM, |pod: &Pod| volumes(pod).into_iter().map(|(_, claim)| claim.to_string()).collect());
        let queue: Queue<Key> = Queue::new("selinux_warning");
        let this = Arc::new(Warnings {
            executor: cx.executor("selinux-warning-controller", "selinux_warning"),
            pods: pods.store(),
            told: Mutex::default(),
        });
        let wake = queue.clone();
        pods.add_handler(move |event: &Event<Pod>| {
            for (_, claim) in volumes(event.object()) {
                wake.add(claim);
            }
        });
        let wake = queue.clone();
        cx.informer::<PersistentVolumeClaim>().add_handler(move |event: &Event<PersistentVolumeClaim>| {
            wake.add(Key::of(&event.object().metadata));
        });
        worker::run(cx, "selinux-warning", 1, &queue, &this, |s, key| async move { s.sync(&key) });
        Ok(Started::Yes)
    })
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
            ..Default::default()
        };
    }
}

impl Warnings {
    fn sync(&self, claim: &Key) -> Synced {
        let using = self.pods.by_index(BY_CLAIM, &claim.to_string());
        let named = |pod: &Pod| volumes(pod).into_iter().find(|(_, c)| c == claim).map(|(name, _)| name);
        let users: Vec<_> = using.iter().filter_map(|p| user(p, &named(p)?)).collect();
        let found = conflicts(&users);
        let mut told = self.told.lock();
        let before = told.remove(claim).unwrap_or_default();
        let pairs: HashSet<String> = before.iter().map(|c| format!("{c:?}")).collect();
        for conflict in &before {
            if !found.contains(conflict) {
                show(conflict, false);
            }
        }
        for conflict in &found {
            show(conflict, true);
            if !pairs.contains(&format!("{conflict:?}")) {
                self.warn(&using, conflict);
            }
        }
        if !found.is_empty() {
            told.insert(claim.clone(), found);
        }
        Ok(None)
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
