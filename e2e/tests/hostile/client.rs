//! Requests as a tenant writes them: by curl, with the path as it stands, so that no client library mends them.

use std::path::PathBuf;

use serde_json::{Value, json};

use e2e::testing::{Cluster, run, text};

/// The namespace of the attacker.
pub const MINE: &str = "mallory";
/// The namespace of the other tenant.
pub const THEIRS: &str = "alice";
/// Data of the other tenant's Secret, as the API shows it.
pub const THEIR_SECRET: &str = "Y2Fubm90IGJlIHJlYWQ=";
/// The API server.
pub const SERVER: &str = "https://10.89.0.1:6443";

/// The cluster with its two tenants, seen by those who attack.
pub struct Arena<'a> {
    pub cluster: &'a Cluster,
    authority: PathBuf,
    tenant: String,
}

/// A status code and a body; code 0 when no answer came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    /// The body as JSON, null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

impl<'a> Arena<'a> {
    /// Makes both namespaces, the attacker's account with everything in its own, and a quota on it.
    pub fn prepare(cluster: &'a Cluster) -> Self {
        for namespace in [MINE, THEIRS] {
            cluster.kubectl(&format!("create namespace {namespace}"));
        }
        cluster.kubectl(&format!("-n {MINE} create serviceaccount eve"));
        cluster.kubectl(&format!("-n {MINE} create rolebinding admin --clusterrole=admin --serviceaccount={MINE}:eve"));
        cluster.feed(
            "apply -f -",
            &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"name": "everything", "namespace": MINE},
                "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})
            .to_string(),
        );
        cluster.kubectl(&format!("-n {MINE} create rolebinding all --role=everything --serviceaccount={MINE}:eve"));
        cluster.kubectl(&format!("-n {MINE} create quota pods --hard=pods=15"));
        cluster.kubectl_args(&[
            "-n",
            THEIRS,
            "create",
            "secret",
            "generic",
            "private",
            "--from-literal=k=cannot be read",
        ]);
        let tenant = cluster.kubectl(&format!("-n {MINE} create token eve --duration=24h")).trim().to_owned();
        Self { cluster, authority: cluster.layout().pki().join("ca.crt"), tenant }
    }

    /// The arguments of curl for one request with a token. Over HTTP/1.1: an answer that comes before all of the body was
    /// sent is an error to Debian's curl over HTTP/2, Go's servers too.
    fn curl(&self, method: &str, target: &str, token: &str, more: &[&str]) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["-sS", "--http1.1", "--path-as-is", "--globoff", "--noproxy", "*", "--max-time", "60"]
                .iter()
                .chain(&["--cacert", &self.authority.display().to_string(), "-X", method])
                .chain(&["-H", &format!("Authorization: Bearer {token}"), "-w", "\n%{http_code}"])
                .chain(more)
                .map(|&argument| argument.to_owned())
                .collect();
        arguments.push(format!("{SERVER}{target}"));
        arguments
    }

    /// The arguments of curl for a request of the tenant.
    pub fn curl_arguments(&self, method: &str, target: &str, more: &[&str]) -> Vec<String> {
        self.curl(method, target, &self.tenant, more)
    }

    /// Sends a request of the tenant with more arguments for curl and this body.
    pub fn send(&self, method: &str, target: &str, more: &[&str], body: Option<&str>) -> Answer {
        self.send_as(&self.tenant, method, target, more, body)
    }

    /// Sends a request as [`Arena::send`] does, with another token.
    pub fn send_as(&self, token: &str, method: &str, target: &str, more: &[&str], body: Option<&str>) -> Answer {
        let with_body: &[&str] = if body.is_some() { &["--data-binary", "@-"] } else { &[] };
        let arguments = self.curl(method, target, token, &[more, with_body].concat());
        let said = run("curl", &arguments.iter().map(String::as_str).collect::<Vec<_>>(), body);
        let (body, status) = said.out.rsplit_once('\n').unwrap_or(("", "0"));
        let body = if said.ok { body.to_owned() } else { format!("{body}{}", said.err) };
        Answer { status: status.parse().unwrap_or(0), body }
    }

    /// Sends a request without a body.
    pub fn ask(&self, method: &str, target: &str) -> Answer {
        self.send(method, target, &[], None)
    }

    /// Creates an object.
    pub fn post(&self, target: &str, object: &Value) -> Answer {
        self.send("POST", target, &["-H", "Content-Type: application/json"], Some(&object.to_string()))
    }

    /// Patches an object by a merge patch.
    pub fn patch(&self, target: &str, change: &Value) -> Answer {
        let kind = "Content-Type: application/merge-patch+json";
        self.send("PATCH", target, &["-H", kind], Some(&change.to_string()))
    }

    /// Builds the configuration of curl for requests of the tenant: method, target and body of each.
    pub fn curl_config(&self, requests: impl Iterator<Item = (String, String, Option<String>)>) -> String {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let one = |(method, target, body): (String, String, Option<String>)| {
            let body = body.map_or(String::new(), |body| format!("data-binary = \"{}\"\n", quoted(&body)));
            format!(
                "url = \"{SERVER}{}\"\nrequest = {method}\ncacert = \"{}\"\nmax-time = 60\nnoproxy = \"*\"\n\
                 header = \"Authorization: Bearer {}\"\nheader = \"Content-Type: application/json\"\n\
                 output = /dev/null\nwrite-out = \"%{{http_code}}\\n\"\n{body}",
                quoted(&target),
                self.authority.display(),
                self.tenant
            )
        };
        requests.map(one).collect::<Vec<_>>().join("next\n")
    }

    /// Sends requests, up to `parallel` at once, and returns the status codes as they came.
    pub fn flood(&self, parallel: usize, requests: impl Iterator<Item = (String, String, Option<String>)>) -> Vec<u16> {
        let config = self.curl_config(requests);
        let arguments = parallel_curl(parallel);
        let said = run("curl", &arguments.each_ref().map(String::as_str), Some(&config));
        said.out.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Waits until a pod of the tenant runs.
    pub fn wait_until_running(&self, pod: &str) {
        self.cluster.until(&format!("pod {pod} runs"), 30, || {
            let answer = self.ask("GET", &mine("pods", pod));
            match text(&answer.json(), "/status/phase") {
                "Running" => Ok(()),
                _ => Err(answer.body),
            }
        });
    }

    /// Waits until an object of the tenant is gone.
    pub fn wait_until_gone(&self, target: &str, seconds: u64) {
        self.cluster.until(&format!("{target} is gone"), seconds, || {
            let answer = self.ask("GET", target);
            if answer.status == 404 { Ok(()) } else { Err(answer.body) }
        });
    }

    /// Removes what attacks leave that would run on: the tenant's workloads and pods.
    pub fn clean_up(&self) {
        for (group, resource) in [
            ("batch/v1", "cronjobs"),
            ("batch/v1", "jobs"),
            ("apps/v1", "deployments"),
            ("apps/v1", "statefulsets"),
            ("apps/v1", "daemonsets"),
            ("apps/v1", "replicasets"),
            ("autoscaling/v2", "horizontalpodautoscalers"),
        ] {
            self.ask("DELETE", &format!("/apis/{group}/namespaces/{MINE}/{resource}?propagationPolicy=Background"));
        }
        self.ask("DELETE", &format!("{}?gracePeriodSeconds=0", mine("pods", "")));
    }
}

/// The arguments of curl for up to `parallel` requests at once, from a configuration on its standard input.
pub fn parallel_curl(parallel: usize) -> [String; 5] {
    ["-sSZ", "--parallel-max", &parallel.to_string(), "-K", "-"].map(str::to_owned)
}

/// The path of an object of the core group in the tenant's namespace, or of the collection without a name.
pub fn mine(resource: &str, name: &str) -> String {
    of_group("", resource, name)
}

/// Path of an object in a group with its version, such as `apps/v1`.
pub fn of_group(group: &str, resource: &str, name: &str) -> String {
    let root = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}") };
    let name = if name.is_empty() { String::new() } else { format!("/{name}") };
    format!("{root}/namespaces/{MINE}/{resource}{name}")
}

/// A pod of the tenant that sleeps, with more fields of its spec.
pub fn pod(name: &str, more: &Value) -> Value {
    let mut spec = json!({"terminationGracePeriodSeconds": 0, "containers": [container(&["sleep", "3600"])]});
    merge(&mut spec, more);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// A container that runs a command of busybox.
pub fn container(command: &[&str]) -> Value {
    json!({"name": "main", "image": "busybox:1.36", "command": command})
}

/// Puts the members of one JSON object over those of another.
pub fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
