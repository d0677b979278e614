//! Extenders: programs outside of the scheduler that have a say in where pods go. Answers for upstream's `Extender`.
//!
//! Here is what they may say and what follows from it; the HTTP that asks them is the driver's. They are asked in the
//! order configured, ignorable ones last, and only about pods that use a resource they manage, if they manage any.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use super::diagnosis::Diagnosis;
use super::plugin::MAX_NODE_SCORE;
use super::status::Status;
use crate::model::{NodeInfo, PodInfo, Snapshot};

/// Name that stands in a rejector's place when extenders turned nodes down.
pub const EXTENDERS: &str = "Extenders";

/// The best score an extender gives.
const MAX_EXTENDER_SCORE: i64 = 10;

/// Nodes that an extender leaves, and why it refuses others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filtered {
    /// Names of nodes that are fine.
    pub fine: Vec<String>,
    /// Nodes where pushing pods out may help.
    pub failed: HashMap<String, String>,
    /// Nodes where nothing helps.
    pub hopeless: HashMap<String, String>,
}

/// Pods that would have to leave a node.
#[derive(Debug, Clone, Default)]
pub struct Victims {
    /// The pods.
    pub pods: Vec<Arc<PodInfo>>,
    /// Number of victims that a disruption budget protects.
    pub violations: usize,
}

/// Scores from 0 to 10 by node, and the weight of the extender.
pub type Weighed = (HashMap<String, i64>, i64);

/// Failures of an extender.
#[derive(Debug, Error)]
pub enum ExtenderError {
    /// The request cannot be sent, or its answer cannot be read.
    #[error("Post \"{url}\": {message}")]
    Post {
        /// Address of the request.
        url: String,
        /// Cause.
        message: String,
    },
    /// The answer has another code than 200.
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Code {
        /// Verb of the request.
        verb: String,
        /// Address of the request.
        url: String,
        /// Code of the answer.
        code: u16,
    },
    /// The extender's own error.
    #[error("{0}")]
    Refused(String),
    /// The extender names a node that it was not asked about.
    #[error("extender {url:?} claims a filtered node {node:?} which is not found in the input node list")]
    UnknownNode {
        /// Address of the extender.
        url: String,
        /// The node.
        node: String,
    },
    /// The extender names a candidate for preemption that it was not asked about.
    #[error("extender: {url} claims to preempt on unknown node {node:?}")]
    UnknownCandidate {
        /// Address of the extender.
        url: String,
        /// The node.
        node: String,
    },
    /// The extender names a victim that is not on the candidate.
    #[error(
        "extender: {url} claims to preempt pod (UID: {uid}) on node: {node}, but the pod is not found on that node"
    )]
    UnknownVictim {
        /// Address of the extender.
        url: String,
        /// UID of the pod.
        uid: String,
        /// The node.
        node: String,
    },
    /// There is no runtime to send requests on.
    #[error(transparent)]
    NoRuntime(#[from] tokio::runtime::TryCurrentError),
    /// The thread that asked panicked.
    #[error("asking an extender panicked")]
    Panicked,
}

/// One extender. Calls may block for as long as its timeout says.
#[async_trait]
pub trait Extender: Send + Sync {
    /// Address of the extender.
    fn name(&self) -> &str;
    /// Reports whether scheduling goes on without the extender when it fails.
    fn ignorable(&self) -> bool;
    /// Reports whether the extender is asked about a pod at all.
    fn interested(&self, pod: &PodInfo) -> bool;
    /// Reports whether the extender filters nodes.
    fn filters(&self) -> bool;
    /// Reports whether the extender has a say in preemption.
    fn preempts(&self) -> bool;
    /// Reports whether the extender binds.
    fn binds(&self) -> bool;
    /// Filters nodes.
    fn filter(&self, pod: &PodInfo, nodes: &[&NodeInfo]) -> Result<Filtered, ExtenderError>;
    /// `None` when it gives no scores.
    fn prioritize(&self, pod: &PodInfo, nodes: &[&NodeInfo]) -> Result<Option<Weighed>, ExtenderError>;
    /// The candidates it agrees to, with the victims it wants.
    fn preempt(
        &self,
        pod: &PodInfo,
        victims: &HashMap<String, Victims>,
    ) -> Result<HashMap<String, Victims>, ExtenderError>;
    /// Binds.
    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ExtenderError>;
}

/// Extenders in the order they are asked.
pub type Extenders = Vec<Arc<dyn Extender>>;

