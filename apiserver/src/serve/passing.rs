//! Answers that are passed on from other servers: it is counted when one breaks off before its end, whether the other
//! server or the client is to blame.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;
use prometheus::Counter;

struct CountedBody {
    body: BoxBody,
    /// Bytes to come; of an answer that does not say how long it is, unknown.
    left: Option<u64>,
    /// Until it has ended.
    aborts: Option<Counter>,
}

/// Counts in `aborts` if the answer does not come to its end.
pub(super) fn counted(response: HttpResponse, aborts: Counter) -> HttpResponse {
    response.map_body(|_, body| BoxBody::new(CountedBody::new(body, aborts)))
}

impl CountedBody {
    fn new(body: BoxBody, aborts: Counter) -> Self {
        let left = match body.size() {
            BodySize::None => Some(0),
            BodySize::Sized(length) => Some(length),
            BodySize::Stream => None,
        };
        Self { body, left, aborts: Some(aborts).filter(|_| left != Some(0)) }
    }
}

impl MessageBody for CountedBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let next = Pin::new(&mut self.body).poll_next(cx);
        match &next {
            Poll::Ready(None) => self.aborts = None,
            Poll::Ready(Some(Ok(bytes))) => {
                self.left = self.left.map(|left| left.saturating_sub(bytes.len() as u64));
                // Nobody asks for more than was promised.
                if self.left == Some(0) {
                    self.aborts = None;
                }
            }
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        next
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        if let Some(aborts) = &self.aborts {
            aborts.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::body::BodyStream;
    use futures::stream;

    /// Returns the abort count of a response after a number of its chunks were read.
    async fn aborts(body: BoxBody, pieces: usize) -> f64 {
        let counter = Counter::new("aborts", "help").expect("a counter");
        let mut passing = CountedBody::new(body, counter.clone());
        for _ in 0..pieces {
            let _ = std::future::poll_fn(|cx| Pin::new(&mut passing).poll_next(cx)).await;
        }
        drop(passing);
        counter.get()
    }

    fn streamed(broken: bool) -> BoxBody {
        let last = if broken { Err(std::io::Error::other("gone")) } else { Ok(Bytes::from_static(b"b")) };
        BoxBody::new(BodyStream::new(stream::iter([Ok(Bytes::from_static(b"a")), last])))
    }

    #[tokio::test]
    async fn only_aborted_responses_are_counted() {
        for (body, pieces, want) in [
            (streamed(false), 3, 0.0),
            (streamed(false), 1, 1.0),
            (streamed(true), 2, 1.0),
            (BoxBody::new(Bytes::from_static(b"whole")), 1, 0.0),
            (BoxBody::new(Bytes::from_static(b"whole")), 0, 1.0),
            (BoxBody::new(()), 0, 0.0),
        ] {
            let size = body.size();
            assert!((aborts(body, pieces).await - want).abs() < f64::EPSILON, "{size:?} {pieces}");
        }
    }
}
