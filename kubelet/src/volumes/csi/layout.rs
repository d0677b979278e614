//! Files of CSI volumes below the root directory, as upstream lays them out: what is mounted where is read from them, by the
//! next kubelet, too, whichever it is.
//!
//! | path | content |
//! |---|---|
//! | `pods/<uid>/volumes/kubernetes.io~csi/<volume>/{mount,vol_data.json}` | a volume published for a pod |
//! | `plugins/kubernetes.io/csi/<driver>/<digest of the handle>/{globalmount,vol_data.json}` | a staged volume |
//! | `plugins/kubernetes.io/csi/volumeDevices/staging/<volume>` | a staged device |
//! | `plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<uid>` | a device published for a pod |
//! | `plugins/kubernetes.io/csi/volumeDevices/<volume>/data/vol_data.json` | record of a device |
//! | `pods/<uid>/volumeDevices/kubernetes.io~csi/<volume>` | link to the published device |

use super::volume::{Volume, digest};
use crate::files;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const RECORD: &str = "vol_data.json";
const PLUGIN: &str = "kubernetes.io~csi";

/// Identity of a volume, as far as calls for the same one must not overlap.
pub(super) type Key = (String, String);

/// Record of a volume on the disk: upstream's `vol_data.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) driver_name: String,
    pub(super) volume_handle: String,
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub(super) spec_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub(super) attachment: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) volume_lifecycle_mode: String,
    /// Label that the volume is mounted with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) se_linux_mount_context: String,
}

impl Record {
    /// The record of a volume that is staged.
    pub(super) fn staged(volume: &Volume) -> Self {
        Self { driver_name: volume.driver.clone(), volume_handle: volume.handle.clone(), ..Self::default() }
    }

    /// The record of a volume that is published.
    pub(super) fn published(volume: &Volume, node: &str) -> Self {
        Self {
            spec_name: volume.name.clone(),
            node_name: node.to_owned(),
            attachment: volume.attachment(node),
            volume_lifecycle_mode: volume.lifecycle.as_str().to_owned(),
            ..Self::staged(volume)
        }
    }

    /// The record of a volume that is mounted with a label.
    pub(super) fn labelled(self, label: Option<&str>) -> Self {
        Self { se_linux_mount_context: label.unwrap_or_default().to_owned(), ..self }
    }

    pub(super) fn key(&self) -> Key {
        (self.driver_name.clone(), self.volume_handle.clone())
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        self.volume_lifecycle_mode == super::volume::Lifecycle::Ephemeral.as_str()
    }
}

/// A volume that a pod has, on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) uid: String,
    /// Name of the volume: the record may be gone.
    pub(super) name: String,
    pub(super) is_block: bool,
    /// None where it is not there, or cannot be read.
    pub(super) record: Option<Record>,
}

/// A volume that is staged, on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Staged {
    pub(super) record: Record,
    pub(super) name: String,
    pub(super) is_block: bool,
}

/// Paths below one root directory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

/// Names in a folder; none if there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn read(folder: &Path) -> Option<Record> {
    let record = serde_json::from_slice::<Record>(&fs::read(folder.join(RECORD)).ok()?).ok()?;
    (!record.driver_name.is_empty() && !record.volume_handle.is_empty()).then_some(record)
}

/// Writes a record, whole or not at all.
pub(super) fn write(folder: &Path, record: &Record) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    files::write_json(&folder.join(RECORD), record)
}

/// Lets a removal succeed of what is not there.
pub(super) fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a folder that held a mount, and the record beside it: never what is in the mount.
pub(super) fn remove(folder: &Path, mount: &Path) -> io::Result<()> {
    match fs::symlink_metadata(mount) {
        Ok(found) if found.is_dir() => gone(fs::remove_dir(mount))?,
        Ok(_) => gone(fs::remove_file(mount))?,
        Err(_) => {}
    }
    let record = folder.join(RECORD);
    gone(fs::remove_file(files::draft(&record)))?;
    gone(fs::remove_file(record))?;
    gone(fs::remove_dir(folder))
}

