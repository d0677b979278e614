//! `up`: from nothing, or from whatever is running, to Ready nodes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::layout::{CONTROL_PLANE, Layout, MAX_NODES, Network, Node};
use crate::machine::running;
use crate::shell::{READY_LIMIT, kubectl};
use crate::supervisor::log_file;
use crate::{clusters, control_plane, dns, ha, image, join, load_balancer, network, node, pki, preflight, shell};

/// Ways to run the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlPlane {
    /// Processes of a machine.
    Processes,
    /// Static pods of a kubelet.
    StaticPods,
    /// Processes of a machine, several of each: [`ha`].
    HighlyAvailable,
}

/// Gives the cluster names and addresses, starts the control plane and `count` nodes and waits until they are Ready, and cluster DNS too where an archive of
/// its image is given.
///
/// # Errors
/// One line that says what is missing and what to do.
pub fn up(mut layout: Layout, count: usize, control_plane: ControlPlane, dns: Option<&Path>) -> Result<()> {
    if !(1..=MAX_NODES).contains(&count) {
        bail!("NODES={count} is out of range; use 1 to {MAX_NODES}");
    }
    preflight::check(&layout)?;
    layout.network = Network::numbered(clusters::claim(&layout.root)?);
    let layout = &layout;
    let dns = dns.map(dns::archive).transpose()?;
    say("certificates");
    pki::control_plane(layout)?;
    network::bridge(layout)?;
    let pause = image::pause(&layout.root.join("images"))?;

    start_control_plane(layout, control_plane, &pause)?;
    let nodes: Vec<Node> = (1..=count).map(|number| layout.network.node(number)).collect();
    if nodes.iter().any(Node::bootstraps) {
        join::allow(layout)?;
    }
    for node in &nodes {
        say(&node.name);
        pki::node(layout, node)?;
        network::namespace(layout, node)?;
        node::machine(layout, node, &pause, dns.as_deref())?.start(layout)?;
    }
    let all = layout.nodes();
    if let Some(first) = all.first() {
        network::route_services(layout, first)?;
    }
    for node in &all {
        wait_ready(layout, node, &all)?;
        if node.bootstraps() {
            join::approve_serving(layout, node)?;
        }
    }
    load_balancer::machine(layout).start(layout)?;
    if dns.is_some() {
        say("cluster DNS");
        dns::install(layout)?;
    }
    Ok(())
}

fn start_control_plane(layout: &Layout, kind: ControlPlane, pause: &Path) -> Result<()> {
    let folder = layout.machine(CONTROL_PLANE);
    if running(&folder).is_none() {
        preflight::ports(layout)?;
        say("control plane");
        let machine = match kind {
            ControlPlane::Processes => control_plane::machine(layout)?,
            ControlPlane::HighlyAvailable => ha::machine(layout)?,
            ControlPlane::StaticPods => {
                pki::node(layout, &layout.network.control_plane())?;
                control_plane::static_pods(layout, pause)?
            }
        };
        machine.start(layout)?;
    }
    let log = match kind {
        ControlPlane::Processes => log_file(&folder, "kube-apiserver"),
        ControlPlane::StaticPods => log_file(&folder, "kubelet"),
        ControlPlane::HighlyAvailable => log_file(&folder, "kube-apiserver-1"),
    };
    shell::wait_for("kube-apiserver is not ready", READY_LIMIT, &log, || {
        kubectl(layout, &["get", "--raw", "/readyz"]).is_ok()
    })
}

fn wait_ready(layout: &Layout, node: &Node, all: &[Node]) -> Result<()> {
    let log = log_file(&layout.machine(&node.name), "kubelet");
    let mut ranges = String::new();
    shell::wait_for(&format!("{} got no pod addresses", node.name), READY_LIMIT, &log, || {
        let found = kubectl(layout, &["get", "node", &node.name, "-o", "jsonpath={.spec.podCIDRs[*]}"]);
        ranges = found.unwrap_or_default();
        !ranges.is_empty()
    })?;
    for range in ranges.split_whitespace() {
        network::route_pods(node, range, all)?;
    }
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    shell::wait_for(&format!("{} is not Ready", node.name), READY_LIMIT, &log, || {
        kubectl(layout, &["get", "node", &node.name, "-o", ready]).is_ok_and(|status| status == "True")
    })?;
    say(&format!("{} is Ready, pods in {ranges}", node.name));
    Ok(())
}

/// Imports an image archive into every node.
///
/// # Errors
/// When the archive is missing or a node refuses it.
pub fn load(layout: &Layout, archive: &Path) -> Result<()> {
    let archive: PathBuf = std::fs::canonicalize(archive)
        .with_context(|| format!("no archive {}; use: make load IMAGE=archive.tar", archive.display()))?;
    let nodes = layout.nodes();
    if nodes.is_empty() {
        bail!("no node is there; start one with: make up");
    }
    for node in nodes {
        say(&format!("{} into {}", archive.display(), node.name));
        node::load(layout, &node, &archive)?;
    }
    Ok(())
}

fn say(what: &str) {
    eprintln!("==> {what}");
}
