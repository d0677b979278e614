//! Whole looks: conditions, events and status as upstream writes them.

use std::collections::HashMap;
use std::time::Duration;

use super::super::calculator::Sample;
use super::super::error::MetricsApi;
use super::*;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("time")
}

fn hpa(spec: Value) -> HorizontalPodAutoscaler {
    let mut whole =
        json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 10});
    whole.as_object_mut().expect("map").extend(spec.as_object().expect("map").clone());
    serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": whole})).expect("hpa")
}

fn pods(n: usize) -> Vec<Arc<Pod>> {
    let pod = |i: usize| {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": format!("p{i}")},
            "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]}}))
            .expect("pod"),
        )
    };
    (0..n).map(pod).collect()
}

fn cpu(n: usize, each: i64) -> Option<Measured> {
    let sample = Sample { at: now(), window: Duration::from_secs(15), value: each };
    Some(Ok(Reading::Samples((0..n).map(|i| (format!("p{i}"), sample)).collect::<HashMap<_, _>>())))
}

fn look(hpa: &HorizontalPodAutoscaler, wanted: i32, readings: &[Option<Measured>], selecting: &[Key]) -> ScaleDecision {
    let n = usize::try_from(wanted).expect("count");
    let scale = Scale { wanted, observed: wanted, selector: "app=web".into() };
    let snapshot = Snapshot {
        hpa,
        spec: hpa.spec.as_ref().expect("spec"),
        scale: &scale,
        pods: &pods(n),
        selecting,
        readings,
        config: Hpa {
            sync_period: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(300),
            tolerance: 0.1,
            cpu_initialization: Duration::from_secs(300),
            initial_readiness: Duration::from_secs(30),
        },
        own_tolerance: true,
        now: now(),
        steady: SignedDuration::ZERO,
    };
    plan(&snapshot, &mut History::default())
}

fn conditions(d: &ScaleDecision) -> Vec<String> {
    d.status
        .conditions
        .iter()
        .flatten()
        .map(|c| format!("{}={} {}", c.type_, c.status, c.reason.as_deref().unwrap_or("")))
        .collect()
}

fn message<'a>(d: &'a ScaleDecision, kind: &str) -> &'a str {
    d.status.conditions.iter().flatten().find(|c| c.type_ == kind).and_then(|c| c.message.as_deref()).unwrap_or("")
}

fn cpu_target(percent: i32) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}})
}

#[test]
fn grows_by_cpu() {
    let hpa = hpa(json!({"metrics": [cpu_target(50)]}));
    let mut d = look(&hpa, 2, &[cpu(2, 900)], &[]);
    assert_eq!(d.rescale, Some((4, "cpu resource utilization (percentage of request) above target".into())));
    assert_eq!(
        conditions(&d),
        [
            "AbleToScale=True ReadyForNewScale",
            "ScalingActive=True ValidMetricFound",
            "ScalingLimited=False DesiredWithinRange"
        ]
    );
    assert_eq!(
        message(&d, ACTIVE),
        "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)"
    );
    let status = serde_json::to_value(d.status.current_metrics.as_ref().expect("metrics")).expect("json");
    assert_eq!(
        status,
        json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 90, "averageValue": "900m"}}}])
    );
    after_rescale(&mut d, &HorizontalPodAutoscalerStatus::default(), Ok(()), now());
    assert_eq!(
        d.events,
        [(
            false,
            "SuccessfulRescale",
            "New size: 4; reason: cpu resource utilization (percentage of request) above target".into()
        )]
    );
    assert_eq!(message(&d, ABLE), "the HPA controller was able to update the target scale to 4");
    assert_eq!((d.status.current_replicas, d.status.desired_replicas), (Some(2), 4));
    assert_eq!(d.status.last_scale_time, Some(seconds(now())));
}

#[test]
fn a_failed_rescale() {
    let hpa = hpa(json!({"metrics": [cpu_target(50)]}));
    let mut d = look(&hpa, 2, &[cpu(2, 900)], &[]);
    assert_eq!(d.desired, Some(4));
    after_rescale(&mut d, &HorizontalPodAutoscalerStatus::default(), Err(RestError::other("no")), now());
    assert_eq!((d.desired, d.status.current_metrics.map(|m| m.len())), (None, Some(1)), "what was measured stays");
    d.status.current_metrics = None;
    assert_eq!(d.events[0].1, "FailedRescale");
    assert_eq!(conditions(&d)[0], "AbleToScale=False FailedUpdateScale");
    assert_eq!((d.status.desired_replicas, d.status.last_scale_time.is_none()), (0, true));
}

