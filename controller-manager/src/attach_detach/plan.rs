//! Volumes to attach to a node and to detach from it. Answers for upstream's
//! `pkg/controller/volume/attachdetach/reconciler` (`attachDesiredVolumes`).
//!
//! In: the node, the volumes its pods need, the attachments there are, where else the volumes are attached. Out: the
//! attachments to make and to delete, the node's list of attached volumes, complaints. No I/O here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{AttachedVolume, Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use shared::csi;

use super::flex::{FlexAttachable, FlexState};
use super::listed::{Listed, is_listed};
use super::volume::{Attachable, CSI_PREFIX};
use crate::engine::pod::Pod;
use crate::engine::{nodes, object, pods};

/// On nodes whose volumes this controller attaches.
pub const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// On nodes that keep the volumes of pods that have ended.
pub const KEEP_TERMINATED: &str = "volumes.kubernetes.io/keep-terminated-pod-volumes";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Time for which a volume may stay mounted on a node that does not answer before it is detached all the same.
pub const UNMOUNT_WAIT: Duration = Duration::from_mins(6);

/// A volume that pods of the node need.
#[derive(Clone, Debug)]
pub struct WantedVolume<V = Attachable> {
    /// The volume.
    pub volume: V,
    /// Other nodes it is attached to, or about to be.
    pub elsewhere: BTreeSet<String>,
    /// Pods there that use it: namespace and name.
    pub used_by: Vec<(String, String)>,
    /// The namespace of the pods here.
    pub namespace: String,
}

/// An attachment of the node.
#[derive(Clone, Debug)]
pub struct Attachment<'a> {
    /// The object.
    pub object: &'a VolumeAttachment,
    /// Name of the volume in the node's status.
    pub unique_name: String,
    /// Time since nobody needs the volume any more.
    pub unwanted_for: Duration,
}

/// One node.
pub struct Snapshot<'a> {
    /// None when it is gone.
    pub node: Option<&'a Node>,
    /// Volumes that a node which is gone had mounted when it was seen last; None when nobody knows.
    pub left_mounted: Option<&'a [String]>,
    /// By attachment name.
    pub wanted: &'a BTreeMap<String, WantedVolume>,
    /// By the name in the node's status.
    pub listed: &'a BTreeMap<String, WantedVolume<Listed>>,
    /// FlexVolumes that pods need, by the name in the node's status.
    pub flex_wanted: &'a BTreeMap<String, WantedVolume<FlexAttachable>>,
    /// FlexVolumes that the node needs or has, by the same name.
    pub flex: &'a BTreeMap<String, FlexState>,
    /// By name.
    pub attachments: &'a BTreeMap<String, Attachment<'a>>,
    /// Attachments that were made and that the cache does not show yet.
    pub made: &'a BTreeSet<String>,
    /// `--disable-force-detach-on-timeout`
    pub never_force: bool,
}

/// Reason for which a volume is detached from a node that still uses it.
pub type Forced = Option<&'static str>;

/// Decision about a node.
#[derive(Debug, Default, PartialEq)]
pub struct NodeDecision {
    /// Attachments to make, by name.
    pub attach: Vec<(String, Attachable)>,
    /// Volumes that wait for another node: the name under which they are wanted and the complaint.
    pub blocked: Vec<(String, String)>,
    /// Attachments to delete.
    pub detach: Vec<(String, Forced)>,
    /// FlexVolumes to attach.
    pub flex_attach: Vec<String>,
    /// FlexVolumes to detach.
    pub flex_detach: Vec<(String, Forced)>,
    /// The node's new list, if it changes. To be written before anything is detached.
    pub report: Option<Vec<AttachedVolume>>,
    /// Volumes that have just come to be attached, by the names under which they are wanted.
    pub attached: Vec<String>,
    /// Time until a waiting detachment is looked at again.
    pub again: Option<Duration>,
}

impl NodeDecision {
    fn look_again(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |again| again.min(after)));
    }
}

/// Decide for one node.
#[must_use]
pub fn plan(s: &Snapshot<'_>) -> NodeDecision {
    let mut out = NodeDecision::default();
    let managed = s.node.is_none_or(|n| object::annotation(&n.metadata, MANAGED) == Some("true"));
    if !managed {
        return out;
    }
    if s.node.is_some() {
        attach(s, &mut out);
        attach_flex(s, &mut out);
    }
    detach(s, &mut out);
    detach_flex(s, &mut out);
    if let Some(node) = s.node {
        report(s, node, &mut out);
    }
    out
}

