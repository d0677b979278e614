//! Filter between TLS and the HTTP library on an HTTP/1 connection: it passes heads that [`request_head`] has validated, and
//! their bodies. Clients of exec and port-forward ask for SPDY/3.1, while the library hands over connections for
//! WebSocket alone: the protocol that was really asked for is kept in a header of our own.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::chunked_body::ChunkedBody;
use super::pipelining::RequestSequencer;
use super::request_head::{self, Body, Line, Search};

const CHUNK: usize = 8 << 10;
/// Response to `Expect: 100-continue`.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Time for which a connection is read after the last response: closing a socket with unread bytes would reset it, and
/// the client would not see why it was refused. Go's server waits as long.
const LINGER: Duration = Duration::from_millis(500);

pub(super) struct Http1Filter<S> {
    inner: S,
    /// Read, and not passed on.
    ahead: BytesMut,
    /// To be passed on as it is.
    given: Bytes,
    state: State,
    /// The request that passes says that it is the last one.
    last: bool,
    /// The client has no more to say.
    ended: bool,
    /// Sequencer of requests.
    turn: Rc<RequestSequencer>,
    /// To be said before anything more is read.
    says: &'static [u8],
    /// Until when the client is heard out.
    lingers: Option<Pin<Box<Sleep>>>,
    /// Time that a head may take once it has begun, each of a connection: the HTTP library watches the first alone.
    head_limit: Duration,
    /// Until when the head that has begun must be complete.
    head_deadline: Option<Pin<Box<Sleep>>>,
}

enum State {
    /// A head comes; whether its first line was looked at.
    Head(Search, bool),
    Length(u64),
    ChunkedBody(ChunkedBody),
    /// Bytes pass unchanged.
    Open,
    /// No more bytes pass: a request was refused, or was the last one.
    Closed,
}

impl<S> Http1Filter<S> {
    pub(super) fn new(inner: S, head_limit: Duration) -> Self {
        Self {
            inner,
            ahead: BytesMut::new(),
            given: Bytes::new(),
            state: State::head(),
            last: false,
            ended: false,
            turn: Rc::default(),
            says: &[],
            lingers: None,
            head_limit,
            head_deadline: None,
        }
    }

    pub(super) fn turn(&self) -> &Rc<RequestSequencer> {
        &self.turn
    }

    pub(super) fn inner(&self) -> &S {
        &self.inner
    }

    /// Takes a step with what was read. `false`: more has to be read first.
    fn step(&mut self) -> bool {
        match &mut self.state {
            State::Head(..) if self.turn.closes() => self.state = State::Closed,
            State::Head(search, looked) => {
                let end = search.end(&self.ahead);
                if !*looked && search.has_line() {
                    *looked = true;
                    if let Err(refused) = Line::read(&self.ahead) {
                        return self.refuse(refused);
                    }
                }
                if end.unwrap_or(self.ahead.len()) > request_head::LONGEST {
                    return self.refuse(request_head::TOO_LARGE);
                }
                let Some(end) = end else { return false };
                self.head_deadline = None;
                match request_head::parse(&self.ahead.split_to(end)) {
                    Err(refused) => return self.refuse(refused),
                    Ok(head) => {
                        self.given = Bytes::from(head.bytes);
                        self.last = head.last;
                        *self.turn.aside.borrow_mut() = head.aside;
                        self.turn.begin();
                        self.turn.expects(head.expects);
                        self.state = State::within(head.body);
                    }
                }
            }
            State::Length(0) => self.state = self.after(),
            State::Length(left) => {
                let count = self.ahead.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                self.given = self.ahead.split_to(count).freeze();
                *left -= count as u64;
            }
            State::ChunkedBody(chunks) => match chunks.take(&mut self.ahead) {
                Ok(given) => {
                    self.given = given.unwrap_or_default();
                    if chunks.over() {
                        self.state = self.after();
                    } else if self.given.is_empty() {
                        return false;
                    }
                }
                Err(wrong) => {
                    *self.turn.wrong.borrow_mut() = Some(wrong);
                    self.state = State::Closed;
                    self.ended = true;
                }
            },
            State::Open => self.given = self.ahead.split().freeze(),
            State::Closed => self.ahead.clear(),
        }
        !self.given.is_empty() || matches!(self.state, State::Head(..) | State::Length(0)) && !self.ahead.is_empty()
    }

    /// State after a request.
    fn after(&self) -> State {
        if self.last { State::Closed } else { State::head() }
    }

    /// Ends the connection when the head that has begun is not complete in time.
    fn is_head_late(&mut self, cx: &mut Context<'_>) -> bool {
        if !matches!(self.state, State::Head(..)) || self.ahead.is_empty() {
            return false;
        }
        let deadline = self.head_deadline.get_or_insert_with(|| Box::pin(sleep(self.head_limit)));
        if deadline.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.head_deadline = None;
        self.ahead.clear();
        self.state = State::Closed;
        self.ended = true;
        self.turn.leave();
        true
    }

