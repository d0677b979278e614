//! The nodes: they take pods, run them as the pods' own annotation says, and let go of those that are deleted.
//!
//! `sim/run` on a pod says how it fares: nothing or `ready`, `pending`, `unready`, `succeed`, `fail=<code>`,
//! `fail-indexes=<list>` (other indexes succeed), `fail-until=<n>` (each index fails so often, then succeeds).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::Server;
use super::store::{Name, Store};
use super::verbs;
use crate::engine::clock;
use crate::engine::object::seconds;
use crate::job::indexes::{INDEX, IndexSet};

const BEAT: Duration = Duration::from_secs(1);
/// Beats between two renewals of a node's lease.
const RENEW: u32 = 10;

fn core(plural: &str) -> (String, String) {
    (String::new(), plural.to_owned())
}

/// Work until the end of the scenario, while the server is there.
pub(super) async fn run(server: Arc<Server>) {
    let (mut due, mut memory) = (0, Memory::default());
    loop {
        tokio::time::sleep(BEAT).await;
        due = u32::saturating_sub(due, 1);
        if server.is_down() {
            continue;
        }
        if due == 0 {
            renew(&mut server.store.lock());
            due = RENEW;
        }
        memory.contradict(&server);
        let pods = server.store.lock().list(&core("pods"), "");
        for pod in pods {
            step(&mut server.store.lock(), &pod);
        }
    }
}

/// Knowledge of the nodes about themselves and their pods: whoever takes one for silent that is not is contradicted.
#[derive(Default)]
struct Memory {
    conditions: BTreeMap<String, Value>,
    /// Entries of the server's log that were read, and pods whose status controllers wrote since their node looked at it.
    read: usize,
    written: BTreeSet<Name>,
}

impl Memory {
    fn contradict(&mut self, server: &Server) {
        {
            let log = server.log.lock();
            self.written.extend(log[self.read.min(log.len())..].iter().filter_map(|entry| status_of_pod(entry)));
            self.read = log.len();
        }
        let store = &mut server.store.lock();
        for node in store.list(&core("nodes"), "") {
            self.contradict_node(store, node);
        }
        for pod in store.list(&core("pods"), "") {
            self.contradict_pod(store, &pod);
        }
    }

    fn contradict_node(&mut self, store: &mut Store, mut node: Value) {
        let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if node["metadata"]["annotations"]["sim/dead"].is_string() {
            self.conditions.remove(&name);
            return;
        }
        if condition(&node, "Ready").is_none_or(|ready| ready["reason"] != "NodeStatusUnknown") {
            self.conditions.insert(name, node["status"]["conditions"].clone());
            return;
        }
        let Some(conditions) = self.conditions.get(&name) else { return };
        node["status"]["conditions"] = conditions.clone();
        for condition in node["status"]["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastHeartbeatTime"] = json!(seconds(clock::now()));
        }
        store.put(&core("nodes"), node);
    }

    /// A pod that runs on a node that lives is as ready as its annotation says, whatever controllers wrote of it.
    fn contradict_pod(&mut self, store: &mut Store, pod: &Value) {
        let was_written = self.written.remove(&super::store::name_of(pod));
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let runs = pod["status"]["phase"] == "Running" && self.conditions.contains_key(node);
        let is_unready = condition(pod, "Ready").is_none_or(|ready| ready["status"] != "True");
        if was_written && runs && is_unready && pod["metadata"]["annotations"]["sim/run"] != "unready" {
            write_status(store, pod, running(pod, true));
        }
    }
}

/// The pod whose status a logged write is about.
fn status_of_pod(entry: &str) -> Option<Name> {
    let (namespace, rest) = entry.strip_prefix("PATCH /api/v1/namespaces/")?.split_once("/pods/")?;
    Some((namespace.to_owned(), rest.split('?').next()?.strip_suffix("/status")?.to_owned()))
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

fn renew(store: &mut Store) {
    let leases = ("coordination.k8s.io".to_owned(), "leases".to_owned());
    for node in store.list(&core("nodes"), "") {
        if node["metadata"]["annotations"]["sim/dead"].is_string() {
            continue;
        }
        let name = node["metadata"]["name"].clone();
        let at: Name = ("kube-node-lease".into(), name.as_str().unwrap_or_default().to_owned());
        let mut lease = store.get(&leases, &at).cloned().unwrap_or_else(|| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": at.0, "uid": store_uid(&name)}})
        });
        let now = clock::now();
        lease["spec"]["renewTime"] = json!(format!("{}Z", now.strftime("%Y-%m-%dT%H:%M:%S%.6f")));
        store.put(&leases, lease);
    }
}

fn store_uid(name: &Value) -> String {
    format!("lease-{}", name.as_str().unwrap_or_default())
}

