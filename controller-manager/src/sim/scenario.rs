//! A scenario: what there is, what is done, and what must be true at the end, whatever goes wrong underneath.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use proto::resources::Resource;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Deserialize;
use serde_json::{Value, json};

use super::faults::Fault;
use super::http::{Server, rows};
use super::manager::Manager;
use super::store::{Name, key};
use super::{kubelet, verbs};
use crate::engine::clock;

/// Namespace of objects that name none.
pub(super) const NAMESPACE: &str = "ns";
/// Time for everything to calm down, with retries after faults.
const CALM: Duration = Duration::from_secs(30);
const CALM_AFTER_FAULTS: Duration = Duration::from_secs(150);
/// Time for which a server is away that is not only started anew.
const AWAY: Duration = Duration::from_mins(5);

/// One scenario as it is written down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) name: String,
    /// `--controllers`; all by default.
    #[serde(default)]
    pub(super) controllers: Option<String>,
    /// Other flags.
    #[serde(default)]
    pub(super) flags: Vec<String>,
    /// Objects from before the controllers started.
    #[serde(default)]
    pub(super) given: Vec<Value>,
    #[serde(default)]
    pub(super) steps: Vec<Step>,
    pub(super) expect: Vec<Check>,
    /// Faults under which the outcome is another by design, each with the reason.
    #[serde(default)]
    pub(super) except: std::collections::BTreeMap<String, String>,
}

/// Something that is done; after each step everything calms down.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Step {
    Create(Value),
    Patch {
        of: String,
        with: Value,
    },
    Status {
        of: String,
        with: Value,
    },
    Delete {
        of: String,
        #[serde(default)]
        propagation: Option<String>,
        #[serde(default)]
        grace: Option<u64>,
    },
    /// Delete everything of a resource that looks like this.
    DeleteAll {
        of: String,
        #[serde(default)]
        like: Value,
    },
    /// Merge into everything of a resource that looks like this.
    PatchAll {
        of: String,
        #[serde(default)]
        like: Value,
        with: Value,
    },
    /// Seconds.
    Wait(u64),
    /// Everybody's clock is set ahead by so many seconds, or back.
    SetAhead(i64),
    /// Refuse the creation of a resource with this message, or another write (`PATCH pods`); an empty one ends it.
    Refuse {
        of: String,
        message: String,
    },
    /// Answer of a metrics server at a path of custom or external metrics.
    Measure {
        at: String,
        items: Value,
    },
    /// A check in the middle.
    Check(Vec<Check>),
}

/// Something that must be true.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Check {
    See {
        of: String,
        has: Value,
    },
    Count {
        of: String,
        #[serde(default)]
        like: Value,
        is: usize,
    },
    Gone(String),
    /// An event of this reason, whose message contains `says`; exactly `times` where nothing goes wrong, at least one
    /// where writes do not fail.
    Event {
        reason: String,
        #[serde(default)]
        says: String,
        #[serde(default)]
        times: Option<usize>,
    },
    NoEvent {
        reason: String,
    },
}

/// Rows and names from `plural/name`, `plural` or `namespace:plural/name`.
fn resolve(text: &str) -> (&'static Resource, Name) {
    let (namespace, rest) = text.split_once(':').unwrap_or((NAMESPACE, text));
    let (plural, name) = rest.split_once('/').unwrap_or((rest, ""));
    let row = rows().find(|r| r.plural == plural && r.is_stored()).unwrap_or_else(|| panic!("no {plural}"));
    let namespace = if row.namespaced { namespace } else { "" };
    (row, (namespace.to_owned(), name.to_owned()))
}

fn row_of(object: &Value) -> &'static Resource {
    let (api, kind) = (object["apiVersion"].as_str().unwrap_or("v1"), object["kind"].as_str().unwrap_or_default());
    let (group, version) = api.split_once('/').unwrap_or(("", api));
    let same = |r: &&Resource| r.kind == kind && r.group == group && r.version == version;
    rows().find(same).unwrap_or_else(|| panic!("no {api} {kind}"))
}

