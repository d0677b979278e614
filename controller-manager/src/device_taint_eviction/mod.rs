//! Evicts pods that use devices which got a NoExecute taint. Answers for `device-taint-eviction`.
//!
//! In: claims, slices and rules with taints, pods. Out: pods deleted when their time has come, the status of rules
//! ([`status`]). [`plan`] says when.

pub mod plan;
pub mod status;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;
use parking_lot::Mutex;
use serde_json::json;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::plan::Rule;
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
use crate::resource_claim::plan::{Named, belongs, named};
use crate::taint_eviction::plan::disruption;

const NAME: &str = "device-taint-eviction-controller";
const EVENT: &str = "DeviceTaintManagerEviction";

/// Pods and rules go through one queue, as upstream's metrics have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Pod(Key),
    /// A rule, whose status may have to be told anew.
    Rule(Rule),
}

struct Eviction {
    executor: Executor,
    queue: Queue<Item>,
    pods: Store<Pod>,
    claims: Store<ResourceClaim>,
    slices: Store<ResourceSlice>,
    /// None without the feature, or where it is not served.
    rules: Option<Store<DeviceTaintRule>>,
    /// Pods that are to go and have not gone, by uid. Bounded by the pods that use tainted devices.
    pending: Mutex<HashSet<String>>,
    /// Number of pods that went because of a rule, by its uid. Bounded by the rules.
    evicted: Mutex<HashMap<String, usize>>,
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
        let queue: Queue<Item> = Queue::new(NAME);
        let this = Arc::new(Eviction {
            executor: cx.executor(NAME, NAME),
            queue: queue.clone(),
            pods: pods.store(),
            claims: claims.store(),
            slices: slices.store(),
            rules: rules.as_ref().map(shared::informer::Informer::store),
            pending: Mutex::default(),
            evicted: Mutex::default(),
        });
        let (wake, state) = (queue.clone(), Arc::clone(&this));
        pods.add_handler(move |event: &Event<Pod>| {
            let pod = event.object();
            if let Event::Deleted(_) = event {
                state.pending.lock().remove(object::uid(&pod.metadata));
            } else if pod.spec.as_ref().is_some_and(|s| s.resource_claims.is_some()) {
                wake.add(Item::Pod(Key::of(&pod.metadata)));
            }
        });
        let wake = queue.clone();
        claims.add_handler(move |event: &Event<ResourceClaim>| wake_users(event.object(), &wake));
        let (wake, all) = (queue.clone(), claims.store());
        slices.add_handler(move |_: &Event<ResourceSlice>| all.list().iter().for_each(|c| wake_users(c, &wake)));
        if let Some(rules) = rules {
            let (state, all) = (Arc::clone(&this), claims.store());
            rules.add_handler(move |event: &Event<DeviceTaintRule>| {
                match event {
                    Event::Added(rule) => state.queue.add(Item::Rule(plan::reference(rule))),
                    Event::Updated { old, new } if old.spec == new.spec => return,
                    Event::Updated { .. } => {}
                    Event::Deleted(rule) => drop(state.evicted.lock().remove(object::uid(&rule.metadata))),
                }
                all.list().iter().for_each(|c| wake_users(c, &state.queue));
            });
        }
        let workers = cx.settings().workers.device_taint_eviction;
        worker::run(cx, "device-taint-eviction", workers, &queue, &this, |s, item| async move {
            match item {
                Item::Pod(key) => s.sync(&key).await,
                Item::Rule(rule) => s.tell(&rule).await,
            }
        });
        Ok(Started::Yes)
    })
}

fn wake_users(claim: &ResourceClaim, queue: &Queue<Item>) {
    for user in claim.status.iter().flat_map(|s| s.reserved_for.iter().flatten()).filter(|r| r.resource == "pods") {
        queue.add(Item::Pod(Key::new(object::namespace(&claim.metadata), user.name.clone())));
    }
}

impl Eviction {
    /// The claims that a pod really uses.
    fn claims_of(&self, pod: &Pod) -> Vec<Arc<ResourceClaim>> {
        let entries = pod.spec.iter().flat_map(|s| s.resource_claims.iter().flatten());
        let claims = entries.filter_map(|entry| {
            let Named::Claim { name, own } = named(pod, entry) else { return None };
            let claim = self.claims.get(object::namespace(&pod.metadata), &name)?;
            let used = plan::reserved_for(&claim, object::uid(&pod.metadata)) && (!own || belongs(&claim, pod));
            used.then_some(claim)
        });
        claims.collect()
    }

