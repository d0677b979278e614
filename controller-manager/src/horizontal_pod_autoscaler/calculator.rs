//! From metric samples to a number of replicas. Answers for upstream's `ReplicaCalculator`.
//!
//! In: samples by pod name in thousandths, the pods they are about, the target. Out: how many replicas would meet the
//! target. Pods without samples and pods that are not ready yet damp the change and never turn its direction. The
//! rules are those of the page "Horizontal Pod Autoscaling", section "Algorithm details". No I/O here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proto::quantity::Quantity;

use super::arithmetic::{at_most, ceil, int64, sum};
use super::error::{CalculationError, NoPods};
use crate::engine::pod::{Container, Pod};
use crate::engine::{object, pods};
use crate::resource_quota::usage;

/// One pod's measured use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time of the sample.
    pub at: Timestamp,
    /// The time it covers, before `at`.
    pub window: Duration,
    /// In thousandths.
    pub value: i64,
}

/// Samples by pod name.
pub type Samples = HashMap<String, Sample>;

/// Distance from one that the ratio of use to target may have before anything changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    /// Above one.
    pub up: f64,
    /// Below one.
    pub down: f64,
}

impl Tolerances {
    fn allow(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// Inputs of every calculation.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The pods of the target.
    pub pods: &'a [Arc<Pod>],
    /// `spec.replicas` of the target's scale.
    pub current: i32,
    /// Deviations not worth a change.
    pub tolerances: Tolerances,
    /// `--horizontal-pod-autoscaler-cpu-initialization-period`
    pub cpu_initialization: Duration,
    /// `--horizontal-pod-autoscaler-initial-readiness-delay`
    pub initial_readiness: Duration,
    /// The time.
    pub now: Timestamp,
}

/// Replicas that a metric asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Replicas that would meet the target.
    pub replicas: i32,
    /// Use in per cent of requests, for utilisation targets.
    pub utilization: Option<i32>,
    /// Use, in thousandths: per pod, or the value itself.
    pub value: i64,
}

#[allow(clippy::cast_precision_loss, reason = "ratios of measured values")]
fn ratio(use_: i64, target: i64) -> f64 {
    use_ as f64 / target as f64
}

#[allow(clippy::cast_precision_loss, reason = "numbers of pods")]
fn float(n: usize) -> f64 {
    n as f64
}

struct MetricUse {
    ratio: f64,
    utilization: Option<i32>,
    value: i64,
}

/// A percentage of what the pods request; `container` narrows it to one container of each pod.
pub fn utilization(
    scene: Scene<'_>,
    samples: Samples,
    resource: &str,
    container: Option<&str>,
    target: i32,
) -> Result<Proposal, CalculationError> {
    let (samples, groups) = group(scene, samples, resource)?;
    let requests = requests(scene.pods, resource, container)?;
    let measure = |samples: &Samples| {
        let known: Vec<(i64, i64)> =
            samples.iter().filter_map(|(pod, s)| requests.get(pod.as_str()).map(|r| (s.value, *r))).collect();
        let (used, requested) = (sum(known.iter().map(|k| k.0)), sum(known.iter().map(|k| k.1)));
        if requested == 0 {
            return Err(CalculationError::NoRequests);
        }
        let percent = low_bits(used.wrapping_mul(100).wrapping_div(requested));
        let value = used / i64::try_from(known.len()).unwrap_or(1);
        Ok(MetricUse { ratio: f64::from(percent) / f64::from(target), utilization: Some(percent), value })
    };
    let full = i64::from(target.max(100));
    let missing = |pod: &str, ratio: f64| match requests.get(pod) {
        Some(request) if ratio < 1.0 => Some(request.wrapping_mul(full) / 100),
        Some(_) if ratio > 1.0 => Some(0),
        _ => None,
    };
    damped(scene, samples, &groups, &measure, &missing)
}

