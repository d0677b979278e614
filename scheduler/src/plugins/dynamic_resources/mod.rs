//! DynamicResources: pods go where the devices of their resource claims are, or can be had. Answers for upstream's
//! `pkg/scheduler/framework/plugins/dynamicresources`.
//!
//! Claims that are allocated limit the nodes. Claims that are not get devices allocated (structured parameters): Filter
//! and Score look for them node by node and keep nothing, Reserve looks once more on the node chosen and promises what
//! it finds in the [`Ledger`], PreBind writes it. Answers depend on the pod's own claims, so they are never another
//! pod's.

mod allocate;
mod bind;
mod capacity;
mod claims;
mod conditions;
mod extended;
mod request;
mod result;
mod selectors;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use parking_lot::Mutex;
use rand::seq::IndexedRandom;
use serde_json::Value;
use shared::flags::parse_duration;

use self::allocate::{Setup, Stop, allocate};
use self::bind::WriteError;
use self::extended::{Extended, Mapping};
use self::selectors::Selectors;
use crate::framework::api::Api;
use crate::framework::plugin::{
    Context, Filter, Plugin, PostFilter, PreBind, PreEnqueue, PreFilter, PreFiltered, PreScore, Requeue, Rescue,
    Reserve, Score, normalize_by_max,
};
use crate::framework::{
    ClusterEvent, CycleState, Delta, ExternalChange, Features, Hint, Ledger, Listers, Profile, ProfileError, Rejected,
    Status,
};
use crate::model::extended::pod_of;
use crate::model::selector::NodeTerm;
use crate::model::{NodeBase, NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "DynamicResources";

const ELSEWHERE: &str = "resourceclaim not available on the node";
/// Time limit of the search on one node, unless the arguments say otherwise.
const FILTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that devices have to get ready, unless the arguments say otherwise.
const BINDING_TIMEOUT: Duration = Duration::from_secs(600);
/// Pause between two looks at claims whose devices get ready.
const PAUSE: Duration = Duration::from_secs(5);

struct DynamicResources {
    selectors: Selectors,
    /// `None` for no limit.
    timeout: Option<Duration>,
    /// Time that devices have to get ready for their pod, and how often they are looked at meanwhile.
    binding_timeout: Duration,
    pause: Duration,
    features: Features,
}

/// Builds the plugin.
///
/// # Errors
/// A timeout that is none.
pub fn build(args: &Value, features: Features) -> Result<Plugin, ProfileError> {
    let timeout = filter_timeout(args, features)?;
    let selectors = if features.consumable_capacity { Selectors::of_shared() } else { Selectors::default() };
    let binding_timeout = match args.get("bindingTimeout").and_then(Value::as_str) {
        None => BINDING_TIMEOUT,
        Some(text) => parse_duration(text).map_err(|e| ProfileError::Args(NAME, e.to_string()))?,
    };
    let it = Arc::new(DynamicResources { selectors, timeout, binding_timeout, pause: PAUSE, features });
    Ok(Plugin::new(NAME)
        .pre_enqueue(&it)
        .pre_filter(&it)
        .filter(&it)
        .post_filter(&it)
        .pre_score(&it)
        .score(&it)
        .reserve(&it)
        .pre_bind(&it)
        .requeue(&it))
}

/// Reads the time limit of the search on one node; `None` for no limit.
fn filter_timeout(args: &Value, features: Features) -> Result<Option<Duration>, ProfileError> {
    let timeout = match args.get("filterTimeout").and_then(Value::as_str) {
        None => FILTER_TIMEOUT,
        Some(text) => parse_duration(text).map_err(|e| ProfileError::Args(NAME, e.to_string()))?,
    };
    Ok(Some(timeout).filter(|t| features.filter_timeout && !t.is_zero()))
}

/// Facts of the pod's claims in one cycle. Copies share what happens to them later.
#[derive(Clone)]
struct CycleClaims {
    claims: Vec<Arc<ResourceClaim>>,
    /// The nodes of each claim that is allocated, if it is limited to some; to none when its devices failed, or did not get
    /// ready in time.
    limits: Vec<Option<Vec<NodeTerm>>>,
    /// For the claims that are not allocated.
    setup: Option<Arc<Setup>>,
    /// For extended resources that devices stand for; their claim comes after the others.
    extended: Option<Arc<Extended>>,
    ledger: Arc<Ledger>,
    later: Arc<Mutex<Later>>,
}

#[derive(Default)]
struct Later {
    /// By Reserve: allocations of claims by their position.
    allocations: BTreeMap<usize, AllocationResult>,
    /// By PreBind: claims that were reserved for the pod.
    reserved: Vec<ResourceClaim>,
    /// By PostFilter: a claim to give back.
    release: Option<Arc<ResourceClaim>>,
    /// By PostFilter: a claim for extended resources to delete.
    delete: Option<Arc<ResourceClaim>>,
    /// By Reserve: the claim for extended resources, which is to be made.
    special: Option<Special>,
    /// By PreBind: that claim.
    made: Option<ResourceClaim>,
}

/// The claim for extended resources as it is on the node chosen.
#[derive(Clone)]
struct Special {
    claim: Arc<ResourceClaim>,
    mappings: Vec<Mapping>,
}

impl CycleClaims {
    /// The claims to allocate on a node, and the one among them that is for extended resources.
    fn setup_on(&self, cx: Context<'_>, node: &NodeInfo) -> Result<(Option<Arc<Setup>>, Option<Special>), Status> {
        let variant = match &self.extended {
            Some(extended) => extended.on(cx.listers, node)?,
            None => None,
        };
        Ok(match variant {
            Some(variant) => {
                let special = Special { claim: Arc::clone(&variant.claim), mappings: variant.mappings.clone() };
                (Some(Arc::clone(&variant.setup)), Some(special))
            }
            None => (self.setup.clone(), None),
        })
    }

    /// Positions of claims that are allocated where the node cannot reach them.
    fn elsewhere<'a>(&'a self, node: &'a NodeBase) -> impl Iterator<Item = usize> + 'a {
        let fits = |terms: &[NodeTerm]| terms.iter().any(|t| t.matches(&node.name, &node.labels));
        let elsewhere =
            move |(_, limit): &(usize, &Option<Vec<NodeTerm>>)| limit.as_ref().is_some_and(|terms| !fits(terms));
        self.limits.iter().enumerate().filter(elsewhere).map(|(i, _)| i)
    }
}

impl PreEnqueue for DynamicResources {
    fn pre_enqueue(&self, listers: Option<&dyn Listers>, pod: &PodInfo) -> Status {
        let checked = match listers {
            Some(listers) => claims::of(listers, pod).map(drop),
            None => claims::all_named(pod),
        };
        checked.map_or_else(|why| Status::unresolvable(why.to_string()), |()| Status::SUCCESS)
    }
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if pod.resource_claims.is_none() && pod.extended.is_empty() {
            return Err(Status::SKIP);
        }
        let claims = claims::of(cx.listers, pod).map_err(|why| Status::unresolvable(why.to_string()))?;
        let ledger = Arc::clone(cx.listers.ledger());
        let mut limits = Vec::new();
        let mut wanted = Vec::new();
        let is_stuck = |claim| self.features.bindings && conditions::is_stuck(claim, self.binding_timeout, cx.now);
        for (at, claim) in claims.iter().enumerate() {
            let allocation = claims::allocation(claim);
            let terms = allocation.and_then(|a| a.node_selector.as_ref()).map(|s| &s.node_selector_terms);
            limits.push(match is_stuck(claim) {
                true => Some(Vec::new()),
                false => terms.map(|t| t.iter().map(NodeTerm::from_api).collect()),
            });
            if allocation.is_some() {
                continue;
            }
            // Its devices are not known before the other pod's binding has written them.
            if ledger.pending(claims::uid(claim)) {
                let name = claims::full_name(claim);
                let text = format!("resource claim {name} is in the process of being allocated");
                return Err(Status::unresolvable(text));
            }
            wanted.push(request::read(cx.listers, (at, claim), self.features)?);
        }
        let setup = |wanted| Setup {
            wanted,
            inventory: cx.listers.inventory(),
            in_use: ledger.in_use(),
            sharing: self.features.consumable_capacity,
            taints: self.features.device_taints,
            left: Mutex::default(),
        };
        let base = || setup(wanted.clone());
        let extended = Extended::of(cx.listers, pod, self.features, claims.len(), base).map(Arc::new);
        if claims.is_empty() && extended.is_none() {
            return Err(Status::SKIP);
        }
        let setup = (!wanted.is_empty()).then(|| Arc::new(setup(wanted)));
        state.put(CycleClaims { claims, limits, setup, extended, ledger, later: Arc::default() });
        Ok(PreFiltered::All)
    }
}

