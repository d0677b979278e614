//! One metric of an autoscaler: from its reading to a number of replicas, its status and its name in messages. Answers
//! for upstream's `computeReplicasForMetric`.

use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
    ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proto::quantity::{Format, Quantity};

use super::arithmetic::{shared_of_series, total_of_series};
use super::calculator::{self, Proposal, Samples, Scene, Tolerances, milli};
use super::error::{MeasureError, ProposalError, ResourceError};
use super::plan::{Measured, Reading, Snapshot};

/// Result of a metric.
pub(super) struct Done {
    /// Replicas.
    pub(super) replicas: i32,
    /// Name of the metric in messages.
    pub(super) name: String,
    /// Status of the metric.
    pub(super) status: MetricStatus,
}

/// Failure of a metric.
pub(super) struct Fault {
    /// Of the event and of the condition.
    pub(super) reason: &'static str,
    /// Text of the condition and the event.
    pub(super) cause: String,
    /// Text in the error of all metrics.
    pub(super) error: String,
    /// The spec has a type that there is not.
    pub(super) spec: bool,
}

/// Compute one metric.
pub(super) fn one(s: &Snapshot<'_>, spec: &MetricSpec, reading: Option<&Measured>) -> Result<Done, Fault> {
    let scene = scene(s);
    let status = |f: &dyn Fn(&mut MetricStatus)| {
        let mut status = MetricStatus { type_: spec.type_.clone(), ..MetricStatus::default() };
        f(&mut status);
        status
    };
    match spec.type_.as_str() {
        "Resource" => {
            let Some(m) = &spec.resource else { return Err(unknown("Resource")) };
            let fail = |cause: String| Fault {
                reason: "FailedGetResourceMetric",
                error: format!("failed to get {} resource metric value: {cause}", m.name),
                cause,
                spec: false,
            };
            let (p, name) = of_resource(scene, &m.name, None, &m.target, reading).map_err(|e| fail(e.to_string()))?;
            let current = resource_value(&p, &m.name);
            Ok(Done {
                replicas: p.replicas,
                name,
                status: status(&|st| {
                    st.resource = Some(ResourceMetricStatus { name: m.name.clone(), current: current.clone() });
                }),
            })
        }
        "ContainerResource" => {
            let Some(m) = &spec.container_resource else { return Err(unknown("ContainerResource")) };
            let fail = |cause: String| Fault {
                reason: "FailedGetContainerResourceMetric",
                error: format!("failed to get {} container metric value: {cause}", m.container),
                cause,
                spec: false,
            };
            let (p, name) =
                of_resource(scene, &m.name, Some(&m.container), &m.target, reading).map_err(|e| fail(e.to_string()))?;
            let current = resource_value(&p, &m.name);
            Ok(Done {
                replicas: p.replicas,
                name,
                status: status(&|st| {
                    st.container_resource = Some(ContainerResourceMetricStatus {
                        name: m.name.clone(),
                        container: m.container.clone(),
                        current: current.clone(),
                    });
                }),
            })
        }
        "Pods" => {
            let Some(m) = &spec.pods else { return Err(unknown("Pods")) };
            let fail = |cause: String| Fault {
                reason: "FailedGetPodsMetric",
                error: format!("failed to get pods metric value: {cause}"),
                cause,
                spec: false,
            };
            let missing = |e| fail(format!("unable to get metric {}: {e}", m.metric.name));
            let samples = samples(reading).map_err(missing)?;
            let target = m.target.average_value.as_ref().map_or(0, milli);
            let p = calculator::per_pod(scene, samples, "", target).map_err(|e| fail(e.to_string()))?;
            let current = average(p.value);
            Ok(Done {
                replicas: p.replicas,
                name: format!("pods metric {}", m.metric.name),
                status: status(&|st| {
                    st.pods = Some(PodsMetricStatus { metric: m.metric.clone(), current: current.clone() });
                }),
            })
        }
        "Object" => of_object(s, scene, spec, reading, &status),
        "External" => of_external(s, scene, spec, reading, &status),
        other => Err(unknown(other)),
    }
}

type MakeStatus<'a> = dyn Fn(&dyn Fn(&mut MetricStatus)) -> MetricStatus + 'a;

