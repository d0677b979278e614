//! Makes claims for pods from templates, reserves them, and frees them when their pods are over. Answers for
//! `resourceclaim`.

pub mod made;
pub mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PodResourceClaim;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::client::path;
use shared::informer::{Event, Store};
use shared::types::from_tree;
use shared::workqueue::Queue;

use self::made::Made;
use self::plan::Named;
use crate::engine::action::{Action, body, object_path};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const WORKERS: usize = 10;
const OWNER: &str = "ResourceClaimController";
const COMPONENT: &str = "resource_claim";
/// Index of pods by the claims their entries stand for.
const BY_CLAIM: &str = "resource claim";
/// Index of claims by the uid of the pod they were made for.
const BY_POD: &str = "pod";

/// Pods and claims go through one queue, as upstream's metrics have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SyncItem {
    Pod(Key),
    Claim(Key),
}

struct Claims {
    executor: Executor,
    pods: Store<Pod>,
    claims: Store<ResourceClaim>,
    templates: Store<ResourceClaimTemplate>,
    made: Mutex<Made>,
    queue: Queue<SyncItem>,
    admin_access: bool,
    prioritized_list: bool,
}

/// Wire the resource claim controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("DynamicResourceAllocation") {
            return Ok(Started::Skipped);
        }
        let (Some(claims), Some(templates)) =
            (cx.served::<ResourceClaim>().await?, cx.served::<ResourceClaimTemplate>().await?)
        else {
            return Ok(Started::Skipped);
        };
        let pods = cx.pods();
        pods.add_index_unless(BY_CLAIM, |old, new| [old, new].iter().all(|pod| entries(pod).next().is_none()), used);
        claims.add_index(BY_POD, |claim: &ResourceClaim| {
            object::controller_of(&claim.metadata).map(|r| r.uid.clone()).into_iter().collect()
        });
        let queue: Queue<SyncItem> = Queue::new("resource_claim");
        let this = Arc::new(Claims {
            executor: cx.executor("resource-claim-controller", COMPONENT),
            pods: pods.store(),
            claims: claims.store(),
            templates: templates.store(),
            made: Mutex::default(),
            queue: queue.clone(),
            admin_access: cx.gate("DRAAdminAccess"),
            prioritized_list: cx.gate("DRAPrioritizedList"),
        });
        let state = Arc::clone(&this);
        pods.add_handler(move |event: &Event<Pod>| {
            let pod = event.object();
            if entries(pod).next().is_some() || plan::extended(pod).is_some() {
                state.wake(pod, matches!(event, Event::Deleted(_)));
            }
        });
        let (wake, all, state) = (queue.clone(), pods.store(), Arc::clone(&this));
        claims.add_handler(move |event: &Event<ResourceClaim>| {
            count(event);
            state.seen(event.object());
            let key = Key::of(&event.object().metadata);
            // A pod that was bound already waits for the allocation to reserve it.
            for pod in all.by_index(BY_CLAIM, &key.to_string()) {
                wake.add(SyncItem::Pod(Key::of(&pod.metadata)));
            }
            wake.add(SyncItem::Claim(key));
        });
        let (wake, all) = (queue.clone(), pods.store());
        templates.add_handler(move |event: &Event<ResourceClaimTemplate>| {
            let Event::Added(template) = event else { return };
            let name = object::name(&template.metadata);
            for pod in all.list_namespace(object::namespace(&template.metadata)) {
                if entries(&pod).any(|e| e.resource_claim_template_name.as_deref() == Some(name)) {
                    wake.add(SyncItem::Pod(Key::of(&pod.metadata)));
                }
            }
        });
        worker::run(cx, "resource-claim", WORKERS, &queue, &this, |s, item| async move {
            match item {
                SyncItem::Pod(key) => s.sync_pod(&key).await,
                SyncItem::Claim(key) => s.sync_claim(&key).await,
            }
        });
        Ok(Started::Yes)
    })
}

fn entries(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|s| s.resource_claims.iter().flatten())
}

/// The claims that the entries of a pod stand for.
fn used(pod: &Pod) -> Vec<String> {
    let namespace = object::namespace(&pod.metadata);
    let named = entries(pod).filter_map(|entry| match plan::named(pod, entry) {
        Named::Claim { name, .. } => Some(Key::new(namespace, name).to_string()),
        Named::Nothing | Named::Missing { .. } => None,
    });
    named.collect()
}

/// Counts claims by their events.
fn count(event: &Event<ResourceClaim>) {
    let step = |claim: &ResourceClaim, by: f64| {
        let allocated = claim.status.as_ref().is_some_and(|s| s.allocation.is_some());
        let labels = [plan::admin_access(claim), allocated].map(|yes| yes.to_string());
        let labels = [labels[0].as_str(), &labels[1], plan::source(claim)];
        metrics::move_by("resourceclaim_controller_resource_claims", &labels, by);
    };
    match event {
        Event::Added(new) => step(new, 1.0),
        Event::Updated { old, new } => {
            step(old, -1.0);
            step(new, 1.0);
        }
        Event::Deleted(old) => step(old, -1.0),
    }
}

