//! Checks before a cluster is started. Each failure is one line that says what to do about it.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Result, bail};

use crate::layout::{APISERVER_PORT, ETCD_PEER_PORT, ETCD_PORT, Layout};
use crate::shell;

/// Programs the cluster is made of, with the Debian package each comes in.
const PROGRAMS: [(&str, &str); 10] = [
    ("etcd", "etcd-server"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("gcc", "gcc"),
];
const BINARIES: [&str; 5] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];
/// Says 0 where the kernel speaks IPv6.
const NO_IPV6: &str = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
/// Free bytes that a node needs at least.
const DISK: u64 = 2 << 30;

/// Checks the machine.
///
/// # Errors
/// The first thing that is missing.
pub fn check(layout: &Layout) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("a cluster needs root (namespaces, mounts, cgroups); run: sudo make up");
    }
    for (program, package) in PROGRAMS {
        if shell::find(program).is_none() {
            bail!("{program} is missing; run: apt-get install {package}");
        }
    }
    if !Path::new("/usr/lib/cni/ptp").exists() {
        bail!("the CNI plugins are missing; run: apt-get install containernetworking-plugins");
    }
    for binary in BINARIES {
        if !Path::new(&layout.binary(binary)).exists() {
            bail!("{} is not built; run: make build", layout.binary(binary));
        }
    }
    if layout.dual_stack && !has_ipv6() {
        bail!(
            "IPv6 is off on this machine, and a cluster of two families needs it; run: sysctl net.ipv6.conf.all.disable_ipv6=0"
        );
    }
    if !crate::node::cgroup_mounts().iter().any(|mount| mount.is_dir()) {
        bail!("no cgroup controllers are mounted below /sys/fs/cgroup; mount them first");
    }
    disk(&layout.root)
}

/// Reports whether the machine speaks IPv6.
#[must_use]
pub fn has_ipv6() -> bool {
    std::fs::read_to_string(NO_IPV6).is_ok_and(|off| off.trim() == "0")
}

/// Checks that the control plane's ports are free; asked only before it is started.
///
/// # Errors
/// Names the port that is taken.
pub fn ports(layout: &Layout) -> Result<()> {
    let (loopback, host) = (layout.network.loopback.as_str(), layout.network.host.as_str());
    let loopback = [ETCD_PORT, ETCD_PEER_PORT, 10257, 10259].map(|port| (loopback, port));
    for (address, port) in loopback.into_iter().chain([(host, APISERVER_PORT)]) {
        let address: SocketAddr = format!("{address}:{port}").parse()?;
        if let Err(error) = TcpListener::bind(address) {
            bail!("{address} cannot be listened on ({error}); end what uses it (ss -ltnp 'sport = :{port}')");
        }
    }
    Ok(())
}

fn disk(folder: &Path) -> Result<()> {
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let stat = nix::sys::statvfs::statvfs(existing)?;
    let free = stat.blocks_available() * stat.fragment_size();
    if free < DISK {
        bail!("{} has {} MB free and a node needs {} MB; make room", existing.display(), free >> 20, DISK >> 20);
    }
    Ok(())
}
