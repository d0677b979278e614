use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::connect::Connected;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::super::fence::{Fence, Permission};
use super::*;

/// A connection on which HTTP/2 was agreed, or was not.
struct Wire(TokioIo<DuplexStream>, bool);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        if self.1 { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl hyper::rt::Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl hyper::rt::Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, part)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Behaviour of the server.
#[derive(Clone, Copy)]
enum Manner {
    /// Answers with what it was sent.
    Echoes,
    /// Closes the connection after one answer.
    AnswersOnce,
    /// Takes requests, and says nothing any more, not even to pings.
    FallsSilent,
    /// Begins one answer, takes no other request, and says nothing any more from then on.
    BeginsOnly(u64),
    /// Cannot be reached.
    Refuses,
    /// Knows no HTTP/2.
    Old,
    /// Knows no HTTP/2, and closes the connection when it was idle for a second.
    OldAndHasty,
    /// Echoes, but reads nothing for five seconds.
    Late,
}

async fn serve(mut io: DuplexStream, manner: Manner) {
    if matches!(manner, Manner::Old | Manner::OldAndHasty) {
        let mut buffer = vec![0; 4096];
        let idle = Duration::from_secs(if matches!(manner, Manner::Old) { 600 } else { 1 });
        while tokio::time::timeout(idle, io.read(&mut buffer)).await.is_ok_and(|read| read.is_ok_and(|n| n > 0)) {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nold";
            io.write_all(answer).await.expect("written");
        }
        return;
    }
    if matches!(manner, Manner::Late) {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let mut connection = h2::server::handshake(io).await.expect("a handshake");
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        if matches!(manner, Manner::FallsSilent) {
            return std::future::pending().await;
        }
        if let Manner::BeginsOnly(minutes) = manner {
            let stream = respond.send_response(Response::new(()), false).expect("an answer");
            connection.graceful_shutdown();
            let end = tokio::time::sleep(Duration::from_mins(minutes));
            tokio::select! {
                () = end => {}
                _ = connection.accept() => {}
            }
            std::future::pending::<()>().await;
            drop(stream);
            return;
        }
        if matches!(manner, Manner::AnswersOnce) {
            connection.graceful_shutdown();
        }
        tokio::spawn(async move {
            let said = request.headers().get("content-length").cloned();
            let mut body = request.into_body();
            let mut whole = Vec::new();
            while let Some(part) = body.data().await {
                // A request that breaks off is none.
                let Ok(part) = part else { return };
                body.flow_control().release_capacity(part.len()).expect("taken");
                whole.extend_from_slice(&part);
            }
            assert_eq!(said.map(|n| n.to_str().expect("text").parse::<usize>().expect("a number")), Some(whole.len()));
            let mut stream = respond.send_response(Response::new(()), false).expect("an answer");
            stream.send_data(Bytes::from(whole), true).expect("a body");
        });
    }
}

/// Connections that were opened, and those that ended.
#[derive(Default)]
struct Seen {
    opened: AtomicUsize,
    ended: AtomicUsize,
}

impl Seen {
    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    fn open(&self) -> usize {
        self.opened() - self.ended.load(Ordering::SeqCst)
    }
}

/// A peer whose connections behave as `manners` say, one after another, the last of them for ever.
fn peer(manners: &'static [Manner]) -> (Arc<Peer<impl Connector>>, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let count = Arc::clone(&seen);
    let connector = tower::service_fn(move |_: Uri| -> BoxFuture<'static, io::Result<Wire>> {
        let at = count.opened.fetch_add(1, Ordering::SeqCst);
        let count = Arc::clone(&count);
        let manner = manners[at.min(manners.len() - 1)];
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if matches!(manner, Manner::Refuses) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = duplex(1 << 16);
            tokio::spawn(async move {
                serve(far, manner).await;
                count.ended.fetch_add(1, Ordering::SeqCst);
            });
            Ok(Wire(TokioIo::new(near), !matches!(manner, Manner::Old | Manner::OldAndHasty)))
        })
    });
    (Arc::new(Peer::new(connector)), seen)
}

