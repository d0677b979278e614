//! HTTPS to webhooks: where they are, whom to trust, and connections kept open between calls.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use serde_json::Value;
use sha2::{Digest, Sha256};
use shared::run::{Shutdown, TaskGroup};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::hook::Hook;
use crate::access::tree;
use crate::api::Reader;

/// Idle connections per webhook.
const IDLE: usize = 4;
/// Most bytes of an answer.
const ANSWER_LIMIT: usize = 3 << 20;
/// Where systems keep the certificates everybody trusts.
const SYSTEM_ROOTS: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

type Connection = SendRequest<Full<Bytes>>;

/// Where a webhook is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    /// Host and port to connect to.
    address: String,
    /// The name its certificate must have.
    server: String,
    /// The `Host` of the request.
    host: String,
    path: String,
}

/// Calls webhooks.
pub struct Caller {
    reader: Arc<dyn Reader>,
    tasks: TaskGroup,
    shutdown: Shutdown,
    idle: Mutex<HashMap<String, Vec<Connection>>>,
    /// TLS set-ups by hash of the CA bundle.
    trust: Mutex<HashMap<[u8; 32], Arc<rustls::ClientConfig>>>,
}

impl Caller {
    /// Services are found through the cache; open connections are work of `tasks` until `shutdown`.
    pub fn new(reader: Arc<dyn Reader>, tasks: TaskGroup, shutdown: Shutdown) -> Self {
        Self { reader, tasks, shutdown, idle: Mutex::default(), trust: Mutex::default() }
    }

    /// Posts a review; the body of the answer.
    pub(super) async fn call(&self, hook: &Hook, body: &Value) -> Result<Vec<u8>, String> {
        let client = hook.spec().get("clientConfig").cloned().unwrap_or_default();
        let target = target(&client, self.reader.as_ref())?;
        let trust = self.trust(tree::text(&client, "/caBundle"))?;
        let timeout = hook.timeout();
        let path = format!("{}?timeout={}s", target.path, timeout.as_secs());
        let url = format!("https://{}{path}", target.host);
        let exchange = self.exchange(&target, trust, &path, Bytes::from(body.to_string()));
        match tokio::time::timeout(timeout, exchange).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(why)) => Err(format!("Post {url:?}: {why}")),
            Err(_) => Err(format!("Post {url:?}: context deadline exceeded")),
        }
    }

    fn trust(&self, bundle: &str) -> Result<Arc<rustls::ClientConfig>, String> {
        let key: [u8; 32] = Sha256::digest(bundle.as_bytes()).into();
        if let Some(known) = self.trust.lock().get(&key) {
            return Ok(known.clone());
        }
        let pem = if bundle.is_empty() {
            SYSTEM_ROOTS.iter().find_map(|p| std::fs::read(p).ok()).unwrap_or_default()
        } else {
            base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|e| e.to_string())?
        };
        let roots = shared::cert::root_store(&pem).map_err(|e| format!("unable to load root certificates: {e}"))?;
        let config = Arc::new(shared::cert::client_config(roots, None).map_err(|e| e.to_string())?);
        let mut trust = self.trust.lock();
        if trust.len() > 256 {
            trust.clear();
        }
        trust.insert(key, config.clone());
        Ok(config)
    }

    async fn exchange(
        &self,
        target: &Target,
        trust: Arc<rustls::ClientConfig>,
        path: &str,
        body: Bytes,
    ) -> Result<Vec<u8>, String> {
        let key = format!("{}|{}|{:p}", target.address, target.server, Arc::as_ptr(&trust));
        let request = || {
            http::Request::post(path)
                .header("host", &target.host)
                .header("content-type", "application/json")
                .header("accept", "application/json, */*")
                .header("user-agent", "kube-apiserver-admission")
                .body(Full::new(body.clone()))
                .map_err(|e| e.to_string())
        };
        // A kept connection may have been closed meanwhile; then a new one is opened, once.
        let kept = self.idle.lock().get_mut(&key).and_then(Vec::pop);
        if let Some(mut connection) = kept
            && connection.ready().await.is_ok()
            && let Ok(response) = connection.send_request(request()?).await
        {
            return self.finish(key, connection, response).await;
        }
        let mut connection = self.connect(target, trust).await?;
        let response = connection.send_request(request()?).await.map_err(|e| e.to_string())?;
        self.finish(key, connection, response).await
    }

    async fn finish(
        &self,
        key: String,
        connection: Connection,
        response: http::Response<hyper::body::Incoming>,
    ) -> Result<Vec<u8>, String> {
        let code = response.status();
        let body =
            Limited::new(response.into_body(), ANSWER_LIMIT).collect().await.map_err(|e| e.to_string())?.to_bytes();
        let mut idle = self.idle.lock();
        if idle.len() > 256 {
            idle.clear();
        }
        let kept = idle.entry(key).or_default();
        if kept.len() < IDLE {
            kept.push(connection);
        }
        if !code.is_success() {
            let text = String::from_utf8_lossy(&body[..body.len().min(1024)]).trim().to_owned();
            return Err(if text.is_empty() {
                format!("unexpected status {code}")
            } else {
                format!("an error on the server ({text:?}) has prevented the request from succeeding")
            });
        }
        Ok(body.to_vec())
    }

    async fn connect(&self, target: &Target, trust: Arc<rustls::ClientConfig>) -> Result<Connection, String> {
        let stream = TcpStream::connect(&target.address)
            .await
            .map_err(|e| format!("dial tcp {}: {}", target.address, dial_error(&e)))?;
        let _ = stream.set_nodelay(true);
        let name = ServerName::try_from(target.server.clone()).map_err(|e| e.to_string())?;
        let stream = TlsConnector::from(trust)
            .connect(name, stream)
            .await
            .map_err(|e| format!("tls: failed to verify certificate: {e}"))?;
        let (connection, driver) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        let shutdown = self.shutdown.clone();
        // Ends when the connection is dropped or closed by the other side.
        self.tasks.spawn("webhook-connection", async move {
            tokio::select! {
                () = shutdown.wait() => {}
                ended = driver => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "webhook connection ended");
                    }
                }
            }
        });
        Ok(connection)
    }
}

