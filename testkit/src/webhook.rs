//! A webhook over HTTPS, for admission or conversion.

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::pki::{Pair, Pki};
use crate::remote::Remote;

/// A server that answers reviews as `answer(path, request)` says: `Some` of a response without its uid, or `None` for
/// something that is no review. Lives as long as the test's runtime.
pub struct Webhook(Remote);

impl Webhook {
    pub async fn start(pki: &Pki, answer: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        Self(Remote::start(pki, move |path, body| (200, reviewed(path, body, &answer))).await)
    }

    /// Starts a webhook as [`Webhook::start`] does, at this listener and with this certificate.
    pub fn on(
        listener: TcpListener,
        server: &Pair,
        answer: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        Self(Remote::on(listener, server, "", move |path, body| (200, reviewed(path, body, &answer))))
    }

    /// A `clientConfig` for that path.
    pub fn config(&self, path: &str) -> Value {
        let ca = base64::engine::general_purpose::STANDARD.encode(self.0.ca());
        json!({"url": format!("{}{path}", self.0.url()), "caBundle": ca})
    }

    pub fn traceparents(&self) -> Vec<String> {
        self.0.traceparents()
    }

    pub fn port(&self) -> u16 {
        self.0.port()
    }
}

/// The review with the response to it.
fn reviewed(path: &str, body: &[u8], answer: impl Fn(&str, &Value) -> Option<Value>) -> String {
    let review: Value = serde_json::from_slice(body).unwrap_or_default();
    let path = path.split('?').next().unwrap_or("");
    match answer(path, &review["request"]) {
        Some(mut response) => {
            response["uid"] = review["request"]["uid"].clone();
            json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}).to_string()
        }
        None => "nonsense".to_owned(),
    }
}
