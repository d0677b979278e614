use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use super::*;
use shared::status::field::aggregate;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("time")
}

fn set(image: &str, spec: Value) -> Value {
    let mut v = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "set", "generation": 1},
        "spec": {"replicas": 3, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}}});
    if let (Some(s), Value::Object(e)) = (v["spec"].as_object_mut(), spec) {
        s.extend(e);
    }
    v
}

/// Returns the actions of a step where nothing fails.
fn done(step: Step, pod: &str) -> Vec<Action> {
    let about = ObjectReference::default();
    let told = |(reason, text), warning: bool| {
        if warning { Action::warning(&about, reason, text) } else { Action::normal(&about, reason, text) }
    };
    match step {
        Step::Claims { verb, missing, dying } => {
            let errors: Vec<String> = dying.iter().map(|name| format!("pvc {name} is being deleted")).collect();
            let verb = verb.filter(|_| !errors.is_empty());
            let failed = verb.map(|verb| told(verb.of_pod(pod, "web", Some(&aggregate(&errors))), true));
            missing.iter().map(Action::create).chain(failed).collect()
        }
        Step::Owners { actions, .. } => actions,
        Step::Write(action) => vec![action],
        Step::Tell(verb) => vec![told(verb.of_pod(pod, "web", None), false)],
    }
}

struct World {
    set: Value,
    revisions: Vec<Arc<ControllerRevision>>,
    several_at_once: bool,
}

impl World {
    fn new(spec: Value) -> Self {
        let mut w = Self { set: set("v1", spec), revisions: Vec::new(), several_at_once: false };
        w.learn();
        let name = w.revision().to_owned();
        w.set["status"] = json!({"replicas": 0, "currentRevision": name, "updateRevision": name});
        w
    }

    /// Store the revision the plan makes.
    fn learn(&mut self) {
        for a in self.plan(vec![]) {
            if let Action::Create { path, body } = a
                && path.ends_with("controllerrevisions")
            {
                self.revisions.push(Arc::new(serde_json::from_value(body).expect("revision")));
            }
        }
    }

    fn revision(&self) -> &str {
        object::name(&self.revisions.last().expect("revision").metadata)
    }

