//! Machines that kubeadm is run on: each has a network, a host name, a containerd and the folders that kubeadm writes to of
//! its own. What systemd does on a server, the supervisor and a `systemctl` of a few lines do here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use e2e::layout::{Layout, Network, Node};
use e2e::machine::{self, Machine, Process};
use e2e::{down, network, node};
use serde_json::Value;

use crate::remains::Traces;

/// Folders besides those of every node: of programs, of what kubeadm and its manifests make.
const FOLDERS: [(&str, &str); 3] = [
    ("usr-local-bin", "/usr/local/bin"),
    ("usr-libexec-kubernetes", "/usr/libexec/kubernetes"),
    ("lib-modules", "/lib/modules"),
];
/// The kubelet's unit as it is installed with kubeadm: variables, files of variables, and the command.
const UNIT: &str = include_str!("../../../manifests/systemd/kubelet.service.d/10-kubeadm.conf");
const SYSTEMCTL: &str = include_str!("systemctl.sh");
const ADMIN: &str = "KUBECONFIG=/etc/kubernetes/admin.conf";

/// Output and outcome of a program.
#[derive(Debug)]
pub struct Said {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

/// Held by a test while it has machines: they have the same network in every test.
static MACHINES: Mutex<()> = Mutex::new(());

/// All machines, on a network of their own. Dropped in a panic they are stopped as well, unless KEEP is set.
pub struct Lab {
    layout: Layout,
    nodes: Vec<Node>,
    cache: PathBuf,
    running: std::cell::Cell<bool>,
    _alone: MutexGuard<'static, ()>,
}

impl Lab {
    /// Starts machines of these names; nothing is installed there but containerd.
    pub fn start(names: &[&str]) -> Self {
        let alone = MACHINES.lock().unwrap_or_else(PoisonError::into_inner);
        let home = std::env::var("HOME").unwrap_or("/root".into());
        let variable = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
        let binaries = std::env::var("BINARIES").expect("BINARIES names the folder of the binaries; make sets it");
        let network = Network { bridge: "kubeadm0".to_owned(), host: "10.91.0.1".to_owned(), ..Network::numbered(0) };
        let nodes: Vec<Node> = names.iter().zip(11..).map(|(name, last)| network.host_named(name, last)).collect();
        let lab = Self {
            layout: Layout {
                root: std::env::temp_dir().join(format!("ironclad-kubeadm-{}", std::process::id())),
                binaries: fs::canonicalize(binaries).expect("BINARIES is a folder"),
                dual_stack: false,
                network,
            },
            nodes,
            cache: PathBuf::from(variable("CACHE", &format!("{home}/.cache/ironclad"))),
            running: std::cell::Cell::new(true),
            _alone: alone,
        };
        network::bridge(&lab.layout).expect("a bridge");
        lab.nodes.iter().for_each(|node| lab.start_node(node));
        lab
    }

    fn start_node(&self, node: &Node) {
        network::namespace(&self.layout, node).expect("a network");
        node::make_cgroup(node).expect("a cgroup");
        let disk = self.layout.disk(&node.name);
        let file = |name: &str, text: &str| {
            let path = disk.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, text).expect("a file");
            path
        };
        let template = file("config/cni.template", &node::cni_template(false));
        let containerd = file("config/containerd.toml", &node::containerd_toml(&template.display().to_string()));
        file("config/patches/kubeletconfiguration.yaml", &format!("cgroupRoot: {}\n", node.cgroup));
        let hosts = file("config/hosts", &self.hosts());
        let folder = self.layout.machine(&node.name);
        fs::create_dir_all(&folder).expect("a folder");
        // Installed, not started: kubeadm does that.
        fs::write(folder.join("kubelet.stopped"), "").expect("a file");
        let systemctl = file("usr-local-bin/systemctl", &SYSTEMCTL.replace("FOLDER", &folder.display().to_string()));
        e2e::shell::run("chmod", &["755", &systemctl.display().to_string()]).expect("a program");
        let kubelet = vec!["-c".to_owned(), unit_as_script()];
        let folders = node::FOLDERS.iter().chain(&FOLDERS).map(|(name, path)| (disk.join(name), path.into()));
        let machine = Machine {
            name: node.name.clone(),
            folder,
            netns: Some(Path::new("/run/netns").join(&node.namespace)),
            hostname: Some(node.name.clone()),
            binds: folders.chain([(hosts, "/etc/hosts".into())]).collect(),
            processes: vec![
                Process::new(
                    "containerd",
                    "containerd".into(),
                    vec!["--config".into(), containerd.display().to_string()],
                ),
                Process::new("kubelet", "sh".into(), kubelet),
            ],
        };
        machine.start(&self.layout).expect("it starts");
    }

