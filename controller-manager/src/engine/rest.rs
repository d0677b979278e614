//! Raw requests to the API server, for plans whose writes are plain JSON, under a controller's own identity.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::HeaderValue;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use proto::protobuf;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::client::Transport;
use tokio::sync::Mutex;

use super::action::PatchKind;
use super::clock;
use super::packed::Meta;

/// Requested lifetime of a controller's token, in seconds.
const TOKEN_SECONDS: i64 = 3600;
/// Namespace of the controllers' service accounts.
const NAMESPACE: &str = "kube-system";

/// Whole objects as text.
pub const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Media type of answers to writes: most of the object is left out.
pub const BRIEF: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// Media type of such answers for readers of protobuf.
pub const BRIEF_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// Media type of such a collection.
pub const BRIEF_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Answer of the server to a write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Written {
    /// Name of the object, which may be the server's choice.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// Generation of the object, for kinds that have one.
    pub generation: i64,
    /// The version that is stored now.
    pub resource_version: String,
}

#[derive(Deserialize)]
struct WrittenObject {
    metadata: Written,
}

/// Failures of a request.
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
    /// A failure that did not come from the server.
    pub fn other(message: impl std::fmt::Display) -> Self {
        Self::Transport(message.to_string())
    }

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

    /// Nothing is served at this path, whoever says so.
    #[must_use]
    pub fn missing(&self) -> bool {
        matches!(self, Self::Api { code: 404, .. })
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

    /// The object would not be valid.
    #[must_use]
    pub fn invalid(&self) -> bool {
        self.is(422, "Invalid")
    }

    /// The identity is not, or no longer, accepted.
    #[must_use]
    pub fn unauthorized(&self) -> bool {
        self.is(401, "Unauthorized")
    }

    /// The server has decided against it: nothing was written. Answers of 500 and above leave that open.
    #[must_use]
    pub fn refused(&self) -> bool {
        matches!(self, Self::Api { code: 400..=499, .. })
    }

    /// Not now: a disruption budget or a rate limit is in the way.
    #[must_use]
    pub fn too_many_requests(&self) -> bool {
        self.is(429, "TooManyRequests")
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
                causes: s
                    .details
                    .as_ref()
                    .map(|d| d.causes.iter().map(|c| c.reason.clone()).collect())
                    .unwrap_or_default(),
                message: s.message.clone(),
            },
            other => Self::Transport(other.to_string()),
        }
    }
}

/// A service account in kube-system and the token that speaks for it, fetched when first needed and renewed in time.
#[derive(Debug)]
struct Bearer {
    account: &'static str,
    token: Mutex<Option<(String, Instant)>>,
}

/// A controller's identity towards the server.
#[derive(Clone)]
pub struct Rest {
    /// The process's own identity.
    main: Transport,
    /// A connection without any identity, over which `bearer` speaks.
    anonymous: Option<(Transport, Arc<Bearer>)>,
}

impl Rest {
    /// Requests under the identity of `main`.
    #[must_use]
    pub fn new(main: Transport) -> Self {
        Self { main, anonymous: None }
    }

    /// Requests under the identity of a service account in kube-system.
    #[must_use]
    pub fn of_account(main: Transport, anonymous: Transport, account: &'static str) -> Self {
        Self { main, anonymous: Some((anonymous, Arc::new(Bearer { account, token: Mutex::new(None) }))) }
    }

