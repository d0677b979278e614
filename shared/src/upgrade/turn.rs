//! What a connection over HTTP/1 and the requests that come on it know of each other. The library reads requests ahead
//! and then takes what it knows of the last one for what holds of the first (its version, whether it has a body, whether
//! it is the last): they are given to it one by one, each when the one before is answered, as Go's server reads them. Of
//! a head that is too much for it, what it need not know is put aside, and comes back here.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use actix_http::body::{BodySize, BoxBody, MessageBody};
use actix_http::error::PayloadError;
use actix_http::header::{HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use actix_http::{BoxedPayloadStream, HttpMessage as _, Payload, Request, Response, StatusCode};
use actix_service::{Service, ServiceFactory};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _};

use super::heads::Field;

/// What is known of the request that is being answered.
#[derive(Default)]
pub(super) struct Turn {
    busy: Cell<bool>,
    /// Who is to be told when it is answered.
    next: RefCell<Option<Waker>>,
    /// The headers that were put aside.
    pub(super) aside: RefCell<Vec<Field>>,
    /// Why its body is none.
    pub(super) wrong: RefCell<Option<String>>,
}

impl Turn {
    /// A request is passed on.
    pub(super) fn begin(&self) {
        self.busy.set(true);
    }

    /// Ready when the request before is answered.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if self.busy.get() {
            *self.next.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// The turn of a connection, as it is noted in its data.
#[derive(Clone)]
pub(super) struct Taken(pub(super) Rc<Turn>);

/// Ends a turn.
pub(super) struct Held(Option<Rc<Turn>>);

#[cfg(test)]
impl Held {
    pub(super) fn of(turn: &Rc<Turn>) -> Self {
        Self(Some(Rc::clone(turn)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(turn) = self.0.take() else { return };
        turn.busy.set(false);
        if let Some(waker) = turn.next.take() {
            waker.wake();
        }
    }
}

/// The body of an answer. When the library has no more use for it, the turn is over.
pub(super) struct Answer<B> {
    body: B,
    _held: Held,
}

impl<B: MessageBody + Unpin> MessageBody for Answer<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

/// An app that is given requests in their turns.
pub(super) struct InTurn<S>(pub(super) S);

impl<S, B> ServiceFactory<Request> for InTurn<Fitted<S, B>>
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
    type Service = InTurn<Fitted<S::Service, B>>;
    type InitError = S::InitError;
    type Future = LocalBoxFuture<'static, Result<Self::Service, Self::InitError>>;

    fn new_service(&self, (): ()) -> Self::Future {
        self.0.0.new_service(()).map_ok(|made| InTurn(Fitted::new(made))).boxed_local()
    }
}

/// An app whose answers have bodies of a type.
pub(super) struct Fitted<S, B>(S, std::marker::PhantomData<fn() -> B>);

impl<S, B> Fitted<S, B> {
    pub(super) fn new(app: S) -> Self {
        Self(app, std::marker::PhantomData)
    }
}

impl<S, B> Service<Request> for InTurn<Fitted<S, B>>
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
        let turn = request.conn_data::<Taken>().map(|taken| Rc::clone(&taken.0));
        if let Some(turn) = &turn {
            restore(&mut request, turn);
        }
        let held = Held(turn);
        let switches = request.headers().contains_key(UPGRADE);
        let answered = self.0.0.call(request);
        async move {
            let mut answer: Response<B> = answered.await?.into();
            // Where another protocol was asked for, the library writes bodies as they are, and would call them chunked.
            let stays = switches && answer.status() != StatusCode::SWITCHING_PROTOCOLS;
            answer.head_mut().no_chunking(stays);
            Ok(answer.map_into_boxed_body().map_body(|_, body| Answer { body, _held: held }))
        }
        .boxed_local()
    }
}

/// The request as its client sent it.
fn restore(request: &mut Request, turn: &Rc<Turn>) {
    for (name, value) in turn.aside.take() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(&value)) {
            request.headers_mut().append(name, value);
        }
    }
    if request.headers().contains_key(TRANSFER_ENCODING) {
        let (turn, body) = (Rc::clone(turn), request.take_payload());
        let body = body.map(move |part| part.map_err(|error| turn.wrong.take().map_or(error, told)));
        *request.payload() = Payload::Stream { payload: Box::pin(body) as BoxedPayloadStream };
    }
}

fn told(why: String) -> PayloadError {
    PayloadError::Io(std::io::Error::other(why))
}
