//! The frames of a WebSocket, as upstream's server reads and writes them where messages are its own (watches, logs,
//! exec, attach): each frame is a message, and nearly nothing is wrong. Whoever does not mask what it says has to go,
//! as has whoever says too much at once. Reading is pure ([`Decoder`]); what waits to be written is never cut in two.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Longest message of a client: upstream's.
const LONGEST: u64 = 32 << 20;
/// So much of a ping comes back.
const LONGEST_PING: usize = 125;
const CHUNK: usize = 4 << 10;
const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;

const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

const NORMAL: u16 = 1000;
const PROTOCOL_ERROR: u16 = 1002;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageType {
    Text = 1,
    Binary = 2,
}

/// Message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// A message, of whichever kind.
    Message(Bytes),
    /// To be sent back.
    Ping(Bytes),
}

/// Reasons to stop reading from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// The client closed the connection, or sent too much.
    Left,
    /// A frame is not masked.
    Unmasked,
}

/// A frame of which something is still to come.
struct Frame {
    opcode: u8,
    left: u64,
    mask: [u8; 4],
}

impl Frame {
    /// Reads the head of a frame that `bytes` begin with, if it is complete.
    fn begin(bytes: &mut BytesMut) -> Result<Option<Self>, ReadEnd> {
        let [first, second, ..] = bytes[..] else { return Ok(None) };
        let (short, masked) = (second & !MASKED, second & MASKED != 0);
        let wide = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if bytes.len() < 2 + wide + if masked { 4 } else { 0 } {
            return Ok(None);
        }
        bytes.advance(2);
        let left = match wide {
            0 => u64::from(short),
            // The highest bit is nobody's.
            _ => bytes.split_to(wide).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)) & !(1 << 63),
        };
        if !masked {
            return Err(ReadEnd::Unmasked);
        }
        let opcode = first & 0xf;
        if opcode == CLOSE || left > LONGEST && opcode != PING && opcode != PONG {
            return Err(ReadEnd::Left);
        }
        Ok(Some(Self { opcode, left, mask: bytes.get_u32().to_be_bytes() }))
    }

    /// Number of payload bytes to keep.
    fn keeps(&self) -> usize {
        match self.opcode {
            PING => LONGEST_PING,
            PONG => 0,
            _ => usize::MAX,
        }
    }
}

/// Takes frames apart as their bytes come.
#[derive(Default)]
pub struct Decoder {
    frame: Option<Frame>,
    payload: BytesMut,
}

impl Decoder {
    /// Decodes the next message, if it is complete.
    ///
    /// # Errors
    /// Nothing more is listened to.
    pub fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<ClientMessage>, ReadEnd> {
        loop {
            if self.frame.is_none() {
                self.frame = Frame::begin(bytes)?;
            }
            let Some(frame) = &mut self.frame else { return Ok(None) };
            let mut part = bytes.split_to(bytes.len().min(usize::try_from(frame.left).unwrap_or(usize::MAX)));
            frame.left -= part.len() as u64;
            for (byte, mask) in part.iter_mut().zip(frame.mask.iter().cycle()) {
                *byte ^= mask;
            }
            frame.mask.rotate_left(part.len() % 4);
            part.truncate(frame.keeps().saturating_sub(self.payload.len()));
            self.payload.unsplit(part);
            if frame.left > 0 {
                return Ok(None);
            }
            if let Some(said) = self.end() {
                return Ok(Some(said));
            }
        }
    }

    /// Finishes the current frame; `None` for frames without a message.
    fn end(&mut self) -> Option<ClientMessage> {
        let (frame, payload) = (self.frame.take()?, self.payload.split().freeze());
        match frame.opcode {
            PONG => None,
            PING => Some(ClientMessage::Ping(payload)),
            _ => Some(ClientMessage::Message(payload)),
        }
    }
}

/// Reads messages of a client from its connection.
pub(super) struct Incoming<R> {
    connection: R,
    ahead: BytesMut,
    decoder: Decoder,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    pub(super) fn new(connection: R) -> Self {
        Self { connection, ahead: BytesMut::new(), decoder: Decoder::default() }
    }

