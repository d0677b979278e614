//! A node machine: containerd, kubelet and kube-proxy in namespaces of their own, at the
//! paths they have on any server.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::layout::{Layout, Node, PAUSE_IMAGE};
use crate::machine::{Machine, Process};
use crate::{dns, shell};

const SOCKET: &str = "/run/containerd/containerd.sock";
/// Folders of a node that are its own: (name on its disk, standard path).
pub const FOLDERS: [(&str, &str); 11] = [
    ("var-lib-kubelet", "/var/lib/kubelet"),
    ("var-lib-containerd", "/var/lib/containerd"),
    ("var-lib-cni", "/var/lib/cni"),
    ("var-lib-etcd", "/var/lib/etcd"),
    ("var-log-pods", "/var/log/pods"),
    ("var-log-containers", "/var/log/containers"),
    ("run-containerd", "/run/containerd"),
    ("run-netns", "/run/netns"),
    ("opt-containerd", "/opt/containerd"),
    ("etc-cni", "/etc/cni/net.d"),
    ("etc-kubernetes", "/etc/kubernetes"),
];

/// Writes a worker's configuration files and returns its specification: a host with a network of its own and a
/// kube-proxy. Where there is an image of cluster DNS, it has that as well, and its pods ask there.
///
/// # Errors
/// When a file cannot be written.
pub fn machine(layout: &Layout, node: &Node, pause: &Path, dns: Option<&Path>) -> Result<Machine> {
    let images: Vec<PathBuf> = [Some(pause), dns].into_iter().flatten().map(Path::to_path_buf).collect();
    let mut machine = host(layout, node, &images, dns.is_some())?;
    let proxy = write(layout, node, "kube-proxy.yaml", format!("{:#}\n", proxy_config(layout, node)))?;
    machine.netns = Some(Path::new("/run/netns").join(&node.namespace));
    machine.processes.push(Process::new("kube-proxy", layout.binary("kube-proxy"), vec![format!("--config={proxy}")]));
    Ok(machine)
}

/// containerd and a kubelet on the host's network, with these images imported before the kubelet starts; `dns` says
/// whether the cluster has its own.
///
/// # Errors
/// When a file cannot be written.
pub fn host(layout: &Layout, node: &Node, images: &[PathBuf], dns: bool) -> Result<Machine> {
    let disk = layout.disk(&node.name);
    let manifests = disk.join("etc-kubernetes/manifests");
    fs::create_dir_all(&manifests).with_context(|| format!("cannot make {}", manifests.display()))?;
    make_cgroup(node)?;
    let cni_template = write(layout, node, "cni.template", cni_template(layout.dual_stack))?;
    let containerd = write(layout, node, "containerd.toml", containerd_toml(&cni_template))?;
    let kubelet = write(layout, node, "kubelet.yaml", format!("{:#}\n", kubelet_config(layout, node, dns)))?;

    let binds = FOLDERS.iter().map(|(name, path)| (disk.join(name), path.into())).collect();
    Ok(Machine {
        name: node.name.clone(),
        folder: layout.machine(&node.name),
        netns: None,
        hostname: None,
        binds,
        processes: vec![
            Process::new("containerd", "containerd".into(), vec!["--config".into(), containerd]),
            kubelet_process(layout, node, kubelet, images),
        ],
    })
}

/// Writes one of a node's configuration files and returns its path.
fn write(layout: &Layout, node: &Node, name: &str, text: String) -> Result<String> {
    let folder = layout.disk(&node.name).join("config");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}

/// Every folder on the host that a node's bind mounts need as a target.
#[must_use]
pub fn mount_points() -> Vec<&'static str> {
    FOLDERS.iter().map(|(_, path)| *path).collect()
}

/// The cgroup controllers' mount points: one on v2, one a controller on v1.
#[must_use]
pub fn cgroup_mounts() -> Vec<std::path::PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_path_buf()];
    }
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

/// The kubelet refuses a `cgroupRoot` that does not exist, so it is made here, with the
/// CPUs and memory nodes that v1's cpuset wants before it takes a process.
///
/// # Errors
/// When a folder cannot be made.
pub fn make_cgroup(node: &Node) -> Result<()> {
    for mount in cgroup_mounts() {
        let mut path = mount.clone();
        for part in node.cgroup.trim_start_matches('/').split('/') {
            let parent = path.clone();
            path = path.join(part);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(value) = fs::read_to_string(parent.join(file)) {
                    fs::write(path.join(file), value.trim()).ok();
                }
            }
            let controllers = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
            for controller in controllers.split_whitespace() {
                fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}")).ok();
            }
        }
    }
    Ok(())
}

