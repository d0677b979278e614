//! Sequencing of requests on an HTTP/1 connection. The library reads requests ahead and then applies the last one's
//! state to the first (version, body, keep-alive): so requests are passed one by one, each when the one before is
//! answered, as Go's server reads them. Headers that the library need not see are set aside, and come back here.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_http::body::{BodySize, BoxBody, MessageBody};
use actix_http::error::PayloadError;
use actix_http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use actix_http::{
    BoxedPayloadStream, ConnectionType, HttpMessage as _, Method, Payload, Request, Response, StatusCode,
};
use actix_service::{Service, ServiceFactory};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use futures::task::AtomicWaker;
use futures::{FutureExt as _, Stream, StreamExt as _, TryFutureExt as _};
use tokio::time::{Sleep, sleep};

use super::request_head::Field;

/// State of the request that is being answered.
#[derive(Default)]
pub(super) struct RequestSequencer {
    busy: Cell<bool>,
    /// Waker for the end of the response.
    next: AtomicWaker,
    /// The headers that were put aside.
    pub(super) aside: RefCell<Vec<Field>>,
    /// Error of the body.
    pub(super) wrong: RefCell<Option<String>>,
    /// The request's client waits to be told to go on.
    expects: Cell<bool>,
    /// And is to be told.
    goes_on: Cell<bool>,
    /// Waker of the task that sends `100 Continue`.
    teller: AtomicWaker,
    /// The client has no more to say.
    left: Cell<bool>,
    /// Waker of the task that sends the response.
    sender: AtomicWaker,
    /// The answer is the last one.
    closes: Cell<bool>,
}

impl RequestSequencer {
    /// A request is passed on.
    pub(super) fn begin(&self) {
        self.busy.set(true);
    }

    pub(super) fn expects(&self, expects: bool) {
        self.expects.set(expects);
        self.goes_on.set(false);
    }

    /// Somebody wants to hear more of the client.
    pub(super) fn go_on(&self) {
        if self.expects.replace(false) {
            self.goes_on.set(true);
            self.teller.wake();
        }
    }

    /// Reports once that `100 Continue` is to be sent.
    pub(super) fn goes_on(&self, cx: &Context<'_>) -> bool {
        if self.expects.get() {
            self.teller.register(cx.waker());
        }
        self.goes_on.take()
    }

    /// The client has no more to say.
    pub(super) fn leave(&self) {
        self.left.set(true);
        self.sender.wake();
    }

    /// No request comes after this one.
    pub(super) fn close(&self) {
        self.closes.set(true);
    }

    pub(super) fn closes(&self) -> bool {
        self.closes.get()
    }

    fn has_left(&self, cx: &Context<'_>) -> bool {
        if !self.left.get() {
            self.sender.register(cx.waker());
        }
        self.left.get()
    }

    /// Ready when the request before is answered.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if self.busy.get() {
            self.next.register(cx.waker());
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// The turn of a connection, as it is noted in its data.
#[derive(Clone)]
pub(super) struct ConnectionSequencer(pub(super) Rc<RequestSequencer>);

/// Ends a turn.
pub(super) struct ResponseGuard(Option<Rc<RequestSequencer>>);

#[cfg(test)]
impl ResponseGuard {
    pub(super) fn of(turn: &Rc<RequestSequencer>) -> Self {
        Self(Some(Rc::clone(turn)))
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        let Some(turn) = self.0.take() else { return };
        turn.busy.set(false);
        turn.next.wake();
    }
}

/// The body of an answer. When the library has no more use for it, the turn is over.
pub(super) struct Answer<B> {
    body: B,
    held: ResponseGuard,
    /// The connection stays one of HTTP.
    stays: bool,
    /// Until when there may be nothing to say to who has left.
    silence: Option<Pin<Box<Sleep>>>,
}

/// Time after which a response that sends nothing ends, once the client has closed its side: a watch without changes.
/// Go's server ends its requests, too.
const SILENCE: Duration = Duration::from_millis(500);

impl<B: MessageBody + Unpin> Answer<B> {
    /// Ready when whoever left was told nothing for long enough.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let endless = self.stays && self.body.size() == BodySize::Stream;
        let left = self.held.0.as_ref().is_some_and(|turn| endless && turn.has_left(cx));
        if !left {
            return Poll::Pending;
        }
        self.silence.get_or_insert_with(|| Box::pin(sleep(SILENCE))).as_mut().poll(cx)
    }
}

impl<B: MessageBody + Unpin> MessageBody for Answer<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let next = Pin::new(&mut self.body).poll_next(cx);
        if next.is_pending() {
            return self.poll_silence(cx).map(|()| None);
        }
        self.silence = None;
        next
    }
}

/// An app that is given requests in their turns.
pub(super) struct Sequenced<S>(pub(super) S);

