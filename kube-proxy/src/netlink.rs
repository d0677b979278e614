//! Messages to the kernel over netlink. Calls wait for the kernel, so they are for threads that may.

use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use netlink_packet_core::{
    DefaultNla, Emitable as _, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, NlasIterator,
};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

use crate::plan::Family;

/// Largest part of an answer that the kernel sends at once.
const BUFFER: usize = 64 * 1024;
/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// Longest wait for the answer to a batch.
const BATCH_LIMIT: Duration = Duration::from_secs(60);
/// Refusal of a message of a batch, which is undone with it.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Number of the message.
    pub(crate) sequence: u32,
    /// The kernel's reason.
    pub(crate) error: io::Error,
}

/// Connection to one of the kernel's subsystems, with its messages.
pub(crate) struct Kernel<M> {
    socket: Socket,
    messages: PhantomData<M>,
}

impl<M: NetlinkSerializable + NetlinkDeserializable + Debug> Kernel<M> {
    /// Opens a socket of its own for a `NETLINK_*` protocol.
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, messages: PhantomData })
    }

    /// Sends a request with `NLM_F_*` flags.
    pub(crate) fn send(&self, flags: u16, request: M) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Receives the next part of an answer.
    pub(crate) fn receive(&self) -> io::Result<Vec<NetlinkMessage<M>>> {
        let mut buffer = Vec::with_capacity(BUFFER);
        let length = self.socket.recv(&mut buffer, 0)?;
        let mut rest = &buffer[..length.min(buffer.len())];
        let mut found = Vec::new();
        while !rest.is_empty() {
            let packet = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
            let length = packet.header.length as usize;
            found.push(packet);
            rest = rest.get(length.max(1).next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(found)
    }

    /// Receives an answer of several messages, to its end or to the acknowledgement behind it.
    pub(crate) fn receive_all(&self, mut each: impl FnMut(M)) -> io::Result<()> {
        loop {
            for packet in self.receive()? {
                match packet.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(message) => each(message),
                    _ => {}
                }
            }
        }
    }

    /// Receives the acknowledgement of a request; false when it was about something that is not there.
    pub(crate) fn acknowledged(&self) -> io::Result<bool> {
        // What was asked for comes before its acknowledgement.
        let first = self.receive()?.into_iter().next().map(|packet| packet.payload);
        let Some(NetlinkPayload::Error(error)) = first else { return Ok(true) };
        match error.to_io() {
            _ if error.code.is_none() => Ok(true),
            absent if absent.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            refused => Err(refused),
        }
    }
}

/// Connection for batches to nftables. The kernel lets a connection end when all that was removed is freed, which is long
/// after a batch was taken: one is kept from batch to batch.
pub(crate) struct Batches(Kernel<RawMessage>);

impl Batches {
    pub(crate) fn open() -> io::Result<Self> {
        let kernel = Kernel::open(NETLINK_NETFILTER)?;
        let limit = TimeVal::new(BATCH_LIMIT.as_secs().try_into().unwrap_or(i64::MAX), 0);
        setsockopt(&kernel.socket, sockopt::ReceiveTimeout, &limit)?;
        Ok(Self(kernel))
    }

    /// Sends numbered messages, the first of which has the number zero, and waits for the answer to the one numbered `last`,
    /// which asks for one. After a refusal more answers may be on their way: the connection is of no use any more.
    pub(crate) fn transact(&self, bytes: &[u8], last: u32) -> Result<(), Refusal> {
        let failed = |error| Refusal { sequence: 0, error };
        let socket = &self.0.socket;
        // The kernel counts its own headers, too.
        setsockopt(socket, sockopt::SndBufForce, &(bytes.len() + BUFFER)).map_err(|error| failed(error.into()))?;
        socket.send(bytes, 0).map_err(failed)?;
        loop {
            for packet in self.0.receive().map_err(failed)? {
                let sequence = packet.header.sequence_number;
                match packet.payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(Refusal { sequence, error: error.to_io() });
                    }
                    NetlinkPayload::Error(_) if sequence == last => return Ok(()),
                    _ => {}
                }
            }
        }
    }
}

