//! What the metrics say of requests to the API server, under client-go's names.
//!
//! HOT: every request passes here.

use std::sync::Arc;
use std::time::Instant;

use http::{Method, Request, StatusCode};
use hyper::body::{Body, Frame};
use prometheus::{CounterVec, HistogramVec};

use super::throttle::Waited;
use crate::metrics;

/// In seconds.
const DURATIONS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// In bytes.
const SIZES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];
/// The code of a request that was not answered.
const UNANSWERED: &str = "<error>";

/// The families, for the requests to one host.
pub(super) struct Measures {
    host: String,
    requests: CounterVec,
    waits: HistogramVec,
    durations: HistogramVec,
    sent: HistogramVec,
    received: HistogramVec,
}

impl Measures {
    /// For a host and port.
    pub(super) fn of(host: &str) -> Arc<Self> {
        let labels = &["host", "verb"];
        let sizes = |name, help| metrics::histogram(name, help, labels, SIZES.to_vec());
        Arc::new(Self {
            host: host.to_owned(),
            requests: metrics::counter(
                "rest_client_requests_total",
                "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "host", "method"],
            ),
            waits: metrics::histogram(
                "rest_client_rate_limiter_duration_seconds",
                "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.",
                labels,
                DURATIONS.to_vec(),
            ),
            durations: metrics::histogram(
                "rest_client_request_duration_seconds",
                "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
                labels,
                DURATIONS.to_vec(),
            ),
            sent: sizes(
                "rest_client_request_size_bytes",
                "[ALPHA] Request size in bytes. Broken down by verb and host.",
            ),
            received: sizes(
                "rest_client_response_size_bytes",
                "[ALPHA] Response size in bytes. Broken down by verb and host.",
            ),
        })
    }

    /// A request is about to be sent.
    pub(super) fn begin<B: Body>(self: &Arc<Self>, request: &Request<B>) -> UnderWay {
        let watch = request.uri().query().is_some_and(|q| q.split('&').any(|pair| pair == "watch=true"));
        let sent = request.body().size_hint().exact().unwrap_or_default();
        if let Some(Waited(waited)) = request.extensions().get() {
            let labels = [&*self.host, request.method().as_str()];
            self.waits.with_label_values(&labels).observe(waited.as_secs_f64());
        }
        UnderWay {
            measures: Arc::clone(self),
            method: request.method().clone(),
            watch,
            sent,
            received: 0,
            since: Instant::now(),
        }
    }
}

/// A request, until the whole answer was read or nobody reads it any more.
pub(super) struct UnderWay {
    measures: Arc<Measures>,
    method: Method,
    /// Watches last as long as they like: only their number says something.
    watch: bool,
    sent: u64,
    received: u64,
    since: Instant,
}

impl UnderWay {
    /// There is an answer, or there will be none.
    pub(super) fn answered<B, E>(&self, result: &Result<http::Response<B>, E>) {
        let status = result.as_ref().ok().map(http::Response::status);
        let code = status.as_ref().map_or(UNANSWERED, StatusCode::as_str);
        let labels = [code, &*self.measures.host, self.method.as_str()];
        self.measures.requests.with_label_values(&labels).inc();
    }

    /// A part of the answer has come.
    pub(super) fn read(&mut self, frame: &Frame<bytes::Bytes>) {
        self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
}

impl Drop for UnderWay {
    #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    fn drop(&mut self) {
        if self.watch {
            return;
        }
        let labels = [&*self.measures.host, self.method.as_str()];
        self.measures.durations.with_label_values(&labels).observe(self.since.elapsed().as_secs_f64());
        self.measures.sent.with_label_values(&labels).observe(self.sent as f64);
        self.measures.received.with_label_values(&labels).observe(self.received as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use std::time::Duration;

    #[test]
    fn requests_are_counted_and_watches_are_not_timed() {
        let measures = Measures::of("measured.test:1");
        for (path, code, bytes) in
            [("/api", 200, "answer"), ("/api?watch=true&limit=1", 200, "event"), ("/api", 404, "")]
        {
            let request = Request::get(path).extension(Waited(Duration::from_secs(1)));
            let request = request.body(Full::new(bytes::Bytes::from_static(b"body"))).expect("a request");
            let mut under_way = measures.begin(&request);
            under_way.answered::<_, ()>(&Ok(http::Response::builder().status(code).body(()).expect("an answer")));
            under_way.read(&Frame::data(bytes::Bytes::from_static(bytes.as_bytes())));
        }
        measures
            .begin(&Request::put("/api").body(Full::new(bytes::Bytes::new())).expect("a request"))
            .answered::<(), _>(&Err(()));
        let host = "measured.test:1";
        let count = |code, method| measures.requests.with_label_values(&[code, host, method]).get();
        assert_eq!([count("200", "GET"), count("404", "GET"), count(UNANSWERED, "PUT")], [2.0, 1.0, 1.0]);
        let get = [host, "GET"];
        assert_eq!(measures.durations.with_label_values(&get).get_sample_count(), 2);
        assert_eq!(measures.waits.with_label_values(&get).get_sample_sum(), 3.0);
        assert_eq!(measures.sent.with_label_values(&get).get_sample_sum(), 8.0);
        assert_eq!(measures.received.with_label_values(&get).get_sample_sum(), 6.0);
    }
}
