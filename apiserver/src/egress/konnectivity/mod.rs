//! A Konnectivity server that is asked over gRPC on a unix socket: one call of `ProxyService/Proxy` carries one
//! connection, as packets in both directions.

mod meters;
mod packets;

use std::io;
use std::path::{Path, PathBuf};
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
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Streaming;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use self::meters::{CountedConnection, Segment};
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
/// Until the server has said that a connection is closed.
const PARTING: Duration = Duration::from_secs(10);

/// A connection to `address` through the server at `socket`.
pub(super) async fn dial(socket: &Path, address: &str) -> Result<BoxStream, (Stage, String)> {
    let channel = connect(socket).await.map_err(|why| (Stage::Connect, why.to_string()))?;
    let failed = |(reason, why): Failure| {
        meters::failed(reason);
        (Stage::Proxy, why)
    };
    let given_up = AbandonedDial(true);
    let opened = Tunnel::open(channel, address).await;
    given_up.not();
    opened.map(|tunnel| Box::pin(tunnel) as BoxStream).map_err(failed)
}

/// The server may be about to come back: it is looked for as long as there is patience.
async fn connect(socket: &Path) -> Result<Channel, ServerUnreachable> {
    let (give_up, mut pause) = (Instant::now() + PATIENCE, PAUSE);
    let stream = loop {
        let error = match UnixStream::connect(socket).await {
            Ok(stream) => break stream,
            Err(error) => error,
        };
        if timeout_at(give_up, sleep(pause)).await.is_err() {
            return Err(ServerUnreachable::Dial { socket: socket.to_owned(), error });
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
    Ok(endpoint.connect_with_connector(once).await?)
}

/// Error of a connection to a Konnectivity server, in the words of Go's gRPC.
#[derive(Debug, thiserror::Error)]
enum ServerUnreachable {
    /// Nobody listens at the socket.
    #[error(
        "context deadline exceeded: connection error: desc = \"transport: Error while dialing: dial unix {}: connect: {}\"",
        .socket.display(),
        os::explain(.error)
    )]
    Dial {
        /// The socket.
        socket: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// A listener that does not speak HTTP/2.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// Failure of a dial: the reason for metrics, and the text.
type Failure = (&'static str, String);

fn closed() -> Failure {
    ("tunnelclosed", "tunnel closed".to_owned())
}

/// A dial whose end nobody waited for is counted, too. The server hears of it from the end of the call.
struct AbandonedDial(bool);

impl AbandonedDial {
    fn not(mut self) {
        self.0 = false;
    }
}

impl Drop for AbandonedDial {
    fn drop(&mut self) {
        if self.0 {
            meters::failed("context");
        }
    }
}

/// One connection.
struct Tunnel {
    id: i64,
    /// There until it is dropped.
    call: Option<TunnelCall>,
    /// Came in, and was not read yet.
    unread: Bytes,
    /// The other side has closed.
    ended: bool,
}

/// The call that carries a connection.
struct TunnelCall {
    packets: Streaming<Packet>,
    sender: mpsc::Sender<Packet>,
    _counted: CountedConnection,
    _channel: Channel,
}

impl TunnelCall {
    /// Closes the connection and waits until it is: a call that only breaks off is an error to the server, and what it
    /// holds of the connection is not let go of at once.
    async fn close(mut self, id: i64) {
        let closing = async {
            let close = outgoing(Payload::CloseRequest(CloseRequest { connect_id: id }));
            if self.sender.send(close).await.is_err() {
                return;
            }
            while let Some(packet) = incoming(self.packets.message().await.transpose()) {
                if matches!(&packet.payload, Some(Payload::CloseResponse(closed)) if closed.connect_id == id) {
                    return;
                }
            }
        };
        // Who does not answer learns it from the end of the call.
        tokio::time::timeout(PARTING, closing).await.ok();
    }
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
            tracing::error!(err = status.message(), "Stream read failure");
            None
        }
    }
}

impl Tunnel {
    async fn open(channel: Channel, address: &str) -> Result<Self, Failure> {
        let mut counted = CountedConnection::dialing();
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
        counted.established();
        let call = Some(TunnelCall { packets, sender, _counted: counted, _channel: channel });
        Ok(Self { id, call, unread: Bytes::new(), ended: false })
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

    fn sender(&mut self) -> io::Result<&mut mpsc::Sender<Packet>> {
        self.call.as_mut().map(|call| &mut call.sender).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
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
            let Some(call) = &mut self.call else { break };
            match incoming(ready!(Pin::new(&mut call.packets).poll_next(cx))) {
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
        let id = self.id;
        let sender = self.sender()?;
        ready!(Pin::new(&mut *sender).poll_ready(cx)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        let part = &buf[..buf.len().min(LARGEST)];
        let data = Data { connect_id: id, error: String::new(), data: Bytes::copy_from_slice(part) };
        Pin::new(sender).start_send(outgoing(Payload::Data(data))).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.sender()?).poll_flush(cx).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The protocol closes both directions at once: what is still to be read must not be lost, so the close goes out
        // when the connection is dropped.
        self.poll_flush(cx)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        // A call that has ended is closed; without a runtime nobody can wait for anything.
        let (Some(call), false, Ok(runtime)) = (self.call.take(), self.ended, Handle::try_current()) else { return };
        let id = self.id;
        runtime.spawn(async move { call.close(id).await });
    }
}
