use super::*;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("time")
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

struct World {
    deployment: Value,
    sets: Vec<Value>,
}

impl World {
    fn new(replicas: i32, image: &str) -> Self {
        let deployment = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "d", "generation": 1},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template(image),
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                "progressDeadlineSeconds": 600, "revisionHistoryLimit": 1},
        });
        Self { deployment, sets: vec![] }
    }

    /// A set with `size` replicas of which `up` are available, made for a deployment of `desired`.
    fn set(mut self, image: &str, size: i32, up: i32, desired: i32) -> Self {
        let n = self.sets.len() + 1;
        let mut t = template(image);
        t["metadata"]["labels"][HASH_LABEL] = json!(image);
        self.sets.push(json!({
            "metadata": {"name": format!("web-{image}"), "namespace": "ns", "uid": image, "generation": 1,
                "creationTimestamp": format!("2026-01-01T00:0{n}:00Z"),
                "annotations": {annotations::REVISION: n.to_string(),
                    "deployment.kubernetes.io/desired-replicas": desired.to_string(),
                    "deployment.kubernetes.io/max-replicas": (desired + (desired + 3) / 4).to_string()}},
            "spec": {"replicas": size, "selector": {}, "template": t},
            "status": {"replicas": size, "availableReplicas": up, "readyReplicas": up, "observedGeneration": 1},
        }));
        self
    }

    fn with(mut self, pointer: &str, value: Value) -> Self {
        let (parent, key) = pointer.rsplit_once('/').expect("pointer");
        self.deployment.pointer_mut(parent).expect("parent")[key] = value;
        self
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            deployment: Arc::new(serde_json::from_value(self.deployment.clone()).expect("deployment")),
            sets: self.sets.iter().map(|v| Arc::new(serde_json::from_value(v.clone()).expect("set"))).collect(),
            pods: vec![],
            terminating: true,
        }
    }

    fn events(&self) -> Vec<String> {
        plan(&self.snapshot(), now())
            .into_iter()
            .filter_map(|a| match a {
                Action::Event { message, .. } => Some(message),
                Action::Delete { path, .. } => Some(format!("delete {}", path.rsplit('/').next().unwrap_or(""))),
                _ => None,
            })
            .collect()
    }

    fn status(&self) -> Value {
        plan(&self.snapshot(), now())
            .into_iter()
            .find_map(|a| match a {
                Action::Update { path, body } if path.ends_with("/status") => Some(body["status"].clone()),
                _ => None,
            })
            .unwrap_or(Value::Null)
    }
}

fn reason(status: &Value, kind: &str) -> String {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().find(|c| c["type"] == kind).map_or(String::new(), |c| {
        format!("{}={}", c["reason"].as_str().unwrap_or(""), c["status"].as_str().unwrap_or(""))
    })
}

#[test]
fn first_rollout_creates_the_set_at_full_size() {
    let actions = plan(&World::new(2, "v1").snapshot(), now());
    let Action::Create { path, body } = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(path, "/apis/apps/v1/namespaces/ns/replicasets");
    let hash = body["metadata"]["labels"][HASH_LABEL].as_str().expect("hash");
    assert_eq!(body["metadata"]["name"], format!("web-{hash}"));
    assert_eq!(body["spec"]["replicas"], 2);
    assert_eq!(body["spec"]["selector"]["matchLabels"], json!({"app": "web", HASH_LABEL: hash}));
    assert_eq!(
        body["metadata"]["annotations"],
        json!({"deployment.kubernetes.io/desired-replicas": "2", "deployment.kubernetes.io/max-replicas": "3",
            "deployment.kubernetes.io/revision": "1"})
    );
    assert_eq!(body["metadata"]["ownerReferences"][0]["kind"], "Deployment");
    let Action::Event { reason, message, .. } = &actions[1] else { panic!("{actions:?}") };
    assert_eq!(
        (*reason, message.as_str()),
        ("ScalingReplicaSet", format!("Scaled up replica set web-{hash} from 0 to 2").as_str())
    );
}