    /// Names that every server knows, and where the control plane is: a name server or a load balancer does that elsewhere.
    fn hosts(&self) -> String {
        let names = self.nodes.iter().map(|node| format!("{} {}\n", node.address, node.name));
        let endpoint = self.nodes.first().map(|node| format!("{} cluster.internal\n", node.address));
        ["127.0.0.1 localhost\n".to_owned()].into_iter().chain(names).chain(endpoint).collect()
    }

    /// A release of the binaries under test, made once: `bin` and `images`, named for this version.
    pub fn release(&self, version: &str) -> PathBuf {
        let dist = self.layout.root.join("dist").join(version);
        let text = |path: &Path| path.display().to_string();
        let [release, binaries, cache, to] =
            [&self.layout.binaries.join("release"), &self.layout.binaries, &self.cache, &dist].map(|path| text(path));
        let arguments =
            ["--binaries", &binaries, "--cache", &cache, "--dist", &to, "--release-version", version, "--strip"];
        e2e::shell::run(&release, &arguments).expect("a release");
        dist
    }

    /// Names of all machines.
    pub fn names(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).expect("a node of the lab")
    }

    /// Puts kubeadm, a kubelet and kubectl on a machine, as packages do.
    pub fn install(&self, name: &str, dist: &Path, version: &str) {
        self.put(name, &self.cached(&format!("go/kubeadm-{version}")), "kubeadm");
        self.put(name, &dist.join("bin/kubelet"), "kubelet");
        let kubectl = e2e::shell::find("kubectl").expect("kubectl is installed");
        self.put(name, &kubectl, "kubectl");
    }

    /// Replaces a program of a machine, also one that runs.
    pub fn put(&self, name: &str, program: &Path, as_name: &str) {
        let folder = self.layout.disk(name).join("usr-local-bin");
        let fresh = folder.join(format!(".{as_name}"));
        fs::copy(program, &fresh).unwrap_or_else(|error| panic!("{} is not there: {error}", program.display()));
        fs::rename(&fresh, folder.join(as_name)).expect("installed");
    }

    /// Imports every image of a release that kubeadm asks for.
    pub fn load(&self, name: &str, dist: &Path) {
        for entry in fs::read_dir(dist.join("images")).expect("images") {
            let archive = entry.expect("an image").path();
            let file = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Those are for control planes in pods.
            if !file.starts_with("proxy-") && !file.starts_with("control-plane-") {
                self.load_file(name, &archive);
            }
        }
    }

    /// Imports an image.
    pub fn load_file(&self, name: &str, archive: &Path) {
        let command = node::import_command(archive);
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        self.until(&format!("{name} imports an image"), 60, || {
            let said = self.on(name, &command);
            if said.ok { Ok(()) } else { Err(said.err) }
        });
    }

    /// A binary under test.
    pub fn binary(&self, name: &str) -> PathBuf {
        self.layout.binaries.join(name)
    }

    /// The patch of kubelet configurations that this machine needs.
    pub fn file_of_patches(&self, name: &str) -> PathBuf {
        Path::new(&self.patches(name)).join("kubeletconfiguration.yaml")
    }

    /// A product of the scripts below `e2e/images`, by its path in the cache.
    pub fn cached(&self, path: &str) -> PathBuf {
        let found = self.cache.join(path);
        assert!(found.exists(), "{} is not there; run: make test-kubeadm", found.display());
        found
    }

    /// The process whose namespaces are a machine's.
    pub fn pid(&self, name: &str) -> String {
        machine::running(&self.layout.machine(name)).expect("the machine runs").to_string()
    }

    /// Runs a program on a machine.
    pub fn on(&self, name: &str, command: &[&str]) -> Said {
        self.fed(name, command, "")
    }

    /// Runs a program as [`Lab::on`] does, with this on its standard input.
    pub fn fed(&self, name: &str, command: &[&str], input: &str) -> Said {
        let pid = self.pid(name);
        // kubectl keeps answers there, of whatever cluster had these names before.
        let home = format!("HOME={}", self.layout.disk(name).join("root").display());
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let enter = ["--target", &pid, "--mount", "--net", "--uts", "env", "-i", path, &home, ADMIN];
        let mut child = Command::new("nsenter")
            .args([&enter, command].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nsenter runs");
        std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), input.as_bytes()).ok();
        let output = child.wait_with_output().expect("it ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { ok: output.status.success(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Runs a command line that must succeed on a machine and tells how long it took; returns what it printed.
    pub fn must(&self, name: &str, line: &str) -> String {
        let (began, command) = (Instant::now(), line.split_whitespace().collect::<Vec<_>>());
        let said = self.on(name, &command);
        eprintln!("[{name}] $ {line}   # {:.1} s", began.elapsed().as_secs_f64());
        if std::env::var("SHOW").is_ok() {
            eprintln!("{}{}", said.out, said.err);
        }
        assert!(said.ok, "[{name}] $ {line}\n{}{}", said.out, said.err);
        said.out
    }

    /// Runs kubectl as the administrator on a machine of the control plane.
    pub fn kubectl(&self, name: &str, line: &str) -> Said {
        self.on(name, &[&["kubectl"], line.split_whitespace().collect::<Vec<_>>().as_slice()].concat())
    }

    /// An object or a list as JSON.
    pub fn json(&self, name: &str, line: &str) -> Result<Value, String> {
        let said = self.kubectl(name, &format!("get {line} -o json"));
        if said.ok { serde_json::from_str(&said.out).map_err(|error| error.to_string()) } else { Err(said.err) }
    }

    /// A file of a machine's disk, by its path there.
    pub fn file(&self, name: &str, path: &str) -> PathBuf {
        let all = node::FOLDERS.iter().chain(&FOLDERS);
        let found = all.filter_map(|(folder, at)| Some((folder, path.strip_prefix(at)?))).next();
        let (folder, rest) = found.expect("a folder of the machine's own");
        self.layout.disk(name).join(folder).join(rest.trim_start_matches('/'))
    }

    /// The folder that kubeadm finds this machine's patches in.
    pub fn patches(&self, name: &str) -> String {
        self.layout.disk(name).join("config/patches").display().to_string()
    }

    /// Gives pods routes between the machines: that is the network add-on's work on a server.
    pub fn route(&self, name: &str) {
        let node = self.json(name_of_first(&self.nodes), &format!("node {name}")).expect("the node");
        let range = node["spec"]["podCIDR"].as_str().expect("a range of its own").to_owned();
        network::route_pods(self.node(name), &range, &self.nodes).expect("routes");
    }

    /// Asks until the answer is right; panics with `what` and the last answer when it never is.
    pub fn until<T>(&self, what: &str, seconds: u64, mut ask: impl FnMut() -> Result<T, String>) -> T {
        let start = Instant::now();
        loop {
            match ask() {
                Ok(found) => return found,
                Err(last) if start.elapsed() > Duration::from_secs(seconds) => {
                    panic!("{what}: not within {seconds} s; last: {last}");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Stops everything and checks that nothing is left.
    pub fn stop(&self) {
        self.running.set(false);
        let traces = Traces::of(&self.layout, &self.nodes);
        self.take_down().expect("they stop, and their files go");
        let left = traces.left();
        assert!(left.is_empty(), "left behind: {left:#?}");
    }

    fn take_down(&self) -> anyhow::Result<()> {
        down::stop_nodes(&self.layout, &self.nodes)?;
        down::forget_nodes(&self.layout, &self.nodes)?;
        // Points of mounts that the machines made here; any other is not empty.
        FOLDERS.iter().for_each(|(_, path)| _ = fs::remove_dir(path));
        Ok(())
    }

    fn keep_logs(&self) {
        let kept = std::env::temp_dir().join("ironclad-kubeadm-logs");
        fs::remove_dir_all(&kept).ok();
        for node in &self.nodes {
            let to = kept.join(&node.name);
            fs::create_dir_all(&to).ok();
            for from in [self.layout.machine(&node.name), self.layout.disk(&node.name).join("var-log-pods")] {
                e2e::shell::run("cp", &["-r", &from.display().to_string(), &to.display().to_string()]).ok();
            }
        }
        eprintln!("The logs are in {}", kept.display());
    }
}

/// The shell script that does as the unit says.
fn unit_as_script() -> String {
    let line = |line: &str| {
        let (key, value) = line.split_once('=')?;
        match key {
            "Environment" => value.trim_matches('"').split_once('=').map(|(name, value)| format!("{name}='{value}'")),
            "EnvironmentFile" => value.strip_prefix('-').map(|file| format!("[ ! -e {file} ] || . {file}")),
            "ExecStart" if !value.is_empty() => {
                Some(format!("eval exec {}", value.replace("/usr/bin", "/usr/local/bin")))
            }
            _ => None,
        }
    };
    UNIT.lines().filter_map(line).collect::<Vec<_>>().join("\n")
}

fn name_of_first(nodes: &[Node]) -> &str {
    nodes.first().map_or("", |node| &node.name)
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.running.get() {
            return;
        }
        self.keep_logs();
        if std::env::var("KEEP").is_ok() {
            eprintln!("Kept: {}", self.layout.root.display());
            return;
        }
        self.take_down().ok();
    }
}
