use super::*;
use crate::workers::observed::Sandbox;
use serde_json::json;
use std::collections::HashMap;

#[derive(Default)]
struct Results(HashMap<(&'static str, &'static str), ProbeResult>);

impl ProbeResults for Results {
    fn liveness(&self, name: &str, _: &str) -> Option<ProbeResult> {
        self.0.iter().find(|((kind, n), _)| *kind == "live" && *n == name).map(|(_, r)| *r)
    }
    fn startup(&self, name: &str, _: &str) -> Option<ProbeResult> {
        self.0.iter().find(|((kind, n), _)| *kind == "start" && *n == name).map(|(_, r)| *r)
    }
}

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec})).expect("pod")
}

fn simple(policy: &str) -> Pod {
    pod(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}))
}

fn sandbox() -> Sandbox {
    Sandbox {
        id: "s".into(),
        ready: true,
        created_at: 1,
        attempt: 0,
        ips: vec!["10.0.0.2".into()],
        host_network: false,
        handler: String::new(),
    }
}

fn found(name: &str, state: State, exit_code: i32) -> Found {
    Found {
        id: format!("{name}-id"),
        sandbox_id: "s".into(),
        name: name.into(),
        state,
        exit_code,
        created_at: 2,
        ..Found::default()
    }
}

fn words(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .map(|step| match step {
            Step::CreateSandbox { attempt } => format!("sandbox {attempt}"),
            Step::KillPod { recreate } => format!("killpod {recreate}"),
            Step::KillContainer { name, message, grace: None, .. } => format!("kill {name}: {message}"),
            Step::KillContainer { name, message, grace: Some(grace), .. } => {
                format!("kill {name} within {grace} s: {message}")
            }
            Step::RestartAll { cause, .. } => format!("restart all for {cause}"),
            Step::Resize { names } => format!("resize {}", names.join(" ")),
            Step::StartContainer { name, kind, attempt, .. } => format!("start {kind:?} {name} {attempt}"),
        })
        .collect()
}

fn check(pod: &Pod, observed: Observed, results: &Results, expected: &[&str]) {
    assert_eq!(words(&plan(pod, &observed, results)), expected);
}

#[test]
fn containers_of_upstreams_kubelet_and_of_older_releases_are_not_started_again() {
    let container =
        Container { name: "test_container".into(), image: Some("foo/image:v1".into()), ..Container::default() };
    assert_eq!(container_hash(&container), "8e45cbd0");
    let made_by = |hash: &str| Found { hash: hash.to_owned(), ..Found::default() };
    for (hash, changed) in [("8e45cbd0", false), (&*former_hash(&container), false), ("", false), ("1", true)] {
        assert_eq!(is_changed(&container, &made_by(hash)), changed, "{hash}");
    }
    let former = Container { name: "c".into(), image: Some("i:1".into()), ..Container::default() };
    assert_eq!(former_hash(&former), "db37d70c");
}

#[test]
fn an_init_container_that_the_runtime_lost_is_ended_before_it_is_started_again() {
    let of = |policy: &str, own: serde_json::Value| {
        pod(json!({"restartPolicy": policy, "initContainers": [{"name": "i", "image": "i", "restartPolicy": own}],
            "containers": [{"name": "a", "image": "i"}]}))
    };
    let killed = "kill i: Init container is in \"unknown\" state, try killing it before restart";
    for (pod, state, expected) in [
        (of("Always", json!(null)), State::Unknown, &[killed, "start Init i 1"][..]),
        (of("Never", json!(null)), State::Unknown, &["killpod false"]),
        (of("Never", json!("Always")), State::Unknown, &[killed, "start Sidecar i 1"]),
        (of("Always", json!(null)), State::Created, &["start Init i 1"]),
    ] {
        let observed =
            Observed { sandboxes: vec![sandbox()], containers: vec![found("i", state, 0)], ..Observed::default() };
        check(&pod, observed, &Results::default(), expected);
    }
}

#[test]
fn a_new_pod_gets_a_sandbox_and_then_its_containers() {
    let none = Results::default();
    check(&simple("Always"), Observed::default(), &none, &["sandbox 0"]);
    let observed = Observed { sandboxes: vec![sandbox()], containers: vec![], ..Observed::default() };
    check(&simple("Always"), observed, &none, &["start App a 0", "start App b 0"]);
}

#[test]
fn restarts_follow_the_policy() {
    let none = Results::default();
    for (policy, code, expected) in [
        ("Always", 0, &["start App a 1"][..]),
        ("Always", 1, &["start App a 1"]),
        ("OnFailure", 0, &[]),
        ("OnFailure", 1, &["start App a 1"]),
        ("Never", 1, &[]),
    ] {
        let observed = Observed {
            sandboxes: vec![sandbox()],
            containers: vec![found("a", State::Exited, code), found("b", State::Running, 0)],
            ..Observed::default()
        };
        check(&simple(policy), observed, &none, expected);
    }
}

