//! Reasons why a pod fits nowhere, in upstream's words. Answers for upstream's `FitError`, `Diagnosis`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::status::{Code, Status};
use crate::metrics::ExtensionPointResult;

/// Number of kept statuses that a new one is compared with, so that equal ones are kept once.
const COMPARED: usize = 16;

/// The answers of the nodes that said no, by slot.
#[derive(Debug, Clone, Default)]
pub struct Rejected {
    statuses: Vec<Status>,
    /// One more than the position of the slot's status; 0 where there is none.
    by_slot: Vec<u32>,
    len: usize,
}

impl Rejected {
    /// From distinct statuses and, by slot, one more than the position of its status.
    pub fn from_parts(statuses: Vec<Status>, by_slot: Vec<u32>) -> Self {
        let len = by_slot.iter().filter(|at| **at > 0).count();
        Self { statuses, by_slot, len }
    }

    /// Notes a node's answer.
    pub fn push(&mut self, slot: usize, status: Status) {
        let recent = self.statuses.len().saturating_sub(COMPARED);
        let at = self.statuses[recent..].iter().position(|s| *s == status).map(|at| at + recent).unwrap_or_else(|| {
            self.statuses.push(status);
            self.statuses.len() - 1
        });
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, 0);
        }
        self.len += usize::from(self.by_slot[slot] == 0);
        self.by_slot[slot] = u32::try_from(at + 1).unwrap_or(u32::MAX);
    }

    fn status(&self, at: u32) -> Option<&Status> {
        self.statuses.get((at as usize).checked_sub(1)?)
    }

    /// Returns the status of the node in a slot, if it rejected the pod.
    pub fn get(&self, slot: usize) -> Option<&Status> {
        self.status(*self.by_slot.get(slot)?)
    }

    /// Slots and what their nodes said.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Status)> {
        self.by_slot.iter().enumerate().filter_map(|(slot, at)| Some((slot, self.status(*at)?)))
    }

    /// Counts nodes by status.
    pub fn tally(&self) -> Vec<(&Status, usize)> {
        let mut counts = vec![0_usize; self.statuses.len() + 1];
        for at in &self.by_slot {
            if let Some(n) = counts.get_mut(*at as usize) {
                *n += 1;
            }
        }
        self.statuses.iter().zip(counts.into_iter().skip(1)).filter(|(_, n)| *n > 0).collect()
    }

    /// Number of nodes that rejected the pod.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None did.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Status of each node, and messages about all of them.
#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    /// Number of nodes there are.
    pub nodes: usize,
    /// Answers by slot.
    pub rejected: Rejected,
    /// The answer that holds for every node not in `rejected`.
    pub others: Option<Status>,
    /// Message of PreFilter when it rejected the pod.
    pub pre_filter: String,
    /// Message of PostFilter.
    pub post_filter: String,
    /// Plugins that said no; events that help with one of these bring the pod back.
    pub plugins: BTreeSet<&'static str>,
    /// Plugins among them that wait for something outside.
    pub pending: BTreeSet<&'static str>,
}

impl Diagnosis {
    /// Notes a node's answer.
    pub fn reject(&mut self, slot: usize, status: Status) {
        self.blame(&status);
        self.rejected.push(slot, status);
    }

    /// Notes who said no.
    pub fn blame(&mut self, status: &Status) {
        if !status.plugin.is_empty() {
            let set = if status.code() == Code::Pending { &mut self.pending } else { &mut self.plugins };
            set.insert(status.plugin);
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0/{} nodes are available:", self.nodes)?;
        if self.pre_filter.is_empty() {
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for (status, n) in self.rejected.tally() {
                for reason in status.reasons() {
                    *counts.entry(reason).or_default() += n;
                }
            }
            for reason in self.others.iter().flat_map(Status::reasons) {
                *counts.entry(reason).or_default() += self.nodes.saturating_sub(self.rejected.len());
            }
            let mut lines: Vec<String> =
                counts.into_iter().filter(|(_, n)| *n > 0).map(|(reason, n)| format!("{n} {reason}")).collect();
            lines.sort();
            if !lines.is_empty() {
                write!(f, " {}.", lines.join(", "))?;
            }
        } else {
            write!(f, " {}.", self.pre_filter)?;
        }
        if !self.post_filter.is_empty() {
            write!(f, " {}", self.post_filter)?;
        }
        Ok(())
    }
}

/// Name that stands in a rejector's place when there are no nodes at all.
pub const NO_NODES: &str = "NoNodes";

/// Reasons why a cycle placed nothing.
#[derive(Debug, Clone)]
pub enum Failure {
    /// There are no nodes at all.
    NoNodes,
    /// There are, but none fits.
    Unfit(Box<Diagnosis>),
    /// A plugin broke.
    Broken(Status),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNodes => f.write_str("no nodes available to schedule pods"),
            Self::Unfit(diagnosis) => diagnosis.fmt(f),
            // The chosen node was refused after all.
            Self::Broken(status) if status.is_rejected() => {
                Diagnosis { nodes: 1, others: Some(status.clone()), ..Diagnosis::default() }.fmt(f)
            }
            Self::Broken(status) => status.fmt(f),
        }
    }
}

impl<T> ExtensionPointResult for Result<T, Failure> {
    fn label(&self) -> &'static str {
        if self.is_ok() { "Success" } else { "Error" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_words() {
        let taint = || Status::unresolvable("node(s) had untolerated taint(s)").by("TaintToleration");
        let mut d = Diagnosis { nodes: 3, ..Diagnosis::default() };
        d.reject(0, taint());
        d.reject(1, Status::unschedulable("Insufficient cpu").by("NodeResourcesFit"));
        d.reject(2, Status::with_reasons(Code::Unschedulable, vec!["Insufficient cpu".into(), "Too many pods".into()]));
        d.post_filter = "preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling.".into();
        assert_eq!(
            d.to_string(),
            "0/3 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), 2 Insufficient cpu. \
             preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling."
        );
        assert_eq!(d.plugins.iter().copied().collect::<Vec<_>>(), ["NodeResourcesFit", "TaintToleration"]);

        let d = Diagnosis { nodes: 2, pre_filter: "no".into(), others: Some(taint()), ..Diagnosis::default() };
        assert_eq!(d.to_string(), "0/2 nodes are available: no.");
        let d = Diagnosis { nodes: 2, others: Some(taint()), ..Diagnosis::default() };
        assert_eq!(d.to_string(), "0/2 nodes are available: 2 node(s) had untolerated taint(s).");
    }

    #[test]
    fn refusal_of_the_chosen_node_and_errors_have_upstreams_words() {
        for (status, want) in [
            (
                Status::unschedulable("no room").failed_in("Reserve", "VolumeBinding"),
                "0/1 nodes are available: 1 no room.",
            ),
            (Status::unresolvable("not yet").failed_in("Permit", "Gang"), "0/1 nodes are available: 1 not yet."),
            (
                Status::error("broke").failed_in("Reserve", "VolumeBinding"),
                "running Reserve plugin \"VolumeBinding\": broke",
            ),
            (
                Status::error("broke").failed_in("PreBind", "DynamicResources"),
                "running PreBind plugin \"DynamicResources\": broke",
            ),
        ] {
            assert_eq!(Failure::Broken(status).to_string(), want);
        }
    }
}
