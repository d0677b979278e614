//! Requests that go straight to the server. [`kube::Client`] hands each to a task of its own first, which is two
//! wake-ups more than a request needs.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use proto::protobuf;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

/// See the module. Cheap to clone; connections are shared.
#[derive(Clone)]
pub struct Transport {
    service: BoxCloneSyncService<Request<Body>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>,
    namespace: String,
}

impl Transport {
    /// Over a service; `namespace` is where its clients look by default.
    pub fn new<S, B>(service: S, namespace: impl Into<String>) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let boxed = |response: Response<B>| response.map(|body| body.map_err(Into::into).boxed_unsync());
        let service = service.map_err(Into::into).map_response(boxed);
        Self { service: BoxCloneSyncService::new(service), namespace: namespace.into() }
    }

    /// A client over the same connections.
    pub fn client(&self) -> Client {
        Client::new(self.service.clone(), self.namespace.clone())
    }

    /// Sends a request; the answer when the server succeeded.
    ///
    /// # Errors
    /// The server's refusal, or that there is no answer.
    pub async fn request(&self, request: Request<Vec<u8>>) -> kube::Result<Bytes> {
        let response = self.service.clone().oneshot(request.map(Body::from)).await.map_err(kube::Error::Service)?;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.map_err(kube::Error::Service)?.to_bytes();
        if head.status.is_client_error() || head.status.is_server_error() {
            return Err(kube::Error::Api(refusal(head.status.as_u16(), &bytes).boxed()));
        }
        Ok(bytes)
    }
}

/// What a failure says. Proxies answer with other things than a status.
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
    use std::convert::Infallible;

    use serde_json::json;
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn answers_and_refusals() {
        let said = json!({"metadata": {}, "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone"});
        let schema = proto::schema::kind_of("v1", "Status").expect("a known kind");
        let said = Bytes::from(protobuf::encode_envelope(schema, &said));
        let transport = Transport::new(
            service_fn(move |request: Request<Body>| {
                let (code, text) = match request.uri().path() {
                    "/good" => (200, Bytes::from("fine")),
                    "/no" => {
                        let text =
                            r#"{"kind":"Status","status":"Failure","code":409,"reason":"Conflict","message":"m"}"#;
                        (409, text.into())
                    }
                    "/packed" => (404, said.clone()),
                    _ => (502, " bad gateway\n".into()),
                };
                let answer = Response::builder().status(code).body(Body::from(text.to_vec())).expect("an answer");
                std::future::ready(Ok::<_, Infallible>(answer))
            }),
            "default",
        );
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