/// A value per pod; `resource` is empty unless the samples are of a resource.
pub fn per_pod(scene: Scene<'_>, samples: Samples, resource: &str, target: i64) -> Result<Proposal, CalculationError> {
    let (samples, groups) = group(scene, samples, resource)?;
    let measure = |samples: &Samples| {
        let value = sum(samples.values().map(|s| s.value)) / i64::try_from(samples.len()).unwrap_or(1).max(1);
        Ok(MetricUse { ratio: ratio(value, target), utilization: None, value })
    };
    let missing = |_: &str, ratio: f64| match ratio {
        r if r < 1.0 => Some(target),
        r if r > 1.0 => Some(0),
        _ => None,
    };
    damped(scene, samples, &groups, &measure, &missing)
}

/// One value that all replicas bring about together, compared with a target for all.
pub fn total(scene: Scene<'_>, value: i64, target: i64) -> Result<Proposal, CalculationError> {
    let ratio = ratio(value, target);
    let replicas = if scene.current == 0 {
        ceil(ratio)
    } else if scene.tolerances.allow(ratio) {
        scene.current
    } else {
        at_most(ratio * float(ready(scene.pods).map_err(CalculationError::ReadyPods)?))
    };
    Ok(Proposal { replicas, utilization: None, value })
}

/// One value of an object, compared with a target for each replica; `observed` is how many there are.
pub fn shared(tolerances: Tolerances, observed: i32, value: i64, target: i64) -> Proposal {
    let replicas = if meets(tolerances, observed, value, target) { observed } else { ceil(ratio(value, target)) };
    Proposal { replicas, utilization: None, value: each(value, observed) }
}

/// Shares like [`shared`], of a metric that is no object's: too much of it asks for as many as there can be.
pub fn shared_external(tolerances: Tolerances, observed: i32, value: i64, target: i64) -> Proposal {
    let replicas = if meets(tolerances, observed, value, target) { observed } else { at_most(ratio(value, target)) };
    let most = ratio(value, 1) >= ratio(i64::MAX, 1);
    Proposal { replicas, utilization: None, value: if most { i64::MAX } else { each(value, observed) } }
}

/// Reports whether as many replicas as there are meet the target, in the order of upstream's arithmetic: another one
/// rounds otherwise at the bounds.
#[allow(clippy::cast_precision_loss, reason = "a ratio of measured values")]
fn meets(tolerances: Tolerances, observed: i32, value: i64, target: i64) -> bool {
    tolerances.allow(value as f64 / (target as f64 * f64::from(observed)))
}

fn each(value: i64, observed: i32) -> i64 {
    int64(ratio(value, observed.into()).ceil())
}

#[allow(clippy::cast_possible_truncation, reason = "what is above is lost")]
fn low_bits(percent: i64) -> i32 {
    percent as i32
}

