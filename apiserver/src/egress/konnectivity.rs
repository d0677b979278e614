//! A Konnectivity server that is asked over gRPC on a unix socket: one call of `ProxyService/Proxy` carries one
//! connection, as packets in both directions.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures::channel::mpsc;
use futures::{Sink as _, SinkExt as _, Stream as _};
use http::uri::PathAndQuery;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::Streaming;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::{BoxStream, Stage};

/// Packets on their way to the proxy.
const WAITING: usize = 8;
/// Bytes of one packet.
const LARGEST: usize = 32 << 10;

#[derive(Clone, PartialEq, prost::Message)]
struct Packet {
    #[prost(enumeration = "Kind", tag = "1")]
    kind: i32,
    #[prost(oneof = "Payload", tags = "2, 3, 4, 5, 6, 7")]
    payload: Option<Payload>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum Kind {
    DialRequest = 0,
    DialResponse = 1,
    CloseRequest = 2,
    CloseResponse = 3,
    Data = 4,
    CloseDial = 5,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Payload {
    #[prost(message, tag = "2")]
    DialRequest(DialRequest),
    #[prost(message, tag = "3")]
    DialResponse(DialResponse),
    #[prost(message, tag = "4")]
    Data(Data),
    #[prost(message, tag = "5")]
    CloseRequest(CloseRequest),
    #[prost(message, tag = "6")]
    CloseResponse(CloseResponse),
    #[prost(message, tag = "7")]
    CloseDial(CloseDial),
}

#[derive(Clone, PartialEq, prost::Message)]
struct DialRequest {
    #[prost(string, tag = "1")]
    protocol: String,
    #[prost(string, tag = "2")]
    address: String,
    #[prost(int64, tag = "3")]
    random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DialResponse {
    #[prost(string, tag = "1")]
    error: String,
    #[prost(int64, tag = "2")]
    connect_id: i64,
    #[prost(int64, tag = "3")]
    random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CloseRequest {
    #[prost(int64, tag = "1")]
    connect_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CloseResponse {
    #[prost(string, tag = "1")]
    error: String,
    #[prost(int64, tag = "2")]
    connect_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CloseDial {
    #[prost(int64, tag = "1")]
    random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Data {
    #[prost(int64, tag = "1")]
    connect_id: i64,
    #[prost(string, tag = "2")]
    error: String,
    #[prost(bytes = "bytes", tag = "3")]
    data: Bytes,
}

impl From<Payload> for Packet {
    fn from(payload: Payload) -> Self {
        let kind = match &payload {
            Payload::DialRequest(_) => Kind::DialRequest,
            Payload::DialResponse(_) => Kind::DialResponse,
            Payload::Data(_) => Kind::Data,
            Payload::CloseRequest(_) => Kind::CloseRequest,
            Payload::CloseResponse(_) => Kind::CloseResponse,
            Payload::CloseDial(_) => Kind::CloseDial,
        };
        Self { kind: kind.into(), payload: Some(payload) }
    }
}

/// A connection to `address` through the server at `socket`.
pub(super) async fn dial(socket: &Path, address: &str) -> Result<BoxStream, (Stage, String)> {
    let at =
        |stage: Stage| move |why: String| (stage, format!("dialing {address} through {}: {why}", socket.display()));
    let channel = connect(socket).await.map_err(at(Stage::Connect))?;
    Tunnel::open(channel, address).await.map(|tunnel| Box::pin(tunnel) as BoxStream).map_err(at(Stage::Proxy))
}

async fn connect(socket: &Path) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(|e| e.to_string())?;
    endpoint.connect().await.map_err(|e| e.to_string())
}

/// One connection.
struct Tunnel {
    id: i64,
    packets: Streaming<Packet>,
    sender: mpsc::Sender<Packet>,
    /// Came in, and was not read yet.
    unread: Bytes,
    /// The other side has closed.
    ended: bool,
    /// Carries the call.
    _channel: Channel,
}

impl Tunnel {
    async fn open(channel: Channel, address: &str) -> Result<Self, String> {
        let (mut sender, outgoing) = mpsc::channel(WAITING);
        let random = rand::random::<i64>() & i64::MAX;
        let question = DialRequest { protocol: "tcp".to_owned(), address: address.to_owned(), random };
        sender.send(Payload::DialRequest(question).into()).await.map_err(|e| e.to_string())?;
        let mut grpc = Grpc::new(channel.clone());
        grpc.ready().await.map_err(|e| e.to_string())?;
        let path = PathAndQuery::from_static("/ProxyService/Proxy");
        let codec = ProstCodec::<Packet, Packet>::default();
        let call = grpc.streaming(tonic::Request::new(outgoing), path, codec).await;
        let mut packets = call.map_err(|status| status.message().to_owned())?.into_inner();
        loop {
            let packet = packets.message().await.map_err(|status| status.message().to_owned())?;
            match packet.ok_or("the proxy ended the call")?.payload {
                Some(Payload::DialResponse(answer)) if answer.random == random && answer.error.is_empty() => {
                    let (id, unread) = (answer.connect_id, Bytes::new());
                    return Ok(Self { id, packets, sender, unread, ended: false, _channel: channel });
                }
                Some(Payload::DialResponse(answer)) if answer.random == random => return Err(answer.error),
                Some(Payload::CloseDial(closed)) if closed.random == random => return Err("dial closed".to_owned()),
                _ => {}
            }
        }
    }

    /// Bytes of this connection in a packet; `None` when it ends with it.
    fn take(&self, packet: Packet) -> io::Result<Option<Bytes>> {
        match packet.payload {
            Some(Payload::Data(data)) if data.connect_id == self.id && !data.error.is_empty() => {
                Err(io::Error::other(data.error))
            }
            Some(Payload::Data(data)) if data.connect_id == self.id => Ok(Some(data.data)),
            Some(Payload::CloseResponse(closed)) if closed.connect_id == self.id => Ok(None),
            Some(Payload::CloseRequest(closed)) if closed.connect_id == self.id => Ok(None),
            _ => Ok(Some(Bytes::new())),
        }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() && !self.ended {
            match ready!(Pin::new(&mut self.packets).poll_next(cx)) {
                Some(Ok(packet)) => match self.take(packet)? {
                    Some(bytes) => self.unread = bytes,
                    None => self.ended = true,
                },
                Some(Err(status)) => return Poll::Ready(Err(io::Error::other(status.message().to_owned()))),
                None => self.ended = true,
            }
        }
        let count = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..count]);
        self.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.sender).poll_ready(cx)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        let part = &buf[..buf.len().min(LARGEST)];
        let data = Data { connect_id: self.id, error: String::new(), data: Bytes::copy_from_slice(part) };
        Pin::new(&mut self.sender).start_send(Payload::Data(data).into()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sender).poll_flush(cx).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The protocol closes both directions at once: what is still to be read must not be lost, so the close goes out
        // when the connection is dropped.
        self.poll_flush(cx)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        // A full channel means that the proxy does not read: it learns from the end of the call.
        let _ = self.sender.try_send(Payload::CloseRequest(CloseRequest { connect_id: self.id }).into());
    }
}