#[test]
fn outside_of_the_bounds_nothing_is_measured() {
    for (spec, wanted, rescale) in [
        (json!({"maxReplicas": 3}), 5, Some((3, "Current number of replicas above Spec.MaxReplicas".to_owned()))),
        (json!({"minReplicas": 2}), 1, Some((2, "Current number of replicas below Spec.MinReplicas".to_owned()))),
        (json!({}), 0, None),
    ] {
        let hpa = hpa(spec);
        assert!(!asks_metrics(hpa.spec.as_ref().expect("spec"), &Scale { wanted, ..Scale::default() }));
        let d = look(&hpa, wanted, &[], &[]);
        assert_eq!(d.rescale, rescale);
        if wanted == 0 {
            assert_eq!((d.status.current_replicas, d.desired), (None, Some(0)), "as it is read back");
            assert_eq!(conditions(&d)[1], "ScalingActive=False ScalingDisabled");
        }
    }
}

#[test]
fn without_all_metrics_it_may_grow_but_not_shrink() {
    let hpa = hpa(json!({"metrics": [cpu_target(50),
        {"type": "External", "external": {"metric": {"name": "queue", "selector": {"matchLabels": {"q": "a"}}}, "target": {"type": "Value", "value": "5"}}}]}));
    let down = Some(Err(MeasureError::Fetch { api: MetricsApi::External, message: "gone".to_owned() }));
    let d = look(&hpa, 2, &[cpu(2, 900), down.clone()], &[]);
    assert_eq!(d.rescale.as_ref().map(|r| r.0), Some(4));
    assert!(d.failure.is_some(), "the next look is a retry all the same");
    let d = look(&hpa, 2, &[cpu(2, 100), down], &[]);
    assert_eq!(d.rescale, None);
    assert_eq!(conditions(&d)[1], "ScalingActive=False FailedGetExternalMetric");
    let cause = "failed to get external metric queue: unable to get external metric ns/queue/&LabelSelector{MatchLabels:map[string]string{q: a,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from external metrics API: gone";
    assert_eq!(
        d.failure,
        Some(format!(
            "invalid metrics (1 invalid out of 2), first error is: failed to get queue external metric value: {cause}"
        ))
    );
    assert_eq!(
        d.events.iter().map(|e| e.1).collect::<Vec<_>>(),
        ["FailedGetExternalMetric", "FailedComputeMetricsReplicas"]
    );
}

#[test]
fn no_metrics_server() {
    let hpa = hpa(json!({"metrics": [cpu_target(50)]}));
    let refusal = "the server could not find the requested resource (get pods.metrics.k8s.io)";
    let none = MeasureError::Fetch { api: MetricsApi::Resource, message: refusal.to_owned() };
    let d = look(&hpa, 2, &[Some(Err(none.clone()))], &[]);
    let cause = format!("failed to get cpu utilization: unable to get metrics for resource cpu: {none}");
    assert_eq!(message(&d, ACTIVE), format!("the HPA was unable to compute the replica count: {cause}"));
    assert_eq!(d.events[0], (true, "FailedGetResourceMetric", cause.clone()));
    assert_eq!(
        d.events[1],
        (
            true,
            "FailedComputeMetricsReplicas",
            format!(
                "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: {cause}"
            )
        )
    );
    assert_eq!(d.status.current_replicas, Some(2));
}

#[test]
fn pods_of_two_autoscalers() {
    let hpa = hpa(json!({"metrics": [cpu_target(50)]}));
    let d = look(&hpa, 2, &[], &[Key::new("ns", "a"), Key::new("ns", "web")]);
    let why = "pods by selector app=web are controlled by multiple HPAs: [ns/a ns/web]";
    assert_eq!(
        d.events,
        [(true, "AmbiguousSelector", why.to_owned()), (true, "FailedComputeMetricsReplicas", why.to_owned())]
    );
    assert_eq!(conditions(&d), ["AbleToScale=True SucceededGetScale", "ScalingActive=False AmbiguousSelector"]);
}