    /// Reads the next message; a truncated frame counts with the bytes there are. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<ClientMessage, ReadEnd> {
        loop {
            if let Some(said) = self.decoder.decode(&mut self.ahead)? {
                return Ok(said);
            }
            self.ahead.reserve(CHUNK);
            if !matches!(self.connection.read_buf(&mut self.ahead).await, Ok(1..)) {
                return self.decoder.end().ok_or(ReadEnd::Left);
            }
        }
    }
}

/// Writes messages to a client.
pub(super) struct Outgoing<W> {
    connection: W,
    waiting: BytesMut,
}

impl<W: AsyncWrite + Unpin> Outgoing<W> {
    pub(super) fn new(connection: W) -> Self {
        Self { connection, waiting: BytesMut::new() }
    }

    /// Adds a message, of several pieces, to what is to be written.
    pub(super) fn put(&mut self, kind: MessageType, pieces: &[&[u8]]) {
        self.frame(kind as u8, pieces);
    }

    /// Answers a ping.
    pub(super) fn pong(&mut self, payload: &[u8]) {
        self.frame(PONG, &[payload]);
    }

    fn frame(&mut self, opcode: u8, pieces: &[&[u8]]) {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.waiting.reserve(length + 10);
        self.waiting.extend_from_slice(&[FINAL | opcode]);
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short @ ..126), _) => self.waiting.extend_from_slice(&[short]),
            (_, Ok(length)) => {
                self.waiting.extend_from_slice(&[126]);
                self.waiting.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                self.waiting.extend_from_slice(&[127]);
                self.waiting.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        for piece in pieces {
            self.waiting.extend_from_slice(piece);
        }
    }

    /// Writes what was added. What is not waited for is written with the next.
    pub(super) async fn send(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            if self.connection.write_buf(&mut self.waiting).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.connection.flush().await
    }

    /// Says goodbye, and before it what a client did wrong, if it was that.
    pub(super) async fn close(&mut self, over: Option<ReadEnd>) -> io::Result<()> {
        if over == Some(ReadEnd::Unmasked) {
            self.frame(CLOSE, &[&PROTOCOL_ERROR.to_be_bytes()]);
        }
        self.frame(CLOSE, &[&NORMAL.to_be_bytes()]);
        self.send().await
    }
}

