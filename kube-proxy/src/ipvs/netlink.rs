//! Virtual and real servers in the kernel: the generic-netlink family `IPVS`, as `linux/ip_vs.h` numbers it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::render::{VirtualServer, VirtualServerOptions};
use crate::netlink::{Kernel, RawMessage, attribute, encode, find, nested};
use crate::plan::{Family, Protocol};

/// The family that names the others, its one command here, and its attributes.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Commands.
const NEW_SERVICE: u8 = 1;
const SET_SERVICE: u8 = 2;
const DEL_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;
const NEW_DEST: u8 = 5;
const SET_DEST: u8 = 6;
const DEL_DEST: u8 = 7;
const GET_DEST: u8 = 8;
const SET_CONFIG: u8 = 12;

/// Attributes of commands.
const SERVICE: u16 = 1;
const DEST: u16 = 2;
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;

/// Attributes of virtual servers.
const SVC_FAMILY: u16 = 1;
const SVC_PROTOCOL: u16 = 2;
const SVC_ADDRESS: u16 = 3;
const SVC_PORT: u16 = 4;
const SVC_FWMARK: u16 = 5;
const SVC_SCHEDULER: u16 = 6;
const SVC_FLAGS: u16 = 7;
const SVC_TIMEOUT: u16 = 8;
const SVC_NETMASK: u16 = 9;

/// Attributes of real servers.
const DEST_ADDRESS: u16 = 1;
const DEST_PORT: u16 = 2;
const DEST_FORWARDING: u16 = 3;
const DEST_WEIGHT: u16 = 4;
const DEST_UPPER: u16 = 5;
const DEST_LOWER: u16 = 6;
const DEST_ACTIVE: u16 = 7;
const DEST_INACTIVE: u16 = 8;
const DEST_FAMILY: u16 = 11;

/// Clients stay with their real server.
const PERSISTENT: u32 = 1;
/// The scheduler `mh` looks at the source port, too.
const SOURCE_PORT: u32 = 0x10;

/// Time-outs of connections; zero leaves the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Timeouts {
    pub(super) tcp: Duration,
    pub(super) tcp_fin: Duration,
    pub(super) udp: Duration,
}

/// A real server as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RealServer {
    pub(super) weight: u32,
    /// Connections through it, open or ending.
    pub(super) connections: u32,
}

/// A virtual server as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) scheduler: String,
    pub(super) persistent: Option<u32>,
}

/// Connection to the kernel's `IPVS` family.
pub(super) struct Ipvs {
    kernel: Kernel<RawMessage>,
    family: u16,
}

