//! Exec, attach and port-forward of pods, which the pod's kubelet serves. Answers for upstream's
//! `pkg/registry/core/pod/rest/subresources.go` (`ExecREST`, `AttachREST`, `PortForwardREST`).

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, LOCATION};
use actix_web::{HttpRequest, HttpResponse, web};
use proto::Value;
use shared::flags::FlagSet;
use shared::status::{Status, go_quote};
use shared::upgrade::{self, Dialed, RequestHead, ResponseHead, Rewound};

use super::ended::CommandEnd;
use super::handshake::{self, HandshakeError};
use super::throttle::BandwidthLimit;
use super::translate::{self, Streams};
use super::transport::{HOP_BY_HOP, Origin, sent_on};
use super::{Call, Connect, handed_over, meters, tunnel};
use crate::egress::BoxStream;
use crate::machinery::query::Query;
use crate::machinery::tree::text;
use crate::registry::core::pod::PODS;

/// Streaming subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    Exec,
    Attach,
    PortForward,
}

impl Connect {
    pub(super) async fn pod(&self, call: &Call<'_>) -> Result<Value, Status> {
        self.api.get(PODS, &call.info.namespace, &call.info.name).await
    }

    /// `pods/exec`, `pods/attach`, `pods/portforward`.
    pub(super) async fn stream(&self, call: Call<'_>, kind: StreamKind) -> Result<HttpResponse, Status> {
        let query = Query::parse(call.request.query_string());
        let pod = self.pod(&call).await?;
        let path = kubelet_path(&call, kind, &query, &pod)?;
        let node = text(&pod, "/spec/nodeName");
        if node.is_empty() {
            return Err(Status::bad_request(&format!("pod {} does not have a host assigned", call.info.name)));
        }
        let Some(protocol) = upgrade::protocol(call.request) else {
            return Err(Status::bad_request("Upgrade request required"));
        };
        let kubelet = self.kubelets.origin(&self.api, node).await?;
        let offered = match protocol.eq_ignore_ascii_case("websocket") {
            true => handshake::offered(call.request),
            false => Vec::new(),
        };
        match self.form.of(kind, &offered) {
            StreamProtocol::Translated => translated(call, kubelet, path, streams(&query), self.limit).await,
            StreamProtocol::Tunnelled => tunnelled(call, &kubelet, path, self.limit).await,
            StreamProtocol::Relayed => {
                let head = RequestHead {
                    method: call.request.method().to_string(),
                    path_and_query: path,
                    headers: sent_on(call.request, true, &self.front_proxy),
                };
                relayed(call, &kubelet, head, self.limit).await
            }
        }
    }
}

/// Path of a client's bytes to the kubelet, which speaks SPDY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamProtocol {
    /// The streams of a WebSocket become such of SPDY.
    Translated,
    /// A WebSocket carries SPDY.
    Tunnelled,
    /// The bytes are relayed unchanged.
    Relayed,
}

/// Translations that are enabled.
#[derive(Clone, Copy)]
pub(super) struct Forms {
    /// `TranslateStreamCloseWebsocketRequests`
    translates: bool,
    /// `PortForwardWebsockets`
    tunnels: bool,
}

impl Forms {
    pub(super) fn from_flags(flags: &FlagSet) -> Self {
        Self {
            translates: flags.enabled("TranslateStreamCloseWebsocketRequests"),
            tunnels: flags.enabled("PortForwardWebsockets"),
        }
    }

    /// By the subprotocols that the client of a WebSocket offers.
    fn of(self, kind: StreamKind, offered: &[String]) -> StreamProtocol {
        let offers = |name: &str| offered.iter().any(|offer| offer == name);
        match kind {
            StreamKind::Exec | StreamKind::Attach if self.translates && offers(translate::SUBPROTOCOL) => {
                StreamProtocol::Translated
            }
            StreamKind::PortForward if self.tunnels && offers(tunnel::SUBPROTOCOL) => StreamProtocol::Tunnelled,
            _ => StreamProtocol::Relayed,
        }
    }
}

