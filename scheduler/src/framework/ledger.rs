//! Promises of this scheduler that the API server has not yet confirmed to its informers: devices allocated to resource
//! claims, volumes set aside for volume claims.
//!
//! Answers for upstream's assume caches. Shared by all profiles, so that none gives away what another has promised.
//! A promise is made at Reserve, becomes certain when the write succeeds, and is struck out when the informer has
//! caught up, or when the pod does not get its place after all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;

use crate::model::devices::{Amounts, DeviceId, Holding, allocated};

/// The devices that claims hold.
#[derive(Debug, Clone, Default)]
pub struct InUse {
    /// By how many claims each is held alone.
    whole: HashMap<DeviceId, u32>,
    /// By how many each is shared, and what they take of it together.
    shared: HashMap<DeviceId, (u32, Amounts)>,
}

impl InUse {
    /// Reports whether somebody holds the device alone.
    pub fn whole(&self, device: &DeviceId) -> bool {
        self.whole.contains_key(device)
    }

    /// Amounts taken of a device that is shared.
    pub fn shared(&self, device: &DeviceId) -> Option<&Amounts> {
        self.shared.get(device).map(|(_, taken)| taken)
    }

    fn count(&mut self, holding: Holding, up: bool) {
        let step = |n: u32| if up { n + 1 } else { n.saturating_sub(1) };
        let Some(share) = holding.share else {
            let n = self.whole.entry(holding.id.clone()).or_insert(0);
            *n = step(*n);
            if *n == 0 {
                self.whole.remove(&holding.id);
            }
            return;
        };
        let (n, taken) = self.shared.entry(holding.id.clone()).or_default();
        *n = step(*n);
        for (name, amount) in &share {
            let sum = taken.entry(name.clone()).or_default();
            if up { sum.add(amount) } else { sum.sub(amount) }
        }
        if *n == 0 {
            self.shared.remove(&holding.id);
        }
    }
}

/// See the module. Locks are held for the length of a call.
#[derive(Debug, Default)]
pub struct Ledger {
    devices: Mutex<Devices>,
    volumes: Mutex<Volumes>,
}

/// Decision for a claim that waits for its first consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// To the existing volume of that name.
    Volume(String),
    /// To a volume that is provisioned for the node of that name.
    Node(String),
}

#[derive(Debug, Default)]
struct Volumes {
    /// By `namespace/name`.
    claims: HashMap<String, Chosen>,
    /// Names of the volumes that are chosen.
    set_aside: HashSet<String>,
}

#[derive(Debug)]
struct Chosen {
    choice: Choice,
    /// Pods that are bound with it.
    pods: u32,
    written: bool,
}

#[derive(Debug, Default)]
struct Devices {
    in_use: Arc<InUse>,
    promises: HashMap<String, Promise>,
}

#[derive(Debug, Clone)]
struct Promise {
    claim: Arc<ResourceClaim>,
    /// Written: the claim is as the API server returned it.
    written: bool,
}

impl Promise {
    /// Reports whether a form of the claim that the informer has seen says what was promised, so that it counts for itself.
    fn is_shown_by(&self, seen: &ResourceClaim) -> bool {
        match self.written {
            true => version(seen) >= version(&self.claim),
            // The informer may see what was written before the answer to the write is here.
            false => is_allocated(seen) && version(seen) > version(&self.claim),
        }
    }
}

fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

impl Devices {
    fn count(&mut self, claim: Option<&ResourceClaim>, up: bool) {
        let Some(claim) = claim.filter(|claim| is_allocated(claim)) else { return };
        let in_use = Arc::make_mut(&mut self.in_use);
        for holding in allocated(claim) {
            in_use.count(holding, up);
        }
    }

    fn strike(&mut self, uid: &str) -> bool {
        let Some(promise) = self.promises.remove(uid) else { return false };
        self.count(Some(&promise.claim), false);
        true
    }
}

fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

