//! Volumes and snapshots as they lie in a folder that all nodes share: `volumes/ID/` and `snapshots/ID/`, each with what is
//! known of it (`record.json`) and its content (`image`). A volume without a record was made by hand: its folder is its
//! content.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tonic::Status;

use crate::mounts::{attach, failed, run};

/// Bytes of a volume that is asked for without a size, or made by hand: no XFS is smaller.
pub const DEFAULT_SIZE: u64 = 300 << 20;
/// Bytes of the largest volume, and of all that there is room for.
pub const CAPACITY: u64 = 1 << 40;

/// The origin of a volume's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Snapshot(String),
    Volume(String),
}

/// A volume that the controller service made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Volume {
    pub id: String,
    pub name: String,
    /// Bytes.
    pub size: u64,
    pub source: Option<Source>,
    /// Parameters that may change.
    pub tuning: BTreeMap<String, String>,
    /// Nodes that it is attached to, and whether for reading only.
    pub nodes: BTreeMap<String, bool>,
}

/// A snapshot of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    pub id: String,
    pub name: String,
    pub volume: String,
    /// Bytes.
    pub size: u64,
    /// Seconds and nanoseconds since 1970.
    pub created: (i64, i32),
}

/// Content of a volume.
pub enum Content {
    Folder(PathBuf),
    Image,
}

#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// The id of what has a name: the same for the same name, whatever its length.
pub fn id(prefix: &str, name: &str) -> String {
    let digest = Sha256::digest(name);
    digest.iter().take(8).fold(format!("{prefix}-"), |id, byte| format!("{id}{byte:02x}"))
}

fn is_name(id: &str) -> bool {
    !id.is_empty() && !id.contains('/') && id != "." && id != ".."
}