/// Sends messages until there are no more, or nobody listens. What the client says is not listened to, but that it
/// leaves is noticed.
pub(super) async fn send_text<C, M>(client: C, messages: M)
where
    C: AsyncRead + AsyncWrite + Unpin,
    M: Stream<Item = (MessageType, Bytes)>,
{
    let (read, write) = tokio::io::split(client);
    let (mut incoming, mut outgoing) = (Incoming::new(read), Outgoing::new(write));
    let mut messages = std::pin::pin!(messages);
    let over = loop {
        tokio::select! {
            message = messages.next() => match message {
                None => break None,
                Some((kind, message)) => outgoing.put(kind, &[&message]),
            },
            said = incoming.next() => match said {
                Ok(ClientMessage::Message(_)) => continue,
                Ok(ClientMessage::Ping(payload)) => outgoing.pong(&payload),
                Err(over) => break Some(over),
            },
        }
        if outgoing.send().await.is_err() {
            return;
        }
    };
    // The client may be gone already.
    outgoing.close(over).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame as a client sends it, with the first byte as it is.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).expect("short");
        let mut bytes = vec![first, MASKED | 126];
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(b"abcd");
        bytes.extend(payload.iter().zip(b"abcd".iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    /// Decodes bytes that arrive in pieces of a length.
    fn heard(bytes: &[u8], piece: usize) -> (Vec<ClientMessage>, Option<ReadEnd>) {
        let (mut decoder, mut ahead, mut said) = (Decoder::default(), BytesMut::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            ahead.extend_from_slice(piece);
            loop {
                match decoder.decode(&mut ahead) {
                    Ok(Some(one)) => said.push(one),
                    Ok(None) => break,
                    Err(over) => return (said, Some(over)),
                }
            }
        }
        said.extend(decoder.end());
        (said, None)
    }

    /// By execution of k8s.io/apiserver 0.35.4.
    #[test]
    fn frames_are_parsed_leniently() {
        let message = |text: &'static str| ClientMessage::Message(Bytes::from_static(text.as_bytes()));
        let ping = || ClientMessage::Ping(Bytes::from_static(b"hi"));
        let pinged = frame(0x89, b"hi");
        let short = [&[0x81, 0x85][..], b"abcd", &[9, 7, 15, 8, 14]].concat();
        let huge = [&[0x82, 0xff][..], &(40_u64 << 20).to_be_bytes(), b"abcd"].concat();
        for (bytes, want, over) in [
            (short, vec![message("hello"), ping()], None),
            (frame(0x82, b"x"), vec![message("x"), ping()], None),
            ([frame(0x01, b"a"), frame(0x80, b"b")].concat(), vec![message("a"), message("b"), ping()], None),
            (frame(0x80, b"first"), vec![message("first"), ping()], None),
            (frame(0xf3, b"reserved"), vec![message("reserved"), ping()], None),
            (frame(0x8b, b"unknown"), vec![message("unknown"), ping()], None),
            (frame(0x8a, b"pong"), vec![ping()], None),
            (frame(0x09, b"in pieces"), vec![ClientMessage::Ping(Bytes::from_static(b"in pieces")), ping()], None),
            (frame(0x89, &[b'a'; 300]), vec![ClientMessage::Ping(Bytes::from_static(&[b'a'; 125])), ping()], None),
            (frame(0x88, b"\x03\xe8bye"), vec![], Some(ReadEnd::Left)),
            (vec![0x81, 1, b'x'], vec![], Some(ReadEnd::Unmasked)),
            (vec![0x88, 0], vec![], Some(ReadEnd::Unmasked)),
            (huge, vec![], Some(ReadEnd::Left)),
        ] {
            for piece in [1, 5, 4096] {
                let all = [bytes.clone(), pinged.clone()].concat();
                assert_eq!(heard(&all, piece), (want.clone(), over), "{piece}: {bytes:?}");
            }
        }
        assert_eq!(heard(&frame(0x82, b"half a frame")[..12], 3), (vec![message("half")], None));
    }

    #[tokio::test]
    async fn close_frames_have_the_reason() {
        let said =
            |text: &'static str| futures::stream::iter([(MessageType::Text, Bytes::from_static(text.as_bytes()))]);
        for (says, want) in [
            (vec![], &b"\x81\x01x\x88\x02\x03\xe8"[..]),
            (frame(0x89, b"hi"), b"\x81\x01x\x8a\x02hi\x88\x02\x03\xe8"),
            (frame(0x88, b""), b"\x81\x01x\x88\x02\x03\xe8"),
            (vec![0x81, 0], b"\x81\x01x\x88\x02\x03\xea\x88\x02\x03\xe8"),
        ] {
            let (client, ours) = tokio::io::duplex(1024);
            let (mut read, mut write) = tokio::io::split(client);
            let talks = says.is_empty();
            let messages = said("x").chain(futures::stream::pending().take(usize::from(!talks)));
            let (mut heard, asked) = (Vec::new(), async {
                write.write_all(&says).await.expect("open");
                if says.starts_with(&[0x89]) {
                    write.write_all(&frame(0x88, b"")).await.expect("open");
                }
            });
            let (_, (), read) = tokio::join!(send_text(ours, messages), asked, read.read_to_end(&mut heard));
            read.expect("read");
            let count = |bytes: &[u8]| {
                let mut parts = vec![bytes.len()];
                parts.push(bytes.windows(3).filter(|three| *three == b"\x81\x01x").count());
                parts
            };
            assert!(heard.ends_with(&want[want.len() - 4..]) && count(&heard) == count(want), "{heard:?}");
        }
    }
}