    fn pod(&self, at: i32, state: &str) -> Value {
        let ready = state == "ready";
        let mut v = json!({"metadata": {"name": format!("web-{at}"), "namespace": "ns", "uid": format!("u{at}"),
                "labels": {"app": "web", identity::POD_NAME: format!("web-{at}"), "controller-revision-hash": self.revision()}},
            "status": {"phase": match state { "failed" => "Failed", "pending" => "Pending", _ => "Running" },
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": "2026-01-01T00:59:00Z"}]}});
        if state == "dying" {
            v["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        v
    }

    /// A pod that has the volumes of its claims.
    fn with_volumes(&self, at: i32, state: &str) -> Value {
        let mut pod = self.pod(at, state);
        let set = serde_json::from_value(self.set.clone()).expect("set");
        pod["spec"] = json!({"volumes": identity::volumes(&set, at)});
        pod
    }

    fn plan(&self, pods: Vec<Value>) -> Vec<Action> {
        self.plan_with(pods, vec![])
    }

    /// Returns the writes and events of a plan where nothing fails.
    fn plan_with(&self, pods: Vec<Value>, claims: Vec<Value>) -> Vec<Action> {
        let plan = self.whole(pods, claims);
        let tasks = plan.tasks.into_iter().flat_map(|t| {
            // A claim that is on its way out ends the round for its pod.
            let ends = |s: &Step| matches!(s, Step::Claims { dying, .. } if !dying.is_empty());
            let last = t.steps.iter().position(ends).unwrap_or(t.steps.len());
            t.steps.into_iter().take(last + 1).flat_map(move |s| done(s, &t.pod))
        });
        let all = plan.revisions.into_iter().chain(tasks).chain(plan.status).chain(plan.bygone);
        all.chain(plan.again.map(Action::RequeueAfter)).collect()
    }

    fn whole(&self, pods: Vec<Value>, claims: Vec<Value>) -> Plan {
        let s = Snapshot {
            set: Arc::new(serde_json::from_value(self.set.clone()).expect("set")),
            pods: pods.into_iter().map(|p| Arc::new(serde_json::from_value(p).expect("pod"))).collect(),
            revisions: self.revisions.clone(),
            claims: Store::of(claims.into_iter().map(|c| serde_json::from_value(c).expect("claim"))),
            several_at_once: self.several_at_once,
        };
        plan(&s, now())
    }

    fn log(&self, pods: Vec<Value>) -> Vec<String> {
        Self::told(&self.plan(pods))
    }

    fn told(actions: &[Action]) -> Vec<String> {
        actions
            .iter()
            .filter_map(|a| match a {
                Action::Create { body, .. } => {
                    Some(format!("create {}", body["metadata"]["name"].as_str().unwrap_or("")))
                }
                Action::Delete { path, .. } => Some(format!("delete {}", path.rsplit('/').next().unwrap_or(""))),
                Action::Event { warning: true, reason, .. } => Some((*reason).to_owned()),
                Action::RequeueAfter(d) => Some(format!("again in {}s", d.as_secs())),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn ordered_start_and_stop() {
    let w = World::new(json!({}));
    let p = |list: &[(i32, &str)]| list.iter().map(|(n, s)| w.pod(*n, s)).collect::<Vec<_>>();
    let cases: Vec<(&str, Vec<Value>, Vec<&str>)> = vec![
        ("the first", p(&[]), vec!["create web-0"]),
        ("waits until it is ready", p(&[(0, "running")]), vec![]),
        ("the next", p(&[(0, "ready")]), vec!["create web-1"]),
        ("a gap is filled first", p(&[(1, "ready"), (2, "ready")]), vec!["create web-0"]),
        ("a dying pod is waited for", p(&[(0, "dying"), (1, "ready")]), vec![]),
        ("a failed pod is replaced", p(&[(0, "failed")]), vec!["delete web-0"]),
        ("all there", p(&[(0, "ready"), (1, "ready"), (2, "ready")]), vec![]),
        (
            "surplus goes from the top",
            p(&[(0, "ready"), (1, "ready"), (2, "ready"), (3, "ready"), (4, "ready")]),
            vec!["delete web-4"],
        ),
        ("one at a time", p(&[(0, "ready"), (1, "ready"), (2, "ready"), (3, "ready"), (4, "dying")]), vec![]),
    ];
    for (name, pods, want) in cases {
        assert_eq!(w.log(pods), want, "{name}");
    }
}

#[test]
fn parallel_does_all_at_once() {
    let w = World::new(json!({"podManagementPolicy": "Parallel"}));
    assert_eq!(w.log(vec![]), ["create web-0", "create web-1", "create web-2"]);
    let pods = vec![w.pod(0, "running"), w.pod(1, "ready"), w.pod(2, "ready"), w.pod(3, "running"), w.pod(4, "ready")];
    assert_eq!(w.log(pods), ["delete web-4", "delete web-3"]);
}

#[test]
fn start_ordinal_and_min_ready() {
    let w = World::new(json!({"ordinals": {"start": 5}, "replicas": 2, "minReadySeconds": 90}));
    assert_eq!(w.log(vec![]), ["create web-5"]);
    assert_eq!(w.log(vec![w.pod(5, "ready")]), ["again in 30s"]);
    assert_eq!(w.log(vec![w.pod(4, "ready")]), ["create web-5", "again in 30s"]);
}

#[test]
fn rolling_update_goes_down_to_the_partition() {
    let mut w = World::new(json!({}));
    let old: Vec<Value> = (0..3).map(|n| w.pod(n, "ready")).collect();
    let status = w.set["status"].clone();
    w.set = set("v2", json!({}));
    w.set["status"] = status;
    w.learn();
    assert_eq!(w.revisions.len(), 2);
    assert_eq!(w.log(old.clone()), ["delete web-2"]);
    assert_eq!(w.log(vec![old[0].clone(), old[1].clone()]), ["create web-2"]);
    assert_eq!(w.log(vec![old[0].clone(), old[1].clone(), w.pod(2, "running")]), Vec::<String>::new());
    assert_eq!(w.log(vec![old[0].clone(), old[1].clone(), w.pod(2, "ready")]), ["delete web-1"]);
    let mut held = w.set.clone();
    held["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = json!(2);
    let w2 = World { set: held, revisions: w.revisions.clone(), several_at_once: false };
    assert_eq!(w2.log(vec![old[0].clone(), old[1].clone(), w.pod(2, "ready")]), Vec::<String>::new());
    let refill = w2.plan(vec![w.pod(2, "ready")]);
    let Some(Action::Create { body, .. }) = refill.first() else { panic!("{refill:?}") };
    assert_eq!(body["spec"]["containers"][0]["image"], "v1", "below the partition the old template is kept");
    let mut free = w.set.clone();
    free["spec"]["updateStrategy"]["type"] = json!("OnDelete");
    assert_eq!(
        World { set: free, revisions: w.revisions.clone(), several_at_once: false }.log(old),
        Vec::<String>::new()
    );
}

#[test]
fn status_follows_the_pods() {
    let w = World::new(json!({}));
    let got = w.plan(vec![w.pod(0, "ready"), w.pod(1, "running")]);
    let Some(Action::Report { body, .. }) = got.last() else { panic!("{got:?}") };
    let r = w.revision();
    assert_eq!(
        body["status"],
        json!({"replicas": 2, "readyReplicas": 1, "availableReplicas": 1, "currentReplicas": 2, "updatedReplicas": 2,
            "currentRevision": r, "updateRevision": r, "observedGeneration": 1, "collisionCount": 0})
    );
}

#[test]
fn claims_that_go_away_are_waited_for() {
    let mut w =
        World::new(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}, {"metadata": {"name": "log"}}]}));
    let claim = |name: &str| json!({"metadata": {"name": name, "namespace": "ns"}});
    let mut dying = claim("data-web-0");
    dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let got = w.plan_with(vec![], vec![dying]);
    assert_eq!(World::told(&got), ["create log-web-0", "FailedCreate", "again in 5s"]);
    let told = got.iter().find_map(|a| match a {
        Action::Event { warning: true, message, .. } => Some(message.as_str()),
        _ => None,
    });
    assert_eq!(told, Some("create Pod web-0 in StatefulSet web failed error: pvc data-web-0 is being deleted"));

    let mut stale = claim("data-web-0");
    stale["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "before"}]);
    let all = vec![stale, claim("log-web-0")];
    assert_eq!(World::told(&w.plan_with(vec![], all.clone())), ["create web-0"], "retained claims are used again");
    w.set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Delete"});
    assert_eq!(World::told(&w.plan_with(vec![], all)), ["again in 5s"]);
}

#[test]
fn a_new_pod_tells_of_claims_in_the_hands_of_others() {
    let mut w = World::new(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}));
    let owner = json!([{"apiVersion": "acme.io/v1", "kind": "X", "name": "x", "uid": "x-1", "controller": true}]);
    let claim = json!({"metadata": {"name": "data-web-0", "namespace": "ns", "ownerReferences": owner}});
    let told = |w: &World, state: &str| World::told(&w.plan_with(vec![w.with_volumes(0, state)], vec![claim.clone()]));
    assert_eq!(World::told(&w.plan_with(vec![], vec![claim.clone()])), ["create web-0"], "where claims are retained");
    w.set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete"});
    assert_eq!(World::told(&w.plan_with(vec![], vec![claim.clone()])), ["create web-0", "ConflictingController"]);
    assert_eq!(told(&w, "pending"), ["ConflictingController"], "as long as it has not started");
    assert_eq!(told(&w, "running"), Vec::<String>::new(), "once");
}

/// Pods, batches and steps, shortly.
fn order(plan: &Plan) -> Vec<String> {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let write = |action: &Action| match action {
        Action::Create { body, .. } => format!("create {}", body["metadata"]["name"].as_str().unwrap_or_default()),
        Action::Update { path, .. } => format!("own {}", last(path)),
        Action::Patch { path, body, .. } => {
            let keys: Vec<&String> = body.as_object().into_iter().flat_map(serde_json::Map::keys).collect();
            format!("patch {keys:?} of {}", last(path))
        }
        Action::Delete { path, .. } => format!("delete {}", last(path)),
        other => format!("{other:?}"),
    };
    let step = |step: &Step| match step {
        Step::Claims { verb, missing, .. } => missing
            .iter()
            .map(|c| format!("claim {} ({})", name_of(c), verb.map_or("untold".to_owned(), |v| format!("{v:?}"))))
            .collect(),
        Step::Owners { actions, .. } => actions.iter().map(write).collect(),
        Step::Write(action) => vec![write(action)],
        Step::Tell(verb) => vec![format!("{verb:?}")],
    };
    let tasks = plan.tasks.iter();
    tasks
        .map(|t| format!("{:?} {}: {}", t.batch, t.pod, t.steps.iter().flat_map(step).collect::<Vec<_>>().join(", ")))
        .collect()
}

#[test]
fn claims_come_with_their_pods() {
    let spec = |policy: &str| {
        json!({"podManagementPolicy": policy, "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}}, {"metadata": {"name": "log"}}]})
    };
    let (ordered, parallel) = (World::new(spec("OrderedReady")), World::new(spec("Parallel")));
    let claim = |name: &str| json!({"metadata": {"name": name, "namespace": "ns"}});
    let data: Vec<Value> = (0..4).map(|at| claim(&format!("data-web-{at}"))).collect();
    let pods = |w: &World, states: &[&str]| -> Vec<Value> {
        states
            .iter()
            .zip(0..)
            .filter(|(state, _)| !state.is_empty())
            .map(|(state, at)| w.with_volumes(at, state))
            .collect()
    };
    for (name, w, states, want) in [
        (
            "made before the pod, owned behind it",
            &ordered,
            [""; 4].as_slice(),
            vec!["(0, 0) web-0: claim log-web-0 (Create), create web-0, own data-web-0, Create"],
        ),
        (
            "as long as it has not started",
            &ordered,
            &["pending", "", "", ""],
            vec!["(0, 0) web-0: claim log-web-0 (untold), own data-web-0"],
        ),
        ("not while it is not ready", &ordered, &["running", "", "", ""], vec![]),
        (
            "when its turn has come",
            &ordered,
            &["ready", "running", "", ""],
            vec!["(0, 0) web-0: own data-web-0, Update"],
        ),
        (
            "by batches that do not wait for each other",
            &parallel,
            &["running", "", "pending", ""],
            vec![
                "(0, 0) web-0: own data-web-0, Update",
                "(0, 1) web-1: claim log-web-1 (Create), create web-1, own data-web-1, Create",
                "(0, 1) web-2: claim log-web-2 (untold), own data-web-2",
            ],
        ),
        (
            "those of surplus pods before these go",
            &parallel,
            &["", "", "", "running"],
            vec![
                "(0, 0) web-0: claim log-web-0 (Create), create web-0, own data-web-0, Create",
                "(0, 1) web-1: claim log-web-1 (Create), create web-1, own data-web-1, Create",
                "(0, 1) web-2: claim log-web-2 (Create), create web-2, own data-web-2, Create",
                "(1, 0) web-3: own data-web-3",
                "(2, 0) web-3: delete web-3, Delete",
            ],
        ),
    ] {
        assert_eq!(order(&w.whole(pods(w, states), data.clone())), want, "{name}");
    }
    let bare = vec![ordered.pod(0, "ready")];
    let got = order(&ordered.whole(bare, vec![]));
    let want = "(0, 0) web-0: claim data-web-0 (Update), claim log-web-0 (Update), patch [\"spec\"] of web-0, Update";
    assert_eq!(got.first().map(String::as_str), Some(want), "a pod of another make cannot be used");
}

/// The collector takes the owner off the claims of a set that is deleted without them; with a new one they would go.
#[test]
fn a_set_on_its_way_out_takes_no_claims() {
    let mut w = World::new(json!({"replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}));
    let claim = json!({"metadata": {"name": "data-web-0", "namespace": "ns"}});
    let takes = |w: &World| {
        let actions = w.plan_with(vec![w.with_volumes(0, "ready")], vec![claim.clone()]);
        actions.iter().any(|a| matches!(a, Action::Update { .. }))
    };
    assert!(takes(&w));
    w.set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(!takes(&w));
}

#[test]
fn a_pod_without_its_name_gets_it() {
    let w = World::new(json!({"replicas": 1}));
    let mut pod = w.pod(0, "ready");
    pod["metadata"]["labels"].as_object_mut().expect("labels").remove(identity::POD_NAME);
    let got = w.plan(vec![pod]);
    let [Action::Patch { body, .. }, Action::Event { reason, message, .. }, ..] = got.as_slice() else {
        panic!("{got:?}")
    };
    assert_eq!(body["metadata"]["labels"], json!({identity::POD_NAME: "web-0", identity::POD_INDEX: "0"}));
    assert_eq!((*reason, message.as_str()), ("SuccessfulUpdate", "update Pod web-0 in StatefulSet web successful"));
}

#[test]
fn several_are_replaced_at_once_where_that_is_on() {
    let parallel = |max: Value| {
        json!({"replicas": 5, "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": max}}})
    };
    let ready = ["ready"; 5];
    let cases = [
        ("off", json!(2), false, ready, vec!["delete web-4"]),
        ("a number", json!(2), true, ready, vec!["delete web-4", "delete web-3"]),
        ("a share is rounded down", json!("50%"), true, ready, vec!["delete web-4", "delete web-3"]),
        ("but not to nothing", json!("10%"), true, ready, vec!["delete web-4"]),
        (
            "those that are down count",
            json!(2),
            true,
            ["running", "ready", "ready", "ready", "ready"],
            vec!["delete web-4"],
        ),
        ("none may go any more", json!(1), true, ["running", "ready", "ready", "ready", "ready"], vec![]),
        (
            "which off is not asked",
            json!(1),
            false,
            ["running", "ready", "ready", "ready", "ready"],
            vec!["delete web-4"],
        ),
    ];
    for (name, max, several_at_once, states, want) in cases {
        let mut w = World::new(parallel(max.clone()));
        w.several_at_once = several_at_once;
        let old = states.iter().zip(0..).map(|(state, at)| w.pod(at, state)).collect();
        let status = w.set["status"].clone();
        w.set = set("v2", parallel(max));
        w.set["status"] = status;
        w.learn();
        assert_eq!(w.log(old), want, "{name}");
    }
}

#[test]
fn a_pod_that_was_just_made_is_not_counted_yet() {
    let w = World::new(json!({}));
    let got = w.plan(vec![]);
    let reported = got.iter().find_map(|a| if let Action::Report { body, .. } = a { Some(body) } else { None });
    assert_eq!(reported.map(|b| b["status"]["replicas"].clone()), Some(json!(0)));
}

#[test]
fn a_round_is_bounded_however_many_replicas_are_asked_for() {
    for (policy, start, replicas, several_at_once, want) in [
        ("Parallel", 0, i32::MAX, false, TASKS_PER_ROUND),
        ("Parallel", i32::MAX - 3, i32::MAX, true, 3),
        ("OrderedReady", 0, i32::MAX, true, 1),
        ("OrderedReady", i32::MAX, i32::MAX, false, 0),
    ] {
        let mut w =
            World::new(json!({"replicas": replicas, "podManagementPolicy": policy, "ordinals": {"start": start},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": i32::MAX}}}));
        w.several_at_once = several_at_once;
        let plan = w.whole(vec![], vec![]);
        assert_eq!(plan.tasks.len(), want, "{policy} from {start}");
        assert_eq!(plan.again.is_some(), want == TASKS_PER_ROUND, "{policy} from {start}");
    }
}

#[test]
fn pods_that_are_missing_do_not_make_a_rollout_longer() {
    let spec = json!({"replicas": i32::MAX, "podManagementPolicy": "OrderedReady"});
    let mut w = World::new(spec.clone());
    w.several_at_once = true;
    let pods = vec![w.pod(i32::MAX, "ready"), w.pod(0, "running")];
    let status = w.set["status"].clone();
    w.set = set("v2", spec);
    w.set["status"] = status;
    w.learn();
    assert_eq!(w.log(pods), Vec::<String>::new(), "it waits for the first");
}

#[test]
fn revision_has_one_name_whether_or_not_collisions_were_told() {
    let name_with = |status: Value| {
        let mut w = World { set: set("v1", json!({})), revisions: Vec::new(), several_at_once: false };
        w.set["status"] = status;
        w.learn();
        w.revision().to_owned()
    };
    let none = name_with(json!({"replicas": 0}));
    assert_eq!(none, name_with(json!({"replicas": 0, "collisionCount": 0})));
    assert_ne!(none, name_with(json!({"replicas": 0, "collisionCount": 1})));
}