    /// One request with a body; of the answer only what [`Written`] says is asked for.
    pub async fn write(
        &self,
        method: &str,
        path: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Written, RestError> {
        let answer = self.request((method, path, BRIEF, Some(content_type)), body).await?;
        Ok(written(&answer))
    }

    /// A packed object in its envelope.
    pub async fn send_packed(&self, method: &str, path: &str, body: Vec<u8>) -> Result<Written, RestError> {
        let answer = self.request((method, path, BRIEF_PROTOBUF, Some(PROTOBUF)), body).await?;
        Ok(protobuf::unwrap(&answer).map_or_else(|_| written(&answer), |envelope| packed(envelope.raw)))
    }

    fn request<'a>(&'a self, asked: Asked<'a>, body: Vec<u8>) -> Answered<'a> {
        match &self.anonymous {
            None => once(&self.main, None, asked, body),
            Some((transport, bearer)) => Box::pin(self.as_account(transport, bearer, asked, body)),
        }
    }

    async fn as_account(
        &self,
        transport: &Transport,
        bearer: &Bearer,
        asked: Asked<'_>,
        body: Vec<u8>,
    ) -> Result<Bytes, RestError> {
        let token = self.token(bearer).await?;
        match once(transport, Some(&token), asked, body.clone()).await {
            Err(e) if e.unauthorized() => {
                // The account was deleted and made again, or the signing key changed.
                *bearer.token.lock().await = None;
                let token = self.token(bearer).await?;
                once(transport, Some(&token), asked, body).await
            }
            other => other,
        }
    }

    /// The account's token; makes the account when it does not exist.
    async fn token(&self, bearer: &Bearer) -> Result<String, RestError> {
        let mut slot = bearer.token.lock().await;
        if let Some((token, renew)) = slot.as_ref()
            && clock::instant() < *renew
        {
            return Ok(token.clone());
        }
        // Rare, and large: not a part of every request.
        let (token, renew) = Box::pin(self.fetch_token(bearer.account)).await?;
        *slot = Some((token.clone(), renew));
        Ok(token)
    }

    /// A token, and when it should be renewed.
    async fn fetch_token(&self, account: &str) -> Result<(String, Instant), RestError> {
        let api: Api<ServiceAccount> = Api::namespaced(self.main.client(), NAMESPACE);
        let wish = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let made = match api.create_token_request(account, &kube::api::PostParams::default(), &wish).await {
            Err(kube::Error::Api(s)) if s.code == 404 => {
                let made = ServiceAccount {
                    metadata: ObjectMeta {
                        name: Some(account.to_owned()),
                        namespace: Some(NAMESPACE.to_owned()),
                        ..ObjectMeta::default()
                    },
                    ..ServiceAccount::default()
                };
                match api.create(&kube::api::PostParams::default(), &made).await {
                    Err(kube::Error::Api(s)) if s.reason == "AlreadyExists" => {}
                    other => drop(other?),
                }
                api.create_token_request(account, &kube::api::PostParams::default(), &wish).await?
            }
            other => other?,
        };
        let token = made.status.map(|s| s.token).ok_or_else(|| RestError::other("the server returned no token"))?;
        let lifetime =
            made.spec.expiration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(TOKEN_SECONDS.unsigned_abs());
        let renew = clock::instant() + Duration::from_secs(lifetime * 4 / 5);
        Ok((token, renew))
    }

    /// GET with an explicit Accept header.
    pub async fn get_as<T: DeserializeOwned>(&self, path: &str, accept: &'static str) -> Result<T, RestError> {
        read(&self.request(("GET", path, accept, None), Vec::new()).await?)
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Result<Value, RestError> {
        self.get_as(path, JSON).await
    }

    /// POST.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Written, RestError> {
        self.write("POST", path, JSON, bytes(body)?).await
    }

    /// PUT.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Written, RestError> {
        self.write("PUT", path, JSON, bytes(body)?).await
    }

    /// POST; the whole answer.
    pub async fn post_whole(&self, path: &str, body: &Value) -> Result<Value, RestError> {
        read(&self.request(("POST", path, JSON, Some(JSON)), bytes(body)?).await?)
    }

    /// PUT; the whole answer.
    pub async fn put_whole(&self, path: &str, body: &Value) -> Result<Value, RestError> {
        read(&self.request(("PUT", path, JSON, Some(JSON)), bytes(body)?).await?)
    }

    /// PATCH.
    pub async fn patch(&self, path: &str, kind: PatchKind, body: &Value) -> Result<Written, RestError> {
        self.write("PATCH", path, kind.content_type(), bytes(body)?).await
    }

    /// Server-side apply.
    pub async fn apply(&self, path: &str, body: &Value) -> Result<Written, RestError> {
        self.write("PATCH", path, "application/apply-patch+yaml", bytes(body)?).await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str, options: &Value) -> Result<Written, RestError> {
        self.write("DELETE", path, JSON, bytes(options)?).await
    }

    /// DELETE of a collection.
    pub async fn delete_collection(&self, path: &str, options: &Value) -> Result<(), RestError> {
        self.request(("DELETE", path, BRIEF_LIST, Some(JSON)), bytes(options)?).await.map(drop)
    }
}

/// Method, path, Accept and Content-Type.
type Asked<'a> = (&'a str, &'a str, &'static str, Option<&'static str>);

/// Result of a request. In a box: controllers hold such futures many times over, and most are not in use.
type Answered<'a> = BoxFuture<'a, Result<Bytes, RestError>>;

fn once<'a>(transport: &'a Transport, token: Option<&str>, asked: Asked<'_>, body: Vec<u8>) -> Answered<'a> {
    let answer = request(token, asked, body).map(|request| transport.request(request));
    Box::pin(async move { Ok(answer?.await?) })
}

fn request(
    token: Option<&str>,
    (method, path, accept, content_type): Asked<'_>,
    body: Vec<u8>,
) -> Result<http::Request<Vec<u8>>, RestError> {
    let mut request = http::Request::new(body);
    *request.method_mut() = method.parse().map_err(RestError::other)?;
    *request.uri_mut() = path.parse().map_err(RestError::other)?;
    let headers = request.headers_mut();
    headers.insert(http::header::ACCEPT, HeaderValue::from_static(accept));
    if let Some(content_type) = content_type {
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    if let Some(token) = token {
        let bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(RestError::other)?;
        headers.insert(http::header::AUTHORIZATION, bearer);
    }
    Ok(request)
}

/// Reads the answer to a write. Deletions are answered with other things than objects.
fn written(answer: &[u8]) -> Written {
    serde_json::from_slice::<WrittenObject>(answer).map(|a| a.metadata).unwrap_or_default()
}

fn packed(raw: &[u8]) -> Written {
    let meta = Meta::of(raw);
    Written {
        name: meta.name().to_owned(),
        uid: meta.uid().to_owned(),
        generation: meta.generation(),
        resource_version: meta.version().to_owned(),
    }
}

fn bytes(body: &Value) -> Result<Vec<u8>, RestError> {
    serde_json::to_vec(body).map_err(RestError::other)
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, RestError> {
    serde_json::from_slice(answer).map_err(RestError::other)
}
