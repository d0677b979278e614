//! Exec and attach for WebSocket clients: each message carries a channel number and bytes
//! (`v5.channel.k8s.io`), which become streams of a SPDY connection to the kubelet, and back (KEP-4006).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tungstenite::Message;
use tungstenite::protocol::frame::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;

use super::spdy::{Codec, Frame, SpdyError, put_data, put_ping};

/// The subprotocol that is translated; older ones are understood by kubelets themselves.
pub const SUBPROTOCOL: &str = "v5.channel.k8s.io";
/// The SPDY side's protocol, with exit codes as a `Status` on the error stream.
pub const STREAM_PROTOCOL: &str = "v4.channel.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// Pings that may wait to be answered.
const PINGS: usize = 8;
/// How long the client may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

/// Stream numbers by channel.
type Numbers = BTreeMap<u8, u32>;

/// The streams that the client asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// The client writes.
    pub stdin: bool,
    /// The client reads standard output.
    pub stdout: bool,
    /// The client reads standard error.
    pub stderr: bool,
    /// There is a terminal, which can be resized.
    pub tty: bool,
}

impl Streams {
    /// Channels in the order in which their streams are opened, with the name of each.
    fn channels(self) -> impl Iterator<Item = (u8, &'static str)> {
        let all = [
            (ERROR, "error", true),
            (STDIN, "stdin", self.stdin),
            (STDOUT, "stdout", self.stdout),
            (STDERR, "stderr", self.stderr && !self.tty),
            (RESIZE, "resize", self.tty),
        ];
        all.into_iter().filter(|(_, _, wanted)| *wanted).map(|(channel, name, _)| (channel, name))
    }
}

/// Why the conversation ended before the command did.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Spdy(#[from] SpdyError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    WebSocket(#[from] tungstenite::Error),
}

/// Translates until either side ends. Whether the kubelet said how the command ended.
pub async fn translate<C, K>(client: C, kubelet: K, streams: Streams) -> bool
where
    C: AsyncRead + AsyncWrite + Unpin,
    K: AsyncRead + AsyncWrite + Unpin,
{
    let told = converse(super::websocket(client).await, kubelet, streams).await;
    told.inspect_err(|error| tracing::debug!(%error, "An exec or attach connection broke")).unwrap_or(false)
}

async fn converse<C, K>(socket: WebSocketStream<C>, kubelet: K, streams: Streams) -> Result<bool, Broken>
where
    C: AsyncRead + AsyncWrite + Unpin,
    K: AsyncRead + AsyncWrite + Unpin,
{
    let (read, mut write) = tokio::io::split(kubelet);
    let (mut sink, mut stream) = socket.split();
    let mut out = BytesMut::new();
    let mut codec = Codec::default();
    let numbers = open(&mut codec, streams, &mut out)?;
    write.write_all(&out).await?;
    write.flush().await?;
    let (pings, mut pinged) = mpsc::channel(PINGS);
    let mut output = Output {
        codec,
        sink: &mut sink,
        open: numbers.iter().filter(|(c, _)| **c != STDIN && **c != RESIZE).map(|(_, n)| *n).collect(),
        numbers: &numbers,
        told: false,
        pings,
    };
    // The directions wait for nothing but each their own: a command that reads as slowly as it writes must not stop.
    tokio::select! {
        ended = input(&mut stream, &mut pinged, &mut write, &numbers) => return ended.map(|()| false),
        ended = output.copy(read) => ended?,
    }
    let told = output.told;
    finish(&mut sink, &mut stream, told).await?;
    Ok(told)
}

/// Opens the streams; their numbers by channel.
fn open(codec: &mut Codec, streams: Streams, out: &mut BytesMut) -> Result<Numbers, SpdyError> {
    let mut numbers = Numbers::new();
    for (number, (channel, name)) in (1..).step_by(2).zip(streams.channels()) {
        codec.open(out, number, &[("streamType", name)])?;
        numbers.insert(channel, number);
    }
    Ok(numbers)
}

/// From the client to the kubelet, until the client ends.
async fn input<C, W>(
    client: &mut SplitStream<WebSocketStream<C>>,
    pinged: &mut mpsc::Receiver<u32>,
    kubelet: &mut W,
    numbers: &Numbers,
) -> Result<(), Broken>
where
    C: AsyncRead + AsyncWrite + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut out = BytesMut::new();
    loop {
        tokio::select! {
            Some(number) = pinged.recv() => put_ping(&mut out, number),
            message = client.next() => match message {
                None | Some(Ok(Message::Close(_))) => return Ok(()),
                Some(message) => put_message(&message?, numbers, &mut out),
            },
        }
        if !out.is_empty() {
            kubelet.write_all(&out.split()).await?;
            kubelet.flush().await?;
        }
    }
}

fn put_message(message: &Message, numbers: &Numbers, out: &mut BytesMut) {
    let bytes = match message {
        Message::Binary(bytes) => bytes.as_ref(),
        Message::Text(text) => text.as_bytes(),
        _ => return,
    };
    let (channel, bytes, fin) = match bytes {
        [CLOSE, channel, ..] => (*channel, &[][..], true),
        [channel, bytes @ ..] => (*channel, bytes, false),
        [] => return,
    };
    let writable = matches!(channel, STDIN | RESIZE) && (fin || !bytes.is_empty());
    if let Some(stream) = numbers.get(&channel).filter(|_| writable) {
        put_data(out, *stream, bytes, fin);
    }
}

