//! A machine outside of the host cluster that joins a tenant with a token, through a port of the host cluster's nodes.

use e2e::layout::{Layout, Node};
use e2e::{down, image, network, node};

use crate::tenant::Tenant;
use e2e::testing::{Cluster, run};

/// The tenant's node, taken away when it is dropped.
pub struct Joined {
    layout: Layout,
    node: Node,
    stopped: std::cell::Cell<bool>,
}

/// Starts a kubelet that knows nothing but what the Secret for nodes that join says.
pub fn by_node_port(cluster: &Cluster, tenant: &Tenant) -> Joined {
    let host = cluster.layout();
    let layout = Layout { root: host.root.with_extension("tenant"), ..host.clone() };
    let node = layout.network.host_named("tenant-1", 31);
    let place = |path: std::path::PathBuf, what: &str, key: &str| {
        std::fs::create_dir_all(path.parent().unwrap_or(&path)).expect("a folder");
        std::fs::write(path, tenant.secret(what, key)).expect("a file");
    };
    place(layout.pki().join("ca.crt"), "join", "ca.crt");
    place(layout.kubeconfig("bootstrap"), "join", "bootstrap-kubelet.conf");
    for key in ["tls.crt", "tls.key", "ca.crt", "kubeconfig"] {
        let name = if key == "kubeconfig" { "kube-proxy.conf" } else { key };
        place(layout.root.join("kubeconfig").join(name), "kube-proxy", key);
    }
    let joined = Joined { layout, node, stopped: std::cell::Cell::new(false) };
    let (layout, node) = (&joined.layout, &joined.node);
    network::namespace(layout, node).expect("a network");
    for known in host.nodes() {
        let range = cluster.kubectl(&format!("get node {} -o jsonpath={{.spec.podCIDR}}", known.name));
        network::route_pods(&known, &range, std::slice::from_ref(node)).expect("a route");
    }
    let pause = image::pause(&host.root.join("images")).expect("a pause image");
    let machine = node::machine(layout, node, &pause, None).expect("a node's files");
    machine.start(layout).expect("a node");
    cluster.until("the tenant's node is ready", 120, || {
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let said = tenant.try_kubectl(&["get", "node", "tenant-1", "-o", path]);
        if said.out == "True" { Ok(()) } else { Err(said.out + &said.err) }
    });
    approve_serving(cluster, tenant);
    joined.load(&image("busybox"));
    let web =
        ["run", "web", "--image=busybox:1.36", "--restart=Never", "--", "sh", "-c", "echo started; exec sleep 10000"];
    let said = tenant.try_kubectl(&web);
    assert!(said.ok, "{}", said.err);
    tenant.kubectl("wait pod/web --for=condition=Ready --timeout=60s");
    joined.still_works(tenant);
    // Who is not a node of this cluster gets nothing: the client certificate is the tenant's own.
    let hosts = cluster.kubectl("get nodes -o name");
    assert!(!hosts.contains("tenant-1"), "{hosts}");
    joined
}

/// The archive of an image that is built once.
pub fn image(name: &str) -> std::path::PathBuf {
    let home = std::env::var("HOME").unwrap_or("/root".into());
    let cache = std::env::var("CACHE").unwrap_or(format!("{home}/.cache/ironclad"));
    std::path::PathBuf::from(cache).join("images").join(format!("{name}.tar"))
}

/// Serving certificates are approved by who looks after the cluster.
fn approve_serving(cluster: &Cluster, tenant: &Tenant) {
    cluster.until("the node asks for a serving certificate", 60, || {
        let path = "jsonpath={.items[?(@.spec.signerName==\"kubernetes.io/kubelet-serving\")].metadata.name}";
        let names = tenant.try_kubectl(&["get", "csr", "-o", path]).out;
        for name in names.split_whitespace() {
            tenant.kubectl(&format!("certificate approve {name}"));
        }
        if names.is_empty() { Err("no request".to_owned()) } else { Ok(()) }
    });
}

impl Joined {
    /// The pod's log and its shell are reached through the API server.
    pub fn still_works(&self, tenant: &Tenant) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let log = tenant.try_kubectl(&["logs", "web"]);
            let shell = tenant.try_kubectl(&["exec", "web", "--", "hostname"]);
            if log.out == "started\n" && shell.out == "web\n" {
                return;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "logs: {}{} exec: {}{}",
                log.out,
                log.err,
                shell.out,
                shell.err
            );
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    /// Imports an archive of images.
    pub fn load(&self, archive: &std::path::Path) {
        node::load(&self.layout, &self.node, archive).expect("the node takes an image");
    }

    /// Lets nobody in any more, neither to the node nor to its pods: what a node behind NAT is like. It goes out as before.
    pub fn hide(&self) {
        for chain in ["INPUT", "FORWARD"] {
            let rule = ["-w", "-I", chain, "-i", "eth0", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP"];
            let exec = ["netns", "exec", self.node.namespace.as_str(), "iptables"];
            let said = run("ip", &[&exec[..], &rule].concat(), None);
            assert!(said.ok, "{}", said.err);
        }
    }

    /// Takes the node away.
    pub fn stop(&self) {
        self.stopped.set(true);
        down::node(&self.layout, &self.node).expect("nothing of the node is left");
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if !self.stopped.get() {
            let logs = self.layout.machine(&self.node.name).display().to_string();
            run(
                "cp",
                &["-r", &logs, &std::env::temp_dir().join("ironclad-e2e-tenant-logs").display().to_string()],
                None,
            );
            self.stop();
        }
    }
}
