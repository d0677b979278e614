//! User namespaces of pods (`hostUsers: false`): each has a range of the node's ids to itself, as long as anything of it is
//! on the node. Answers for upstream's `pkg/kubelet/userns`.
//!
//! In: the ids that the node may give away (`subids`), `userNamespaces.idsPerPod`, the pods' folders. Out: mappings for the
//! runtime. The file `userns` in a pod's folder, which is upstream's, says what the pod has: a kubelet that comes after
//! another gives no range twice. Must not give away id 0 of the node.

mod error;
mod subids;

use crate::cri::v1;
use crate::files;
use crate::pods;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

pub use error::{HandlerError, IdsError, MappingError, NamespaceError, RangeError};
pub use subids::IdRange;

/// Feature gate of all of this.
pub const GATE: &str = "UserNamespacesSupport";
/// Unit of ranges, and the size of one where nothing else is configured.
const UNIT: u32 = 65536;
/// Name of the file in a pod's folder.
const MAPPINGS_FILE: &str = "userns";
/// Largest file that is read.
const LARGEST: u64 = 1 << 16;

/// A range of ids of the node, as it is seen in the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RecordedMapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// The file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Mappings {
    uid_mappings: Vec<RecordedMapping>,
    gid_mappings: Vec<RecordedMapping>,
}

impl Mappings {
    fn of(mapping: RecordedMapping) -> Self {
        Self { uid_mappings: vec![mapping], gid_mappings: vec![mapping] }
    }

    /// The one range that uids and gids share, from 0 on.
    fn checked(&self) -> Result<RecordedMapping, MappingError> {
        let [uids] = self.uid_mappings[..] else { return Err(MappingError::Several) };
        let [gids] = self.gid_mappings[..] else { return Err(MappingError::SeveralGroups) };
        match uids {
            _ if uids != gids => Err(MappingError::Groups),
            RecordedMapping { container_id: 0, .. } => Ok(uids),
            _ => Err(MappingError::NoRoot),
        }
    }
}

/// Ranges by number, and who has which.
#[derive(Debug, Default)]
struct Allocations {
    taken: BTreeSet<u32>,
    by_pod: BTreeMap<String, u32>,
}

/// The node's ranges; see the module.
#[derive(Debug)]
pub struct UserNamespaces {
    pods: PathBuf,
    /// Size of a range.
    length: u32,
    /// Number of the first range.
    first: u32,
    /// Number of ranges.
    count: u32,
    allocations: Mutex<Allocations>,
}

impl UserNamespaces {
    /// Ranges of `ids_per_pod` out of the node's ids, less what pods below `root` have already.
    ///
    /// # Errors
    /// The ids do not suffice or cannot be divided so; what a pod has is not of these ranges.
    pub fn new(root: &Path, ids: IdRange, ids_per_pod: Option<i64>, max_pods: i64) -> Result<Self, RangeError> {
        let length = ids_per_pod.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(UNIT);
        let ids = ids.or_all(length);
        if length == 0 || !length.is_multiple_of(UNIT) {
            return Err(RangeError::Length { length, unit: UNIT });
        }
        let (first, count) = (ids.first / length, ids.length / length);
        if !ids.first.is_multiple_of(length) {
            return Err(RangeError::First { first: ids.first, length });
        }
        if ids.first < length {
            return Err(RangeError::FirstRange { first: ids.first, length });
        }
        if !ids.length.is_multiple_of(length) {
            return Err(RangeError::Last { ids: ids.length, length });
        }
        if i64::from(count) < max_pods {
            return Err(RangeError::TooFew(max_pods));
        }
        let pods = root.join("pods");
        let found = Self { pods, length, first, count, allocations: Mutex::default() };
        found.read_all()?;
        Ok(found)
    }