impl DynamicResources {
    fn deadline(&self) -> Option<Instant> {
        self.timeout.map(|t| Instant::now() + t)
    }

    /// Allocations on a node, one for each claim that needs one.
    fn allocations(&self, setup: &Setup, node: &NodeBase) -> Result<Option<Vec<AllocationResult>>, Stop> {
        let shares = allocate(setup, &self.selectors, node, self.deadline())?;
        let write = |shares: Vec<_>| {
            setup.wanted.iter().zip(&shares).map(|(w, s)| result::allocation(w, s, &node.name)).collect()
        };
        Ok(shares.map(write))
    }
}

impl DynamicResources {
    /// Makes the claim for extended resources, if there is to be one, reserves it, and tells it in the pod's status.
    async fn make_special(&self, api: &dyn Api, notes: &CycleClaims, pod: &PodInfo) -> Result<(), WriteError> {
        let (special, allocation) = {
            let later = notes.later.lock();
            (later.special.clone(), later.allocations.get(&notes.claims.len()).cloned())
        };
        let (Some(Special { claim, mappings }), Some(allocation)) = (special, allocation) else { return Ok(()) };
        let made = api.create_resource_claim(&extended::nameless(&claim)).await;
        crate::metrics::claim_created(made.is_ok());
        let made = made.map_err(|source| WriteError::Create { claim: claims::full_name(&claim), source })?;
        // From now on its devices are promised to the claim that there is.
        let mut promised = made.clone();
        promised.status.get_or_insert_default().allocation = Some(allocation.clone());
        notes.ledger.promise(promised);
        notes.ledger.withdraw(claims::uid(&claim));
        notes.later.lock().made = Some(made.clone());
        let written = bind::reserve(api, &made, Some(&allocation), pod, self.features.bindings).await?;
        notes.ledger.written(written.clone());
        let status = extended::status(claims::name(&written), &mappings);
        {
            let mut later = notes.later.lock();
            later.made = Some(written.clone());
            later.reserved.push(written);
        }
        api.patch_status(pod, status).await.map_err(|source| WriteError::Pod { pod: pod.to_string(), source })
    }
}

