//! The real kubelet on a real containerd of its own: static pods come up, are restarted, survive a restart of the
//! kubelet, and leave nothing behind. Needs root, containerd, runc and a static busybox; says so when they are missing.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::collector::{Collector, Span};

const IMAGE: &str = "ironclad.test/busybox:1";
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns why the test cannot run here, if it cannot.
fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root".into());
    }
    for program in ["containerd", "ctr", "runc", "tar", "busybox"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return Some(format!("{program} is not installed"));
        }
    }
    None
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("starts");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not happen in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A machine: containerd and kubelet below one temporary folder, both ended with it.
struct Machine {
    folder: PathBuf,
    port: u16,
    health: u16,
    containerd: Child,
    kubelet: Option<Child>,
    /// Collector of traces, and the runtime that it runs on.
    collector: (Collector, tokio::runtime::Runtime),
}

impl Machine {
    fn new(folder: PathBuf) -> Self {
        for sub in ["manifests", "logs", "kubelet"] {
            fs::create_dir_all(folder.join(sub)).expect("folder");
        }
        let text = |path: &Path| path.display().to_string();
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\n  address = {:?}\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = {IMAGE:?}\n  \
             restrict_oom_score_adj = true\n  disable_apparmor = true\n  stream_server_port = \"0\"\n",
            text(&folder.join("root")),
            text(&folder.join("state")),
            text(&folder.join("sock")),
        );
        let file = folder.join("containerd.toml");
        fs::write(&file, config).expect("written");
        let log = fs::File::create(folder.join("containerd.log")).expect("log");
        let containerd = Command::new("containerd")
            .args(["--config", &text(&file)])
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("containerd starts");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("built");
        let collector = (runtime.block_on(Collector::start()), runtime);
        let machine = Self { port: free_port(), health: free_port(), folder, containerd, kubelet: None, collector };
        wait_for("containerd's socket", || machine.folder.join("sock").exists().then_some(()));
        machine.import_busybox();
        machine
    }

    fn ctr(&self, arguments: &[&str]) -> String {
        let socket = self.folder.join("sock").display().to_string();
        let output = Command::new("ctr")
            .args(["--address", &socket, "--namespace", "k8s.io"])
            .args(arguments)
            .output()
            .expect("ctr");
        assert!(output.status.success(), "ctr {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// One image serves as everything: what a sandbox runs is a shell that waits.
    fn import_busybox(&self) {
        let (root, image) = (self.folder.join("busybox"), self.folder.join("image"));
        fs::create_dir_all(root.join("bin")).expect("folder");
        fs::create_dir_all(&image).expect("folder");
        run(
            "sh",
            &[
                "-c",
                &format!("cp $(command -v busybox) {0}/busybox && ln -s busybox {0}/sh", root.join("bin").display()),
            ],
        );
        let layer = image.join("layer.tar");
        run(
            "tar",
            &[
                "--create",
                "--owner=0",
                "--group=0",
                "--file",
                &layer.display().to_string(),
                "--directory",
                &root.display().to_string(),
                ".",
            ],
        );
        let digest = |bytes: &[u8]| format!("{:x}", Sha256::digest(bytes));
        let diff = digest(&fs::read(&layer).expect("layer"));
        let config = json!({
            "architecture": shared::version::ARCH, "os": "linux", "created": "1970-01-01T00:00:00Z",
            "config": {"Entrypoint": ["/bin/sh", "-c", "trap exit TERM; while true; do busybox sleep 1000000 & wait; done"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
            "history": [{"created": "1970-01-01T00:00:00Z"}],
        });
        let config = serde_json::to_vec(&config).expect("JSON");
        let name = format!("{}.json", digest(&config));
        fs::write(image.join(&name), config).expect("written");
        let manifest = json!([{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
        fs::write(image.join("manifest.json"), manifest.to_string()).expect("written");
        let archive = self.folder.join("image.tar").display().to_string();
        run(
            "tar",
            &[
                "--create",
                "--file",
                &archive,
                "--directory",
                &image.display().to_string(),
                "manifest.json",
                &name,
                "layer.tar",
            ],
        );
        wait_for("containerd's answer", || {
            let socket = self.folder.join("sock").display().to_string();
            let imported = Command::new("ctr")
                .args(["--address", &socket, "--namespace", "k8s.io", "images", "import", &archive])
                .output();
            imported.is_ok_and(|output| output.status.success()).then_some(())
        });
    }

    fn start_kubelet(&mut self) {
        let text = |sub: &str| self.folder.join(sub).display().to_string();
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": "127.0.0.1", "port": free_port(), "readOnlyPort": self.port, "healthzPort": self.health,
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupsPerQOS": false, "enforceNodeAllocatable": [], "failCgroupV1": false, "failSwapOn": false,
            // Rules of this machine are not the test's.
            "makeIPTablesUtilChains": false,
            "containerRuntimeEndpoint": format!("unix://{}", text("sock")),
            "staticPodPath": text("manifests"), "podLogsDir": text("logs"),
            "tracing": {"endpoint": self.collector.0.address(), "samplingRatePerMillion": 1_000_000},
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        });
        fs::write(self.folder.join("kubelet.yaml"), config.to_string()).expect("written");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("kubelet.log")).expect("log");
        let kubelet = Command::new(env!("CARGO_BIN_EXE_kubelet"))
            .args([
                format!("--config={}", text("kubelet.yaml")),
                format!("--root-dir={}", text("kubelet")),
                format!("--cert-dir={}", text("pki")),
                "--hostname-override=test".into(),
                "--node-ip=127.0.0.1".into(),
            ])
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("kubelet starts");
        self.kubelet = Some(kubelet);
        wait_for("the kubelet's health", || (self.get(self.health, "/healthz")? == "ok").then_some(()));
    }

    fn stop_kubelet(&mut self) {
        let Some(mut kubelet) = self.kubelet.take() else { return };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(kubelet.id()).expect("pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signalled");
        assert!(kubelet.wait().expect("ends").success());
    }

    fn get(&self, port: u16, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }

    /// Asserts that work for a pod stands in its trace, and work for no pod in one of its own.
    fn traces(&self, uid: &str) {
        let below = |all: &[Span], of: &Span| -> Vec<String> {
            all.iter().filter(|span| span.parent == of.id).map(|span| span.name.clone()).collect()
        };
        let calls =
            ["RunPodSandbox", "CreateContainer", "StartContainer"].map(|m| format!("runtime.v1.RuntimeService/{m}"));
        let (sync, all) = wait_for("the pod's trace", || {
            let all = self.collector.0.of("kubelet");
            let made = |span: &&Span| span.name == "syncPod" && calls.iter().all(|c| below(&all, span).contains(c));
            all.iter().find(made).cloned().map(|span| (span, all.clone()))
        });
        for (key, want) in [
            ("k8s.pod.uid", uid),
            ("k8s.pod", "default/web-test"),
            ("k8s.pod.name", "web-test"),
            ("k8s.pod.update_type", "create"),
            ("k8s.namespace.name", "default"),
        ] {
            assert_eq!(sync.text(key), want);
        }
        let call = all.iter().find(|span| span.name == calls[0]).expect("a call");
        let said = ["rpc.system", "rpc.service", "rpc.method"].map(|key| call.text(key));
        assert_eq!(said, ["grpc", "runtime.v1.RuntimeService", "RunPodSandbox"]);
        wait_for("a call of nobody's", || {
            let lists = |span: &Span| span.name.ends_with("/ListPodSandbox") && span.parent.is_empty();
            self.collector.0.of("kubelet").iter().any(lists).then_some(())
        });
    }

    /// The status of the only container of the only pod, once `accept` likes it.
    fn container(&self, what: &str, accept: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, || {
            let pods: Value = serde_json::from_str(&self.get(self.port, "/pods")?).ok()?;
            let status = pods["items"][0]["status"]["containerStatuses"][0].clone();
            accept(&status).then_some(status)
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut kubelet) = self.kubelet.take() {
            kubelet.kill().ok();
            kubelet.wait().ok();
        }
        self.containerd.kill().ok();
        self.containerd.wait().ok();
        Command::new("rm").args(["-rf", "--one-file-system"]).arg(&self.folder).status().ok();
    }
}

#[test]
fn a_static_pod_lives_and_dies() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let folder = std::env::temp_dir().join(format!("ironclad-kubelet-{}", std::process::id()));
    let mut machine = Machine::new(folder.clone());
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "hostNetwork": true, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "echo started on $NODE; echo end > /dev/termination-log; exec busybox sleep 765432"],
                "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "volumeMounts": [{"name": "d", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "d", "emptyDir": {}}],
        },
    });
    fs::write(folder.join("manifests/web.json"), manifest.to_string()).expect("written");
    machine.start_kubelet();

    let first = machine
        .container("the container's start", |status| status["state"]["running"].is_object() && status["ready"] == true);
    let pods: Value = serde_json::from_str(&machine.get(machine.port, "/pods").expect("pods")).expect("JSON");
    let pod = &pods["items"][0];
    assert_eq!(
        (pod["metadata"]["name"].as_str(), pod["status"]["phase"].as_str()),
        (Some("web-test"), Some("Running"))
    );
    let log = folder
        .join("logs")
        .join(format!("default_web-test_{}", pod["metadata"]["uid"].as_str().expect("uid")))
        .join("c/0.log");
    wait_for("the log line", || fs::read_to_string(&log).ok()?.contains(" stdout F started on test").then_some(()));

    machine.traces(pod["metadata"]["uid"].as_str().expect("uid"));

    // A kubelet that ends leaves its pods alone, and the next one takes them over.
    machine.stop_kubelet();
    machine.start_kubelet();
    let adopted = machine.container("the adoption", |status| status["state"]["running"].is_object());
    assert_eq!(adopted["containerID"], first["containerID"]);

    // What dies is started again; the last state says how it ended.
    let id = first["containerID"].as_str().expect("id").trim_start_matches("containerd://").to_owned();
    machine.ctr(&["tasks", "kill", "--signal", "SIGKILL", &id]);
    let restarted = machine
        .container("the restart", |status| status["restartCount"] == 1 && status["state"]["running"].is_object());
    let last = &restarted["lastState"]["terminated"];
    assert_eq!(
        (last["exitCode"].as_i64(), last["reason"].as_str(), last["message"].as_str()),
        (Some(137), Some("Error"), Some("end\n"))
    );

    fs::remove_file(folder.join("manifests/web.json")).expect("removed");
    wait_for("the pod's end", || machine.ctr(&["containers", "ls", "--quiet"]).trim().is_empty().then_some(()));
    wait_for("the clean-up", || fs::read_dir(folder.join("kubelet/pods")).ok()?.next().is_none().then_some(()));
    machine.stop_kubelet();
}
