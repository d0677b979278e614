//! One look at one autoscaler: what to measure, what the readings mean, and what to write. Answers for upstream's
//! `reconcileAutoscaler`.
//!
//! In: the object, its target's scale, the pods behind it, readings and history. Out: a new status, the number of
//! replicas to set, events. Reasons and messages are upstream's. No I/O here.

use std::sync::Arc;

use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricIdentifier, MetricSpec, MetricStatus,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proto::selector::label::Selector;

use super::behavior::{self, History, Wish};
use super::calculator::Samples;
use super::error::MeasureError;
use super::metric::{Fault, one};
use crate::engine::object::{Key, seconds};
use crate::engine::pod::Pod;
use crate::engine::rest::RestError;
use crate::engine::settings::Hpa;

/// A measurement that a metric of the spec needs.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "fields of variants say by their names what they are")]
pub enum Query {
    /// metrics.k8s.io, of the pods or of one container of each.
    Resource { resource: String, container: Option<String> },
    /// custom.metrics.k8s.io, of the pods.
    Pods(MetricIdentifier),
    /// custom.metrics.k8s.io, of one object.
    Object(CrossVersionObjectReference, MetricIdentifier),
    /// external.metrics.k8s.io
    External(MetricIdentifier),
}

/// Answers of the metrics API.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// By pod.
    Samples(Samples),
    /// One number, in thousandths.
    Value(i64),
    /// One number for each series of an external metric, in thousandths.
    Series(Vec<i64>),
}

/// A measurement, or why there is none.
pub type Measured = Result<Reading, MeasureError>;

/// The target's scale subresource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// `spec.replicas`
    pub wanted: i32,
    /// `status.replicas`
    pub observed: i32,
    /// `status.selector`
    pub selector: String,
}

/// Inputs of the decision.
pub struct Snapshot<'a> {
    /// The autoscaler.
    pub hpa: &'a HorizontalPodAutoscaler,
    /// Spec of the autoscaler.
    pub spec: &'a HorizontalPodAutoscalerSpec,
    /// Scale of the target.
    pub scale: &'a Scale,
    /// Pods the scale's selector matches.
    pub pods: &'a [Arc<Pod>],
    /// Autoscalers whose targets select any of these pods.
    pub selecting: &'a [Key],
    /// By position in `spec.metrics`; None where nothing can be asked.
    pub readings: &'a [Option<Measured>],
    /// The flags.
    pub config: Hpa,
    /// Gate HPAConfigurableTolerance.
    pub own_tolerance: bool,
    /// The time.
    pub now: Timestamp,
    /// The time by a clock that nobody sets: windows and periods are counted by it, as upstream's are.
    pub steady: SignedDuration,
}

/// An event about the autoscaler: whether it is a warning, reason, message.
pub type Said = (bool, &'static str, String);

/// Result of one metric, for the metrics of this controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computed {
    /// Position in `spec.metrics`.
    pub metric: usize,
    /// The replicas it proposes.
    pub replicas: Option<i32>,
    /// The spec is at fault, not a measurement.
    pub bad_spec: bool,
}

/// Decision about an autoscaler.
#[derive(Clone, Debug, Default)]
pub struct ScaleDecision {
    /// The status to write, unless it is as before; without what the rescale adds.
    pub status: HorizontalPodAutoscalerStatus,
    /// Events.
    pub events: Vec<Said>,
    /// Replicas to set, and why.
    pub rescale: Option<(i32, String)>,
    /// Failure of the look.
    pub failure: Option<String>,
    /// The replicas there should be, when the look came to its end.
    pub desired: Option<i32>,
    /// The metrics that were computed.
    pub computed: Vec<Computed>,
}

/// Reports whether the scale can change at all by what metrics say.
pub fn asks_metrics(spec: &HorizontalPodAutoscalerSpec, scale: &Scale) -> bool {
    let disabled = scale.wanted == 0 && minimum(spec) != 0;
    !disabled && scale.wanted <= spec.max_replicas && scale.wanted >= minimum(spec)
}

fn minimum(spec: &HorizontalPodAutoscalerSpec) -> i32 {
    spec.min_replicas.unwrap_or(1)
}

/// The measurement a metric needs; None when its spec is incomplete.
#[must_use]
pub fn query(spec: &MetricSpec) -> Option<Query> {
    match spec.type_.as_str() {
        "Resource" => spec.resource.as_ref().map(|r| Query::Resource { resource: r.name.clone(), container: None }),
        "ContainerResource" => spec
            .container_resource
            .as_ref()
            .map(|r| Query::Resource { resource: r.name.clone(), container: Some(r.container.clone()) }),
        "Pods" => spec.pods.as_ref().map(|p| Query::Pods(p.metric.clone())),
        "Object" => spec.object.as_ref().map(|o| Query::Object(o.described_object.clone(), o.metric.clone())),
        "External" => spec.external.as_ref().map(|e| Query::External(e.metric.clone())),
        _ => None,
    }
}

