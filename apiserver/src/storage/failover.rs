//! The channel to the members of an etcd cluster: each request goes to a healthy member, and to another one when the
//! first is lost.
//!
//! In: gRPC requests. Out: their answers. Reads are repeated on another member when theirs is lost or refuses, and so are
//! writes that build on a revision, which etcd does once however often they come; other writes only when no member can
//! have begun them, so that nothing is written twice; streams end when their member is lost.
//! Answers for the balancer and the retry interceptor of etcd's `clientv3`. Never: a deadline, which is the caller's.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use http::request::Parts;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Frame;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::{BoxError, Service, ServiceExt as _};

use super::members::Members;
use super::resolve::Sending;

type Request = http::Request<Body>;
type Response = http::Response<Body>;

/// Members that are asked for one request before its last error is returned.
const ATTEMPTS: usize = 100;
/// Pause after all members have been asked; upstream's `defaultBackoffWaitBetween`.
const PAUSE: Duration = Duration::from_millis(25);
/// Time after which a call that has no answer and may be repeated is sent to another member as well: a follower whose
/// leader has just died answers after seconds.
const HEDGE_AFTER: Duration = Duration::from_secs(2);

/// Calls that may be repeated although a member may have done them: reads, and grants of leases, which expire unused.
const REPEATABLE: &[&str] =
    &["/etcdserverpb.KV/Range", "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Maintenance/Status"];
/// Calls that are answered by a stream.
const STREAMS: &[&str] = &["/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"];
/// Refusals of a member that has not begun the call.
const NOT_BEGUN: &[&str] = &["etcdserver: no leader", "raft proposal dropped"];

/// Refusal of a member that has no quorum: another has none either, and the caller is to know.
const NO_QUORUM: &str = "etcdserver: request timed out";

/// Treatment of a call whose member is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    /// Repeated elsewhere.
    Repeatable,
    /// A write that is done at most once: repeated elsewhere, and [`Sending`] learns that an earlier attempt may have
    /// done it.
    Guarded,
    /// Repeated elsewhere only when it was not begun.
    Write,
    /// Ended.
    Stream,
}

impl CallKind {
    fn of(path: &str) -> Self {
        match path {
            stream if STREAMS.contains(&stream) => Self::Stream,
            read if REPEATABLE.contains(&read) => Self::Repeatable,
            _ => Self::Write,
        }
    }

    /// The kind of a call of which more is known: the write that it sends.
    fn of_sending(path: &str, sending: Option<&Sending>) -> Self {
        match Self::of(path) {
            Self::Write if sending.is_some_and(Sending::is_repeatable) => Self::Guarded,
            kind => kind,
        }
    }

    /// Reports whether the call is sent to another member after a failure.
    fn repeats_after(self, failure: &CallFailure) -> bool {
        match (self, failure) {
            (_, CallFailure::NotSent(_)) => true,
            (Self::Stream, _) => false,
            (_, CallFailure::Refused(status, _)) if NOT_BEGUN.contains(&status.message()) => true,
            (Self::Repeatable | Self::Guarded, CallFailure::Lost | CallFailure::Broken(_)) => true,
            (Self::Guarded, CallFailure::Refused(status, _)) if status.message() == NO_QUORUM => false,
            (Self::Repeatable | Self::Guarded, CallFailure::Refused(status, _)) => status.code() == Code::Unavailable,
            (Self::Write, _) => false,
        }
    }

    /// Members that may be asked at the same time, of as many as there are.
    fn parallel(self, members: usize) -> usize {
        match self {
            Self::Repeatable => ATTEMPTS,
            Self::Guarded => members,
            Self::Write | Self::Stream => 1,
        }
    }
}

/// Failure of a call to a member.
enum CallFailure {
    /// The connection could not be made.
    NotSent(BoxError),
    /// The connection broke after the request was sent.
    Broken(BoxError),
    /// The member stopped answering probes meanwhile, or did not answer them before, and another one does.
    Lost,
    /// The member answered with an error: its status, and the answer as it came.
    Refused(Box<Status>, Box<Response>),
}

impl CallFailure {
    /// Result for the caller when no other member is tried.
    fn into_answer(self) -> Result<Response, BoxError> {
        match self {
            Self::NotSent(why) => Err(why),
            Self::Broken(_) => Err(connection_broken().into()),
            Self::Lost => Err(member_lost().into()),
            Self::Refused(_, answer) => Ok(*answer),
        }
    }

    /// The reason for which a member may have done the call all the same, if it may.
    fn uncertain(&self) -> Option<Status> {
        match self {
            Self::NotSent(_) => None,
            Self::Broken(_) => Some(connection_broken()),
            Self::Lost => Some(member_lost()),
            Self::Refused(status, _) if NOT_BEGUN.contains(&status.message()) => None,
            Self::Refused(status, _) => (status.code() == Code::Unavailable).then(|| (**status).clone()),
        }
    }
}

