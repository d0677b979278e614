//! GangScheduling: pods of a group are placed when enough of them are there, and bound when enough of them have a node.
//! Answers for upstream's `pkg/scheduler/framework/plugins/gangscheduling`.
//!
//! Behind the gates GenericWorkload and GangScheduling. What a group's policy is stands in its Workload; how far its pods
//! have come is known to [`Gangs`].

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::scheduling::v1alpha1::{PodGroupPolicy, Workload};
use serde_json::Value;

use crate::framework::gangs::Gangs;
use crate::framework::plugin::{Context, Permission, Permit, Plugin, PreEnqueue, Requeue, Reserve};
use crate::framework::{ClusterEvent, Code, CycleState, ExternalChange, Hint, Listers, ProfileError, Status};
use crate::model::demand::PodGroupRef;
use crate::model::{NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "GangScheduling";

struct GangScheduling;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    let it = Arc::new(GangScheduling);
    Ok(Plugin::new(NAME).pre_enqueue(&it).reserve(&it).permit(&it).requeue(&it))
}

/// Books in which a pod was counted, for giving it back.
#[derive(Clone)]
struct CountedPod(Arc<Gangs>);

fn policy<'a>(workload: &'a Workload, group: &PodGroupRef) -> Option<&'a PodGroupPolicy> {
    workload.spec.pod_groups.iter().find(|g| g.name == group.pod_group).map(|g| &g.policy)
}

fn no_group(group: &PodGroupRef) -> String {
    format!("pod group {:?} doesn't exist for a workload {:?}", group.pod_group, group.workload)
}

/// Pods of a group that have to be there; `None` where the policy asks for none.
fn quorum(policy: &PodGroupPolicy) -> Option<usize> {
    policy.gang.as_ref().map(|gang| usize::try_from(gang.min_count).unwrap_or(0))
}

fn unknown() -> Status {
    Status::error("internal pod group state doesn't exist for a pod's workload")
}

impl PreEnqueue for GangScheduling {
    fn pre_enqueue(&self, listers: Option<&dyn Listers>, pod: &PodInfo) -> Status {
        let (Some(group), Some(listers)) = (&pod.group, listers) else { return Status::SUCCESS };
        let Some(workload) = listers.workload(&pod.namespace, &group.workload) else {
            let text = format!("waiting for pods's workload {:?} to appear in scheduling queue", group.workload);
            return Status::unresolvable(text);
        };
        let Some(policy) = policy(&workload, group) else { return Status::unresolvable(no_group(group)) };
        let Some(quorum) = quorum(policy) else { return Status::SUCCESS };
        match listers.gangs().count(pod) {
            None => unknown(),
            Some(count) if count < quorum => {
                Status::unresolvable("waiting for minCount pods from a gang to appear in scheduling queue")
            }
            Some(_) => Status::SUCCESS,
        }
    }
}

impl Reserve for GangScheduling {
    fn reserve(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, _: &Arc<NodeInfo>) -> Status {
        if pod.group.is_none() {
            return Status::SUCCESS;
        }
        let gangs = cx.listers.gangs();
        if !gangs.assume(pod) {
            return unknown();
        }
        state.put(CountedPod(Arc::clone(gangs)));
        Status::SUCCESS
    }

    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, _: &str) {
        if let Some(CountedPod(gangs)) = state.get::<CountedPod>() {
            gangs.forget(pod);
        }
    }
}

impl Permit for GangScheduling {
    fn permit(&self, cx: Context<'_>, _: &mut CycleState, pod: &PodInfo, _: &str) -> Permission {
        let Some(group) = &pod.group else { return Permission::default() };
        let Some(workload) = cx.listers.workload(&pod.namespace, &group.workload) else {
            let name = &group.workload;
            let text = format!(
                "failed to get workload {}/{name}: workload.scheduling.k8s.io {name:?} not found",
                pod.namespace
            );
            return Status::error(text).into();
        };
        let Some(policy) = policy(&workload, group) else { return Status::error(no_group(group)).into() };
        let Some(quorum) = quorum(policy) else { return Permission::default() };
        let Some(census) = cx.listers.gangs().census(pod) else { return unknown().into() };
        if census.assumed.len() + census.assigned < quorum {
            return Permission {
                status: Status::new(Code::Wait, "waiting for minCount pods from a gang to be waiting on permit"),
                patience: cx.listers.gangs().patience(pod, Instant::now()),
                // They may wait for this very pod to have a node.
                activate: census.waiting,
                ..Permission::default()
            };
        }
        Permission { allow: census.assumed, ..Permission::default() }
    }
}