/// The target could not be found or read.
#[must_use]
pub fn without_scale(hpa: &HorizontalPodAutoscaler, why: &str, now: Timestamp) -> ScaleDecision {
    let mut out = ScaleDecision { status: hpa.status.clone().unwrap_or_default(), ..ScaleDecision::default() };
    out.events.push((true, "FailedGetScale", why.to_owned()));
    let message = format!("the HPA controller was unable to get the target's current scale: {why}");
    set(&mut out.status, now, ABLE, false, "FailedGetScale", message);
    out.failure = Some(why.to_owned());
    out
}

const ABLE: &str = "AbleToScale";
const ACTIVE: &str = "ScalingActive";
const LIMITED: &str = "ScalingLimited";

/// Decide.
pub fn plan(s: &Snapshot<'_>, history: &mut History) -> ScaleDecision {
    let (hpa, current) = (s.hpa, s.scale.wanted);
    let mut out = ScaleDecision { status: hpa.status.clone().unwrap_or_default(), ..ScaleDecision::default() };
    let message = "the HPA controller was able to get the target's current scale";
    set(&mut out.status, s.now, ABLE, true, "SucceededGetScale", message);
    history.begin(current, s.steady);
    let (min, max) = (minimum(s.spec), s.spec.max_replicas);
    if current == 0 && min != 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        set(&mut out.status, s.now, ACTIVE, false, "ScalingDisabled", message);
        settle(&mut out, current, 0, None);
    } else if current > max {
        out.rescale = Some((max, "Current number of replicas above Spec.MaxReplicas".into()));
        settle(&mut out, current, max, None);
    } else if current < min {
        out.rescale = Some((min, "Current number of replicas below Spec.MinReplicas".into()));
        settle(&mut out, current, min, None);
    } else {
        by_metrics(s, history, (min, max), &mut out);
    }
    out
}

fn by_metrics(s: &Snapshot<'_>, history: &mut History, (min, max): (i32, i32), out: &mut ScaleDecision) {
    let current = s.scale.wanted;
    let (proposal, name, statuses) = match combine(s, out) {
        Combined::Failed(why, statuses) => {
            let before = out.status.desired_replicas;
            replicas(&mut out.status, current, before, statuses);
            out.events.push((true, "FailedComputeMetricsReplicas", why.clone()));
            out.failure = Some(why);
            return;
        }
        Combined::Proposed(proposal, name, statuses) => (proposal.max(0), name, statuses),
    };
    let reason = if proposal > current {
        format!("{name} above target")
    } else if proposal < current {
        "All metrics below target".to_owned()
    } else {
        String::new()
    };
    let wish = Wish { current, desired: proposal, min, max };
    let behavior = s.spec.behavior.as_ref();
    let verdict = behavior::judge(history, behavior, wish, s.config.downscale_stabilization, s.steady);
    set(&mut out.status, s.now, ABLE, true, verdict.able.0, verdict.able.1);
    set(&mut out.status, s.now, LIMITED, verdict.limited, verdict.limit.0, verdict.limit.1);
    if verdict.replicas != current {
        out.rescale = Some((verdict.replicas, reason));
    }
    settle(out, current, verdict.replicas, Some(statuses));
}

fn settle(out: &mut ScaleDecision, current: i32, desired: i32, metrics: Option<Vec<MetricStatus>>) {
    replicas(&mut out.status, current, desired, metrics);
    out.desired = Some(desired);
}

/// The rescale was tried: what the status says then, and what is told.
pub fn after_rescale(
    decision: &mut ScaleDecision,
    before: &HorizontalPodAutoscalerStatus,
    result: Result<(), RestError>,
    now: Timestamp,
) {
    let Some((size, reason)) = decision.rescale.clone() else { return };
    match result {
        Ok(()) => {
            let message = format!("the HPA controller was able to update the target scale to {size}");
            set(&mut decision.status, now, ABLE, true, "SucceededRescale", message);
            decision.status.last_scale_time = Some(seconds(now));
            decision.events.push((false, "SuccessfulRescale", format!("New size: {size}; reason: {reason}")));
        }
        Err(error) => {
            let text = format!("New size: {size}; reason: {reason}; error: {error}");
            decision.events.push((true, "FailedRescale", text));
            let message = format!("the HPA controller was unable to update the target scale: {error}");
            set(&mut decision.status, now, ABLE, false, "FailedUpdateScale", message);
            decision.status.desired_replicas = before.desired_replicas;
            decision.desired = None;
            decision.failure = Some(format!("failed to rescale: {error}"));
        }
    }
}

