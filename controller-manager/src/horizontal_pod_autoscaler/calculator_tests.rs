//! The formula, tolerance, missing samples and pods that are starting.

use super::*;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T01:00:00Z";

fn pod(name: &str, request: Option<&str>, status: Value) -> Arc<Pod> {
    let requests = request.map_or(json!({}), |r| json!({"cpu": r}));
    Arc::new(
        serde_json::from_value(json!({"metadata": {"name": name}, "status": status,
            "spec": {"containers": [{"name": "app", "resources": {"requests": requests}}]}}))
        .expect("pod"),
    )
}

fn running(name: &str) -> Arc<Pod> {
    pod(
        name,
        Some("1"),
        json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]}),
    )
}

fn scene(pods: &[Arc<Pod>], current: i32) -> Scene<'_> {
    Scene {
        pods,
        current,
        tolerances: Tolerances { up: 0.1, down: 0.1 },
        cpu_initialization: Duration::from_secs(300),
        initial_readiness: Duration::from_secs(30),
        now: NOW.parse().expect("time"),
    }
}

fn samples(values: &[(&str, i64)]) -> Samples {
    let at = "2026-01-01T00:59:50Z".parse().expect("time");
    values.iter().map(|(p, v)| ((*p).to_owned(), Sample { at, window: Duration::from_secs(30), value: *v })).collect()
}

#[test]
fn utilization_of_requests() {
    let pods: Vec<_> = ["a", "b", "c"].map(running).to_vec();
    for (values, replicas, percent) in [
        ([300, 500, 700], 5, 50),
        ([300, 300, 300], 3, 30),
        ([320, 320, 320], 3, 32),
        ([340, 340, 340], 4, 34),
        ([100, 100, 100], 1, 10),
    ] {
        let s = samples(&[("a", values[0]), ("b", values[1]), ("c", values[2])]);
        let p = utilization(scene(&pods, 3), s, "cpu", None, 30).expect("proposal");
        let mean = values.iter().sum::<i64>() / 3;
        assert_eq!((p.replicas, p.utilization, p.value), (replicas, Some(percent), mean), "{values:?}");
    }
}

#[test]
fn missing_samples_damp() {
    let pods: Vec<_> = ["a", "b", "c", "d"].map(running).to_vec();
    for (values, target, replicas, why) in [
        ([400, 500, 700], 100, 3, "on the way down the missing use all of their request"),
        ([300, 400, 500], 20, 6, "on the way up they use nothing"),
        ([1100, 1200, 1300], 100, 4, "never turn the direction"),
    ] {
        let s = samples(&[("a", values[0]), ("b", values[1]), ("c", values[2])]);
        assert_eq!(utilization(scene(&pods, 4), s, "cpu", None, target).expect(why).replicas, replicas, "{why}");
    }
}

#[test]
fn starting_pods_damp_growth() {
    let unready = |name: &str, phase: &str| pod(name, Some("1"), json!({"phase": phase}));
    let pods = [running("a"), unready("b", "Pending"), unready("c", "Running")];
    let s = samples(&[("a", 900), ("c", 5000)]);
    let p = utilization(scene(&pods, 3), s.clone(), "cpu", None, 30).expect("proposal");
    assert_eq!((p.replicas, p.utilization), (3, Some(90)), "b and c count as idle, and the current three suffice");
    let p = utilization(scene(&pods, 3), samples(&[("a", 100), ("c", 5000)]), "cpu", None, 30).expect("proposal");
    assert_eq!(p.replicas, 1, "on the way down they do not count");
}