/// Reports whether `actual` has all that `wanted` has. `null` wants nothing there; an object against a list of
/// conditions looks at each by its type, as `Status/Reason` or as an object.
pub(super) fn has(actual: &Value, wanted: &Value) -> bool {
    match (actual, wanted) {
        (a, Value::Null) => a.is_null(),
        (Value::Array(list), Value::Object(by_type)) => by_type.iter().all(|(kind, wanted)| {
            let found = list.iter().find(|c| c["type"] == kind.as_str());
            match (found, wanted) {
                (None, w) => w.is_null(),
                (Some(c), Value::String(text)) => {
                    let (status, reason) = text.split_once('/').unwrap_or((text, ""));
                    c["status"] == status && (reason.is_empty() || c["reason"] == reason)
                }
                (Some(c), w) => has(c, w),
            }
        }),
        (Value::Array(a), Value::Array(w)) => a.len() == w.len() && a.iter().zip(w).all(|(a, w)| has(a, w)),
        (Value::Object(a), Value::Object(w)) => w.iter().all(|(k, w)| has(a.get(k).unwrap_or(&Value::Null), w)),
        (a, Value::Object(w)) if a.is_null() => w.values().all(Value::is_null),
        (a, w) => a == w,
    }
}

/// A scenario under way.
pub(super) struct Run {
    pub(super) server: Arc<Server>,
    manager: Manager,
    fault: Fault,
    flags: Vec<String>,
    random: StdRng,
    /// Steps and checks in the middle that failed.
    wrong: Vec<String>,
}

impl Run {
    /// A cluster with these objects, and its controllers.
    pub(super) async fn start(given: &[Value], flags: Vec<String>, fault: Fault) -> Self {
        Self::start_seeded(given, flags, fault, 0).await
    }