fn version(claim: &ResourceClaim) -> u64 {
    claim.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

impl Ledger {
    /// The informer saw a claim come, change or go.
    pub fn seen(&self, old: Option<&ResourceClaim>, new: Option<&ResourceClaim>) {
        let mut devices = self.devices.lock();
        devices.count(new, true);
        devices.count(old, false);
        let Some(claim) = new.or(old) else { return };
        let outdated = devices.promises.get(uid(claim)).is_some_and(|p| new.is_none() || p.is_shown_by(claim));
        if outdated {
            devices.strike(uid(claim));
        }
    }

    /// The claim as last written, when that is newer than the form given.
    pub fn newest(&self, claim: &Arc<ResourceClaim>) -> Arc<ResourceClaim> {
        let devices = self.devices.lock();
        match devices.promises.get(uid(claim)) {
            Some(p) if p.written && version(&p.claim) > version(claim) => Arc::clone(&p.claim),
            _ => Arc::clone(claim),
        }
    }

    /// Devices in use, or promised.
    pub fn in_use(&self) -> Arc<InUse> {
        Arc::clone(&self.devices.lock().in_use)
    }

    /// Reports whether an allocation for the claim is on its way.
    pub fn pending(&self, uid: &str) -> bool {
        self.devices.lock().promises.get(uid).is_some_and(|p| !p.written)
    }

    /// Promises what `claim` says is allocated. `false` when a promise for it is on its way already.
    pub fn promise(&self, claim: ResourceClaim) -> bool {
        let mut devices = self.devices.lock();
        if devices.promises.get(uid(&claim)).is_some_and(|p| !p.written) {
            return false;
        }
        devices.strike(uid(&claim));
        devices.count(Some(&claim), true);
        devices.promises.insert(uid(&claim).to_owned(), Promise { claim: Arc::new(claim), written: false });
        true
    }

    /// Takes note that a promise is written, and of the claim that came back.
    pub fn written(&self, claim: ResourceClaim) {
        let mut devices = self.devices.lock();
        // A claim that went meanwhile took its promise with it, one that the informer has seen allocated counts already.
        if !devices.strike(uid(&claim)) {
            return;
        }
        devices.count(Some(&claim), true);
        devices.promises.insert(uid(&claim).to_owned(), Promise { claim: Arc::new(claim), written: true });
    }

    /// Forgets a promise, written or not, for a claim that this scheduler has deleted.
    pub fn forget(&self, uid: &str) {
        self.devices.lock().strike(uid);
    }

    /// Takes a promise back that was not written. `true` when there was one.
    pub fn withdraw(&self, uid: &str) -> bool {
        let mut devices = self.devices.lock();
        devices.promises.get(uid).is_some_and(|p| !p.written) && devices.strike(uid)
    }

    /// Records how a claim (`namespace/name`) is to be bound for one more pod.
    pub fn choose(&self, claim: String, choice: Choice) {
        let mut volumes = self.volumes.lock();
        if let Choice::Volume(volume) = &choice {
            volumes.set_aside.insert(volume.clone());
        }
        let chosen = volumes.claims.entry(claim).or_insert(Chosen { choice, pods: 0, written: false });
        chosen.pods += 1;
    }

    /// Decision for a claim that a pod which is being bound has made, if any.
    pub fn chosen(&self, claim: &str) -> Option<Choice> {
        self.volumes.lock().claims.get(claim).map(|chosen| chosen.choice.clone())
    }

    /// Records that the API server knows the choice for a claim.
    pub fn choice_written(&self, claim: &str) {
        if let Some(chosen) = self.volumes.lock().claims.get_mut(claim) {
            chosen.written = true;
        }
    }

    /// Reports whether the API server knows the choice for a claim.
    pub fn is_choice_written(&self, claim: &str) -> bool {
        self.volumes.lock().claims.get(claim).is_some_and(|chosen| chosen.written)
    }

    /// Ends the interest of one pod in the choice for a claim: the claim is bound, or the pod goes elsewhere.
    pub fn unchoose(&self, claim: &str) {
        let mut volumes = self.volumes.lock();
        let Some(chosen) = volumes.claims.get_mut(claim) else { return };
        chosen.pods -= 1;
        if chosen.pods > 0 {
            return;
        }
        if let Some(Chosen { choice: Choice::Volume(volume), .. }) = volumes.claims.remove(claim) {
            volumes.set_aside.remove(&volume);
        }
    }

    /// Reports whether a volume is to be bound to some claim.
    pub fn is_set_aside(&self, volume: &str) -> bool {
        self.volumes.lock().set_aside.contains(volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(version: &str, device: Option<&str>) -> ResourceClaim {
        let allocation = device
            .map(|d| json!({"devices": {"results": [{"request": "r", "driver": "drv", "pool": "p", "device": d}]}}));
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": version},
            "spec": {}, "status": {"allocation": allocation},
        }))
        .expect("claim")
    }

    fn used(ledger: &Ledger) -> Vec<String> {
        let mut all: Vec<String> = ledger.in_use().whole.keys().map(ToString::to_string).collect();
        all.sort();
        all
    }

    #[test]
    fn shares_add_up() {
        let share = |uid: &str, memory: &str| -> ResourceClaim {
            let result = json!({"request": "r", "driver": "drv", "pool": "p", "device": "a", "shareID": uid,
                "consumedCapacity": {"memory": memory}});
            serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": {},
                "status": {"allocation": {"devices": {"results": [result]}}}}))
            .expect("claim")
        };
        let ledger = Ledger::default();
        let taken = || {
            let in_use = ledger.in_use();
            assert!(!in_use.whole(&"drv/p/a".into()));
            in_use.shared(&"drv/p/a".into()).map(|t| t["memory"].canonical())
        };
        let [one, two] = [share("one", "1Gi"), share("two", "512Mi")];
        ledger.seen(None, Some(&one));
        assert!(ledger.promise(two.clone()));
        assert_eq!(taken().as_deref(), Some("1536Mi"));
        ledger.seen(Some(&one), None);
        assert_eq!(taken().as_deref(), Some("512Mi"));
        assert!(ledger.withdraw("two"));
        assert_eq!(taken(), None);
    }

    #[test]
    fn share_that_the_informer_sees_before_the_write_returns_counts_once() {
        let share = |version: &str, allocated: bool| -> ResourceClaim {
            let result = json!({"request": "r", "driver": "drv", "pool": "p", "device": "a", "shareID": "s",
                "consumedCapacity": {"memory": "1Gi"}});
            let allocation = allocated.then(|| json!({"devices": {"results": [result]}}));
            let meta = json!({"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": version});
            serde_json::from_value(json!({"metadata": meta, "spec": {}, "status": {"allocation": allocation}}))
                .expect("claim")
        };
        let ledger = Ledger::default();
        let taken = || ledger.in_use().shared(&"drv/p/a".into()).map(|t| t["memory"].canonical());
        ledger.seen(None, Some(&share("4", false)));
        assert!(ledger.promise(share("4", true)));
        ledger.seen(Some(&share("4", false)), Some(&share("5", true)));
        assert_eq!(taken().as_deref(), Some("1Gi"), "seen before the write returned");
        ledger.written(share("5", true));
        assert_eq!(taken().as_deref(), Some("1Gi"), "written");
        // An older form of the claim that comes late says nothing of the promise.
        let late = Ledger::default();
        assert!(late.promise(share("6", true)));
        late.seen(None, Some(&share("3", true)));
        assert!(late.pending("u"));
    }

    #[test]
    fn a_promise_lasts_until_the_informer_has_caught_up() {
        let ledger = Ledger::default();
        let free = claim("1", None);
        ledger.seen(None, Some(&free));
        assert!(used(&ledger).is_empty());
        assert!(ledger.promise(claim("1", Some("a"))) && !ledger.promise(claim("1", Some("b"))));
        assert!(ledger.pending("u"));
        assert_eq!(used(&ledger), ["drv/p/a"]);
        ledger.written(claim("5", Some("a")));
        assert!(!ledger.pending("u") && !ledger.withdraw("u"));
        let newest = ledger.newest(&Arc::new(free.clone()));
        assert_eq!(newest.metadata.resource_version.as_deref(), Some("5"));
        // An update in between says nothing yet.
        ledger.seen(Some(&free), Some(&claim("3", None)));
        assert_eq!(used(&ledger), ["drv/p/a"]);
        ledger.seen(Some(&claim("3", None)), Some(&claim("5", Some("a"))));
        assert_eq!(used(&ledger), ["drv/p/a"]);
        ledger.seen(Some(&claim("5", Some("a"))), Some(&claim("6", None)));
        assert!(used(&ledger).is_empty());
    }

    #[test]
    fn a_withdrawn_promise_frees_its_devices() {
        let ledger = Ledger::default();
        assert!(ledger.promise(claim("1", Some("a"))));
        assert!(ledger.withdraw("u") && !ledger.withdraw("u"));
        assert!(used(&ledger).is_empty() && !ledger.pending("u"));
    }

    #[test]
    fn choice_for_a_claim_lasts_as_long_as_a_pod_that_is_bound_with_it() {
        let ledger = Ledger::default();
        let choice = Choice::Volume("v".to_owned());
        ledger.choose("ns/c".to_owned(), choice.clone());
        ledger.choose("ns/c".to_owned(), choice.clone());
        assert!(!ledger.is_choice_written("ns/c"));
        ledger.choice_written("ns/c");
        ledger.unchoose("ns/c");
        assert_eq!(ledger.chosen("ns/c"), Some(choice));
        assert!(ledger.is_set_aside("v") && ledger.is_choice_written("ns/c"));
        ledger.unchoose("ns/c");
        assert_eq!(ledger.chosen("ns/c"), None);
        assert!(!ledger.is_set_aside("v"));
        ledger.unchoose("ns/c");
    }

    #[test]
    fn a_claim_that_goes_takes_its_promise_with_it() {
        let ledger = Ledger::default();
        let free = claim("1", None);
        ledger.seen(None, Some(&free));
        assert!(ledger.promise(claim("1", Some("a"))));
        ledger.seen(Some(&free), None);
        ledger.written(claim("2", Some("a")));
        assert!(used(&ledger).is_empty());
    }
}
