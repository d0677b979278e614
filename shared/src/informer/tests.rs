//! A scripted server: each request takes the next answer, and is remembered.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Cache, Event, Factory, Informer};
use crate::run::{Shutdown, TaskGroup};
use crate::typed::ReadError;

struct Server {
    requests: Arc<Mutex<Vec<String>>>,
    shutdown: Shutdown,
    informer: Informer<ConfigMap>,
    events: mpsc::UnboundedReceiver<String>,
}

/// Status and body; a body that ends with `…` stays open after its last line.
type Answer = (u16, String);

fn start(answers: Vec<Answer>) -> Server {
    start_with(answers.into_iter().map(|(code, body)| (code, "application/json", body.into_bytes())).collect(), |_| {})
}

/// With the media type of each answer, and what is set before the informer runs.
fn start_with(answers: Vec<(u16, &'static str, Vec<u8>)>, set: impl FnOnce(&Informer<ConfigMap>)) -> Server {
    let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let service = tower::service_fn(move |request: Request<Body>| {
        seen.lock().push(request.uri().to_string());
        let answer = answers.lock().pop_front();
        async move {
            let Some((status, kind, body)) = answer else {
                return std::future::pending::<Result<Response<Body>, Infallible>>().await;
            };
            let response = Response::builder().status(status).header("content-type", kind);
            Ok(response.body(Body::from(body)).expect("a valid response"))
        }
    });
    let shutdown = Shutdown::new();
    let factory = Factory::new(Client::new(service, "default"), TaskGroup::new(), shutdown.clone());
    let informer = factory.informer::<ConfigMap>();
    set(&informer);
    let (sender, events) = mpsc::unbounded_channel();
    informer.add_index("color", |map| map.data.iter().flatten().map(|(_, v)| v.clone()).collect());
    informer.add_handler(move |event| {
        let verb = match event {
            Event::Added(_) => "added",
            Event::Updated { .. } => "updated",
            Event::Deleted(_) => "deleted",
        };
        let name = event.object().metadata.name.clone().unwrap_or_default();
        // The receiver is gone once the test is over.
        let _ = sender.send(format!("{verb} {name}"));
    });
    factory.start();
    Server { requests, shutdown, informer, events }
}

impl Server {
    async fn next(&mut self) -> String {
        self.events.recv().await.expect("the informer runs")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

fn map(name: &str, version: u32, color: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"color": color},
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": version.to_string()}})
}

fn line(verb: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": verb, "object": object}))
}

fn bookmark(version: u32, end: bool) -> String {
    let annotations = if end { json!({"k8s.io/initial-events-end": "true"}) } else { json!({}) };
    let meta = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    line("BOOKMARK", &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}))
}

fn failure(code: u16, reason: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason})
}