/// The status that Go's client has for a call whose connection ended before the answer.
fn connection_broken() -> Status {
    Status::unavailable("error reading from server: EOF")
}

fn member_lost() -> Status {
    Status::unavailable("keepalive ping failed to receive ACK within timeout")
}

/// A channel to all members.
#[derive(Clone)]
pub(super) struct Failover {
    channels: Arc<[Channel]>,
    members: Arc<Members>,
}

impl Failover {
    /// A channel over one connection to each member, in the members' order.
    pub(super) fn new(channels: Vec<Channel>, members: Arc<Members>) -> Self {
        Self { channels: channels.into(), members }
    }

    async fn send(self, request: Request, sending: Option<Arc<Sending>>) -> Result<Response, BoxError> {
        let kind = CallKind::of_sending(request.uri().path(), sending.as_deref());
        let (parts, body) = request.into_parts();
        if kind == CallKind::Stream {
            return self.open_stream(http::Request::from_parts(parts, body)).await;
        }
        let call = (parts, body.collect().await?.to_bytes());
        self.send_hedged(kind, &call, sending.as_deref()).await
    }

    /// Sends a call to one member, and to the next one after a failure that its kind lets pass. One that may be repeated
    /// is sent to the next one as well whenever no answer came for a while: what a follower holds for a leader that is
    /// gone is not answered there before it times out. The first answer counts.
    async fn send_hedged(&self, kind: CallKind, call: &Call, sending: Option<&Sending>) -> Result<Response, BoxError> {
        let ask = |asked| {
            let at = self.members.pick_but(asked);
            (at, self.send_to(at, kind, rebuild(call)))
        };
        let note = |failure: &CallFailure| {
            if let (Some(sending), Some(why)) = (sending, failure.uncertain()) {
                sending.note_uncertain(|| why);
            }
        };
        let parallel = kind.parallel(self.channels.len());
        let (mut last, first) = ask(None);
        let mut asked = FuturesUnordered::from_iter([first]);
        let mut attempt = 1;
        loop {
            let pause = if asked.len() < parallel { HEDGE_AFTER } else { Duration::MAX };
            match tokio::time::timeout(pause, asked.next()).await {
                Ok(Some(Ok(answer))) => return Ok(answer),
                Ok(Some(Err(failure))) => {
                    note(&failure);
                    if attempt == ATTEMPTS || !kind.repeats_after(&failure) {
                        return failure.into_answer();
                    }
                    self.pause_after(attempt).await;
                }
                Err(_) if self.channels.len() == 1 => continue,
                Err(_) => note(&CallFailure::Lost),
                Ok(None) => {}
            }
            let (at, next) = ask(Some(last));
            last = at;
            asked.push(next);
            attempt += 1;
        }
    }

