//! A control plane of several, as processes of one machine: three etcd members that speak TLS to each other, three API servers
//! with addresses of their own behind haproxy, two controller managers and two schedulers.
//!
//! Everybody comes through haproxy, at the address that a single API server has. It asks each server's `/readyz` every
//! second and closes the connections of one that fails, so that clients of a frozen one are told.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::control_plane;
use crate::layout::{APISERVER_PORT, ETCD_PEER_PORT, ETCD_PORT, Layout, Network};
use crate::machine::{Machine, Process};
use crate::{network, shell};

/// API servers and etcd members beside them.
pub const SERVERS: usize = 3;
/// Components of which there are two: the leader and one that waits.
const ELECTED: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];
/// Replicas of an elected component.
const CANDIDATES: usize = 2;

/// Addresses of the API servers and of the etcd members beside them.
#[must_use]
pub fn servers(network: &Network) -> [String; SERVERS] {
    std::array::from_fn(|at| network.address(at + 2))
}

/// The machine of the control plane, its addresses made and its load balancer configured.
///
/// # Errors
/// When haproxy is missing, an address cannot be made or a manifest is not what it should be.
pub fn machine(layout: &Layout) -> Result<Machine> {
    if shell::find("haproxy").is_none() {
        bail!("haproxy is missing; run: apt-get install haproxy");
    }
    for address in servers(&layout.network) {
        network::host_address(layout, &address)?;
    }
    let mut machine = control_plane::machine(layout)?;
    let one = |name: &str| {
        let found = machine.processes.iter().find(|process| process.name == name);
        found.cloned().with_context(|| format!("{name} has no manifest"))
    };
    let (etcd, server) = (one("etcd")?, one("kube-apiserver")?);
    let mut processes: Vec<Process> = (0..SERVERS).map(|at| member(layout, &etcd, at)).collect();
    processes.extend((0..SERVERS).map(|at| api_server(layout, &server, at)));
    processes.push(balancer(layout)?);
    for name in ELECTED {
        let component = one(name)?;
        processes.extend((0..CANDIDATES).map(|at| candidate(layout, &component, at)));
    }
    machine.processes = processes;
    Ok(machine)
}

/// Name of a process of which there are several, counted from one.
#[must_use]
pub fn numbered(name: &str, at: usize) -> String {
    format!("{name}-{}", at + 1)
}

/// Flags by which the members of etcd know each other: of one that starts, and of one that is restored.
#[must_use]
pub fn membership(network: &Network, at: usize) -> [String; 3] {
    let servers = servers(network);
    let peer = |address: &str| format!("https://{address}:{ETCD_PEER_PORT}");
    let all: Vec<String> =
        servers.iter().enumerate().map(|(at, address)| format!("{}={}", numbered("etcd", at), peer(address))).collect();
    [
        format!("--name={}", numbered("etcd", at)),
        format!("--initial-advertise-peer-urls={}", peer(&servers[at])),
        format!("--initial-cluster={}", all.join(",")),
    ]
}

/// Folder of a member's data.
#[must_use]
pub fn data(layout: &Layout, at: usize) -> std::path::PathBuf {
    layout.root.join(numbered("etcd", at))
}

/// URL at which a member serves clients.
#[must_use]
pub fn client_url(network: &Network, at: usize) -> String {
    format!("https://{}:{ETCD_PORT}", servers(network)[at])
}

fn member(layout: &Layout, etcd: &Process, at: usize) -> Process {
    let network = &layout.network;
    let mut flags = membership(network, at).to_vec();
    flags.extend([
        format!("--data-dir={}", data(layout, at).display()),
        format!("--listen-client-urls={}", client_url(network, at)),
        format!("--advertise-client-urls={}", client_url(network, at)),
        format!("--listen-peer-urls=https://{}:{ETCD_PEER_PORT}", servers(network)[at]),
        format!("--listen-metrics-urls=http://{}:2381", servers(network)[at]),
    ]);
    with_flags(etcd, at, flags)
}

fn api_server(layout: &Layout, server: &Process, at: usize) -> Process {
    let members: Vec<String> = (0..SERVERS).map(|at| client_url(&layout.network, at)).collect();
    let address = &servers(&layout.network)[at];
    let flags = vec![
        format!("--advertise-address={address}"),
        format!("--bind-address={address}"),
        format!("--etcd-servers={}", members.join(",")),
        // What is in flight ends before the process does, and haproxy has seen it by then.
        "--shutdown-delay-duration=3s".to_owned(),
    ];
    with_flags(server, at, flags)
}

fn candidate(layout: &Layout, component: &Process, at: usize) -> Process {
    with_flags(component, at, vec![format!("--bind-address={}", servers(&layout.network)[at])])
}

/// The process again under a number, with these flags in place of those of the same names.
fn with_flags(process: &Process, at: usize, flags: Vec<String>) -> Process {
    let name = |flag: &str| flag.split_once('=').map_or(flag.to_owned(), |(name, _)| name.to_owned());
    let replaced: Vec<String> = flags.iter().map(|flag| name(flag)).collect();
    let mut process = process.clone();
    process.name = numbered(&process.name, at);
    process.command.retain(|flag| !replaced.contains(&name(flag)));
    process.command.extend(flags);
    process
}

fn balancer(layout: &Layout) -> Result<Process> {
    let file = layout.root.join("haproxy.cfg");
    fs::write(&file, configuration(&layout.network)).with_context(|| format!("cannot write {}", file.display()))?;
    let program = shell::find("haproxy").context("haproxy is missing")?.display().to_string();
    Ok(Process::new("haproxy", program, vec!["-db".into(), "-f".into(), file.display().to_string()]))
}

fn configuration(network: &Network) -> String {
    let host = &network.host;
    let mut text = format!(
        "\
global
  maxconn 4000
defaults
  mode tcp
  timeout connect 1s
  timeout client 1h
  timeout server 1h
  timeout check 2s
  retries 3
  option redispatch
listen kubernetes
  bind {host}:{APISERVER_PORT}
  balance roundrobin
  option httpchk
  http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host kubernetes
  http-check expect status 200
  default-server check check-ssl verify none inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
"
    );
    for (at, address) in servers(network).iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  server {} {address}:{APISERVER_PORT}", numbered("kube-apiserver", at));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_the_place_of_those_of_the_same_name() {
        let process = Process::new("etcd", "etcd".into(), vec!["--name=a".into(), "--data-dir=/x".into()]);
        let second = with_flags(&process, 1, vec!["--name=b".into(), "--quota=1".into()]);
        assert_eq!(second.name, "etcd-2");
        assert_eq!(second.command, ["etcd", "--data-dir=/x", "--name=b", "--quota=1"]);
    }

    #[test]
    fn members_know_each_other_by_name() {
        assert_eq!(
            membership(&Network::numbered(0), 2),
            [
                "--name=etcd-3",
                "--initial-advertise-peer-urls=https://10.89.0.4:2380",
                "--initial-cluster=etcd-1=https://10.89.0.2:2380,etcd-2=https://10.89.0.3:2380,etcd-3=https://10.89.0.4:2380",
            ]
        );
    }
}
