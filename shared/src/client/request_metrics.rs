//! Request metrics, under client-go's names.
//!
//! HOT: every request passes here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use hyper::body::Frame;
use prometheus::{CounterVec, HistogramVec};

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
    retries: CounterVec,
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
            retries: metrics::counter(
                "rest_client_request_retries_total",
                "[ALPHA] Number of request retries, partitioned by status code, verb, and host.",
                &["code", "host", "verb"],
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

    /// Somebody wants a request to be sent.
    pub(super) fn begin(self: &Arc<Self>, request: &Request<Bytes>) -> UnderWay {
        UnderWay {
            measures: Arc::clone(self),
            method: request.method().clone(),
            watch: request.uri().query().is_some_and(|q| q.split('&').any(|pair| pair == "watch=true")),
            size: request.body().len() as u64,
            attempts: 0,
            open: false,
            answered: false,
            received: 0,
            since: Instant::now(),
        }
    }
}

/// A request with all its attempts, until the whole answer was read or nobody reads it any more.
pub(super) struct UnderWay {
    measures: Arc<Measures>,
    method: Method,
    /// Watches last as long as they like: only their number says something.
    watch: bool,
    size: u64,
    attempts: u32,
    /// The last attempt has not ended.
    open: bool,
    answered: bool,
    received: u64,
    since: Instant,
}

#[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
impl UnderWay {
    pub(super) fn is_watch(&self) -> bool {
        self.watch
    }

    /// Records the wait in the client-side throttle.
    pub(super) fn waited(&self, time: Duration) {
        self.measures.waits.with_label_values(&self.labels()).observe(time.as_secs_f64());
    }

    /// Records an attempt.
    pub(super) fn sent(&mut self) {
        self.attempts += 1;
        self.open = true;
        if !self.watch {
            self.measures.sent.with_label_values(&self.labels()).observe(self.size as f64);
        }
    }

    /// Number of attempts.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// There is an answer, or there will be none.
    pub(super) fn answered(&mut self, status: Option<StatusCode>) {
        let code = status.as_ref().map_or(UNANSWERED, StatusCode::as_str);
        let (host, method) = (&*self.measures.host, self.method.as_str());
        self.measures.requests.with_label_values(&[code, host, method]).inc();
        if self.attempts > 1 {
            self.measures.retries.with_label_values(&[code, host, method]).inc();
        }
        self.open = false;
        self.answered = status.is_some();
    }

    /// A part of the answer has come.
    pub(super) fn read(&mut self, frame: &Frame<Bytes>) {
        self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
    }

    fn labels(&self) -> [&str; 2] {
        [&*self.measures.host, self.method.as_str()]
    }
}

#[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.open {
            // Nobody waits for the answer any more.
            self.answered(None);
        }
        if self.watch {
            return;
        }
        let labels = self.labels();
        self.measures.durations.with_label_values(&labels).observe(self.since.elapsed().as_secs_f64());
        if self.answered {
            self.measures.received.with_label_values(&labels).observe(self.received as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_and_watches_are_not_timed() {
        let host = "measured.test:1";
        let measures = Measures::of(host);
        let request = |method: Method, path: &str, body: &'static [u8]| {
            let body = Bytes::from_static(body);
            measures.begin(&Request::builder().method(method).uri(path).body(body).expect("a request"))
        };
        for (path, codes, bytes) in [
            ("/api", &[200][..], "answer"),
            ("/api?watch=true&limit=1", &[200], "event"),
            ("/api", &[429, 503, 404], ""),
        ] {
            let mut under_way = request(Method::GET, path, b"body");
            under_way.waited(Duration::from_secs(1));
            for code in codes {
                under_way.sent();
                under_way.answered(StatusCode::from_u16(*code).ok());
            }
            under_way.read(&Frame::data(Bytes::from_static(bytes.as_bytes())));
        }
        let mut lost = request(Method::PUT, "/api", b"");
        lost.sent();
        lost.answered(None);
        request(Method::DELETE, "/api", b"").sent();
        drop((lost, request(Method::POST, "/api", b"")));
        let count = |code, method| measures.requests.with_label_values(&[code, host, method]).get();
        assert_eq!([count("200", "GET"), count("429", "GET"), count("404", "GET")], [2.0, 1.0, 1.0]);
        assert_eq!([count(UNANSWERED, "PUT"), count(UNANSWERED, "DELETE"), count(UNANSWERED, "POST")], [1.0, 1.0, 0.0]);
        let again = |code| measures.retries.with_label_values(&[code, host, "GET"]).get();
        assert_eq!([again("200"), again("429"), again("503"), again("404")], [0.0, 0.0, 1.0, 1.0]);
        let get = [host, "GET"];
        assert_eq!(measures.durations.with_label_values(&get).get_sample_count(), 2);
        assert_eq!(measures.waits.with_label_values(&get).get_sample_sum(), 3.0);
        assert_eq!(measures.sent.with_label_values(&get).get_sample_sum(), 16.0);
        assert_eq!(measures.received.with_label_values(&get).get_sample_sum(), 6.0);
        assert_eq!(measures.received.with_label_values(&[host, "PUT"]).get_sample_count(), 0);
    }
}
