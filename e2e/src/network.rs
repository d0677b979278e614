//! The network between the nodes: a bridge on the host, one namespace and one veth pair a
//! node, and routes to every node's pods.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::layout::{Layout, NODE_PREFIX, NODE_PREFIX_6, Node};
use crate::shell::run;

/// Makes the bridge; does nothing when it is there.
///
/// # Errors
/// When `ip` fails.
pub fn bridge(layout: &Layout) -> Result<()> {
    let bridge = layout.network.bridge.as_str();
    if !Path::new("/sys/class/net").join(bridge).exists() {
        run("ip", &["link", "add", bridge, "type", "bridge"])?;
    }
    run("ip", &["address", "replace", &format!("{}/{NODE_PREFIX}", layout.network.host), "dev", bridge])?;
    if layout.dual_stack {
        run(
            "ip",
            &["address", "replace", &format!("{}/{NODE_PREFIX_6}", layout.network.host_6), "dev", bridge, "nodad"],
        )?;
    }
    run("ip", &["link", "set", bridge, "up"])?;
    Ok(())
}

/// Gives the machine another address on the bridge.
///
/// # Errors
/// When `ip` fails.
pub fn host_address(layout: &Layout, address: &str) -> Result<()> {
    run("ip", &["address", "replace", &format!("{address}/{NODE_PREFIX}"), "dev", &layout.network.bridge]).map(drop)
}

/// Makes a node's namespace and its link to the bridge; does nothing when they are there.
///
/// # Errors
/// When `ip` fails.
pub fn namespace(layout: &Layout, node: &Node) -> Result<()> {
    let netns = node.namespace.as_str();
    if Path::new("/run/netns").join(netns).exists() {
        return Ok(());
    }
    run("ip", &["netns", "add", netns])?;
    let outside = node.link.as_str();
    run("ip", &["link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", netns])?;
    run("ip", &["link", "set", outside, "master", &layout.network.bridge, "up"])?;
    let inside = |args: &[&str]| run("ip", &[&["-n", netns], args].concat());
    inside(&["link", "set", "lo", "up"])?;
    inside(&["address", "add", &format!("{}/{NODE_PREFIX}", node.address), "dev", "eth0"])?;
    inside(&["link", "set", "eth0", "up"])?;
    inside(&["route", "add", "default", "via", &layout.network.host])?;
    run("ip", &["netns", "exec", netns, "sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
    if layout.dual_stack {
        inside(&["address", "add", &format!("{}/{NODE_PREFIX_6}", node.address_6), "dev", "eth0", "nodad"])?;
        inside(&["route", "add", "default", "via", &layout.network.host_6])?;
        run("ip", &["netns", "exec", netns, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1"])?;
    }
    Ok(())
}

/// Routes a node's pods from the host and from every other node.
///
/// # Errors
/// When `ip` fails.
pub fn route_pods(node: &Node, pod_cidr: &str, all: &[Node]) -> Result<()> {
    let via = ["route", "replace", pod_cidr, "via", node.address_like(pod_cidr)];
    run("ip", &via)?;
    for other in all.iter().filter(|other| other.name != node.name) {
        run("ip", &[&["-n", other.namespace.as_str()], via.as_slice()].concat())?;
    }
    Ok(())
}

/// Routes services from the host by way of a node, whose kube-proxy knows them: the API server calls the webhooks and
/// API servers that pods are.
///
/// # Errors
/// When `ip` fails.
pub fn route_services(layout: &Layout, node: &Node) -> Result<()> {
    for cidr in layout.of_families(&layout.service_cidr(), &layout.network.services_6).split(',') {
        run("ip", &["route", "replace", cidr, "via", node.address_like(cidr)])?;
    }
    Ok(())
}

/// Takes the namespaces and the bridge away.
pub fn remove(layout: &Layout, nodes: &[Node]) {
    remove_nodes(nodes);
    let bridge = layout.network.bridge.as_str();
    if Path::new("/sys/class/net").join(bridge).exists() {
        run("ip", &["link", "delete", bridge]).ok();
    }
}

/// Takes the nodes' namespaces and links away.
pub fn remove_nodes(nodes: &[Node]) {
    for node in nodes {
        if Path::new("/run/netns").join(&node.namespace).exists() {
            run("ip", &["netns", "delete", &node.namespace]).ok();
        }
        if fs::exists(format!("/sys/class/net/{}", node.link)).unwrap_or(false) {
            run("ip", &["link", "delete", &node.link]).ok();
        }
    }
}