/// The client's own bytes go to the other side, and back.
pub(super) async fn relayed(
    call: Call<'_>,
    origin: &Origin,
    head: RequestHead,
    limit: BandwidthLimit,
) -> Result<HttpResponse, Status> {
    let carried = carried(call.request, call.payload, origin, head, limit).await;
    carried.map_err(|error| undialed(origin, &error))?
}

/// Asks another server to switch protocols and carries the client's bytes there, and back.
pub(crate) async fn carried(
    request: &HttpRequest,
    payload: web::Payload,
    origin: &Origin,
    head: RequestHead,
    limit: BandwidthLimit,
) -> std::io::Result<Result<HttpResponse, Status>> {
    Ok(match origin.switch(head).await? {
        Dialed::Refused(head, body) => refused(&head, body),
        Dialed::Switched(head, backend) => {
            let (response, client) = upgrade::accept(request, payload, &head);
            actix_web::rt::spawn(upgrade::relay(client, limit.on(backend)));
            Ok(response)
        }
    })
}

async fn translated(
    call: Call<'_>,
    kubelet: Origin,
    path: String,
    streams: Streams,
    limit: BandwidthLimit,
) -> Result<HttpResponse, Status> {
    let known = |offered: Vec<String>| {
        let known = offered.into_iter().find(|name| name == translate::SUBPROTOCOL);
        known.map(Some).ok_or(HandshakeError::NotYours)
    };
    let head = match handshake::begin(call.request, known) {
        Ok(head) => head,
        Err(refusal) => {
            meters::translated(400);
            return Ok(refusal);
        }
    };
    let (response, client) = upgrade::accept(call.request, call.payload, &head);
    actix_web::rt::spawn(async move {
        let begun = async { begun(&kubelet, path).await.map(|backend| limit.on(backend)) };
        meters::translated(translate::translate(client, begun, streams).await);
    });
    Ok(response)
}

/// A session at a kubelet, or how it is told that there is none.
async fn begun(kubelet: &Origin, path: String) -> Result<Rewound<BoxStream>, CommandEnd> {
    let url = format!("https://{}{path}", kubelet.authority());
    let failed =
        |url: &str, why: &str| CommandEnd::failed(&format!("error sending request: Post {}: {why}", go_quote(url)));
    match kubelet.switch(spdy_request("POST", path, translate::STREAM_PROTOCOL)).await {
        Err(error) => Err(failed(&url, &kubelet.why(&error))),
        Ok(Dialed::Switched(_, backend)) => Ok(backend),
        Ok(Dialed::Refused(head, said)) => Err(match redirect(head.status, &head.headers) {
            Some(elsewhere) => failed(elsewhere, "redirect not allowed"),
            None => CommandEnd::refused(&said),
        }),
    }
}