impl Ipvs {
    /// Finds the family.
    ///
    /// # Errors
    /// `ENOENT` where the kernel has no IPVS.
    pub(super) fn open() -> io::Result<Self> {
        let kernel = Kernel::open(NETLINK_GENERIC)?;
        let name = attribute(FAMILY_NAME, b"IPVS\0");
        kernel.send(NLM_F_REQUEST | NLM_F_ACK, message(CONTROLLER, GET_FAMILY, &[name]))?;
        let mut family = None;
        kernel.receive_all(|answer| {
            let id = answer.bytes.get(4..).and_then(|attributes| find(attributes, FAMILY_ID));
            family = family.or(id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes));
        })?;
        let family = family.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(Self { kernel, family })
    }

    fn command(&self, command: u8, attributes: &[DefaultNla]) -> io::Result<bool> {
        self.kernel.send(NLM_F_REQUEST | NLM_F_ACK, message(self.family, command, attributes))?;
        self.kernel.acknowledged()
    }

    fn dump(&self, command: u8, attributes: &[DefaultNla], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.kernel.send(NLM_F_REQUEST | NLM_F_DUMP, message(self.family, command, attributes))?;
        self.kernel.receive_all(|answer| each(answer.bytes.get(4..).unwrap_or_default()))
    }

    /// Adds a virtual server, or changes the one that is there.
    pub(super) fn set_service(
        &self,
        key: &VirtualServer,
        server: &VirtualServerOptions,
        scheduler: &str,
    ) -> io::Result<()> {
        let attributes = [nested(SERVICE, &described(key, server, scheduler))];
        match self.command(NEW_SERVICE, &attributes) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.command(SET_SERVICE, &attributes).map(drop)
            }
            outcome => outcome.map(drop),
        }
    }

    /// Removes a virtual server with its real ones; one that is not there is none to remove.
    pub(super) fn delete_service(&self, key: &VirtualServer) -> io::Result<()> {
        match self.command(DEL_SERVICE, &[nested(SERVICE, &named(key))]) {
            // What the kernel says of a service that it does not know.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Adds a real server, or changes the weight of the one that is there.
    pub(super) fn set_real(&self, key: &VirtualServer, real: SocketAddr, weight: u32) -> io::Result<()> {
        let attributes = [nested(SERVICE, &named(key)), nested(DEST, &real_server(real, weight))];
        match self.command(NEW_DEST, &attributes) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => self.command(SET_DEST, &attributes).map(drop),
            outcome => outcome.map(drop),
        }
    }

    /// Removes a real server; its connections end with their next packet.
    pub(super) fn delete_real(&self, key: &VirtualServer, real: SocketAddr) -> io::Result<()> {
        let attributes = [nested(SERVICE, &named(key)), nested(DEST, &real_server(real, 0))];
        self.command(DEL_DEST, &attributes).map(drop)
    }

    /// The virtual servers of a family of addresses.
    pub(super) fn services(&self, family: Family) -> io::Result<BTreeMap<VirtualServer, Present>> {
        let mut found = BTreeMap::new();
        self.dump(GET_SERVICE, &[], |attributes| {
            let read = find(attributes, SERVICE).and_then(|service| read_service(&service));
            found.extend(read.filter(|(key, _)| family.holds(key.address)));
        })?;
        Ok(found)
    }

    /// Reports whether the kernel has a virtual server.
    pub(super) fn has_service(&self, key: &VirtualServer) -> io::Result<bool> {
        let request = message(self.family, GET_SERVICE, &[nested(SERVICE, &named(key))]);
        self.kernel.send(NLM_F_REQUEST | NLM_F_ACK, request)?;
        match self.kernel.receive_all(|_| {}) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// The real servers of a virtual one.
    pub(super) fn reals(&self, key: &VirtualServer) -> io::Result<BTreeMap<SocketAddr, RealServer>> {
        let mut found = BTreeMap::new();
        self.dump(GET_DEST, &[nested(SERVICE, &named(key))], |attributes| {
            found.extend(find(attributes, DEST).and_then(|dest| read_real(&dest)));
        })?;
        Ok(found)
    }

    /// Sets the time-outs of connections.
    pub(super) fn set_timeouts(&self, timeouts: Timeouts) -> io::Result<()> {
        let all = [(TIMEOUT_TCP, timeouts.tcp), (TIMEOUT_TCP_FIN, timeouts.tcp_fin), (TIMEOUT_UDP, timeouts.udp)];
        let given = all.into_iter().filter(|(_, time)| !time.is_zero());
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let attributes: Vec<_> = given.map(|(kind, time)| attribute(kind, seconds(time).to_ne_bytes())).collect();
        if attributes.is_empty() { Ok(()) } else { self.command(SET_CONFIG, &attributes).map(drop) }
    }
}

/// A message: a generic header (command, version 1, two unused bytes) and attributes.
fn message(family: u16, command: u8, attributes: &[DefaultNla]) -> RawMessage {
    RawMessage { kind: family, bytes: [vec![command, 1, 0, 0], encode(attributes)].concat() }
}

fn family_number(address: IpAddr) -> u16 {
    if address.is_ipv4() { 2 } else { 10 }
}

/// 16 bytes, of which an IPv4 address has the first four.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes.copy_from_slice(&address.octets()),
    }
    bytes
}

/// The attributes by which the kernel finds a virtual server.
fn named(key: &VirtualServer) -> Vec<DefaultNla> {
    vec![
        attribute(SVC_FAMILY, family_number(key.address).to_ne_bytes()),
        attribute(SVC_PROTOCOL, u16::from(key.protocol.number()).to_ne_bytes()),
        attribute(SVC_ADDRESS, address_bytes(key.address)),
        attribute(SVC_PORT, key.port.to_be_bytes()),
    ]
}

fn described(key: &VirtualServer, server: &VirtualServerOptions, scheduler: &str) -> Vec<DefaultNla> {
    let persistent = if server.affinity.is_some() { PERSISTENT } else { 0 };
    let source_port = if scheduler == "mh" { SOURCE_PORT } else { 0 };
    let flags = [(persistent | source_port).to_ne_bytes(), u32::MAX.to_ne_bytes()].concat();
    // A whole address: each client counts for itself.
    let netmask = if key.address.is_ipv4() { u32::MAX } else { 128 };
    let mut attributes = named(key);
    attributes.extend([
        attribute(SVC_SCHEDULER, [scheduler.as_bytes(), b"\0"].concat()),
        attribute(SVC_FLAGS, flags),
        attribute(SVC_TIMEOUT, server.affinity.unwrap_or(0).to_ne_bytes()),
        attribute(SVC_NETMASK, netmask.to_ne_bytes()),
    ]);
    attributes
}

