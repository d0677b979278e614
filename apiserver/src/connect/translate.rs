//! Exec and attach for WebSocket clients: each message carries a channel number and bytes
//! (`v5.channel.k8s.io`), which become streams of a SPDY connection to the kubelet, and back (KEP-4006). Answers for
//! upstream's `apiserver/pkg/util/proxy/streamtranslator.go` (`StreamTranslatorHandler`).
//!
//! The client has its connection before the kubelet is asked for one: how it went, whatever went wrong, is told on the
//! error channel.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::time::{Instant, Interval, interval_at, sleep_until, timeout};

use super::channels::{ChannelMessage, ERROR, RESIZE, STDERR, STDIN, STDOUT};
use super::ended::CommandEnd;
use super::frames::{self, Incoming, MessageType, Outgoing};
use super::resize::Sizes;
use super::spdy::{Codec, Frame, SpdyError, put_data, put_ping};

/// The subprotocol that is translated; older ones are understood by kubelets themselves.
pub(super) const SUBPROTOCOL: &str = "v5.channel.k8s.io";
/// The SPDY side's protocol, with exit codes as a `Status` on the error stream.
pub(super) const STREAM_PROTOCOL: &str = "v4.channel.k8s.io";

/// Pings that may wait to be answered.
const PINGS: usize = 8;
/// Interval of pings to the kubelet, which keep intermediaries from closing an idle connection.
const PING_PERIOD: Duration = Duration::from_secs(5);
/// A session ends in which nothing was said for so long, as at kubelets.
const IDLE: Duration = Duration::from_secs(4 * 60 * 60);
/// Timeout of sending the final status to the client.
const TELLING: Duration = Duration::from_secs(10);
/// Timeout of the client's closing frame.
const FAREWELL: Duration = Duration::from_secs(2);
/// Bytes of input in a frame.
const CHUNK: usize = 32 << 10;
/// Timeout of the kubelet's replies to the new streams.
const OPENING: Duration = Duration::from_secs(30);
/// Of what the kubelet says on the error stream, so much is read.
const LONGEST_SAID: usize = 1 << 20;

/// Stream numbers by channel.
type StreamNumbers = BTreeMap<u8, u32>;
/// Both directions write to the client: its pings are answered where it is heard.
type Sink<C> = Mutex<Outgoing<WriteHalf<C>>>;
type Messages<C> = Incoming<ReadHalf<C>>;

/// The streams that the client asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streams {
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

    /// The first channel that the client reads.
    fn stdin_stream(self) -> u8 {
        match self {
            Self { stdout: true, .. } => STDOUT,
            Self { stderr: true, .. } => STDERR,
            _ => ERROR,
        }
    }
}

/// End of a session.
enum SessionEnd {
    /// The command ended; the status is sent to the client.
    Ended(Box<CommandEnd>),
    /// The client does not listen any more, or does not keep to the protocol.
    Left(frames::ReadEnd),
}

impl SessionEnd {
    fn told(ended: CommandEnd) -> Self {
        Self::Ended(Box::new(ended))
    }

    const LEFT: Self = Self::Left(frames::ReadEnd::Left);
}

impl From<std::io::Error> for SessionEnd {
    fn from(error: std::io::Error) -> Self {
        tracing::debug!(%error, "Exec or attach connection failed");
        Self::LEFT
    }
}

/// Translates until either side ends. Under which code it is counted.
pub(super) async fn translate<C, K>(
    client: C,
    kubelet: impl Future<Output = Result<K, CommandEnd>>,
    streams: Streams,
) -> u16
where
    C: AsyncRead + AsyncWrite + Unpin,
    K: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(client);
    let (sink, mut messages) = (Mutex::new(Outgoing::new(write)), Incoming::new(read));
    let over = match session(&sink, &mut messages, kubelet, streams).await {
        Ok(ended) => SessionEnd::told(ended),
        Err(over) => over,
    };
    let counted = if let SessionEnd::Ended(ended) = &over { ended.counted } else { 500 };
    // The client may be gone already.
    timeout(TELLING, part(&mut sink.into_inner(), over)).await.ok();
    // Its answer, so that it has read everything before the connection goes.
    let answer = async { while messages.next().await.is_ok() {} };
    timeout(FAREWELL, answer).await.ok();
    counted
}

