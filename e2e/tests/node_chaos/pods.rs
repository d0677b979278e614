//! The pods of the node: witnesses that live from the first kill to the last, and pods of each kind that come and go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::testing::{Cluster, is_ready, text};
use serde_json::{Value, json};

use crate::{NODE, book};
use testkit::dice::Dice;

/// The witness that commands are run in.
pub const WITNESS: &str = "witness";
/// The witness from a manifest on the node's disk, and the name of its mirror.
const STATIC: &str = "static";
const STATIC_MIRROR: &str = "static-node-1";
/// Time in which all pods have to be what they are to be, seconds.
const SETTLED_WITHIN: u64 = 150;
/// Longest time from a program's first word to the end of the call that started it.
const START: Duration = Duration::from_secs(5);
/// Time in which an exec has to end.
const EXEC_LIMIT: Duration = Duration::from_secs(60);

/// Kinds of pods that come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Runs once, whatever becomes of it.
    Once,
    /// Runs until it has succeeded, after an init container.
    Retried,
    /// Runs until it is deleted.
    Stays,
}

impl Kind {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Once, Self::Retried, Self::Stays];

    /// Begins names of its pods.
    pub fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Retried => "retried",
            Self::Stays => "stays",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| name.starts_with(kind.name()))
    }
}

/// See the module.
pub struct Population<'a> {
    cluster: &'a Cluster,
    /// Uids of pods that are to be there, by name.
    there: BTreeMap<String, String>,
    /// Names of pods that were deleted.
    gone: Vec<String>,
    /// Container and time of becoming Ready of pods that have settled, by name.
    settled: BTreeMap<String, (String, String)>,
    witnesses: Vec<String>,
    /// Times that containers of pods may have begun, by pod: once, and again for each kill of the runtime.
    starts: BTreeMap<String, usize>,
    runtime_kills: usize,
}

/// A command in the witness.
pub struct Exec(Child);