impl Layout {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    fn plugin(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    fn devices(&self) -> PathBuf {
        self.plugin().join("volumeDevices")
    }

    /// Folder of a volume in its pod's.
    pub(super) fn pod_volume(&self, uid: &str, name: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("volumes").join(PLUGIN).join(name)
    }

    /// Link to a device in its pod's folder.
    pub(super) fn pod_device(&self, uid: &str, name: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("volumeDevices").join(PLUGIN).join(name)
    }

    /// Path that a driver publishes a volume at.
    pub(super) fn target(&self, uid: &str, name: &str, is_block: bool) -> PathBuf {
        if is_block {
            self.devices().join("publish").join(name).join(uid)
        } else {
            self.pod_volume(uid, name).join("mount")
        }
    }

    /// Folder that a published device is bound in, for each pod that has it.
    pub(super) fn bound(&self, name: &str) -> PathBuf {
        self.devices().join(name).join("dev")
    }

    /// Folder of the record of a volume that is published.
    pub(super) fn published(&self, uid: &str, name: &str, is_block: bool) -> PathBuf {
        if is_block { self.device_record(name) } else { self.pod_volume(uid, name) }
    }

    fn device_record(&self, name: &str) -> PathBuf {
        self.devices().join(name).join("data")
    }

    /// Removes the folders of a device that nobody has.
    pub(super) fn remove_device(&self, name: &str) -> io::Result<()> {
        let own = self.devices().join(name);
        for folder in [self.devices().join("publish").join(name), own.join("dev"), own] {
            gone(fs::remove_dir(folder))?;
        }
        Ok(())
    }

    /// Folder of the record of a volume that is staged.
    pub(super) fn staged(&self, driver: &str, handle: &str, name: &str, is_block: bool) -> PathBuf {
        if is_block { self.device_record(name) } else { self.plugin().join(driver).join(digest(handle)) }
    }

    /// Path that a driver stages a volume at.
    pub(super) fn staging(&self, driver: &str, handle: &str, name: &str, is_block: bool) -> PathBuf {
        if is_block {
            self.devices().join("staging").join(name)
        } else {
            self.staged(driver, handle, name, false).join("globalmount")
        }
    }

    /// Volumes that a pod has.
    pub(super) fn of_pod(&self, uid: &str) -> Vec<Published> {
        let found = |is_block: bool| {
            let folder = if is_block { self.pod_device(uid, "") } else { self.pod_volume(uid, "") };
            names(&folder).into_iter().map(move |name| {
                let record = read(&self.published(uid, &name, is_block));
                Published { uid: uid.to_owned(), name, is_block, record }
            })
        };
        found(false).chain(found(true)).collect()
    }

    /// Volumes that all pods have.
    pub(super) fn of_pods(&self) -> Vec<Published> {
        names(&self.root.join("pods")).iter().flat_map(|uid| self.of_pod(uid)).collect()
    }

    /// Volumes that are staged.
    pub(super) fn all_staged(&self) -> Vec<Staged> {
        let mut staged = Vec::new();
        for driver in names(&self.plugin()).iter().filter(|name| *name != "volumeDevices") {
            let folder = self.plugin().join(driver);
            let records = names(&folder).into_iter().filter_map(|name| read(&folder.join(name)));
            staged.extend(records.map(|record| Staged { record, name: String::new(), is_block: false }));
        }
        let devices = names(&self.devices()).into_iter().filter(|name| !matches!(name.as_str(), "staging" | "publish"));
        staged.extend(devices.filter_map(|name| {
            let record = read(&self.device_record(&name))?;
            Some(Staged { record, name, is_block: true })
        }));
        staged
    }
}

#[cfg(test)]
mod tests {
    use super::super::volume::tests::persistent;
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn records_are_upstreams() {
        let volume = Volume::persistent(&persistent(json!({})), false).expect("a volume");
        let staged = serde_json::to_value(Record::staged(&volume)).expect("a record");
        assert_eq!(staged, json!({"driverName": "d", "volumeHandle": "h"}));
        let published = serde_json::to_value(Record::published(&volume, "node")).expect("a record");
        let expected = json!({"driverName": "d", "volumeHandle": "h", "specVolID": "pv", "nodeName": "node",
            "attachmentID": volume.attachment("node"), "volumeLifecycleMode": "Persistent"});
        assert_eq!(published, expected);
        let mut labelled = expected;
        labelled["seLinuxMountContext"] = Value::from("c");
        let read: Record = serde_json::from_value(labelled).expect("read");
        assert_eq!(read, Record::published(&volume, "node").labelled(Some("c")));
    }

    #[test]
    fn volumes_are_found_and_their_content_is_never_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(root.path());
        let volume = Volume::persistent(&persistent(json!({})), false).expect("a volume");
        let record = Record::published(&volume, "node");
        let folder = layout.published("u", "pv", false);
        write(&folder, &record).expect("written");
        fs::create_dir(layout.target("u", "pv", false)).expect("made");
        write(&layout.staged("d", "h", "pv", false), &Record::staged(&volume)).expect("written");
        // A kubelet that died before the record was written, and one that died while it was.
        fs::create_dir_all(layout.pod_volume("u", "broken").join("mount")).expect("made");
        fs::write(layout.pod_volume("u", "broken").join(RECORD), "{\"driverName\"").expect("written");
        let mut found = layout.of_pods();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let expected =
            |name: &str, record| Published { uid: "u".to_owned(), name: name.to_owned(), is_block: false, record };
        assert_eq!(found, [expected("broken", None), expected("pv", Some(record))]);
        let staged = Staged { record: Record::staged(&volume), name: String::new(), is_block: false };
        assert_eq!(layout.all_staged(), [staged]);
        let file = layout.target("u", "pv", false).join("data");
        fs::write(&file, "precious").expect("written");
        remove(&folder, &layout.target("u", "pv", false)).expect_err("something is in it");
        assert_eq!(fs::read_to_string(&file).expect("read"), "precious");
        fs::remove_file(file).expect("removed");
        remove(&folder, &layout.target("u", "pv", false)).expect("removed");
        remove(&folder, &layout.target("u", "pv", false)).expect("nothing is left to remove");
        assert_eq!(layout.of_pods().len(), 1);
    }
}
