//! A server over HTTPS that is no apiserver: a webhook, an issuer of tokens, a log sink.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::pki::{Pair, Pki};

/// Handler of requests: path with query, and body in; code and body out.
pub type Answers = dyn Fn(&str, &[u8]) -> (u16, String) + Send + Sync;

/// Lives as long as the test's runtime.
pub struct Remote {
    port: u16,
    ca: String,
    told: Told,
}

/// The traces that callers said they are part of.
type Told = Arc<Mutex<Vec<String>>>;

impl Remote {
    pub async fn start(pki: &Pki, answer: impl Fn(&str, &[u8]) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener, &pki.server, &pki.ca, answer)
    }

    /// Answers at this listener with this certificate, which `ca` has signed.
    pub fn on(
        listener: TcpListener,
        (certificate, key): &Pair,
        ca: &str,
        answer: impl Fn(&str, &[u8]) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(
                shared::cert::certificates(certificate.as_bytes()).expect("certificate"),
                shared::cert::private_key(key.as_bytes()).expect("key"),
            )
            .expect("server tls");
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let port = listener.local_addr().expect("an address").port();
        let answer: Arc<Answers> = Arc::new(answer);
        let told = Told::default();
        let telling = told.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer, told) = (acceptor.clone(), answer.clone(), telling.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        // A caller that goes away ends its connection.
                        let _ = serve(BufReader::new(stream), &*answer, &told).await;
                    }
                });
            }
        });
        Self { port, ca: ca.to_owned(), told }
    }

    /// `traceparent` of the requests that had it.
    pub fn traceparents(&self) -> Vec<String> {
        self.told.lock().clone()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// A kubeconfig that leads to a path of this server, written into a folder.
    pub fn kubeconfig(&self, dir: &Path, name: &str, path: &str) -> String {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.ca);
        let file = dir.join(name);
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{}{path}', certificate-authority-data: {ca}}}}}]\n\
             users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n",
            self.url()
        );
        std::fs::write(&file, text).expect("written");
        file.display().to_string()
    }
}

type Stream = BufReader<tokio_rustls::server::TlsStream<tokio::net::TcpStream>>;

async fn serve(mut stream: Stream, answer: &Answers, told: &Told) -> std::io::Result<()> {
    loop {
        let (mut line, mut length) = (String::new(), 0);
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or("").to_owned();
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(parent) = line.strip_prefix("traceparent:") {
                told.lock().push(parent.trim().to_owned());
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let (code, text) = answer(&path, &body);
        let head =
            format!("HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", text.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(text.as_bytes()).await?;
        stream.flush().await?;
    }
}
