//! gRPC calls that end in time: the deadline that a call tells its server is that of the whole answer. The transport's own ends
//! with the head, and a peer that sends a head and nothing more would hold the caller for ever.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body, Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tower::{BoxError, Service};

/// Header in which a call tells its deadline.
const HEADER: &str = "grpc-timeout";

/// A channel whose calls end by their deadlines; those without one go on as long as they like.
#[derive(Clone, Debug)]
pub struct Bounded<S>(S);

impl<S> Bounded<S> {
    /// Over a channel.
    pub fn new(channel: S) -> Self {
        Self(channel)
    }
}

/// Status of a call that is late, as gRPC for Go has it.
fn late() -> BoxError {
    Status::deadline_exceeded("context deadline exceeded").into()
}

/// Time that a call has: eight digits at most and a unit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = number.parse::<u32>().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(u64::from(number) * 3600),
        "M" => Duration::from_secs(u64::from(number) * 60),
        "S" => Duration::from_secs(number.into()),
        "m" => Duration::from_millis(number.into()),
        "u" => Duration::from_micros(number.into()),
        "n" => Duration::from_nanos(number.into()),
        _ => return None,
    })
}

impl<S, B, A> Service<Request<B>> for Bounded<S>
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<BoundedBody<A>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let end = timeout(request.headers()).and_then(|time| Instant::now().checked_add(time));
        let called = self.0.call(request);
        Box::pin(async move {
            let answer = match end {
                None => called.await,
                Some(end) => tokio::select! {
                    biased;
                    () = sleep_until(end) => return Err(late()),
                    answer = called => answer,
                },
            };
            let answer = answer.map_err(Into::into)?;
            Ok(answer.map(|body| BoundedBody { body: Box::pin(body), end: end.map(|end| Box::pin(sleep_until(end))) }))
        })
    }
}

/// Body of an answer, until its call's deadline.
pub struct BoundedBody<A> {
    body: Pin<Box<A>>,
    end: Option<Pin<Box<Sleep>>>,
}

impl<A> Body for BoundedBody<A>
where
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(late())));
        }
        self.body.as_mut().poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::csi::v1::NodeGetInfoRequest;
    use crate::volumes::csi::v1::node_client::NodeClient;
    use futures::StreamExt as _;
    use http_body_util::StreamBody;
    use std::convert::Infallible;
    use tonic::Code;

    type Frames = futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>;

    /// A peer that answers with a head at once and with a body that is all of `frames`.
    fn peer(
        frames: fn() -> Frames,
    ) -> impl Service<
        Request<tonic::body::Body>,
        Response = Response<StreamBody<Frames>>,
        Error = Infallible,
        Future = impl Future<Output = Result<Response<StreamBody<Frames>>, Infallible>> + Send + 'static,
    > {
        tower::service_fn(move |_| {
            let head = Response::builder().header("content-type", "application/grpc");
            std::future::ready(Ok(head.body(StreamBody::new(frames())).expect("an answer")))
        })
    }

    /// Asks such a peer with a deadline of 7 s. The failure, and the seconds until it came.
    async fn ask(frames: fn() -> Frames) -> (Code, String, u64) {
        let begun = Instant::now();
        let mut request = tonic::Request::new(NodeGetInfoRequest {});
        request.set_timeout(Duration::from_secs(7));
        let mut client = NodeClient::new(Bounded::new(peer(frames)));
        let asked = tokio::time::timeout(Duration::from_secs(3600), client.node_get_info(request)).await;
        let failure = asked.expect("it ends").expect_err("there is no answer");
        (failure.code(), failure.message().to_owned(), begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_a_head_and_nothing_more_is_given_up() {
        let expected = (Code::DeadlineExceeded, "context deadline exceeded".to_owned(), 7);
        assert_eq!(ask(|| futures::stream::pending().boxed()).await, expected);
        // A message that is announced and comes byte by byte.
        let drop_by_drop = || {
            let first = futures::stream::iter([Ok(Frame::data(Bytes::from_static(&[0, 0, 0, 255, 255])))]);
            let rest = futures::stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(900)).await;
                Some((Ok(Frame::data(Bytes::from_static(&[0]))), ()))
            });
            first.chain(rest).boxed()
        };
        assert_eq!(ask(drop_by_drop).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_deadline_waits() {
        let mut client = NodeClient::new(Bounded::new(peer(|| futures::stream::pending().boxed())));
        let asked = client.node_get_info(tonic::Request::new(NodeGetInfoRequest {}));
        tokio::time::timeout(Duration::from_secs(1_000_000), asked).await.expect_err("it waits");
    }

    #[test]
    fn deadlines_are_read_as_they_are_written() {
        let read = |text: &str| {
            timeout(&HeaderMap::from_iter([(HEADER.parse().expect("a name"), text.parse().expect("a value"))]))
        };
        for (text, expected) in [
            ("7S", Some(Duration::from_secs(7))),
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("5u", Some(Duration::from_micros(5))),
            ("5n", Some(Duration::from_nanos(5))),
            ("S", None),
            ("7", None),
            ("", None),
            ("-1S", None),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
        }
        let mut request = tonic::Request::new(());
        for time in [Duration::from_millis(1500), Duration::from_secs(120), Duration::from_secs(365 * 24 * 3600)] {
            request.set_timeout(time);
            let headers = request.metadata().clone().into_headers();
            assert_eq!(timeout(&headers), Some(time), "{headers:?}");
        }
    }
}
