//! Claims that are prepared on the node and the pods that have them, and their checkpoint in upstream's form,
//! `dra_manager_state`. Pure but for the file.

use super::error::ClaimError;
use super::v1;
use crate::files;
use k8s_openapi::api::core::v1::{Container, Pod, PodExtendedResourceClaimStatus};
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

const KIND: &str = "DRACheckpoint";
const VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// A device that a driver has prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Device {
    /// The pool that it is of.
    pub pool_name: String,
    /// Name in the pool.
    pub device_name: String,
    /// The share of it, where it is shared.
    #[serde(rename = "ShareID")]
    pub share_id: Option<String>,
    /// Requests of the claim that it is for; for all where there are none.
    pub request_names: Vec<String>,
    /// Names by which the runtime knows it.
    #[serde(rename = "CDIDeviceIDs")]
    pub cdi_device_ids: Vec<String>,
}

impl From<v1::Device> for Device {
    fn from(device: v1::Device) -> Self {
        Self {
            pool_name: device.pool_name,
            device_name: device.device_name,
            share_id: device.share_id,
            request_names: device.request_names,
            cdi_device_ids: device.cdi_device_ids,
        }
    }
}

impl Device {
    /// Reports whether it is for a request; `request/alternative` is for `request`.
    fn is_for(&self, request: Option<&str>) -> bool {
        let Some(request) = request else { return true };
        let base = |name: &str| name.split('/').next() == Some(request) || name == request;
        self.request_names.is_empty() || self.request_names.iter().any(|name| base(name))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct DriverState {
    pub(super) devices: Option<Vec<Device>>,
}

/// Reasons why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointError {
    /// The file is out of reach, or is no such document.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The checksum is that of other data.
    #[error("checkpoint is corrupted")]
    Corrupt,
    /// The data are no such document.
    #[error(transparent)]
    Data(#[from] serde_json::Error),
}

/// A claim that pods of the node have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Claim {
    #[serde(rename = "ClaimUID")]
    pub(super) uid: String,
    #[serde(rename = "ClaimName")]
    pub(super) name: String,
    pub(super) namespace: String,
    /// A set, as Go writes it: keys of an object.
    #[serde(rename = "PodUIDs")]
    pub(super) pods: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(rename = "DriverState")]
    pub(super) drivers: BTreeMap<String, DriverState>,
    /// This process has prepared it.
    #[serde(skip)]
    pub(super) is_prepared: bool,
}

impl Claim {
    /// The claim as its allocation says, prepared by nobody yet.
    ///
    /// # Errors
    /// It is not allocated.
    pub(super) fn new(claim: &ResourceClaim) -> Result<Self, ClaimError> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let allocation = allocation.ok_or_else(|| ClaimError::NotAllocated(name.clone()))?;
        let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        Ok(Self {
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            name,
            namespace: claim.metadata.namespace.clone().unwrap_or_default(),
            pods: BTreeMap::new(),
            drivers: results.map(|result| (result.driver.clone(), DriverState::default())).collect(),
            is_prepared: false,
        })
    }

    pub(super) fn message(&self) -> v1::Claim {
        v1::Claim { namespace: self.namespace.clone(), uid: self.uid.clone(), name: self.name.clone() }
    }

    /// Devices of the claim, each with the name of its driver.
    pub(super) fn devices(&self) -> impl Iterator<Item = (&String, &Device)> {
        self.drivers.iter().flat_map(|(driver, state)| state.devices.iter().flatten().map(move |of| (driver, of)))
    }
}

/// A claim of a pod: its entry in the pod, the claim's name, and whether it was made for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) entry: String,
    pub(super) claim: String,
    pub(super) is_generated: bool,
}

