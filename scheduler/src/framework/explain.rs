//! Explanation of a pod's placement: every node's answer from every plugin, and the scores of those that fit.
//!
//! The same plugins on the same snapshot as the scheduling cycle, but all of them are asked about all nodes, where the
//! cycle stops at the first no and when enough nodes fit. Pure: nothing is reserved, nobody is pushed out.

use std::sync::Arc;

use serde::Serialize;

use super::diagnosis::Diagnosis;
use super::extender;
use super::plugin::{Context, NodeNames};
use super::profile::Profile;
use super::state::CycleState;
use super::status::Status;
use crate::model::{NodeInfo, PodInfo};

/// Objection of a plugin to a pod or a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Objection {
    /// Name of the plugin.
    pub plugin: String,
    /// Code of the status, as upstream names it.
    pub code: &'static str,
    /// Reasons of the status.
    pub reasons: Vec<String>,
}

impl Objection {
    fn of(status: &Status) -> Self {
        Self {
            plugin: status.plugin.to_owned(),
            code: status.code().name(),
            reasons: status.reasons().iter().map(ToString::to_string).collect(),
        }
    }
}

/// Score that a plugin gives a node that fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Points {
    /// Name of the plugin.
    pub plugin: String,
    /// From 0 to 100.
    pub score: i64,
    /// Weight of the plugin.
    pub weight: i64,
}

/// All answers about one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The node.
    pub node: String,
    /// The pod fits.
    pub fits: bool,
    /// Objections of plugins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objections: Vec<Objection>,
    /// Sum of the weighted scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// The scores.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<Points>,
}

/// Room that would be made for the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rescue {
    /// Name of the node.
    pub node: String,
    /// Pods that would have to go, as `namespace/name`.
    pub victims: Vec<String>,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// The profile that answers.
    pub scheduler_name: String,
    /// The node the pod is on already; it is explained as if it were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_to: Option<String>,
    /// Objection that keeps the pod out of the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<Objection>,
    /// Objection to the pod on any node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Objection>,
    /// Message of the scheduler: where the pod goes, or upstream's sentence about why it goes nowhere.
    pub message: String,
    /// Room that would be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Rescue>,
    /// Nodes: those that fit first, the best of them on top.
    pub nodes: Vec<Verdict>,
}

impl Profile {
    /// Explains.
    ///
    /// # Errors
    /// What broke a plugin or an extender.
    pub fn explain(&self, cx: Context<'_>, pod: &PodInfo) -> Result<Explanation, Status> {
        let gate = Some(self.pre_enqueue(Some(cx.listers), pod)).filter(|s| !s.is_success()).map(|s| Objection::of(&s));
        let mut out = Explanation {
            pod: pod.to_string(),
            scheduler_name: self.name.to_string(),
            bound_to: None,
            gate,
            refused: None,
            message: String::new(),
            preemption: None,
            nodes: Vec::new(),
        };
        let all = cx.snapshot.nodes();
        if all.is_empty() {
            out.message = super::Failure::NoNodes.to_string();
            return Ok(out);
        }
        let mut state = CycleState::default();
        let mut diagnosis = Diagnosis { nodes: all.len(), ..Diagnosis::default() };
        let mut fitting: Vec<usize> = Vec::new();
        match self.pre_filter(cx, &mut state, pod) {
            Ok(limit) => {
                let limit = limit.map(|l| (l.names.unwrap_or_default(), l.plugins.join(" ")));
                for (at, node) in all.iter().enumerate() {
                    let verdict = self.verdict(cx, &state, pod, node, limit.as_ref())?;
                    if verdict.fits {
                        fitting.push(at);
                    } else if let Some(status) = self.decisive(&verdict) {
                        diagnosis.reject(at, status);
                    }
                    out.nodes.push(verdict);
                }
            }
            Err(status) if status.is_rejected() => {
                diagnosis.pre_filter = status.to_string();
                out.refused = Some(Objection::of(&status));
                diagnosis.others = Some(status);
            }
            Err(status) => return Err(status),
        }
        let fitting = self.ask_extenders(cx, pod, fitting, &mut diagnosis, &mut out)?;
        if fitting.is_empty() {
            self.look_for_room(cx, &state, pod, &mut diagnosis, &mut out);
            out.message = diagnosis.to_string();
        } else {
            self.rate(cx, &mut state, pod, &fitting, &mut out)?;
            out.message = format!("{}/{} nodes are available", fitting.len(), all.len());
        }
        out.nodes.sort_by(|a, b| b.fits.cmp(&a.fits).then(b.total.cmp(&a.total)).then_with(|| a.node.cmp(&b.node)));
        Ok(out)
    }

