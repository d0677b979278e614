//! Requests that go straight to the server. [`kube::Client`] hands each to a task of its own first, which is two
//! wake-ups more than a request needs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use proto::protobuf;
use tower::{BoxError, service_fn};

use super::fence::Fence;
use super::throttle::Throttle;

/// The longest answer that is collected; the longest page of a list is far shorter.
const MAX_ANSWER: usize = 128 << 20;
/// Time for a whole answer: the server ends what is no watch after a minute.
const ANSWER_DEADLINE: Duration = Duration::from_secs(90);

/// Future of a response.
pub type Sent = BoxFuture<'static, Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>>;

/// An answer whose body is any.
pub fn erased<B>(answer: Response<B>) -> Response<UnsyncBoxBody<Bytes, BoxError>>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    answer.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// See the module. Cheap to clone; connections are shared.
#[derive(Clone)]
pub struct Transport {
    send: Arc<dyn Fn(Request<Bytes>) -> Sent + Send + Sync>,
    namespace: String,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Transport {
    /// By a function that sends; `namespace` is where clients look by default.
    pub fn new(namespace: impl Into<String>, send: impl Fn(Request<Bytes>) -> Sent + Send + Sync + 'static) -> Self {
        Self { send: Arc::new(send), namespace: namespace.into() }
    }

    /// Shares the connections with another client that has its own rate limit. Not for watches, which are not limited.
    #[must_use]
    pub fn throttled(&self, throttle: &Throttle) -> Self {
        let (send, throttle) = (Arc::clone(&self.send), throttle.clone());
        Self::new(self.namespace.clone(), move |request| {
            let (send, throttle) = (Arc::clone(&send), throttle.clone());
            Box::pin(async move {
                throttle.turn().await;
                send(request).await
            })
        })
    }

    /// Returns the same connections for a leader: writes pass as long as `fence` is open.
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        let (send, fence) = (Arc::clone(&self.send), fence.clone());
        Self::new(self.namespace.clone(), move |mut request| {
            fence.guard(&mut request);
            send(request)
        })
    }

    /// [`fenced`](Self::fenced), where there is a fence: who does not elect a leader has none.
    #[must_use]
    pub fn behind(self, fence: Option<&Fence>) -> Self {
        fence.map_or_else(|| self.clone(), |fence| self.fenced(fence))
    }

    /// A client over the same connections.
    pub fn client(&self) -> Client {
        let send = Arc::clone(&self.send);
        let service = service_fn(move |request: Request<Body>| {
            let send = Arc::clone(&send);
            async move {
                let (head, body) = request.into_parts();
                send(Request::from_parts(head, body.collect_bytes().await?)).await
            }
        });
        Client::new(service, self.namespace.clone())
    }

    /// Sends a request; the answer when the server succeeded.
    ///
    /// # Errors
    /// The server's refusal, or that there is no answer.
    pub fn request(&self, request: Request<Vec<u8>>) -> impl Future<Output = kube::Result<Bytes>> + Send + use<> {
        let answer = (self.send)(request.map(Bytes::from));
        let collected = async move {
            let (head, body) = answer.await.map_err(kube::Error::Service)?.into_parts();
            Ok::<_, kube::Error>((head, collect(body).await.map_err(kube::Error::Service)?))
        };
        async move {
            let (head, bytes) = match tokio::time::timeout(ANSWER_DEADLINE, collected).await {
                Ok(collected) => collected?,
                Err(late) => return Err(kube::Error::Service(Box::new(late))),
            };
            if head.status.is_client_error() || head.status.is_server_error() {
                return Err(kube::Error::Api(refusal(head.status.as_u16(), &bytes).boxed()));
            }
            Ok(bytes)
        }
    }
}

/// A whole body of bounded length.
async fn collect(mut body: UnsyncBoxBody<Bytes, BoxError>) -> Result<Bytes, BoxError> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        all.extend_from_slice(&std::mem::take(&mut first));
        all.extend_from_slice(&data);
        if all.len() > MAX_ANSWER {
            return Err("the answer is too long".into());
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// Status of a failed response; one from a proxy may have another body.
fn refusal(code: u16, body: &[u8]) -> Status {
    let said = match protobuf::decode_envelope(body) {
        Ok(tree) => serde_json::from_value(tree),
        Err(_) => serde_json::from_slice(body),
    };
    said.unwrap_or_else(|_| {
        Status::failure(String::from_utf8_lossy(body).trim(), "Failed to parse error data").with_code(code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn answers_and_refusals() {
        let said = json!({"metadata": {}, "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone"});
        let schema = proto::schema::kind_of("v1", "Status").expect("a known kind");
        let said = Bytes::from(protobuf::encode_envelope(schema, &said));
        let transport = Transport::new("default", move |request: Request<Bytes>| {
            let (code, text) = match request.uri().path() {
                "/good" => (200, Bytes::from("fine")),
                "/no" => {
                    let text = r#"{"kind":"Status","status":"Failure","code":409,"reason":"Conflict","message":"m"}"#;
                    (409, text.into())
                }
                "/packed" => (404, said.clone()),
                _ => (502, " bad gateway\n".into()),
            };
            let answer = Response::builder().status(code).body(Body::from(text.to_vec())).expect("an answer");
            Box::pin(std::future::ready(Ok(erased(answer))))
        });
        let ask = async |path: &str| transport.request(Request::get(path).body(Vec::new()).expect("a request")).await;
        assert_eq!(ask("/good").await.expect("an answer"), "fine");
        for (path, code, reason, message) in [
            ("/no", 409, "Conflict", "m"),
            ("/packed", 404, "NotFound", "gone"),
            ("/proxy", 502, "Failed to parse error data", "bad gateway"),
        ] {
            let Err(kube::Error::Api(status)) = ask(path).await else { panic!("{path}") };
            assert_eq!((status.code, &*status.reason, &*status.message), (code, reason, message));
        }
    }
}