    fn read_all(&self) -> Result<(), RangeError> {
        let mut allocations = self.allocations.lock();
        for uid in self.on_disk() {
            let failed = |cause| RangeError::Existing { uid: uid.clone(), cause };
            if let Some(mappings) = self.read(&uid).map_err(failed)? {
                let mapping = mappings.checked().map_err(failed)?;
                self.record(&mut allocations, &uid, mapping).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Uids of pods that have a folder.
    fn on_disk(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.pods).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn file(&self, uid: &str) -> PathBuf {
        self.pods.join(uid).join(MAPPINGS_FILE)
    }

    fn read(&self, uid: &str) -> Result<Option<Mappings>, MappingError> {
        let path = self.file(uid);
        match fs::metadata(&path) {
            Ok(about) if about.len() == 0 => return Ok(None),
            Ok(about) if about.len() > LARGEST => return Err(MappingError::TooLarge),
            _ => {}
        }
        files::read_json(&path).map_err(MappingError::File)
    }

    fn write(&self, uid: &str, mappings: &Mappings) -> std::io::Result<()> {
        let folder = self.pods.join(uid);
        files::make_private(&folder)?;
        files::write_json(&self.file(uid), mappings)?;
        // The name has to be there after a power cut, too.
        fs::File::open(folder)?.sync_all()
    }

    /// Notes that a pod has a range.
    fn record(&self, allocations: &mut Allocations, uid: &str, mapping: RecordedMapping) -> Result<(), MappingError> {
        let RecordedMapping { host_id, length, .. } = mapping;
        if length != self.length {
            return Err(MappingError::Length(length));
        }
        if host_id % self.length != 0 {
            return Err(MappingError::Offset(host_id));
        }
        let number = host_id / self.length;
        match allocations.by_pod.get(uid) {
            Some(known) if *known == number => return Ok(()),
            Some(_) => return Err(MappingError::Other(uid.to_owned())),
            None => {}
        }
        if !self.is_own(number) {
            return Err(MappingError::Foreign(host_id));
        }
        if !allocations.taken.insert(number) {
            return Err(MappingError::Taken(uid.to_owned()));
        }
        allocations.by_pod.insert(uid.to_owned(), number);
        Ok(())
    }

    fn is_own(&self, number: u32) -> bool {
        number.checked_sub(self.first).is_some_and(|index| index < self.count)
    }

    /// Gives a pod the next free range after a random one: a pod does not get what the one before it had.
    fn allocate(&self, allocations: &mut Allocations, uid: &str) -> Result<RecordedMapping, NamespaceError> {
        let begin = rand::random_range(0..self.count.max(1));
        let numbers = (begin..self.count).chain(0..begin).map(|index| self.first + index);
        let mut free = numbers.filter(|number| !allocations.taken.contains(number));
        let number = free.next().ok_or(NamespaceError::NoneFree)?;
        allocations.taken.insert(number);
        allocations.by_pod.insert(uid.to_owned(), number);
        Ok(RecordedMapping { host_id: number * self.length, container_id: 0, length: self.length })
    }

    /// Returns the range of a pod, which it gets now if it has none.
    fn of_pod(&self, uid: &str) -> Result<RecordedMapping, NamespaceError> {
        let mut allocations = self.allocations.lock();
        if let Some(mappings) = self.read(uid).map_err(NamespaceError::Read)? {
            let mapping = mappings.checked().and_then(|mapping| {
                self.record(&mut allocations, uid, mapping)?;
                Ok(mapping)
            });
            return mapping.map_err(NamespaceError::Mapping);
        }
        // What is noted without a file is of a write that failed.
        forget(&mut allocations, uid);
        let mapping = self.allocate(&mut allocations, uid)?;
        if let Err(error) = self.write(uid, &Mappings::of(mapping)) {
            forget(&mut allocations, uid);
            fs::remove_file(self.file(uid)).ok();
            return Err(NamespaceError::Write(error));
        }
        Ok(mapping)
    }

    /// Takes back the range of a pod of which nothing runs any more.
    pub fn release(&self, uid: &str) {
        if forget(&mut self.allocations.lock(), uid) {
            fs::remove_file(self.file(uid)).ok();
        }
    }

    /// Takes back the ranges of pods that are gone. Answers for `CleanupOrphanedPodUsernsAllocations`.
    pub fn retain(&self, is_here: impl Fn(&str) -> bool) {
        let known: Vec<String> = self.allocations.lock().by_pod.keys().cloned().collect();
        known.iter().filter(|uid| !is_here(uid)).for_each(|uid| self.release(uid));
    }
}

fn forget(allocations: &mut Allocations, uid: &str) -> bool {
    let number = allocations.by_pod.remove(uid);
    number.is_some_and(|number| allocations.taken.remove(&number))
}

/// Features of the runtime's handlers by name, once the runtime has told of them: true for those that have user namespaces.
pub type Handlers = Option<BTreeMap<String, bool>>;

/// The user namespace of a pod in the runtime's words; none where the feature is off. Answers for
/// `GetOrCreateUserNamespaceMappings` and `HandlerSupportsUserNamespaces`.
///
/// # Errors
/// The pod asks for a namespace, and feature or handler are not there, or no range is.
pub fn mappings(
    namespaces: Option<&UserNamespaces>,
    pod: &Pod,
    handler: &str,
    handlers: &Handlers,
) -> Result<Option<v1::UserNamespace>, NamespaceError> {
    let wanted = pod.spec.as_ref().and_then(|spec| spec.host_users);
    let Some(namespaces) = namespaces else {
        return match wanted {
            None => Ok(None),
            Some(_) => Err(NamespaceError::Disabled(GATE)),
        };
    };
    if wanted != Some(false) {
        let mode = v1::NamespaceMode::Node.into();
        return Ok(Some(v1::UserNamespace { mode, ..v1::UserNamespace::default() }));
    }
    check_handler(handler, handlers)?;
    let RecordedMapping { host_id, container_id, length } = namespaces.of_pod(pods::uid(pod))?;
    let range = vec![v1::IdMapping { host_id, container_id, length }];
    Ok(Some(v1::UserNamespace { mode: v1::NamespaceMode::Pod.into(), uids: range.clone(), gids: range }))
}

fn check_handler(handler: &str, handlers: &Handlers) -> Result<(), HandlerError> {
    let Some(handlers) = handlers else { return Err(HandlerError::NotTold(handler.to_owned())) };
    match handlers.get(handler) {
        Some(true) => Ok(()),
        Some(false) => Err(HandlerError::Unable(handler.to_owned())),
        None => Err(HandlerError::Unknown(handler.to_owned())),
    }
}

#[cfg(test)]
mod tests;