    /// Everything that is said against a node.
    fn verdict(
        &self,
        cx: Context<'_>,
        state: &CycleState,
        pod: &PodInfo,
        node: &Arc<NodeInfo>,
        limit: Option<&(NodeNames, String)>,
    ) -> Result<Verdict, Status> {
        let mut objections = Vec::new();
        if let Some((_, plugins)) = limit.filter(|(names, _)| !names.contains(&**node.name())) {
            let status = Status::unresolvable(format!("node(s) didn't satisfy plugin(s) [{plugins}]"));
            objections.push(Objection { plugin: plugins.clone(), ..Objection::of(&status) });
        }
        let filters = self.active_filters(state);
        for (name, plugin) in &filters {
            let status = plugin.filter(cx, state, pod, node).by(name);
            match status.code() {
                super::Code::Success => {}
                super::Code::Error => return Err(status),
                _ => objections.push(Objection::of(&status)),
            }
        }
        if objections.is_empty() {
            // Once more, with the pods that were promised this node.
            let status = self.filter_node(cx, state, &filters, pod, node);
            if !status.is_success() {
                objections.push(Objection::of(&status));
            }
        }
        let fits = objections.is_empty();
        Ok(Verdict { node: node.name().to_string(), fits, objections, total: None, scores: Vec::new() })
    }

    fn ask_extenders(
        &self,
        cx: Context<'_>,
        pod: &PodInfo,
        fitting: Vec<usize>,
        diagnosis: &mut Diagnosis,
        out: &mut Explanation,
    ) -> Result<Vec<usize>, Status> {
        let before = fitting.clone();
        let left = extender::filter(&self.extenders, pod, cx.snapshot, fitting, diagnosis)?;
        for at in before.into_iter().filter(|at| !left.contains(at)) {
            let verdict = &mut out.nodes[at];
            verdict.fits = false;
            let status = diagnosis.rejected.get(at).cloned().unwrap_or_default().by(extender::EXTENDERS);
            verdict.objections.push(Objection::of(&status));
        }
        Ok(left)
    }

    fn look_for_room(
        &self,
        cx: Context<'_>,
        state: &CycleState,
        pod: &PodInfo,
        diagnosis: &mut Diagnosis,
        out: &mut Explanation,
    ) {
        if !self.has_post_filter() {
            return;
        }
        let (rescue, status) = self.post_filter(cx, state, pod, &diagnosis.rejected);
        diagnosis.post_filter = status.to_string();
        let Some(rescue) = rescue else { return };
        out.preemption = rescue
            .nominate
            .map(|n| Rescue { node: n.to_string(), victims: rescue.victims.iter().map(ToString::to_string).collect() });
    }

    fn rate(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        fitting: &[usize],
        out: &mut Explanation,
    ) -> Result<(), Status> {
        let nodes: Vec<&NodeInfo> = fitting.iter().map(|at| &*cx.snapshot.nodes()[*at]).collect();
        let mut totals = vec![0; nodes.len()];
        for (plugin, weight, scores) in self.scores_by_plugin(cx, state, pod, &nodes)? {
            for ((at, score), total) in fitting.iter().zip(scores).zip(&mut totals) {
                *total += score * weight;
                out.nodes[*at].scores.push(Points { plugin: plugin.to_owned(), score, weight });
            }
        }
        extender::prioritize(&self.extenders, pod, &nodes, &mut totals);
        for (at, total) in fitting.iter().zip(totals) {
            out.nodes[*at].total = Some(total);
        }
        Ok(())
    }