fn of_object(
    s: &Snapshot<'_>,
    scene: Scene<'_>,
    spec: &MetricSpec,
    reading: Option<&Measured>,
    status: &MakeStatus<'_>,
) -> Result<Done, Fault> {
    let Some(m) = &spec.object else { return Err(unknown("Object")) };
    let fail = |cause: String, error: String| Fault {
        reason: "FailedGetObjectMetric",
        error: format!("failed to get object metric value: {error}"),
        cause,
        spec: false,
    };
    let (kind, name) = (&m.described_object.kind, &m.described_object.name);
    let value = || {
        let space = s.hpa.metadata.namespace.as_deref().unwrap_or_default();
        let object = format!("{kind} on {space} {name}");
        value(reading).map_err(|source| ProposalError::Object {
            metric: m.metric.name.clone(),
            object,
            source: Box::new(source),
        })
    };
    let (p, text, current) = match m.target.type_.as_str() {
        "Value" => {
            let target = m.target.value.as_ref().map_or(0, milli);
            let p = value().and_then(|v| Ok(calculator::total(scene, v, target)?));
            let p = p.map_err(|e| fail(e.to_string(), e.to_string()))?;
            let current = MetricValueStatus { value: Some(stored(p.value)), ..MetricValueStatus::default() };
            (p, format!("{kind} metric {}", m.metric.name), current)
        }
        "AverageValue" => {
            let target = m.target.average_value.as_ref().map_or(0, milli);
            let value = value().map_err(|e| {
                let error = format!("failed to get {} object metric: {e}", m.metric.name);
                fail(e.to_string(), error)
            })?;
            let p = calculator::shared(scene.tolerances, s.scale.observed, value, target);
            let text = format!("external metric {}({})", m.metric.name, selector_text(m.metric.selector.as_ref()));
            (p, text, average(p.value))
        }
        _ => {
            let why = "invalid object metric source: neither a value target nor an average value target was set";
            return Err(fail(why.into(), why.into()));
        }
    };
    Ok(Done {
        replicas: p.replicas,
        name: text,
        status: status(&|st| {
            st.object = Some(ObjectMetricStatus {
                described_object: m.described_object.clone(),
                metric: m.metric.clone(),
                current: current.clone(),
            });
        }),
    })
}

fn of_external(
    s: &Snapshot<'_>,
    scene: Scene<'_>,
    spec: &MetricSpec,
    reading: Option<&Measured>,
    status: &MakeStatus<'_>,
) -> Result<Done, Fault> {
    let Some(m) = &spec.external else { return Err(unknown("External")) };
    let fail = |cause: String, error: String| Fault {
        reason: "FailedGetExternalMetric",
        error: format!("failed to get {} external metric value: {error}", m.metric.name),
        cause,
        spec: false,
    };
    let shown = selector_text(m.metric.selector.as_ref());
    let values = || {
        let space = s.hpa.metadata.namespace.as_deref().unwrap_or_default();
        let metric = format!("{space}/{}/{shown}", m.metric.name);
        series(reading).map_err(|source| ProposalError::External { metric, source: Box::new(source) })
    };
    let (p, current) = if let Some(target) = &m.target.average_value {
        let values = values().map_err(|e| {
            let error = format!("failed to get {} external metric: {e}", m.metric.name);
            fail(e.to_string(), error)
        })?;
        let value = shared_of_series(values);
        let p = calculator::shared_external(scene.tolerances, s.scale.observed, value, milli(target));
        (p, average(p.value))
    } else if let Some(target) = &m.target.value {
        let p = values().and_then(|v| Ok(calculator::total(scene, total_of_series(v), milli(target))?));
        let p = p.map_err(|e| {
            let error = format!("failed to get external metric {}: {e}", m.metric.name);
            fail(e.to_string(), error)
        })?;
        (p, MetricValueStatus { value: Some(stored(p.value)), ..MetricValueStatus::default() })
    } else {
        let why = "invalid external metric source: neither a value target nor an average value target was set";
        return Err(fail(why.into(), why.into()));
    };
    Ok(Done {
        replicas: p.replicas,
        name: format!("external metric {}({shown})", m.metric.name),
        status: status(&|st| {
            st.external = Some(ExternalMetricStatus { metric: m.metric.clone(), current: current.clone() });
        }),
    })
}