impl Requeue for GangScheduling {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        let mate =
            |other: &PodInfo| pod.group.is_some() && other.group == pod.group && other.namespace == pod.namespace;
        match event {
            ClusterEvent::WaitingPod(other) => mate(other).into(),
            ClusterEvent::AssignedPod { old: None, new: Some(other) } => mate(other).into(),
            ClusterEvent::Object(ExternalChange::Workload(delta)) => {
                let named = |workload: &Workload| {
                    let meta = &workload.metadata;
                    pod.group.as_ref().is_some_and(|g| meta.name.as_deref() == Some(&*g.workload))
                        && meta.namespace.as_deref() == Some(&pod.namespace)
                };
                (delta.old.is_none() && delta.now().is_some_and(named)).into()
            }
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::framework::lister::Fixed;
    use crate::framework::{Delta, Nominated};
    use crate::model::Snapshot;
    use crate::testing::{PodBuilder, node, pod};

    fn member(name: &str, workload: &str, group: &str) -> PodBuilder {
        pod(name).set("/spec", "workloadRef", json!({"name": workload, "podGroup": group}))
    }

    fn workload(name: &str) -> Arc<Workload> {
        let groups =
            json!([{"name": "three", "policy": {"gang": {"minCount": 3}}}, {"name": "any", "policy": {"basic": {}}}]);
        let meta = json!({"name": name, "namespace": "default"});
        Arc::new(serde_json::from_value(json!({"metadata": meta, "spec": {"podGroups": groups}})).expect("workload"))
    }

    /// Returns listers with one workload, and pods that were seen.
    fn world(pods: &[PodBuilder]) -> Fixed {
        let mut listers = Fixed::default();
        listers.workloads.insert(("default".to_owned(), "w".to_owned()), workload("w"));
        pods.iter().for_each(|pod| listers.gangs.seen(&pod.info()));
        listers
    }

    #[test]
    fn pods_enter_the_queue_when_enough_of_them_are_there() {
        let three = |n: usize| -> Vec<PodBuilder> {
            ["a", "b", "c"][..n].iter().map(|name| member(name, "w", "three")).collect()
        };
        let few = "waiting for minCount pods from a gang to appear in scheduling queue";
        for (what, seen, pod, want) in [
            ("no group", vec![], pod("p"), ""),
            (
                "no workload",
                vec![],
                member("p", "x", "three"),
                "waiting for pods's workload \"x\" to appear in scheduling queue",
            ),
            (
                "no such group",
                vec![],
                member("p", "w", "four"),
                "pod group \"four\" doesn't exist for a workload \"w\"",
            ),
            ("no gang", vec![], member("p", "w", "any"), ""),
            ("two of three", three(2), member("a", "w", "three"), few),
            ("three of three", three(3), member("a", "w", "three"), ""),
            (
                "another group's",
                three(3),
                member("a", "w", "three").namespace("other"),
                "waiting for pods's workload \"w\" to appear in scheduling queue",
            ),
        ] {
            let status = GangScheduling.pre_enqueue(Some(&world(&seen)), &pod.info());
            assert_eq!(status.to_string(), want, "{what}");
            assert_eq!(status.is_success(), want.is_empty(), "{what}");
        }
    }

    #[test]
    fn pods_are_bound_when_enough_of_them_have_a_node() {
        let names = ["a", "b", "c"];
        let all: Vec<PodInfo> = names.iter().map(|name| member(name, "w", "three").info()).collect();
        let listers = world(&names.map(|name| member(name, "w", "three")));
        let (snapshot, nominated) = (Snapshot::of(vec![node("n").with(&[])]), Nominated::default());
        let cx =
            Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now: jiff::Timestamp::UNIX_EPOCH };
        let there = &snapshot.nodes()[0];
        let mut states: Vec<CycleState> = names.iter().map(|_| CycleState::default()).collect();
        let mut ask = |at: usize| {
            assert!(GangScheduling.reserve(cx, &mut states[at], &all[at], there).is_success());
            GangScheduling.permit(cx, &mut states[at], &all[at], "n")
        };
        let uids = |list: &[Arc<str>]| list.iter().map(|uid| uid.to_string()).collect::<BTreeSet<_>>();
        let set = |all: &[&str]| all.iter().map(|uid| format!("uid-{uid}")).collect::<BTreeSet<_>>();
        let first = ask(0);
        assert_eq!(first.status.to_string(), "waiting for minCount pods from a gang to be waiting on permit");
        assert_eq!((first.status.code(), uids(&first.activate)), (Code::Wait, set(&["b", "c"])));
        assert!(first.patience > crate::framework::gangs::TIMEOUT / 2);
        let second = ask(1);
        assert_eq!((second.status.code(), uids(&second.activate)), (Code::Wait, set(&["c"])));
        let last = ask(2);
        assert_eq!((last.status.code(), uids(&last.allow)), (Code::Success, set(&["a", "b", "c"])));
        // One that is on its node counts for those that come later.
        listers.gangs.seen(&all[0].placed(&"n".into()));
        GangScheduling.unreserve(&mut states[1], &all[1], "n");
        let again = GangScheduling.permit(cx, &mut CycleState::default(), &all[2], "n");
        assert_eq!((again.status.code(), uids(&again.activate)), (Code::Wait, set(&["b"])));
        assert!(GangScheduling.permit(cx, &mut CycleState::default(), &pod("x").info(), "n").status.is_success());
        let gone = GangScheduling.permit(cx, &mut CycleState::default(), &member("y", "x", "g").info(), "n");
        assert_eq!(gone.status.code(), Code::Error);
    }

    #[test]
    fn what_brings_a_pod_back() {
        let waiting = member("p", "w", "three").info();
        let came = |p: PodBuilder| ClusterEvent::WaitingPod(Arc::new(p.info()));
        let object = |old: Option<Arc<Workload>>, new: Option<Arc<Workload>>| {
            ClusterEvent::Object(ExternalChange::Workload(Delta { old, new }))
        };
        for (what, event, want) in [
            ("a mate came", came(member("q", "w", "three")), Hint::Queue),
            ("a pod of another group came", came(member("q", "w", "any")), Hint::Skip),
            ("a pod of another namespace came", came(member("q", "w", "three").namespace("x")), Hint::Skip),
            (
                "a mate with a node came",
                ClusterEvent::AssignedPod { old: None, new: Some(Arc::new(member("q", "w", "three").on("n").info())) },
                Hint::Queue,
            ),
            ("its workload came", object(None, Some(workload("w"))), Hint::Queue),
            ("another workload came", object(None, Some(workload("x"))), Hint::Skip),
            ("its workload changed", object(Some(workload("w")), Some(workload("w"))), Hint::Skip),
            ("its workload went", object(Some(workload("w")), None), Hint::Skip),
        ] {
            assert_eq!(GangScheduling.hint(&waiting, &event), want, "{what}");
        }
    }
}
