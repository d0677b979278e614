//! The network between the nodes: a bridge on the host, one namespace and one veth pair a
//! node, and routes to every node's pods.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::layout::{BRIDGE, HOST_ADDRESS, NODE_PREFIX, Node, SERVICE_CIDR};
use crate::shell::run;

/// Makes the bridge; does nothing when it is there.
///
/// # Errors
/// When `ip` fails.
pub fn bridge() -> Result<()> {
    if !Path::new("/sys/class/net").join(BRIDGE).exists() {
        run("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
    }
    run("ip", &["address", "replace", &format!("{HOST_ADDRESS}/{NODE_PREFIX}"), "dev", BRIDGE])?;
    run("ip", &["link", "set", BRIDGE, "up"])?;
    Ok(())
}

/// Makes a node's namespace and its link to the bridge; does nothing when they are there.
///
/// # Errors
/// When `ip` fails.
pub fn namespace(node: &Node) -> Result<()> {
    let netns = node.netns();
    if Path::new("/run/netns").join(&netns).exists() {
        return Ok(());
    }
    run("ip", &["netns", "add", &netns])?;
    let outside = format!("ic-{}", node.name);
    run("ip", &["link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &netns])?;
    run("ip", &["link", "set", &outside, "master", BRIDGE, "up"])?;
    let inside = |args: &[&str]| run("ip", &[&["-n", netns.as_str()], args].concat());
    inside(&["link", "set", "lo", "up"])?;
    inside(&["address", "add", &format!("{}/{NODE_PREFIX}", node.address), "dev", "eth0"])?;
    inside(&["link", "set", "eth0", "up"])?;
    inside(&["route", "add", "default", "via", HOST_ADDRESS])?;
    run("ip", &["netns", "exec", &netns, "sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
    Ok(())
}

/// Routes a node's pods from the host and from every other node.
///
/// # Errors
/// When `ip` fails.
pub fn route_pods(node: &Node, pod_cidr: &str, all: &[Node]) -> Result<()> {
    let via = ["route", "replace", pod_cidr, "via", node.address.as_str()];
    run("ip", &via)?;
    for other in all.iter().filter(|other| other.name != node.name) {
        run("ip", &[&["-n", other.netns().as_str()], via.as_slice()].concat())?;
    }
    Ok(())
}

/// Routes services from the host by way of a node, whose kube-proxy knows them: the API server calls the webhooks and
/// API servers that pods are.
///
/// # Errors
/// When `ip` fails.
pub fn route_services(node: &Node) -> Result<()> {
    run("ip", &["route", "replace", SERVICE_CIDR, "via", node.address.as_str()])?;
    Ok(())
}

/// Takes the namespaces and the bridge away.
pub fn remove(nodes: &[Node]) {
    for node in nodes {
        if Path::new("/run/netns").join(node.netns()).exists() {
            run("ip", &["netns", "delete", &node.netns()]).ok();
        }
        if fs::exists(format!("/sys/class/net/ic-{}", node.name)).unwrap_or(false) {
            run("ip", &["link", "delete", &format!("ic-{}", node.name)]).ok();
        }
    }
    if Path::new("/sys/class/net").join(BRIDGE).exists() {
        run("ip", &["link", "delete", BRIDGE]).ok();
    }
}