/// A resource of the pods or of a container in each.
fn of_resource(
    scene: Scene<'_>,
    resource: &str,
    container: Option<&str>,
    target: &MetricTarget,
    reading: Option<&Measured>,
) -> Result<(Proposal, String), ResourceError> {
    let name = || resource.to_owned();
    let samples =
        || samples(reading).map_err(|source| ProposalError::Resource { resource: name(), source: Box::new(source) });
    if let Some(target) = &target.average_value {
        let p = samples().and_then(|found| Ok(calculator::per_pod(scene, found, resource, milli(target))?));
        let p = p.map_err(|source| ResourceError::Usage { resource: name(), source })?;
        return Ok((p, format!("{resource} resource")));
    }
    let target = target.average_utilization.ok_or(ResourceError::NoTarget)?;
    let p = samples().and_then(|found| Ok(calculator::utilization(scene, found, resource, container, target)?));
    let p = p.map_err(|source| ResourceError::Utilization { resource: name(), source })?;
    let of = if container.is_some() { " container" } else { "" };
    Ok((p, format!("{resource}{of} resource utilization (percentage of request)")))
}

fn unknown(kind: &str) -> Fault {
    let why = format!("unknown metric source type {kind:?}");
    Fault { reason: "InvalidMetricSourceType", cause: why.clone(), error: why, spec: true }
}

fn samples(reading: Option<&Measured>) -> Result<Samples, MeasureError> {
    match reading {
        Some(Ok(Reading::Samples(samples))) => Ok(samples.clone()),
        Some(Err(e)) => Err(e.clone()),
        _ => Err(MeasureError::None),
    }
}

fn value(reading: Option<&Measured>) -> Result<i64, MeasureError> {
    match reading {
        Some(Ok(Reading::Value(value))) => Ok(*value),
        Some(Err(e)) => Err(e.clone()),
        _ => Err(MeasureError::None),
    }
}

fn series(reading: Option<&Measured>) -> Result<&[i64], MeasureError> {
    match reading {
        Some(Ok(Reading::Series(values))) => Ok(values),
        Some(Err(e)) => Err(e.clone()),
        _ => Err(MeasureError::None),
    }
}

fn scene<'a>(s: &Snapshot<'a>) -> Scene<'a> {
    let behavior = s.spec.behavior.as_ref().filter(|_| s.own_tolerance);
    let own = |tolerance: Option<&Stored>| {
        tolerance.and_then(|q| Quantity::parse(&q.0).ok()).map_or(s.config.tolerance, |q| q.as_f64())
    };
    Scene {
        pods: s.pods,
        current: s.scale.wanted,
        tolerances: Tolerances {
            up: own(behavior.and_then(|b| b.scale_up.as_ref()).and_then(|r| r.tolerance.as_ref())),
            down: own(behavior.and_then(|b| b.scale_down.as_ref()).and_then(|r| r.tolerance.as_ref())),
        },
        cpu_initialization: s.config.cpu_initialization,
        initial_readiness: s.config.initial_readiness,
        now: s.now,
    }
}

fn stored(milli: i64) -> Stored {
    shown(milli, Format::DecimalSI)
}

fn shown(milli: i64, format: Format) -> Stored {
    Stored(Quantity::from_milli(milli, format).canonical())
}

fn average(value: i64) -> MetricValueStatus {
    MetricValueStatus { average_value: Some(stored(value)), ..MetricValueStatus::default() }
}

/// Memory is shown as a metrics server shows it.
fn resource_value(p: &Proposal, resource: &str) -> MetricValueStatus {
    let format = if resource == "memory" { Format::BinarySI } else { Format::DecimalSI };
    let value = Some(shown(p.value, format));
    MetricValueStatus { average_utilization: p.utilization, average_value: value, value: None }
}

/// A selector as upstream's messages show it.
pub(crate) fn selector_text(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels: String = selector.match_labels.iter().flatten().map(|(k, v)| format!("{k}: {v},")).collect();
    let expressions: String = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|r| {
            let values = r.values.as_deref().unwrap_or_default().join(" ");
            format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", r.key, r.operator)
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}
