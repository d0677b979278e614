use super::super::finalizer::{FINALIZER, abandoned, as_adopted};
use super::*;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("time")
}

fn job(spec: Value, status: Value) -> Arc<Job> {
    let mut v = json!({"metadata": {"name": "j", "namespace": "ns", "uid": "job"},
        "spec": {"parallelism": 2, "completions": 3, "backoffLimit": 1, "selector": {"matchLabels": {"j": "j"}},
            "template": {"metadata": {"labels": {"j": "j"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}},
        "status": status});
    if let (Some(s), Value::Object(e)) = (v["spec"].as_object_mut(), spec) {
        s.extend(e);
    }
    Arc::new(serde_json::from_value(v).expect("job"))
}

fn pod(uid: &str, phase: &str) -> Value {
    json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid, "labels": {"j": "j"}, "finalizers": [FINALIZER]}, "status": {"phase": phase}})
}

fn snapshot(job: Arc<Job>, pods: Vec<Value>) -> Snapshot {
    Snapshot {
        job,
        pods: pods.into_iter().map(|p| Arc::new(serde_json::from_value(p).expect("pod"))).collect(),
        released: HashSet::new(),
        settled: true,
        backoff: Duration::ZERO,
        forgets_start: false,
    }
}

fn log(d: &JobDecision) -> Vec<String> {
    d.actions
        .iter()
        .map(|a| match a {
            Action::CreatePod { pod, .. } => {
                format!("create {}", pod.metadata.generate_name.clone().unwrap_or_default())
            }
            Action::DeletePod { name, .. } => format!("delete {name}"),
            Action::Patch { path, .. } => format!("release {}", path.rsplit('/').next().unwrap_or("")),
            Action::RequeueAfter(d) => format!("again in {}s", d.as_secs()),
            other => format!("{other:?}"),
        })
        .collect()
}

fn status(d: &JobDecision) -> Value {
    serde_json::to_value(&d.status).expect("json")
}