fn attach(s: &Snapshot<'_>, out: &mut NodeDecision) {
    for (name, wanted) in s.wanted {
        if s.attachments.contains_key(name) || s.made.contains(name) {
            continue;
        }
        if wanted.volume.exclusive && !wanted.elsewhere.is_empty() {
            out.blocked.push((name.clone(), multi_attach(wanted, &wanted.volume.volume)));
        } else {
            out.attach.push((name.clone(), wanted.volume.clone()));
        }
    }
}

fn attach_flex(s: &Snapshot<'_>, out: &mut NodeDecision) {
    for (unique, wanted) in s.flex_wanted {
        let Some(state) = s.flex.get(unique).filter(|state| state.attached.is_none() && !state.is_busy) else {
            continue;
        };
        if wanted.volume.exclusive && !wanted.elsewhere.is_empty() {
            out.blocked.push((unique.clone(), multi_attach(wanted, &wanted.volume.volume.name)));
        } else if let Some(left) = state.waits {
            out.look_again(left);
        } else {
            out.flex_attach.push(unique.clone());
        }
    }
}

fn multi_attach<V>(wanted: &WantedVolume<V>, volume: &str) -> String {
    let names: Vec<&str> =
        wanted.used_by.iter().filter(|(ns, _)| *ns == wanted.namespace).map(|(_, name)| name.as_str()).collect();
    let others = wanted.used_by.len() - names.len();
    let why = match (names.is_empty(), others) {
        (true, 0) => "Volume is already exclusively attached to one node and can't be attached to another".to_owned(),
        (true, n) => format!("Volume is already used by {n} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", names.join(", ")),
        (false, n) => {
            format!("Volume is already used by pod(s) {} and {n} pod(s) in different namespaces", names.join(", "))
        }
    };
    format!("Multi-Attach error for volume {volume:?} {why}")
}

/// Moment of a detachment.
enum Detachment {
    Now(Forced),
    In(Duration),
    /// The node says when it has unmounted the volume.
    WhenUnmounted,
}

/// Decides when a volume that nobody needs since a time is detached.
fn detachment(s: &Snapshot<'_>, unique_name: &str, unwanted_for: Duration) -> Detachment {
    let mounted = match s.node {
        Some(node) => in_use(node, unique_name),
        // Its machine may run on.
        None => s.left_mounted.is_none_or(|names| names.iter().any(|name| name == unique_name)),
    };
    if !mounted {
        return Detachment::Now(None);
    }
    if s.node.is_some_and(|n| nodes::taints(n).iter().any(|t| t.key == OUT_OF_SERVICE)) {
        return Detachment::Now(Some("out-of-service"));
    }
    if s.node.is_some_and(nodes::ready) || s.never_force {
        return Detachment::WhenUnmounted;
    }
    let left = UNMOUNT_WAIT.checked_sub(unwanted_for).filter(|left| !left.is_zero());
    left.map_or(Detachment::Now(Some("timeout")), Detachment::In)
}

fn detach_flex(s: &Snapshot<'_>, out: &mut NodeDecision) {
    for (unique, state) in s.flex {
        if s.flex_wanted.contains_key(unique) || state.is_busy || state.attached.is_none() {
            continue;
        }
        match (detachment(s, unique, state.unwanted_for), state.waits) {
            (Detachment::Now(_), Some(left)) | (Detachment::In(left), _) => out.look_again(left),
            (Detachment::Now(forced), None) => out.flex_detach.push((unique.clone(), forced)),
            (Detachment::WhenUnmounted, _) => {}
        }
    }
}

fn detach(s: &Snapshot<'_>, out: &mut NodeDecision) {
    for (name, attachment) in s.attachments {
        if s.wanted.contains_key(name) || object::deleting(&attachment.object.metadata) {
            continue;
        }
        match detachment(s, &attachment.unique_name, attachment.unwanted_for) {
            Detachment::Now(forced) => out.detach.push((name.clone(), forced)),
            Detachment::In(left) => out.look_again(left),
            Detachment::WhenUnmounted => {}
        }
    }
}

