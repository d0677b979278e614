//! The extension points, by upstream's names. A plugin implements those it has something to say at. Answers for
//! upstream's `k8s.io/kube-scheduler/framework`.
//!
//! Everything up to Permit is pure and synchronous: it sees the [`Context`] and the cycle's notes, and does no I/O.
//! PreBind, Bind and PostBind act, through the [`Api`] they are given.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::api::Api;
pub use super::context::{Context, MAX_NODE_SCORE};
use super::diagnosis::Rejected;
use super::event::{ClusterEvent, Hint};
use super::lister::Listers;
pub use super::permission::Permission;
use super::profile::Profile;
use super::queued_pod::QueuedPod;
use super::rule::{Depends, Rules};
use super::state::CycleState;
use super::status::Status;
use crate::model::{NodeInfo, PodInfo};

/// Names of the only nodes worth looking at.
pub type NodeNames = BTreeSet<String>;

/// May a pod enter the queue at all?
pub trait PreEnqueue: Send + Sync {
    /// Any answer but success keeps it out. Without `listers` only the pod itself is looked at.
    fn pre_enqueue(&self, listers: Option<&dyn Listers>, pod: &PodInfo) -> Status;
}

/// Orders pods in the queue.
pub trait QueueSort: Send + Sync {
    /// `Less` means `a` first.
    fn compare(&self, a: &QueuedPod, b: &QueuedPod) -> Ordering;
}

/// Result of a PreFilter beyond its notes.
pub enum PreFiltered {
    /// Go on, with all nodes.
    All,
    /// Go on, with these nodes only.
    Nodes(NodeNames),
}

/// Looks at the pod (and the cluster) once before nodes are looked at.
pub trait PreFilter: Send + Sync {
    /// Notes down what Filter needs. `Err(Status::SKIP)` skips the plugin's Filter.
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status>;

    /// Pretends that `added` also runs on `node`.
    fn add_pod(&self, _cx: Context<'_>, _state: &mut CycleState, _pod: &PodInfo, _added: &PodInfo, _node: &NodeInfo) {}

    /// Pretends that `removed` no longer runs on `node`.
    fn remove_pod(
        &self,
        _cx: Context<'_>,
        _state: &mut CycleState,
        _pod: &PodInfo,
        _removed: &PodInfo,
        _node: &NodeInfo,
    ) {
    }
}

/// Can the pod run on this node?
pub trait Filter: Send + Sync {
    /// Hot path.
    fn filter(&self, cx: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status;
}

/// No node fits: can something be done?
#[async_trait]
pub trait PostFilter: Send + Sync {
    /// Nodes that are not in `rejected` were never asked.
    fn post_filter(
        &self,
        cx: Context<'_>,
        profile: &Profile,
        state: &CycleState,
        pod: &PodInfo,
        rejected: &Rejected,
    ) -> (Option<Rescue>, Status);

    /// Reports whether the decision left something to do beyond the [`Rescue`].
    fn acts(&self, _state: &CycleState) -> bool {
        false
    }

    /// Does it, in the background.
    async fn act(&self, _api: &dyn Api, _state: &CycleState, _pod: &PodInfo) {}
}

/// Result of a PostFilter.
#[derive(Debug, Clone, Default)]
pub struct Rescue {
    /// The node to promise to the pod; `None` takes an earlier promise back.
    pub nominate: Option<Arc<str>>,
    /// Pods that have to go.
    pub victims: Vec<Arc<PodInfo>>,
    /// Lesser pods whose promise of the same node is void.
    pub demoted: Vec<Arc<PodInfo>>,
}

/// Looks at the fitting nodes once before they are scored.
pub trait PreScore: Send + Sync {
    /// [`Status::SKIP`] skips the plugin's Score.
    fn pre_score(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, nodes: &[&NodeInfo]) -> Status;
}

/// Scores nodes.
pub trait Score: Send + Sync {
    /// Hot path.
    fn score(&self, cx: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64;

    /// Reports whether [`Score::normalize`] does anything: a score then means something beside those of other nodes
    /// only.
    fn is_relative(&self) -> bool {
        true
    }

    /// Brings scores to 0..=[`MAX_NODE_SCORE`]. Goes by the values there are, not by how often: each may be there once for
    /// all nodes that have it.
    fn normalize(&self, _scores: &mut [i64]) {}
}

/// Sets something aside for the pod on its node, in memory.
pub trait Reserve: Send + Sync {
    /// Sets aside.
    fn reserve(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, node: &Arc<NodeInfo>) -> Status;