fn stopped(stop: Stop) -> Status {
    match stop {
        Stop::Timeout => Status::unresolvable("timed out trying to allocate devices"),
        Stop::Node(why) => Status::unresolvable(why),
        Stop::Broken(why) => Status::error(why),
    }
}

impl Filter for DynamicResources {
    fn filter(&self, cx: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(notes) = state.get::<CycleClaims>() else { return Status::SUCCESS };
        let setup = match notes.setup_on(cx, node) {
            Ok((setup, _)) => setup,
            Err(status) => return status,
        };
        if let Some(setup) = setup {
            match allocate(&setup, &self.selectors, &node.base, self.deadline()) {
                Ok(Some(_)) => {}
                Ok(None) => return Status::unresolvable("cannot allocate all claims"),
                Err(stop) => return stopped(stop),
            }
        }
        if notes.elsewhere(&node.base).next().is_some() {
            return Status::unresolvable(ELSEWHERE);
        }
        Status::SUCCESS
    }
}

#[async_trait]
impl PostFilter for DynamicResources {
    fn post_filter(
        &self,
        cx: Context<'_>,
        _: &Profile,
        state: &CycleState,
        pod: &PodInfo,
        rejected: &Rejected,
    ) -> (Option<Rescue>, Status) {
        let Some(notes) = state.get::<CycleClaims>() else {
            return (None, Status::unschedulable("no new claims to deallocate"));
        };
        let ours = |s: &Status| s.plugin == NAME && s.reasons().iter().any(|r| r == ELSEWHERE);
        let mut in_the_way: Vec<usize> = Vec::new();
        for (at, _) in rejected.iter().filter(|(_, s)| ours(s)) {
            in_the_way.extend(notes.elsewhere(&cx.snapshot.nodes()[at].base));
        }
        let idle = |claim: &&Arc<ResourceClaim>| {
            let users = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
            users.is_empty() || users.len() == 1 && users[0].uid == *pod.uid
        };
        in_the_way.sort_unstable();
        in_the_way.dedup();
        let candidates: Vec<_> = in_the_way.iter().map(|i| &notes.claims[*i]).filter(idle).collect();
        // There is no better way to choose than by chance.
        if let Some(claim) = candidates.choose(&mut rand::rng()) {
            notes.later.lock().release = Some(Arc::clone(claim));
            return (None, Status::unschedulable("deallocation of ResourceClaim completed"));
        }
        if let Some(left) = notes.extended.as_ref().and_then(|extended| extended.left.as_ref()) {
            notes.later.lock().delete = Some(Arc::clone(left));
            return (None, Status::unschedulable("deletion of ResourceClaim completed"));
        }
        (None, Status::unschedulable("still not schedulable"))
    }

