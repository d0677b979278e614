use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix_web::{App, HttpRequest, HttpResponse, web};
use h2::client::SendRequest;
use tokio::sync::Semaphore;

use super::coalescing::testing::Pipe;
use super::*;

/// State of the app: the number of requests begun, and of those that may end.
#[derive(Default)]
struct Gate {
    begun: AtomicUsize,
    leave: Option<Semaphore>,
}

impl Gate {
    fn closed() -> Arc<Self> {
        Arc::new(Self { begun: AtomicUsize::new(0), leave: Some(Semaphore::new(0)) })
    }

    fn open(&self, requests: usize) {
        self.leave.as_ref().expect("a gate").add_permits(requests);
    }
}

async fn page(request: HttpRequest, body: Bytes, gate: web::Data<Arc<Gate>>) -> HttpResponse {
    gate.begun.fetch_add(1, Ordering::AcqRel);
    if let Some(leave) = &gate.leave {
        leave.acquire().await.expect("open").forget();
    }
    let who: Option<u32> = crate::upgrade::connected(&request);
    let mut response = HttpResponse::Ok();
    response.append_header(("x-connection", who.unwrap_or(0).to_string()));
    response.append_header(("x-path", request.uri().path_and_query().map_or("", |p| p.as_str())));
    if request.path() == "/last" {
        response.append_header(("connection", "close"));
    }
    response.body(body)
}

/// A connection with `settings`, and what `client` makes of it. How it ends for the server is not told: its peer may
/// have closed the pipe already.
async fn talk<F: Future>(
    gate: Arc<Gate>,
    settings: Settings,
    client: impl FnOnce(SendRequest<Bytes>, Ended) -> F,
) -> F::Output {
    let data = web::Data::new(gate);
    let app = actix_web::test::init_service(
        App::new().app_data(data).app_data(web::PayloadConfig::new(4 << 20)).default_service(web::to(page)),
    )
    .await;
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let mut noted = Extensions::new();
    noted.insert(7_u32);
    let peer = Peer { address: None, noted: Noted(Rc::new(noted)) };
    let client = async {
        let (requests, connection) = h2::client::handshake(theirs).await.expect("a connection");
        client(requests, Ended(tokio::spawn(connection))).await
    };
    tokio::join!(serve(Pipe::new(ours), &app, &peer, &settings), client).1
}

struct Ended(tokio::task::JoinHandle<Result<(), h2::Error>>);

fn settings(streams: u32) -> Settings {
    let wait = Duration::from_secs(60);
    Settings { streams, idle: wait, handshake: wait, shutdown: Shutdown::new() }
}

fn get(path: &str) -> http::Request<()> {
    http::Request::get(format!("https://h{path}")).body(()).expect("a request")
}

async fn read(response: http::Response<RecvStream>) -> (http::Response<()>, Vec<u8>) {
    let (parts, mut body) = response.into_parts();
    let mut all = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.expect("a body");
        body.flow_control().release_capacity(chunk.len()).expect("was received");
        all.extend_from_slice(&chunk);
    }
    (http::Response::from_parts(parts, ()), all)
}