/// Target of a redirect that Go's client would follow.
pub(super) fn redirect(code: StatusCode, headers: &HeaderMap) -> Option<&str> {
    let redirects = matches!(code.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    location.filter(|location| redirects && !location.is_empty())
}

async fn tunnelled(
    call: Call<'_>,
    kubelet: &Origin,
    path: String,
    limit: BandwidthLimit,
) -> Result<HttpResponse, Status> {
    let switched = kubelet.switch(spdy_request("POST", path, tunnel::STREAM_PROTOCOL)).await;
    match switched.map_err(|error| undialed(kubelet, &error))? {
        Dialed::Refused(head, body) => {
            let refused = refused(&head, body)?;
            meters::tunnelled(head.status.as_u16());
            Ok(refused)
        }
        Dialed::Switched(head, backend) => {
            let protocol = head.headers.get("x-stream-protocol-version").and_then(|name| name.to_str().ok());
            let protocol = protocol.map(|name| format!("{}{name}", tunnel::PREFIX));
            let head = match handshake::begin_tunnel(call.request, protocol.as_deref()) {
                Ok(head) => head,
                Err(refusal) => {
                    meters::tunnelled(500);
                    return Ok(refusal);
                }
            };
            meters::tunnelled(101);
            let (response, client) = upgrade::accept(call.request, call.payload, &head);
            actix_web::rt::spawn(tunnel::tunnel(client, limit.on(backend)));
            Ok(response)
        }
    }
}

fn undialed(origin: &Origin, error: &std::io::Error) -> Status {
    Status::unknown(&format!("error dialing backend: {}", origin.why(error)))
}

/// The answer of another side that does not switch, as it is; the connection ends with it.
fn refused(head: &ResponseHead, body: bytes::Bytes) -> Result<HttpResponse, Status> {
    if head.status.as_u16() < 400 {
        return Err(Status::unknown(&format!("invalid upgrade response: status code {}", head.status.as_u16())));
    }
    let mut response = HttpResponse::build(head.status);
    for (name, value) in head.headers.iter().filter(|(name, _)| !between(name)) {
        response.append_header((name.clone(), value.clone()));
    }
    Ok(handed_over(response.force_close().body(body)))
}

/// Reports whether a header belongs to one hop or frames the body.
fn between(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(&name.as_str()) || *name == CONTENT_LENGTH
}

fn spdy_request(method: &str, path_and_query: String, protocol: &'static str) -> RequestHead {
    let mut headers = HeaderMap::new();
    let pairs = [
        ("connection", "Upgrade"),
        ("upgrade", "SPDY/3.1"),
        ("x-stream-protocol-version", protocol),
        ("content-length", "0"),
    ];
    for (name, value) in pairs {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    RequestHead { method: method.to_owned(), path_and_query, headers }
}

/// Streams that a client asked for. There are no defaults: nobody waits for a stream that nobody opens.
fn streams(query: &Query) -> Streams {
    Streams {
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr"),
        tty: query.flag("tty"),
    }
}

/// Parameters of the session for the kubelet: command and streams. It refuses a session without streams.
fn session(kind: StreamKind, query: &Query) -> Vec<String> {
    let streams = streams(query);
    let words = if kind == StreamKind::Exec { query.all("command") } else { Vec::new() };
    let mut parameters: Vec<String> = words.iter().map(|word| format!("command={}", encode(word))).collect();
    // With a terminal there is one output stream.
    let flags = [
        ("input", streams.stdin),
        ("output", streams.stdout),
        ("error", streams.stderr && !streams.tty),
        ("tty", streams.tty),
    ];
    parameters.extend(flags.iter().filter(|(_, wanted)| *wanted).map(|(name, _)| format!("{name}=1")));
    parameters
}

fn kubelet_path(call: &Call<'_>, kind: StreamKind, query: &Query, pod: &Value) -> Result<String, Status> {
    let (namespace, name) = (&call.info.namespace, &call.info.name);
    if kind == StreamKind::PortForward {
        let ports: Vec<String> = query
            .all("ports")
            .iter()
            .flat_map(|ports| ports.split(','))
            .map(|port| format!("port={}", encode(port)))
            .collect();
        return Ok(format!("/portForward/{namespace}/{name}{}", joined(&ports)));
    }
    let container = container(pod, query.get("container").unwrap_or_default())?;
    let phase = text(pod, "/status/phase");
    if kind == StreamKind::Exec && matches!(phase, "Succeeded" | "Failed") {
        return Err(Status::bad_request(&format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        )));
    }
    let parameters = session(kind, query);
    let verb = if kind == StreamKind::Exec { "exec" } else { "attach" };
    Ok(format!("/{verb}/{namespace}/{name}/{container}{}", joined(&parameters)))
}

pub(super) fn joined(parameters: &[String]) -> String {
    if parameters.is_empty() { String::new() } else { format!("?{}", parameters.join("&")) }
}

/// Percent-encoding of a query value.
pub(super) fn encode(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The container that is meant; a pod with several needs a name.
pub(super) fn container(pod: &Value, wanted: &str) -> Result<String, Status> {
    let names = |field: &str| -> Vec<String> {
        let list = pod.pointer(&format!("/spec/{field}")).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
    };
    let (main, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let pod_name = text(pod, "/metadata/name");
    if wanted.is_empty() {
        if let ([only], []) = (main.as_slice(), init.as_slice()) {
            return Ok(only.clone());
        }
        if main.is_empty() {
            return Err(Status::bad_request(&format!("a container name must be specified for pod {pod_name}")));
        }
        let mut message =
            format!("a container name must be specified for pod {pod_name}, choose one of: [{}]", main.join(" "));
        if !init.is_empty() {
            message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
        }
        if !ephemeral.is_empty() {
            message.push_str(&format!(" or one of the ephemeral containers: [{}]", ephemeral.join(" ")));
        }
        return Err(Status::bad_request(&message));
    }
    if [&main, &init, &ephemeral].into_iter().flatten().any(|name| name == wanted) {
        return Ok(wanted.to_owned());
    }
    Err(Status::bad_request(&format!("container {wanted} is not valid for pod {pod_name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn websocket_translation_by_protocol_and_gates() {
        let forms = |gates: &str| {
            Forms::from_flags(&FlagSet::of("kube-apiserver", &[&format!("--feature-gates={gates}")]).expect("flags"))
        };
        let (sessions, ports) = ("TranslateStreamCloseWebsocketRequests=false", "PortForwardWebsockets=false");
        let (v4, v5, spdy) = ("v4.channel.k8s.io", translate::SUBPROTOCOL, tunnel::SUBPROTOCOL);
        for (gates, kind, offered, want) in [
            (ports, StreamKind::Exec, v5, StreamProtocol::Translated),
            (ports, StreamKind::Attach, v5, StreamProtocol::Translated),
            (ports, StreamKind::PortForward, spdy, StreamProtocol::Relayed),
            (sessions, StreamKind::Exec, v5, StreamProtocol::Relayed),
            (sessions, StreamKind::Attach, v5, StreamProtocol::Relayed),
            (sessions, StreamKind::PortForward, spdy, StreamProtocol::Tunnelled),
            (sessions, StreamKind::PortForward, v5, StreamProtocol::Relayed),
            (ports, StreamKind::Exec, v4, StreamProtocol::Relayed),
            (ports, StreamKind::Exec, spdy, StreamProtocol::Relayed),
        ] {
            assert_eq!(
                forms(gates).of(kind, &["x".to_owned(), offered.to_owned()]),
                want,
                "{gates} {kind:?} {offered}"
            );
        }
    }

    /// A client that wants standard output alone opens no other stream, and the kubelet must not wait for one.
    #[test]
    fn streams_of_a_session() {
        assert_eq!(session(StreamKind::Attach, &Query::parse("command=ls&stdout=1")), ["output=1"]);
        for (query, want) in [
            ("command=ls&command=-l&stdout=true", "command=ls command=-l output=1"),
            ("stdin=1&stdout=1&stderr=1", "input=1 output=1 error=1"),
            ("stdin=1&stdout=1&stderr=1&tty=1", "input=1 output=1 tty=1"),
            ("stdin=1&stdout=false", "input=1"),
            ("command=ls", "command=ls"),
        ] {
            assert_eq!(session(StreamKind::Exec, &Query::parse(query)).join(" "), want, "{query}");
        }
    }

    #[test]
    fn default_container_of_a_pod() {
        let one = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
        let two = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        let table = [
            (&one, "", Ok("a")),
            (&one, "x", Err("container x is not valid for pod p")),
            (&two, "b", Ok("b")),
            (&two, "i", Ok("i")),
            (
                &two,
                "",
                Err(
                    "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]",
                ),
            ),
        ];
        for (pod, wanted, expected) in table {
            let found = container(pod, wanted).map_err(|status| status.message.clone());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{wanted}");
        }
    }
}