/// Positions of the nodes that all extenders find fine; what they refuse goes into the diagnosis.
///
/// # Errors
/// A failure of one that cannot be ignored.
pub fn filter(
    extenders: &[Arc<dyn Extender>],
    pod: &PodInfo,
    snapshot: &Snapshot,
    mut feasible: Vec<usize>,
    diagnosis: &mut Diagnosis,
) -> Result<Vec<usize>, Status> {
    for extender in extenders.iter().filter(|e| e.filters() && e.interested(pod)) {
        if feasible.is_empty() {
            break;
        }
        let nodes: Vec<&NodeInfo> = feasible.iter().map(|at| &*snapshot.nodes()[*at]).collect();
        let said = match extender.filter(pod, &nodes) {
            Ok(said) => said,
            Err(error) if extender.ignorable() => {
                tracing::info!(extender = extender.name(), %error, "Skipping extender as it returned error and has ignorable flag set");
                continue;
            }
            Err(error) => return Err(Status::error(error.to_string())),
        };
        for (node, why) in &said.hopeless {
            refuse(snapshot, diagnosis, node, Status::unresolvable(why.clone()));
        }
        for (node, why) in said.failed.iter().filter(|(n, _)| !said.hopeless.contains_key(*n)) {
            refuse(snapshot, diagnosis, node, Status::unschedulable(why.clone()));
        }
        let before = feasible.len();
        // A node that is named twice is one node.
        let mut named = HashSet::new();
        feasible = said.fine.iter().filter_map(|name| snapshot.position(name)).filter(|at| named.insert(*at)).collect();
        if feasible.len() < before {
            diagnosis.plugins.insert(EXTENDERS);
        }
    }
    Ok(feasible)
}

fn refuse(snapshot: &Snapshot, diagnosis: &mut Diagnosis, node: &str, status: Status) {
    if let Some(at) = snapshot.position(node) {
        diagnosis.reject(at, status);
    }
}

/// Adds what extenders say to the total scores of `nodes`. One that fails says nothing.
pub fn prioritize(extenders: &[Arc<dyn Extender>], pod: &PodInfo, nodes: &[&NodeInfo], totals: &mut [i64]) {
    for extender in extenders.iter().filter(|e| e.interested(pod)) {
        match extender.prioritize(pod, nodes) {
            Ok(None) => {}
            Ok(Some((scores, weight))) => {
                for (node, total) in nodes.iter().zip(totals.iter_mut()) {
                    let score = scores.get(&**node.name()).copied().unwrap_or(0);
                    *total = total.saturating_add(
                        score.saturating_mul(weight).saturating_mul(MAX_NODE_SCORE / MAX_EXTENDER_SCORE),
                    );
                }
            }
            Err(error) => {
                tracing::info!(extender = extender.name(), %error, "Failed to run extender's priority function. No score given by this extender.");
            }
        }
    }
}

/// Returns the candidates for preemption that all extenders leave.
///
/// # Errors
/// A failure of one that cannot be ignored, or an answer that makes no sense.
pub fn preempt(
    extenders: &[Arc<dyn Extender>],
    pod: &PodInfo,
    mut victims: HashMap<String, Victims>,
) -> Result<HashMap<String, Victims>, Status> {
    for extender in extenders.iter().filter(|e| e.preempts() && e.interested(pod)) {
        if victims.is_empty() {
            break;
        }
        let mut left = match extender.preempt(pod, &victims) {
            Ok(left) => left,
            Err(error) if extender.ignorable() => {
                tracing::info!(extender = extender.name(), %error, "Skipped extender as it returned error and has ignorable flag set");
                continue;
            }
            Err(error) => return Err(Status::error(error.to_string())),
        };
        if let Some(node) = left.iter().find(|(_, v)| v.pods.is_empty()).map(|(n, _)| n.clone()) {
            if !extender.ignorable() {
                return Err(Status::error(format!("expected at least one victim pod on node {node:?}")));
            }
            left.retain(|_, v| !v.pods.is_empty());
        }
        victims = left;
    }
    Ok(victims)
}

/// Reports whether an extender binds a pod.
pub fn binds(extenders: &[Arc<dyn Extender>], pod: &PodInfo) -> bool {
    extenders.iter().any(|e| e.binds() && e.interested(pod))
}