#[test]
fn object_and_pods_metrics() {
    let object = |target: Value| {
        json!({"type": "Object", "object": {"describedObject": {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "main"},
            "metric": {"name": "requests"}, "target": target}})
    };
    for (target, replicas, current) in [
        (json!({"type": "Value", "value": "10"}), 4, json!({"value": "20"})),
        (json!({"type": "AverageValue", "averageValue": "5"}), 4, json!({"averageValue": "10"})),
    ] {
        let hpa = hpa(json!({"metrics": [object(target)]}));
        let d = look(&hpa, 2, &[Some(Ok(Reading::Value(20_000)))], &[]);
        assert_eq!(d.rescale.as_ref().map(|r| r.0), Some(replicas));
        let status = serde_json::to_value(d.status.current_metrics.as_ref().expect("metrics")).expect("json");
        assert_eq!(status[0]["object"]["current"], current);
    }
    let hpa = hpa(
        json!({"metrics": [{"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "300m"}}}]}),
    );
    let d = look(&hpa, 2, &[cpu(2, 600)], &[]);
    assert_eq!(d.rescale, Some((4, "pods metric rps above target".into())));
}

#[test]
fn metrics_past_all_bounds() {
    let external = |target: Value| json!({"metrics": [{"type": "External", "external": {"metric": {"name": "lag"}, "target": target}}]});
    let values = [Some(Ok(Reading::Series(vec![2_000_000_000_000, 1_000_000_000_000])))];
    for target in [json!({"type": "Value", "value": "1"}), json!({"type": "AverageValue", "averageValue": "1"})] {
        let d = look(&hpa(external(target)), 2, &values, &[]);
        assert_eq!(d.rescale.map(|r| r.0), Some(4), "twice as many, and not the least");
    }
    let pods = json!({"metrics": [{"type": "Pods", "pods": {"metric": {"name": "rps"},
        "target": {"type": "AverageValue", "averageValue": "1"}}}]});
    let d = look(&hpa(pods), 2, &[cpu(2, 3_000_000_000_000)], &[]);
    assert_eq!(conditions(&d)[0], "AbleToScale=True ScaleDownStabilized", "less, as upstream on the same machine");
}

#[test]
fn memory_is_shown_as_a_metrics_server_shows_it() {
    let hpa = hpa(json!({"metrics": [{"type": "Resource", "resource": {"name": "memory",
        "target": {"type": "AverageValue", "averageValue": "64Mi"}}}]}));
    let d = look(&hpa, 2, &[cpu(2, 67_108_864_000)], &[]);
    let status = serde_json::to_value(d.status.current_metrics.as_ref().expect("metrics")).expect("json");
    assert_eq!(status[0]["resource"]["current"], json!({"averageValue": "64Mi"}));
}

#[test]
fn faults_of_metrics_and_of_specs() {
    for (metric, bad_spec) in [
        (json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}), false),
        (json!({"type": "CheddarCheese"}), true),
    ] {
        let d = look(&hpa(json!({"metrics": [metric]})), 2, &[cpu(2, 900)], &[]);
        assert_eq!((d.computed[0].bad_spec, d.rescale, d.desired), (bad_spec, None, None));
    }
}

#[test]
fn own_tolerance() {
    let behavior =
        json!({"scaleUp": {"tolerance": "50m", "policies": [{"type": "Pods", "value": 10, "periodSeconds": 15}]}});
    let hpa = hpa(json!({"metrics": [cpu_target(50)], "behavior": behavior}));
    assert_eq!(look(&hpa, 4, &[cpu(4, 540)], &[]).rescale.map(|r| r.0), Some(5), "0.08 is more than 0.05");
}

#[test]
fn without_a_target() {
    let d = without_scale(&hpa(json!({})), "no matches for kind \"X\" in group \"g\"", now());
    assert_eq!(conditions(&d), ["AbleToScale=False FailedGetScale"]);
    assert_eq!(
        message(&d, ABLE),
        "the HPA controller was unable to get the target's current scale: no matches for kind \"X\" in group \"g\""
    );
}
