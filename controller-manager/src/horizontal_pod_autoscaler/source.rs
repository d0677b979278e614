//! Measurements from the three metrics APIs: metrics.k8s.io, custom.metrics.k8s.io, external.metrics.k8s.io. Answers
//! for upstream's `pkg/controller/podautoscaler/metrics` (`restMetricsClient`).
//!
//! They are served by others behind the API server. Errors read as a client of upstream's words them.

use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::Timestamp;
use proto::quantity::Quantity;
use proto::selector::{self, label::Selector};
use serde_json::Value;
use shared::client::path::{self, query_value};
use shared::flags::parse_duration;

use super::calculator::{Sample, Samples};
use super::error::{MeasureError, MetricsApi};
use super::plan::{Measured, Query, Reading};
use super::target::Targets;
use crate::engine::rest::{Rest, RestError};

/// The time a custom metric covers when it does not say.
const DEFAULT_WINDOW: Duration = Duration::from_mins(1);

/// Ask for a measurement of the pods of `namespace` that `selector` picks.
pub async fn measure(rest: &Rest, targets: &Targets, namespace: &str, selector: &str, query: &Query) -> Measured {
    match query {
        Query::Resource { resource, container } => {
            of_resource(rest, namespace, selector, resource, container.as_deref()).await
        }
        Query::Pods(metric) => of_pods(rest, targets, namespace, selector, metric).await,
        Query::Object(object, metric) => of_object(rest, targets, namespace, object, metric).await,
        Query::External(metric) => external(rest, namespace, metric).await,
    }
}

