//! The device that the addresses of services are on, so that the kernel takes packets for them as its own.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::net::if_::if_nametoindex;

use crate::addresses::interface_addresses;
use crate::netlink::{Kernel, RawMessage, attribute, encode, nested};
use crate::plan::Family;

/// The device's name, upstream's.
pub(super) const NAME: &str = "kube-ipvs0";

const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const DEL_ADDRESS: u16 = 21;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const LINK_KIND: u16 = 1;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;

/// The device with the addresses of one family on it.
pub(super) struct DummyDevice {
    kernel: Kernel<RawMessage>,
    index: u32,
}

/// The device's index, if it is there.
pub(super) fn index() -> Option<u32> {
    if_nametoindex(NAME).ok()
}

/// Removes the device with all addresses on it.
pub(super) fn remove() -> io::Result<()> {
    let Some(index) = index() else { return Ok(()) };
    let kernel = Kernel::open(NETLINK_ROUTE)?;
    kernel.send(NLM_F_REQUEST | NLM_F_ACK, RawMessage { kind: DEL_LINK, bytes: link(index) })?;
    kernel.acknowledged().map(drop)
}

impl DummyDevice {
    /// Opens the device and makes it first, if it is not there: of kind `dummy`, and down, as upstream's is.
    pub(super) fn open() -> io::Result<Self> {
        let kernel = Kernel::open(NETLINK_ROUTE)?;
        if let Some(index) = index() {
            return Ok(Self { kernel, index });
        }
        let kind = nested(LINK_INFO, &[attribute(LINK_KIND, b"dummy")]);
        let name = attribute(LINK_NAME, [NAME.as_bytes(), b"\0"].concat());
        let bytes = [link(0), encode(&[name, kind])].concat();
        kernel.send(NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, RawMessage { kind: NEW_LINK, bytes })?;
        kernel.acknowledged()?;
        let index = if_nametoindex(NAME).map_err(io::Error::from)?;
        Ok(Self { kernel, index })
    }

    /// The device's index.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Puts an address on the device, or takes it away; one that is there or away already is no error.
    pub(super) fn set(&self, address: IpAddr, is_wanted: bool) -> io::Result<()> {
        let (kind, flags) = match is_wanted {
            true => (NEW_ADDRESS, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL),
            false => (DEL_ADDRESS, NLM_F_REQUEST | NLM_F_ACK),
        };
        self.kernel.send(flags, RawMessage { kind, bytes: self.address(address) })?;
        match self.kernel.acknowledged() {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EADDRNOTAVAIL)) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// `struct ifaddrmsg` (family, prefix length, flags, scope, index) and the address.
    fn address(&self, address: IpAddr) -> Vec<u8> {
        let (family, bits, bytes) = match address {
            IpAddr::V4(address) => (libc::AF_INET, 32, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6, 128, address.octets().to_vec()),
        };
        let head = [family.to_le_bytes()[0], bits, 0, 0];
        let attributes = [attribute(LOCAL, &bytes), attribute(ADDRESS, &bytes)];
        [&head[..], &self.index.to_ne_bytes(), &encode(&attributes)].concat()
    }
}

/// `struct ifinfomsg`: family, type, index, flags, change.
fn link(index: u32) -> Vec<u8> {
    [&[0; 4][..], &index.to_ne_bytes(), &[0; 8]].concat()
}

/// Addresses of one family, on the device or on all others; never loopback.
pub(super) fn addresses(family: Family, on_device: bool) -> BTreeSet<IpAddr> {
    let is_usable = |address: &IpAddr| {
        let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        family.holds(*address) && !address.is_loopback() && !is_link_local
    };
    let all = interface_addresses().into_iter();
    let found = all.filter(|(interface, _)| (interface == NAME) == on_device).map(|(_, address)| address);
    found.filter(is_usable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_kernels_bytes() {
        assert_eq!(link(7), [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let kernel = Kernel::open(NETLINK_ROUTE).expect("a socket");
        let device = DummyDevice { kernel, index: 7 };
        let expected = [2, 32, 0, 0, 7, 0, 0, 0, 8, 0, 2, 0, 10, 96, 0, 1, 8, 0, 1, 0, 10, 96, 0, 1];
        assert_eq!(device.address("10.96.0.1".parse().expect("ip")), expected);
        assert_eq!(device.address("fd00::1".parse().expect("ip"))[..2], [10, 128]);
    }
}