/// Lets the first extender bind that does; `None` when none wants to.
pub async fn bind(extenders: &[Arc<dyn Extender>], pod: &PodInfo, node: &str) -> Option<Result<(), ExtenderError>> {
    for extender in extenders.iter().filter(|e| e.binds() && e.interested(pod)) {
        match extender.bind(pod, node).await {
            Err(error) if extender.ignorable() => {
                tracing::info!(extender = extender.name(), %error, "Skipping extender in bind as it returned error and has ignorable flag set");
            }
            done => return Some(done),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::lister::Fixed;
    use crate::framework::plugin::Rescue;
    use crate::framework::{Context, Cursor, CycleState, Failure, Nominated, Profile, ProfileConfig};
    use crate::testing::{node, pod};

    #[derive(Default)]
    struct Fake {
        fails: bool,
        ignorable: bool,
        bored: bool,
        said: Filtered,
        /// Refuses this node of those it is asked about, instead of saying what it was told to.
        refuses: Option<&'static str>,
        scores: HashMap<String, i64>,
        victims: Option<HashMap<String, Victims>>,
    }

    #[async_trait]
    impl Extender for Fake {
        fn name(&self) -> &str {
            "fake"
        }
        fn ignorable(&self) -> bool {
            self.ignorable
        }
        fn interested(&self, _: &PodInfo) -> bool {
            !self.bored
        }
        fn filters(&self) -> bool {
            true
        }
        fn preempts(&self) -> bool {
            self.refuses.is_none()
        }
        fn binds(&self) -> bool {
            true
        }
        fn filter(&self, _: &PodInfo, nodes: &[&NodeInfo]) -> Result<Filtered, ExtenderError> {
            if let Some(refused) = self.refuses {
                let (no, yes): (Vec<_>, Vec<_>) =
                    nodes.iter().map(|n| n.name().to_string()).partition(|n| n == refused);
                let failed = no.into_iter().map(|name| (name, "not there".to_owned())).collect();
                return Ok(Filtered { fine: yes, failed, ..Filtered::default() });
            }
            if self.fails { Err(ExtenderError::Refused("broken".into())) } else { Ok(self.said.clone()) }
        }
        fn prioritize(
            &self,
            _: &PodInfo,
            _: &[&NodeInfo],
        ) -> Result<Option<(HashMap<String, i64>, i64)>, ExtenderError> {
            if self.fails { Err(ExtenderError::Refused("broken".into())) } else { Ok(Some((self.scores.clone(), 2))) }
        }
        fn preempt(
            &self,
            _: &PodInfo,
            all: &HashMap<String, Victims>,
        ) -> Result<HashMap<String, Victims>, ExtenderError> {
            if self.fails {
                Err(ExtenderError::Refused("broken".into()))
            } else {
                Ok(self.victims.clone().unwrap_or_else(|| all.clone()))
            }
        }
        async fn bind(&self, _: &PodInfo, _: &str) -> Result<(), ExtenderError> {
            if self.fails { Err(ExtenderError::Refused("broken".into())) } else { Ok(()) }
        }
    }

    fn map(entries: &[(&str, &str)]) -> HashMap<String, String> {
        entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn list(fakes: Vec<Fake>) -> Extenders {
        fakes.into_iter().map(|f| Arc::new(f) as Arc<dyn Extender>).collect()
    }

    #[test]
    fn filtering() {
        let snapshot = Snapshot::of(vec![node("a").with(&[]), node("b").with(&[]), node("c").with(&[])]);
        let said = Filtered {
            fine: vec!["c".into()],
            failed: map(&[("a", "full"), ("b", "full")]),
            hopeless: map(&[("b", "never")]),
        };
        for (what, extenders, want, codes) in [
            ("says no", list(vec![Fake { said: said.clone(), ..Fake::default() }]), Ok(vec![2]), vec!["full", "never"]),
            ("not asked", list(vec![Fake { said, bored: true, ..Fake::default() }]), Ok(vec![0, 1, 2]), vec![]),
            ("fails", list(vec![Fake { fails: true, ..Fake::default() }]), Err("broken".to_owned()), vec![]),
            (
                "may fail",
                list(vec![Fake { fails: true, ignorable: true, ..Fake::default() }]),
                Ok(vec![0, 1, 2]),
                vec![],
            ),
        ] {
            let mut diagnosis = Diagnosis { nodes: 3, ..Diagnosis::default() };
            let left = filter(&extenders, &pod("p").info(), &snapshot, vec![0, 1, 2], &mut diagnosis);
            assert_eq!(left.map_err(|s| s.to_string()), want, "{what}");
            let mut said: Vec<String> = diagnosis.rejected.iter().map(|(_, s)| s.to_string()).collect();
            said.sort();
            assert_eq!(said, codes, "{what}");
        }
    }

    /// A pod on a cluster whose extender wants nobody on `refused`.
    fn schedule(p: &PodInfo, nodes: Vec<Arc<NodeInfo>>) -> (Result<String, Failure>, Option<Rescue>) {
        let mut profile = Profile::build(&ProfileConfig::default()).expect("profile");
        profile.extenders = list(vec![Fake { refuses: Some("refused"), ..Fake::default() }]);
        let (snapshot, listers, nominated) = (Snapshot::of(nodes), Fixed::default(), Nominated::default());
        let now = jiff::Timestamp::UNIX_EPOCH;
        let cx = Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now };
        let mut state = CycleState::default();
        let placed = profile.schedule(cx, &mut state, p, &mut Cursor::default(), &mut rand::rng());
        let rescue = match &placed {
            Err(Failure::Unfit(diagnosis)) => profile.post_filter(cx, &state, p, &diagnosis.rejected).0,
            _ => None,
        };
        (placed.map(|placement| placement.node.name().to_string()), rescue)
    }

    #[test]
    fn a_promised_node_that_is_refused_leads_to_the_others() {
        let promised = pod("p").set("/status", "nominatedNodeName", serde_json::json!("refused")).info();
        let (placed, _) = schedule(&promised, vec![node("refused").with(&[]), node("free").with(&[])]);
        assert_eq!(placed.map_err(|failure| failure.to_string()), Ok("free".to_owned()));
    }

    #[test]
    fn nobody_is_promised_a_node_on_which_nobody_has_to_go() {
        let lesser = pod("lesser").cpu("1").priority(1).info();
        let (placed, rescue) = schedule(&pod("p").priority(9).info(), vec![node("refused").with(&[lesser])]);
        assert!(placed.is_err());
        assert!(rescue.is_none_or(|rescue| rescue.nominate.is_none()));
    }

    #[test]
    fn scores_are_weighed_and_stretched() {
        let nodes = [node("a").with(&[]), node("b").with(&[])];
        let nodes: Vec<&NodeInfo> = nodes.iter().map(|n| &**n).collect();
        let mut totals = [5, 7];
        let good = Fake { scores: [("a".to_owned(), 10)].into(), ..Fake::default() };
        prioritize(&list(vec![good, Fake { fails: true, ..Fake::default() }]), &pod("p").info(), &nodes, &mut totals);
        assert_eq!(totals, [205, 7]);
    }

    #[test]
    fn preemption() {
        let one = || Victims { pods: vec![Arc::new(pod("v").info())], violations: 0 };
        let all: HashMap<String, Victims> = [("a".to_owned(), one()), ("b".to_owned(), one())].into();
        let none: HashMap<String, Victims> = [("a".to_owned(), Victims::default())].into();
        let only_b: HashMap<String, Victims> = [("b".to_owned(), one())].into();
        for (what, fake, want) in [
            ("agrees", Fake::default(), Ok(2)),
            ("chooses", Fake { victims: Some(only_b), ..Fake::default() }, Ok(1)),
            (
                "nobody to go",
                Fake { victims: Some(none.clone()), ..Fake::default() },
                Err("expected at least one victim pod on node \"a\"".to_owned()),
            ),
            ("nobody to go, may fail", Fake { victims: Some(none), ignorable: true, ..Fake::default() }, Ok(0)),
            ("fails", Fake { fails: true, ..Fake::default() }, Err("broken".to_owned())),
        ] {
            let left = preempt(&list(vec![fake]), &pod("p").info(), all.clone());
            assert_eq!(left.map(|l| l.len()).map_err(|s| s.to_string()), want, "{what}");
        }
    }

    #[tokio::test]
    async fn binding() {
        let p = pod("p").info();
        let failing = || Fake { fails: true, ..Fake::default() };
        let ignorable = Fake { ignorable: true, ..failing() };
        for (fakes, want) in [
            (vec![], None),
            (vec![Fake::default()], Some(Ok(()))),
            (vec![failing()], Some(Err("broken".to_owned()))),
            (vec![ignorable], None),
        ] {
            let done = bind(&list(fakes), &p, "n").await;
            assert_eq!(done.map(|done| done.map_err(|error| error.to_string())), want);
        }
    }
}