/// Claims of a pod; those that turned out not to be needed are left out. Upstream's `resourceclaim.Name`.
pub(super) fn references(pod: &Pod) -> Result<Vec<Reference>, ClaimError> {
    let entries = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let statuses: Vec<_> = statuses.collect();
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.name.clone();
        if let Some(claim) = entry.resource_claim_name.clone() {
            found.push(Reference { entry: name, claim, is_generated: false });
            continue;
        }
        let status = statuses.iter().find(|status| status.name == name);
        let status = status.ok_or_else(|| ClaimError::NotCreated {
            namespace: crate::pods::namespace(pod).to_owned(),
            pod: crate::pods::name(pod).to_owned(),
        })?;
        if let Some(claim) = status.resource_claim_name.clone() {
            found.push(Reference { entry: name, claim, is_generated: true });
        }
    }
    // The entry that no other has: containers have this claim by its mappings.
    let extended = extended(pod).map(|status| status.resource_claim_name.clone());
    found.extend(extended.map(|claim| Reference { entry: String::new(), claim, is_generated: true }));
    Ok(found)
}

/// The claim that the scheduler has made for the extended resources of a pod, and which containers have what of it.
pub(super) fn extended(pod: &Pod) -> Option<&PodExtendedResourceClaimStatus> {
    pod.status.as_ref()?.extended_resource_claim_status.as_ref()
}

/// Refuses a claim that a pod may not use.
pub(super) fn check(pod: &Pod, claim: &ResourceClaim, is_generated: bool) -> Result<(), ClaimError> {
    let (uid, name) = (crate::pods::uid(pod), claim.metadata.name.clone().unwrap_or_default());
    let pod_name = crate::pods::name(pod).to_owned();
    if is_generated {
        let owners = claim.metadata.owner_references.iter().flatten();
        let is_own = owners.into_iter().any(|owner| owner.uid == uid && owner.controller == Some(true));
        if !is_own {
            let namespace = crate::pods::namespace(pod).to_owned();
            return Err(ClaimError::NotOwned { namespace, claim: name, pod: pod_name });
        }
    }
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    if reserved.into_iter().any(|consumer| consumer.uid == uid) {
        return Ok(());
    }
    let (uid, claim_uid) = (uid.to_owned(), claim.metadata.uid.clone().unwrap_or_default());
    Err(ClaimError::NotReserved { pod: pod_name, uid, claim: name, claim_uid })
}

/// Claims by namespace and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State(BTreeMap<(String, String), Claim>);

impl State {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Adds a pod to those that have a claim: the claim as it is known.
    ///
    /// # Errors
    /// Another claim of the name is still prepared.
    pub(super) fn add(&mut self, claim: Claim, pod: &str) -> Result<Claim, ClaimError> {
        let key = (claim.namespace.clone(), claim.name.clone());
        let known = self.0.entry(key).or_insert_with(|| claim.clone());
        if known.uid != claim.uid {
            return Err(ClaimError::Old { name: claim.name, uid: known.uid.clone() });
        }
        known.pods.insert(pod.to_owned(), BTreeMap::new());
        Ok(known.clone())
    }

    /// Keeps what a driver has prepared.
    pub(super) fn prepared(&mut self, claim: &Claim, driver: &str, devices: Vec<Device>) {
        if let Some(known) = self.0.get_mut(&(claim.namespace.clone(), claim.name.clone())) {
            known.drivers.insert(driver.to_owned(), DriverState { devices: Some(devices) });
            known.is_prepared = known.drivers.values().all(|state| state.devices.is_some());
        }
    }

    /// Claims that a pod has.
    pub(super) fn of_pod(&self, uid: &str) -> Vec<Claim> {
        self.0.values().filter(|claim| claim.pods.contains_key(uid)).cloned().collect()
    }

    /// Uids of all pods that have claims.
    pub(super) fn pods(&self) -> BTreeSet<String> {
        self.0.values().flat_map(|claim| claim.pods.keys().cloned()).collect()
    }

    /// Uids of the pods that have one of some devices of a driver, given by pool and name.
    pub(super) fn pods_with(&self, driver: &str, devices: &BTreeSet<(String, String)>) -> BTreeSet<String> {
        let is_one = |device: &Device| devices.contains(&(device.pool_name.clone(), device.device_name.clone()));
        let has_one = |claim: &&Claim| {
            let own = claim.drivers.get(driver).and_then(|state| state.devices.as_ref());
            own.into_iter().flatten().any(is_one)
        };
        self.0.values().filter(has_one).flat_map(|claim| claim.pods.keys().cloned()).collect()
    }

