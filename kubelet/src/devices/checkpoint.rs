//! The checkpoint of allocations, in upstream's form, `kubelet_internal_checkpoint`: the next kubelet, whichever it is, goes on
//! from it.

use super::state::{Allocation, Device, State};
use crate::files;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::Message as _;
use serde::{Deserialize, Deserializer, Serialize};
use shared::fnv::Fnv32;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Name of the file in the folder of device plugins.
pub(super) const FILE: &str = "kubelet_internal_checkpoint";

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct CheckpointEntry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs", deserialize_with = "or_nothing")]
    device_ids: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer in protobuf, in base64.
    #[serde(deserialize_with = "or_nothing")]
    alloc_resp: String,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Data {
    #[serde(deserialize_with = "or_nothing")]
    pod_device_entries: Vec<CheckpointEntry>,
    #[serde(deserialize_with = "or_nothing")]
    registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
    checksum: u64,
}

/// Reads what Go writes as null for an empty list, map or text.
fn or_nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Data {
    /// Upstream's checksum: FNV of the text that its `dump.ForHash` makes of the structure.
    fn checksum(&self) -> u64 {
        let list = |items: &[String]| format!("[{}]", items.join(" "));
        let entries = self.pod_device_entries.iter().map(|entry| {
            let ids: Vec<String> = entry.device_ids.iter().map(|(node, ids)| format!("{node}:{}", list(ids))).collect();
            let bytes: Vec<String> =
                BASE64.decode(&entry.alloc_resp).unwrap_or_default().iter().map(u8::to_string).collect();
            format!(
                "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
                 DeviceIDs:(checkpoint.DevicesPerNUMA)map[{}] AllocResp:([]uint8)[{}]}}",
                entry.pod_uid,
                entry.container_name,
                entry.resource_name,
                ids.join(" "),
                bytes.join(" ")
            )
        });
        let entries: Vec<String> = entries.collect();
        let registered = self.registered_devices.iter().map(|(resource, ids)| format!("{resource}:{}", list(ids)));
        let registered: Vec<String> = registered.collect();
        let text = format!(
            "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry)[{}] \
             RegisteredDevices:(map[string][]string)map[{}]}}",
            entries.join(" "),
            registered.join(" ")
        );
        u64::from(Fnv32::default().write(text.as_bytes()).finish())
    }
}

/// Writes the checkpoint, whole or not at all.
pub(super) fn write(folder: &Path, state: &State) -> io::Result<()> {
    let allocated = state.allocations.iter().filter_map(|((uid, container, resource), allocation)| {
        Some(CheckpointEntry {
            pod_uid: uid.clone(),
            container_name: container.clone(),
            resource_name: resource.clone(),
            device_ids: allocation.by_node.clone(),
            alloc_resp: BASE64.encode(allocation.response.as_ref()?.encode_to_vec()),
        })
    });
    let healthy = |devices: &BTreeMap<String, Device>| -> Vec<String> {
        devices.iter().filter(|(_, device)| device.is_healthy).map(|(id, _)| id.clone()).collect()
    };
    let registered_devices = state.devices.iter().map(|(resource, of)| (resource.clone(), healthy(of))).collect();
    let data = Data { pod_device_entries: allocated.collect(), registered_devices };
    let checkpoint = Checkpoint { checksum: data.checksum(), data };
    files::write_json(&folder.join(FILE), &checkpoint)
}

/// Reads the checkpoint; nothing where there is none, or where it cannot be read. Devices are ill until their plugin comes.
pub(super) fn read(folder: &Path) -> State {
    let mut state = State::default();
    let Ok(bytes) = fs::read(folder.join(FILE)) else { return state };
    let checkpoint: Checkpoint = match serde_json::from_slice(&bytes) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            tracing::warn!(%error, "Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date");
            return state;
        }
    };
    for (resource, ids) in checkpoint.data.registered_devices {
        let device = Device::default();
        state.devices.insert(resource, ids.into_iter().map(|id| (id, device.clone())).collect());
    }
    for entry in checkpoint.data.pod_device_entries {
        let answer = BASE64.decode(&entry.alloc_resp).ok();
        let response = answer.and_then(|bytes| super::v1beta1::ContainerAllocateResponse::decode(&*bytes).ok());
        let owner = (entry.pod_uid, entry.container_name, entry.resource_name);
        state.allocations.insert(owner, Allocation { by_node: entry.device_ids, response });
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_upstreams() {
        // Written by Go's spew and FNV for the same structures.
        assert_eq!(Data::default().checksum(), 2_932_075_448);
        let text = r#"{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r.io/d",
            "DeviceIDs":{"-1":["b","a"],"0":["x"]},"AllocResp":"Af8A"}],"RegisteredDevices":{"a.io/e":[],"r.io/d":["a","b"]}}"#;
        let data: Data = serde_json::from_str(text).expect("data");
        assert_eq!(data.checksum(), 1_655_825_824);
    }

    #[test]
    fn what_is_written_is_read_and_nulls_are_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(read(folder.path()), State::default());
        let mut state = State::default();
        state.update(
            "r.io/d",
            [("a".to_owned(), Device { is_healthy: true, nodes: vec![1], is_told_ill: false })].into(),
        );
        let owner = ("u".to_owned(), "c".to_owned(), "r.io/d".to_owned());
        state.take(&owner, &["a".to_owned()]);
        let envs = [("K".to_owned(), "v".to_owned())].into();
        let answer = super::super::v1beta1::ContainerAllocateResponse { envs, ..Default::default() };
        state.allocations.get_mut(&owner).expect("taken").response = Some(answer);
        write(folder.path(), &state).expect("written");
        let found = read(folder.path());
        assert_eq!(found.allocations, state.allocations);
        assert_eq!(found.devices["r.io/d"]["a"], Device::default(), "ill until the plugin comes");
        let nulls = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"r":null}},"Checksum":1}"#;
        fs::write(folder.path().join(FILE), nulls.replace("{\"r\":null}", "null")).expect("written");
        assert_eq!(read(folder.path()), State::default());
        fs::write(folder.path().join(FILE), "nonsense").expect("written");
        assert_eq!(read(folder.path()), State::default());
    }
}