fn read<T: DeserializeOwned>(folder: &Path) -> Result<Option<T>, Status> {
    match fs::read(folder.join("record.json")) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(failed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Writes a record whole or not at all.
fn write(folder: &Path, record: &impl Serialize) -> Result<(), Status> {
    let text = serde_json::to_vec(record).map_err(failed)?;
    let new = folder.join("record.new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, folder.join("record.json"))).map_err(failed)
}

fn list<T: DeserializeOwned>(folder: &Path) -> Result<Vec<T>, Status> {
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.push(entry.map_err(failed)?.path());
    }
    names.sort();
    names.iter().filter_map(|name| read(name).transpose()).collect()
}

fn set_size(image: &Path, size: u64) -> Result<(), Status> {
    let file = fs::OpenOptions::new().create(true).write(true).truncate(false).open(image);
    file.and_then(|file| file.set_len(size)).map_err(failed)
}

/// Copies an image as it is on disk, after all that programs have written was brought there.
fn copy(from: &Path, to: &Path) -> Result<(), Status> {
    run("sync", &[])?;
    run("cp", &["--sparse=always", &from.display().to_string(), &to.display().to_string()])?;
    Ok(())
}

impl Store {
    pub fn new(root: &Path) -> std::io::Result<Self> {
        for folder in ["volumes", "snapshots", "nodes", "targets"] {
            fs::create_dir_all(root.join(folder))?;
        }
        Ok(Self { root: root.to_owned() })
    }

    fn volume_folder(&self, id: &str) -> PathBuf {
        self.root.join("volumes").join(id)
    }

    fn snapshot_folder(&self, id: &str) -> PathBuf {
        self.root.join("snapshots").join(id)
    }

    /// Makes a node known, and how many volumes it can have.
    pub fn add_node(&self, node: &str, max_volumes: i64) -> std::io::Result<()> {
        fs::write(self.root.join("nodes").join(node), max_volumes.to_string())
    }

    /// The number of volumes that a node can have; nothing where the node is not known.
    pub fn max_volumes(&self, node: &str) -> Option<usize> {
        let text = fs::read_to_string(self.root.join("nodes").join(node)).ok().filter(|_| is_name(node))?;
        text.parse().ok()
    }

    pub fn volumes(&self) -> Result<Vec<Volume>, Status> {
        list(&self.root.join("volumes"))
    }

    pub fn snapshots(&self) -> Result<Vec<Snapshot>, Status> {
        list(&self.root.join("snapshots"))
    }

    /// A volume, whoever made it.
    pub fn find(&self, id: &str) -> Result<Option<Volume>, Status> {
        let folder = self.volume_folder(id);
        if !is_name(id) || !folder.exists() {
            return Ok(None);
        }
        let by_hand = || Volume { id: id.to_owned(), size: DEFAULT_SIZE, ..Volume::default() };
        Ok(Some(read(&folder)?.unwrap_or_else(by_hand)))
    }

    /// Finds a volume that has to be there.
    pub fn volume(&self, id: &str) -> Result<Volume, Status> {
        if id.is_empty() {
            return Err(Status::invalid_argument("no volume id"));
        }
        self.find(id)?.ok_or_else(|| Status::not_found(format!("no volume {id}")))
    }

    pub fn snapshot(&self, id: &str) -> Result<Option<Snapshot>, Status> {
        if is_name(id) { read(&self.snapshot_folder(id)) } else { Ok(None) }
    }

    /// Writes down what is known of a volume, and gives its content this size.
    pub fn save(&self, volume: &Volume) -> Result<(), Status> {
        let folder = self.volume_folder(&volume.id);
        set_size(&folder.join("image"), volume.size)?;
        write(&folder, volume)
    }

    /// Makes a volume with the content of its source. One that is half made is made again.
    pub fn create(&self, volume: &Volume) -> Result<(), Status> {
        let folder = self.volume_folder(&volume.id);
        fs::create_dir_all(&folder).map_err(failed)?;
        let from = volume.source.as_ref().map(|source| match source {
            Source::Snapshot(id) => self.snapshot_folder(id),
            Source::Volume(id) => self.volume_folder(id),
        });
        if let Some(from) = from {
            copy(&from.join("image"), &folder.join("image"))?;
        }
        self.save(volume)
    }

    pub fn delete_volume(&self, id: &str) -> Result<(), Status> {
        if is_name(id) { remove(&self.volume_folder(id)) } else { Ok(()) }
    }

    /// Makes a snapshot of the volume that it names.
    pub fn take(&self, name: &str, volume: &Volume) -> Result<Snapshot, Status> {
        let snapshot = Snapshot {
            id: id("snap", name),
            name: name.to_owned(),
            volume: volume.id.clone(),
            size: volume.size,
            created: now(),
        };
        let folder = self.snapshot_folder(&snapshot.id);
        fs::create_dir_all(&folder).map_err(failed)?;
        copy(&self.volume_folder(&volume.id).join("image"), &folder.join("image"))?;
        write(&folder, &snapshot)?;
        Ok(snapshot)
    }

    pub fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        if is_name(id) { remove(&self.snapshot_folder(id)) } else { Ok(()) }
    }

    pub fn content(&self, volume: &Volume) -> Content {
        let folder = self.volume_folder(&volume.id);
        // Only what the controller made has a name.
        if volume.name.is_empty() { Content::Folder(folder) } else { Content::Image }
    }

    /// The device of a volume, which a volume made by hand gets now.
    pub fn device(&self, volume: &Volume) -> Result<PathBuf, Status> {
        let image = self.image(volume);
        if !image.exists() {
            set_size(&image, volume.size)?;
        }
        attach(&image)
    }

    /// File behind the device of a volume.
    pub fn image(&self, volume: &Volume) -> PathBuf {
        self.volume_folder(&volume.id).join("image")
    }

    /// Makes the folder of a volume that lives as long as its pod.
    pub fn create_inline(&self, id: &str) -> Result<(), Status> {
        if !is_name(id) {
            return Err(Status::invalid_argument("no volume id"));
        }
        fs::create_dir_all(self.volume_folder(id)).map_err(failed)
    }

    /// Paths of a node that a volume was published at. They are kept beside the volumes: a folder is its pod's.
    pub fn targets(&self, id: &str, node: &str) -> Vec<String> {
        let text = fs::read_to_string(self.root.join("targets").join(format!("{id}.{node}"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn set_targets(&self, id: &str, node: &str, targets: &[String]) -> Result<(), Status> {
        let file = self.root.join("targets").join(format!("{id}.{node}"));
        if targets.is_empty() {
            return match fs::remove_file(file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        fs::write(file, targets.join("\n")).map_err(failed)
    }
}

fn remove(folder: &Path) -> Result<(), Status> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

fn now() -> (i64, i32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(now.as_secs()).unwrap_or_default(), i32::try_from(now.subsec_nanos()).unwrap_or_default())
}