#[tokio::test]
async fn requests_and_bodies_come_through() {
    talk(Arc::default(), settings(10), |requests, ended| async move {
        let mut requests = requests.ready().await.expect("open");
        let sent = vec![7; 3 << 20];
        let (response, mut stream) = requests.send_request(get("/a%2fb?c=d"), false).expect("sent");
        let mut left = Bytes::from(sent.clone());
        while !left.is_empty() {
            stream.reserve_capacity(left.len());
            let room = poll_fn(|cx| stream.poll_capacity(cx)).await.expect("open").expect("open");
            let part = left.split_to(room.min(left.len()));
            stream.send_data(part, left.is_empty()).expect("sent");
        }
        let (head, body) = read(response.await.expect("an answer")).await;
        let header = |name: &str| head.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
        assert_eq!((header("x-path"), header("x-connection")), ("/a%2fb?c=d", "7"));
        assert_eq!(header("content-length"), sent.len().to_string());
        assert!(header("date").ends_with(" GMT"), "{}", header("date"));
        assert!(body == sent);
        drop((requests, stream));
        ended.0.await.expect("no panic").expect("a clean end");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_is_sent_away_gets_its_answers() {
    let gate = Gate::closed();
    let opener = gate.clone();
    talk(gate, settings(10), |requests, ended| async move {
        let mut requests = requests.ready().await.expect("open");
        let (first, _) = requests.send_request(get("/"), true).expect("sent");
        let (last, _) = requests.send_request(get("/last"), true).expect("sent");
        opener.open(2);
        let (head, _) = read(last.await.expect("an answer")).await;
        assert!(head.headers().get("connection").is_none(), "HTTP/2 has no such header");
        assert_eq!(read(first.await.expect("an answer")).await.0.status(), 200);
        // It was told to go, so it ends although it could ask more.
        ended.0.await.expect("no panic").expect("a clean end");
        assert!(requests.ready().await.is_err());
    })
    .await;
}

#[tokio::test]
async fn streams_have_a_limit() {
    let gate = Gate::closed();
    let seen = gate.clone();
    talk(gate, settings(2), |requests, _| async move {
        let mut requests = requests.ready().await.expect("open");
        let (first, _) = requests.send_request(get("/"), true).expect("sent");
        seen.open(1);
        first.await.expect("an answer");
        assert_eq!(requests.current_max_send_streams(), 2, "the client was told");
    })
    .await;
}

#[tokio::test]
async fn whoever_resets_streams_to_open_more_is_sent_off() {
    let gate = Gate::closed();
    let seen = gate.clone();
    let sent = talk(gate.clone(), settings(3), |requests, ended| async move {
        let mut requests = requests;
        let mut sent = 0;
        for _ in 0..1000 {
            let Ok(ready) = requests.ready().await else { break };
            requests = ready;
            let Ok((response, mut stream)) = requests.send_request(get("/"), true) else { break };
            // A stream that was not opened cannot be reset.
            tokio::task::yield_now().await;
            stream.send_reset(Reason::CANCEL);
            drop(response);
            sent += 1;
            tokio::task::yield_now().await;
        }
        let error = ended.0.await.expect("no panic").expect_err("not a clean end");
        assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM), "{error}");
        seen.open(1000);
        sent
    })
    .await;
    assert!(sent < 200, "{sent} were taken");
    assert!(gate.begun.load(Ordering::Acquire) <= 3, "no more at once than there may be");
}

#[tokio::test(start_paused = true)]
async fn idle_connections_end() {
    talk(Arc::default(), settings(2), |requests, ended| async move {
        let mut requests = requests.ready().await.expect("open");
        let (response, _) = requests.send_request(get("/"), true).expect("sent");
        read(response.await.expect("an answer")).await;
        let since = Instant::now();
        ended.0.await.expect("no panic").expect("a clean end");
        assert_eq!(since.elapsed().as_secs(), 60);
        drop(requests);
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_waits_for_what_was_begun() {
    let (gate, settings) = (Gate::closed(), settings(2));
    let (opener, shutdown) = (gate.clone(), settings.shutdown.clone());
    talk(gate, settings, |requests, ended| async move {
        let mut requests = requests.ready().await.expect("open");
        let (response, _) = requests.send_request(get("/"), true).expect("sent");
        while opener.begun.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        shutdown.trigger();
        tokio::task::yield_now().await;
        opener.open(1);
        assert_eq!(response.await.expect("an answer").status(), 200);
        ended.0.await.expect("no panic").expect("a clean end");
        drop(requests);
    })
    .await;
}

/// Go's server reads heads of a megabyte in frames of any length, and resets what it cannot read.
#[tokio::test]
async fn heads_are_taken_as_go_takes_them() {
    talk(Arc::default(), settings(10), |requests, _| async move {
        let mut requests = requests.ready().await.expect("open");
        for uri in ["https://h/%zz", "https://h/a%4", "ftp://h/", "https://u@h/"] {
            let request = http::Request::get(uri).body(()).expect("a request");
            let (response, _) = requests.send_request(request, true).expect("sent");
            let error = response.await.expect_err(uri);
            assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR), "{uri}");
        }
        for length in [100, 300_000, 900_000] {
            let mut request = get("/?a=%zz");
            let long = http::HeaderValue::from_str(&"a".repeat(length)).expect("a value");
            request.headers_mut().insert("x-long", long);
            let (response, _) = requests.send_request(request, true).expect("sent");
            assert_eq!(response.await.expect("an answer").status(), 200, "{length}");
        }
    })
    .await;
}

/// A peer that never answers a ping is not waited for: a second after it was told to go its connection is closed, as Go
/// closes it.
#[tokio::test(start_paused = true)]
async fn whoever_does_not_hear_that_it_is_to_go_is_closed() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let data = web::Data::new(Arc::<Gate>::default());
    let app = actix_web::test::init_service(App::new().app_data(data).default_service(web::to(page))).await;
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let peer = Peer { address: None, noted: Noted(Rc::new(Extensions::new())) };
    // The preface, settings of nothing; what comes is never answered.
    theirs.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("open");
    let client = async {
        let began = Instant::now();
        theirs.read_to_end(&mut Vec::new()).await.expect("closed");
        began.elapsed().as_secs()
    };
    let settings = settings(2);
    let served = async {
        // However it ends, it ends.
        serve(Pipe::new(ours), &app, &peer, &settings).await.ok();
    };
    let ended = tokio::time::timeout(Duration::from_secs(600), async { tokio::join!(served, client).1 }).await;
    assert!(matches!(ended, Ok(60..=63)), "{ended:?}");
}
