use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use http_body_util::Full;

use super::*;

type Answer = Result<Response<Full<Bytes>>, io::Error>;

fn answer(code: u16, after: &str) -> Answer {
    let mut answer = Response::builder().status(code);
    if !after.is_empty() {
        answer = answer.header(RETRY_AFTER, after);
    }
    Ok(answer.body(Full::from("text")).expect("an answer"))
}

fn policy(throttle: Throttle) -> RetryPolicy {
    RetryPolicy::new(throttle, Measures::of("policy.test:1"))
}

/// Sends a request to a server with these responses; returns the final code, the number of attempts and the time in
/// seconds.
async fn ask(request: Request<Bytes>, answers: impl IntoIterator<Item = Answer>) -> (Option<u16>, usize, u64) {
    let (answers, sent) = (Mutex::new(VecDeque::from_iter(answers)), Mutex::new(Vec::new()));
    let began = Instant::now();
    let done = policy(Throttle::new(0.0, 0))
        .send(&request, |request| {
            let (head, body) = request.clone().into_parts();
            sent.lock().push((head.method, head.uri, head.headers, body));
            std::future::ready(answers.lock().pop_front().expect("an answer"))
        })
        .await;
    let sent = sent.into_inner();
    assert!(sent.iter().all(|one| *one == sent[0]), "the same each time: {sent:?}");
    (done.ok().map(|response| response.status().as_u16()), sent.len(), began.elapsed().as_secs())
}

fn request(method: Method, path: &str) -> Request<Bytes> {
    let request = Request::builder().method(method).uri(path).header("accept", "a/b");
    request.body(Bytes::from_static(b"said")).expect("a request")
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_again_and_when() {
    let broken = |kind: io::ErrorKind| Err::<Response<Full<Bytes>>, _>(io::Error::from(kind));
    let good = || answer(200, "");
    let (get, watch) = ("/api/v1/pods", "/api/v1/pods?watch=true");
    for (name, method, path, answers, want) in [
        ("good", Method::GET, get, vec![good()], (Some(200), 1, 0)),
        ("later", Method::POST, get, vec![answer(429, "3"), answer(503, "0"), good()], (Some(200), 3, 3)),
        ("every verb", Method::DELETE, get, vec![answer(500, "1"), good()], (Some(200), 2, 1)),
        ("a watch", Method::GET, watch, vec![answer(429, "5"), good()], (Some(200), 2, 5)),
        ("no time given", Method::GET, get, vec![answer(429, "")], (Some(429), 1, 0)),
        ("a date", Method::GET, get, vec![answer(503, "Fri, 31 Dec 1999 23:59:59 GMT")], (Some(503), 1, 0)),
        ("another code", Method::GET, get, vec![answer(409, "1")], (Some(409), 1, 0)),
        ("too long", Method::GET, get, vec![answer(429, "86400"), good()], (Some(200), 2, 300)),
        ("a past time", Method::GET, get, vec![answer(429, "-1"), good()], (Some(200), 2, 0)),
        ("a reset", Method::GET, get, vec![broken(io::ErrorKind::ConnectionReset), good()], (Some(200), 2, 1)),
        ("an end", Method::GET, watch, vec![broken(io::ErrorKind::UnexpectedEof), good()], (Some(200), 2, 1)),
        ("silence", Method::GET, watch, vec![broken(io::ErrorKind::TimedOut), good()], (Some(200), 2, 1)),
        ("a write", Method::PUT, get, vec![broken(io::ErrorKind::ConnectionReset)], (None, 1, 0)),
        ("nobody there", Method::GET, get, vec![broken(io::ErrorKind::ConnectionRefused)], (None, 1, 0)),
    ] {
        assert_eq!(ask(request(method, path), answers).await, want, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_an_end_to_it() {
    let refusals = || std::iter::repeat_with(|| answer(429, "1")).take(11);
    assert_eq!(ask(request(Method::PATCH, "/x"), refusals()).await, (Some(429), 11, 10));
    let mut once = request(Method::GET, "/x");
    once.extensions_mut().insert(Once);
    assert_eq!(ask(once, refusals()).await, (Some(429), 1, 0));
}

#[tokio::test(start_paused = true)]
async fn another_try_waits_for_its_turn_and_watches_begin_without() {
    let policy = policy(Throttle::new(0.1, 1));
    for (path, answers, took) in
        [("/x?watch=true", 1, 0), ("/x", 1, 0), ("/x?watch=true", 2, 10), ("/x", 2, 20), ("/x", 1, 10)]
    {
        let (left, began) = (Mutex::new(answers), Instant::now());
        let request = request(Method::GET, path);
        let done = policy.send(&request, |_| {
            *left.lock() -= 1;
            std::future::ready(if *left.lock() == 0 { answer(200, "") } else { answer(429, "0") })
        });
        assert!(done.await.is_ok());
        assert_eq!(began.elapsed().as_secs(), took, "{path} {answers}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_sends_nothing_more() {
    let (policy, sent) = (policy(Throttle::new(0.0, 0)), Mutex::new(0));
    let request = request(Method::GET, "/x");
    let asking = policy.send(&request, |_| {
        *sent.lock() += 1;
        std::future::ready(answer(429, "10"))
    });
    assert!(tokio::time::timeout(Duration::from_secs(15), asking).await.is_err());
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(*sent.lock(), 2);
}

#[tokio::test(start_paused = true)]
async fn long_waits_are_told_now_and_then() {
    let (policy, mut told) = (policy(Throttle::new(0.0, 0)), Vec::new());
    for second in 0..25 {
        if policy.may_log_throttling(Instant::now()) {
            told.push(second);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(told, [0, 10, 20]);
}