fn kubelet_process(layout: &Layout, node: &Node, config: String, images: &[PathBuf]) -> Process {
    let mut arguments = vec![
        format!("--config={config}"),
        format!("--hostname-override={}", node.name),
        format!("--node-ip={}", layout.of_families(&node.address, &node.address_6)),
    ];
    if node.bootstraps() {
        arguments.push(format!("--bootstrap-kubeconfig={}", layout.kubeconfig("bootstrap").display()));
        arguments.push("--kubeconfig=/etc/kubernetes/kubelet.conf".into());
    } else {
        arguments.push(format!("--kubeconfig={}", layout.kubeconfig(&node.name).display()));
    }
    let mut process = Process::new("kubelet", layout.binary("kubelet"), arguments);
    process.before = images.iter().map(|image| import_command(image)).collect();
    process
}

/// The command that imports an image archive into the containerd of the namespace it runs in.
#[must_use]
pub fn import_command(archive: &Path) -> Vec<String> {
    let archive = archive.display().to_string();
    ["ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "import", &archive].map(String::from).to_vec()
}

/// A point-to-point link a pod: traffic between pods of a node is routed, not bridged, so
/// that kube-proxy's rules see it without br_netfilter.
#[must_use]
pub fn cni_template(dual_stack: bool) -> String {
    let routes = if dual_stack { r#"{"dst": "0.0.0.0/0"}, {"dst": "::/0"}"# } else { r#"{"dst": "0.0.0.0/0"}"# };
    let ranges = "[{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{\"subnet\": \"{{$range}}\"}]{{end}}]";
    format!(
        r#"{{
  "cniVersion": "0.4.0",
  "name": "ironclad",
  "plugins": [
    {{"type": "ptp", "ipam": {{"type": "host-local", "ranges": {ranges}, "routes": [{routes}]}}}},
    {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
  ]
}}
"#
    )
}

/// containerd's configuration, with a template of the CNI configuration at this path.
#[must_use]
pub fn containerd_toml(cni_template: &str) -> String {
    // Without CAP_SYS_RESOURCE no process may lower an oom_score_adj, and every sandbox
    // would fail; containerd can be told to stay at what it has.
    let restrict = !may_lower_oom_score();
    format!(
        r#"version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = {restrict}
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
    conf_template = "{cni_template}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"#
    )
}

/// Reports whether this process has CAP_SYS_RESOURCE (bit 24 of the effective set).
fn may_lower_oom_score() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << 24) != 0)
}

fn kubelet_config(layout: &Layout, node: &Node, dns: bool) -> serde_json::Value {
    let pki = |file: String| layout.pki().join(file).display().to_string();
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki("ca.crt".into())},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "clusterDNS": if dns { json!([layout.dns_service()]) } else { json!([]) },
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        // The disk is shared with whatever else this machine does: nothing is evicted or thrown away for its sake.
        "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        // The control plane's node is on this machine's network, whose rules are not ours to add to.
        "makeIPTablesUtilChains": !node.is_control_plane(),
        "failCgroupV1": false,
        "healthzBindAddress": layout.network.loopback,
        "failSwapOn": false,
        "registerWithTaints": if node.is_control_plane() {
            json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}])
        } else {
            json!([])
        },
        "resolvConf": dns::resolver_file(),
        "staticPodPath": "/etc/kubernetes/manifests",
    });
    if node.bootstraps() {
        config["rotateCertificates"] = json!(true);
        config["serverTLSBootstrap"] = json!(true);
    } else {
        config["tlsCertFile"] = json!(pki(format!("kubelet-{}.crt", node.name)));
        config["tlsPrivateKeyFile"] = json!(pki(format!("kubelet-{}.key", node.name)));
    }
    config
}

fn proxy_config(layout: &Layout, node: &Node) -> serde_json::Value {
    let mode = std::env::var("PROXY_MODE").unwrap_or_else(|_| "iptables".into());
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": layout.kubeconfig("kube-proxy").display().to_string()},
        "clusterCIDR": layout.of_families(&layout.network.pods, &layout.network.pods_6),
        "hostnameOverride": node.name,
        "mode": mode,
        "conntrack": {"maxPerCore": 0, "min": 0},
    })
}

/// Imports an archive into a running node.
///
/// # Errors
/// When the node is not running or containerd refuses the archive.
pub fn load(layout: &Layout, node: &Node, archive: &Path) -> Result<()> {
    let folder = layout.machine(&node.name);
    let pid = crate::machine::running(&folder)
        .with_context(|| format!("{} is not running; start it with: make up", node.name))?
        .to_string();
    let command = import_command(archive);
    let mut arguments = vec!["--target", pid.as_str(), "--mount", "--net"];
    arguments.extend(command.iter().map(String::as_str));
    shell::run("nsenter", &arguments).map(|_| ())
}