async fn ask<C: Connector>(peer: &Arc<Peer<C>>, body: &[u8]) -> Result<Bytes, Broken> {
    let request = Request::post("https://server/path").body(Bytes::copy_from_slice(body)).expect("a request");
    let answer = Arc::clone(peer).send(&request, Arc::default()).await?;
    Ok(answer.into_body().collect().await?.to_bytes())
}

#[tokio::test(start_paused = true)]
async fn all_requests_take_one_connection() {
    let (peer, seen) = peer(&[Manner::Echoes]);
    let large = vec![b'x'; 300_000];
    let (one, two, three) = tokio::join!(ask(&peer, b"one"), ask(&peer, b""), ask(&peer, &large));
    assert_eq!([one, two, three].map(|answer| answer.expect("an answer").len()), [3, 0, large.len()]);
    assert_eq!(seen.opened(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_closed_is_replaced() {
    let (peer, seen) = peer(&[Manner::AnswersOnce, Manner::Echoes]);
    for turn in 0..3 {
        assert_eq!(ask(&peer, b"x").await.expect("an answer"), "x", "{turn}");
        // What the other side says about it is read.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(seen.opened(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_answer_pings_is_lost() {
    let (peer, seen) = peer(&[Manner::FallsSilent, Manner::Echoes]);
    let began = Instant::now();
    let lost = ask(&peer, b"x").await.expect_err("nobody there");
    assert!(matches!(lost, Broken::Lost), "{lost}");
    assert_eq!((began.elapsed().as_secs(), lost.to_string().as_str()), (46, "http2: client connection lost"));
    assert_eq!(ask(&peer, b"y").await.expect("an answer"), "y");
    assert_eq!(seen.opened(), 2);
}

#[tokio::test(start_paused = true)]
async fn silence_alone_loses_nobody() {
    let (peer, seen) = peer(&[Manner::Echoes]);
    for _ in 0..3 {
        assert_eq!(ask(&peer, b"x").await.expect("an answer"), "x");
        tokio::time::sleep(Duration::from_secs(85)).await;
    }
    assert_eq!((seen.opened(), seen.open()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_asks_on_is_closed() {
    let (peer, seen) = peer(&[Manner::Echoes]);
    for turn in 1..4 {
        assert_eq!(ask(&peer, b"x").await.expect("an answer"), "x");
        tokio::time::sleep(Duration::from_secs(95)).await;
        assert_eq!((seen.opened(), seen.open()), (turn, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn who_reads_an_answer_keeps_its_connection_open() {
    let (peer, seen) = peer(&[Manner::Echoes]);
    let request = Request::post("https://server/path").body(Bytes::from_static(b"x")).expect("a request");
    let answer = Arc::clone(&peer).send(&request, Arc::default()).await.expect("an answer");
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(ask(&peer, b"y").await.expect("an answer"), "y");
    assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "x");
    assert_eq!((seen.opened(), seen.open()), (1, 1));
    tokio::time::sleep(Duration::from_mins(4)).await;
    assert_eq!(seen.open(), 0);
}

/// A server that goes down lets watches end by themselves, and may be gone before they do.
#[tokio::test(start_paused = true)]
async fn who_reads_an_answer_on_a_connection_that_was_replaced_learns_that_it_is_lost() {
    let (peer, seen) = peer(&[Manner::BeginsOnly(5), Manner::Echoes]);
    let request = Request::post("https://server/path").body(Bytes::from_static(b"x")).expect("a request");
    let answer = Arc::clone(&peer).send(&request, Arc::default()).await.expect("an answer");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ask(&peer, b"y").await.expect("an answer"), "y");
    assert_eq!(seen.opened(), 2);
    let end = tokio::time::timeout(Duration::from_mins(10), answer.into_body().collect());
    let lost = end.await.expect("it ends").expect_err("nobody there");
    assert!(matches!(lost, Broken::Lost), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_connection_fails_with_it() {
    let (peer, seen) = peer(&[Manner::Refuses, Manner::Echoes]);
    let (one, two) = tokio::join!(ask(&peer, b"x"), ask(&peer, b"y"));
    for failed in [one, two] {
        let failed = failed.expect_err("nobody there");
        let cause = failed.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused));
    }
    assert_eq!(seen.opened(), 1);
    assert_eq!(ask(&peer, b"z").await.expect("an answer"), "z");
}

#[tokio::test(start_paused = true)]
async fn servers_without_http2_are_spoken_to_in_http1() {
    let (peer, seen) = peer(&[Manner::Old]);
    for _ in 0..2 {
        assert_eq!(ask(&peer, b"x").await.expect("an answer"), "old");
    }
    assert_eq!(seen.opened(), 1);
    let (one, two) = tokio::join!(ask(&peer, b"x"), ask(&peer, b"y"));
    assert_eq!((one.expect("an answer"), two.expect("an answer")), ("old".into(), "old".into()));
    assert_eq!(seen.opened(), 2, "each carries one request at a time");
    tokio::time::sleep(Duration::from_secs(95)).await;
    assert_eq!(ask(&peer, b"x").await.expect("an answer"), "old");
    assert_eq!((seen.opened(), seen.open()), (3, 1), "those that nobody used for long are closed");
}

#[tokio::test(start_paused = true)]
async fn http1_connections_that_the_server_closed_are_replaced() {
    let (peer, seen) = peer(&[Manner::OldAndHasty]);
    for turn in 1..4 {
        assert_eq!(ask(&peer, b"x").await.expect("an answer"), "old");
        assert_eq!(seen.opened(), turn);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

fn until(end: Instant) -> Fence {
    Fence::new(move || if Instant::now() < end { Permission::Granted } else { Permission::Expired })
}

#[tokio::test(start_paused = true)]
async fn writes_are_not_sent_once_their_fence_is_closed() {
    for (what, manners, warm) in [
        ("over a connection that is open", &[Manner::Echoes][..], true),
        ("while a connection is opened", &[Manner::Echoes], false),
        ("over a connection of HTTP/1.1 that is open", &[Manner::Old], true),
        ("while a connection of HTTP/1.1 is opened", &[Manner::Old], false),
    ] {
        let (peer, _) = peer(manners);
        if warm {
            ask(&peer, b"x").await.expect("an answer");
        }
        // A connection takes a second to be opened.
        let closes = Instant::now() + Duration::from_millis(if warm { 0 } else { 500 });
        let fence = until(closes);
        let send = async |method: &str| {
            let mut request = Request::builder().method(method).uri("https://server/path").body(Bytes::new())?;
            request.headers_mut().insert("content-length", 0.into());
            fence.guard(&mut request);
            Arc::clone(&peer).send(&request, Arc::default()).await.map_err(BoxError::from)
        };
        let refused = send("PUT").await.err().expect("it is held back").to_string();
        assert_eq!(refused, "the request was not sent: the lease has expired", "{what}");
        assert!(send("GET").await.is_ok(), "{what}: reads pass");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_connection_was_handed_does_not_leave_it_once_the_fence_is_closed() {
    let (peer, seen) = peer(&[Manner::Late, Manner::Echoes]);
    // More than the other side takes before it reads.
    let mut request = Request::put("https://server/path").body(Bytes::from(vec![b'x'; 200_000])).expect("a request");
    until(Instant::now() + Duration::from_secs(3)).guard(&mut request);
    let began = Instant::now();
    let sent = Arc::clone(&peer).send(&request, Arc::default()).await;
    assert_eq!(sent.err().expect("held back").to_string(), "the request was not sent: the lease has expired");
    assert_eq!(began.elapsed().as_secs(), 6, "it was handed over after a second, and had no room for five");
    assert_eq!(ask(&peer, b"y").await.expect("an answer"), "y", "others get another connection");
    assert_eq!(seen.opened(), 2);
}

#[tokio::test(start_paused = true)]
async fn connections_outlive_a_permission_that_was_given_back() {
    let (peer, seen) = peer(&[Manner::Echoes]);
    let end = Instant::now() + Duration::from_secs(3);
    let fence = Fence::new(move || if Instant::now() < end { Permission::Granted } else { Permission::Absent });
    let mut request = Request::put("https://server/path").body(Bytes::from_static(b"x")).expect("a request");
    fence.guard(&mut request);
    assert!(Arc::clone(&peer).send(&request, Arc::default()).await.is_ok());
    tokio::time::sleep_until(end).await;
    assert!(Arc::clone(&peer).send(&request, Arc::default()).await.is_err());
    assert_eq!(ask(&peer, b"y").await.expect("an answer"), "y");
    assert_eq!(seen.opened(), 1);
}