    /// Starts a cluster with what a seed makes of the fault.
    pub(super) async fn start_seeded(given: &[Value], flags: Vec<String>, fault: Fault, seed: u64) -> Self {
        clock::start_at(dawn());
        let server = Server::seeded(fault, seed);
        for name in ["default", "kube-system", "kube-public", "kube-node-lease", NAMESPACE] {
            make(&server, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        }
        let given: Vec<Value> = given.iter().cloned().map(written).collect();
        if !given.iter().any(|o| o["kind"] == "Node") {
            for name in ["node-1", "node-2", "node-3"] {
                make(&server, node(name));
            }
        }
        for object in given {
            make(&server, object);
        }
        tokio::spawn(kubelet::run(Arc::clone(&server)));
        let manager = Manager::start(&server, &flags).await;
        let mut run = Self { server, manager, fault, flags, random: StdRng::seed_from_u64(seed), wrong: Vec::new() };
        // The garbage collector waits for half a minute for what cannot be listed.
        run.calm(if fault == Fault::Unlistable { CALM_AFTER_FAULTS } else { CALM }).await;
        run
    }

    /// Let time pass, with the faults that come by the clock.
    pub(super) async fn calm(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        match self.fault {
            Fault::Gaps => {
                for pause in [1, 2, 4, 7] {
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                    self.server.cut(true);
                }
            }
            Fault::Restarts => {
                for pause in [1, 3, 6] {
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                    self.server.set_down(true);
                    tokio::time::sleep(Duration::from_secs(3)).await;
                    self.server.set_down(false);
                }
            }
            Fault::Failover => {
                for pause in [1, 5] {
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                    self.manager.kill();
                    self.manager = Manager::start(&self.server, &self.flags).await;
                }
            }
            Fault::Away => {
                tokio::time::sleep(self.moment(8000)).await;
                self.server.set_down(true);
                tokio::time::sleep(AWAY).await;
                self.server.set_down(false);
                tokio::time::sleep(CALM_AFTER_FAULTS).await;
            }
            Fault::Frozen => {
                tokio::time::sleep(self.moment(4000)).await;
                // Nobody else leads before the lease of one that is frozen has ended.
                self.manager.freeze();
                let next = Manager::start(&self.server, &self.flags).await;
                let frozen = std::mem::replace(&mut self.manager, next);
                tokio::time::sleep(self.moment(20_000)).await;
                frozen.thaw();
            }
            _ => {}
        }
        tokio::time::sleep_until(end).await;
    }

    /// Some time, up to so many milliseconds.
    fn moment(&mut self, longest: u64) -> Duration {
        Duration::from_millis(self.random.random_range(0..longest))
    }

    pub(super) async fn step(&mut self, step: &Step) {
        if self.hurry(step).await {
            self.calm(if self.fault == Fault::None { CALM } else { CALM_AFTER_FAULTS }).await;
        }
    }

    /// A step alone; whether it did anything that has to calm down.
    pub(super) async fn hurry(&mut self, step: &Step) -> bool {
        match step {
            Step::Create(object) => make(&self.server, object.clone()),
            Step::Patch { of, with } => self.patch(of, "", with),
            Step::Status { of, with } => self.patch(of, "status", with),
            Step::Delete { of, propagation, grace } => {
                let (row, name) = resolve(of);
                let mut options = json!({"propagationPolicy": propagation});
                if let Some(grace) = grace {
                    options["gracePeriodSeconds"] = json!(grace);
                }
                let done = verbs::delete(&mut self.server.store.lock(), row, &name, &options);
                self.wrong.extend(done.err().map(|e| format!("{of}: {e:?}")));
            }
            Step::DeleteAll { of, like } => {
                for object in self.all(of, like) {
                    let name = super::store::name_of(&object);
                    // One may be going already.
                    let _ = verbs::delete(&mut self.server.store.lock(), resolve(of).0, &name, &json!({}));
                }
            }
            Step::PatchAll { of, like, with } => {
                for object in self.all(of, like) {
                    let (row, name) = (resolve(of).0, super::store::name_of(&object));
                    let merge = "application/merge-patch+json";
                    verbs::patch(&mut self.server.store.lock(), row, &name, "", merge, with.clone()).expect("patched");
                }
            }
            Step::SetAhead(seconds) => clock::set_ahead(*seconds),
            Step::Wait(seconds) => tokio::time::sleep(Duration::from_secs(*seconds)).await,
            Step::Refuse { of, message } => {
                let entry = (!message.is_empty()).then(|| (of.clone(), message.clone()));
                *self.server.refusing.lock() = entry;
                return false;
            }
            Step::Measure { at, items } => {
                self.server.measured.lock().insert(at.clone(), items.clone());
                return false;
            }
            Step::Check(checks) => {
                let failed = checks.iter().filter_map(|c| self.check(c));
                let failed: Vec<String> = failed.map(|why| format!("in the middle: {why}")).collect();
                self.wrong.extend(failed);
                return false;
            }
        }
        true
    }

    fn patch(&mut self, of: &str, sub: &str, with: &Value) {
        let (row, name) = resolve(of);
        let kind = "application/merge-patch+json";
        let done = verbs::patch(&mut self.server.store.lock(), row, &name, sub, kind, with.clone());
        self.wrong.extend(done.err().map(|e| format!("{of}: {e:?}")));
    }

    /// Everything of a resource that looks like this.
    pub(super) fn all(&self, of: &str, like: &Value) -> Vec<Value> {
        let (row, (namespace, _)) = resolve(of);
        let mut found = self.server.store.lock().list(&key(row), &namespace);
        found.retain(|o| like.is_null() || has(o, like));
        found
    }

    /// Returns why a check fails.
    pub(super) fn check(&self, check: &Check) -> Option<String> {
        match check {
            Check::See { of, has: wanted } => {
                let (row, name) = resolve(of);
                let store = self.server.store.lock();
                match store.get(&key(row), &name) {
                    None => Some(format!("{of} is not there")),
                    Some(o) if has(o, wanted) => None,
                    Some(o) => Some(format!("{of} has not {wanted}\n  but {o}")),
                }
            }
            Check::Count { of, like, is } => {
                let found = self.all(of, like);
                let brief = |o: &Value| {
                    format!("{} {} {}", o["metadata"]["name"], o["metadata"]["deletionTimestamp"], o["status"]["phase"])
                };
                let list: Vec<String> = found.iter().map(brief).collect();
                (found.len() != *is).then(|| format!("{} {of} like {like}, not {is}: {list:?}", found.len()))
            }
            Check::Gone(of) => {
                let (row, name) = resolve(of);
                let store = self.server.store.lock();
                store.get(&key(row), &name).map(|o| format!("{of} is still there: {}", o["metadata"]))
            }
            Check::Event { reason, says, times } => {
                let n = self.events(reason, says);
                let wrong = match (self.fault, times) {
                    (Fault::None, Some(times)) => n != *times,
                    // An event that the server refuses is not sent again, and one that nobody takes is given up after two
                    // minutes, as upstream.
                    (Fault::Failing | Fault::Away, _) => false,
                    _ => n == 0,
                };
                wrong.then(|| format!("{n} events {reason} {says:?}, not {times:?}: {:?}", self.event_texts()))
            }
            Check::NoEvent { reason } => {
                let n = self.events(reason, "");
                (n > 0).then(|| format!("{n} events {reason}: {:?}", self.event_texts()))
            }
        }
    }

    fn events(&self, reason: &str, says: &str) -> usize {
        let all = self.server.store.lock().list(&(String::new(), "events".into()), "");
        let fits = |e: &&Value| e["reason"] == reason && e["message"].as_str().is_some_and(|m| m.contains(says));
        all.iter().filter(fits).map(|e| usize::try_from(e["count"].as_u64().unwrap_or(1)).unwrap_or(1)).sum()
    }

    fn event_texts(&self) -> Vec<String> {
        let all = self.server.store.lock().list(&(String::new(), "events".into()), "");
        all.iter().map(|e| format!("{} {} x{}", e["reason"], e["message"], e["count"])).collect()
    }
}

/// An object, or one made `from` another by merging something `with` it.
fn written(object: Value) -> Value {
    let Value::Object(map) = &object else { return object };
    let (Some(from), Some(with)) = (map.get("from"), map.get("with")) else { return object };
    let mut made = written(from.clone());
    proto::merge::merge_patch::apply(&mut made, with.clone());
    made
}

fn make(server: &Server, object: Value) {
    let object = written(object);
    let row = row_of(&object);
    let status = object["status"].clone();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE).to_owned();
    let namespace = if row.namespaced { namespace } else { String::new() };
    let uid = object["metadata"]["uid"].clone();
    let created = object["metadata"]["creationTimestamp"].clone();
    let mut store = server.store.lock();
    let mut made = verbs::create(&mut store, row, &namespace, object).unwrap_or_else(|e| panic!("{e:?}"));
    // What a test gives of the status or the identity is as it was before.
    if status.is_object() || uid.is_string() || created.is_string() {
        if status.is_object() {
            made["status"] = status;
        }
        for (k, v) in [("uid", uid), ("creationTimestamp", created)] {
            if v.is_string() {
                made["metadata"][k] = v;
            }
        }
        store.put(&key(row), made);
    }
}

