//! A cluster under test, driven as a user would: by the `cluster` program, kubectl and curl.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A cluster in a directory of its own. Dropped in a panic, it is taken down as well, after its logs were kept.
pub struct Cluster {
    run: PathBuf,
    binaries: PathBuf,
    cache: PathBuf,
    running: std::cell::Cell<bool>,
    dns: bool,
}

/// A program in a node's namespaces, which ends when it is dropped.
pub struct OnNode(std::process::Child);

impl Drop for OnNode {
    fn drop(&mut self) {
        // One that has ended needs no killing.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Output and exit status of a program.
pub struct Said {
    /// The command ended with 0.
    pub ok: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs a program to its end, with this on its standard input.
pub fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Said {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        std::io::Write::write_all(&mut stdin, text.as_bytes()).expect("the program reads its input");
    }
    let output = child.wait_with_output().expect("the program ends");
    Said {
        ok: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Cluster {
    /// Starts a cluster with these arguments of `cluster up`.
    pub fn start(arguments: &[&str]) -> Self {
        let cluster = Self::not_started();
        cluster.must(&[&["up"], arguments].concat());
        cluster
    }

    /// Starts a cluster like [`Cluster::start`], with cluster DNS where its image has been built.
    pub fn start_with_dns(arguments: &[&str]) -> Self {
        let mut cluster = Self::not_started();
        let image = cluster.cache.join("images/coredns.tar");
        cluster.dns = image.exists();
        let image = image.display().to_string();
        let dns: &[&str] = if cluster.dns { &["--dns", &image] } else { &[] };
        cluster.must(&[&["up"], arguments, dns].concat());
        cluster
    }

    /// Reports whether the cluster has cluster DNS.
    pub fn has_dns(&self) -> bool {
        self.dns
    }

    fn not_started() -> Self {
        let home = std::env::var("HOME").unwrap_or("/root".into());
        let cache = PathBuf::from(std::env::var("CACHE").unwrap_or(format!("{home}/.cache/ironclad")));
        Self {
            run: std::env::temp_dir().join(format!("ironclad-e2e-{}", std::process::id())),
            binaries: PathBuf::from(
                std::env::var("BINARIES").expect("BINARIES names the folder of the binaries; make sets it"),
            ),
            cache,
            running: std::cell::Cell::new(true),
            dns: false,
        }
    }

    /// Starts a cluster beside others of the same process.
    pub fn start_named(name: &str, arguments: &[&str]) -> Self {
        let mut cluster = Self::not_started();
        cluster.run.set_extension(name);
        cluster.must(&[&["up"], arguments].concat());
        cluster
    }

    /// Stops it and checks that nothing is left.
    pub fn stop(&self) {
        let names = self.layout().network;
        self.must(&["down"]);
        self.running.set(false);
        assert!(!self.run.exists(), "the run directory is gone");
        let namespaces = run("ip", &["netns", "list"], None).out;
        assert!(!namespaces.contains(&format!("{}-node", names.name)), "no namespace is left: {namespaces}");
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        assert!(!mounts.contains(&format!("{}/", self.run.display())), "no mount is left");
        assert!(!std::path::Path::new("/sys/class/net").join(&names.bridge).exists(), "no bridge is left");
    }

    /// The folder of what is built once: images, and programs of Go modules.
    pub fn cache(&self) -> PathBuf {
        self.cache.clone()
    }

    /// Layout of the cluster's files.
    pub fn layout(&self) -> crate::layout::Layout {
        crate::layout::Layout {
            root: self.run.clone(),
            binaries: self.binaries.clone(),
            dual_stack: false,
            network: crate::layout::Network::of(&self.run),
        }
    }

    fn program(&self, arguments: &[&str]) -> Said {
        let program = self.binaries.join("cluster");
        let run_folder = self.run.display().to_string();
        run(&program.display().to_string(), &[&["--run", run_folder.as_str()], arguments].concat(), None)
    }

    /// Runs the `cluster` program.
    pub fn must(&self, arguments: &[&str]) {
        let said = self.program(arguments);
        assert!(said.ok, "cluster {arguments:?}: {}{}", said.out, said.err);
    }

    /// Imports one of the example images into every node.
    pub fn load(&self, image: &str) {
        self.must(&["load", &self.cache.join(format!("images/{image}.tar")).display().to_string()]);
    }

    /// Returns the shell command that calls kubectl as the administrator.
    pub fn command_line(&self) -> String {
        format!("kubectl --kubeconfig={}", self.run.join("admin.conf").display())
    }

    /// Runs kubectl as the administrator.
    pub fn try_kubectl(&self, arguments: &[&str], input: Option<&str>) -> Said {
        let config = format!("--kubeconfig={}", self.run.join("admin.conf").display());
        run("kubectl", &[&[config.as_str()], arguments].concat(), input)
    }

    /// Runs a kubectl command line that must succeed; returns what it prints.
    pub fn kubectl(&self, line: &str) -> String {
        self.kubectl_args(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs kubectl like [`Cluster::kubectl`], with arguments that have blanks in them.
    pub fn kubectl_args(&self, arguments: &[&str]) -> String {
        let said = self.try_kubectl(arguments, None);
        assert!(said.ok, "kubectl {arguments:?}: {}{}", said.out, said.err);
        said.out
    }

    /// Feeds a manifest to kubectl.
    pub fn feed(&self, line: &str, manifest: &str) -> String {
        let said = self.try_kubectl(&line.split_whitespace().collect::<Vec<_>>(), Some(manifest));
        assert!(said.ok, "kubectl {line}: {}{}", said.out, said.err);
        said.out
    }

    /// Makes a namespace and waits until pods may be created there: admission asks for the namespace's service account,
    /// which a controller makes a moment later.
    pub fn namespace(&self, name: &str) {
        self.kubectl(&format!("create namespace {name}"));
        self.until(&format!("{name} has its service account"), 30, || {
            let said = self.try_kubectl(&["--namespace", name, "get", "serviceaccount", "default"], None);
            if said.ok { Ok(()) } else { Err(said.err) }
        });
    }

    /// A kubectl command line that must fail; returns what it says.
    pub fn refused(&self, line: &str) -> String {
        let said = self.try_kubectl(&line.split_whitespace().collect::<Vec<_>>(), None);
        assert!(!said.ok, "kubectl {line} should have failed, but said: {}", said.out);
        said.err
    }

    /// An object, or a list of objects, as JSON.
    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.kubectl(&format!("{line} -o json"))).expect("kubectl prints JSON")
    }

    /// Asks until the answer is right; panics with `what` and the last answer when it never is.
    pub fn until<T: std::fmt::Debug>(&self, what: &str, seconds: u64, mut ask: impl FnMut() -> Result<T, String>) -> T {
        let start = Instant::now();
        loop {
            match ask() {
                Ok(found) => return found,
                Err(last) if start.elapsed() > Duration::from_secs(seconds) => {
                    self.keep_logs();
                    panic!("{what}: not within {seconds} s; last: {last}");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// The pods with this label, by name.
    pub fn pods(&self, selector: &str) -> Vec<Value> {
        let listed = self.kubectl_args(&["get", "pods", "-l", selector, "-o", "json"]);
        let list: Value = serde_json::from_str(&listed).expect("kubectl prints JSON");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// GETs a page of a node from outside of all pods.
    pub fn curl(&self, url: &str) -> Result<String, String> {
        let said = run("curl", &["-sS", "--globoff", "--fail", "--noproxy", "*", "--max-time", "10", url], None);
        if said.ok { Ok(said.out) } else { Err(said.err) }
    }

    /// Runs a command in a node's namespaces.
    pub fn try_on_node(&self, node: &str, command: &[&str]) -> Said {
        let pid = self.pid(node, "supervisor");
        run("nsenter", &[&["--target", pid.as_str(), "--mount", "--net"], command].concat(), None)
    }

    /// Runs a command like [`Cluster::try_on_node`], which must succeed.
    pub fn on_node(&self, node: &str, command: &[&str]) -> String {
        let said = self.try_on_node(node, command);
        assert!(said.ok, "{command:?} on {node}: {}", said.err);
        said.out
    }

    /// Starts one of the examples in a node's namespaces.
    pub fn start_on_node(&self, node: &str, example: &str, arguments: &[&str]) -> OnNode {
        self.start_program_on_node(node, &self.example(example), arguments)
    }

    /// Starts a program in a node's namespaces.
    pub fn start_program_on_node(&self, node: &str, program: &str, arguments: &[&str]) -> OnNode {
        let pid = self.pid(node, "supervisor");
        let mut command = Command::new("nsenter");
        command.args(["--target", pid.as_str(), "--mount", "--net", program]).args(arguments);
        OnNode(command.stdin(Stdio::null()).spawn().expect("the example starts"))
    }

    /// The path of a program that was built from its Go module.
    pub fn go_program(&self, name: &str) -> Option<String> {
        let path = self.cache.join("go").join(name);
        path.exists().then(|| path.display().to_string())
    }

    /// The path of one of the examples.
    pub fn example(&self, name: &str) -> String {
        self.binaries.join("examples").join(name).display().to_string()
    }

    /// Kills a process of a machine hard, and waits until its supervisor has started it anew.
    pub fn kill(&self, machine: &str, process: &str) {
        let pid = self.pid(machine, process);
        let said = Command::new("kill").args(["-9", &pid]).status().expect("kill runs");
        assert!(said.success(), "{process} of {machine} was running");
        self.until(&format!("{process} of {machine} is back"), 30, || {
            let now = self.pid(machine, process);
            if now == pid { Err(now) } else { Ok(()) }
        });
    }

    /// The pid of a process of a machine.
    pub fn pid(&self, machine: &str, process: &str) -> String {
        let path = self.run.join("machines").join(machine).join(format!("{process}.pid"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim().to_owned()
    }

    /// The log of a process of a machine.
    pub fn log(&self, machine: &str, process: &str) -> String {
        let path = self.run.join("machines").join(machine).join(format!("{process}.log"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Copies the logs of all machines next to the target directory, for whoever looks into a failure.
    pub fn keep_logs(&self) {
        let kept = std::env::temp_dir().join("ironclad-e2e-logs");
        // Logs are a courtesy: a failure to keep them must not hide the failure that is being reported.
        run("cp", &["-r", &self.run.join("machines").display().to_string(), &kept.display().to_string()], None);
        eprintln!("logs kept in {}", kept.display());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.running.get() {
            self.keep_logs();
            let said = self.program(&["down"]);
            if !said.ok {
                eprintln!("the cluster could not be taken down: {}", said.err);
            }
        }
    }
}

/// Returns the URL of a path at an address of either family, which may have a port behind it.
pub fn url(address: &str, rest: &str) -> String {
    if address.contains(':') { format!("http://[{address}]{rest}") } else { format!("http://{address}{rest}") }
}

/// A field of an object as text, empty when it is not there.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Reports whether a pod is Ready and not being deleted.
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let ready = conditions.iter().any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True");
    ready && pod.pointer("/metadata/deletionTimestamp").is_none()
}
