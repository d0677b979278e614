//! A tenant: a release of the chart, and its cluster as the tenant's administrator sees it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;

use crate::{CHART, Helm, VERSION};
use e2e::testing::{Cluster, Said, run, text};

const NAMESPACE: &str = "tenants";

/// A release in a cluster.
pub struct Tenant<'a> {
    host: &'a Cluster,
    /// The release.
    pub name: String,
    values: Vec<String>,
    config: PathBuf,
}

impl<'a> Tenant<'a> {
    /// Installs a release and waits until it is whole.
    pub fn install(host: &'a Cluster, helm: &Helm, name: &str, values: &[&str]) -> Self {
        let config = host.layout().root.join(format!("{name}.conf"));
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let tenant = Self { host, name: name.into(), values, config };
        tenant.helm(helm, &["install", name, CHART], &[]);
        std::fs::write(&tenant.config, tenant.secret("admin", "admin.conf")).expect("a kubeconfig can be written");
        tenant
    }

    fn helm(&self, helm: &Helm, what: &[&str], more: &[&str]) -> String {
        let values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        helm.must(self.host, &[what, &["-n", NAMESPACE, "--wait", "--timeout=4m"], &values, more].concat())
    }

    /// An entry of one of its Secrets.
    pub fn secret(&self, what: &str, key: &str) -> Vec<u8> {
        let secret = self.host.json(&format!("get secret -n {NAMESPACE} {}-control-plane-{what}", self.name));
        let data = text(&secret, &format!("/data/{}", key.replace('/', "~1")));
        BASE64_STANDARD.decode(data).expect("Secrets are base64")
    }

