//! Volumes that the pods of a node need, and how each is attached. Answers for upstream's
//! `desired_state_of_world_populator.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use shared::csi;

use super::flex::FlexAttachable;
use super::listed::Listed;
use super::volume::Attachable;
use super::{AttachDetach, plan};
use crate::engine::indices::BY_NODE;
use crate::engine::pod::{Pod, Volume};
use crate::engine::{object, pods};

pub(super) type Pods = Vec<Arc<Pod>>;

/// Volumes that the pods of a node need, each with those pods.
#[derive(Default)]
pub(super) struct Users {
    /// By attachment.
    pub(super) attached: BTreeMap<String, (Attachable, Pods)>,
    /// By the name in the node's status.
    pub(super) listed: BTreeMap<String, (Listed, Pods)>,
    /// By the same name.
    pub(super) flex: BTreeMap<String, (FlexAttachable, Pods)>,
}

impl Users {
    pub(super) fn pods(&self, name: &str) -> impl Iterator<Item = &Arc<Pod>> {
        let attached = self.attached.get(name).map(|(_, pods)| pods);
        let listed = || self.listed.get(name).map(|(_, pods)| pods);
        let flex = || self.flex.get(name).map(|(_, pods)| pods);
        attached.or_else(listed).or_else(flex).into_iter().flatten()
    }
}

/// Needs of a pod's volume.
enum Need {
    Attach(Attachable),
    List(Listed),
    Flex(FlexAttachable),
}

impl AttachDetach {
    /// The volumes that pods of the node need, with the pods.
    pub(super) fn users(&self, node_name: &str, node: Option<&Node>) -> Users {
        let mut out = Users::default();
        for pod in self.pods.by_index(BY_NODE, node_name) {
            if !plan::needs_volumes(&pod, node) {
                continue;
            }
            for volume in pods::volumes(&pod) {
                let pods = match self.need(node_name, &pod, volume) {
                    Some(Need::Attach(v)) => {
                        &mut out.attached.entry(v.attachment(node_name)).or_insert((v, Vec::new())).1
                    }
                    Some(Need::List(v)) => &mut out.listed.entry(v.unique_name.clone()).or_insert((v, Vec::new())).1,
                    Some(Need::Flex(v)) => &mut out.flex.entry(v.volume.unique_name()).or_insert((v, Vec::new())).1,
                    None => continue,
                };
                pods.push(Arc::clone(&pod));
            }
        }
        out
    }

    /// Returns the needs of a pod's volume; nothing while it is not bound both ways, and where its driver does not
    /// attach.
    fn need(&self, node: &str, pod: &Pod, volume: &Volume) -> Option<Need> {
        let namespace = object::namespace(&pod.metadata);
        let moved = |plugin: Option<&'static str>| {
            let asked = plugin.filter(|plugin| csi::asks_nodes(plugin) && !self.moved_everywhere);
            asked.is_none_or(|plugin| self.csi_nodes.get("", node).is_some_and(|n| plan::has_moved(&n, plugin)))
        };
        if let Some(disk) = &volume.disk {
            if !moved(csi::plugin_of(disk)) {
                return None;
            }
            let listed = Listed::of_disk(disk).map(Need::List);
            let listed = listed.or_else(|| FlexAttachable::of_disk(disk).map(Need::Flex));
            return listed.or_else(|| self.attaches(Attachable::of_disk(disk, namespace)?));
        }
        let claim = self.claims.get(namespace, &pods::claim_of(pod, volume)?)?;
        if !plan::may_use(pod, &claim) {
            return None;
        }
        let volume = claim.spec.as_ref()?.volume_name.as_deref().filter(|v| !v.is_empty())?;
        if claim.status.as_ref()?.phase.as_deref() != Some("Bound") {
            return None;
        }
        let volume = self.volumes.get("", volume)?;
        let back = volume.spec.as_ref()?.claim_ref.as_ref()?;
        if back.uid != claim.metadata.uid || !moved(volume.spec.as_ref().and_then(csi::plugin)) {
            return None;
        }
        let listed = Listed::of(&volume).map(Need::List);
        let listed = listed.or_else(|| FlexAttachable::of(&volume).map(Need::Flex));
        listed.or_else(|| self.attaches(Attachable::of(&volume)?))
    }

    fn attaches(&self, found: Attachable) -> Option<Need> {
        let driver = self.drivers.get("", &found.driver);
        driver.and_then(|d| d.spec.attach_required).unwrap_or(true).then_some(Need::Attach(found))
    }
}
