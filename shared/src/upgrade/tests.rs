use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::{App, HttpRequest, HttpResponse, web};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Dialed, Listening, RequestHead, ResponseHead, accept, dial, headers, protocol, serve};
use crate::run::Shutdown;

async fn echo(request: HttpRequest, payload: web::Payload) -> HttpResponse {
    if protocol(&request).is_none() {
        return HttpResponse::BadRequest().body("you must specify at least 1 of stdin, stdout, stderr");
    }
    let mut head = ResponseHead { status: http_status(101), headers: HeaderMap::new() };
    if let Some(asked) = headers(&request).get("upgrade") {
        head.headers.insert(HeaderName::from_static("x-asked"), asked.clone());
    }
    let (response, stream) = accept(&request, payload, &head);
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(stream);
        // The test sees what was copied.
        tokio::io::copy(&mut read, &mut write).await.ok();
    });
    response
}

fn http_status(code: u16) -> actix_web::http::StatusCode {
    actix_web::http::StatusCode::from_u16(code).expect("a valid status")
}

fn head(pairs: &[(&'static str, &'static str)]) -> RequestHead {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    RequestHead { method: "POST".to_owned(), path_and_query: "/exec?a=b".to_owned(), headers }
}

#[test]
fn a_client_of_any_protocol_gets_the_raw_connection() {
    // Installed already when another test was first.
    rustls::crypto::ring::default_provider().install_default().ok();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let pair = crate::cert::self_signed("localhost", &[], &[]).expect("a certificate");
    let key = crate::cert::ReloadingKey::from_pem(&pair).expect("a key");
    let tls = crate::cert::server_config(Arc::new(key), false).expect("TLS settings");
    let roots = crate::cert::Authorities::from_pem(pair.certificate.as_bytes()).expect("our own certificate");
    let trust = crate::cert::Trust::Authorities(roots);
    let trust = Arc::new(crate::cert::client_tls(trust, None).expect("client settings"));
    let shutdown = Shutdown::new();
    let listening = Listening {
        name: "test",
        workers: 1,
        connections: 16,
        streams: 100,
        keep_alive: Duration::from_secs(5),
        head_deadline: Duration::from_secs(5),
        drain: Duration::from_secs(1),
        shutdown: shutdown.clone(),
        begin: None,
    };
    actix_web::rt::System::new().block_on(async move {
        let server = serve(listening, listener, tls, |_, _| {}, || App::new().default_service(web::to(echo)));
        let server = server.expect("the port is bound");
        let handle = server.handle();
        actix_web::rt::spawn(server);
        for asked in ["SPDY/3.1", "websocket"] {
            let request = head(&[("host", "localhost"), ("connection", "Upgrade"), ("upgrade", asked)]);
            let Dialed::Switched(response, mut stream) =
                dial(connect(address, &trust).await, &request).await.expect("an answer")
            else {
                panic!("{asked} was refused");
            };
            assert_eq!(response.headers.get("x-asked").and_then(|v| v.to_str().ok()), Some(asked));
            assert_eq!(response.headers.get("upgrade").and_then(|v| v.to_str().ok()), Some(asked));
            for message in ["first", "and second"] {
                stream.write_all(message.as_bytes()).await.expect("it is open");
                let mut back = vec![0; message.len()];
                stream.read_exact(&mut back).await.expect("it echoes");
                assert_eq!(back, message.as_bytes());
            }
        }
        let Dialed::Refused(response, body) =
            dial(connect(address, &trust).await, &head(&[("host", "localhost")])).await.expect("an answer")
        else {
            panic!("nothing asked for an upgrade");
        };
        assert_eq!((response.status.as_u16(), body.starts_with(b"you must specify")), (400, true));
        shutdown.trigger();
        handle.stop(true).await;
    });
}

async fn connect(
    address: std::net::SocketAddr,
    trust: &Arc<rustls::ClientConfig>,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(trust));
    let socket = TcpStream::connect(address).await.expect("a connection");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
    connector.connect(name, socket).await.expect("a handshake")
}

/// A broken side ends the relay without delay.
#[tokio::test(start_paused = true)]
async fn a_side_that_breaks_ends_a_relay_at_once() {
    let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let broken = tokio_util::io::StreamReader::new(futures::stream::iter([Err::<bytes::Bytes, _>(gone)]));
    let (_client, ours) = tokio::io::duplex(64);
    let began = tokio::time::Instant::now();
    super::relay(ours, tokio::io::join(broken, tokio::io::sink())).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}