/// Tells how it went, and closes.
async fn part<W: AsyncWrite + Unpin>(client: &mut Outgoing<W>, over: SessionEnd) -> std::io::Result<()> {
    match over {
        SessionEnd::Ended(ended) => {
            client.put(MessageType::Binary, &[&[ERROR], &ended.status.to_bare_json()]);
            client.close(None).await
        }
        SessionEnd::Left(over) => client.close(Some(over)).await,
    }
}

async fn session<C, K>(
    sink: &Sink<C>,
    messages: &mut Messages<C>,
    kubelet: impl Future<Output = Result<K, CommandEnd>>,
    streams: Streams,
) -> Result<CommandEnd, SessionEnd>
where
    C: AsyncRead + AsyncWrite + Unpin,
    K: AsyncRead + AsyncWrite + Unpin,
{
    // The client sees that the connection stands.
    {
        let mut client = sink.lock().await;
        client.put(MessageType::Binary, &[&[streams.stdin_stream()]]);
        client.send().await?;
    }
    let (read, mut write) = tokio::io::split(kubelet.await.map_err(SessionEnd::told)?);
    let lost = |error: &dyn std::fmt::Display| tracing::debug!(%error, "Connection to kubelet failed");
    let mut out = BytesMut::new();
    let mut codec = Codec::default();
    let opened = open(&mut codec, streams, &mut out);
    let numbers = opened.map_err(|error| SessionEnd::told(CommandEnd::failed(&error.to_string())))?;
    if let Err(error) = write.write_all(&out).await.and(write.flush().await) {
        lost(&error);
    }
    let (pings, pinged) = mpsc::channel(PINGS);
    let (heard, opened) = (Cell::new(Instant::now()), Notify::new());
    let mut output = Output {
        codec,
        sink,
        open: numbers.iter().filter(|(c, _)| **c != STDIN && **c != RESIZE).map(|(_, n)| *n).collect(),
        numbers: &numbers,
        said: Vec::new(),
        pings,
        heard: &heard,
        accepted: 0,
        opened: &opened,
    };
    let mut input = Input {
        numbers: &numbers,
        sizes: Sizes::default(),
        pinged,
        period: interval_at(Instant::now() + PING_PERIOD, PING_PERIOD),
        ping: 1,
        heard: &heard,
        waits: Some(&opened),
    };
    // The directions wait for nothing but each their own: a command that reads as slowly as it writes must not stop.
    tokio::select! {
        over = input.copy(messages, sink, &mut write) => Err(over),
        () = idle(&heard) => Err(SessionEnd::LEFT),
        copied = output.copy(read) => {
            copied?;
            Ok(CommandEnd::after(&output.said))
        }
    }
}

/// Until nothing was heard for too long.
async fn idle(heard: &Cell<Instant>) {
    loop {
        let until = heard.get() + IDLE;
        if until <= Instant::now() {
            return;
        }
        sleep_until(until).await;
    }
}

/// Opens the streams; their numbers by channel.
fn open(codec: &mut Codec, streams: Streams, out: &mut BytesMut) -> Result<StreamNumbers, SpdyError> {
    let mut numbers = StreamNumbers::new();
    for (number, (channel, name)) in (1..).step_by(2).zip(streams.channels()) {
        codec.open(out, number, &[("streamType", name)])?;
        numbers.insert(channel, number);
    }
    Ok(numbers)
}

/// From the client to the kubelet.
struct Input<'a> {
    numbers: &'a StreamNumbers,
    sizes: Sizes,
    /// Pings of the kubelet.
    pinged: mpsc::Receiver<u32>,
    /// Timer of pings, and the number of the next one: those of clients are odd.
    period: Interval,
    ping: u32,
    heard: &'a Cell<Instant>,
    /// Tells when the kubelet has all streams, until it did.
    waits: Option<&'a Notify>,
}