    fn acts(&self, state: &CycleState) -> bool {
        let acts = |later: &Later| later.release.is_some() || later.delete.is_some();
        state.get::<CycleClaims>().is_some_and(|n| acts(&n.later.lock()))
    }

    async fn act(&self, api: &dyn Api, state: &CycleState, pod: &PodInfo) {
        let Some(notes) = state.get::<CycleClaims>() else { return };
        let (claim, left) = {
            let mut later = notes.later.lock();
            (later.release.take(), later.delete.take())
        };
        if let Some(left) = left
            && let Err(error) = bind::delete(api, &left).await
        {
            tracing::error!(pod = %pod, claim = claims::full_name(&left), %error, "Could not delete ResourceClaim");
        }
        let Some(claim) = claim else { return };
        if let Err(error) = api.update_resource_claim(&bind::deallocated(&claim), true).await {
            tracing::error!(pod = %pod, claim = claims::full_name(&claim), %error, "Could not deallocate ResourceClaim");
        }
    }
}

impl PreScore for DynamicResources {
    fn pre_score(&self, _: Context<'_>, state: &mut CycleState, _: &PodInfo, _: &[&NodeInfo]) -> Status {
        let choice = |n: &CycleClaims| {
            let requests = n.setup.iter().flat_map(|s| &s.wanted).flat_map(|w| &w.requests);
            requests.flat_map(|r| r.alternatives.iter().map(|a| a.name != r.name)).any(|alternative| alternative)
        };
        // Without alternatives all nodes are equally good.
        if state.get::<CycleClaims>().is_some_and(choice) { Status::SUCCESS } else { Status::SKIP }
    }
}

impl Score for DynamicResources {
    fn score(&self, cx: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> i64 {
        let setup = state.get::<CycleClaims>().and_then(|n| n.setup_on(cx, node).ok()?.0);
        let Some(setup) = setup else { return 0 };
        let shares = allocate(&setup, &self.selectors, &node.base, self.deadline());
        shares.ok().flatten().map_or(0, |s| result::score(&setup.wanted, &s))
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize_by_max(scores, false);
    }
}

impl Reserve for DynamicResources {
    fn reserve(&self, cx: Context<'_>, state: &mut CycleState, _: &PodInfo, node: &Arc<NodeInfo>) -> Status {
        let Some(notes) = state.get_mut::<CycleClaims>() else { return Status::SUCCESS };
        let (setup, special) = match notes.setup_on(cx, node) {
            Ok((Some(setup), special)) => (setup, special),
            Ok((None, _)) => return Status::SUCCESS,
            Err(status) => return status,
        };
        (notes.setup, notes.later.lock().special) = (None, special);
        let found = match self.allocations(&setup, &node.base) {
            Ok(Some(found)) => found,
            Ok(None) => return Status::error("claim allocation not found for node"),
            Err(stop) => return stopped(stop),
        };
        for (wanted, allocation) in setup.wanted.iter().zip(found) {
            let mut claim = ResourceClaim::clone(&wanted.claim);
            claim.status.get_or_insert_default().allocation = Some(allocation.clone());
            if !notes.ledger.promise(claim) {
                let name = claims::name(&wanted.claim);
                return Status::error(format!("internal error, couldn't signal allocation for claim {name}"));
            }
            notes.later.lock().allocations.insert(wanted.at, allocation);
        }
        Status::SUCCESS
    }

    fn unreserve(&self, state: &mut CycleState, _: &PodInfo, _: &str) {
        let Some(notes) = state.get::<CycleClaims>() else { return };
        let mut later = notes.later.lock();
        for at in std::mem::take(&mut later.allocations).into_keys() {
            let claim = notes.claims.get(at).or(later.special.as_ref().map(|special| &special.claim));
            if let Some(claim) = claim {
                notes.ledger.withdraw(claims::uid(claim));
            }
        }
    }
}

#[async_trait]
impl PreBind for DynamicResources {
    fn applies(&self, state: &CycleState, _: &PodInfo) -> bool {
        state.get::<CycleClaims>().is_some_and(|n| !n.claims.is_empty() || n.later.lock().special.is_some())
    }