#[test]
fn rolling_update_steps() {
    // 4 replicas: surge 1, unavailable 1.
    let cases: Vec<(&str, World, Vec<&str>)> = vec![
        (
            "room for one more",
            World::new(4, "v2").set("v1", 4, 4, 4).set("v2", 0, 0, 4),
            vec!["Scaled up replica set web-v2 from 0 to 1"],
        ),
        (
            "old ones shrink to the floor",
            World::new(4, "v2").set("v1", 4, 4, 4).set("v2", 1, 0, 4),
            vec!["Scaled down replica set web-v1 from 4 to 3"],
        ),
        (
            "growing again before shrinking",
            World::new(4, "v2").set("v1", 3, 3, 4).set("v2", 1, 0, 4),
            vec!["Scaled up replica set web-v2 from 1 to 2"],
        ),
        ("waits for the new ones", World::new(4, "v2").set("v1", 3, 3, 4).set("v2", 2, 0, 4), vec![]),
        (
            "new ones came up",
            World::new(4, "v2").set("v1", 3, 3, 4).set("v2", 2, 2, 4),
            vec!["Scaled down replica set web-v1 from 3 to 1"],
        ),
        (
            "broken old pods go first",
            World::new(4, "v3").set("v1", 2, 0, 4).set("v2", 2, 2, 4).set("v3", 1, 1, 4),
            vec!["Scaled down replica set web-v1 from 2 to 0"],
        ),
        ("nothing left to do", World::new(4, "v2").set("v1", 0, 0, 4).set("v2", 4, 4, 4), vec![]),
    ];
    for (name, world, want) in cases {
        assert_eq!(world.events(), want, "{name}");
    }
}

#[test]
fn scaling_in_the_middle_of_a_rollout_is_proportional() {
    let w = World::new(20, "v2").set("v1", 8, 8, 10).set("v2", 5, 0, 10);
    assert_eq!(w.events(), ["Scaled up replica set web-v1 from 8 to 15", "Scaled up replica set web-v2 from 5 to 10"]);
    let w = World::new(0, "v2").set("v1", 8, 8, 10).set("v2", 5, 0, 10);
    assert_eq!(
        w.events(),
        ["Scaled down replica set web-v1 from 8 to 0", "Scaled down replica set web-v2 from 5 to 0"]
    );
    let w = World::new(5, "v1").set("v1", 3, 3, 3);
    assert_eq!(w.events(), ["Scaled up replica set web-v1 from 3 to 5"]);
}

#[test]
fn recreate_empties_the_old_before_making_the_new() {
    let recreate = |w: World| w.with("/spec/strategy", json!({"type": "Recreate"}));
    assert_eq!(
        recreate(World::new(2, "v2").set("v1", 2, 2, 2)).events(),
        ["Scaled down replica set web-v1 from 2 to 0"]
    );
    let mut draining = recreate(World::new(2, "v2").set("v1", 0, 0, 2));
    draining.sets[0]["status"]["replicas"] = json!(1);
    assert!(draining.events().is_empty(), "pods of the old set are still there");
    let gone = recreate(World::new(2, "v2").set("v1", 0, 0, 2));
    assert!(gone.events()[0].starts_with("Scaled up replica set web-"), "{:?}", gone.events());
}

#[test]
fn paused_deployments_only_scale() {
    let w = World::new(2, "v2").set("v1", 2, 2, 2).with("/spec/paused", json!(true));
    assert!(w.events().is_empty());
    assert_eq!(reason(&w.status(), "Progressing"), "DeploymentPaused=Unknown");
    let w = World::new(3, "v2").set("v1", 2, 2, 2).with("/spec/paused", json!(true));
    assert_eq!(w.events(), ["Scaled up replica set web-v1 from 2 to 3"]);
}

#[test]
fn conditions() {
    let progressing = World::new(2, "v1").set("v1", 2, 0, 2);
    let status = progressing.status();
    assert_eq!(reason(&status, "Available"), "MinimumReplicasUnavailable=False");
    assert_eq!(reason(&status, "Progressing"), "ReplicaSetUpdated=True");
    let message = status["conditions"]
        .as_array()
        .and_then(|c| c.iter().find(|c| c["type"] == "Progressing").cloned())
        .expect("condition");
    assert_eq!(message["message"], "ReplicaSet \"web-v1\" is progressing.");

    let done = World::new(2, "v1").set("v1", 2, 2, 2);
    assert_eq!(reason(&done.status(), "Progressing"), "NewReplicaSetAvailable=True");
    assert_eq!(reason(&done.status(), "Available"), "MinimumReplicasAvailable=True");

    let stuck = World::new(2, "v1").set("v1", 2, 0, 2).with(
        "/status",
        json!({"replicas": 2, "updatedReplicas": 2, "unavailableReplicas": 2, "observedGeneration": 1, "conditions": [
            {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "lastUpdateTime": "2026-01-01T00:00:00Z"}]}),
    );
    assert_eq!(reason(&stuck.status(), "Progressing"), "ProgressDeadlineExceeded=False");
}

