//! A kubelet that says what it is told to, byte by byte, and then ends the connection.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::Pki;

/// Lives as long as the test's runtime.
pub struct Kubelet {
    port: u16,
}

/// All of a head; less where the connection ends.
pub async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

impl Kubelet {
    /// `says` what a request with this head is answered.
    pub async fn start(pki: &Pki, says: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let tls = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(
            shared::cert::certificates(pki.server.0.as_bytes()).expect("certificate"),
            shared::cert::private_key(pki.server.1.as_bytes()).expect("key"),
        );
        let acceptor = TlsAcceptor::from(Arc::new(tls.expect("server tls")));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let says = Arc::new(says);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, says) = (acceptor.clone(), says.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let head = head(&mut stream).await;
                    // A caller that goes away has heard enough.
                    stream.write_all(says(&head).as_bytes()).await.ok();
                    stream.shutdown().await.ok();
                });
            }
        });
        Self { port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}