impl Exec {
    /// Waits for its end; it may fail.
    pub fn ends(mut self) {
        let began = Instant::now();
        while self.0.try_wait().expect("a child").is_none() {
            if began.elapsed() > EXEC_LIMIT {
                self.0.kill().expect("a child that runs");
                panic!("an exec hangs {} s after the kill", EXEC_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A program that writes down when it begins, is told to end and ends; `work` is what it waits for.
fn program(name: &str, work: &str) -> Vec<String> {
    let page = format!("/book/{name}");
    let script = format!(
        "trap 'echo told >> {page}; sleep 0.4; echo ended >> {page}; exit 0' TERM; \
         echo began >> {page}; {work} & wait $!; echo ended >> {page}"
    );
    vec!["sh".into(), "-c".into(), script, format!("{}{name}", book::MARK)]
}

fn container(name: &str, page: &str, work: &str) -> Value {
    json!({"name": name, "image": "busybox:1.36", "command": program(page, work),
        "volumeMounts": [{"name": "book", "mountPath": "/book"}, {"name": "scratch", "mountPath": "/scratch", "subPath": "sub"},
            {"name": "memory", "mountPath": "/memory"}]})
}

/// A pod with volumes of several kinds; those of the API server are not for static pods.
fn pod(name: &str, policy: &str, work: &str, of_server: bool) -> Value {
    let mut volumes = json!([
        {"name": "book", "hostPath": {"path": book::FOLDER, "type": "DirectoryOrCreate"}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]);
    let mut main = container("main", name, work);
    if of_server && let (Some(volumes), Some(mounts)) = (volumes.as_array_mut(), main["volumeMounts"].as_array_mut()) {
        volumes.push(json!({"name": "settings", "configMap": {"name": "settings"}}));
        mounts.push(json!({"name": "settings", "mountPath": "/settings"}));
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {
        "restartPolicy": policy, "terminationGracePeriodSeconds": 5, "volumes": volumes, "containers": [main]}})
}

fn of_kind(kind: Kind, name: &str) -> Value {
    match kind {
        Kind::Once => pod(name, "Never", "sleep 1", true),
        Kind::Stays => pod(name, "Always", "sleep 100000", true),
        Kind::Retried => {
            let mut made = pod(name, "OnFailure", "sleep 1", true);
            made["spec"]["initContainers"] = json!([container("first", &format!("{name}.first"), "sleep 0.3")]);
            made
        }
    }
}

fn with_probes(mut made: Value) -> Value {
    let probe = |seconds: u32| json!({"exec": {"command": ["true"]}, "periodSeconds": seconds, "timeoutSeconds": 20, "failureThreshold": 3});
    made["spec"]["containers"][0]["readinessProbe"] = probe(5);
    made["spec"]["containers"][0]["livenessProbe"] = probe(5);
    made["spec"]["containers"][0]["startupProbe"] = probe(2);
    made
}

impl<'a> Population<'a> {
    /// Starts the witnesses and waits until they are Ready.
    pub fn move_in(cluster: &'a Cluster) -> Self {
        cluster.feed("create -f -", &settings(0));
        let witnesses = vec![WITNESS.to_owned(), "plain".to_owned(), STATIC_MIRROR.to_owned()];
        let mut population = Self {
            cluster,
            there: BTreeMap::new(),
            gone: Vec::new(),
            settled: BTreeMap::new(),
            witnesses,
            starts: BTreeMap::new(),
            runtime_kills: 0,
        };
        let manifest = with_probes(pod(STATIC, "Always", "sleep 100000", false));
        let folder = cluster.layout().disk(NODE).join("etc-kubernetes/manifests");
        std::fs::write(folder.join("static.json"), manifest.to_string()).expect("the static pod's manifest");
        population.create_from(WITNESS, &with_probes(pod(WITNESS, "Always", "sleep 100000", true)));
        population.create_from("plain", &pod("plain", "Always", "sleep 100000", true));
        population.there.insert(STATIC_MIRROR.to_owned(), String::new());
        population.settle();
        population
    }

    fn create_from(&mut self, name: &str, manifest: &Value) {
        let uid = self.cluster.feed("create -f - -o jsonpath={.metadata.uid}", &manifest.to_string());
        self.there.insert(name.to_owned(), uid);
        self.starts.insert(name.to_owned(), 1);
    }

    /// Counts a kill of the runtime.
    pub fn runtime_was_killed(&mut self) {
        self.runtime_kills += 1;
        self.starts.values_mut().for_each(|starts| *starts += 1);
    }

    /// Counts a kill of the kubelet, which cuts short what starts at that time: containerd takes a start back whose caller is
    /// gone ("context canceled"), also when the process has begun already, and the next kubelet starts the container again.
    pub fn kubelet_was_killed(&mut self) {
        let starting: Vec<String> = self.starts.keys().filter(|name| self.may_be_starting(name)).cloned().collect();
        for name in starting {
            self.starts.entry(name).and_modify(|starts| *starts += 1);
        }
    }

    /// Reports whether a pod's container has not begun yet, or a moment ago.
    fn may_be_starting(&self, name: &str) -> bool {
        let written = std::fs::metadata(self.page(name)).and_then(|page| page.modified());
        written.map_or(true, |at| at.elapsed().is_ok_and(|age| age < START))
    }

    /// Number of times that the runtime was killed.
    pub fn runtime_kills(&self) -> usize {
        self.runtime_kills
    }

    /// Holds what a pod's container wrote down to the starts that it may have had.
    fn hold_to_starts(&self, name: &str, page: &str) {
        let (began, most) = (book::count(&self.page(page), "began"), self.starts.get(name).copied().unwrap_or(1));
        assert!(began <= most, "{page} began {began} times and may have begun {most} times");
    }

    /// Makes a pod of the kind that its name says.
    pub fn create(&mut self, name: &str) {
        let kind = Kind::of(name).expect("a name of a kind");
        self.create_from(name, &of_kind(kind, name));
    }

    /// A pod that stays and has not been deleted, if there is one.
    pub fn any_that_stays(&self, dice: &mut Dice) -> Option<String> {
        let stays = |name: &&String| Kind::of(name) == Some(Kind::Stays) && !self.gone.contains(*name);
        let names: Vec<String> = self.there.keys().filter(stays).cloned().collect();
        (!names.is_empty()).then(|| dice.one_of(&names))
    }

    /// Marks a pod for deletion.
    pub fn delete(&mut self, name: &str) {
        self.cluster.kubectl(&format!("delete pod {name} --wait=false"));
        self.gone.push(name.to_owned());
    }

    /// Uid of a pod.
    pub fn uid(&self, name: &str) -> &str {
        self.there.get(name).map_or("", String::as_str)
    }

    /// Runs a command that takes a moment.
    pub fn exec(&self, name: &str) -> Exec {
        let line = self.cluster.command_line();
        let command = line.split_whitespace().chain(["exec", name, "--", "sh", "-c", "echo begun; sleep 1; echo done"]);
        let command: Vec<&str> = command.collect();
        let mut child = Command::new(command[0]);
        child.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Exec(child.spawn().expect("kubectl starts"))
    }

    /// Changes what pods have mounted.
    pub fn touch_configuration(&self, round: u64) {
        self.cluster.feed("replace -f -", &settings(round));
    }

    /// Waits until all pods are what they are to be, holds them to the invariants, and deletes those that are done.
    pub fn settle(&mut self) {
        let began = Instant::now();
        let pods = self.cluster.until("all pods are what they are to be", SETTLED_WITHIN, || self.look());
        for pod in &pods {
            self.hold(pod);
        }
        eprintln!("{} pods as they are to be after {:.1} s", pods.len(), began.elapsed().as_secs_f32());
        let gone = std::mem::take(&mut self.gone);
        self.there.retain(|name, _| !gone.contains(name));
        self.settled.retain(|name, _| !gone.contains(name));
        self.starts.retain(|name, _| !gone.contains(name));
        let done: Vec<String> = self
            .there
            .keys()
            .filter(|name| matches!(Kind::of(name), Some(Kind::Once | Kind::Retried)))
            .cloned()
            .collect();
        for name in done {
            self.delete(&name);
        }
    }

    /// All pods; an error says who is not yet as it is to be.
    fn look(&self) -> Result<Vec<Value>, String> {
        let said = self.cluster.try_kubectl(&["get", "pods", "-o", "json"], None);
        if !said.ok {
            return Err(said.err);
        }
        let list: Value = serde_json::from_str(&said.out).map_err(|error| error.to_string())?;
        let pods: BTreeMap<String, Value> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| (text(pod, "/metadata/name").to_owned(), pod.clone()))
            .collect();
        let still =
            self.gone.iter().filter(|name| pods.contains_key(*name)).map(|name| format!("{name} is still there"));
        let wrong = self.there.keys().filter(|name| !self.gone.contains(name)).filter_map(|name| {
            let Some(pod) = pods.get(name) else { return Some(format!("{name} is lost")) };
            let phase = text(pod, "/status/phase");
            let right = match Kind::of(name) {
                Some(Kind::Once) => matches!(phase, "Succeeded" | "Failed"),
                Some(Kind::Retried) => phase == "Succeeded",
                Some(Kind::Stays) | None => is_ready(pod),
            };
            (!right).then(|| format!("{name} is {phase}: {}", pod["status"]["containerStatuses"]))
        });
        let wrong: Vec<String> = still.chain(wrong).collect();
        if wrong.is_empty() { Ok(pods.into_values().collect()) } else { Err(wrong.join("\n")) }
    }

    /// A pod's container has become another.
    pub fn has_another_container(&mut self, pod: &str) {
        self.settled.remove(pod);
        self.starts.entry(pod.to_owned()).and_modify(|starts| *starts += 1);
    }

    /// Number of times that a pod's container began.
    pub fn starts(&self, name: &str) -> usize {
        book::count(&self.page(name), "began")
    }

    fn page(&self, name: &str) -> PathBuf {
        let name = if name == STATIC_MIRROR { STATIC } else { name };
        book::page(&self.cluster.layout().disk(NODE), name)
    }

    /// Holds a pod to what must be true of it.
    fn hold(&mut self, pod: &Value) {
        let name = text(pod, "/metadata/name").to_owned();
        let began = book::count(&self.page(&name), "began");
        match Kind::of(&name) {
            Some(Kind::Once) => {
                assert!(began <= 1, "{name} ran {began} times: {}", pod["status"]);
                if text(pod, "/status/phase") == "Failed" {
                    eprintln!("{name} failed after {began} starts: {}", pod["status"]["containerStatuses"]);
                }
                return;
            }
            Some(Kind::Retried) => {
                assert!(book::says(&self.page(&name), "ended"), "{name} has run to its end");
                self.hold_to_starts(&name, &name);
                self.hold_to_starts(&name, &format!("{name}.first"));
                return;
            }
            Some(Kind::Stays) | None => self.hold_to_starts(&name, &name),
        }
        let container = text(pod, "/status/containerStatuses/0/containerID").to_owned();
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.filter(|c| text(c, "/type") == "Ready").map(|c| text(c, "/lastTransitionTime"));
        let ready = ready.collect::<String>();
        let now = (container, ready);
        let before = self.settled.entry(name.clone()).or_insert_with(|| now.clone());
        assert_eq!(*before, now, "{name} goes on in its container, and was Ready all the time: {}", pod["status"]);
        if self.witnesses.contains(&name) {
            assert_eq!(began, 1, "{name} was started once");
        }
    }

    /// Deletes all, and waits until they are gone.
    pub fn move_out(&mut self) {
        let folder = self.cluster.layout().disk(NODE).join("etc-kubernetes/manifests");
        std::fs::remove_file(folder.join("static.json")).expect("the static pod's manifest");
        let names: Vec<String> = self.there.keys().filter(|name| *name != STATIC_MIRROR).cloned().collect();
        for name in names {
            if !self.gone.contains(&name) {
                self.delete(&name);
            }
        }
        self.cluster.until("all pods are gone", SETTLED_WITHIN, || {
            let left = self.cluster.kubectl("get pods -o name");
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }
}

fn settings(round: u64) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"round": round.to_string()}})
        .to_string()
}