#[test]
fn a_finished_pod_is_torn_down_and_stays_down() {
    let none = Results::default();
    let containers = vec![found("a", State::Exited, 0), found("b", State::Exited, 0)];
    let observed = Observed { sandboxes: vec![sandbox()], containers: containers.clone(), ..Observed::default() };
    check(&simple("Never"), observed, &none, &["killpod false"]);
    let dead = Sandbox { ready: false, ..sandbox() };
    check(
        &simple("Never"),
        Observed { sandboxes: vec![dead.clone()], containers: containers.clone(), ..Observed::default() },
        &none,
        &[],
    );
    check(
        &simple("OnFailure"),
        Observed { sandboxes: vec![dead.clone()], containers: containers.clone(), ..Observed::default() },
        &none,
        &[],
    );
    check(
        &simple("Always"),
        Observed { sandboxes: vec![dead], containers, ..Observed::default() },
        &none,
        &["sandbox 1"],
    );
}

#[test]
fn a_dead_sandbox_is_replaced_after_its_containers_are_stopped() {
    let none = Results::default();
    let dead = Sandbox { ready: false, ..sandbox() };
    let observed = Observed {
        sandboxes: vec![dead.clone()],
        containers: vec![found("a", State::Running, 0)],
        ..Observed::default()
    };
    check(&simple("Always"), observed, &none, &["killpod true"]);
    let observed =
        Observed { sandboxes: vec![dead], containers: vec![found("a", State::Exited, 137)], ..Observed::default() };
    check(&simple("Always"), observed, &none, &["sandbox 1"]);
    // Two ready sandboxes, or one without an address, are not usable either.
    let observed =
        Observed { sandboxes: vec![Sandbox { ips: vec![], ..sandbox() }], containers: vec![], ..Observed::default() };
    check(&simple("Always"), observed, &none, &["killpod true"]);
}

#[test]
fn probes_and_changed_images_replace_containers() {
    let observed = || Observed {
        sandboxes: vec![sandbox()],
        containers: vec![found("a", State::Running, 0), found("b", State::Running, 0)],
        ..Observed::default()
    };
    let live = Results(HashMap::from([(("live", "a"), ProbeResult::Failure)]));
    check(&simple("Always"), observed(), &live, &["kill a: Container a failed liveness probe, will be restarted"]);
    check(&simple("Never"), observed(), &live, &["kill a: Container a failed liveness probe"]);
    let startup = Results(HashMap::from([(("start", "b"), ProbeResult::Failure)]));
    check(&simple("Always"), observed(), &startup, &["kill b: Container b failed startup probe, will be restarted"]);
    let hasty = pod(json!({"restartPolicy": "Never", "containers": [
        {"name": "a", "image": "i", "livenessProbe": {"terminationGracePeriodSeconds": 3}}, {"name": "b", "image": "i"}]}));
    check(&hasty, observed(), &live, &["kill a within 3 s: Container a failed liveness probe"]);
    let mut changed = observed();
    changed.containers[0].hash = "old".into();
    let killed = "kill a: Container a definition changed, will be restarted";
    check(&simple("Always"), changed.clone(), &Results::default(), &[killed]);
    // Also where nothing that has ended would be started again.
    check(&simple("Never"), changed, &Results::default(), &[killed, "start App a 1"]);
}

#[test]
fn init_containers_run_one_after_the_other() {
    let none = Results::default();
    let pod = pod(json!({
        "initContainers": [{"name": "i1", "image": "i"}, {"name": "i2", "image": "i"}],
        "containers": [{"name": "a", "image": "i"}], "restartPolicy": "OnFailure"}));
    let with = |containers| Observed { sandboxes: vec![sandbox()], containers, ..Observed::default() };
    check(&pod, with(vec![]), &none, &["start Init i1 0"]);
    check(&pod, with(vec![found("i1", State::Running, 0)]), &none, &[]);
    check(&pod, with(vec![found("i1", State::Exited, 2)]), &none, &["start Init i1 1"]);
    check(&pod, with(vec![found("i1", State::Exited, 0)]), &none, &["start Init i2 0"]);
    let both = vec![found("i2", State::Exited, 0), found("i1", State::Exited, 0)];
    check(&pod, with(both), &none, &["start App a 0"]);
    // The first one was collected: the second one's presence shows that it had succeeded.
    check(&pod, with(vec![found("i2", State::Exited, 0)]), &none, &["start App a 0"]);
    let mut never = pod;
    never.spec.as_mut().expect("spec").restart_policy = Some("Never".into());
    check(&never, with(vec![found("i1", State::Exited, 2)]), &none, &["killpod false"]);
}