impl Input<'_> {
    /// Until the kubelet has all streams; upstream's client says nothing before. What is sent to a kubelet that is
    /// already done with a command makes it break the connection, with what the command had said.
    async fn opened(&mut self) {
        if let Some(opened) = self.waits.take() {
            timeout(OPENING, opened.notified()).await.ok();
        }
    }

    /// Until the client ends. What the kubelet does not take is lost: it is the other direction that ends with it.
    async fn copy<C, W>(&mut self, client: &mut Messages<C>, sink: &Sink<C>, kubelet: &mut W) -> SessionEnd
    where
        C: AsyncRead + AsyncWrite + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut stdin = self.numbers.get(&STDIN).copied();
        let mut out = BytesMut::new();
        loop {
            let said = tokio::select! {
                Some(number) = self.pinged.recv() => {
                    put_ping(&mut out, number);
                    None
                }
                _ = self.period.tick() => {
                    put_ping(&mut out, self.ping);
                    self.ping = self.ping.wrapping_add(2);
                    None
                }
                said = client.next() => match said {
                    Ok(frames::ClientMessage::Message(bytes)) => Some(bytes),
                    Ok(frames::ClientMessage::Ping(payload)) => {
                        let mut client = sink.lock().await;
                        client.pong(&payload);
                        if let Err(error) = client.send().await {
                            return error.into();
                        }
                        None
                    }
                    Err(over) => return SessionEnd::Left(over),
                },
            };
            let said = said.as_deref().unwrap_or_default();
            if !said.is_empty() {
                self.heard.set(Instant::now());
            }
            match ChannelMessage::of(said) {
                ChannelMessage::Wrong => return SessionEnd::LEFT,
                ChannelMessage::Bytes(STDIN, bytes) if stdin.is_some() => {
                    self.opened().await;
                    for chunk in stdin.iter().flat_map(|stream| bytes.chunks(CHUNK).map(|chunk| (*stream, chunk))) {
                        put_data(&mut out, chunk.0, chunk.1, false);
                        write(kubelet, &mut out).await;
                    }
                }
                ChannelMessage::Last(STDIN) => {
                    if let Some(stream) = stdin.take() {
                        self.opened().await;
                        put_data(&mut out, stream, b"", true);
                    }
                }
                ChannelMessage::Bytes(RESIZE, bytes) => {
                    let sizes = self.sizes.parse_messages(bytes);
                    if let Some(stream) = self.numbers.get(&RESIZE).filter(|_| !sizes.is_empty()) {
                        self.opened().await;
                        put_data(&mut out, *stream, &sizes, false);
                    }
                }
                ChannelMessage::Bytes(..) | ChannelMessage::Last(_) | ChannelMessage::Nothing => {}
            }
            write(kubelet, &mut out).await;
        }
    }
}

/// Writes what there is, if the kubelet takes it.
async fn write<W: AsyncWrite + Unpin>(kubelet: &mut W, out: &mut BytesMut) {
    let bytes = out.split();
    if !bytes.is_empty() && kubelet.write_all(&bytes).await.is_ok() {
        kubelet.flush().await.ok();
    }
}