    /// Waits when as many attempts have failed as there are members.
    async fn pause_after(&self, attempt: usize) {
        if attempt.is_multiple_of(self.channels.len()) {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends a request to one member and reads the whole answer: a connection that breaks in the middle counts, too.
    async fn send_to(&self, at: usize, kind: CallKind, request: Request) -> Result<Response, CallFailure> {
        let lost = async {
            match kind {
                CallKind::Repeatable | CallKind::Guarded => self.members.lost(at).await,
                // Whether a lost member has done a write is not known before its answer or the caller's deadline.
                CallKind::Write | CallKind::Stream => std::future::pending().await,
            }
        };
        let answered = tokio::select! {
            answered = exchange(self.channels[at].clone(), request) => answered,
            () = lost => Err(CallFailure::Lost),
        };
        if let Err(CallFailure::NotSent(why) | CallFailure::Broken(why)) = &answered {
            self.members.mark_lost(at, &innermost(why));
        }
        answered
    }

    /// Opens a stream on a healthy member, unless it is lost before it has answered. The next one is up to the caller,
    /// who knows where the stream is to go on.
    async fn open_stream(self, request: Request) -> Result<Response, BoxError> {
        let at = self.members.pick();
        let mut lost = Box::pin(self.members.lost(at));
        let opened = tokio::select! {
            opened = self.channels[at].clone().oneshot(request) => opened,
            () = &mut lost => return Err(member_lost().into()),
        };
        match opened {
            Ok(answer) => Ok(answer.map(|body| Body::new(UntilLost { body, lost }))),
            Err(why) => {
                let why = BoxError::from(why);
                self.members.mark_lost(at, &innermost(&why));
                Err(why)
            }
        }
    }
}

impl Service<Request> for Failover {
    type Response = Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        Box::pin(self.clone().send(request, Sending::current()))
    }
}

/// Head and body of a request that may be sent more than once.
type Call = (Parts, Bytes);

fn rebuild((parts, body): &Call) -> Request {
    http::Request::from_parts(parts.clone(), Body::new(Full::new(body.clone())))
}

/// Sends a request and reads its whole answer.
async fn exchange(channel: Channel, request: Request) -> Result<Response, CallFailure> {
    let answer = channel.oneshot(request).await.map_err(|error| classify(error.into()))?;
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.map_err(|status| CallFailure::Broken(status.into()))?;
    let status = Status::from_header_map(&parts.headers).or_else(|| Status::from_header_map(body.trailers()?));
    let answer = http::Response::from_parts(parts, Body::new(body));
    match status.filter(|status| status.code() != Code::Ok) {
        Some(status) => Err(CallFailure::Refused(Box::new(status), Box::new(answer))),
        None => Ok(answer),
    }
}

/// Tells requests that never left from those whose fate is unknown.
fn classify(error: BoxError) -> CallFailure {
    let mut cause = Some(&*error as &(dyn std::error::Error + 'static));
    while let Some(at) = cause {
        let canceled = at.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled);
        if canceled || at.is::<tonic::ConnectError>() {
            return CallFailure::NotSent(error);
        }
        cause = at.source();
    }
    CallFailure::Broken(error)
}

/// The text of the error at the bottom of a chain: those above it say no more than "transport error".
fn innermost(error: &BoxError) -> String {
    let mut at: &dyn std::error::Error = &**error;
    while let Some(below) = at.source() {
        at = below;
    }
    at.to_string()
}

/// The body of a stream, which fails when its member is lost.
struct UntilLost {
    body: Body,
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl hyper::body::Body for UntilLost {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(self.lost.as_mut().poll(cx));
        Poll::Ready(Some(Err(member_lost())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_no_member_has_begun_are_written_again() {
        let refused = |code, message: &str| {
            CallFailure::Refused(Box::new(Status::new(code, message)), Box::new(Response::new(Body::empty())))
        };
        let table: [(CallFailure, [bool; 4]); 9] = [
            (CallFailure::NotSent("refused".into()), [true; 4]),
            (CallFailure::Broken("reset".into()), [true, true, false, false]),
            (CallFailure::Lost, [true, true, false, false]),
            (refused(Code::Unavailable, "etcdserver: no leader"), [true, true, true, false]),
            (refused(Code::Unknown, "raft proposal dropped"), [true, true, true, false]),
            (refused(Code::Unavailable, "etcdserver: leader changed"), [true, true, false, false]),
            (refused(Code::Unavailable, "etcdserver: request timed out"), [true, false, false, false]),
            (
                refused(Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
                [true, true, false, false],
            ),
            (refused(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"), [false; 4]),
        ];
        for (row, (failure, expected)) in table.into_iter().enumerate() {
            let kinds = [CallKind::Repeatable, CallKind::Guarded, CallKind::Write, CallKind::Stream];
            assert_eq!(kinds.map(|kind| kind.repeats_after(&failure)), expected, "row {row}");
        }
    }

    #[test]
    fn only_calls_that_a_member_may_have_begun_are_uncertain() {
        let refused = |code, message: &str| {
            CallFailure::Refused(Box::new(Status::new(code, message)), Box::new(Response::new(Body::empty())))
        };
        let table = [
            (CallFailure::NotSent("refused".into()), None),
            (CallFailure::Broken("reset".into()), Some("error reading from server: EOF")),
            (CallFailure::Lost, Some("keepalive ping failed to receive ACK within timeout")),
            (refused(Code::Unavailable, "etcdserver: no leader"), None),
            (refused(Code::Unavailable, "etcdserver: leader changed"), Some("etcdserver: leader changed")),
            (refused(Code::InvalidArgument, "etcdserver: key is not provided"), None),
        ];
        for (failure, expected) in table {
            let why = failure.uncertain();
            assert_eq!(why.as_ref().map(Status::message), expected);
        }
    }

    #[test]
    fn writes_that_build_on_a_revision_are_guarded() {
        let txn = "/etcdserverpb.KV/Txn";
        assert_eq!(CallKind::of_sending(txn, Some(&*Sending::new(7))), CallKind::Guarded);
        assert_eq!(CallKind::of_sending(txn, Some(&*Sending::new(0))), CallKind::Write);
        assert_eq!(CallKind::of_sending(txn, None), CallKind::Write);
        assert_eq!(CallKind::of_sending("/etcdserverpb.KV/Range", Some(&*Sending::new(7))), CallKind::Repeatable);
    }

    #[test]
    fn unknown_calls_count_as_writes() {
        let kinds = ["/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn", "/etcdserverpb.Watch/Watch", "/x.Y/New"];
        let expected = [CallKind::Repeatable, CallKind::Write, CallKind::Stream, CallKind::Write];
        assert_eq!(kinds.map(CallKind::of), expected);
    }
}