/// Start time of every scenario: a quarter of a minute past the hour, so that what happens every minute does not happen
/// just when somebody looks.
fn dawn() -> Timestamp {
    let now = Timestamp::now().as_second();
    Timestamp::from_second(now - now % 3600 + 15).expect("a time")
}

/// A node that is well.
pub(super) fn node(name: &str) -> Value {
    let conditions = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {}, "status": {"conditions": conditions}})
}

/// Processor time that a task may take without a pause, in a build without optimisation, the simulated server's part
/// included.
const LONGEST_POLL: Duration = Duration::from_millis(250);

/// Run a scenario; the checks that failed.
pub(super) fn play(scenario: &Scenario, fault: Fault, seed: u64) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let mut flags = scenario.flags.clone();
        flags.extend(scenario.controllers.as_ref().map(|c| format!("--controllers={c}")));
        shared::run::measure_polls();
        let mut run = Run::start_seeded(&scenario.given, flags, fault, seed).await;
        for step in &scenario.steps {
            run.step(step).await;
        }
        let mut wrong = std::mem::take(&mut run.wrong);
        wrong.extend(scenario.expect.iter().filter_map(|c| run.check(c)));
        let polls = shared::run::measured_polls();
        if polls.longest > LONGEST_POLL {
            wrong.push(format!("a task held its thread: {polls:?}"));
        }
        wrong
    })
}