#[test]
fn pods_are_made_up_to_parallelism_and_completions() {
    let started = json!({"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}});
    let with = |n: i32| {
        let mut s = started.clone();
        s["succeeded"] = json!(n);
        s
    };
    let cases: Vec<(&str, Arc<Job>, Vec<Value>, Vec<&str>)> = vec![
        ("the first", job(json!({}), json!({})), vec![], vec!["create j-", "create j-"]),
        ("one more", job(json!({}), started.clone()), vec![pod("a", "Running")], vec!["create j-"]),
        ("as many as are left", job(json!({}), with(2)), vec![pod("a", "Running")], vec![]),
        (
            "less parallel",
            job(json!({"parallelism": 1}), started.clone()),
            vec![pod("a", "Running"), pod("b", "Pending")],
            vec!["release b", "delete b"],
        ),
        (
            "suspended",
            job(json!({"suspend": true}), started.clone()),
            vec![pod("a", "Running")],
            vec!["release a", "delete a"],
        ),
        (
            "deadline ahead",
            job(json!({"activeDeadlineSeconds": 3700, "parallelism": 0}), started.clone()),
            vec![],
            vec!["again in 100s"],
        ),
        (
            "without a number of completions",
            job(json!({"completions": null}), with(1)),
            vec![pod("a", "Running")],
            vec![],
        ),
        ("managed by somebody else", job(json!({"managedBy": "acme.io/x"}), started), vec![], vec![]),
    ];
    for (name, job, pods, want) in cases {
        assert_eq!(log(&plan(&snapshot(job, pods), now())), want, "{name}");
    }
}

#[test]
fn every_end_is_counted_once() {
    let j = job(json!({}), json!({"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}}));
    let d = plan(&snapshot(j, vec![pod("a", "Succeeded"), pod("b", "Running")]), now());
    assert_eq!(log(&d), ["create j-"]);
    let first = status(&d);
    assert_eq!(first["uncountedTerminatedPods"], json!({"succeeded": ["a"]}));
    assert_eq!(first["succeeded"], Value::Null, "not before the list is stored");

    let d = plan(
        &snapshot(job(json!({}), first.clone()), vec![pod("a", "Succeeded"), pod("b", "Running"), pod("c", "Running")]),
        now(),
    );
    assert_eq!(log(&d), ["release a"]);

    let mut s = snapshot(job(json!({}), first), vec![pod("a", "Succeeded"), pod("b", "Running"), pod("c", "Running")]);
    s.released.insert("a".into());
    let second = status(&plan(&s, now()));
    assert_eq!((second["succeeded"].clone(), second["uncountedTerminatedPods"].clone()), (json!(1), json!({})));

    let mut s = snapshot(job(json!({}), second), vec![pod("a", "Succeeded"), pod("b", "Running"), pod("c", "Running")]);
    s.released.insert("a".into());
    assert_eq!(plan(&s, now()).status, None, "a stale cache does not count it again");
}

#[test]
fn completion_in_two_steps() {
    let all = json!({"startTime": "2026-01-01T00:00:00Z", "succeeded": 3, "uncountedTerminatedPods": {}, "ready": 0, "terminating": 0});
    let d = plan(&snapshot(job(json!({}), all), vec![]), now());
    let target = status(&d);
    assert_eq!(target["conditions"][0]["type"], "SuccessCriteriaMet");
    assert_eq!(target["conditions"].as_array().map(Vec::len), Some(1));
    let d = plan(&snapshot(job(json!({}), target), vec![]), now());
    let end = status(&d);
    assert_eq!(end["conditions"][1]["type"], "Complete");
    assert_eq!(end["conditions"][1]["message"], "Reached expected number of succeeded pods");
    assert_eq!(end["completionTime"], "2026-01-01T01:00:00Z");
    assert!(matches!(d.events.as_slice(), [Action::Event { reason: "Completed", .. }]));
    assert!(plan(&snapshot(job(json!({}), end), vec![]), now()).actions.is_empty());
}

#[test]
fn failures_beyond_the_limit_end_the_job() {
    let st = json!({"startTime": "2026-01-01T00:00:00Z", "failed": 1, "uncountedTerminatedPods": {}});
    let d = plan(&snapshot(job(json!({}), st.clone()), vec![pod("a", "Failed"), pod("b", "Running")]), now());
    assert_eq!(log(&d), ["delete b"]);
    assert_eq!(status(&d)["conditions"][0]["reason"], "BackoffLimitExceeded");
    let d = plan(&snapshot(job(json!({"activeDeadlineSeconds": 60}), st), vec![pod("b", "Running")]), now());
    assert_eq!(status(&d)["conditions"][0]["message"], "Job was active longer than specified deadline");
    let waiting = Snapshot {
        backoff: Duration::from_secs(7),
        ..snapshot(job(json!({}), json!({"startTime": "2026-01-01T00:00:00Z"})), vec![])
    };
    assert_eq!(log(&plan(&waiting, now())), ["again in 7s"]);
}

#[test]
fn indexed_jobs() {
    let spec = json!({"completionMode": "Indexed"});
    let d = plan(
        &snapshot(
            job(spec.clone(), json!({"startTime": "2026-01-01T00:00:00Z", "completedIndexes": "1", "succeeded": 1})),
            vec![],
        ),
        now(),
    );
    assert_eq!(log(&d), ["create j-0-", "create j-2-"]);
    let Some(Action::CreatePod { pod: made, .. }) = d.actions.first() else { panic!("no pod") };
    let made = serde_json::to_value(made).expect("json");
    assert_eq!(made["spec"]["hostname"], "j-0");
    assert_eq!(
        made["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["fieldPath"],
        "metadata.labels['batch.kubernetes.io/job-completion-index']"
    );
    let mut a = pod("a", "Succeeded");
    a["metadata"]["annotations"] = json!({indexes::INDEX: "0"});
    let d = plan(
        &snapshot(
            job(spec, json!({"startTime": "2026-01-01T00:00:00Z", "completedIndexes": "1", "succeeded": 1})),
            vec![a],
        ),
        now(),
    );
    assert_eq!(status(&d)["completedIndexes"], "0,1");
    assert_eq!(status(&d)["succeeded"], 2);
}

#[test]
fn suspending_and_resuming() {
    let d = plan(&snapshot(job(json!({"suspend": true}), json!({})), vec![]), now());
    let st = status(&d);
    assert_eq!(st["conditions"][0]["message"], "Job suspended");
    assert_eq!(st["startTime"], Value::Null);
    let d = plan(&snapshot(job(json!({}), st), vec![]), now());
    assert_eq!(status(&d)["conditions"][0]["status"], "False");
    assert!(matches!(d.events.as_slice(), [Action::Event { reason: "Resumed", .. }]));
}

#[test]
fn what_a_success_policy_stops_does_not_count_as_failed() {
    let spec = json!({"completionMode": "Indexed", "successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    let at = |uid: &str, phase: &str, index: i32| {
        let mut p = pod(uid, phase);
        p["metadata"]["annotations"] = json!({indexes::INDEX: index.to_string()});
        p
    };
    let j = job(spec.clone(), json!({"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}}));
    let d = plan(&snapshot(j, vec![at("a", "Succeeded", 0), at("b", "Running", 1)]), now());
    assert_eq!(log(&d), ["release b", "delete b"]);
    let st = status(&d);
    assert_eq!(st["conditions"][0]["reason"], "SuccessPolicy");

    let mut dying = at("b", "Running", 1);
    dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:30:00Z");
    let mut waits = spec;
    waits["podReplacementPolicy"] = json!("Failed");
    let d = plan(&snapshot(job(waits, st), vec![at("a", "Succeeded", 0), dying]), now());
    assert_eq!(log(&d), ["release b", "release a"], "one that was stopping before");
    assert_eq!(d.status, None, "nothing more to count");
}

#[test]
fn who_lets_a_tracked_pod_go() {
    let owned = |api: &str, kind: &str| {
        let mut p = pod("a", "Failed");
        p["metadata"]["ownerReferences"] =
            json!([{"apiVersion": api, "kind": kind, "name": "j", "uid": "job", "controller": true}]);
        p
    };
    let ours = || owned("batch/v1", "Job");
    let over = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    let theirs = json!({"managedBy": "acme.io/x"});
    for (name, pod, job, want) in [
        ("an orphan", pod("a", "Running"), None, true),
        ("its job is gone", ours(), None, true),
        ("its job is over", ours(), Some(job(json!({}), over.clone())), true),
        ("its job runs", ours(), Some(job(json!({}), json!({}))), false),
        ("its job is another controller's", ours(), Some(job(theirs, over)), false),
        ("a job of another group", owned("acme.io/v1", "Job"), None, false),
        ("of another kind", owned("apps/v1", "ReplicaSet"), None, false),
    ] {
        let pod: Pod = serde_json::from_value(pod).expect("pod");
        assert_eq!(abandoned(&pod, job.as_deref()), want, "{name}");
    }
}

#[test]
fn an_adopted_pod_is_counted() {
    let mut orphan = pod("a", "Succeeded");
    orphan["metadata"]["finalizers"] = Value::Null;
    let adopted = as_adopted(Arc::new(serde_json::from_value(orphan).expect("pod")));
    assert!(tracked(&adopted));
    let j = job(json!({}), json!({"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}}));
    let s = Snapshot { pods: vec![adopted], ..snapshot(j, vec![]) };
    assert_eq!(status(&plan(&s, now()))["uncountedTerminatedPods"], json!({"succeeded": ["a"]}));
}

#[test]
fn pods_of_a_dying_job_are_let_go_while_they_run() {
    let mut j = Job::clone(&job(json!({}), json!({"startTime": "2026-01-01T00:00:00Z"})));
    j.metadata.deletion_timestamp = Some(object::seconds(now()));
    assert_eq!(log(&plan(&snapshot(Arc::new(j), vec![pod("a", "Running")]), now())), ["release a"]);
}

#[test]
fn what_a_round_is_called_in_the_metrics() {
    let st = json!({"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}});
    let two = || vec![pod("a", "Running"), pod("b", "Running")];
    let with = |spec: Value, pods: Vec<Value>| snapshot(job(spec, st.clone()), pods);
    let failing = json!({"backoffLimit": 0, "parallelism": 1});
    for (name, s, want) in [
        ("pods are missing", with(json!({}), vec![]), Did::PodsCreated),
        ("they wait", Snapshot { backoff: Duration::from_secs(1), ..with(json!({}), vec![]) }, Did::PodsCreated),
        ("all there", with(json!({}), two()), Did::Tracking),
        ("too many", with(json!({"parallelism": 1}), two()), Did::PodsDeleted),
        ("suspended, without pods", with(json!({"suspend": true}), vec![]), Did::PodsDeleted),
        ("earlier writes are not seen yet", Snapshot { settled: false, ..with(json!({}), vec![]) }, Did::Reconciled),
        ("the end", with(failing, vec![pod("a", "Failed"), pod("b", "Running")]), Did::Reconciled),
    ] {
        assert_eq!(plan(&s, now()).did, want, "{name}");
    }
}

#[test]
fn a_suspended_job_forgets_its_start_if_told_to() {
    let st = json!({"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}});
    for (forgets, want) in [(false, json!("2026-01-01T00:00:00Z")), (true, Value::Null)] {
        let s = snapshot(job(json!({"suspend": true}), st.clone()), vec![]);
        let d = plan(&Snapshot { forgets_start: forgets, ..s }, now());
        assert_eq!(status(&d)["startTime"], want, "{forgets}");
    }
}

#[test]
fn of_surplus_pods_the_one_goes_that_became_ready_last() {
    let ready = |uid: &str, since: &str, cost: &str| {
        let mut pod = pod(uid, "Running");
        pod["spec"] = json!({"nodeName": "n"});
        pod["metadata"]["annotations"] = json!({"controller.kubernetes.io/pod-deletion-cost": cost});
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
        pod
    };
    let started = json!({"startTime": "2025-12-01T00:00:00Z", "uncountedTerminatedPods": {}});
    // Ages that a replica set would take for alike, and costs that only it heeds.
    for (first, second, goes) in
        [("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "b"), ("2026-01-01T00:00:02Z", "2026-01-01T00:00:01Z", "a")]
    {
        let pods = vec![ready("a", first, "5"), ready("b", second, "5")];
        let few = job(json!({"parallelism": 1}), started.clone());
        assert_eq!(log(&plan(&snapshot(few, pods), now())), [format!("release {goes}"), format!("delete {goes}")]);
    }
    let pods = vec![ready("a", "2026-01-01T00:00:01Z", "-9"), ready("b", "2026-01-01T00:00:02Z", "9")];
    let few = job(json!({"parallelism": 1}), started);
    assert_eq!(log(&plan(&snapshot(few, pods), now())), ["release b", "delete b"]);
}
