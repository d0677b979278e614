//! Why a pod fits nowhere, in upstream's words.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::status::{Code, Status};

/// What each node said, and what was said of all of them.
#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    /// Number of nodes there are.
    pub nodes: usize,
    /// Answers by node position.
    pub rejected: Vec<(usize, Status)>,
    /// The answer that holds for every node not in `rejected`.
    pub others: Option<Status>,
    /// What PreFilter said when it turned the pod down.
    pub pre_filter: String,
    /// What PostFilter said.
    pub post_filter: String,
    /// Plugins that said no; events that help with one of these bring the pod back.
    pub plugins: BTreeSet<&'static str>,
    /// Plugins among them that wait for something outside.
    pub pending: BTreeSet<&'static str>,
}

impl Diagnosis {
    /// Notes a node's answer.
    pub fn reject(&mut self, position: usize, status: Status) {
        self.blame(&status);
        self.rejected.push((position, status));
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
            for reason in self.rejected.iter().flat_map(|(_, s)| s.reasons()) {
                *counts.entry(reason).or_default() += 1;
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

/// What stands in a rejector's place when there are no nodes at all.
pub const NO_NODES: &str = "NoNodes";

/// Why a cycle placed nothing.
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
            Self::Broken(status) if status.plugin.is_empty() => status.fmt(f),
            Self::Broken(status) => write!(f, "running {:?} plugin: {status}", status.plugin),
        }
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
}