impl Claims {
    fn seen(&self, claim: &ResourceClaim) {
        if let Some(owner) = object::controller_of(&claim.metadata) {
            self.made.lock().seen(&owner.uid, &Key::of(&claim.metadata));
        }
    }

    fn wake(&self, pod: &Pod, deleted: bool) {
        if deleted {
            self.made.lock().forget(object::uid(&pod.metadata));
        }
        let namespace = object::namespace(&pod.metadata);
        if deleted || !plan::needs_claims(pod) {
            for entry in entries(pod) {
                if let Named::Claim { name, .. } = plan::named(pod, entry) {
                    self.queue.add(SyncItem::Claim(Key::new(namespace, name)));
                }
            }
            if let Some(name) = plan::extended(pod) {
                self.queue.add(SyncItem::Claim(Key::new(namespace, name)));
            }
        }
        if !deleted && entries(pod).next().is_some() {
            self.queue.add(SyncItem::Pod(Key::of(&pod.metadata)));
        }
    }

    async fn sync_pod(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(None) };
        if object::deleting(&pod.metadata) || !plan::needs_claims(&pod) {
            return Ok(None);
        }
        let mut made: BTreeMap<&str, String> = BTreeMap::new();
        for entry in entries(&pod) {
            match self.claim_for(&pod, entry).await {
                Ok(Some(name)) => drop(made.insert(&entry.name, name)),
                Ok(None) => {}
                Err(e) => {
                    let about = object::reference::<Pod>(&pod.metadata);
                    let text = format!("PodResourceClaim {}: {e}", entry.name);
                    self.executor.events.say(&about, true, "FailedResourceClaimCreation", text);
                    return Err(RestError::other(format!("pod {key}, PodResourceClaim {}: {e}", entry.name)));
                }
            }
        }
        if !made.is_empty() {
            self.note(&pod, &made).await?;
        }
        if !crate::engine::pods::node(&pod).is_empty() {
            self.reserve(&pod).await?;
        }
        Ok(None)
    }

    /// The name of the claim that was made for an entry, or of one that was made before and not noted; None when there
    /// is nothing to note.
    async fn claim_for(&self, pod: &Pod, entry: &PodResourceClaim) -> Result<Option<String>, RestError> {
        let (namespace, uid) = (object::namespace(&pod.metadata), object::uid(&pod.metadata));
        let named = plan::named(pod, entry);
        if let Some(made) = self.made.lock().find(uid, &entry.name, clock::instant()) {
            let noted = matches!(&named, Named::Claim { name, .. } if name == made);
            return Ok((!noted).then(|| made.to_owned()));
        }
        let template = match named {
            Named::Nothing | Named::Claim { own: false, .. } => return Ok(None),
            Named::Claim { name, own: true } => {
                if self.claims.get(namespace, &name).is_some_and(|c| plan::belongs(&c, pod)) {
                    return Ok(None);
                }
                // It is gone, or somebody else's by now.
                entry.resource_claim_template_name.clone().unwrap_or_default()
            }
            Named::Missing { template } => template,
        };
        let mut theirs = self.claims.by_index(BY_POD, uid).into_iter();
        let orphan = theirs.find(|c| object::annotation(&c.metadata, plan::POD_CLAIM) == Some(entry.name.as_str()));
        if let Some(orphan) = orphan {
            return Ok(Some(object::name(&orphan.metadata).to_owned()));
        }
        let Some(found) = self.templates.get(namespace, &template) else {
            let why = format!("resourceclaimtemplate.resource.k8s.io {template:?} not found");
            return Err(RestError::other(format!("resource claim template {template:?}: {why}")));
        };
        if let Some(why) = plan::refused(&found, self.admin_access, self.prioritized_list) {
            return Err(RestError::other(why));
        }
        let claim = plan::from_template(pod, entry, &found);
        let Action::Create { path, body } = Action::create(&claim) else { return Ok(None) };
        let result = self.executor.rest.post(&path, &body).await;
        let status = if result.is_ok() { "success" } else { "failure" };
        let labels = [plan::admin_access(&claim).to_string(), status.to_owned()];
        metrics::count("resourceclaim_controller_creates_total", &[&labels[0], &labels[1]]);
        let name = result.map_err(|e| RestError::other(format!("create ResourceClaim : {e}")))?.name;
        let mut made = self.made.lock();
        // The watch may have been faster than the answer.
        if self.claims.get(namespace, &name).is_none() {
            made.note(uid, &entry.name, Key::new(namespace, &name), clock::instant());
        }
        Ok(Some(name))
    }

    /// Tell the pod which claims are its own.
    async fn note(&self, pod: &Pod, made: &BTreeMap<&str, String>) -> Result<(), RestError> {
        let known = pod.status.iter().flat_map(|s| s.resource_claim_statuses.iter().flatten());
        let mut statuses: BTreeMap<String, Value> = known.map(|s| (s.name.clone(), body(s))).collect();
        for (name, claim) in made {
            statuses.insert((*name).to_owned(), json!({"name": name, "resourceClaimName": claim}));
        }
        let meta = &pod.metadata;
        let status = json!({"resourceClaimStatuses": statuses.into_values().collect::<Vec<_>>()});
        self.executor.one(Action::apply_status::<Pod>(meta, OWNER, status)).await
    }

    /// A pod that was bound without the scheduler has its claims reserved here, once they are allocated.
    async fn reserve(&self, pod: &Pod) -> Result<(), RestError> {
        for entry in entries(pod) {
            let Named::Claim { name, own } = plan::named(pod, entry) else { continue };
            let Some(claim) = self.claims.get(object::namespace(&pod.metadata), &name) else { continue };
            if (own && !plan::belongs(&claim, pod)) || !plan::reservable(&claim, pod) {
                continue;
            }
            let mut copy = ResourceClaim::clone(&claim);
            copy.status.get_or_insert_default().reserved_for.get_or_insert_default().push(plan::reservation(pod));
            self.put(Action::update_status(&copy)).await?;
        }
        Ok(())
    }

    async fn sync_claim(&self, key: &Key) -> Synced {
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(None) };
        let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.clone()).unwrap_or_default();
        let mut valid = Vec::with_capacity(reserved.len());
        for consumer in reserved {
            if self.alive(&key.namespace, &consumer).await? {
                valid.push(consumer);
            }
        }
        let upkeep = plan::upkeep(&claim, valid, self.owner_done(&claim));
        let mut latest: Option<Value> = None;
        if let Some(copy) = &upkeep.status {
            latest = Some(self.put(Action::update_status(copy.as_ref())).await?);
        }
        if upkeep.release {
            let mut object = latest.unwrap_or_else(|| body(claim.as_ref()));
            if let Some(list) = object["metadata"]["finalizers"].as_array_mut() {
                list.retain(|f| f != plan::FINALIZER);
            }
            let path = object_path::<ResourceClaim>(&claim.metadata);
            match self.executor.rest.put(&path, &object).await {
                Err(e) if e.not_found() => {}
                other => drop(other?),
            }
        }
        if upkeep.delete && !object::deleting(&claim.metadata) {
            self.executor.one(Action::delete::<ResourceClaim>(&claim.metadata)).await?;
        }
        Ok(None)
    }

    /// Not through the executor: a lost race means that everything is looked at anew.
    async fn put(&self, action: Action) -> Result<Value, RestError> {
        let Action::Update { path, body } = action else { return Ok(Value::Null) };
        self.executor.rest.put_whole(&path, &body).await
    }

    /// Reports whether a consumer still has a use for the claim. A consumer that the cache does not know is asked of
    /// the server: a reservation that the scheduler has just made must not be lost.
    async fn alive(&self, namespace: &str, consumer: &ResourceClaimConsumerReference) -> Result<bool, RestError> {
        if consumer.api_group.as_deref().is_some_and(|g| !g.is_empty()) || consumer.resource != "pods" {
            return Err(RestError::other(format!("unsupported ReservedFor entry: {consumer:?}")));
        }
        let meant = |pod: &Pod| object::uid(&pod.metadata) == consumer.uid;
        let live = |pod: &Pod| meant(pod) && !plan::done(pod);
        // Another one of that name may be the one before.
        if let Some(pod) = self.pods.get(namespace, &consumer.name).filter(|pod| meant(pod)) {
            return Ok(live(&pod));
        }
        let pods = path::collection("v1", Some(namespace), "pods");
        let path = path::object(&pods, &consumer.name).map_err(RestError::other)?;
        match self.executor.rest.get(&path).await {
            Ok(found) => from_tree(&found).map(|pod| live(&pod)).map_err(RestError::other),
            Err(e) if e.not_found() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reports whether the claim was made for a pod that is over. One that is not known is left to the garbage
    /// collector.
    fn owner_done(&self, claim: &ResourceClaim) -> bool {
        let Some(owner) = object::controller_of(&claim.metadata).filter(|r| r.kind == "Pod" && r.api_version == "v1")
        else {
            return false;
        };
        let pod = self.pods.get(object::namespace(&claim.metadata), &owner.name);
        pod.is_some_and(|p| object::uid(&p.metadata) != owner.uid || plan::done(&p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_found_by_the_claims_it_uses() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "shared", "resourceClaimName": "c"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "new", "resourceClaimTemplateName": "t"},
            ]},
            "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}]},
        }))
        .expect("pod");
        assert_eq!(used(&pod), ["ns/c", "ns/p-made-x"]);
    }
}