    /// Runs kubectl as the tenant's administrator.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Said {
        self.fed(arguments, None)
    }

    /// Runs kubectl as [`Tenant::try_kubectl`] does, with this on its standard input.
    pub fn fed(&self, arguments: &[&str], input: Option<&str>) -> Said {
        let config = format!("--kubeconfig={}", self.config.display());
        run("kubectl", &[&[config.as_str()], arguments].concat(), input)
    }

    /// Runs kubectl as [`Tenant::try_kubectl`] does, must succeed, and returns the output.
    pub fn kubectl(&self, line: &str) -> String {
        let said = self.try_kubectl(&line.split_whitespace().collect::<Vec<_>>());
        assert!(said.ok, "kubectl {line} as {}: {}{}", self.name, said.out, said.err);
        said.out
    }

    /// The chart's own test passes.
    pub fn passes_its_test(&self, helm: &Helm) {
        helm.must(self.host, &["test", &self.name, "-n", NAMESPACE, "--timeout=2m"]);
    }

    /// The chart's own test passes, the administrator gets in, and nodes find all that `kubeadm join` asks for.
    pub fn works(&self, helm: &Helm) {
        self.passes_its_test(helm);
        assert_eq!(self.kubectl("get --raw /readyz"), "ok");
        for (namespace, map) in
            [("kube-public", "cluster-info"), ("kube-system", "kubeadm-config"), ("kube-system", "kubelet-config")]
        {
            self.kubectl(&format!("get configmap -n {namespace} {map}"));
        }
        let token = String::from_utf8(self.secret("join", "token")).expect("a token is text");
        let signature = format!("jws-kubeconfig-{}", token.split('.').next().unwrap_or_default());
        self.host.until("cluster-info is signed", 30, || {
            let map = self.kubectl("get configmap -n kube-public cluster-info -o json");
            let map: Value = serde_json::from_str(&map).map_err(|error| error.to_string())?;
            map["data"].get(&signature).map(drop).ok_or_else(|| map["data"].to_string())
        });
        let addresses =
            self.kubectl("get endpointslice kubernetes -o jsonpath={.endpoints[*].addresses[*]}:{.ports[*].port}");
        assert_eq!(addresses, format!("{}:30443", endpoint(self.host)));
        // Pods of the control plane run as nobody, and none was killed on the way up.
        let pods = self.host.json(&format!("get pods -n {NAMESPACE} -l app.kubernetes.io/instance={}", self.name));
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        assert_eq!(pods.len(), 7, "etcd and two of each other component");
        for pod in pods {
            assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 65532);
            assert_eq!(pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
            assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{}", pod["metadata"]["name"]);
        }
    }

    /// Images have the zones that schedules are in.
    pub fn knows_time_zones(&self) {
        let manifest = |zone: &str| {
            format!(
                r#"{{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {{"name": "zoned"}}, "spec": {{
                "schedule": "0 0 1 1 *", "timeZone": "{zone}", "jobTemplate": {{"spec": {{"template": {{"spec": {{
                "restartPolicy": "Never", "containers": [{{"name": "c", "image": "busybox:1.36"}}]}}}}}}}}}}}}"#
            )
        };
        let create = |zone: &str| self.fed(&["create", "-f", "-"], Some(&manifest(zone)));
        let refused = create("Mars/Olympus").err;
        assert!(refused.contains("unknown time zone Mars/Olympus"), "{refused}");
        let made = create("Asia/Kolkata");
        assert!(made.ok, "{}", made.err);
        // Time for the controller manager to look at the schedule.
        std::thread::sleep(Duration::from_secs(3));
        let events = self.kubectl("get events -o jsonpath={.items[*].reason}");
        assert!(!events.contains("UnknownTimeZone"), "{events}");
        self.kubectl("delete cronjob zoned");
    }

    /// Clients from outside of the host cluster come in at the address that its Service got.
    pub fn is_behind_its_load_balancer(&self) {
        let service = self.host.json(&format!("get service -n {NAMESPACE} {}-control-plane", self.name));
        let address = text(&service, "/status/loadBalancer/ingress/0/ip");
        let config = String::from_utf8(self.secret("admin", "admin.conf")).expect("a kubeconfig is text");
        assert!(config.contains(&format!("https://{address}:6443")), "{config}");
        assert_eq!(self.kubectl("get --raw /readyz"), "ok");
        let endpoints = "get endpointslice kubernetes -o jsonpath={.endpoints[*].addresses[*]}:{.ports[*].port}";
        assert_eq!(self.kubectl(endpoints), format!("{address}:6443"));
    }

    /// With two of three members of etcd left everything works.
    pub fn survives_a_lost_member(&self, helm: &Helm, has_three: bool) {
        if !has_three {
            return;
        }
        self.host.kubectl(&format!("delete pod -n {NAMESPACE} {}-control-plane-etcd-1 --wait=false", self.name));
        self.passes_its_test(helm);
    }

    /// Neither its token nor its administrator is known to the other.
    pub fn is_apart_from(&self, other: &Tenant) {
        let token = String::from_utf8(other.secret("join", "token")).expect("a token is text");
        let service = self.host.json(&format!("get service -n {NAMESPACE} {}-control-plane", self.name));
        let own = format!("https://{}:6443/api", text(&service, "/status/loadBalancer/ingress/0/ip"));
        let bearer = format!("Authorization: Bearer {token}");
        let status = |url: &str, user: &[&str]| {
            let asked = ["-sk", "--noproxy", "*", "--max-time", "10", "-o", "/dev/null", "-w", "%{http_code}"];
            run("curl", &[&asked, user, &[url]].concat(), None).out
        };
        self.host.until("a tenant's own token is good", 30, || {
            let code = status(&format!("https://{}:30443/api", endpoint(self.host)), &["-H", &bearer]);
            if code == "200" { Ok(()) } else { Err(code) }
        });
        assert_eq!(status(&own, &["-H", &bearer]), "401", "another's token");
        assert_ne!(self.secret("ca", "ca.crt"), other.secret("ca", "ca.crt"));
        // An administrator of one shows his certificate to the other.
        let (certificate, key) = (other.file("admin", "tls.crt"), other.file("admin", "tls.key"));
        assert_eq!(status(&own, &["--cert", &certificate, "--key", &key]), "401", "another's certificate");
    }

    /// An entry of a Secret as a file; its path.
    pub fn file(&self, what: &str, key: &str) -> String {
        let path = self.host.layout().root.join(format!("{}-{what}-{key}", self.name));
        std::fs::write(&path, self.secret(what, key)).expect("a file can be written");
        path.display().to_string()
    }

    /// While all its pods but etcd's are replaced, every write succeeds and its identity stays.
    pub fn is_upgraded_under_load(&self, helm: &Helm, tag: &str, values: &[&str]) {
        self.is_changed_under_load(helm, &[&[format!("--set=images.tag={tag}").as_str()], values].concat());
        self.runs(tag);
    }

    /// The tenant has these values from now on, and no write failed while its API servers were replaced.
    pub fn gets(&mut self, helm: &Helm, values: &[&str]) {
        self.values.extend(values.iter().map(|value| (*value).to_owned()));
        self.is_changed_under_load(helm, &[]);
    }

    fn is_changed_under_load(&self, helm: &Helm, values: &[&str]) {
        let authority = self.secret("ca", "ca.crt");
        let load = Load::start(self);
        self.helm(helm, &["upgrade", &self.name, CHART], values);
        load.stop();
        assert_eq!(self.secret("ca", "ca.crt"), authority, "the authority is kept");
    }

    /// An earlier revision of the release is back, with what was written since.
    pub fn is_rolled_back(&self, helm: &Helm, revision: &str) {
        let load = Load::start(self);
        helm.must(self.host, &["rollback", &self.name, revision, "-n", NAMESPACE, "--wait", "--timeout=4m"]);
        load.stop();
        self.runs(VERSION);
    }

    fn runs(&self, tag: &str) {
        let selector = format!("app.kubernetes.io/instance={},app.kubernetes.io/component=kube-apiserver", self.name);
        self.host.until(&format!("{} runs {tag}", self.name), 120, || {
            let pods = self.host.json(&format!("get pods -n {NAMESPACE} -l {selector}"));
            let pods = pods["items"].as_array().cloned().unwrap_or_default();
            let staying = pods.iter().filter(|pod| pod.pointer("/metadata/deletionTimestamp").is_none());
            let images: Vec<&str> = staying.map(|pod| text(pod, "/spec/containers/0/image")).collect();
            let all = images.len() == 2 && images.iter().all(|image| image.ends_with(&format!(":{tag}")));
            if all { Ok(()) } else { Err(images.join(" ")) }
        });
        let version: Value = serde_json::from_str(&self.kubectl("get --raw /version")).expect("JSON");
        assert_eq!(version["gitVersion"], tag);
        let told = self.kubectl("get configmap -n kube-system kubeadm-config -o jsonpath={.data.ClusterConfiguration}");
        assert!(told.contains(&format!("kubernetesVersion: {tag}\n")), "{told}");
    }

    /// Takes the release away.
    pub fn uninstall(&self, helm: &Helm) {
        helm.must(self.host, &["uninstall", &self.name, "-n", NAMESPACE, "--wait", "--timeout=3m"]);
    }
}

