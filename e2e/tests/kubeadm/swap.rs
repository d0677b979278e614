//! Each of the five replaced alone in a running cluster, and put back, by the commands of `docs/SWAP.md`. The binaries
//! under test with another identity stand in for the other maker's.
//!
//! A swap may restart nothing but the part itself, leaves objects and the kubelet's files as they are, has one leader
//! after another, and a cluster that works: namespaces come and go, pods run, new Services answer.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::Lab;
use crate::state::{self, PASSING};
use crate::{FIRST, ready};

/// The release that is swapped in.
const OTHER: &str = "v1.35.4+ironclad.1";
const GUIDE: &str = include_str!("../../../docs/SWAP.md");
const PROBE: &str = include_str!("swap.yaml");
/// Part of the ClusterConfiguration: a server that ends does not wait for watches. Else it closes its port and is there for
/// the 30 seconds of its pod, which leaders do not survive.
pub const CONFIGURATION: &str = "apiServer:\n  extraArgs:\n    - {name: shutdown-send-retry-after, value: \"true\"}\n";
/// Time that the API may be away while its server is replaced.
const AWAY_LIMIT: Duration = Duration::from_secs(10);

const STATIC_THERE: [&str; 4] = [
    "cd /etc/kubernetes",
    "cp -p manifests/$part.yaml $part.yaml.before && cp -p $part.yaml.before $part.yaml.new",
    "sed -i \"s|image: .*|image: $image|\" $part.yaml.new",
    "mv $part.yaml.new manifests/$part.yaml",
];
const STATIC_BACK: [&str; 2] = ["cd /etc/kubernetes", "mv $part.yaml.before manifests/$part.yaml"];
const PROXY_THERE: [&str; 2] = [
    "kubectl -n kube-system set image daemonset/kube-proxy kube-proxy=$image",
    "kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=2m",
];
const PROXY_BACK: [&str; 2] = [
    "kubectl -n kube-system rollout undo daemonset/kube-proxy",
    "kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=2m",
];
const KUBELET_THERE: [&str; 3] = [
    "kubelet=$(command -v kubelet) && cp -p $kubelet $kubelet.before",
    "install -m 755 kubelet $kubelet.new && mv $kubelet.new $kubelet",
    "systemctl restart kubelet",
];
const KUBELET_BACK: [&str; 2] =
    ["kubelet=$(command -v kubelet) && mv $kubelet.before $kubelet", "systemctl restart kubelet"];

/// A part, and how it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// By a manifest on the control plane's machine.
    Static(&'static str),
    /// By a DaemonSet.
    Proxy,
    /// By systemd on this machine.
    Kubelet(&'static str),
}

const PARTS: [Part; 6] = [
    Part::Static("kube-scheduler"),
    Part::Static("kube-controller-manager"),
    Part::Proxy,
    Part::Kubelet("w-1"),
    Part::Kubelet("cp-1"),
    Part::Static("kube-apiserver"),
];

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Static(name) => name,
            Self::Proxy => "kube-proxy",
            Self::Kubelet(_) => "kubelet",
        }
    }

    /// The machine where the commands are given.
    fn machine(self) -> &'static str {
        if let Self::Kubelet(machine) = self { machine } else { "cp-1" }
    }

    fn commands(self, there: bool) -> &'static [&'static str] {
        match (self, there) {
            (Self::Static(_), true) => &STATIC_THERE,
            (Self::Static(_), false) => &STATIC_BACK,
            (Self::Proxy, true) => &PROXY_THERE,
            (Self::Proxy, false) => &PROXY_BACK,
            (Self::Kubelet(_), true) => &KUBELET_THERE,
            (Self::Kubelet(_), false) => &KUBELET_BACK,
        }
    }

    fn leads(self) -> bool {
        matches!(self, Self::Static("kube-scheduler" | "kube-controller-manager"))
    }

    /// Beginning of the names of its containers; a kubelet has none.
    fn pods(self) -> Option<String> {
        (!matches!(self, Self::Kubelet(_))).then(|| format!("kube-system/{}-", self.name()))
    }
}