fn damped(
    scene: Scene<'_>,
    mut samples: Samples,
    groups: &Groups,
    measure: &dyn Fn(&Samples) -> Result<MetricUse, CalculationError>,
    missing: &dyn Fn(&str, f64) -> Option<i64>,
) -> Result<Proposal, CalculationError> {
    let seen = measure(&samples)?;
    let propose = |replicas| Ok(Proposal { replicas, utilization: seen.utilization, value: seen.value });
    let unready_count = !groups.unready.is_empty() && seen.ratio > 1.0;
    if !unready_count && groups.missing.is_empty() {
        let same = scene.tolerances.allow(seen.ratio);
        return propose(if same { scene.current } else { ceil(seen.ratio * float(groups.ready)) });
    }
    let assumed = |value| Sample { at: scene.now, window: Duration::ZERO, value };
    for pod in &groups.missing {
        if let Some(value) = missing(pod, seen.ratio) {
            samples.insert(pod.clone(), assumed(value));
        }
    }
    if unready_count {
        samples.extend(groups.unready.iter().map(|pod| (pod.clone(), assumed(0))));
    }
    let ratio = measure(&samples)?.ratio;
    let turned = (seen.ratio < 1.0 && ratio > 1.0) || (seen.ratio > 1.0 && ratio < 1.0);
    if turned || scene.tolerances.allow(ratio) {
        return propose(scene.current);
    }
    let replicas = ceil(ratio * float(samples.len()));
    let turned = (ratio < 1.0 && replicas > scene.current) || (ratio > 1.0 && replicas < scene.current);
    propose(if turned { scene.current } else { replicas })
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Groups {
    ready: usize,
    unready: HashSet<String>,
    missing: HashSet<String>,
}

/// Tells pods apart, and leaves the samples of those that count.
fn group(scene: Scene<'_>, mut samples: Samples, resource: &str) -> Result<(Samples, Groups), CalculationError> {
    if scene.pods.is_empty() {
        return Err(NoPods.into());
    }
    let mut out = Groups::default();
    for pod in scene.pods {
        let name = object::name(&pod.metadata).to_owned();
        if object::deleting(&pod.metadata) || pods::phase(pod) == "Failed" {
            samples.remove(&name);
        } else if pods::phase(pod) == "Pending" {
            samples.remove(&name);
            out.unready.insert(name);
        } else {
            match samples.get(&name) {
                None => drop(out.missing.insert(name)),
                Some(sample) if resource == "cpu" && !settled(scene, pod, sample) => {
                    samples.remove(&name);
                    out.unready.insert(name);
                }
                Some(_) => out.ready += 1,
            }
        }
    }
    if samples.is_empty() {
        return Err(CalculationError::NoSamples);
    }
    Ok((samples, out))
}

/// Reports whether a CPU sample says something about the pod's ordinary work, and not about its start.
fn settled(scene: Scene<'_>, pod: &Pod, sample: &Sample) -> bool {
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    let (Some(ready), Some(started)) = (pods::condition(pod, "Ready"), started) else { return false };
    let after = |t: Timestamp, d: Duration| {
        t.checked_add(SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
    };
    let changed = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0);
    if after(started.0, scene.cpu_initialization) > scene.now {
        return ready.status != "False" && sample.at >= after(changed, sample.window);
    }
    // Not ready since its start: it has never been ready.
    !(ready.status == "False" && after(started.0, scene.initial_readiness) > changed)
}

fn ready(all: &[Arc<Pod>]) -> Result<usize, NoPods> {
    if all.is_empty() {
        return Err(NoPods);
    }
    Ok(all.iter().filter(|p| pods::phase(p) == "Running" && pods::ready(p)).count())
}

/// A stored quantity in thousandths, rounded up.
#[must_use]
pub fn milli(q: &Stored) -> i64 {
    Quantity::parse(&q.0).map_or(0, |q| q.milli_value())
}

fn requests<'a>(
    all: &'a [Arc<Pod>],
    resource: &str,
    container: Option<&str>,
) -> Result<HashMap<&'a str, i64>, CalculationError> {
    all.iter().map(|pod| Ok((object::name(&pod.metadata), request(pod, resource, container)?))).collect()
}

fn request(pod: &Pod, resource: &str, container: Option<&str>) -> Result<i64, CalculationError> {
    let name = object::name(&pod.metadata);
    let Some(spec) = pod.spec.as_ref() else { return Ok(0) };
    let whole = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    if container.is_none() && whole.is_some_and(|r| r.keys().any(|k| of_whole_pods(k))) {
        let all = usage::of_pod(spec, usage::Granted::default(), false);
        let request = all.get(resource).map(Quantity::milli_value);
        let (resource, pod) = (resource.to_owned(), name.to_owned());
        return request.ok_or(CalculationError::PodRequest { resource, pod });
    }
    let sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let running = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(sidecar));
    let mut counted = running.filter(|c| container.is_none_or(|wanted| c.name == wanted)).peekable();
    if let (Some(wanted), None) = (container, counted.peek()) {
        return Err(CalculationError::NoContainer { container: wanted.to_owned(), pod: name.to_owned() });
    }
    counted.try_fold(0i64, |sum, c| {
        let request = c.resources.as_ref().and_then(|r| r.requests.as_ref()).and_then(|r| r.get(resource));
        let request = request.ok_or_else(|| CalculationError::Request {
            resource: resource.to_owned(),
            container: c.name.clone(),
            pod: name.to_owned(),
        })?;
        Ok(sum.wrapping_add(milli(request)))
    })
}

/// Resources that a pod may ask for besides its containers.
fn of_whole_pods(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

#[cfg(test)]
#[path = "calculator_tests.rs"]
mod tests;