    /// The first objection, as the scheduling cycle would have taken it down.
    fn decisive(&self, verdict: &Verdict) -> Option<Status> {
        let first = verdict.objections.first()?;
        let code = if first.code == super::Code::Unschedulable.name() {
            super::Code::Unschedulable
        } else {
            super::Code::UnschedulableAndUnresolvable
        };
        let reasons = first.reasons.iter().map(|r| r.clone().into()).collect();
        Some(Status::with_reasons(code, reasons).by(self.plugin_name(&first.plugin).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::lister::Fixed;
    use crate::framework::{Nominated, ProfileConfig};
    use crate::model::Snapshot;
    use crate::testing::{node, pod};
    use serde_json::json;

    fn explain(pod: &PodInfo, nodes: Vec<Arc<NodeInfo>>) -> Explanation {
        let (snapshot, listers, nominated) = (Snapshot::of(nodes), Fixed::default(), Nominated::default());
        let now = jiff::Timestamp::UNIX_EPOCH;
        let cx = Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now };
        let profile = Profile::build(&ProfileConfig::default()).expect("profile");
        profile.explain(cx, pod).expect("explanation")
    }

    #[test]
    fn all_that_speaks_against_a_node() {
        let e = explain(
            &pod("p").cpu("3").info(),
            vec![
                node("good").with(&[]),
                node("full").taint("t", "", "NoSchedule").with(&[pod("x").cpu("2").info()]),
                node("better").has("cpu", "8").with(&[]),
            ],
        );
        let names: Vec<&str> = e.nodes.iter().map(|n| n.node.as_str()).collect();
        assert_eq!(names, ["better", "good", "full"]);
        let said: Vec<String> =
            e.nodes[2].objections.iter().map(|o| format!("{}: {}", o.plugin, o.reasons.join(", "))).collect();
        assert_eq!(said, ["TaintToleration: node(s) had untolerated taint(s)", "NodeResourcesFit: Insufficient cpu"]);
        assert_eq!(e.message, "2/3 nodes are available");
        assert_eq!(e.nodes[0].total, Some(e.nodes[0].scores.iter().map(|s| s.score * s.weight).sum()));
        assert!(e.nodes[0].scores.iter().any(|s| s.plugin == "NodeResourcesFit"));
    }

    #[test]
    fn the_sentence_is_the_schedulers_own() {
        let nodes =
            vec![node("a").with(&[pod("low").cpu("3").info()]), node("b").taint("t", "", "NoSchedule").with(&[])];
        let e = explain(&pod("p").cpu("3").priority(0).info(), nodes.clone());
        assert_eq!(
            e.message,
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). no new claims to deallocate, \
             preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
        );
        let e = explain(&pod("p").cpu("3").priority(9).info(), nodes);
        assert_eq!(e.preemption, Some(Rescue { node: "a".into(), victims: vec!["default/low".into()] }));
        assert_eq!(explain(&pod("p").info(), vec![]).message, "no nodes available to schedule pods");
    }

    #[test]
    fn gates_and_refusals() {
        let gated = pod("p").set("/spec", "schedulingGates", json!([{"name": "g"}])).info();
        let e = explain(&gated, vec![node("a").with(&[])]);
        assert_eq!(e.gate.map(|g| g.reasons), Some(vec!["waiting for scheduling gates: [g]".to_owned()]));
        let claims = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        let e = explain(&pod("p").set("/spec", "volumes", claims).info(), vec![node("a").with(&[])]);
        let said = e.refused.expect("refused");
        assert_eq!(said.reasons, ["persistentvolumeclaim \"c\" not found"]);
        assert!(
            e.message.starts_with("0/1 nodes are available: persistentvolumeclaim \"c\" not found."),
            "{}",
            e.message
        );
        let named = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}});
        let e =
            explain(&pod("p").set("/spec", "affinity", named).info(), vec![node("a").with(&[]), node("b").with(&[])]);
        assert_eq!((e.nodes[0].node.as_str(), e.nodes[0].fits, e.nodes[1].fits), ("b", true, false));
        assert_eq!(e.nodes[1].objections[0].reasons, ["node(s) didn't satisfy plugin(s) [NodeAffinity]"]);
    }
}