    fn refuse(&mut self, refused: request_head::Refused) -> bool {
        self.given = Bytes::from(request_head::in_place(refused));
        self.turn.begin();
        self.state = State::Closed;
        true
    }
}

impl State {
    fn head() -> Self {
        Self::Head(Search::default(), false)
    }

    fn within(body: Body) -> Self {
        match body {
            Body::Length(length) => Self::Length(length),
            Body::Chunks => Self::ChunkedBody(ChunkedBody::default()),
            Body::Rest => Self::Open,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http1Filter<S> {
    /// Tells the client to go on, once somebody wants to hear more of it. Nothing was answered yet.
    fn poll_go_on(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.turn.goes_on(cx) {
            self.says = GO_ON;
        }
        if self.says.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while !self.says.is_empty() {
            let count = ready!(Pin::new(&mut self.inner).poll_write(cx, self.says))?;
            self.says = &self.says[count..];
        }
        Pin::new(&mut self.inner).poll_flush(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Http1Filter<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_go_on(cx))?;
        loop {
            if !this.given.is_empty() {
                let count = this.given.len().min(buf.remaining());
                buf.put_slice(&this.given[..count]);
                this.given.advance(count);
                return Poll::Ready(Ok(()));
            }
            if matches!(this.state, State::Open) && this.ahead.is_empty() {
                return Pin::new(&mut this.inner).poll_read(cx, buf);
            }
            // A head waits until the request before it is answered, and not for ever more bytes behind it.
            let waits =
                matches!(this.state, State::Head(..)) && !this.ahead.is_empty() && this.turn.poll(cx).is_pending();
            if !waits && !this.ahead.is_empty() && this.step() {
                continue;
            }
            if waits && (this.ended || this.ahead.len() >= CHUNK) {
                return Poll::Pending;
            }
            if this.ended {
                // Half a head is none.
                return Poll::Ready(Ok(()));
            }
            if !waits && this.is_head_late(cx) {
                return Poll::Ready(Ok(()));
            }
            let mut chunk = [0; CHUNK];
            let mut read = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut read))?;
            this.ended = read.filled().is_empty();
            if this.ended {
                this.turn.leave();
            }
            this.ahead.extend_from_slice(read.filled());
        }
    }
}

impl<S: AsyncRead + Unpin> Http1Filter<S> {
    /// Reads what nobody looks at, to its end or until it is enough.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // First, so that a client who never pauses does not keep it from being looked at.
        if self.lingers.get_or_insert_with(|| Box::pin(sleep(LINGER))).as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut chunk = [0; CHUNK];
        loop {
            let mut read = ReadBuf::new(&mut chunk);
            if ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read)).is_err() || read.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Http1Filter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
        if matches!(self.state, State::Closed) { self.poll_linger(cx).map(Ok) } else { Poll::Ready(Ok(())) }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::pipelining::ResponseGuard;
    use super::*;

    const HEAD_LIMIT: Duration = Duration::from_secs(32);