#[test]
fn sidecars_start_first_keep_running_and_end_last() {
    let pod = pod(json!({
        "initContainers": [
            {"name": "s", "image": "i", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["x"]}}},
            {"name": "i", "image": "i"}],
        "containers": [{"name": "a", "image": "i"}], "restartPolicy": "Never"}));
    let with = |containers| Observed { sandboxes: vec![sandbox()], containers, ..Observed::default() };
    let none = Results::default();
    let up = Results(HashMap::from([(("start", "s"), ProbeResult::Success)]));
    check(&pod, with(vec![]), &none, &["start Sidecar s 0"]);
    check(&pod, with(vec![found("s", State::Running, 0)]), &none, &[]);
    check(&pod, with(vec![found("s", State::Running, 0)]), &up, &["start Init i 0"]);
    let running_init = || vec![found("i", State::Running, 0), found("s", State::Exited, 1)];
    check(&pod, with(running_init()), &up, &["start Sidecar s 1"]);
    let apps = vec![found("a", State::Running, 0), found("i", State::Exited, 0), found("s", State::Exited, 1)];
    check(&pod, with(apps), &up, &["start Sidecar s 1"]);
    let done = vec![found("a", State::Exited, 0), found("i", State::Exited, 0), found("s", State::Running, 0)];
    check(&pod, with(done), &up, &["killpod false"]);
}

#[test]
fn ephemeral_containers_start_once() {
    let none = Results::default();
    let mut pod = simple("Always");
    pod.spec.as_mut().expect("spec").ephemeral_containers =
        Some(vec![serde_json::from_value(json!({"name": "e", "image": "i"})).expect("container")]);
    let running = || vec![found("a", State::Running, 0), found("b", State::Running, 0)];
    let observed = Observed { sandboxes: vec![sandbox()], containers: running(), ..Observed::default() };
    check(&pod, observed, &none, &["start Ephemeral e 0"]);
    let mut containers = running();
    containers.push(found("e", State::Exited, 1));
    check(&pod, Observed { sandboxes: vec![sandbox()], containers, ..Observed::default() }, &none, &[]);
}

#[test]
fn running_containers_get_what_is_allocated_to_them() {
    let none = Results::default();
    let with = |name: &str, cpu: &str, policy: &str| {
        json!({"name": name, "resources": {"requests": {"cpu": cpu}},
               "resizePolicy": [{"resourceName": "cpu", "restartPolicy": policy}]})
    };
    let mut side = with("side", "2", "NotRequired");
    side["restartPolicy"] = json!("Always");
    let given = |name: &str, cpu: &str| {
        let resources = serde_json::from_value(json!({"requests": {"cpu": cpu}})).expect("resources");
        Found { given: Some(resources), ..found(name, State::Running, 0) }
    };
    let pod = pod(json!({"initContainers": [side], "containers": [with("a", "2", "NotRequired"),
        with("b", "2", "RestartContainer"), with("c", "2", "NotRequired")]}));
    for (a, b, unknown, expected) in [
        ("2", "2", false, &["resize side"][..]),
        ("1", "2", false, &["resize side a"]),
        ("1", "1", false, &["kill b: Container b resize requires restart", "resize side a"]),
        ("1", "2", true, &["resize a"]),
    ] {
        let side = if unknown { found("side", State::Running, 0) } else { given("side", "1") };
        let containers = vec![side, given("a", a), given("b", b), given("c", "2")];
        check(&pod, Observed { sandboxes: vec![sandbox()], containers, ..Observed::default() }, &none, expected);
    }
}

#[test]
fn the_end_of_one_container_restarts_all_of_the_pod() {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let pod = pod(json!({"restartPolicy": "Never", "initContainers": [{"name": "init", "image": "i"}], "containers": [
        {"name": "a", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rules},
        {"name": "b", "image": "i"}]}));
    let with = |a: Option<i32>, sandboxes: Vec<Sandbox>| {
        let ended = a.map(|code| found("a", State::Exited, code));
        let containers = ended.into_iter().chain([found("b", State::Running, 0), found("init", State::Exited, 0)]);
        Observed { sandboxes, containers: containers.collect(), ..Observed::default() }
    };
    let none = Results::default();
    check(&pod, with(Some(42), vec![sandbox()]), &none, &["restart all for a"]);
    check(&pod, with(Some(1), vec![sandbox()]), &none, &[]);
    check(&pod, with(Some(42), Vec::new()), &none, &["killpod true"]);
    // Once all are removed the pod begins anew.
    let empty = Observed { sandboxes: vec![sandbox()], containers: Vec::new(), ..Observed::default() };
    check(&pod, empty, &none, &["start Init init 0"]);
    let spec = pod.spec.as_ref().expect("a spec");
    assert!(restarts(spec, &spec.containers[0], 42) && !restarts(spec, &spec.containers[0], 1));
}
