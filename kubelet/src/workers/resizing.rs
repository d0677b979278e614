//! A worker's part in a resize: it knows what its containers were given, and gives them what is allocated by now. The
//! pod's cgroup grows before its containers do and shrinks after them.
//! Answers for `doPodResizeAction` and `updatePodContainerResources` of upstream's kuberuntime.

use super::error::ResizeError;
use super::kill;
use super::observed::{Container as Found, Observed, State};
use super::records::ResourceRecords;
use super::resize::{self, Progress};
use super::worker::Worker;
use crate::events::EventType;
use crate::metrics::resizes;
use crate::pods;
use crate::resources::{Amounts, CgroupError, Cgroups, container_resources, pod_limits};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Resources that a worker remembers.
#[derive(Default)]
pub(super) struct Resources {
    /// Resources of running containers, by the runtime's id.
    given: HashMap<String, ResourceRequirements>,
    /// Resources that containers asked for when they were started, by name, until they are seen running.
    started: HashMap<String, ResourceRequirements>,
    /// Resources that the pod has as a whole, where those can be resized.
    whole: Option<ResourceRequirements>,
    /// The pod when its cgroup was looked at last.
    seen: Option<Arc<Pod>>,
    /// A resize is not finished.
    unfinished: bool,
    /// Reason why the last try failed.
    error: Option<String>,
}

impl Resources {
    /// A container is about to be started.
    pub(super) fn starting(&mut self, container: &Container) {
        self.started.insert(container.name.clone(), container.resources.clone().unwrap_or_default());
    }

    /// Says of every running container what it has.
    pub(super) fn tell(&mut self, pod: &Pod, records: &ResourceRecords, observed: &mut Observed) {
        let mut given = HashMap::new();
        for found in observed.containers.iter_mut().filter(|found| found.state == State::Running) {
            let known = self.given.remove(&found.id).or_else(|| self.started.remove(&found.name));
            // A container of an earlier kubelet.
            let known = known.or_else(|| records.actuated(pods::uid(pod), &found.name));
            let known = known.or_else(|| resize::reported(pod, &found.name, Some(&found.id)));
            let spec = || kill::spec_of(pod, &found.name)?.resources.clone();
            let known = known.or_else(spec).unwrap_or_default();
            given.insert(found.id.clone(), known.clone());
            found.given = Some(known);
        }
        self.given = given;
        if records.has_whole() {
            self.tell_whole(pod, records);
            observed.whole.clone_from(&self.whole);
        }
    }

    /// Finds out what the pod has as a whole: what an earlier kubelet gave it, or what it began with.
    fn tell_whole(&mut self, pod: &Pod, records: &ResourceRecords) {
        let asked = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let Some(asked) = asked.filter(|_| self.whole.is_none()) else { return };
        let known = records.actuated_whole(pods::uid(pod));
        let reported = || pod.status.as_ref()?.resources.clone();
        match known.or_else(reported) {
            Some(known) => self.whole = Some(known),
            None => self.give_whole(pods::uid(pod), records, asked.clone()),
        }
    }

    /// The pod has these resources as a whole by now.
    fn give_whole(&mut self, uid: &str, records: &ResourceRecords, resources: ResourceRequirements) {
        records.actuate_whole(uid, resources.clone());
        self.whole = Some(resources);
    }

    /// Returns the progress of a resize for the pod's status.
    pub(super) fn progress(&self, pod: &Pod, observed: &Observed, pending: Option<(String, String)>) -> Progress {
        Progress { pending, running: resize::under_way(pod, observed), error: self.error.clone() }
    }
}

fn check_usage(what: &str, limit: i64, used: u64) -> Result<(), ResizeError> {
    match i64::try_from(used) {
        Ok(bytes) if bytes <= limit => Ok(()),
        _ => Err(ResizeError::BelowUsage { of: what.to_owned(), limit, used }),
    }
}

impl Worker {
    /// Before containers are looked at: the pod's cgroup has room for all they shall have, and no more once they have
    /// it. What fails is tried again the next time.
    pub(super) async fn size_cgroup(&mut self, pod: &Arc<Pod>, observed: &Observed) {
        let under_way = resize::of_containers(pod, observed);
        let seen = self.resources.seen.replace(Arc::clone(pod));
        let differs = seen.is_some_and(|seen| resize::differs(pod, &seen));
        self.resources.unfinished |= differs || resize::under_way(pod, observed);
        if !self.resources.unfinished || observed.active_sandbox().is_none() {
            return;
        }
        if !under_way && let Err(error) = self.pod_memory_fits(pod).await {
            self.tell_of_error(pod, error.to_string());
            return;
        }
        let work: fn(&dyn Cgroups, &Pod) -> Result<(), CgroupError> =
            if under_way { |cgroups, pod| cgroups.grow_pod(pod) } else { |cgroups, pod| cgroups.ensure_pod(pod) };
        if let Err(error) = self.on_cgroup(pod, work).await {
            tracing::warn!(pod = %pods::describe(pod), %error, "Could not resize the pod's cgroup");
            return;
        }
        if !under_way {
            self.whole_is_given(pod);
            self.resources.unfinished = false;
            self.resources.error = None;
            let message = resize::message("completed", pod, None);
            self.cx.events.pod(pod, "", EventType::Normal, "ResizeCompleted", &message);
        }
    }

