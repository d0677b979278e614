//! Remembered answers against the plain way, on small random clusters with everything that plugins look at.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::framework::lister::Fixed;
use crate::framework::table::Tables;
use crate::framework::{Context, Cursor, CycleState, Failure, Nominated, Profile, ProfileConfig};
use crate::model::demand::Interner;
use crate::model::{Cache, NodeInfo, PodInfo, Selector, Snapshot};
use crate::testing::{NodeBuilder, PodBuilder, node, pod};

fn one_of<'a>(rng: &mut StdRng, list: &[&'a str]) -> &'a str {
    list[rng.random_range(0..list.len())]
}

fn random_node(rng: &mut StdRng, n: usize) -> NodeBuilder {
    let mut out = node(&format!("n{n}")).has("pods", "8").has("cpu", one_of(rng, &["4", "6"]));
    if rng.random_bool(0.9) {
        out = out.label("zone", one_of(rng, &["a", "b", "c"]));
    }
    if rng.random_bool(0.2) {
        out = out.label("topology.kubernetes.io/zone", one_of(rng, &["a", "b"]));
    }
    if rng.random_bool(0.5) {
        out = out.label("disk", one_of(rng, &["ssd", "hdd"]));
    }
    if rng.random_bool(0.15) {
        out = out.taint("t", "v", one_of(rng, &["NoSchedule", "PreferNoSchedule", "NoExecute"]));
    }
    if rng.random_bool(0.1) {
        out = out.set("/spec", "unschedulable", json!(true));
    }
    if rng.random_bool(0.4) {
        let size = rng.random_range(1..5) * 300 * 1024 * 1024_i64;
        out = out.set("/status", "images", json!([{"names": ["img:latest"], "sizeBytes": size}]));
    }
    out
}

/// One of a few dozen templates, by number.
fn template(kind: u64, name: &str) -> PodBuilder {
    let rng = &mut StdRng::seed_from_u64(kind);
    let app = one_of(rng, &["x", "y", "z"]);
    let mut p = pod(name).cpu(one_of(rng, &["100m", "500m", "1500m"])).label("app", app);
    p = p.priority(rng.random_range(0..3)).namespace(one_of(rng, &["default", "other"]));
    let selector = |rng: &mut StdRng| json!({"matchLabels": {"app": one_of(rng, &["x", "y", "z"])}});
    let key = |rng: &mut StdRng| one_of(rng, &["zone", "kubernetes.io/hostname"]).to_owned();
    if rng.random_bool(0.2) {
        p = p.set("/spec", "nodeSelector", json!({"disk": "ssd"}));
    }
    if rng.random_bool(0.2) {
        p = p.set("/spec", "tolerations", json!([{"key": "t", "operator": "Exists"}]));
    }
    if rng.random_bool(0.2) {
        let port = json!([{"containerPort": 1, "hostPort": rng.random_range(1..3)}]);
        p = p.set("/spec/containers/0", "ports", port);
    }
    if rng.random_bool(0.4) {
        let constraints: Vec<Value> = (0..rng.random_range(1..3))
            .map(|_| {
                json!({"maxSkew": rng.random_range(1..3), "topologyKey": key(rng), "labelSelector": selector(rng),
                    "whenUnsatisfiable": one_of(rng, &["DoNotSchedule", "ScheduleAnyway"]),
                    "nodeTaintsPolicy": one_of(rng, &["Honor", "Ignore"])})
            })
            .collect();
        p = p.set("/spec", "topologySpreadConstraints", json!(constraints));
    }
    let mut affinity = json!({});
    let prefer = json!([{"weight": 7, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}]);
    if rng.random_bool(0.2) {
        affinity["nodeAffinity"] = json!({"preferredDuringSchedulingIgnoredDuringExecution": prefer});
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        if rng.random_bool(0.25) {
            let mut term = json!({"labelSelector": selector(rng), "topologyKey": key(rng)});
            if rng.random_bool(0.3) {
                term["namespaceSelector"] = json!({});
            }
            affinity[field] = if rng.random_bool(0.5) {
                json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
            } else {
                let weighted = json!([{"weight": rng.random_range(1..100), "podAffinityTerm": term}]);
                json!({"preferredDuringSchedulingIgnoredDuringExecution": weighted})
            };
        }
    }
    p.set("/spec", "affinity", affinity)
}