enum Combined {
    Proposed(i32, String, Vec<MetricStatus>),
    Failed(String, Option<Vec<MetricStatus>>),
}

/// The largest proposal of all metrics. Without some of them the target may grow, but not shrink.
fn combine(s: &Snapshot<'_>, out: &mut ScaleDecision) -> Combined {
    if let Err((event, why, message)) = selectable(s) {
        set(
            &mut out.status,
            s.now,
            ACTIVE,
            false,
            if event == "SelectorRequired" { "InvalidSelector" } else { event },
            message,
        );
        out.events.push((true, event, why.clone()));
        return Combined::Failed(why, None);
    }
    let specs = s.spec.metrics.as_deref().unwrap_or_default();
    let mut best: Option<(i32, String)> = None;
    let mut statuses = Vec::with_capacity(specs.len());
    let mut first: Option<Fault> = None;
    let mut invalid = 0;
    for (i, spec) in specs.iter().enumerate() {
        let done = one(s, spec, s.readings.get(i).and_then(Option::as_ref));
        out.computed.push(Computed {
            metric: i,
            replicas: done.as_ref().ok().map(|d| d.replicas),
            bad_spec: done.as_ref().err().is_some_and(|f| f.spec),
        });
        match done {
            Ok(done) => {
                if best.as_ref().is_none_or(|(n, _)| *n == 0 || done.replicas > *n) {
                    best = Some((done.replicas, done.name));
                }
                statuses.push(done.status);
            }
            Err(fault) => {
                out.events.push((true, fault.reason, fault.cause.clone()));
                statuses.push(MetricStatus::default());
                invalid += 1;
                first.get_or_insert(fault);
            }
        }
    }
    let replicas = best.as_ref().map_or(0, |b| b.0);
    let total = specs.len();
    let summary =
        |f: &Fault| format!("invalid metrics ({invalid} invalid out of {total}), first error is: {}", f.error);
    if let Some(fault) = first.as_ref().filter(|_| invalid >= total || replicas < s.scale.wanted) {
        let message = format!("the HPA was unable to compute the replica count: {}", fault.cause);
        set(&mut out.status, s.now, ACTIVE, false, fault.reason, message);
        return Combined::Failed(summary(fault), Some(statuses));
    }
    out.failure = first.as_ref().map(summary);
    let name = best.map(|b| b.1).unwrap_or_default();
    let message = format!("the HPA was able to successfully calculate a replica count from {name}");
    set(&mut out.status, s.now, ACTIVE, true, "ValidMetricFound", message);
    Combined::Proposed(replicas, name, statuses)
}

/// Checks that the target's selector picks pods for this autoscaler alone; otherwise returns an event's reason and
/// message and the condition's message.
fn selectable(s: &Snapshot<'_>) -> Result<(), (&'static str, String, String)> {
    let selector = s.scale.selector.as_str();
    if selector.is_empty() {
        let message = "the HPA target's scale is missing a selector";
        return Err(("SelectorRequired", "selector is required".into(), message.into()));
    }
    if let Err(e) = Selector::parse(selector) {
        let why = format!("couldn't convert selector into a corresponding internal selector object: {e}");
        return Err(("InvalidSelector", why.clone(), why));
    }
    if s.selecting.len() > 1 {
        let names: Vec<String> = s.selecting.iter().map(ToString::to_string).collect();
        let why = format!("pods by selector {selector} are controlled by multiple HPAs: [{}]", names.join(" "));
        return Err(("AmbiguousSelector", why.clone(), why));
    }
    Ok(())
}

fn replicas(
    status: &mut HorizontalPodAutoscalerStatus,
    current: i32,
    desired: i32,
    metrics: Option<Vec<MetricStatus>>,
) {
    // None are not written at all.
    status.current_replicas = Some(current).filter(|n| *n != 0);
    status.desired_replicas = desired;
    status.current_metrics = metrics.filter(|m| !m.is_empty());
    status.observed_generation = None;
}

fn set(
    status: &mut HorizontalPodAutoscalerStatus,
    now: Timestamp,
    kind: &str,
    value: bool,
    reason: &str,
    message: impl Into<String>,
) {
    let value = if value { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let (reason, message) = (Some(reason.to_owned()), Some(message.into()));
    match conditions.iter_mut().find(|c| c.type_ == kind) {
        Some(c) => {
            if c.status != value {
                c.last_transition_time = Some(seconds(now));
                c.status = value.to_owned();
            }
            (c.reason, c.message) = (reason, message);
        }
        None => conditions.push(HorizontalPodAutoscalerCondition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            last_transition_time: Some(seconds(now)),
            reason,
            message,
        }),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