    /// Returns when the pod must go, and why.
    fn due(&self, pod: &Pod) -> Option<plan::Eviction> {
        let (slices, rules) = (self.slices.list(), self.rules.as_ref().map(Store::list).unwrap_or_default());
        let claims = self.claims_of(pod);
        let each = claims.iter().filter_map(|c| plan::eviction(c, &|device| plan::taints(device, &slices, &rules)));
        each.reduce(plan::Eviction::join)
    }

    /// Counts the pods that a rule evicts, or would evict.
    fn count(&self, rule: &Arc<DeviceTaintRule>) -> status::Counts {
        let evicted = self.evicted.lock().get(object::uid(&rule.metadata)).copied().unwrap_or(0);
        let mut counts = status::Counts { evicted, ..status::Counts::default() };
        let mut evicting = DeviceTaintRule::clone(rule);
        if status::simulated(rule) {
            evicting.spec.taint.effect = plan::EFFECT.to_owned();
            counts.published = plan::published(rule, &self.slices.list());
            let claims = self.claims.list();
            let devices = claims.iter().flat_map(|c| plan::allocated(c));
            counts.allocated = devices.filter(|d| plan::selects(rule, &d.driver, &d.pool, &d.device)).count();
        }
        let (rules, slices): (_, [Arc<ResourceSlice>; 0]) = ([Arc::new(evicting)], []);
        let goes = |pod: &Pod| {
            let claims = self.claims_of(pod);
            claims.iter().any(|c| plan::eviction(c, &|device| plan::taints(device, &slices, &rules)).is_some())
        };
        let stays = |pod: &Pod| !object::deleting(&pod.metadata) && !pods::node(pod).is_empty();
        let pods = self.pods.select(|pod| stays(pod) && goes(pod));
        counts.pods = pods.len();
        counts.namespaces = pods.iter().map(|p| object::namespace(&p.metadata)).collect::<BTreeSet<_>>().len();
        counts
    }

    /// Tell in the status of a rule what it does.
    async fn tell(&self, (name, uid): &Rule) -> Synced {
        let rule = self.rules.as_ref().and_then(|all| all.get("", name));
        let Some(rule) = rule.filter(|r| object::uid(&r.metadata) == uid) else { return Ok(None) };
        let now = clock::now();
        if let Some(left) = status::wait(&rule, now) {
            return Ok(Some(left));
        }
        if let Some(condition) = status::condition(&rule, self.count(&rule), now) {
            let status = json!({"conditions": [condition]});
            self.executor.one(Action::apply_status::<DeviceTaintRule>(&rule.metadata, NAME, status)).await?;
        }
        Ok(None)
    }

    async fn sync(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(None) };
        if object::deleting(&pod.metadata) || pods::node(&pod).is_empty() {
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
        for rule in &due.rules {
            self.queue.add(Item::Rule(rule.clone()));
        }
        self.pending.lock().insert(uid.clone());
        if due.at > now {
            return Ok(Duration::try_from(due.at.duration_since(now)).ok());
        }
        self.executor.events.say(&about, false, EVENT, "Marking for deletion".into());
        let message = "Device Taint manager: deleting due to NoExecute taint";
        for action in
            [disruption(&pod, "DeletionByDeviceTaintManager", message, None, now), Action::delete::<Pod>(&pod.metadata)]
        {
            match self.executor.one(action).await {
                // It went by itself, which is told when the cache shows it.
                Err(e) if e.not_found() => return Ok(None),
                other => other?,
            }
        }
        self.pending.lock().remove(&uid);
        let there = |rule: &Rule| self.rules.as_ref().is_some_and(|all| all.get("", &rule.0).is_some());
        for rule in due.rules.into_iter().filter(there) {
            *self.evicted.lock().entry(rule.1.clone()).or_default() += 1;
            // The cache has to show that the pod is gone.
            self.queue.add_after(Item::Rule(rule), status::PERIOD);
        }
        let late = now.duration_since(due.at).as_secs_f64();
        metrics::observe("device_taint_eviction_controller_pod_deletion_duration_seconds", &[], late);
        metrics::count("device_taint_eviction_controller_pod_deletions_total", &[]);
        Ok(None)
    }
}