#[test]
fn cpu_samples_of_the_start_do_not_count() {
    let case = |started: &str, ready: &str, changed: &str| {
        pod(
            "p",
            None,
            json!({"phase": "Running", "startTime": started,
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": changed}]}),
        )
    };
    let sample = samples(&[("p", 1)])["p"];
    for (started, ready, changed, counts) in [
        ("2026-01-01T00:00:00Z", "True", "2026-01-01T00:00:10Z", true),
        ("2026-01-01T00:00:00Z", "False", "2026-01-01T00:30:00Z", true),
        ("2026-01-01T00:00:00Z", "False", "2026-01-01T00:00:10Z", false),
        ("2026-01-01T00:57:00Z", "True", "2026-01-01T00:58:00Z", true),
        ("2026-01-01T00:57:00Z", "False", "2026-01-01T00:58:00Z", false),
        ("2026-01-01T00:57:00Z", "True", "2026-01-01T00:59:30Z", false),
    ] {
        let p = case(started, ready, changed);
        assert_eq!(settled(scene(&[], 1), &p, &sample), counts, "{started} {ready} {changed}");
    }
}

#[test]
fn what_cannot_be_computed() {
    let all = [running("a")];
    let none = utilization(scene(&[], 1), samples(&[("a", 1)]), "cpu", None, 30).unwrap_err().to_string();
    assert_eq!(none, "no pods returned by selector while calculating replica count");
    let none = utilization(scene(&all, 1), samples(&[]), "cpu", None, 30).unwrap_err().to_string();
    assert_eq!(none, "did not receive metrics for targeted pods (pods might be unready)");
    let bare = [pod("b", None, json!({"phase": "Running"}))];
    let none = utilization(scene(&bare, 1), samples(&[("b", 1)]), "memory", None, 30).unwrap_err().to_string();
    assert_eq!(none, "missing request for memory in container app of Pod b");
    let none = utilization(scene(&bare, 1), samples(&[("b", 1)]), "memory", Some("log"), 30).unwrap_err().to_string();
    assert_eq!(none, "container log not found in Pod b");
    let none = utilization(scene(&bare, 1), samples(&[]), "memory", None, 30).unwrap_err().to_string();
    assert_eq!(
        none, "did not receive metrics for targeted pods (pods might be unready)",
        "before requests are asked for"
    );
    let none = utilization(scene(&all, 1), samples(&[("older", 1)]), "cpu", None, 30).unwrap_err().to_string();
    assert_eq!(none, "no metrics returned matched known pods");
}

#[test]
fn requests_of_pods() {
    let of = |spec: Value| -> Result<i64, CalculationError> {
        let p: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("pod");
        request(&p, "cpu", None)
    };
    let c = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
    let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}});
    assert_eq!(of(json!({"containers": [c("a", "1"), c("b", "250m")]})), Ok(1250));
    assert_eq!(of(json!({"containers": [c("a", "1")], "initContainers": [sidecar, c("i", "9")]})), Ok(1050));
    assert_eq!(of(json!({"containers": [{"name": "a"}], "resources": {"requests": {"cpu": "2"}}})), Ok(2000));
    let memory = json!({"requests": {"memory": "1Gi"}});
    assert_eq!(
        of(json!({"containers": [c("a", "1"), {"name": "b"}], "resources": memory, "overhead": {"cpu": "10m"}})),
        Ok(1010)
    );
    let none = of(json!({"containers": [{"name": "b"}], "resources": memory})).unwrap_err().to_string();
    assert_eq!(none, "missing pod-level request for cpu in Pod p");
}

#[test]
fn values_per_pod() {
    let pods: Vec<_> = ["a", "b", "c"].map(running).to_vec();
    let p = per_pod(scene(&pods, 3), samples(&[("a", 20_000), ("b", 10_000), ("c", 30_000)]), "", 15_000).expect("p");
    assert_eq!((p.replicas, p.value, p.utilization), (4, 20_000, None));
    let p = per_pod(scene(&pods, 3), samples(&[("a", 1_000), ("b", 1_000)]), "", 4_000).expect("p");
    assert_eq!(p.replicas, 2, "c is taken to be at its target");
    let p = per_pod(scene(&pods, 3), samples(&[("a", 19_000), ("b", 21_000)]), "", 20_000).expect("p");
    assert_eq!(p.replicas, 3, "at the target nothing is assumed of c");
}