    /// Gives back; must bear being called twice.
    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str);
}

/// May the binding begin?
pub trait Permit: Send + Sync {
    /// Answers, and says what that means for other pods.
    fn permit(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, node: &str) -> Permission;
}

/// Gets things ready before the binding.
#[async_trait]
pub trait PreBind: Send + Sync {
    /// Reports whether there is anything to do; asked before the first API call.
    fn applies(&self, state: &CycleState, pod: &PodInfo) -> bool;

    /// Does it.
    async fn pre_bind(&self, api: &dyn Api, state: &CycleState, pod: &PodInfo, node: &str) -> Status;

    /// Takes back what was done, as far as it can be: the pod does not get the node after all.
    async fn undo(&self, _api: &dyn Api, _state: &CycleState, _pod: &PodInfo) {}
}

/// Binds.
#[async_trait]
pub trait Bind: Send + Sync {
    /// [`Status::SKIP`] leaves it to the next one.
    async fn bind(&self, api: &dyn Api, state: &CycleState, pod: &PodInfo, node: &str) -> Status;
}

/// Told of a binding that is done.
pub trait PostBind: Send + Sync {
    /// Told.
    fn post_bind(&self, state: &CycleState, pod: &PodInfo, node: &str);
}

/// Events that make a pod worth trying again that this plugin had turned down.
pub trait Requeue: Send + Sync {
    /// Answers for one event.
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint;
}

/// A plugin: its name and what it implements.
#[derive(Clone, Default)]
pub struct Plugin {
    /// Upstream's name.
    pub name: &'static str,
    /// Inputs of the plugin's Filter and Score.
    pub(crate) depends: Depends,
    pub(crate) rules: Option<Arc<dyn Rules>>,
    pub(crate) pre_enqueue: Option<Arc<dyn PreEnqueue>>,
    pub(crate) queue_sort: Option<Arc<dyn QueueSort>>,
    pub(crate) pre_filter: Option<Arc<dyn PreFilter>>,
    pub(crate) filter: Option<Arc<dyn Filter>>,
    pub(crate) post_filter: Option<Arc<dyn PostFilter>>,
    pub(crate) pre_score: Option<Arc<dyn PreScore>>,
    pub(crate) score: Option<Arc<dyn Score>>,
    pub(crate) reserve: Option<Arc<dyn Reserve>>,
    pub(crate) permit: Option<Arc<dyn Permit>>,
    pub(crate) pre_bind: Option<Arc<dyn PreBind>>,
    pub(crate) bind: Option<Arc<dyn Bind>>,
    pub(crate) post_bind: Option<Arc<dyn PostBind>>,
    pub(crate) requeue: Option<Arc<dyn Requeue>>,
}

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident: $point:ident),* $(,)?) => {
        impl Plugin {
            /// A plugin that implements nothing yet.
            pub fn new(name: &'static str) -> Self {
                Self { name, ..Self::default() }
            }

            /// Filter, PreScore and Score look at the pod's demand and the node alone, PreFilter at the demand.
            #[must_use]
            pub fn node_only(mut self) -> Self {
                self.depends = Depends::Node;
                self
            }

            /// Filter and Score can be had as rules.
            #[must_use]
            pub fn rules(mut self, it: &Arc<impl Rules + 'static>) -> Self {
                self.depends = Depends::Rules;
                self.rules = Some(Arc::clone(it) as Arc<dyn Rules>);
                self
            }

            $(
                /// Implements this extension point.
                #[must_use]
                pub fn $name(mut self, it: &Arc<impl $point + 'static>) -> Self {
                    self.$name = Some(Arc::clone(it) as Arc<dyn $point>);
                    self
                }
            )*
        }
    };
}

points! {
    pre_enqueue: PreEnqueue,
    queue_sort: QueueSort,
    pre_filter: PreFilter,
    filter: Filter,
    post_filter: PostFilter,
    pre_score: PreScore,
    score: Score,
    reserve: Reserve,
    permit: Permit,
    pre_bind: PreBind,
    bind: Bind,
    post_bind: PostBind,
    requeue: Requeue,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Brings scores to 0..=[`MAX_NODE_SCORE`] by the highest of them; `reverse` makes little good.
pub fn normalize_by_max(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for s in scores {
        *s = if max == 0 {
            if reverse { MAX_NODE_SCORE } else { *s }
        } else {
            let scaled = MAX_NODE_SCORE * *s / max;
            if reverse { MAX_NODE_SCORE - scaled } else { scaled }
        };
    }
}