    /// Passes bytes that arrive in pieces through the filter.
    async fn given(bytes: &[u8], piece: usize) -> String {
        let (mut client, ours) = tokio::io::duplex(1 << 20);
        let mut gate = Http1Filter::new(ours, HEAD_LIMIT);
        let mut out = Vec::new();
        let sending = async {
            for piece in bytes.chunks(piece) {
                client.write_all(piece).await.expect("open");
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        let reading = async {
            // Each request is answered when it is read.
            while gate.read_buf(&mut out).await.expect("read") > 0 {
                drop(ResponseGuard::of(gate.turn()));
            }
        };
        tokio::join!(sending, reading);
        String::from_utf8_lossy(&out).replace("\r\n", "|")
    }

    #[tokio::test(start_paused = true)]
    async fn later_heads_have_a_deadline_too() {
        let (mut client, ours) = tokio::io::duplex(1 << 20);
        let (mut gate, mut out) = (Http1Filter::new(ours, HEAD_LIMIT), Vec::new());
        client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nX: ").await.expect("open");
        assert!(gate.read_buf(&mut out).await.expect("the first head") > 0);
        drop(ResponseGuard::of(gate.turn()));
        let begun = tokio::time::Instant::now();
        let dripping = async {
            while client.write_all(b"a").await.is_ok() {
                sleep(Duration::from_secs(5)).await;
            }
        };
        tokio::select! {
            () = dripping => {}
            read = gate.read_buf(&mut out) => assert_eq!(read.expect("the end"), 0),
        }
        assert_eq!(begun.elapsed().as_secs(), HEAD_LIMIT.as_secs());
        assert!(gate.ahead.is_empty());
    }

    #[tokio::test]
    async fn every_head_is_judged_and_what_follows_it_passes() {
        const GET: &str = "GET /< HTTP/1.1\nHost: h\n\n";
        const GIVEN: &str = "GET /%3C HTTP/1.1|Host: h||";
        let post = "POST / HTTP/1.1\r\nHost: h\r\n";
        let refused = "GET / HTTP/1.1|Host: x|Connection: close|x-ironclad-refused: 400 400 Bad Request||";
        for (sent, want) in [
            (format!("{GET}{GET}"), format!("{GIVEN}{GIVEN}")),
            (
                format!("{post}Content-Length: 5\r\n\r\nGET /{GET}"),
                format!("POST / HTTP/1.1|Host: h|Content-Length: 5||GET /{GIVEN}"),
            ),
            (
                format!("{post}Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nGET /\r\n0\r\nA: b\r\n\r\n{GET}"),
                format!("POST / HTTP/1.1|Host: h|Transfer-Encoding: chunked||5|GET /|0||{GIVEN}"),
            ),
            (
                format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n{GET}"),
                format!("GET / HTTP/1.1|Host: h|Connection: upgrade|Upgrade: websocket|x-ironclad-upgrade: x||{}", GET),
            ),
            (format!("{GET}GET /%zz HTTP/1.1\r\n"), format!("{GIVEN}{refused}")),
            (format!("{GET}half a head"), GIVEN.to_owned()),
            (
                format!("{post}Content-Length: 2\r\nConnection: close\r\n\r\nab{GET}"),
                "POST / HTTP/1.1|Host: h|Connection: close|Content-Length: 2||ab".to_owned(),
            ),
            (
                format!("{post}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{GET}"),
                "POST / HTTP/1.1|Host: h|Transfer-Encoding: chunked|Connection: close||0||".to_owned(),
            ),
        ] {
            for piece in [1, 7, 4096] {
                assert_eq!(given(sent.as_bytes(), piece).await, want, "{piece}: {sent}");
            }
        }
        let long = format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "a".repeat(request_head::LONGEST));
        assert!(given(long.as_bytes(), 4096).await.contains("x-ironclad-refused: 431 "));
    }

    #[tokio::test]
    async fn nothing_comes_after_an_answer_that_closes() {
        let (mut client, ours) = tokio::io::duplex(1 << 10);
        let mut gate = Http1Filter::new(ours, HEAD_LIMIT);
        client.write_all(b"GET /a HTTP/1.1\nHost: h\n\nGET /b HTTP/1.1\nHost: h\n\n").await.expect("open");
        let mut out = Vec::new();
        gate.read_buf(&mut out).await.expect("read");
        assert!(out.starts_with(b"GET /a "));
        gate.turn().close();
        drop((ResponseGuard::of(gate.turn()), client));
        assert_eq!(gate.read_buf(&mut out).await.expect("read"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_refused_is_heard_out_and_not_for_ever() {
        for (goes_on, waited) in [(true, LINGER), (false, Duration::ZERO)] {
            let (mut client, ours) = tokio::io::duplex(1 << 10);
            let mut gate = Http1Filter::new(ours, HEAD_LIMIT);
            client.write_all(b"GET /% HTTP/1.1\r\n").await.expect("open");
            let mut some = [0; 64];
            assert!(gate.read(&mut some).await.expect("read") > 0);
            let saying = tokio::spawn(async move {
                while goes_on && client.write_all(&[b'a'; 64]).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
            let began = tokio::time::Instant::now();
            gate.shutdown().await.expect("closed");
            assert_eq!(began.elapsed().as_millis(), waited.as_millis(), "{goes_on}");
            drop(gate);
            saying.await.expect("no panic");
        }
    }

    /// Generates fragments of requests, valid and invalid.
    fn fragment() -> impl Strategy<Value = Vec<u8>> {
        let said = proptest::sample::select(vec![
            "GET / HTTP/1.1\r\nHost: h\r\n",
            "POST /< HTTP/1.1\nHost: h\n",
            "Content-Length: 3\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Connection: upgrade\r\nUpgrade: x\r\n",
            "Expect: 100-continue\r\n",
            "\r\n",
            "abc",
            "3;a\r\nabc\r\n",
            "0\r\n\r\n",
        ]);
        prop_oneof![9 => said.prop_map(|text| text.as_bytes().to_vec()), 1 => proptest::collection::vec(any::<u8>(), 0..9)]
    }

    proptest! {
        /// However a connection's bytes are cut, the library is given the same.
        #[test]
        fn pieces_do_not_matter(said in proptest::collection::vec(fragment(), 0..24), piece in 1..40_usize) {
            let bytes = said.concat();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            let (cut, whole) = runtime.block_on(async { (given(&bytes, piece).await, given(&bytes, 1 << 20).await) });
            prop_assert_eq!(cut, whole);
        }
    }
}