#[test]
fn values_of_one_object() {
    let pods: Vec<_> = ["a", "b", "c"].map(running).to_vec();
    for (current, value, target, replicas) in
        [(3, 20_000, 15_000, 4), (3, 15_500, 15_000, 3), (0, 40_000, 15_000, 3), (0, 0, 15_000, 0)]
    {
        assert_eq!(total(scene(&pods, current), value, target).expect("p").replicas, replicas, "{current} {value}");
    }
    assert_eq!(
        total(scene(&[], 3), 40_000, 15_000).unwrap_err().to_string(),
        "unable to calculate ready pods: no pods returned by selector while calculating replica count"
    );
    let t = Tolerances { up: 0.1, down: 0.1 };
    for (observed, value, replicas, each) in [(3, 40_000, 4, 13_334), (3, 30_000, 3, 10_000), (3, 32_000, 3, 10_667)] {
        let p = shared(t, observed, value, 10_000);
        assert_eq!((p.replicas, p.value), (replicas, each), "{observed} {value}");
    }
}

#[test]
fn tolerance_per_direction() {
    let t = Tolerances { up: 0.05, down: 0.5 };
    for (ratio, allowed) in [(1.0, true), (1.04, true), (1.06, false), (0.6, true), (0.4, false)] {
        assert_eq!(t.allow(ratio), allowed, "{ratio}");
    }
}

#[test]
fn shares_of_no_replicas() {
    let tolerances = Tolerances { up: 0.1, down: 0.1 };
    for (observed, value, target, replicas, each) in [
        (4, 10_001, 5_000, 3, 2_501),
        (2, 10_000, 5_000, 2, 5_000),
        (0, 10_000, 5_000, 2, i64::MIN),
        (0, 0, 5_000, 0, i64::MIN),
        (4, -10_001, 5_000, -2, -2_500),
    ] {
        for p in [shared, shared_external].map(|f| f(tolerances, observed, value, target)) {
            assert_eq!((p.replicas, p.value), (replicas, each), "{value} for {observed}");
        }
    }
}

#[test]
fn shares_at_the_bound() {
    let tolerances = Tolerances { up: 0.1, down: 0.1 };
    for p in [shared, shared_external].map(|f| f(tolerances, 9, 8_100, 1_000)) {
        assert_eq!(p.replicas, 9, "nine tenths of the target are within a tenth of it");
    }
}

#[test]
fn more_than_there_can_be() {
    const PAST: i64 = 3_000_000_000_000;
    let tolerances = Tolerances { up: 0.1, down: 0.1 };
    let of_object = shared(tolerances, 1, PAST, 1_000);
    assert_eq!((of_object.replicas, of_object.value), (i32::MIN, PAST), "of an object the least");
    let external = shared_external(tolerances, 1, PAST, 1_000);
    assert_eq!((external.replicas, external.value), (i32::MAX, PAST), "of another the most");
    assert_eq!(shared(tolerances, 1, i64::MAX, 1_000).value, i64::MIN);
    assert_eq!(shared_external(tolerances, 2, i64::MAX, 1_000).value, i64::MAX);
    let pods = [running("a"), running("b")];
    for (current, replicas) in [(2, i32::MAX), (0, i32::MIN)] {
        assert_eq!(total(scene(&pods, current), PAST, 1_000).expect("p").replicas, replicas, "from {current}");
    }
    let values = samples(&[("a", PAST), ("b", PAST)]);
    assert_eq!(per_pod(scene(&pods, 2), values, "", 1_000).expect("p").replicas, i32::MIN);
    let values = samples(&[("a", 1 << 31), ("b", 1 << 31)]);
    let p = utilization(scene(&pods, 2), values, "cpu", None, 50).expect("p");
    assert_eq!(p.utilization, Some(214_748_364));
    let values = samples(&[("a", 1 << 36), ("b", 1 << 36)]);
    let p = utilization(scene(&pods, 2), values, "cpu", None, 50).expect("p");
    assert_eq!(p.utilization, Some(-1_717_986_919), "the upper bits are lost");
}