/// The next moment in a pod's life.
fn step(store: &mut Store, pod: &Value) {
    let row = proto::resources::find("", "v1", "pods").expect("pods are served");
    let name = super::store::name_of(pod);
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let node = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty());
    let run = pod["metadata"]["annotations"]["sim/run"].as_str().unwrap_or("ready").to_owned();
    if pod["metadata"]["deletionTimestamp"].is_string() {
        let dead = node.is_some_and(|n| {
            store
                .get(&core("nodes"), &(String::new(), n.to_owned()))
                .is_none_or(|n| n["metadata"]["annotations"]["sim/dead"].is_string())
        });
        if node.is_none() || dead || run == "stuck" {
            return;
        }
        if pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0) > 0 {
            if !matches!(phase, "Succeeded" | "Failed") && pod["spec"]["restartPolicy"] != "Always" {
                write_status(store, pod, ended(pod, 137));
            }
            let _ = verbs::delete(store, row, &name, &json!({"gracePeriodSeconds": 0}));
        }
        return;
    }
    let Some(node) = node else {
        if run != "pending"
            && pod["spec"]["schedulingGates"].is_null()
            && let Some(node) = place(store, pod)
        {
            let mut bound = store.get(&core("pods"), &name).cloned().unwrap_or_else(|| pod.clone());
            bound["spec"]["nodeName"] = json!(node);
            store.put(&core("pods"), bound);
        }
        return;
    };
    if store
        .get(&core("nodes"), &(String::new(), node.to_owned()))
        .is_none_or(|n| n["metadata"]["annotations"]["sim/dead"].is_string())
    {
        return;
    }
    match phase {
        "Pending" => write_status(store, pod, running(pod, run != "unready")),
        "Running" => {
            let index = pod["metadata"]["annotations"][INDEX].as_str().and_then(|i| i.parse::<i32>().ok());
            let (word, value) = run.split_once('=').unwrap_or((run.as_str(), ""));
            let status = match word {
                "succeed" => ended(pod, 0),
                "fail" => ended(pod, value.parse().unwrap_or(1)),
                "fail-indexes" => {
                    let bad = index.is_some_and(|i| IndexSet::parse(value, i32::MAX).contains(i));
                    ended(pod, i64::from(bad))
                }
                "fail-until" => {
                    let so_far = pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"].as_str();
                    let so_far: i64 = so_far.and_then(|n| n.parse().ok()).unwrap_or(0);
                    ended(pod, i64::from(so_far < value.parse().unwrap_or(0)))
                }
                _ => return,
            };
            write_status(store, pod, status);
        }
        _ => {}
    }
}

/// The node a pod goes to: the one it names by affinity, or any that is ready.
fn place(store: &Store, pod: &Value) -> Option<String> {
    let named = pod.pointer("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0");
    if let Some(name) = named.and_then(Value::as_str) {
        return Some(name.to_owned());
    }
    let free = |n: &&Value| n["spec"]["unschedulable"] != true && !n["metadata"]["annotations"]["sim/dead"].is_string();
    let nodes = store.list(&core("nodes"), "");
    let free: Vec<&Value> = nodes.iter().filter(free).collect();
    let text = pod["metadata"]["name"].as_str().unwrap_or_default();
    let at = text.bytes().map(usize::from).sum::<usize>().checked_rem(free.len())?;
    free[at]["metadata"]["name"].as_str().map(str::to_owned)
}

fn write_status(store: &mut Store, pod: &Value, status: Value) {
    let row = proto::resources::find("", "v1", "pods").expect("pods are served");
    let mut new = pod.clone();
    let conditions = pod["status"]["conditions"].clone();
    new["status"] = status;
    // Conditions that others set stay.
    for c in conditions.as_array().into_iter().flatten().filter(|c| c["type"] == "DisruptionTarget") {
        if let Some(list) = new["status"]["conditions"].as_array_mut() {
            list.push(c.clone());
        }
    }
    if let Some(meta) = new["metadata"].as_object_mut() {
        meta.remove("resourceVersion");
    }
    let _ = verbs::update(store, row, &super::store::name_of(pod), "status", new);
}

fn containers(pod: &Value, ready: bool, state: &Value) -> Value {
    let all = pod["spec"]["containers"].as_array().into_iter().flatten();
    all.map(
        |c| json!({"name": c["name"], "image": "i", "imageID": "", "ready": ready, "restartCount": 0, "state": state}),
    )
    .collect()
}

fn running(pod: &Value, ready: bool) -> Value {
    let now = json!(seconds(clock::now()));
    let ip: u32 = pod["metadata"]["uid"].as_str().and_then(|u| u.rsplit('-').next()?.parse().ok()).unwrap_or(0);
    // Three digits, so that addresses sort as they count.
    let ip = format!("10.244.{}.{}", ip / 100, ip % 100 + 100);
    let status = if ready { "True" } else { "False" };
    json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "startTime": now,
        "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": now}],
        "containerStatuses": containers(pod, ready, &json!({"running": {"startedAt": now}}))})
}

fn ended(pod: &Value, code: i64) -> Value {
    let now = json!(seconds(clock::now()));
    let mut status = pod["status"].clone();
    status["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
    status["conditions"] = json!([{"type": "Ready", "status": "False", "lastTransitionTime": now}]);
    status["containerStatuses"] = containers(pod, false, &json!({"terminated": {"exitCode": code, "finishedAt": now}}));
    status
}