/// Why a connection failed, in the words operators know.
fn dial_error(error: &std::io::Error) -> String {
    use std::io::ErrorKind as K;
    match error.kind() {
        K::ConnectionRefused => "connect: connection refused".to_owned(),
        K::HostUnreachable => "connect: no route to host".to_owned(),
        K::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        K::ConnectionReset => "connect: connection reset by peer".to_owned(),
        K::TimedOut => "i/o timeout".to_owned(),
        _ => error.to_string(),
    }
}

fn target(client: &Value, reader: &dyn Reader) -> Result<Target, String> {
    let url = tree::text(client, "/url");
    if !url.is_empty() {
        return by_url(url);
    }
    let of = |f: &str| tree::text(client, &format!("/service/{f}"));
    let (namespace, name) = (of("namespace"), of("name"));
    if name.is_empty() {
        return Err("webhook configuration must have either service or URL".to_owned());
    }
    let port = tree::int(client, "/service/port").unwrap_or(443);
    let service = reader.get("", "services", namespace, name).ok_or_else(|| format!("service {name:?} not found"))?;
    let server = format!("{name}.{namespace}.svc");
    let path = match of("path") {
        "" => "/".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    let address = if tree::text(&service, "/spec/type") == "ExternalName" {
        format!("{}:{port}", tree::text(&service, "/spec/externalName"))
    } else {
        if !tree::list(&service, "/spec/ports").iter().any(|p| tree::int(p, "/port") == Some(port)) {
            return Err(format!("no service port {port} found for service {name:?}"));
        }
        match tree::text(&service, "/spec/clusterIP") {
            "" | "None" => return Err(format!("no cluster IP found for service {name:?}")),
            ip if ip.contains(':') => format!("[{ip}]:{port}"),
            ip => format!("{ip}:{port}"),
        }
    };
    Ok(Target { address, host: format!("{server}:{port}"), server, path })
}

fn by_url(url: &str) -> Result<Target, String> {
    let uri: http::Uri = url.parse().map_err(|e| format!("{url:?}: {e}"))?;
    let host = uri
        .host()
        .filter(|_| uri.scheme_str() == Some("https"))
        .ok_or_else(|| format!("{url:?}: an https URL is needed"))?;
    let port = uri.port_u16().unwrap_or(443);
    let path = if uri.path().is_empty() { "/" } else { uri.path() };
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let server = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Target { address: format!("{host}:{port}"), server, host: authority, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use serde_json::json;

    #[test]
    fn where_webhooks_are() {
        let cluster = Fixed::default();
        cluster.put(
            "",
            "services",
            json!({"metadata": {"name": "hook", "namespace": "n"}, "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 443}]}}),
        );
        let service =
            |port: i64| json!({"service": {"namespace": "n", "name": "hook", "path": "/check", "port": port}});
        let found = target(&service(443), &cluster).expect("found");
        assert_eq!(
            (found.address.as_str(), found.server.as_str(), found.path.as_str()),
            ("10.0.0.7:443", "hook.n.svc", "/check")
        );
        assert_eq!(target(&service(8443), &cluster), Err("no service port 8443 found for service \"hook\"".into()));
        let url = target(&json!({"url": "https://127.0.0.1:9443/x"}), &cluster).expect("a URL");
        assert_eq!(
            (url.address.as_str(), url.server.as_str(), url.path.as_str()),
            ("127.0.0.1:9443", "127.0.0.1", "/x")
        );
        assert!(target(&json!({"url": "http://a/x"}), &cluster).is_err());
    }
}