fn in_use(node: &Node, unique_name: &str) -> bool {
    node.status.iter().flat_map(|s| s.volumes_in_use.iter().flatten()).any(|v| v == unique_name)
}

/// The node's list: what is attached and stays so. Entries of other plugins are not touched.
fn report(s: &Snapshot<'_>, node: &Node, out: &mut NodeDecision) {
    let old: &[AttachedVolume] = node.status.as_ref().and_then(|st| st.volumes_attached.as_deref()).unwrap_or_default();
    let stays = s.attachments.iter().filter(|(name, a)| {
        let leaving = object::deleting(&a.object.metadata) || out.detach.iter().any(|(n, _)| n == *name);
        !leaving && a.object.status.as_ref().is_some_and(|st| st.attached)
    });
    let stays: Vec<(&str, &str)> = stays.map(|(name, a)| (name.as_str(), a.unique_name.as_str())).collect();
    let listed = listed(s, node, old, out);
    let others =
        |v: &&AttachedVolume| !v.name.starts_with(CSI_PREFIX) && !is_listed(&v.name) && !s.flex.contains_key(&v.name);
    let mut new: Vec<AttachedVolume> = old.iter().filter(others).cloned().collect();
    for (wanted, unique_name) in stays.into_iter().chain(listed.iter().map(|name| (name.as_str(), name.as_str()))) {
        let known = old.iter().find(|v| v.name == unique_name);
        if known.is_none() {
            out.attached.push(wanted.to_owned());
        }
        let fresh = || AttachedVolume { name: unique_name.to_owned(), device_path: String::new() };
        new.push(known.cloned().unwrap_or_else(fresh));
    }
    for (unique, state) in s.flex {
        // One that a driver is detaching is not there any more.
        let is_leaving = !s.flex_wanted.contains_key(unique) && state.is_busy
            || out.flex_detach.iter().any(|(leaving, _)| leaving == unique);
        let Some(device_path) = state.attached.clone().filter(|_| !is_leaving) else { continue };
        if !old.iter().any(|v| v.name == *unique) {
            out.attached.push(unique.clone());
        }
        new.push(AttachedVolume { name: unique.clone(), device_path });
    }
    let names = |list: &[AttachedVolume]| list.iter().map(|v| v.name.clone()).collect::<BTreeSet<_>>();
    if names(old) != names(&new) {
        out.report = Some(new);
    }
}

/// The volumes that only have to be listed: those that pods need, as far as no other node is in the way, and those that
/// are mounted still.
fn listed(s: &Snapshot<'_>, node: &Node, old: &[AttachedVolume], out: &mut NodeDecision) -> BTreeSet<String> {
    let mut names: BTreeSet<String> =
        old.iter().map(|v| &v.name).filter(|n| is_listed(n) && in_use(node, n)).cloned().collect();
    for (name, wanted) in s.listed {
        let there = old.iter().any(|v| v.name == *name);
        if !there && wanted.volume.exclusive && !wanted.elsewhere.is_empty() {
            out.blocked.push((name.clone(), multi_attach(wanted, &wanted.volume.volume)));
        } else {
            names.insert(name.clone());
        }
    }
    names
}

/// Reports whether the pod needs its volumes attached.
#[must_use]
pub fn needs_volumes(pod: &Pod, node: Option<&Node>) -> bool {
    !pods::over(pod) || node.is_some_and(|n| object::annotation(&n.metadata, KEEP_TERMINATED) == Some("true"))
}

/// Reports whether a claim that a pod's volume leads to is its own, where it was to be made for it: another may have
/// the name.
#[must_use]
pub fn may_use(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let name = object::name(&claim.metadata);
    let named = pods::volumes(pod).any(|v| v.persistent_volume_claim.as_ref().is_some_and(|c| c.claim_name == name));
    let made = || object::controller_of(&claim.metadata).is_some_and(|o| o.uid == object::uid(&pod.metadata));
    named || made()
}

/// Reports whether a node leaves the volumes of an in-tree plugin to the driver that took over, and has that driver.
#[must_use]
pub fn has_moved(node: &CSINode, plugin: &str) -> bool {
    csi::moved_on(node, plugin) && node.spec.drivers.iter().any(|d| Some(d.name.as_str()) == csi::driver(plugin))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