/// The address at which a tenant's node port is reached: that of the first node.
pub fn endpoint(host: &Cluster) -> String {
    host.layout().nodes().first().map(|node| node.address.clone()).expect("the host cluster has a node")
}

/// Somebody who writes all the time.
struct Load {
    end: Arc<AtomicBool>,
    worker: JoinHandle<(usize, Vec<String>)>,
}

impl Load {
    fn start(tenant: &Tenant) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let (seen, config) = (Arc::clone(&end), format!("--kubeconfig={}", tenant.config.display()));
        let worker = std::thread::spawn(move || {
            let (mut written, mut failures) = (0, Vec::new());
            while !seen.load(Ordering::Relaxed) {
                let name = format!("written-{:?}-{written}", std::time::SystemTime::now())
                    .replace(|c: char| !c.is_ascii_alphanumeric(), "-")
                    .to_lowercase();
                let name = name.trim_matches('-').to_owned();
                let said = run("kubectl", &[&config, "create", "configmap", &name, "--request-timeout=20s"], None);
                written += 1;
                if !said.ok {
                    failures.push(said.err);
                }
            }
            (written, failures)
        });
        Self { end, worker }
    }

    fn stop(self) {
        self.end.store(true, Ordering::Relaxed);
        let (written, failures) = self.worker.join().expect("the writer ends");
        eprintln!("{written} writes, {} failed", failures.len());
        assert!(written > 10, "there was load");
        assert!(failures.is_empty(), "{failures:?}");
    }
}