/// Swaps every part, there and back.
pub fn all(lab: &Lab) {
    let other = lab.release(OTHER);
    lab.names().iter().for_each(|name| lab.load(name, &other));
    let api = Api::ask(lab);
    for part in PARTS {
        for (there, version) in [(true, OTHER), (false, FIRST)] {
            swap(lab, &api, part, &other.join("bin"), there);
            works(lab, version);
        }
    }
}

fn swap(lab: &Lab, api: &Api, part: Part, programs: &Path, there: bool) {
    let version = if there { OTHER } else { FIRST };
    let what = format!("{} of {} on {}", part.name(), version, part.machine());
    let lease = part.leads().then(|| state::lease(lab, part.name()).expect("a lease"));
    let (containers, objects) = (state::containers(lab).expect("pods"), state::objects(lab).expect("objects"));
    let files = state::files(lab, part.machine());
    api.away();
    let began = Instant::now();
    command(lab, part, programs, there);
    lab.until(&what, 60, || runs(lab, part, version));
    let took = began.elapsed();
    let led = lease.map(|before| {
        lab.until(&format!("{what} leads"), 30, || {
            let now = state::lease(lab, part.name())?;
            if now.holder != before.holder && !now.holder.is_empty() { Ok(()) } else { Err(format!("{now:?}")) }
        });
        assert_eq!(state::lease(lab, part.name()).expect("a lease").transitions, before.transitions + 1, "{what}");
        began.elapsed()
    });
    let (away, answers) = api.away();
    let led = led.map_or(String::new(), |led| format!(", leads after {:.1} s", led.as_secs_f64()));
    eprintln!("==> {what}: {:.1} s, API away for {:.1} s{led}", took.as_secs_f64(), away.as_secs_f64());
    let limit = if part == Part::Static("kube-apiserver") { AWAY_LIMIT } else { Duration::ZERO };
    assert!(away <= limit, "{what}: the API was away for {away:?}: {answers:#?}");
    unchanged(&what, "containers", &containers, &state::containers(lab).expect("pods"), part.pods().as_deref());
    unchanged(&what, "objects", &objects, &state::objects(lab).expect("objects"), None);
    if matches!(part, Part::Kubelet(_)) {
        unchanged(&what, "files", &files, &state::files(lab, part.machine()), None);
    }
}

fn unchanged(what: &str, of: &str, before: &state::Things, after: &state::Things, except: Option<&str>) {
    assert!(before.len() > 3, "{what}: there are {of}: {before:?}");
    let changes = state::changes(before, after, except);
    assert!(changes.is_empty(), "{what} changed {of}: {changes:#?}");
}

/// Gives the commands of the guide, in a folder with the other release's programs.
fn command(lab: &Lab, part: Part, programs: &Path, there: bool) {
    for line in part.commands(there) {
        assert!(
            GUIDE.lines().any(|told| told.trim_start_matches([' ', '#']) == *line),
            "docs/SWAP.md says nothing of: {line}"
        );
    }
    let image = format!("registry.k8s.io/{}:{}", part.name(), OTHER.replace('+', "_"));
    let begin = format!("set -e; part={} image={image}; cd {}", part.name(), programs.display());
    let script =
        [begin.as_str()].into_iter().chain(part.commands(there).iter().copied()).collect::<Vec<_>>().join("\n");
    let said = lab.on(part.machine(), &["sh", "-c", &script]);
    assert!(said.ok, "{script}\n{said:?}");
}

/// Tells whether a part runs in this version; why not else.
fn runs(lab: &Lab, part: Part, version: &str) -> Result<(), String> {
    if let Part::Kubelet(machine) = part {
        let node = lab.json("cp-1", &format!("node {machine}"))?;
        let found = &node["status"]["nodeInfo"]["kubeletVersion"];
        return if found == version { ready(lab, machine) } else { Err(found.to_string()) };
    }
    let tag = version.replace('+', "_");
    let prefix = format!("{}-", part.name());
    let list = lab.json("cp-1", "pods -n kube-system")?;
    let all = list["items"].as_array().into_iter().flatten();
    let own = |pod: &&Value| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&prefix));
    let found: Vec<&Value> = all.filter(own).map(|pod| &pod["status"]["containerStatuses"][0]).collect();
    let is_new = |status: &Value| status["image"].as_str().is_some_and(|image| image.ends_with(&format!(":{tag}")));
    // The pod of a manifest that has changed is away for a moment.
    if found.is_empty() || !found.iter().all(|status| is_new(status) && status["ready"] == true) {
        return Err(format!("{found:?}"));
    }
    if part != Part::Static("kube-apiserver") {
        return Ok(());
    }
    let said = lab.kubectl("cp-1", "get --raw /version");
    if said.out.contains(&format!("\"{version}\"")) { Ok(()) } else { Err(format!("{said:?}")) }
}

