//! Invariants that hold at every moment: random things are done to a cluster, some of it goes wrong, and every change the
//! server stored is looked at afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::faults::Fault;
use super::scenario::{Run, Step};

/// Random histories per property.
const HISTORIES: u64 = 6;
/// Faults that keep the history whole.
const FAULTS: [Fault; 5] = [Fault::None, Fault::Conflicts, Fault::Failing, Fault::Slow, Fault::Failover];

type World = BTreeMap<(String, String, String), Value>;

/// Play a random history and look at the world after every change. `act` says what is done next; `invariant` says what
/// is wrong.
fn always(
    given: &[Value],
    rounds: usize,
    act: impl Fn(&mut StdRng) -> Step,
    invariant: impl Fn(&World, &str, &Value) -> Option<String>,
) {
    for seed in 0..HISTORIES {
        let fault = FAULTS[usize::try_from(seed).unwrap_or(0) % FAULTS.len()];
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let mut random = StdRng::seed_from_u64(seed);
            let mut run = Run::start(given, Vec::new(), fault).await;
            for _ in 0..rounds {
                run.step(&act(&mut random)).await;
                run.calm(Duration::from_secs(random.random_range(0..20))).await;
            }
            let store = run.server.store.lock();
            let mut world = World::new();
            for change in &store.changes {
                let name = super::store::name_of(&change.object);
                let at = (change.resource.1.clone(), name.0, name.1);
                if let Some(wrong) = invariant(&world, change.kind, &change.object) {
                    panic!("seed {seed}, {fault:?}, revision {}: {wrong}\n{}", change.revision, change.object);
                }
                if change.kind == "DELETED" {
                    world.remove(&at);
                } else {
                    world.insert(at, change.object.clone());
                }
            }
        });
    }
}

fn pods<'a>(world: &'a World, app: &'a str) -> impl Iterator<Item = &'a Value> {
    world.iter().filter(move |((r, _, _), o)| r == "pods" && o["metadata"]["labels"]["app"] == app).map(|(_, o)| o)
}

fn lives(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null()
        && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn ready(pod: &Value) -> bool {
    lives(pod)
        && pod["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn template(random: &mut StdRng) -> Value {
    let run = ["ready", "ready", "unready"][random.random_range(0..3)];
    let image = format!("v{}", random.random_range(0..4));
    json!({"metadata": {"labels": {"app": "web"}, "annotations": {"sim/run": run}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

#[test]
fn a_rollout_keeps_within_surge_and_unavailability() {
    let first = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "v"}]}});
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 6,
        "strategy": {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}, "selector": {"matchLabels": {"app": "web"}}, "template": first}});
    always(
        &[web],
        4,
        |random| Step::Patch { of: "deployments/web".into(), with: json!({"spec": {"template": template(random)}}) },
        |world, kind, object| {
            let born = kind == "ADDED" && object["kind"] == "Pod";
            // A creation whose answer was lost is repeated, and the surplus goes; it shows in the replica set's size.
            let asked: i64 = world
                .iter()
                .filter(|((r, _, _), _)| r == "replicasets")
                .filter_map(|(_, o)| o["spec"]["replicas"].as_i64())
                .sum();
            if asked > 8 {
                return Some(format!("{asked} replicas are asked for, which is more than 6 and 2 of surge"));
            }
            let shrinks = kind == "MODIFIED" && object["kind"] == "Pod" && !lives(object);
            let up = pods(world, "web").filter(|p| ready(p)).count();
            let was_up =
                shrinks && pods(world, "web").any(|p| p["metadata"]["uid"] == object["metadata"]["uid"] && ready(p));
            if was_up && up - 1 < 5 && up <= 5 {
                return Some(format!("a ready pod goes when only {up} of at least 5 are up"));
            }
            let _ = born;
            None
        },
    );
}

#[test]
fn a_job_never_runs_more_than_its_parallelism() {
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": {"completions": 12, "parallelism": 3,
        "completionMode": "Indexed", "backoffLimit": 100,
        "template": {"metadata": {"labels": {"app": "work"}, "annotations": {"sim/run": "fail-indexes=1,5,7"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    always(
        &[job],
        4,
        |random| match random.random_range(0..3) {
            0 => Step::DeleteAll { of: "pods".into(), like: json!({"status": {"phase": "Running"}}) },
            1 => Step::Wait(random.random_range(1..60)),
            _ => Step::Patch { of: "jobs/work".into(), with: json!({"spec": {"suspend": random.random_bool(0.3)}}) },
        },
        |world, kind, object| {
            let active = pods(world, "work").filter(|p| lives(p)).count();
            // One creation whose answer was lost may be made again.
            let born = kind == "ADDED" && object["kind"] == "Pod";
            (born && active > 3).then(|| format!("a pod is made although {active} run"))
        },
    );
}

#[test]
fn a_stateful_set_never_skips_an_ordinal() {
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"}, "spec": {"replicas": 4, "serviceName": "web",
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "v"}]}}}});
    always(
        &[set],
        5,
        |random| match random.random_range(0..3) {
            0 => Step::Patch {
                of: "statefulsets/web".into(),
                with: json!({"spec": {"replicas": random.random_range(0..6)}}),
            },
            1 => Step::DeleteAll {
                of: "pods".into(),
                like: json!({"metadata": {"name": format!("web-{}", random.random_range(0..4))}}),
            },
            _ => Step::Patch {
                of: "statefulsets/web".into(),
                with: json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": format!("v{}", random.random_range(0..3))}]}}}}),
            },
        },
        |world, kind, object| {
            if kind != "ADDED" || object["kind"] != "Pod" {
                return None;
            }
            let name = object["metadata"]["name"].as_str()?;
            let ordinal: usize = name.strip_prefix("web-")?.parse().ok()?;
            (0..ordinal).find_map(|before| {
                let there = world.get(&("pods".to_owned(), "ns".to_owned(), format!("web-{before}")));
                there.is_none().then(|| format!("{name} is made before web-{before}"))
            })
        },
    );
}

#[test]
fn what_has_a_live_owner_is_never_collected() {
    let owner = |n: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("o{n}"), "uid": format!("o{n}")}});
    let reference =
        |n: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("o{n}"), "uid": format!("o{n}")});
    let mut given: Vec<Value> = (0..5).map(owner).collect();
    for n in 0..10 {
        let owners = json!([reference(n % 5), reference((n * 3 + 1) % 5)]);
        given.push(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("s{n}"), "ownerReferences": owners}}));
    }
    always(
        &given,
        3,
        |random| Step::DeleteAll {
            of: "configmaps".into(),
            like: json!({"metadata": {"name": format!("o{}", random.random_range(0..5))}}),
        },
        |world, kind, object| {
            if kind != "DELETED" || object["kind"] != "Secret" {
                return None;
            }
            let owners = object["metadata"]["ownerReferences"].as_array()?;
            owners.iter().find_map(|o| {
                let at = ("configmaps".to_owned(), "ns".to_owned(), o["name"].as_str()?.to_owned());
                let alive = world.get(&at).is_some_and(|c| c["metadata"]["deletionTimestamp"].is_null());
                alive.then(|| format!("{} goes although {} lives", object["metadata"]["name"], o["name"]))
            })
        },
    );
}
