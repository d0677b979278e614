//! A Konnectivity server that is asked over gRPC on a unix socket: one call of `ProxyService/Proxy` carries one
//! connection, as packets in both directions.

mod meters;
mod packets;

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures::channel::mpsc;
use futures::{Sink as _, SinkExt as _, Stream as _};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use shared::os;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Streaming;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use self::meters::{Counted, Segment};
use self::packets::{CloseDial, CloseRequest, Data, DialRequest, Packet, Payload};
use super::{BoxStream, Stage};

/// Packets on their way to the proxy.
const WAITING: usize = 8;
/// Bytes of one packet.
const LARGEST: usize = 32 << 10;
/// Until the proxy is there, and then until it is connected.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first pause before the proxy is looked for again, and by how many tenths each is longer than the one before it.
const PAUSE: Duration = Duration::from_secs(1);
const LONGER: u32 = 16;

/// A connection to `address` through the server at `socket`.
pub(super) async fn dial(socket: &Path, address: &str) -> Result<BoxStream, (Stage, String)> {
    let channel = connect(socket).await.map_err(|why| (Stage::Connect, why))?;
    let failed = |(reason, why): Failure| {
        meters::failed(reason);
        (Stage::Proxy, why)
    };
    Tunnel::open(channel, address).await.map(|tunnel| Box::pin(tunnel) as BoxStream).map_err(failed)
}

/// The server may be about to come back: it is looked for as long as there is patience.
async fn connect(socket: &Path) -> Result<Channel, String> {
    let (give_up, mut pause) = (Instant::now() + PATIENCE, PAUSE);
    let stream = loop {
        let error = match UnixStream::connect(socket).await {
            Ok(stream) => break stream,
            Err(error) => error,
        };
        if timeout_at(give_up, sleep(pause)).await.is_err() {
            return Err(format!(
                "context deadline exceeded: connection error: desc = \"transport: Error while dialing: dial unix {}: \
                 connect: {}\"",
                socket.display(),
                os::explain(&error)
            ));
        }
        pause = pause * LONGER / 10;
    };
    // Whom HTTP names in its requests is all the same on a socket.
    let endpoint = Endpoint::from_static("http://localhost");
    let mut stream = Some(TokioIo::new(stream));
    let once = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        std::future::ready(stream)
    });
    endpoint.connect_with_connector(once).await.map_err(|e| e.to_string())
}

/// Why there is no connection: for metrics, and in words.
type Failure = (&'static str, String);

fn closed() -> Failure {
    ("tunnelclosed", "tunnel closed".to_owned())
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
    counted: Counted,
    /// Carries the call.
    _channel: Channel,
}

fn outgoing(payload: Payload) -> Packet {
    let packet = Packet::from(payload);
    meters::packet(Segment::FromClient, packet.name());
    packet
}

/// The next packet, or none when the call has ended, however it did.
fn incoming(next: Option<Result<Packet, tonic::Status>>) -> Option<Packet> {
    match next? {
        Ok(packet) => {
            meters::packet(Segment::ToClient, packet.name());
            Some(packet)
        }
        Err(status) => {
            meters::broke(status.code());
            tracing::error!(err = status.message(), "stream read failure");
            None
        }
    }
}

impl Tunnel {
    async fn open(channel: Channel, address: &str) -> Result<Self, Failure> {
        let counted = Counted::dialing();
        let (mut sender, packets) = mpsc::channel(WAITING);
        let random = rand::random::<i64>() & i64::MAX;
        let question = DialRequest { protocol: "tcp".to_owned(), address: address.to_owned(), random };
        sender.send(outgoing(Payload::DialRequest(question))).await.map_err(|_| closed())?;
        let asked = timeout_at(Instant::now() + PATIENCE, Self::asked(&channel, packets, random)).await;
        let Ok(answered) = asked else {
            // Nobody may be left to hear it.
            sender.try_send(outgoing(Payload::CloseDial(CloseDial { random }))).ok();
            return Err(("timeout", "dial timeout, backstop".to_owned()));
        };
        let (id, packets) = answered?;
        let mut tunnel = Self { id, packets, sender, unread: Bytes::new(), ended: false, counted, _channel: channel };
        tunnel.counted.established();
        Ok(tunnel)
    }

    /// The number that the server gives the connection, and what comes on it.
    async fn asked(
        channel: &Channel,
        packets: mpsc::Receiver<Packet>,
        random: i64,
    ) -> Result<(i64, Streaming<Packet>), Failure> {
        let mut grpc = Grpc::new(channel.clone());
        grpc.ready().await.map_err(|_| closed())?;
        let path = PathAndQuery::from_static("/ProxyService/Proxy");
        let codec = ProstCodec::<Packet, Packet>::default();
        let call = grpc.streaming(tonic::Request::new(packets), path, codec).await;
        let mut packets = call.inspect_err(|status| meters::broke(status.code())).map_err(|_| closed())?.into_inner();
        loop {
            let packet = incoming(packets.message().await.transpose()).ok_or_else(closed)?;
            match packet.payload {
                Some(Payload::DialResponse(answer)) if answer.random == random && answer.error.is_empty() => {
                    return Ok((answer.connect_id, packets));
                }
                Some(Payload::DialResponse(answer)) if answer.random == random => {
                    return Err(("endpoint", answer.error));
                }
                Some(Payload::CloseDial(closed)) if closed.random == random => {
                    return Err(("dialclosed", "dial closed".to_owned()));
                }
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
            match incoming(ready!(Pin::new(&mut self.packets).poll_next(cx))) {
                Some(packet) => match self.take(packet)? {
                    Some(bytes) => self.unread = bytes,
                    None => self.ended = true,
                },
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
        Pin::new(&mut self.sender).start_send(outgoing(Payload::Data(data))).map_err(|_| io::ErrorKind::BrokenPipe)?;
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
        self.sender.try_send(outgoing(Payload::CloseRequest(CloseRequest { connect_id: self.id }))).ok();
    }
}
