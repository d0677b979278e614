//! Messages to the kernel's netfilter subsystems over `NETLINK_NETFILTER`: connection tracking and nftables. Calls wait for the
//! kernel, so they are for threads that may.

use std::io;

use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use crate::plan::Family;

/// Largest part of an answer that the kernel sends at once.
const BUFFER: usize = 64 * 1024;

/// Connection to the kernel, for one family of addresses.
pub(crate) struct Netfilter {
    socket: Socket,
    family: NetfilterProtoFamily,
}

impl Netfilter {
    /// Opens a socket of its own.
    pub(crate) fn open(family: Family) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let family = match family {
            Family::V4 => NetfilterProtoFamily::IPv4,
            Family::V6 => NetfilterProtoFamily::IPv6,
        };
        Ok(Self { socket, family })
    }

    /// Sends a request with `NLM_F_*` flags.
    pub(crate) fn send(&self, flags: u16, request: impl Into<NetfilterMessageInner>) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let message = NetfilterMessage::new(NetfilterHeader::new(self.family, 0, 0), request);
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Receives the next part of an answer.
    pub(crate) fn receive(&self) -> io::Result<Vec<NetlinkPayload<NetfilterMessage>>> {
        let mut buffer = Vec::with_capacity(BUFFER);
        let length = self.socket.recv(&mut buffer, 0)?;
        let mut rest = &buffer[..length.min(buffer.len())];
        let mut found = Vec::new();
        while !rest.is_empty() {
            let packet = NetlinkMessage::<NetfilterMessage>::deserialize(rest).map_err(io::Error::other)?;
            let length = packet.header.length as usize;
            found.push(packet.payload);
            rest = rest.get(length.max(1).next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(found)
    }

    /// Receives the acknowledgement of a request; false when it was about something that is not there.
    pub(crate) fn acknowledged(&self) -> io::Result<bool> {
        // What was asked for comes before its acknowledgement.
        let Some(NetlinkPayload::Error(error)) = self.receive()?.into_iter().next() else { return Ok(true) };
        match error.to_io() {
            _ if error.code.is_none() => Ok(true),
            absent if absent.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            refused => Err(refused),
        }
    }
}