/// From the kubelet to the client.
struct Output<'a, C> {
    codec: Codec,
    sink: &'a mut SplitSink<WebSocketStream<C>, Message>,
    numbers: &'a Numbers,
    /// Streams of the kubelet that have not ended.
    open: Vec<u32>,
    /// The command's end was told.
    told: bool,
    pings: mpsc::Sender<u32>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Output<'_, C> {
    /// Until every stream, or the connection, has ended.
    async fn copy<R: AsyncRead + Unpin>(&mut self, mut kubelet: R) -> Result<(), Broken> {
        let mut buffer = BytesMut::with_capacity(16 << 10);
        loop {
            let ended = kubelet.read_buf(&mut buffer).await? == 0;
            while let Some(frame) = self.codec.decode(&mut buffer)? {
                if matches!(frame, Frame::GoAway) {
                    self.open.clear();
                }
                if let Some(message) = self.message(frame) {
                    self.sink.feed(message).await?;
                }
            }
            self.sink.flush().await?;
            if ended || self.open.is_empty() {
                return Ok(());
            }
        }
    }

    fn message(&mut self, frame: Frame) -> Option<Message> {
        match frame {
            Frame::Data { stream, bytes, fin } => {
                if fin {
                    self.open.retain(|open| *open != stream);
                }
                let channel =
                    self.numbers.iter().find(|(_, number)| **number == stream).map(|(channel, _)| *channel)?;
                self.told |= channel == ERROR && !bytes.is_empty();
                (!bytes.is_empty()).then(|| message(channel, &bytes))
            }
            Frame::Accepted { stream, fin: true } | Frame::Reset { stream } => {
                self.open.retain(|open| *open != stream);
                None
            }
            Frame::Ping(number) => {
                // Pings measure liveness; one that finds no room has its answer in those before it.
                self.pings.try_send(number).ok();
                None
            }
            Frame::Open { .. } | Frame::Accepted { .. } | Frame::GoAway | Frame::Other => None,
        }
    }
}

/// Closes in order; a command whose end was never told has failed.
async fn finish<C: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut SplitSink<WebSocketStream<C>, Message>,
    stream: &mut SplitStream<WebSocketStream<C>>,
    told: bool,
) -> Result<(), Broken> {
    if !told {
        let status = shared::status::Status::internal("the connection to the container was lost");
        sink.feed(message(ERROR, &status.to_json())).await?;
    }
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    sink.send(Message::Close(Some(frame))).await?;
    // The client's answer, so that it has read everything before the connection goes.
    let answer = async { while let Some(Ok(_)) = stream.next().await {} };
    tokio::time::timeout(FAREWELL, answer).await.ok();
    Ok(())
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    let mut body = Vec::with_capacity(bytes.len() + 1);
    body.push(channel);
    body.extend_from_slice(bytes);
    Message::Binary(Bytes::from(body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tungstenite::protocol::Role;

    #[tokio::test]
    async fn a_command_gets_its_input_and_its_end_is_told() {
        let (client, ours) = tokio::io::duplex(64 << 10);
        let (kubelet, theirs) = tokio::io::duplex(64 << 10);
        let streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };
        let translation = tokio::spawn(translate(ours, kubelet, streams));
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        client.send(message(STDIN, b"question")).await.expect("open");
        client.send(Message::Binary(Bytes::from_static(&[CLOSE, STDIN]))).await.expect("open");

        let (mut read, mut write) = tokio::io::split(theirs);
        let mut codec = Codec::default();
        let mut buffer = BytesMut::new();
        let mut names = Vec::new();
        let mut input = Vec::new();
        'reading: loop {
            read.read_buf(&mut buffer).await.expect("open");
            while let Some(frame) = codec.decode(&mut buffer).expect("well-formed") {
                match frame {
                    Frame::Open { headers, .. } => names.push(headers[0].1.clone()),
                    Frame::Data { bytes, fin, stream } => {
                        assert_eq!(stream, 3);
                        input.extend_from_slice(&bytes);
                        if fin {
                            break 'reading;
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!((names.join(" "), input), ("error stdin stdout stderr".to_owned(), b"question".to_vec()));

        let mut out = BytesMut::new();
        put_data(&mut out, 5, b"answer", false);
        put_data(&mut out, 1, br#"{"status":"Success"}"#, true);
        put_data(&mut out, 5, b"", true);
        put_data(&mut out, 7, b"", true);
        write.write_all(&out).await.expect("open");
        let mut heard = Vec::new();
        while let Some(Ok(received)) = client.next().await {
            heard.push(received);
        }
        assert_eq!(heard[0], message(STDOUT, b"answer"));
        assert_eq!(heard[1], message(ERROR, br#"{"status":"Success"}"#));
        assert!(matches!(&heard[2], Message::Close(Some(frame)) if frame.code == CloseCode::Normal));
        translation.await.expect("it ends");
    }

    #[tokio::test]
    async fn a_lost_kubelet_is_a_failure() {
        let (client, ours) = tokio::io::duplex(1024);
        let (kubelet, theirs) = tokio::io::duplex(1024);
        tokio::spawn(translate(ours, kubelet, Streams { stdout: true, ..Streams::default() }));
        drop(theirs);
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        if let Some(Ok(Message::Binary(bytes))) = client.next().await {
            assert_eq!(bytes[0], ERROR);
            assert!(String::from_utf8_lossy(&bytes[1..]).contains("InternalError"));
        }
    }
}