/// Connection to the netfilter subsystems (connection tracking and nftables), for one family of addresses.
pub(crate) struct Netfilter {
    kernel: Kernel<NetfilterMessage>,
    family: NetfilterProtoFamily,
}

impl Netfilter {
    /// Opens a socket of its own.
    pub(crate) fn open(family: Family) -> io::Result<Self> {
        let family = match family {
            Family::V4 => NetfilterProtoFamily::IPv4,
            Family::V6 => NetfilterProtoFamily::IPv6,
        };
        Ok(Self { kernel: Kernel::open(NETLINK_NETFILTER)?, family })
    }

    /// Sends a request with `NLM_F_*` flags.
    pub(crate) fn send(&self, flags: u16, request: impl Into<NetfilterMessageInner>) -> io::Result<()> {
        self.kernel.send(flags, NetfilterMessage::new(NetfilterHeader::new(self.family, 0, 0), request))
    }

    /// Receives an answer of several messages.
    pub(crate) fn receive_all(&self, mut each: impl FnMut(NetfilterMessageInner)) -> io::Result<()> {
        self.kernel.receive_all(|message| each(message.inner))
    }

    /// Receives the acknowledgement of a request; false when it was about something that is not there.
    pub(crate) fn acknowledged(&self) -> io::Result<bool> {
        self.kernel.acknowledged()
    }
}

/// A message of a subsystem that no library knows: its type, and a fixed header with attributes behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawMessage {
    pub(crate) kind: u16,
    pub(crate) bytes: Vec<u8>,
}

impl NetlinkSerializable for RawMessage {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for RawMessage {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self { kind: header.message_type, bytes: payload.to_vec() })
    }
}

/// Bytes of many messages in the making, without a list of attributes for each.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Adds a message of `inside`.
    pub(crate) fn message(&mut self, kind: u16, flags: u16, sequence: u32, inside: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
        self.0.extend(sequence.to_ne_bytes());
        self.0.extend([0; 4]);
        inside(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        if let Some(place) = self.0.get_mut(start..start + 4) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
    }

    /// Adds flags to those of the message that begins at `start`.
    pub(crate) fn add_flags(&mut self, start: usize, flags: u16) {
        let Some(place) = self.0.get_mut(start + 6..start + 8) else { return };
        let both = u16::from_ne_bytes([place[0], place[1]]) | flags;
        place.copy_from_slice(&both.to_ne_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.attributes(kind, |out| out.bytes(value));
    }

    /// Adds an attribute that is text with a zero behind it.
    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        self.attributes(kind, |out| {
            out.bytes(value.as_bytes());
            out.bytes(&[0]);
        });
    }

    /// Adds an attribute that holds attributes.
    pub(crate) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        self.attributes(kind | NESTED, inside);
    }

    fn attributes(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        inside(self);
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        if let Some(place) = self.0.get_mut(start..start + 2) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// An attribute.
pub(crate) fn attribute(kind: u16, value: impl AsRef<[u8]>) -> DefaultNla {
    DefaultNla::new(kind, value.as_ref().to_vec())
}

/// An attribute that holds attributes.
pub(crate) fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind | NESTED, encode(attributes))
}

/// Attributes as bytes.
pub(crate) fn encode(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

/// The value of an attribute among others; none where the bytes are no attributes.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let mut attributes = NlasIterator::new(bytes).map_while(Result::ok);
    attributes.find(|attribute| attribute.kind() == kind).map(|attribute| attribute.value().to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_that_are_no_attributes_are_read_without_a_panic(bytes: Vec<u8>, kind: u16) {
            find(&bytes, kind);
        }
    }

    #[test]
    fn attributes_are_found_among_others() {
        let inner = [attribute(3, [7]), attribute(4, *b"rr\0")];
        let bytes = encode(&[attribute(1, [1, 2]), nested(2, &inner)]);
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(find(&bytes, 1), Some(vec![1, 2]));
        let inside = find(&bytes, 2).expect("the nested ones");
        assert_eq!(find(&inside, 4), Some(b"rr\0".to_vec()));
        assert_eq!(find(&inside, 5), None);
    }
}
