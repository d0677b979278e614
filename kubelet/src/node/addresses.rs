//! The node's addresses: those of `--node-ip`, or those that the machine's name and routes lead to. Answers for upstream's
//! `nodestatus.NodeAddress` and `validateNodeIP`.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use tokio::sync::watch;

/// Time that a look-up of the host name may take.
const LOOKUP: Duration = Duration::from_secs(2);

/// Targets that only choose a route: nothing is ever sent to them.
const ROUTES: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];

/// Families in the order in which they are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefer {
    V4,
    V6,
}

impl Prefer {
    /// `--node-ip=::` asks for the other family first.
    fn of(given: &[IpAddr]) -> Self {
        match given {
            [address] if address.is_unspecified() && address.is_ipv6() => Self::V6,
            _ => Self::V4,
        }
    }

    fn is(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }
}

fn usable(address: &IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !is_link_local(address)
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The address of the interface that the default route leaves through.
fn of_default_route(prefer: Prefer) -> Option<IpAddr> {
    let of = |(from, to): (&str, &str)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|address: SocketAddr| address.ip()).filter(usable)
    };
    let [first, second] = if prefer == Prefer::V4 { ROUTES } else { [ROUTES[1], ROUTES[0]] };
    of(first).or_else(|| of(second))
}

/// Picks an address of those that a name has, of the preferred family where there is one.
fn pick(found: &[IpAddr], prefer: Prefer) -> Option<IpAddr> {
    let usable: Vec<&IpAddr> = found.iter().filter(|address| usable(address)).collect();
    usable.iter().find(|address| prefer.is(address)).or(usable.first()).map(|address| **address)
}

/// Addresses that a node cannot be reached at, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum AddressError {
    #[error("nodeIP can't be loopback address")]
    Loopback,
    #[error("nodeIP can't be a multicast address")]
    Multicast,
    #[error("nodeIP can't be a link-local unicast address")]
    LinkLocal,
    #[error("nodeIP can't be an all zeros address")]
    Unspecified,
    /// No interface of the machine has it.
    #[error("node IP: \"{0}\" not found in the host's network interfaces")]
    Foreign(IpAddr),
}

/// Refuses an address that a node cannot be reached at; `own` are those of the machine's interfaces.
fn check(address: &IpAddr, own: &[IpAddr]) -> Result<(), AddressError> {
    Err(match address {
        _ if address.is_loopback() => AddressError::Loopback,
        _ if address.is_multicast() => AddressError::Multicast,
        _ if is_link_local(address) => AddressError::LinkLocal,
        _ if address.is_unspecified() => AddressError::Unspecified,
        _ if own.contains(address) => return Ok(()),
        _ => AddressError::Foreign(*address),
    })
}

fn of_interfaces() -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten().filter_map(|interface| interface.address);
    let address = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    all.filter_map(address).collect()
}

/// The given addresses; else the host name's, if it is one or resolves to one soon; else the default route's. Static pods
/// do not wait for a name server that is away: it may run on this node. An address that is not the machine's is told of,
/// and the node has none then, as upstream has it.
pub async fn internal(given: &[IpAddr], hostname: &str) -> Vec<IpAddr> {
    let prefer = Prefer::of(given);
    let given: Vec<IpAddr> = given.iter().copied().filter(|address| !address.is_unspecified()).collect();
    if let Some(first) = given.first() {
        if let Err(error) = check(first, &of_interfaces()) {
            tracing::error!(
                error = format!("failed to validate nodeIP: {error}"),
                "Failed to set some node status fields"
            );
            return Vec::new();
        }
        return given;
    }
    if let Ok(address) = hostname.parse::<IpAddr>() {
        return vec![address];
    }
    let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((hostname, 0))).await;
    let found = found.into_iter().flatten().flatten().map(|address| address.ip());
    let found: Vec<IpAddr> = found.collect();
    pick(&found, prefer).or_else(|| of_default_route(prefer)).into_iter().collect()
}

/// The node's addresses, which are looked up again as long as the kubelet runs: leases end, and machines move.
#[derive(Debug)]
pub struct NodeAddresses {
    given: Vec<IpAddr>,
    hostname: String,
    known: watch::Sender<Vec<IpAddr>>,
}

impl NodeAddresses {
    /// Looks them up for the first time.
    pub async fn find(given: Vec<IpAddr>, hostname: &str) -> Self {
        let (known, _) = watch::channel(internal(&given, hostname).await);
        Self { given, hostname: hostname.to_owned(), known }
    }

    /// Addresses that stay.
    #[cfg(test)]
    pub fn fixed(known: Vec<IpAddr>) -> Self {
        Self { given: Vec::new(), hostname: String::new(), known: watch::channel(known).0 }
    }

    /// The addresses as they were found last.
    pub fn known(&self) -> Vec<IpAddr> {
        self.known.borrow().clone()
    }

    /// The addresses as they are found from now on.
    pub fn watch(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.known.subscribe()
    }

    /// Looks them up again; true where they are others by now.
    pub async fn renew(&self) -> bool {
        let found = internal(&self.given, &self.hostname).await;
        self.take(found)
    }

    /// Takes what was found. A name server that is away takes no addresses from the node.
    fn take(&self, found: Vec<IpAddr>) -> bool {
        if found.is_empty() {
            return false;
        }
        self.known.send_if_modified(|known| {
            let is_new = *known != found;
            if is_new {
                tracing::info!(before = ?known, now = ?found, "The node's addresses have changed");
                *known = found;
            }
            is_new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("address")).collect()
    }

    #[test]
    fn an_unspecified_address_chooses_the_family() {
        let found = all(&["127.0.1.1", "10.0.0.1", "fd00::1", "fe80::1"]);
        for (given, expected) in [(vec![], "10.0.0.1"), (all(&["0.0.0.0"]), "10.0.0.1"), (all(&["::"]), "fd00::1")] {
            assert_eq!(pick(&found, Prefer::of(&given)), Some(all(&[expected])[0]), "{given:?}");
        }
        assert_eq!(pick(&all(&["fd00::1"]), Prefer::V4), Some(all(&["fd00::1"])[0]));
        assert_eq!(pick(&all(&["127.0.0.1", "fe80::1"]), Prefer::V4), None);
    }

    #[test]
    fn addresses_that_change_are_told_and_those_that_cannot_be_found_stay() {
        let addresses = NodeAddresses::fixed(all(&["10.0.0.1"]));
        let mut seen = addresses.watch();
        assert!(!addresses.take(all(&["10.0.0.1"])) && !addresses.take(Vec::new()));
        assert!(!seen.has_changed().expect("it is there"));
        assert!(addresses.take(all(&["10.0.0.2", "fd00::2"])));
        assert_eq!(*seen.borrow_and_update(), all(&["10.0.0.2", "fd00::2"]));
        assert_eq!(addresses.known(), all(&["10.0.0.2", "fd00::2"]));
    }

    #[test]
    fn addresses_that_are_not_the_machines_are_refused() {
        let own = all(&["10.0.0.1"]);
        for (address, text) in [
            ("10.0.0.1", ""),
            ("127.0.0.1", "loopback"),
            ("224.0.0.1", "multicast"),
            ("169.254.0.1", "link-local"),
            ("::", "all zeros"),
            ("10.0.0.2", "node IP: \"10.0.0.2\" not found in the host's network interfaces"),
        ] {
            let error = check(&all(&[address])[0], &own).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(text) && error.is_empty() == text.is_empty(), "{address}: {error}");
        }
    }
}