    /// Drivers of each claim.
    pub(super) fn drivers(&self) -> impl Iterator<Item = Vec<&str>> {
        self.0.values().map(|claim| claim.drivers.keys().map(String::as_str).collect())
    }

    /// Removes a pod from those that have a claim. Reports whether it is the last, which stays until the claim is removed.
    pub(super) fn is_last(&mut self, claim: &Claim, uid: &str) -> bool {
        let Some(known) = self.0.get_mut(&(claim.namespace.clone(), claim.name.clone())) else { return false };
        if known.pods.len() > 1 {
            known.pods.remove(uid);
            return false;
        }
        known.is_prepared = false;
        known.pods.contains_key(uid)
    }

    pub(super) fn remove(&mut self, claim: &Claim) {
        self.0.remove(&(claim.namespace.clone(), claim.name.clone()));
    }

    /// Devices that a container has, with the claims and drivers that they are of.
    ///
    /// # Errors
    /// A claim is not prepared.
    pub(super) fn of_container(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Vec<(Claim, String, Device)>, ClaimError> {
        let used = container.resources.as_ref().and_then(|resources| resources.claims.as_deref()).unwrap_or_default();
        let extended = extended(pod);
        if used.is_empty() && extended.is_none() {
            return Ok(Vec::new());
        }
        let (namespace, references) = (crate::pods::namespace(pod), references(pod)?);
        let mut wanted: Vec<(&str, Option<&str>)> = Vec::new();
        for used in used {
            let of_entry = references.iter().filter(|reference| reference.entry == used.name);
            wanted.extend(of_entry.map(|reference| (reference.claim.as_str(), used.request.as_deref())));
        }
        if let Some(status) = extended {
            let own = status.request_mappings.iter().filter(|mapping| mapping.container_name == container.name);
            wanted.extend(own.map(|of| (status.resource_claim_name.as_str(), Some(of.request_name.as_str()))));
        }
        let mut devices = Vec::new();
        for (name, request) in wanted {
            let missing = || ClaimError::NotPrepared { claim: name.to_owned(), namespace: namespace.to_owned() };
            let claim = self.get(namespace, name).ok_or_else(missing)?;
            let wanted = claim.devices().filter(|(_, device)| device.is_for(request));
            devices.extend(wanted.map(|(driver, device)| (claim.clone(), driver.clone(), device.clone())));
        }
        Ok(devices)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<Claim>>,
}

impl State {
    /// Writes the checkpoint, whole or not at all.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        let claims = Some(self.0.values().cloned().collect());
        let data = Data { kind: KIND.to_owned(), api_version: VERSION.to_owned(), claims };
        let data = serde_json::to_string(&data)?;
        let checkpoint = Checkpoint { checksum: crc32fast::hash(data.as_bytes()), data };
        files::write_json(file, &checkpoint)
    }

    /// Reads the checkpoint: nothing where there is none.
    ///
    /// # Errors
    /// It is damaged, or of a later version.
    pub(super) fn read(file: &Path) -> Result<Self, CheckpointError> {
        let Some(checkpoint) = files::read_json::<Checkpoint>(file)? else { return Ok(Self::default()) };
        if crc32fast::hash(checkpoint.data.as_bytes()) != checkpoint.checksum {
            return Err(CheckpointError::Corrupt);
        }
        let data: Data = serde_json::from_str(&checkpoint.data)?;
        let claims = data.claims.unwrap_or_default().into_iter();
        Ok(Self(claims.map(|claim| ((claim.namespace.clone(), claim.name.clone()), claim)).collect()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::fs;

    /// A claim of two drivers, reserved for the pod `u`.
    pub(in crate::resource_claims) fn claim(change: Value) -> ResourceClaim {
        let result = |driver: &str| json!({"driver": driver, "pool": "p", "device": "d", "request": "r"});
        let mut claim = json!({"metadata": {"name": "c", "namespace": "n", "uid": "claim"},
            "spec": {"devices": {}}, "status": {
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}, {"resource": "pods", "name": "q", "uid": "v"}],
            "allocation": {"devices": {"results": [result("one.test"), result("two.test"), result("one.test")]}}}});
        for (name, value) in change.as_object().expect("object") {
            claim[name] = value.clone();
        }
        serde_json::from_value(claim).expect("a claim")
    }

    pub(in crate::resource_claims) fn pod(uid: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": uid}, "spec": {
            "resourceClaims": [{"name": "entry", "resourceClaimName": "c"}],
            "containers": [{"name": "all", "resources": {"claims": [{"name": "entry"}]}},
                {"name": "some", "resources": {"claims": [{"name": "entry", "request": "r"}]}}, {"name": "none"}]}}))
        .expect("a pod")
    }

    fn device(name: &str, requests: &[&str]) -> Device {
        Device {
            device_name: name.to_owned(),
            request_names: requests.iter().map(|name| (*name).to_owned()).collect(),
            cdi_device_ids: vec![format!("vendor.test/x={name}")],
            ..Device::default()
        }
    }

    #[test]
    fn pods_claims_are_named_or_made_for_them() {
        let pod = |status: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "status": status, "spec": {
                "containers": [], "resourceClaims": [{"name": "a", "resourceClaimName": "given"},
                    {"name": "b", "resourceClaimTemplateName": "t"}]}}))
            .expect("a pod")
        };
        let made = |name: Value| json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": name}]});
        let reference = |entry: &str, claim: &str, is_generated| Reference {
            entry: entry.to_owned(),
            claim: claim.to_owned(),
            is_generated,
        };
        let given = reference("a", "given", false);
        let not_yet = Err("pod \"n/p\": ResourceClaim not created yet".to_owned());
        assert_eq!(references(&pod(json!({}))).map_err(|error| error.to_string()), not_yet);
        assert_eq!(references(&pod(made(json!("p-b")))), Ok(vec![given.clone(), reference("b", "p-b", true)]));
        assert_eq!(references(&pod(made(Value::Null))), Ok(vec![given]), "it needs none");
    }

    #[test]
    fn claims_are_for_those_whom_they_are_reserved_for() {
        let refused = "pod p (w) is not allowed to use ResourceClaim c (claim)";
        let foreign = "ResourceClaim n/c was not created for pod n/p (pod is not owner)";
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        let owned = json!({"metadata": {"name": "c", "namespace": "n", "ownerReferences": [owner]}});
        for (uid, change, is_generated, expected) in [
            ("u", json!({}), false, Ok(())),
            ("w", json!({}), false, Err(refused)),
            ("u", json!({}), true, Err(foreign)),
            ("u", owned, true, Ok(())),
        ] {
            let checked = check(&pod(uid), &claim(change), is_generated);
            assert_eq!(
                checked.map_err(|error| error.to_string()),
                expected.map_err(str::to_owned),
                "{uid} {is_generated}"
            );
        }
        let free = claim(json!({"status": {}}));
        assert_eq!(Claim::new(&free).expect_err("free").to_string(), "ResourceClaim c: not allocated");
    }

    #[test]
    fn containers_have_the_devices_of_their_requests() {
        let mut state = State::default();
        let known = Claim::new(&claim(json!({}))).expect("allocated");
        let missing = "unable to get claim info for claim c in namespace n";
        let names = |state: &State, container: usize| {
            let pod = pod("u");
            let container = &pod.spec.as_ref().expect("spec").containers[container];
            let devices = state.of_container(&pod, container)?;
            Ok::<_, ClaimError>(devices.into_iter().map(|(_, _, device)| device.device_name).collect::<Vec<_>>())
        };
        assert_eq!(names(&state, 0).expect_err("not prepared").to_string(), missing);
        state.add(known.clone(), "u").expect("added");
        let devices = vec![device("a", &["r"]), device("b", &["s"]), device("c", &[]), device("d", &["r/first"])];
        state.prepared(&known, "one.test", devices);
        assert!(!state.get("n", "c").expect("known").is_prepared, "another driver has yet to answer");
        state.prepared(&known, "two.test", Vec::new());
        assert!(state.get("n", "c").expect("known").is_prepared);
        assert_eq!(names(&state, 0).expect("prepared"), ["a", "b", "c", "d"]);
        assert_eq!(names(&state, 1).expect("prepared"), ["a", "c", "d"]);
        assert_eq!(names(&state, 2).expect("prepared"), Vec::<String>::new());
    }

    #[test]
    fn containers_have_the_devices_that_stand_for_their_extended_resources() {
        let mappings = json!([{"containerName": "x", "resourceName": "e.com/gpu", "requestName": "r"}]);
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "x"}, {"name": "y"}]},
            "status": {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": mappings}}}))
        .expect("a pod");
        let found = references(&pod).expect("references");
        assert_eq!(found, [Reference { entry: String::new(), claim: "c".to_owned(), is_generated: true }]);
        let mut state = State::default();
        let known = Claim::new(&claim(json!({}))).expect("allocated");
        let names = |state: &State, container: usize| {
            let container = &pod.spec.as_ref().expect("spec").containers[container];
            let devices = state.of_container(&pod, container)?;
            Ok::<_, ClaimError>(devices.into_iter().map(|(_, _, device)| device.device_name).collect::<Vec<_>>())
        };
        assert!(names(&state, 0).is_err(), "it is not prepared");
        state.add(known.clone(), "u").expect("added");
        state.prepared(&known, "one.test", vec![device("a", &["r"]), device("b", &["s"])]);
        assert_eq!(names(&state, 0).expect("prepared"), ["a"]);
        assert_eq!(names(&state, 1).expect("prepared"), Vec::<String>::new());
    }

    #[test]
    fn the_last_pod_takes_the_claim_with_it() {
        let mut state = State::default();
        let known = Claim::new(&claim(json!({}))).expect("allocated");
        state.add(known.clone(), "u").expect("added");
        state.add(known.clone(), "v").expect("added");
        assert_eq!(state.pods().len(), 2);
        assert!(!state.is_last(&known, "u"));
        assert!(state.of_pod("u").is_empty());
        assert!(state.is_last(&known, "v") && state.is_last(&known, "v"), "until it is removed");
        let other = Claim { uid: "new".to_owned(), ..known.clone() };
        let refused =
            "old ResourceClaim with same name c and different UID claim still exists (previous pod force-deleted?!)";
        assert_eq!(state.add(other.clone(), "w").expect_err("refused").to_string(), refused);
        state.remove(&known);
        state.add(other, "w").expect("the old one is gone");
    }

    #[test]
    fn checkpoints_are_upstreams() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("dra_manager_state");
        assert_eq!(State::read(&file).expect("nothing"), State::default());
        let mut state = State::default();
        let known = Claim::new(&claim(json!({}))).expect("allocated");
        state.add(known.clone(), "u").expect("added");
        state.prepared(&known, "one.test", vec![device("a", &["r"])]);
        state.write(&file).expect("written");
        assert_eq!(State::read(&file).expect("read"), state);
        let written: Value = serde_json::from_slice(&fs::read(&file).expect("read")).expect("JSON");
        let expected = "{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\
            \"ClaimInfoStateList\":[{\"ClaimUID\":\"claim\",\"ClaimName\":\"c\",\"Namespace\":\"n\",\"PodUIDs\":{\"u\":{}},\
            \"DriverState\":{\"one.test\":{\"Devices\":[{\"PoolName\":\"\",\"DeviceName\":\"a\",\"ShareID\":null,\
            \"RequestNames\":[\"r\"],\"CDIDeviceIDs\":[\"vendor.test/x=a\"]}]},\"two.test\":{\"Devices\":null}}}]}";
        assert_eq!(written["Data"], expected);
        assert_eq!(written["Checksum"], crc32fast::hash(expected.as_bytes()));
        fs::write(&file, written.to_string().replace("claim", "other")).expect("written");
        assert_eq!(State::read(&file).expect_err("damaged").to_string(), "checkpoint is corrupted");
    }
}