/// A real server behind address translation.
fn real_server(real: SocketAddr, weight: u32) -> Vec<DefaultNla> {
    vec![
        attribute(DEST_ADDRESS, address_bytes(real.ip())),
        attribute(DEST_PORT, real.port().to_be_bytes()),
        attribute(DEST_FORWARDING, 0_u32.to_ne_bytes()),
        attribute(DEST_WEIGHT, weight.to_ne_bytes()),
        attribute(DEST_UPPER, 0_u32.to_ne_bytes()),
        attribute(DEST_LOWER, 0_u32.to_ne_bytes()),
        attribute(DEST_FAMILY, family_number(real.ip()).to_ne_bytes()),
    ]
}

fn short(attributes: &[u8], kind: u16) -> Option<u16> {
    find(attributes, kind)?.try_into().ok().map(u16::from_ne_bytes)
}

fn long(attributes: &[u8], kind: u16) -> Option<u32> {
    find(attributes, kind)?.try_into().ok().map(u32::from_ne_bytes)
}

fn read_address(attributes: &[u8], kind: u16, family: u16) -> Option<IpAddr> {
    let bytes: [u8; 16] = find(attributes, kind)?.try_into().ok()?;
    match family {
        2 => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
        10 => Some(Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}

/// None for one that is found by a mark of packets, which is not ours.
fn read_service(attributes: &[u8]) -> Option<(VirtualServer, Present)> {
    if long(attributes, SVC_FWMARK).is_some_and(|mark| mark != 0) {
        return None;
    }
    let protocol = match short(attributes, SVC_PROTOCOL)? {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        132 => Protocol::Sctp,
        _ => return None,
    };
    let key = VirtualServer {
        address: read_address(attributes, SVC_ADDRESS, short(attributes, SVC_FAMILY)?)?,
        port: u16::from_be(short(attributes, SVC_PORT)?),
        protocol,
    };
    let scheduler = find(attributes, SVC_SCHEDULER)?;
    let scheduler = String::from_utf8_lossy(&scheduler).trim_end_matches('\0').to_owned();
    let flags: u32 = find(attributes, SVC_FLAGS)?.get(..4)?.try_into().ok().map(u32::from_ne_bytes)?;
    let persistent = (flags & PERSISTENT != 0).then(|| long(attributes, SVC_TIMEOUT)).flatten();
    Some((key, Present { scheduler, persistent }))
}

fn read_real(attributes: &[u8]) -> Option<(SocketAddr, RealServer)> {
    let family = short(attributes, DEST_FAMILY)?;
    let address = read_address(attributes, DEST_ADDRESS, family)?;
    let port = u16::from_be(short(attributes, DEST_PORT)?);
    let connections = long(attributes, DEST_ACTIVE)?.saturating_add(long(attributes, DEST_INACTIVE)?);
    Some((SocketAddr::new(address, port), RealServer { weight: long(attributes, DEST_WEIGHT)?, connections }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(address: &str) -> VirtualServer {
        VirtualServer { address: address.parse().expect("ip"), port: 443, protocol: Protocol::Tcp }
    }

    #[test]
    fn what_is_written_of_a_virtual_server_is_read() {
        for address in ["10.96.0.1", "fd00::1"] {
            let server = VirtualServerOptions { affinity: Some(10_800), ..VirtualServerOptions::default() };
            let bytes = encode(&described(&key(address), &server, "mh"));
            let expected = Present { scheduler: "mh".to_owned(), persistent: Some(10_800) };
            assert_eq!(read_service(&bytes), Some((key(address), expected)));
            assert_eq!(find(&bytes, SVC_FLAGS).expect("flags")[..4], (PERSISTENT | SOURCE_PORT).to_ne_bytes());
        }
    }

    #[test]
    fn what_is_written_of_a_real_server_is_read() {
        let real: SocketAddr = "10.244.0.5:8443".parse().expect("an address");
        let mut attributes = real_server(real, 1);
        attributes.extend([attribute(DEST_ACTIVE, 2_u32.to_ne_bytes()), attribute(DEST_INACTIVE, 3_u32.to_ne_bytes())]);
        assert_eq!(read_real(&encode(&attributes)), Some((real, RealServer { weight: 1, connections: 5 })));
    }

    #[test]
    fn commands_have_the_kernels_bytes() {
        let message = message(27, GET_DEST, &[nested(SERVICE, &named(&key("10.96.0.1")))]);
        let header = [8, 1, 0, 0];
        let service = [48, 0, 1, 0x80, 6, 0, 1, 0, 2, 0, 0, 0, 6, 0, 2, 0, 6, 0, 0, 0];
        let address = [20, 0, 3, 0, 10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let port = [6, 0, 4, 0, 1, 187, 0, 0];
        assert_eq!(message.bytes, [&header[..], &service, &address, &port].concat());
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_servers_are_read_without_a_panic(bytes: Vec<u8>) {
            read_service(&bytes);
            read_real(&bytes);
        }
    }
}