/// From the kubelet to the client.
struct Output<'a, C> {
    codec: Codec,
    sink: &'a Sink<C>,
    numbers: &'a StreamNumbers,
    /// Streams of the kubelet that have not ended.
    open: Vec<u32>,
    /// Bytes read from the error stream.
    said: Vec<u8>,
    pings: mpsc::Sender<u32>,
    heard: &'a Cell<Instant>,
    /// Number of streams the kubelet accepted, and the waiter for all of them.
    accepted: usize,
    opened: &'a Notify,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Output<'_, C> {
    /// Until every stream, or the connection, has ended, in whichever way.
    async fn copy<R: AsyncRead + Unpin>(&mut self, mut kubelet: R) -> std::io::Result<()> {
        let mut buffer = BytesMut::with_capacity(16 << 10);
        loop {
            let read = kubelet.read_buf(&mut buffer).await;
            let mut ended = !matches!(read, Ok(1..));
            let mut client = self.sink.lock().await;
            loop {
                match self.codec.decode(&mut buffer) {
                    Ok(Some(frame)) => {
                        if let Some((channel, bytes)) = self.message(frame) {
                            self.heard.set(Instant::now());
                            client.put(MessageType::Binary, &[&[channel], &bytes]);
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::debug!(%error, "Kubelet does not speak SPDY");
                        ended = true;
                        break;
                    }
                }
            }
            client.send().await?;
            drop(client);
            if ended || self.open.is_empty() {
                return Ok(());
            }
        }
    }

    /// Message for the client from a frame: bytes of a channel.
    fn message(&mut self, frame: Frame) -> Option<(u8, Bytes)> {
        match frame {
            Frame::Data { stream, bytes, fin } => {
                if fin {
                    self.open.retain(|open| *open != stream);
                }
                let channel =
                    self.numbers.iter().find(|(_, number)| **number == stream).map(|(channel, _)| *channel)?;
                if channel == ERROR {
                    let room = LONGEST_SAID.saturating_sub(self.said.len()).min(bytes.len());
                    self.said.extend_from_slice(&bytes[..room]);
                    return None;
                }
                (!bytes.is_empty()).then_some((channel, bytes))
            }
            Frame::Accepted { stream, fin } => {
                self.accepted += 1;
                if self.accepted == self.numbers.len() {
                    self.opened.notify_one();
                }
                if fin {
                    self.open.retain(|open| *open != stream);
                }
                None
            }
            Frame::Reset { stream } => {
                self.open.retain(|open| *open != stream);
                None
            }
            Frame::Ping(number) => {
                // Pings measure liveness; one that finds no room has its answer in those before it. Odd ones are ours.
                if number % 2 == 0 {
                    self.pings.try_send(number).ok();
                }
                None
            }
            // Who says that there will be no more streams goes on with those that there are.
            Frame::Open { .. } | Frame::GoAway | Frame::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::WebSocketStream;
    use tungstenite::Message;
    use tungstenite::protocol::Role;
    use tungstenite::protocol::frame::coding::CloseCode;

    use super::super::channels::CLOSE;
    use super::*;

    fn message(channel: u8, bytes: &[u8]) -> Message {
        Message::Binary([&[channel], bytes].concat().into())
    }

    /// SYN_REPLY of upstream's library; the first of them starts its compression.
    fn accepted(stream: u32) -> Vec<u8> {
        let block: &[u8] = match stream {
            1 => &[120, 249, 227, 198, 167, 194, 98, 96, 96, 96, 0, 0, 0, 0, 255, 255],
            _ => &[2, 97, 0, 0, 0, 0, 255, 255],
        };
        let length = u8::try_from(block.len() + 4).expect("short");
        [&[0x80, 3, 0, 2, 0, 0, 0, length], &stream.to_be_bytes()[..], block].concat()
    }

    #[actix_web::test]
    async fn command_reads_stdin_and_reports_its_end() {
        let (client, ours) = tokio::io::duplex(64 << 10);
        let (kubelet, theirs) = tokio::io::duplex(64 << 10);
        let streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };
        let translation = actix_web::rt::spawn(translate(ours, ready(Ok(kubelet)), streams));
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
                    Frame::Open { headers, stream, .. } => {
                        names.push(headers[0].1.clone());
                        write.write_all(&accepted(stream)).await.expect("open");
                    }
                    Frame::Data { bytes, fin, stream } => {
                        assert_eq!((stream, names.len()), (3, 4), "nothing is said before there are streams");
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
        assert_eq!(heard[..2], [message(STDOUT, b""), message(STDOUT, b"answer")]);
        assert_eq!(heard[2], message(ERROR, br#"{"metadata":{},"status":"Success"}"#));
        assert!(matches!(&heard[3], Message::Close(Some(frame)) if frame.code == CloseCode::Normal));
        assert_eq!(translation.await.expect("it ends"), 200);
    }

    /// Messages that a client receives in a session with this kubelet.
    async fn heard(kubelet: Result<tokio::io::DuplexStream, CommandEnd>, says: &[&'static [u8]]) -> Vec<Message> {
        let (client, ours) = tokio::io::duplex(1024);
        actix_web::rt::spawn(translate(ours, ready(kubelet), Streams { stderr: true, ..Streams::default() }));
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        for said in says {
            client.send(Message::Binary(Bytes::from_static(said))).await.expect("open");
        }
        client.filter_map(|message| async { message.ok() }).collect().await
    }

    #[actix_web::test]
    async fn client_receives_the_final_status() {
        let (lost, _) = tokio::io::duplex(1024);
        for (kubelet, says, want) in [
            (Ok(lost), &[][..], Some(r#"{"metadata":{},"status":"Success"}"#)),
            (
                Err(CommandEnd::after(br#"{"status":"Failure","message":"x"}"#)),
                &[],
                Some(r#""message":"Internal error occurred: x""#),
            ),
        ] {
            let said = heard(kubelet, says).await;
            assert_eq!(said[0], message(STDERR, b""));
            let told = String::from_utf8_lossy(&said[1].clone().into_data()[1..]).into_owned();
            assert!(want.is_some_and(|want| told.contains(want)), "{told}");
            assert!(said[2].is_close() && said.len() == 3, "{said:?}");
        }
        // Who does not keep to the protocol is told nothing.
        let (_silent, kubelet) = tokio::io::duplex(1024);
        let said = heard(Ok(kubelet), &[&[9, 1], &[], &[CLOSE, STDIN], &[CLOSE, STDIN, 1]]).await;
        assert!(said.len() == 2 && said[1].is_close(), "{said:?}");
    }
}