impl<S, B> ServiceFactory<Request> for Sequenced<Fitted<S, B>>
where
    S: ServiceFactory<Request, Config = ()>,
    S::Response: Into<Response<B>>,
    S::Future: 'static,
    S::Service: 'static,
    <S::Service as Service<Request>>::Future: 'static,
    B: MessageBody + 'static,
{
    type Response = Response<Answer<BoxBody>>;
    type Error = S::Error;
    type Config = ();
    type Service = Sequenced<Fitted<S::Service, B>>;
    type InitError = S::InitError;
    type Future = LocalBoxFuture<'static, Result<Self::Service, Self::InitError>>;

    fn new_service(&self, (): ()) -> Self::Future {
        self.0.0.new_service(()).map_ok(|made| Sequenced(Fitted::new(made))).boxed_local()
    }
}

/// An app whose answers have bodies of a type.
pub(super) struct Fitted<S, B>(S, std::marker::PhantomData<fn() -> B>);

impl<S, B> Fitted<S, B> {
    pub(super) fn new(app: S) -> Self {
        Self(app, std::marker::PhantomData)
    }
}

impl<S, B> Service<Request> for Sequenced<Fitted<S, B>>
where
    S: Service<Request>,
    S::Response: Into<Response<B>>,
    S::Future: 'static,
    B: MessageBody + 'static,
{
    type Response = Response<Answer<BoxBody>>;
    type Error = S::Error;
    type Future = LocalBoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.0.poll_ready(cx)
    }

    fn call(&self, mut request: Request) -> Self::Future {
        let turn = request.conn_data::<ConnectionSequencer>().map(|taken| Rc::clone(&taken.0));
        let body = turn.as_ref().and_then(|turn| restore(&mut request, turn));
        let held = ResponseGuard(turn);
        let switches = request.headers().contains_key(UPGRADE);
        let answered = self.0.0.call(request);
        async move {
            let mut answer: Response<B> = answered.await?.into();
            // Where another protocol was asked for, the library writes bodies as they are, and would call them chunked.
            let stays = answer.status() != StatusCode::SWITCHING_PROTOCOLS;
            answer.head_mut().no_chunking(switches && stays);
            if let Some(body) = body
                && answer.head().connection_type() != ConnectionType::Close
                && !body.read_out().await
            {
                answer.head_mut().set_connection_type(ConnectionType::Close);
                if let Some(turn) = &held.0 {
                    turn.close();
                }
            }
            Ok(answer.map_into_boxed_body().map_body(|_, body| Answer { body, held, stays, silence: None }))
        }
        .boxed_local()
    }
}

/// The request as its client sent it, and its body, where it has one.
fn restore(request: &mut Request, turn: &Rc<RequestSequencer>) -> Option<Incoming> {
    for (name, value) in turn.aside.take() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(&value)) {
            request.headers_mut().append(name, value);
        }
    }
    if request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT {
        return None;
    }
    let chunked = request.headers().contains_key(TRANSFER_ENCODING);
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let left = if chunked { None } else { Some(length.filter(|length| *length > 0)?) };
    let expected = turn.expects.get();
    let body = Said { payload: request.take_payload(), left, expected, over: None, turn: Rc::clone(turn) };
    let body = Incoming(Rc::new(RefCell::new(body)));
    *request.payload() = Payload::Stream { payload: Box::pin(body.clone()) as BoxedPayloadStream };
    Some(body)
}

/// Bytes of an unread body that are drained before the response is sent, as Go's server does: its clients may not read
/// before they have sent all. A longer body closes the connection.
const UNREAD: u64 = 256 << 10;

/// A request's body, for its handler and whoever reads what that leaves.
#[derive(Clone)]
struct Incoming(Rc<RefCell<Said>>);

struct Said {
    payload: Payload,
    /// Bytes to come, where that is known.
    left: Option<u64>,
    /// The client waited to be told to go on.
    expected: bool,
    /// Result of the body, once it ended.
    over: Option<bool>,
    turn: Rc<RequestSequencer>,
}

impl Stream for Incoming {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut said = self.0.borrow_mut();
        said.turn.go_on();
        let next = ready!(Pin::new(&mut said.payload).poll_next(cx));
        Poll::Ready(match next {
            None => {
                said.over.get_or_insert(true);
                None
            }
            Some(Ok(part)) => {
                said.left = said.left.map(|left| left.saturating_sub(part.len() as u64));
                Some(Ok(part))
            }
            Some(Err(error)) => {
                said.over = Some(false);
                Some(Err(said.turn.wrong.take().map_or(error, told)))
            }
        })
    }
}

impl Incoming {
    /// Reads what was left unread. Whether that was all, so that the connection can go on.
    async fn read_out(mut self) -> bool {
        let mut more = UNREAD;
        loop {
            let (over, left, expected) = {
                let said = self.0.borrow();
                (said.over, said.left, said.expected)
            };
            match over {
                Some(well) => return well,
                None if left == Some(0) => return true,
                // Whoever was not told to go on may or may not do so, and Go's server does not wait to see.
                None if expected || left.is_some_and(|left| left > more) => return false,
                None => {}
            }
            if let Some(Ok(part)) = self.next().await {
                let Some(less) = more.checked_sub(part.len() as u64) else { return false };
                more = less;
            }
        }
    }
}

fn told(why: String) -> PayloadError {
    PayloadError::Io(std::io::Error::other(why))
}
