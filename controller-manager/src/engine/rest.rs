//! Raw requests to the API server, for plans whose writes are plain JSON.

use std::sync::Arc;

use kube::Client;
use parking_lot::RwLock;
use serde_json::Value;

use super::action::PatchKind;

/// Why a request did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RestError {
    /// The server answered with a Status.
    #[error("{message}")]
    Api {
        /// HTTP status code.
        code: u16,
        /// Machine-readable reason.
        reason: String,
        /// The server's words.
        message: String,
        /// Reasons of the individual causes.
        causes: Vec<String>,
    },
    /// No answer, or none that could be read.
    #[error("{0}")]
    Transport(String),
}

impl RestError {
    fn is(&self, wanted_code: u16, wanted: &str) -> bool {
        match self {
            Self::Api { code, reason, .. } => reason == wanted || (reason.is_empty() && *code == wanted_code),
            Self::Transport(_) => false,
        }
    }

    /// The object is not there.
    #[must_use]
    pub fn not_found(&self) -> bool {
        self.is(404, "NotFound")
    }

    /// Somebody else wrote first.
    #[must_use]
    pub fn conflict(&self) -> bool {
        self.is(409, "Conflict")
    }

    /// The name is taken.
    #[must_use]
    pub fn already_exists(&self) -> bool {
        self.is(409, "AlreadyExists")
    }

    /// The resource or the method does not exist.
    #[must_use]
    pub fn unsupported(&self) -> bool {
        self.is(405, "MethodNotAllowed")
    }

    /// Creation in a namespace that is going away: nothing to retry or complain about.
    #[must_use]
    pub fn namespace_terminating(&self) -> bool {
        matches!(self, Self::Api { causes, .. } if causes.iter().any(|c| c == "NamespaceTerminating"))
    }
}

impl From<kube::Error> for RestError {
    fn from(e: kube::Error) -> Self {
        match e {
            kube::Error::Api(s) => Self::Api {
                code: s.code,
                reason: s.reason.clone(),
                causes: s.details.as_ref().map(|d| d.causes.iter().map(|c| c.reason.clone()).collect()).unwrap_or_default(),
                message: s.message.clone(),
            },
            other => Self::Transport(other.to_string()),
        }
    }
}

/// A controller's own identity towards the server. The client inside can be exchanged when its token is renewed.
#[derive(Clone)]
pub struct Rest {
    client: Arc<RwLock<Client>>,
}

impl Rest {
    /// Requests through `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client: Arc::new(RwLock::new(client)) }
    }

    /// The client in use.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.read().clone()
    }

    /// Use another client from now on.
    pub fn replace(&self, client: Client) {
        *self.client.write() = client;
    }

    /// One request with an optional JSON body; the answer as JSON.
    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: Option<&Value>) -> Result<Value, RestError> {
        let bytes = body.map(serde_json::to_vec).transpose().map_err(|e| RestError::Transport(e.to_string()))?;
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .header(http::header::ACCEPT, "application/json")
            .body(bytes.unwrap_or_default())
            .map_err(|e| RestError::Transport(e.to_string()))?;
        Ok(self.client().request::<Value>(request).await?)
    }

    /// GET with an explicit Accept header.
    pub async fn get_as(&self, path: &str, accept: &str) -> Result<Value, RestError> {
        let request = http::Request::builder()
            .method("GET")
            .uri(path)
            .header(http::header::ACCEPT, accept)
            .body(Vec::new())
            .map_err(|e| RestError::Transport(e.to_string()))?;
        Ok(self.client().request::<Value>(request).await?)
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Result<Value, RestError> {
        self.get_as(path, "application/json").await
    }

    /// POST.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, RestError> {
        self.send("POST", path, "application/json", Some(body)).await
    }

    /// PUT.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, RestError> {
        self.send("PUT", path, "application/json", Some(body)).await
    }

    /// PATCH.
    pub async fn patch(&self, path: &str, kind: PatchKind, body: &Value) -> Result<Value, RestError> {
        self.send("PATCH", path, kind.content_type(), Some(body)).await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str, options: &Value) -> Result<Value, RestError> {
        self.send("DELETE", path, "application/json", Some(options)).await
    }
}