    async fn pre_bind(&self, api: &dyn Api, state: &CycleState, pod: &PodInfo, node: &str) -> Status {
        let Some(notes) = state.get::<CycleClaims>() else { return Status::SUCCESS };
        for (at, claim) in notes.claims.iter().enumerate() {
            if claims::reserved_for(claim, pod) {
                notes.later.lock().reserved.push(ResourceClaim::clone(claim));
                continue;
            }
            let allocation = notes.later.lock().allocations.get(&at).cloned();
            match bind::reserve(api, claim, allocation.as_ref(), pod, self.features.bindings).await {
                Ok(written) => {
                    if allocation.is_some() {
                        notes.ledger.written(written.clone());
                    }
                    notes.later.lock().reserved.push(written);
                }
                Err(why) => return Status::error(why.to_string()),
            }
        }
        if let Err(why) = self.make_special(api, notes, pod).await {
            return Status::error(why.to_string());
        }
        let claims = notes.later.lock().reserved.clone();
        if !self.features.bindings || !claims.iter().any(conditions::awaits) {
            return Status::SUCCESS;
        }
        let note = format!("waiting for binding conditions for device on node {node}");
        api.event(pod, "BindingConditionsPending", note);
        let ready = conditions::wait(api, &claims, self.binding_timeout, self.pause).await;
        ready.map_or_else(|why| Status::error(why.to_string()), |()| Status::SUCCESS)
    }

    async fn undo(&self, api: &dyn Api, state: &CycleState, pod: &PodInfo) {
        let Some(notes) = state.get::<CycleClaims>() else { return };
        let made = notes.later.lock().made.take();
        if let Some(made) = made {
            notes.later.lock().reserved.retain(|claim| claim.metadata.uid != made.metadata.uid);
            match bind::delete(api, &made).await {
                Ok(()) => notes.ledger.forget(claims::uid(&made)),
                Err(error) => {
                    notes.ledger.withdraw(claims::uid(&made));
                    tracing::error!(pod = %pod, claim = claims::full_name(&made), %error, "delete");
                }
            }
        }
        let mut reserved = std::mem::take(&mut notes.later.lock().reserved);
        // An earlier attempt may have reserved claims that this one did not come to.
        let known: HashSet<String> = reserved.iter().map(|claim| claims::uid(claim).to_owned()).collect();
        let earlier = notes.claims.iter().filter(|claim| claims::reserved_for(claim, pod));
        let missed = earlier.filter(|claim| !known.contains(claims::uid(claim)));
        reserved.extend(missed.map(|claim| ResourceClaim::clone(claim)));
        for claim in reserved {
            if let Err(error) = api.unreserve_resource_claim(&claim, pod).await {
                tracing::error!(pod = %pod, claim = claims::full_name(&claim), %error, "unreserve");
            }
        }
    }
}

impl Requeue for DynamicResources {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::Node { .. } => event.node_if(|old, new| old.labels != new.labels).is_some().into(),
            ClusterEvent::Target { old, new } => {
                (old.resource_claims != new.resource_claims && claims::all_named(new).is_ok()).into()
            }
            ClusterEvent::Object(ExternalChange::ResourceClaim(delta)) => claim_helps(pod, delta).into(),
            ClusterEvent::Object(ExternalChange::DeviceClass(delta)) => delta.now().is_some().into(),
            ClusterEvent::Object(ExternalChange::ResourceSlice(delta)) => delta.now().is_some().into(),
            // Slices count as changed when rules about their devices do.
            ClusterEvent::Object(ExternalChange::DeviceTaintRule(_)) => Hint::Queue,
            _ => Hint::Skip,
        }
    }
}

/// A claim that lost its allocation frees devices for anybody; any other change matters to its own pods only.
fn claim_helps(pod: &PodInfo, delta: &Delta<ResourceClaim>) -> bool {
    // Of the pod's own, when one that an earlier attempt had left is gone.
    let Some(new) = delta.now() else {
        return delta.old.as_deref().is_some_and(|old| pod_of(old) == Some(&*pod.uid));
    };
    let freed = delta.before().is_some_and(|old| claims::allocation(old).is_some());
    if freed && claims::allocation(new).is_none() {
        return true;
    }
    let mine = new.metadata.namespace.as_deref() == Some(&pod.namespace)
        && claims::names(pod).any(|name| name == claims::name(new));
    mine && delta.before().is_none_or(|old| old.status != new.status)
}

#[cfg(test)]
mod tests;