/// A namespace comes and goes, and a Service in it answers: every one of the five has its share.
fn works(lab: &Lab, version: &str) {
    let before = state::containers(lab).expect("pods");
    let name = format!("{PASSING}{}", version.replace(['.', '+'], "-"));
    let said = lab.fed("cp-1", &["kubectl", "apply", "-f", "-"], &PROBE.replace("NAMESPACE", &name));
    assert!(said.ok, "{said:?}");
    let service = lab.json("cp-1", &format!("service probe -n {name}")).expect("the Service");
    let url = format!("http://{}/", service["spec"]["clusterIP"].as_str().expect("an address"));
    lab.until("a new Service answers", 30, || {
        let said = lab.on("w-1", &["curl", "-sS", "--max-time", "1", &url]);
        if said.out.contains("probe") { Ok(()) } else { Err(said.err) }
    });
    let gone = lab.kubectl("cp-1", &format!("delete namespace {name} --timeout=60s"));
    assert!(gone.ok, "{gone:?}");
    unchanged(version, "containers", &before, &state::containers(lab).expect("pods"), None);
}

/// Someone who asks the API server whether it is ready, ten times a second.
struct Api {
    child: Child,
    answers: PathBuf,
    seen: std::cell::Cell<usize>,
}

/// A shell loop that prints a line for each answer: the time, `up`, `slow` or `away`, and the words of curl. An answer that
/// takes more than a second is slow: curl ends with 28 then.
const ASK: &str = r#"while :; do
  said=$(curl -sk --max-time 1 "https://$1:6443/readyz" | tr '\n' ' '; exit ${PIPESTATUS[0]}) && code=0 || code=$?
  case "$code $said" in "0 ok") is=up ;; 28*) is=slow ;; *) is=away ;; esac
  echo "$(date +%s%3N) $is $code $said" >>"$2"
  sleep 0.1
done"#;

impl Api {
    fn ask(lab: &Lab) -> Self {
        let answers = lab.file("cp-1", "/var/lib/cni/answers");
        let child = Command::new("nsenter")
            .args(["--target", &lab.pid("cp-1"), "--net", "bash", "-c", ASK, "ask", &lab.node("cp-1").address])
            .arg(&answers)
            .spawn()
            .expect("nsenter runs");
        Self { child, answers, seen: std::cell::Cell::new(0) }
    }

    /// Time from the first to the last answer that was not good, since this was asked last, and these answers. A slow one
    /// between good ones is the machine's: it has other things to do.
    fn away(&self) -> (Duration, Vec<String>) {
        let text = std::fs::read_to_string(&self.answers).unwrap_or_default();
        let all: Vec<Answer<'_>> = text.lines().filter_map(Answer::read).collect();
        let new = self.seen.replace(all.len());
        let good = |at: Option<usize>| at.and_then(|at| all.get(at)).is_none_or(|answer| answer.is == "up");
        let is_bad = |at: &usize| match all[*at].is {
            "up" => false,
            "slow" => !(good(at.checked_sub(1)) && good(at.checked_add(1))),
            _ => true,
        };
        let bad: Vec<&Answer<'_>> = (new..all.len()).filter(is_bad).map(|at| &all[at]).collect();
        let (Some(first), Some(last)) = (bad.first(), bad.last()) else { return (Duration::ZERO, Vec::new()) };
        // One alone is away until the next.
        let time = Duration::from_millis(last.time - first.time + 100);
        (time, bad.iter().map(|answer| answer.line.to_owned()).collect())
    }
}

/// A line of what [`ASK`] writes.
struct Answer<'a> {
    line: &'a str,
    time: u64,
    is: &'a str,
}

impl<'a> Answer<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self { line, time: words.next()?.parse().ok()?, is: words.next()? })
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