#[test]
fn history_is_cut_and_revisions_advance() {
    let w = World::new(2, "v3")
        .set("v1", 0, 0, 2)
        .set("v2", 0, 0, 2)
        .set("v3", 2, 2, 2)
        .with("/status", json!({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "observedGeneration": 1}));
    assert_eq!(w.events(), ["delete web-v1"]);

    // Rolling back to v1 makes it revision 3 and remembers 1.
    let w = World::new(2, "v1").set("v1", 0, 0, 2).set("v2", 2, 2, 2);
    let update = plan(&w.snapshot(), now()).into_iter().find_map(|a| match a {
        Action::Update { path, body } if path.ends_with("replicasets/web-v1") => Some(body),
        _ => None,
    });
    let notes = &update.expect("update")["metadata"]["annotations"];
    assert_eq!(notes[annotations::REVISION], "3");
    assert_eq!(notes["deployment.kubernetes.io/revision-history"], "1");
}

#[test]
fn an_empty_selector_is_refused() {
    let w = World::new(1, "v1").with("/spec/selector", json!({}));
    assert_eq!(w.events(), ["This deployment is selecting all pods. A non-empty selector is required."]);
}

#[test]
fn what_could_not_be_made_is_unavailable_too() {
    let mut w = World::new(3, "v2").set("v1", 0, 0, 3).set("v2", 3, 0, 3);
    w.sets[1]["status"]["replicas"] = json!(0);
    let failure =
        |why: &str| json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": why}]);
    w.sets[0]["status"]["conditions"] = failure("old");
    w.sets[1]["status"]["conditions"] = failure("new");
    let status = w.status();
    assert_eq!((&status["replicas"], &status["unavailableReplicas"]), (&Value::Null, &json!(3)));
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let told = conditions.iter().find(|c| c["type"] == "ReplicaFailure").expect("condition");
    assert_eq!(told["message"], "new");

    let first = World::new(2, "v1").status();
    assert_eq!(first["unavailableReplicas"], 2, "the set that is just made");
}

#[test]
fn a_rollback_comes_before_the_rollout() {
    let w = World::new(2, "v2")
        .set("v1", 0, 0, 2)
        .set("v2", 1, 1, 2)
        .with("/metadata/annotations", json!({annotations::ROLLBACK_TO: "1"}));
    assert_eq!(w.events(), ["Rolled back deployment \"web\" to revision 1"]);
    let paused = w.with("/spec/paused", json!(true));
    assert_eq!(paused.events(), ["Scaled up replica set web-v2 from 1 to 2"], "not while paused");
}

#[test]
fn names_of_sets_have_room_for_their_hash() {
    for (name, wanted) in [("web".to_owned(), "web-abc".to_owned()), ("x".repeat(253), "x".repeat(249) + "-abc")] {
        assert_eq!(set_name(&name, "abc"), wanted);
    }
    assert_eq!(set_name(&"x".repeat(253), "5d4b9c6f5d").len(), LONGEST_NAME);
}

#[test]
fn terminating_pods_are_told_behind_their_gate() {
    for (terminating, want) in [(true, Some(2)), (false, None)] {
        let mut snapshot = World::new(3, "new").set("new", 3, 3, 3).snapshot();
        snapshot.terminating = terminating;
        for set in &mut snapshot.sets {
            Arc::make_mut(set).status.get_or_insert_default().terminating_replicas = Some(2);
        }
        let told = plan(&snapshot, now()).into_iter().find_map(|a| match a {
            Action::Update { path, body } if path.ends_with("/status") => Some(body["status"].clone()),
            _ => None,
        });
        assert_eq!(told.expect("a status")["terminatingReplicas"].as_i64(), want, "{terminating}");
    }
}
