//! Evicts pods that use devices which got a NoExecute taint. Answers for `device-taint-eviction`.

pub mod plan;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};
use crate::resource_claim::plan::{Named, named};
use crate::taint_eviction::plan::disruption;

const NAME: &str = "device-taint-eviction-controller";
const EVENT: &str = "DeviceTaintManagerEviction";

struct Eviction {
    executor: Executor,
    pods: Store<Pod>,
    claims: Store<ResourceClaim>,
    slices: Store<ResourceSlice>,
    /// None without the feature, or where it is not served.
    rules: Option<Store<DeviceTaintRule>>,
    /// Pods whose eviction is due later, by uid. Bounded by the pods that use tainted devices.
    pending: Mutex<HashSet<String>>,
}

/// Wire device taint eviction.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("DynamicResourceAllocation") || !cx.gate("DRADeviceTaints") {
            return Ok(Started::Skipped);
        }
        let (Some(claims), Some(slices)) = (cx.served::<ResourceClaim>().await?, cx.served::<ResourceSlice>().await?)
        else {
            return Ok(Started::Skipped);
        };
        let rules = if cx.gate("DRADeviceTaintRules") { cx.served::<DeviceTaintRule>().await? } else { None };
        let pods = cx.pods();
        let queue: Queue<Key> = Queue::new(NAME);
        let this = Arc::new(Eviction {
            executor: cx.executor(NAME, NAME),
            pods: pods.store(),
            claims: claims.store(),
            slices: slices.store(),
            rules: rules.as_ref().map(shared::informer::Informer::store),
            pending: Mutex::default(),
        });
        let (wake, state) = (queue.clone(), Arc::clone(&this));
        pods.add_handler(move |event: &Event<Pod>| {
            let pod = event.object();
            if let Event::Deleted(_) = event {
                state.pending.lock().remove(object::uid(&pod.metadata));
            } else if pod.spec.as_ref().is_some_and(|s| s.resource_claims.is_some()) {
                wake.add(Key::of(&pod.metadata));
            }
        });
        let wake = queue.clone();
        claims.add_handler(move |event: &Event<ResourceClaim>| wake_users(event.object(), &wake));
        let (wake, all) = (queue.clone(), claims.store());
        slices.add_handler(move |_: &Event<ResourceSlice>| all.list().iter().for_each(|c| wake_users(c, &wake)));
        if let Some(rules) = rules {
            let (wake, all) = (queue.clone(), claims.store());
            rules.add_handler(move |_: &Event<DeviceTaintRule>| all.list().iter().for_each(|c| wake_users(c, &wake)));
        }
        let workers = cx.settings().workers.device_taint_eviction;
        worker::run(cx, "device-taint-eviction", workers, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

fn wake_users(claim: &ResourceClaim, queue: &Queue<Key>) {
    for user in claim.status.iter().flat_map(|s| s.reserved_for.iter().flatten()).filter(|r| r.resource == "pods") {
        queue.add(Key::new(object::namespace(&claim.metadata), user.name.clone()));
    }
}

impl Eviction {
    /// When the pod must go.
    fn due(&self, pod: &Pod) -> Option<Timestamp> {
        let (slices, rules) = (self.slices.list(), self.rules.as_ref().map(Store::list).unwrap_or_default());
        let entries = pod.spec.iter().flat_map(|s| s.resource_claims.iter().flatten());
        entries
            .into_iter()
            .filter_map(|entry| {
                let Named::Claim { name, .. } = named(pod, entry) else { return None };
                let claim = self.claims.get(object::namespace(&pod.metadata), &name)?;
                if !plan::reserved_for(&claim, object::uid(&pod.metadata)) {
                    return None;
                }
                plan::eviction(&claim, &|device| plan::taints(device, &slices, &rules))
            })
            .min()
    }

    async fn sync(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(None) };
        if object::deleting(&pod.metadata) || pods::finished(&pod) || pods::node(&pod).is_empty() {
            return Ok(None);
        }
        let (now, uid) = (clock::now(), object::uid(&pod.metadata).to_owned());
        let about = object::reference::<Pod>(&pod.metadata);
        let Some(due) = self.due(&pod) else {
            if self.pending.lock().remove(&uid) {
                self.executor.events.say(&about, false, EVENT, "Cancelling deletion".into());
            }
            return Ok(None);
        };
        if due > now {
            self.pending.lock().insert(uid);
            return Ok(Duration::try_from(due.duration_since(now)).ok());
        }
        self.executor.events.say(&about, false, EVENT, "Marking for deletion".into());
        let message = "Device Taint manager: deleting due to NoExecute taint";
        for action in
            [disruption(&pod, "DeletionByDeviceTaintManager", message, None, now), Action::delete::<Pod>(&pod.metadata)]
        {
            match self.executor.one(action).await {
                // It went by itself.
                Err(e) if e.not_found() => return Ok(None),
                other => other?,
            }
        }
        self.pending.lock().remove(&uid);
        let late = now.duration_since(due).as_secs_f64();
        metrics::observe("device_taint_eviction_controller_pod_deletion_duration_seconds", &[], late);
        metrics::count("device_taint_eviction_controller_pod_deletions_total", &[]);
        Ok(None)
    }
}