#[tokio::test(start_paused = true)]
async fn streams_the_list_and_follows_from_there() {
    let first = [line("ADDED", &map("a", 1, "red")), line("ADDED", &map("b", 2, "blue")), bookmark(5, true)].concat();
    let second = [line("MODIFIED", &map("a", 6, "blue")), line("DELETED", &map("b", 7, "blue")), bookmark(9, false)];
    let mut server = start(vec![(200, first), (200, second.concat())]);
    for expected in ["added a", "added b", "updated a", "deleted b"] {
        assert_eq!(server.next().await, expected);
    }
    server.informer.synced().await;
    let store = server.informer.store();
    assert_eq!(store.len(), 1);
    assert_eq!(store.by_index("color", "blue").len(), 1);
    assert!(store.by_index("color", "red").is_empty(), "the old value left the index");
    let requests = server.requests.lock().clone();
    assert!(requests[0].contains("sendInitialEvents=true"), "{}", requests[0]);
    assert!(requests[1].contains("resourceVersion=5"), "{}", requests[1]);
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_opened_ever_more_slowly() {
    let first = [line("ADDED", &map("a", 1, "red")), bookmark(5, true)].concat();
    let empty = std::iter::repeat_n((200, String::new()), 5);
    let last = (200, line("ADDED", &map("b", 9, "red")));
    let begun = tokio::time::Instant::now();
    let mut server = start(std::iter::once((200, first)).chain(empty).chain([last]).collect());
    for expected in ["added a", "added b"] {
        assert_eq!(server.next().await, expected);
    }
    assert!(begun.elapsed() > std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lists_in_pages_where_streaming_is_refused() {
    let page = |items: Vec<Value>, token: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMapList", "items": items,
            "metadata": {"resourceVersion": "8", "continue": token}})
        .to_string()
    };
    // Unknown to the server, and begun by one (sample-apiserver, say) whose etcd is too old for it.
    let refusals = [
        (422, failure(422, "Invalid").to_string()),
        (200, line("ADDED", &map("z", 1, "red")) + &line("ERROR", &failure(500, "InternalError"))),
    ];
    for refused in refusals {
        let first = [page(vec![map("a", 1, "red")], "more"), page(vec![map("b", 2, "red")], "")];
        let gone = line("ERROR", &failure(410, "Expired"));
        let streamed = [line("ADDED", &map("a", 1, "red")), bookmark(9, true)].concat();
        let answers = [vec![refused], first.map(|p| (200, p)).to_vec(), vec![(200, gone), (200, streamed)]].concat();
        let mut server = start(answers);
        let mut heard = vec![server.next().await];
        while heard.last().is_some_and(|last| last != "deleted b") {
            heard.push(server.next().await);
        }
        heard.retain(|event| !event.ends_with('z'));
        assert_eq!(heard, ["added a", "added b", "deleted b"]);
        let requests = server.requests.lock().clone();
        assert!(requests[2].contains("continue=more"), "{}", requests[2]);
        assert!(requests[4].contains("sendInitialEvents=true"), "the next list is streamed again: {}", requests[4]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_revision_means_a_new_list_that_drops_what_is_gone() {
    let first = [line("ADDED", &map("a", 1, "red")), line("ADDED", &map("b", 2, "red")), bookmark(5, true)].concat();
    let gone = line("ERROR", &failure(410, "Expired"));
    let second = [line("ADDED", &map("a", 1, "red")), line("ADDED", &map("c", 8, "red")), bookmark(9, true)].concat();
    let mut server = start(vec![(200, first), (200, gone), (200, second)]);
    for expected in ["added a", "added b", "added c", "deleted b"] {
        assert_eq!(server.next().await, expected, "an unchanged object is not told again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_handler_hears_of_everything_once() {
    let first = [line("ADDED", &map("a", 1, "red")), bookmark(5, true)].concat();
    let server = start(vec![(200, first)]);
    server.informer.synced().await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    server.informer.add_handler(move |event| log.lock().push(event.object().metadata.name.clone()));
    assert_eq!(*heard.lock(), [Some("a".to_owned())]);
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";

#[expect(clippy::cast_possible_truncation, reason = "seven bits a byte")]
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

/// A frame with its length in front; the object is in its envelope.
fn framed(verb: &str, kind: &str, object: &Value) -> Vec<u8> {
    let schema = proto::schema::kind("", "v1", kind).expect("schema");
    let object = proto::protobuf::encode_envelope(schema, object);
    let event = [field(1, verb.as_bytes()), field(2, &field(1, &object))].concat();
    [u32::try_from(event.len()).expect("short").to_be_bytes().as_slice(), &event].concat()
}

fn from_protobuf(informer: &Informer<ConfigMap>) {
    informer.read_protobuf(|raw| {
        let schema = proto::schema::kind("", "v1", "ConfigMap").ok_or(ReadError::UnknownKind)?;
        Ok(serde_json::from_value(proto::protobuf::decode(schema, raw)?)?)
    });
}

#[tokio::test(start_paused = true)]
async fn protobuf_is_read_where_somebody_reads_it() {
    let end = json!({"metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}});
    let first = [
        framed("ADDED", "ConfigMap", &map("a", 1, "red")),
        framed("ADDED", "ConfigMap", &map("b", 2, &"blue".repeat(100))),
        framed("BOOKMARK", "ConfigMap", &end),
        framed("MODIFIED", "ConfigMap", &map("a", 6, "blue")),
        framed("DELETED", "ConfigMap", &map("b", 7, "blue")),
        framed("BOOKMARK", "ConfigMap", &json!({"metadata": {"resourceVersion": "9"}})),
        // A frame that was cut is the end of the stream.
        framed("ADDED", "ConfigMap", &map("c", 10, "red"))[..20].to_vec(),
    ]
    .concat();
    let refused = line("ADDED", &map("d", 11, "red"));
    let answers = vec![(200, PROTOBUF, first), (200, "application/json", refused.into_bytes())];
    let mut server = start_with(answers, from_protobuf);
    for expected in ["added a", "added b", "updated a", "deleted b", "added d"] {
        assert_eq!(server.next().await, expected);
    }
    assert_eq!(server.informer.store().by_index("color", "blue").len(), 1);
    let requests = server.requests.lock().clone();
    assert!(requests[1].contains("resourceVersion=9"), "{}", requests[1]);
}

#[tokio::test(start_paused = true)]
async fn protobuf_refusals_are_understood() {
    let status = |code: u16| {
        let schema = proto::schema::kind("", "v1", "Status").or_else(|| proto::schema::kind_of("v1", "Status"));
        proto::protobuf::encode_envelope(schema.expect("schema"), &failure(code, "No"))
    };
    let frame = |object: &[u8]| {
        let event = [field(1, b"ERROR"), field(2, &field(1, object))].concat();
        [u32::try_from(event.len()).expect("short").to_be_bytes().as_slice(), &event].concat()
    };
    let end = json!({"metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}});
    let whole = [framed("ADDED", "ConfigMap", &map("a", 1, "red")), framed("BOOKMARK", "ConfigMap", &end)].concat();
    let again = framed("BOOKMARK", "ConfigMap", &end);
    let answers = vec![
        // Streaming is not known, but by then it is listed in pages, in JSON.
        (422, "application/vnd.kubernetes.protobuf", status(422)),
        (
            200,
            "application/json",
            json!({"metadata": {"resourceVersion": "3"}, "items": [map("z", 1, "red")]}).to_string().into_bytes(),
        ),
        (200, PROTOBUF, [whole, frame(&status(410))].concat()),
        (422, "application/vnd.kubernetes.protobuf", status(422)),
        (200, "application/json", json!({"metadata": {"resourceVersion": "8"}, "items": []}).to_string().into_bytes()),
        (200, PROTOBUF, again),
    ];
    let mut server = start_with(answers, from_protobuf);
    for expected in ["added z", "added a", "deleted z"] {
        let got = server.next().await;
        assert!(got == expected || got == "deleted a", "{got}");
    }
    let requests = server.requests.lock().clone();
    assert!(requests.len() >= 5 && !requests[1].contains("watch=true"), "{requests:?}");
    assert!(requests[4].contains("limit=500"), "listed again after 410: {requests:?}");
}

/// An object that no decoder takes.
fn broken_map(name: &str, version: u32) -> Value {
    let mut map = map(name, version, "red");
    map["data"] = json!(["no map"]);
    map
}

#[tokio::test(start_paused = true)]
async fn unreadable_objects_keep_their_last_state_and_stop_nothing() {
    let first = [
        line("ADDED", &broken_map("never", 1)),
        line("ADDED", &map("a", 2, "red")),
        line("ADDED", &map("b", 3, "red")),
        bookmark(5, true),
        line("MODIFIED", &broken_map("a", 6)),
        line("MODIFIED", &map("b", 7, "blue")),
        line("DELETED", &broken_map("b", 8)),
    ]
    .concat();
    // The stream ends after an object that cannot be read: its revision counts all the same.
    let second = [line("MODIFIED", &map("a", 10, "blue")), line("DELETED", &broken_map("never", 11))].concat();
    let third = line("ADDED", &map("c", 12, "red"));
    let mut server = start(vec![(200, first), (200, second), (200, third)]);
    for expected in ["added a", "added b", "updated b", "deleted b", "updated a", "added c"] {
        assert_eq!(server.next().await, expected);
    }
    assert!(server.informer.unreadable().is_empty());
    let requests = server.requests.lock().clone();
    assert!(requests[1].contains("resourceVersion=8"), "{}", requests[1]);
    assert!(requests[2].contains("resourceVersion=11"), "{}", requests[2]);
}

#[tokio::test(start_paused = true)]
async fn unreadable_objects_are_known_as_present_until_a_list_leaves_them_out() {
    let first = [line("ADDED", &broken_map("x", 1)), line("ADDED", &map("a", 2, "red")), bookmark(5, true)].concat();
    let gone = line("ERROR", &failure(410, "Expired"));
    let again = [line("ADDED", &broken_map("a", 6)), line("ADDED", &map("b", 7, "red")), bookmark(9, true)].concat();
    let mut server = start(vec![(200, first)]);
    assert_eq!(server.next().await, "added a");
    server.informer.synced().await;
    let unreadable = server.informer.unreadable();
    assert!(unreadable.contains("ns", "x") && !unreadable.contains("ns", "a") && !unreadable.contains("", "x"));

    let first = [line("ADDED", &broken_map("x", 1)), line("ADDED", &map("a", 2, "red")), bookmark(5, true)].concat();
    let mut server = start(vec![(200, first), (200, gone), (200, again)]);
    assert_eq!(server.next().await, "added a");
    assert_eq!(server.next().await, "added b");
    server.informer.synced().await;
    while server.informer.store().resource_version() != "9" {
        tokio::task::yield_now().await;
    }
    let unreadable = server.informer.unreadable();
    assert!(!unreadable.contains("ns", "x") && unreadable.contains("ns", "a"));
    assert!(server.informer.store().get("ns", "a").is_some(), "what is unreadable is not gone");
}

#[tokio::test(start_paused = true)]
async fn objects_that_only_gos_decoder_takes_are_read() {
    let mut lenient = map("a", 1, "red");
    lenient["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05.5+01:00");
    lenient["data"] = json!({"k": null});
    let mut server = start(vec![(200, [line("ADDED", &lenient), bookmark(5, true)].concat())]);
    assert_eq!(server.next().await, "added a");
    assert!(server.informer.unreadable().is_empty());
}

#[tokio::test(start_paused = true)]
async fn scope_waits_for_its_own_informers_only() {
    use k8s_openapi::api::core::v1::Secret;
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
    });
    let factory = Factory::new(kube::Client::new(service, "default"), TaskGroup::new(), Shutdown::new());
    let (one, other) = (factory.scoped(), factory.scoped());
    let maps = one.informer::<ConfigMap>();
    let _secrets = other.clone().informer::<Secret>();
    maps.finish_list(None, "1".to_owned());
    let waits = |f: &Factory| {
        let f = f.clone();
        async move { tokio::time::timeout(Duration::from_secs(1), f.wait_synced()).await.is_ok() }
    };
    assert!(waits(&one).await, "what another cannot list is no affair of this one");
    assert!(!waits(&other).await, "a clone asks for its scope");
    assert!(!waits(&factory).await, "all");
    let again = factory.scoped();
    let _shared = again.informer::<ConfigMap>();
    assert!(waits(&again).await);
    let _late = again.informer::<Secret>();
    assert!(!waits(&again).await);
}

#[tokio::test]
async fn panics_on_an_object_belong_to_that_object() {
    let boom = |map: &ConfigMap| map.metadata.name.as_deref() == Some("boom");
    let lines = [
        line("ADDED", &map("boom", 1, "red")),
        line("ADDED", &map("a", 2, "red")),
        line("ADDED", &map("bad", 3, "red")),
        bookmark(4, true),
    ];
    let heard = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&heard);
    let mut server = start_with(vec![(200, "application/json", lines.concat().into_bytes())], move |informer| {
        informer.set_transform(|map| assert!(map.metadata.name.as_deref() != Some("bad"), "a transform"));
        informer.add_index("own", move |map: &ConfigMap| {
            assert!(!boom(map), "an index");
            map.data.iter().flat_map(|data| data.get("color").cloned()).collect()
        });
        informer.add_handler(move |event: &Event<ConfigMap>| {
            let Event::Added(map) = event else { return };
            assert!(!boom(map), "a handler");
            count.fetch_add(1, Ordering::AcqRel);
        });
    });
    assert_eq!([server.next().await, server.next().await], ["added boom", "added a"]);
    server.informer.synced().await;
    let store = server.informer.store();
    assert_eq!(heard.load(Ordering::Acquire), 1, "the handler was told of the other object");
    assert!(store.get("ns", "boom").is_some(), "the store has what its handlers cannot take");
    assert_eq!(store.by_index("own", "red").len(), 1);
    assert!(store.unreadable().contains("ns", "bad"), "what cannot be transformed counts as unreadable");
}

/// Counts how often another task of the thread has a turn while 2,000 objects are handled that came at once.
async fn turns_of_others(answers: Vec<Answer>) -> usize {
    let turns = Arc::new(AtomicUsize::new(0));
    let (counted, seen) = (Arc::clone(&turns), Arc::new(Mutex::new(std::collections::BTreeSet::new())));
    let noted = Arc::clone(&seen);
    let answers = answers.into_iter().map(|(code, body)| (code, "application/json", body.into_bytes())).collect();
    let server = start_with(answers, |informer| {
        informer.add_handler(move |_| {
            noted.lock().insert(turns.load(Ordering::SeqCst));
        });
    });
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    server.informer.synced().await;
    other.abort();
    let store = server.informer.store();
    assert_eq!(store.list().len(), 2000);
    seen.lock().len()
}

#[tokio::test]
async fn long_list_gives_other_tasks_turns() {
    let all: Vec<Value> = (0..2000).map(|n| map(&format!("m{n}"), n + 1, "red")).collect();
    let streamed = all.iter().map(|map| line("ADDED", map)).collect::<String>() + &bookmark(5000, true);
    let page =
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5000"}, "items": all});
    for (how, answers) in [
        ("streamed", vec![(200, streamed)]),
        ("in a page", vec![(400, failure(400, "BadRequest").to_string()), (200, page.to_string())]),
    ] {
        let turns = turns_of_others(answers).await;
        assert!(turns > 4, "{how}: {turns}");
    }
}
