//! A Deployment behind a Service, and somebody on the worker who asks it, and the cluster's DNS, four times a second.

use std::path::PathBuf;
use std::process::{Child, Command};

use crate::lab::Lab;

const MANIFEST: &str = include_str!("workload.yaml");
/// Each line of its output is a question that got no answer.
const ASK: &str = r#"
dns=$1 web=$2 asked=$3 failed=$4
while :; do
  busybox nslookup -type=a web.default.svc.cluster.local "$dns" >/dev/null 2>&1 || echo "$(date +%T) dns" >>"$failed"
  curl -sS --max-time 2 "http://$web/" 2>/dev/null | grep -q hello || echo "$(date +%T) web" >>"$failed"
  echo >>"$asked"
  sleep 0.25
done"#;

/// The one who asks.
pub struct Workload {
    child: Child,
    asked: PathBuf,
    failed: PathBuf,
}

impl Workload {
    /// Creates the Deployment and the Service, waits until they answer, and begins to ask.
    pub fn start(lab: &Lab) -> Self {
        lab.load_file("w-1", &lab.cached("images/busybox.tar"));
        let said = lab.fed("cp-1", &["kubectl", "apply", "-f", "-"], MANIFEST);
        assert!(said.ok, "{said:?}");
        lab.must("cp-1", "kubectl rollout status deployment/web --timeout=60s");
        lab.must("cp-1", "kubectl rollout status deployment/coredns -n kube-system --timeout=60s");
        let address = |name: &str, namespace: &str| {
            let service = lab.json("cp-1", &format!("service {name} -n {namespace}")).expect("the Service");
            service["spec"]["clusterIP"].as_str().expect("an address").to_owned()
        };
        let (dns, web) = (address("kube-dns", "kube-system"), address("web", "default"));
        lab.until("the Service answers on the worker", 30, || {
            let said = lab.on("w-1", &["curl", "-sS", "--max-time", "2", &format!("http://{web}/")]);
            if said.out.contains("hello") { Ok(()) } else { Err(said.err) }
        });
        lab.until("DNS answers on the worker", 30, || {
            let said = lab.on("w-1", &["busybox", "nslookup", "-type=a", "web.default.svc.cluster.local", &dns]);
            if said.out.contains(&web) { Ok(()) } else { Err(format!("{said:?}")) }
        });
        let [asked, failed] = ["asked", "failed"].map(|name| lab.file("w-1", &format!("/var/lib/cni/{name}")));
        let paths = [asked.display().to_string(), failed.display().to_string()];
        let child = Command::new("nsenter")
            .args(["--target", &lab.pid("w-1"), "--net", "sh", "-c", ASK, "ask", &dns, &web])
            .args(paths)
            .spawn()
            .expect("nsenter runs");
        Self { child, asked, failed }
    }

    /// Every question was answered.
    pub fn end(mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        let lines = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let (asked, failed) = (lines(&self.asked).lines().count(), lines(&self.failed));
        eprintln!("==> asked {asked} times, {} without an answer", failed.lines().count());
        assert!(asked > 20, "it was asked {asked} times");
        assert!(failed.is_empty(), "no answer at:\n{failed}");
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