/// Fitting nodes and their scores, asked in the plainest way there is.
fn naive(profile: &Profile, cx: Context<'_>, pod: &PodInfo) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut state = CycleState::default();
    let Ok(limit) = profile.pre_filter(cx, &mut state, pod) else { return Default::default() };
    assert!(limit.is_none());
    let filters = profile.active_filters(&state);
    let fits = |n: &&Arc<NodeInfo>| profile.filter_node(cx, &state, &filters, pod, n).is_success();
    let fitting: Vec<&Arc<NodeInfo>> = cx.snapshot.nodes().iter().filter(fits).collect();
    let nodes: Vec<&NodeInfo> = fitting.iter().map(|n| &***n).collect();
    let scores = profile.score(cx, &mut state, pod, &nodes).expect("scores");
    let best = scores.iter().copied().max();
    let name = |n: &&NodeInfo| n.name().to_string();
    let all = nodes.iter().map(name).collect();
    (all, nodes.iter().zip(&scores).filter(|(_, s)| Some(**s) == best).map(|(n, _)| name(n)).collect())
}

/// Asserts that both ways agree on a pod: whether it fits, on how many nodes, and that the node chosen is a best one;
/// and when it fits nowhere, why.
fn agree(
    profile: &Profile,
    cx: Context<'_>,
    pod: &PodInfo,
    cursor: &mut Cursor,
    rng: &mut StdRng,
    what: &str,
) -> Option<Arc<str>> {
    let (fitting, best) = naive(profile, cx, pod);
    let mut state = CycleState::default();
    match profile.schedule(cx, &mut state, pod, cursor, rng) {
        Ok(placement) => {
            let name = placement.node.name();
            if placement.evaluated != 1 {
                assert_eq!(placement.feasible, fitting.len(), "{what}");
                assert!(best.contains(&**name), "{what}: {name} is none of {best:?}");
            }
            assert!(fitting.contains(&**name), "{what}: {name} is none of {fitting:?}");
            Some(Arc::clone(name))
        }
        Err(Failure::Unfit(remembered)) => {
            assert!(fitting.is_empty(), "{what}: {remembered}, but {fitting:?} would do");
            let plain = profile.schedule_plainly(cx, &mut CycleState::default(), pod, &mut Cursor::default(), rng);
            let Err(Failure::Unfit(plain)) = plain else { panic!("{what}: the plain way found a node") };
            assert_eq!(remembered.to_string(), plain.to_string(), "{what}");
            assert_eq!(remembered.plugins, plain.plugins, "{what}");
            let filters = profile.active_filters(&state);
            let left = profile.filter_node(cx, &state, &filters, pod, &cx.snapshot.nodes()[0]);
            let said = plain.rejected.get(0).cloned().unwrap_or_default();
            assert_eq!(left, said, "{what}: notes left behind");
            None
        }
        Err(other) => panic!("{what}: {other}"),
    }
}

fn run(seed: u64, steps: usize) {
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let rng = &mut StdRng::seed_from_u64(seed);
    let (mut cache, mut snapshot, mut cursor) = (Cache::default(), Snapshot::default(), Cursor::default());
    let (mut listers, mut nominated, mut interner) = (Fixed::default(), Nominated::default(), Interner::default());
    for namespace in ["default", "other"] {
        listers.namespaces.insert(namespace.into(), [("name".to_owned(), namespace.to_owned())].into());
    }
    let mut live: Vec<Arc<str>> = Vec::new();
    for n in 0..rng.random_range(1..8) {
        cache.set_node(random_node(rng, n).base());
    }
    for step in 0..steps {
        let what = format!("seed {seed} step {step}");
        match rng.random_range(0..20) {
            0 | 1 => {
                let n = rng.random_range(0..9);
                cache.set_node(random_node(rng, n).base());
            }
            2 => cache.remove_node(&format!("n{}", rng.random_range(0..9))),
            3..=6 if !live.is_empty() => {
                let uid = live.swap_remove(rng.random_range(0..live.len()));
                nominated.remove(&uid);
                cache.remove_pod(&uid);
            }
            7 => {
                let app = one_of(rng, &["x", "y"]).to_owned();
                listers.spread = rng.random_bool(0.7).then(|| Selector::from_map(&[("app".to_owned(), app)].into()));
                listers.version += 1;
            }
            8 => {
                let p = Arc::new(template(rng.random_range(0..24), &format!("promised-{step}")).info());
                nominated.set(p, format!("n{}", rng.random_range(0..9)).into());
            }
            9 => {
                let promised: Vec<_> = nominated.all().map(|p| Arc::clone(&p.uid)).collect();
                promised.iter().for_each(|uid| drop(nominated.remove(uid)));
            }
            _ => {}
        }
        cache.refresh(&mut snapshot);
        if snapshot.nodes().is_empty() {
            continue;
        }
        let p = template(rng.random_range(0..24), &format!("p{step}"));
        let p = PodInfo::interned(&p.api(), &mut interner);
        let cx =
            Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now: jiff::Timestamp::UNIX_EPOCH };
        if let Some(node) = agree(&profile, cx, &p, &mut cursor, rng, &what) {
            let placed = Arc::new(p.placed(&node));
            live.push(Arc::clone(&placed.uid));
            assert!(cache.assume(placed));
        }
    }
    assert!(cursor.tables.rows > 0, "nothing was remembered");
}

