//! An admission webhook over HTTPS.

use std::sync::Arc;

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::Pki;

/// A server that answers reviews as `answer(path, request)` says: `Some` of a response without its uid, or `None` for
/// something that is no review. Lives as long as the test's runtime.
pub struct Webhook {
    port: u16,
    ca: String,
}

impl Webhook {
    pub async fn start(pki: &Pki, answer: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        let tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(
                shared::cert::certificates(pki.server.0.as_bytes()).expect("certificate"),
                shared::cert::private_key(pki.server.1.as_bytes()).expect("key"),
            )
            .expect("server tls");
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        // A caller that goes away ends its connection.
                        let _ = serve(BufReader::new(stream), &*answer).await;
                    }
                });
            }
        });
        Self { port, ca: base64::engine::general_purpose::STANDARD.encode(&pki.ca) }
    }

    /// A `clientConfig` for that path.
    pub fn config(&self, path: &str) -> Value {
        json!({"url": format!("https://127.0.0.1:{}{path}", self.port), "caBundle": self.ca})
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

type Stream = BufReader<tokio_rustls::server::TlsStream<tokio::net::TcpStream>>;

async fn serve(
    mut stream: Stream,
    answer: &(dyn Fn(&str, &Value) -> Option<Value> + Send + Sync),
) -> std::io::Result<()> {
    loop {
        let (mut line, mut length) = (String::new(), 0);
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or("").split('?').next().unwrap_or("").to_owned();
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = match answer(&path, &review["request"]) {
            Some(mut response) => {
                response["uid"] = review["request"]["uid"].clone();
                json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
                    .to_string()
            }
            None => "nonsense".to_owned(),
        };
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", text.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(text.as_bytes()).await?;
        stream.flush().await?;
    }
}
