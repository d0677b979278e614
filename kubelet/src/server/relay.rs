//! Exec, attach and port-forward: the runtime prepares a stream and names its URL; the client's upgraded connection
//! and the runtime's are then joined byte by byte. SPDY/3.1 and WebSocket go through alike.
//!
//! Known of containerd 1.6: now and then it does not end a session whose command leaves megabytes of its input unread.
//! Upstream's clients wait there just as long (3 of 28 through upstream's own proxies, 3 of 24 through ours).

use super::Server;
use super::answer::{Answer, Body, empty, error, small_body, text};
use super::query;
use crate::cri::{CriError, v1};
use crate::pods;
use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, InvalidHeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::InvalidUri;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use shared::host_port;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tower::BoxError;

/// The runtime's streaming server is on this machine: it answers soon or not at all.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// The most of a refusal that is handed on.
const REFUSAL_LIMIT: usize = 64 << 10;

fn runtime_error(CriError::Rpc { code, message }: CriError) -> Answer {
    let status = match code {
        "NotFound" => StatusCode::NOT_FOUND,
        "ResourceExhausted" => StatusCode::TOO_MANY_REQUESTS,
        "InvalidArgument" => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    error(status, &message)
}

/// Streams that the client asks for.
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Streams {
    #[allow(clippy::result_large_err, reason = "a refusal is an answer like any other")]
    fn of<B>(request: &Request<B>) -> Result<Self, Answer> {
        let on = |names: [&str; 2]| names.iter().any(|name| query::flag(request, name));
        let streams = Self {
            stdin: on(["input", "stdin"]),
            stdout: on(["output", "stdout"]),
            stderr: on(["error", "stderr"]),
            tty: query::flag(request, "tty"),
        };
        if !streams.stdin && !streams.stdout && !streams.stderr {
            return Err(error(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr"));
        }
        // With a terminal, what goes to stderr comes out of stdout.
        Ok(Self { stderr: streams.stderr && !streams.tty, ..streams })
    }
}

impl Server {
    pub(super) async fn exec(
        &self,
        request: Request<Incoming>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        container: &str,
    ) -> Answer {
        let prepared = async {
            let streams = Streams::of(&request)?;
            let pod = self.pod(namespace, name, uid)?;
            let container_id = self.running_container(&pod, container).await?;
            let message = v1::ExecRequest {
                container_id,
                cmd: query::all(&request, "command"),
                tty: streams.tty,
                stdin: streams.stdin,
                stdout: streams.stdout,
                stderr: streams.stderr,
            };
            self.manager.context().runtime.exec(message).await.map_err(runtime_error)
        };
        let prepared = prepared.await;
        self.join(request, prepared).await
    }

    pub(super) async fn attach(
        &self,
        request: Request<Incoming>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        container: &str,
    ) -> Answer {
        let prepared = async {
            let streams = Streams::of(&request)?;
            let pod = self.pod(namespace, name, uid)?;
            let container_id = self.running_container(&pod, container).await?;
            // The terminal is the container's own, whatever the client believes.
            let tty = crate::workers::kill::spec_of(&pod, container).and_then(|c| c.tty).unwrap_or(streams.tty);
            let message = v1::AttachRequest {
                container_id,
                stdin: streams.stdin,
                tty,
                stdout: streams.stdout,
                stderr: streams.stderr && !tty,
            };
            self.manager.context().runtime.attach(message).await.map_err(runtime_error)
        };
        let prepared = prepared.await;
        self.join(request, prepared).await
    }

    pub(super) async fn port_forward(
        &self,
        request: Request<Incoming>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Answer {
        let prepared = async {
            let pod = self.pod(namespace, name, uid)?;
            let runtime = &self.manager.context().runtime;
            let sandboxes = runtime.list_sandboxes(Some(pods::uid(&pod))).await.map_err(runtime_error)?;
            let ready = sandboxes.iter().filter(|s| s.state() == v1::PodSandboxState::SandboxReady);
            let Some(sandbox) = ready.max_by_key(|s| s.created_at) else {
                let text = format!("failed to find sandbox for pod {}", pods::describe(&pod));
                return Err(error(StatusCode::INTERNAL_SERVER_ERROR, &text));
            };
            let port = query::all(&request, "port")
                .iter()
                .flat_map(|list| list.split(','))
                .filter_map(|p| p.parse().ok())
                .collect();
            let message = v1::PortForwardRequest { pod_sandbox_id: sandbox.id.clone(), port };
            runtime.port_forward(message).await.map_err(runtime_error)
        };
        let prepared = prepared.await;
        self.join(request, prepared).await
    }

    /// Runs a command to its end and answers with its output.
    pub(super) async fn run_command(
        &self,
        request: &Request<Incoming>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        container: &str,
    ) -> Answer {
        let work = async {
            let pod = self.pod(namespace, name, uid)?;
            let id = self.running_container(&pod, container).await?;
            let command: Vec<String> =
                query::first(request, "cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
            let output = self.manager.context().runtime.exec_sync(&id, &command, Duration::ZERO).await;
            let output = output.map_err(runtime_error)?;
            let said = [output.stdout, output.stderr].concat();
            if output.exit_code != 0 {
                let text = format!(
                    "command '{}' exited with {}: {}",
                    command.join(" "),
                    output.exit_code,
                    String::from_utf8_lossy(&said)
                );
                return Err(error(StatusCode::INTERNAL_SERVER_ERROR, &text));
            }
            Ok(text(StatusCode::OK, &String::from_utf8_lossy(&said)))
        };
        work.await.unwrap_or_else(|refusal| refusal)
    }
}

/// Reasons why a stream is not joined with the runtime's.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    /// The runtime's URL is none.
    #[error("{url}: {cause}")]
    Url {
        url: String,
        #[source]
        cause: InvalidUri,
    },
    /// The runtime's URL has no host.
    #[error("{0}: no host")]
    NoHost(String),
    /// The runtime does not take the connection.
    #[error("i/o timeout")]
    Late,
    /// Nobody listens.
    #[error("dial tcp {at}: {cause}")]
    Dial {
        at: String,
        #[source]
        cause: io::Error,
    },
    /// The connection broke, or what came is no HTTP.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    /// The host is no header.
    #[error(transparent)]
    Header(#[from] InvalidHeaderValue),
    /// The request cannot be written.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The runtime's refusal is long, or broke off.
    #[error(transparent)]
    Refusal(BoxError),
}

impl Server {
    /// Sends the client's request on to the runtime's URL and joins both connections.
    async fn join(&self, request: Request<Incoming>, prepared: Result<String, Answer>) -> Answer {
        let url = match prepared {
            Ok(url) => url,
            Err(refusal) => return refusal,
        };
        if !request.headers().contains_key(UPGRADE) {
            let message = "unable to upgrade: missing upgrade headers in request";
            let headers = format!("{:?}", request.headers().keys().map(http::HeaderName::as_str).collect::<Vec<_>>());
            tracing::debug!(headers, message);
            // Whatever a client without upgrade sends is not of interest.
            drop(small_body(request).await);
            return error(StatusCode::BAD_REQUEST, message);
        }
        match self.relay(request, &url).await {
            Ok(answer) => answer,
            Err(problem) => error(StatusCode::INTERNAL_SERVER_ERROR, &format!("error dialing backend: {problem}")),
        }
    }

    async fn relay(&self, mut request: Request<Incoming>, url: &str) -> Result<Answer, RelayError> {
        let target: Uri = url.parse().map_err(|cause| RelayError::Url { url: url.to_owned(), cause })?;
        let host = host_port::bare(target.host().ok_or_else(|| RelayError::NoHost(url.to_owned()))?).to_owned();
        let port = target.port_u16().unwrap_or(80);
        let dial = tokio::time::timeout(CONNECT_DEADLINE, TcpStream::connect((host.as_str(), port)));
        let stream = dial
            .await
            .map_err(|_| RelayError::Late)?
            .map_err(|cause| RelayError::Dial { at: host_port::join(&host, port), cause })?;
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Ends by itself: with the connection, or when it is handed over to the relay.
        self.streams.spawn(async move {
            if let Err(problem) = connection.with_upgrades().await {
                tracing::debug!(error = %problem, "Streaming connection to the runtime ended");
            }
        });

        let path = target.path_and_query().map_or("/", |path| path.as_str());
        let mut onward = Request::builder().method(request.method()).uri(path);
        if let Some(headers) = onward.headers_mut() {
            for (name, value) in request.headers() {
                if name != CONTENT_LENGTH
                    && name != TRANSFER_ENCODING
                    && name != HOST
                    && name != http::header::AUTHORIZATION
                {
                    headers.append(name, value.clone());
                }
            }
            let authority = target.authority().map_or("localhost", |a| a.as_str());
            headers.insert(HOST, HeaderValue::from_str(authority)?);
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let onward = onward.body(http_body_util::Empty::<Bytes>::new())?;
        let mut answer = sender.send_request(onward).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return refusal(answer).await;
        }
        let mut reply: Response<Body> = Response::new(empty());
        *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        reply.headers_mut().extend(answer.headers().clone());
        let (near, far) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut answer));
        // Ends with either connection; both are closed when the server's port is.
        self.streams.spawn(async move {
            match tokio::try_join!(near, far) {
                Ok((near, far)) => shared::upgrade::relay(TokioIo::new(near), TokioIo::new(far)).await,
                Err(problem) => tracing::debug!(error = %problem, "Could not take over a stream"),
            }
        });
        Ok(reply)
    }
}

/// Returns the runtime's answer instead of a switch of protocols.
async fn refusal(answer: Response<Incoming>) -> Result<Answer, RelayError> {
    let status = answer.status();
    let kind = answer.headers().get(CONTENT_TYPE).cloned();
    let body = Limited::new(answer.into_body(), REFUSAL_LIMIT).collect().await.map_err(RelayError::Refusal)?;
    let mut reply = Response::new(Full::new(body.to_bytes()).boxed());
    *reply.status_mut() = status;
    if let Some(kind) = kind {
        reply.headers_mut().insert(CONTENT_TYPE, kind);
    }
    Ok(reply)
}