#[test]
fn remembered_answers_are_those_of_the_plain_way() {
    for seed in 0..60 {
        run(seed, 150);
    }
}

/// Few rows may be kept at a time, whatever is asked for.
#[test]
fn tables_are_bounded() {
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let mut tables = Tables::default();
    let demands: Vec<_> = (0..5000).map(|i| Arc::new(pod("p").priority(i).info())).collect();
    for p in &demands {
        let table = tables.take(&profile, &p.demand, 10);
        tables.give(&p.demand, table.expect("small clusters get tables at once"));
    }
    assert!(tables.entries.len() <= super::MAX_DEMANDS, "{tables:?}");
    assert!(tables.take(&profile, &demands[0].demand, 1000).is_none(), "the oldest are forgotten first");
    assert!(tables.take(&profile, &demands[4999].demand, 1000).is_some());
}

/// Data that rules keep of each node count as rows: a pod may have very many constraints, or images.
#[test]
fn rules_are_in_the_budget_of_tables() {
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let layout = profile.layout.as_ref().expect("answers are remembered");
    let (listers, nominated) = (Fixed::default(), Nominated::default());
    let snapshot = Snapshot::of((0..100).map(|n| node(&format!("n{n}")).with(&[])).collect());
    let cx =
        Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now: jiff::Timestamp::UNIX_EPOCH };
    let asking = |constraints: usize| {
        let one = |n| {
            json!({"maxSkew": 1, "topologyKey": format!("k{n}"), "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "x"}}})
        };
        let all: Vec<Value> = (0..constraints).map(one).collect();
        pod("p").set("/spec", "topologySpreadConstraints", json!(all)).info()
    };
    let mut table = super::Table::default();
    assert!(table.refresh(layout, cx, &asking(20)));
    assert_eq!(table.weight(), 100 * 11);
    let mut table = super::Table::default();
    let much = super::MAX_ROWS / 100 * 2 + 2;
    assert!(!table.refresh(layout, cx, &asking(much)), "it goes the plain way");
    assert_eq!(table.weight(), 0);
}

/// Nodes come and go for ever where a cluster is scaled by load; what rules remember of them does not grow for ever.
#[test]
fn tables_forget_nodes_that_are_gone() {
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let constraint = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let asking = pod("p").label("app", "x").set("/spec", "topologySpreadConstraints", constraint).info();
    let (listers, nominated) = (Fixed::default(), Nominated::default());
    let (mut cache, mut snapshot) = (Cache::default(), Snapshot::default());
    let mut table = super::Table::default();
    let layout = profile.layout.as_ref().expect("answers are remembered");
    for n in 0..5000_u32 {
        cache.set_node(node(&format!("n{n}")).base());
        if let Some(before) = n.checked_sub(3) {
            cache.remove_node(&format!("n{before}"));
        }
        cache.refresh(&mut snapshot);
        let now = jiff::Timestamp::UNIX_EPOCH;
        let cx = Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now };
        assert!(table.refresh(layout, cx, &asking));
        assert!(snapshot.arrivals() - table.arrivals <= 6 + super::rows::SLACK, "after {n}");
    }
}