async fn of_resource(
    rest: &Rest,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Measured {
    let pods = path::collection("metrics.k8s.io/v1beta1", Some(namespace), "pods");
    let path = format!("{pods}?labelSelector={}", query_value(selector));
    let list = rest.get(&path).await.map_err(|e| refused(MetricsApi::Resource, &e, "get pods.metrics.k8s.io"))?;
    let items = items(&list).ok_or(MeasureError::Empty(MetricsApi::Resource))?;
    Ok(Reading::Samples(resource_samples(items, resource, container)))
}

fn resource_samples(items: &[Value], resource: &str, container: Option<&str>) -> Samples {
    let mut out = Samples::with_capacity(items.len());
    for item in items {
        let (name, containers) = (text(&item["metadata"]["name"]), item["containers"].as_array());
        let containers = containers.map(Vec::as_slice).unwrap_or_default();
        let used = |c: &Value| c["usage"].get(resource).map(milli);
        let value = match container {
            // A pod whose container was not measured yet is one without a sample.
            Some(wanted) => containers.iter().find(|c| c["name"] == wanted).and_then(used),
            None if containers.is_empty() => None,
            // A container without a value leaves the whole pod unknown.
            None => containers.iter().map(used).try_fold(0i64, |sum, v| v.map(|v| sum.wrapping_add(v))),
        };
        if let Some(value) = value {
            let window = item["window"].as_str().and_then(|w| parse_duration(w).ok()).unwrap_or_default();
            out.insert(name, Sample { at: time(&item["timestamp"]), window, value });
        }
    }
    out
}

/// Error of a request to an API of metrics that is described as client-go does.
fn refused(api: MetricsApi, error: &RestError, about: &str) -> MeasureError {
    MeasureError::Fetch { api, message: worded(error, about) }
}

async fn of_pods(
    rest: &Rest,
    targets: &Targets,
    namespace: &str,
    selector: &str,
    metric: &MetricIdentifier,
) -> Measured {
    let version = targets.custom_metrics(rest).await?;
    let pods = path::collection(&format!("custom.metrics.k8s.io/{version}"), Some(namespace), "pods");
    let series = path::object(&format!("{pods}/*"), &metric.name)?;
    let path = format!("{series}?labelSelector={}&{}", query_value(selector), metric_selector(metric)?);
    let about = format!("get pods.custom.metrics.k8s.io {}", '*');
    let list = rest.get(&path).await.map_err(|e| refused(MetricsApi::Custom, &e, &about))?;
    let items = items(&list).ok_or(MeasureError::Empty(MetricsApi::Custom))?;
    let samples = items.iter().map(|item| {
        let window = item["windowSeconds"].as_u64().or_else(|| item["window"].as_u64());
        let window = window.map_or(DEFAULT_WINDOW, Duration::from_secs);
        let sample = Sample { at: time(&item["timestamp"]), window, value: milli(&item["value"]) };
        (text(&item["describedObject"]["name"]), sample)
    });
    Ok(Reading::Samples(samples.collect()))
}

async fn of_object(
    rest: &Rest,
    targets: &Targets,
    namespace: &str,
    object: &CrossVersionObjectReference,
    metric: &MetricIdentifier,
) -> Measured {
    let version = targets.custom_metrics(rest).await?;
    let api_version = object.api_version.as_deref().unwrap_or_default();
    let of = |plural: &str| path::collection(&format!("custom.metrics.k8s.io/{version}"), Some(namespace), plural);
    let name = &metric.name;
    let (path, about) = if object.kind == "Namespace" && !api_version.contains('/') {
        (path::object(&of("metrics"), name)?, format!("get namespaces.custom.metrics.k8s.io {namespace}"))
    } else {
        let resource = targets.resource(rest, api_version, &object.kind).await?;
        let about = format!("get {resource}.custom.metrics.k8s.io {}", object.name);
        (path::object(&path::object(&of(&resource), &object.name)?, name)?, about)
    };
    let list = rest.get(&format!("{path}?{}", metric_selector(metric)?)).await;
    let list = list.map_err(|e| refused(MetricsApi::Custom, &e, &about))?;
    match list["items"].as_array().map(Vec::as_slice) {
        Some([one]) => Ok(Reading::Value(milli(&one["value"]))),
        Some([]) | None => Err(MeasureError::NoResult(name.clone())),
        Some(_) => Err(MeasureError::SeveralResults(name.clone())),
    }
}

async fn external(rest: &Rest, namespace: &str, metric: &MetricIdentifier) -> Measured {
    let selector = match &metric.selector {
        Some(selector) => labels(selector)?,
        // An absent selector asks for every series.
        None => String::new(),
    };
    let name = path::segment(&metric.name)?;
    let series = path::collection("external.metrics.k8s.io/v1beta1", Some(namespace), &metric.name);
    let path = format!("{series}?labelSelector={}", query_value(&selector));
    let list = rest
        .get(&path)
        .await
        .map_err(|e| refused(MetricsApi::External, &e, &format!("get {name}.external.metrics.k8s.io")))?;
    let items = items(&list).ok_or(MeasureError::Empty(MetricsApi::External))?;
    Ok(Reading::Series(items.iter().map(|item| milli(&item["value"])).collect()))
}

fn metric_selector(metric: &MetricIdentifier) -> Result<String, selector::Error> {
    let Some(selector) = &metric.selector else { return Ok(String::new()) };
    Ok(format!("metricLabelSelector={}", query_value(&labels(selector)?)))
}

fn labels(selector: &LabelSelector) -> Result<String, selector::Error> {
    let object = serde_json::to_value(selector).unwrap_or_default();
    Selector::from_object(Some(&object)).map(|s| s.to_string())
}

fn items(list: &Value) -> Option<&[Value]> {
    list["items"].as_array().map(Vec::as_slice).filter(|items| !items.is_empty())
}

fn text(v: &Value) -> String {
    v.as_str().unwrap_or_default().to_owned()
}

fn milli(v: &Value) -> i64 {
    v.as_str().and_then(|s| Quantity::parse(s).ok()).map_or(0, |q| q.milli_value())
}

fn time(v: &Value) -> Timestamp {
    v.as_str().and_then(|s| s.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Words an answer that was no Status as a client does: what the code means, and what was asked.
fn worded(e: &RestError, about: &str) -> String {
    let RestError::Api { code, reason, message, .. } = e else { return e.to_string() };
    if !reason.is_empty() && !reason.contains(' ') {
        return message.clone();
    }
    let meaning = match code {
        401 => "the server has asked for the client to provide credentials",
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        500.. => {
            return format!("an error on the server ({message:?}) has prevented the request from succeeding ({about})");
        }
        _ => "the server rejected our request for an unknown reason",
    };
    format!("{meaning} ({about})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resource_metrics() {
        let items = json!([
            {"metadata": {"name": "a", "namespace": "ns"}, "timestamp": "2026-01-01T00:00:10Z", "window": "15s",
                "containers": [{"name": "app", "usage": {"cpu": "250m"}}, {"name": "log", "usage": {"cpu": "1"}}]},
            {"metadata": {"name": "b", "namespace": "ns"}, "containers": [{"name": "app", "usage": {}}]},
            {"metadata": {"name": "c", "namespace": "ns"}, "containers": []}]);
        let items = items.as_array().expect("items");
        let whole = resource_samples(items, "cpu", None);
        assert_eq!(whole.len(), 1, "pods without a value for every container are unknown");
        let a = whole["a"];
        assert_eq!(
            (a.value, a.window, a.at.to_string()),
            (1250, Duration::from_secs(15), "2026-01-01T00:00:10Z".into())
        );
        let one = resource_samples(items, "cpu", Some("app"));
        assert_eq!((one.len(), one["a"].value), (1, 250), "as are those without that container");
    }

    #[test]
    fn words_of_answers_without_a_status() {
        let api = |code, reason: &str, message: &str| RestError::Api {
            code,
            reason: reason.into(),
            message: message.into(),
            causes: Vec::new(),
        };
        for (e, want) in [
            (
                api(404, "Failed to parse error data", "404 page not found"),
                "the server could not find the requested resource (get pods.metrics.k8s.io)",
            ),
            (
                api(503, "", "service unavailable"),
                "the server is currently unable to handle the request (get pods.metrics.k8s.io)",
            ),
            (api(403, "Forbidden", "no"), "no"),
        ] {
            assert_eq!(worded(&e, "get pods.metrics.k8s.io"), want);
        }
        assert_eq!(query_value("app in (a,b)"), "app%20in%20%28a%2Cb%29");
    }
}