    /// The pod, and those of its containers that have no limits of their own, have what is allocated to it as a whole.
    fn whole_is_given(&mut self, pod: &Pod) {
        let whole = pod.spec.as_ref().and_then(|spec| spec.resources.clone());
        if let Some(whole) = whole.filter(|whole| self.resources.whole.as_ref().is_some_and(|given| given != whole)) {
            let cx = Arc::clone(&self.cx);
            self.resources.give_whole(&self.uid, &cx.records, whole);
        }
    }

    fn tell_of_error(&mut self, pod: &Pod, error: String) {
        if self.resources.error.as_ref() != Some(&error) {
            let message = resize::message("error", pod, Some(&error));
            self.cx.events.pod(pod, "", EventType::Warning, "ResizeError", &message);
            self.resources.error = Some(error);
        }
    }

    /// Refuses to take memory from a pod as a whole that it uses.
    async fn pod_memory_fits(&self, pod: &Arc<Pod>) -> Result<(), ResizeError> {
        let asked = Amounts::limits(pod.spec.as_ref().and_then(|spec| spec.resources.as_ref())).memory;
        let given = self.resources.whole.as_ref().map(|given| Amounts::limits(Some(given)).memory);
        match (asked, given) {
            (Some(asked), Some(given)) if given.is_none_or(|given| asked < given) => {
                self.pod_uses_less(pod, asked).await
            }
            _ => Ok(()),
        }
    }

    async fn pod_uses_less(&self, pod: &Arc<Pod>, limit: i64) -> Result<(), ResizeError> {
        let (cgroups, path) = (Arc::clone(&self.cx.cgroups), self.cx.cgroups.pod_parent(pod));
        let usage = tokio::task::spawn_blocking(move || cgroups.usage(&path)).await.ok().flatten();
        check_usage("pod", limit, usage.map_or(0, |usage| usage.memory_usage))
    }

    async fn on_cgroup(
        &self,
        pod: &Arc<Pod>,
        work: fn(&dyn Cgroups, &Pod) -> Result<(), CgroupError>,
    ) -> Result<(), CgroupError> {
        let (cgroups, pod) = (Arc::clone(&self.cx.cgroups), Arc::clone(pod));
        let done = tokio::task::spawn_blocking(move || work(cgroups.as_ref(), &pod)).await;
        done.unwrap_or_else(|error| Err(CgroupError(error.to_string())))
    }

    /// Gives running containers what is allocated to them.
    pub(super) async fn resize(&mut self, pod: &Arc<Pod>, observed: &Observed, names: &[String]) -> Result<(), ()> {
        let begun = Instant::now();
        let resized = self.resize_all(pod, observed, names).await;
        resizes::worked(begun.elapsed(), resized.is_ok());
        resized
    }

    async fn resize_all(&mut self, pod: &Arc<Pod>, observed: &Observed, names: &[String]) -> Result<(), ()> {
        for name in names {
            let (Some(container), Some(found)) = (kill::spec_of(pod, name), observed.latest(name)) else { continue };
            if let Err(error) = self.resize_container(pod, container, found).await {
                tracing::warn!(pod = %pods::describe(pod), container = name, %error, "Could not resize container");
                self.tell_of_error(pod, error.to_string());
                return Err(());
            }
            let given = container.resources.clone().unwrap_or_default();
            self.cx.records.actuate(&self.uid, name, given.clone());
            self.resources.given.insert(found.id.clone(), given);
        }
        self.whole_is_given(pod);
        self.resources.error = None;
        Ok(())
    }

    async fn resize_container(&self, pod: &Arc<Pod>, container: &Container, found: &Found) -> Result<(), ResizeError> {
        let limit = Amounts::limits(container.resources.as_ref()).memory;
        let now = Amounts::limits(found.given.as_ref()).memory;
        if let Some(limit) = limit.filter(|limit| now.is_none_or(|now| *limit < now)) {
            self.memory_fits(pod, container, &found.id, limit).await?;
        }
        let resources = container_resources(pod, container, &self.cx.machine, &self.cx.settings.resources);
        Ok(self.cx.runtime.update_container(&found.id, resources).await?)
    }

    /// A limit below what is used would end the container.
    async fn memory_fits(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        id: &str,
        limit: i64,
    ) -> Result<(), ResizeError> {
        if let Some(limit) = pod.spec.as_ref().and_then(|spec| pod_limits(spec).memory) {
            self.pod_uses_less(pod, limit).await?;
        }
        let all = self.cx.runtime.container_stats().await?;
        let own = all.into_iter().find(|stats| stats.attributes.as_ref().is_some_and(|a| a.id == id));
        let used = own.and_then(|stats| stats.memory?.working_set_bytes).map_or(0, |bytes| bytes.value);
        check_usage(&format!("container \"{}\"", container.name), limit, used)
    }
}
