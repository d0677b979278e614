//! Events of pods whose volumes are attached, or wait for it, and the FlexVolumes among them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::flex::FlexAttachable;
use super::plan::{NodeDecision, WantedVolume};
use super::{ATTACHED, AllWanted, AttachDetach, Users, attached, listed, namespace_of};
use crate::engine::object;
use crate::engine::pod::Pod;

impl AttachDetach {
    /// Events of the pods that wait for a volume, each said once.
    pub(super) fn tell(
        &self,
        node: &str,
        decision: &NodeDecision,
        wanted: &AllWanted,
        users: &Users,
        objects: &[Arc<VolumeAttachment>],
    ) {
        let say = |name: &str, warning: bool, reason: &'static str, message: &str| {
            for pod in users.pods(name) {
                self.executor.events.say(&object::reference::<Pod>(&pod.metadata), warning, reason, message.to_owned());
            }
        };
        let mut memory = self.memory.lock();
        let blocked = decision.blocked.iter().filter_map(|(name, why)| Some((name, wanted.called(name)?.1, why)));
        let blocked: Vec<(&String, String, &String)> = blocked.collect();
        let still: HashSet<&str> = blocked.iter().map(|(_, key, _)| key.as_str()).collect();
        memory.blocked.retain(|key, waiting| {
            if !still.contains(key.as_str()) {
                waiting.remove(node);
            }
            !waiting.is_empty()
        });
        for (name, key, why) in &blocked {
            let waiting = memory.blocked.entry(key.clone()).or_default();
            if waiting.insert(node.to_owned(), (*why).clone()).is_none() {
                say(name, true, "FailedAttachVolume", why);
            }
        }
        let of_node = listed::mark(node, "");
        let is_shown = |name: &str| users.listed.contains_key(name) || users.flex.contains_key(name);
        memory.told.retain(|told, _| told.strip_prefix(&of_node).is_none_or(is_shown));
        for name in &decision.attached {
            let noted = if is_shown(name) { listed::mark(node, name) } else { name.clone() };
            let told = memory.told.insert(noted, ATTACHED.to_owned());
            if let Some((volume, _)) = wanted.called(name).filter(|_| told.as_deref() != Some(ATTACHED)) {
                let text = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
                say(name, false, "SuccessfulAttachVolume", &text);
            }
        }
        for object in objects {
            let name = object::name(&object.metadata);
            let error = object.status.as_ref().filter(|s| !s.attached).and_then(|s| s.attach_error.as_ref());
            let (Some(error), Some((volume, _))) = (error, wanted.called(name)) else { continue };
            let text = error.message.clone().unwrap_or_default();
            // The driver tries again and again; each of its tries is one event.
            let mark = format!("{:?} {text}", error.time);
            if memory.told.insert(name.to_owned(), mark.clone()) != Some(mark) {
                let text = format!("AttachVolume.Attach failed for volume {volume:?} : {text}");
                say(name, true, "FailedAttachVolume", &text);
            }
        }
    }

    /// Events of the pods that wait for a FlexVolume which its driver could not attach.
    pub(super) fn tell_flex(&self, node: &str, wanted: &AllWanted, users: &Users) {
        for (unique, error) in self.flex.errors(node) {
            let Some((volume, _)) = wanted.called(&unique) else { continue };
            let text = format!("AttachVolume.Attach failed for volume {volume:?} : {error}");
            for pod in users.pods(&unique) {
                let about = object::reference::<Pod>(&pod.metadata);
                self.executor.events.say(&about, true, "FailedAttachVolume", text.clone());
            }
        }
    }

    /// Leaves out FlexVolumes whose drivers are not here, or attach nothing.
    pub(super) async fn with_attaching_drivers(&self, mut users: Users) -> Users {
        for (unique, (found, pods)) in std::mem::take(&mut users.flex) {
            if self.flex.attaches(&found.volume).await {
                users.flex.insert(unique, (found, pods));
            }
        }
        users
    }

    /// The FlexVolumes that the node has to have, and who else has them.
    pub(super) fn flex_wanted(&self, node: &str, users: &Users) -> BTreeMap<String, WantedVolume<FlexAttachable>> {
        let wanted = users.flex.iter().map(|(unique, (volume, pods))| {
            let lists = |n: &Arc<Node>| attached(n).iter().any(|v| v.name == *unique);
            let others = if volume.exclusive { self.nodes.list() } else { Vec::new() };
            let others = others.into_iter().filter(lists).map(|n| object::name(&n.metadata).to_owned());
            let mut elsewhere: BTreeSet<String> = others.filter(|n| n != node).collect();
            if volume.exclusive {
                elsewhere.extend(self.flex.elsewhere(node, unique));
            }
            let used = |there: &Users| there.pods(unique).cloned().collect();
            let used_by = self.users_on(&elsewhere, used);
            (unique.clone(), WantedVolume { volume: volume.clone(), elsewhere, used_by, namespace: namespace_of(pods) })
        });
        wanted.collect()
    }
}
