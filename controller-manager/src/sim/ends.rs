//! Final states: random things are done in a hurry, while controllers are at work and some of it goes wrong, and then
//! the cluster is as its objects ask.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::faults::Fault;
use super::scenario::{Run, Step};

/// Random histories for each fault.
const HISTORIES: u64 = 2;
/// The longest pause between two steps, in milliseconds.
const PAUSE: u64 = 400;
/// Time for what has to be tried again.
const SOON: Duration = Duration::from_mins(4);
/// Time for what is waited for in vain, because its events were lost.
const LATE: Duration = Duration::from_mins(7);

/// Play random histories; `act` says what is done next, one thing at once after the other, and `wrong` what is not as it
/// should be at the end.
fn at_the_end(given: &[Value], act: impl Fn(&mut StdRng) -> Vec<Step>, wrong: impl Fn(&Run) -> Option<String>) {
    for (fault, seed) in Fault::ALL.into_iter().flat_map(|fault| (0..HISTORIES).map(move |seed| (fault, seed))) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let mut random = StdRng::seed_from_u64(seed);
            let mut run = Run::start(given, Vec::new(), fault).await;
            for _ in 0..6 {
                for step in act(&mut random) {
                    run.hurry(&step).await;
                }
                tokio::time::sleep(Duration::from_millis(random.random_range(0..PAUSE))).await;
                if fault == Fault::Gaps && random.random_bool(0.5) {
                    run.server.cut(true);
                }
            }
            let lost = matches!(fault, Fault::Gaps | Fault::Restarts | Fault::Failing | Fault::Away | Fault::Frozen);
            run.calm(if lost { LATE } else { SOON }).await;
            if let Some(wrong) = wrong(&run) {
                panic!("{fault:?}, seed {seed}: {wrong}");
            }
        });
    }
}

fn template(app: &str, restart: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": "i"}]}})
}

fn lives(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null()
}

/// A set that is made anew under the name of another does not wait for what that one has made.
#[test]
fn who_is_made_anew_gets_pods() {
    let labels = |app: &str| json!({"matchLabels": {"app": app}});
    let sets = [
        (
            "replicasets",
            5,
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
            "spec": {"replicas": 5, "selector": labels("web"), "template": template("web", "Always")}}),
        ),
        (
            "daemonsets",
            3,
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
            "spec": {"selector": labels("agent"), "template": template("agent", "Always")}}),
        ),
        (
            "jobs",
            3,
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"},
            "spec": {"parallelism": 3, "completions": 3, "template": template("work", "Never")}}),
        ),
    ];
    let given: Vec<Value> = sets.iter().map(|(_, _, set)| set.clone()).collect();
    at_the_end(
        &given,
        |random| {
            let (of, _, set) = &sets[random.random_range(0..sets.len())];
            vec![Step::DeleteAll { of: (*of).into(), like: Value::Null }, Step::Create(set.clone())]
        },
        |run| {
            sets.iter().find_map(|(of, want, _)| {
                let [set] = run.all(of, &Value::Null).try_into().ok()?;
                let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"];
                let pods = run.all("pods", &Value::Null).iter().filter(|pod| lives(pod) && owner(pod)).count();
                (pods != *want).then(|| format!("{pods} pods of {of}, not {want}"))
            })
        },
    );
}

/// Slices show where pods are, whoever deletes slices, and however pods come and go.
#[test]
fn slices_say_where_pods_are() {
    let web = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
        "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": template("web", "Always")}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "ports": [{"port": 80}]}});
    let texts = |values: Vec<&Value>| -> BTreeSet<String> {
        values.into_iter().filter_map(|v| Some(v.as_str()?.to_owned())).collect()
    };
    at_the_end(
        &[web, service],
        |random| {
            let size = json!({"spec": {"replicas": random.random_range(1..6)}});
            match random.random_range(0..3) {
                0 => vec![Step::DeleteAll { of: "pods".into(), like: Value::Null }],
                1 => vec![Step::Patch { of: "replicasets/web".into(), with: size }],
                _ => vec![
                    Step::Patch { of: "replicasets/web".into(), with: size },
                    Step::DeleteAll { of: "endpointslices".into(), like: Value::Null },
                ],
            }
        },
        |run| {
            let slices = run.all("endpointslices", &Value::Null);
            let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
            let told = texts(endpoints.map(|endpoint| &endpoint["addresses"][0]).collect());
            let pods = run.all("pods", &Value::Null);
            let there = texts(pods.iter().filter(|pod| lives(pod)).map(|pod| &pod["status"]["podIP"]).collect());
            (told != there).then(|| format!("{told:?} are told, and {there:?} are there"))
        },
    );
}
