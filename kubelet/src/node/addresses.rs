//! The node's addresses when `--node-ip` names none.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// How long the host name is looked up.
const LOOKUP: Duration = Duration::from_secs(2);

/// Targets that only choose a route: nothing is ever sent to them.
const ROUTES: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];

fn usable(address: &IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

/// The address of the interface that the default route leaves through.
fn of_default_route() -> Option<IpAddr> {
    ROUTES.iter().find_map(|(from, to)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|address: SocketAddr| address.ip()).filter(usable)
    })
}

/// The given addresses; else the host name's, if it is one or resolves to one soon; else the default route's. Static pods
/// do not wait for a name server that is away: it may run on this node.
pub async fn internal(given: &[IpAddr], hostname: &str) -> Vec<IpAddr> {
    let given: Vec<IpAddr> = given.iter().copied().filter(|address| !address.is_unspecified()).collect();
    if !given.is_empty() {
        return given;
    }
    if let Ok(address) = hostname.parse::<IpAddr>() {
        return vec![address];
    }
    if let Ok(Ok(found)) = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((hostname, 0))).await
        && let Some(address) = found.map(|address| address.ip()).find(|address| usable(address) && address.is_ipv4())
    {
        return vec![address];
    }
    of_default_route().into_iter().collect()
}
