//! The pair that this server shows etcd (`--etcd-certfile`, `--etcd-keyfile`) is taken anew when its files change.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::server::WebPkiClientVerifier;
use shared::cert;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::harness::{Cluster, Identity, Pki, etcd_is_missing, eventually};

/// In front of etcd: takes those alone who have a certificate, and remembers these.
struct Gate {
    port: u16,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    cut: Arc<Mutex<CancellationToken>>,
}

impl Gate {
    async fn start(pki: &Pki, etcd: u16) -> Self {
        let roots = cert::root_store(pki.ca.as_bytes()).expect("authorities");
        let mut tls = rustls::ServerConfig::builder()
            .with_client_cert_verifier(WebPkiClientVerifier::builder(Arc::new(roots)).build().expect("a verifier"))
            .with_single_cert(
                cert::certificates(pki.server.0.as_bytes()).expect("certificate"),
                cert::private_key(pki.server.1.as_bytes()).expect("key"),
            )
            .expect("server tls");
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let (acceptor, listener) = (TlsAcceptor::from(Arc::new(tls)), TcpListener::bind("127.0.0.1:0").await);
        let listener = listener.expect("a free port");
        let gate =
            Self { port: listener.local_addr().expect("an address").port(), seen: Arc::default(), cut: Arc::default() };
        let (seen, cut) = (gate.seen.clone(), gate.cut.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen, cut) = (acceptor.clone(), seen.clone(), cut.lock().clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let shown = stream.get_ref().1.peer_certificates().and_then(|all| all.first()).map(|c| c.to_vec());
                    seen.lock().extend(shown);
                    let mut below = TcpStream::connect(("127.0.0.1", etcd)).await.expect("etcd");
                    tokio::select! {
                        () = cut.cancelled() => {}
                        _ = tokio::io::copy_bidirectional(&mut stream, &mut below) => {}
                    }
                });
            }
        });
        gate
    }

    fn cut(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    fn saw(&self, pki: &Pki, identity: &Identity) -> bool {
        let pem = &pki.pair(identity).expect("a pair").0;
        let certificate = cert::certificates(pem.as_bytes()).expect("a certificate")[0].to_vec();
        self.seen.lock().contains(&certificate)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_pair_is_shown_from_the_next_connection_on() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let gate = Gate::start(c.pki(), c.etcd_port()).await;
    let (certificate, key) = (c.dir().join("etcd.crt"), c.dir().join("etcd.key"));
    let put = |pki: &Pki, identity: &Identity| {
        let pair = pki.pair(identity).expect("a pair");
        std::fs::write(&certificate, &pair.0).expect("written");
        std::fs::write(&key, &pair.1).expect("written");
    };
    put(c.pki(), &Identity::Node);
    c.restart_with(vec![
        format!("--etcd-servers=https://127.0.0.1:{}", gate.port),
        format!("--etcd-cafile={}", c.dir().join("ca.crt").display()),
        format!("--etcd-certfile={}", certificate.display()),
        format!("--etcd-keyfile={}", key.display()),
    ])
    .await;
    assert_eq!((gate.saw(c.pki(), &Identity::Node), gate.saw(c.pki(), &Identity::Alice)), (true, false));

    put(c.pki(), &Identity::Alice);
    gate.cut();
    let read = async || (c.get("/api/v1/namespaces/default").await.code == 200).then_some(());
    eventually("etcd is reached again", read).await;
    assert!(gate.saw(c.pki(), &Identity::Alice));
}
