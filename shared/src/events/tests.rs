use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::correlate::{Correlator, Verdict};
use super::series::{ENDED, EventAction, Repeated, Series};
use super::{EventKind, Record, Recorder};
use crate::client::Transport;
use crate::run::{Shutdown, TaskGroup};

fn record(object: &str, reason: &str, message: &str) -> Record {
    Record {
        about: ObjectReference { name: Some(object.to_owned()), ..ObjectReference::default() },
        related: None,
        kind: EventKind::Normal,
        reason: reason.to_owned(),
        action: None,
        message: message.to_owned(),
        at: Timestamp::UNIX_EPOCH,
    }
}

fn create(correlator: &mut Correlator, record: &Record, name: &str) -> String {
    match correlator.see(record) {
        Verdict::Create { message, key } => {
            correlator.created(key, name.to_owned());
            message
        }
        other => panic!("expected a new event, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn equal_events_are_counted() {
    let mut correlator = Correlator::default();
    let pulled = record("web", "Pulled", "image is here");
    create(&mut correlator, &pulled, "web.1");
    for expected in 2..5 {
        match correlator.see(&pulled) {
            Verdict::Count { name, count, .. } => assert_eq!((name.as_str(), count), ("web.1", expected)),
            other => panic!("{other:?}"),
        }
    }
    create(&mut correlator, &record("other", "Pulled", "image is here"), "other.1");
}

#[tokio::test(start_paused = true)]
async fn a_flood_about_one_object_is_dropped_and_its_neighbour_is_heard() {
    let mut correlator = Correlator::default();
    let noisy = record("noisy", "BackOff", "again");
    let written = (0..100).filter(|_| correlator.see(&noisy) != Verdict::Drop).count();
    assert_eq!(written, 25);
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    assert_ne!(correlator.see(&noisy), Verdict::Drop, "one more every five minutes");
    assert_eq!(correlator.see(&noisy), Verdict::Drop);
    create(&mut correlator, &record("quiet", "BackOff", "once"), "quiet.1");
}

#[tokio::test(start_paused = true)]
async fn similar_events_are_combined() {
    let mut correlator = Correlator::default();
    for n in 1..=9 {
        let message = format!("failed {n}");
        assert_eq!(create(&mut correlator, &record("web", "Failed", &message), "web.n"), message);
    }
    let combined = create(&mut correlator, &record("web", "Failed", "failed 10"), "web.10");
    assert_eq!(combined, "(combined from similar events): failed 10");
    match correlator.see(&record("web", "Failed", "failed 11")) {
        Verdict::Count { name, count, message, .. } => {
            assert_eq!((name.as_str(), count), ("web.10", 2), "all of them are one event");
            assert_eq!(message, "(combined from similar events): failed 11");
        }
        other => panic!("{other:?}"),
    }
    create(&mut correlator, &record("web", "Started", "first"), "web.11");
}

#[tokio::test(start_paused = true)]
async fn parts_of_an_object_share_its_budget() {
    let mut correlator = Correlator::default();
    let of = |part: &str| {
        let mut record = record("web", "BackOff", "again");
        record.about.field_path = Some(format!("spec.containers{{{part}}}"));
        record
    };
    create(&mut correlator, &of("a"), "web.1");
    create(&mut correlator, &of("b"), "web.2");
    let written = (0..100).filter(|_| correlator.see(&of("a")) != Verdict::Drop).count();
    assert_eq!(written, 23);
    assert_eq!(correlator.see(&of("b")), Verdict::Drop);
}

#[tokio::test(start_paused = true)]
async fn what_happens_again_is_a_series() {
    let mut series = Series::default();
    let see = |series: &mut Series, action: &str, note: &str, name: &str| {
        let record = Record { action: Some(action.to_owned()), ..record("web", "FailedScheduling", note) };
        series.see(&record, "ns".to_owned(), name.to_owned())
    };
    let told = |due: Vec<Repeated>| due.into_iter().map(|one| (one.name, one.count)).collect::<Vec<_>>();
    assert!(matches!(see(&mut series, "Scheduling", "0/1 nodes", "web.1"), EventAction::Create));
    assert!(matches!(see(&mut series, "Binding", "0/1 nodes", "web.2"), EventAction::Create), "another action");
    match see(&mut series, "Scheduling", "0/2 nodes", "web.3") {
        EventAction::Write(one) => assert_eq!((one.name.as_str(), one.count), ("web.1", 2), "notes may differ"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(see(&mut series, "Scheduling", "0/3 nodes", "web.4"), EventAction::Wait));
    assert!(told(series.due()).is_empty());

    // It goes on: nothing is written but twice an hour.
    for _ in 0..6 {
        tokio::time::sleep(ENDED - std::time::Duration::from_secs(1)).await;
        assert!(matches!(see(&mut series, "Scheduling", "again", "web.5"), EventAction::Wait));
    }
    assert_eq!(told(series.due()), [("web.1".to_owned(), 9)]);
    assert!(told(series.due()).is_empty());
    tokio::time::sleep(ENDED).await;
    assert_eq!(told(series.due()), [("web.1".to_owned(), 9)], "it has ended");
    assert!(series.is_empty());
    assert!(matches!(see(&mut series, "Scheduling", "0/1 nodes", "web.6"), EventAction::Create));
    series.forget("ns", "web.6");
    assert!(series.is_empty());
}

#[test]
fn events_are_named_after_their_object_where_that_is_a_name() {
    let at = Timestamp::UNIX_EPOCH;
    assert_eq!(super::event_name("web-0", at), "web-0.0");
    for odd in ["n".repeat(252), "system:node".to_owned(), "UPPER".to_owned(), String::new()] {
        let name = super::event_name(&odd, at);
        assert!(uuid::Uuid::parse_str(&name).is_ok(), "{odd}: {name}");
    }
}

/// Requests for events while the server is away for so many minutes, and whether one was answered.
async fn asked_while_away(minutes: u64) -> (usize, bool) {
    let (asked, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let back = tokio::time::Instant::now() + Duration::from_mins(minutes);
    let (count, heard) = (Arc::clone(&asked), Arc::clone(&answered));
    let transport = Transport::new("default", move |_: Request<Bytes>| {
        count.fetch_add(1, Ordering::SeqCst);
        let heard = Arc::clone(&heard);
        Box::pin(async move {
            if tokio::time::Instant::now() < back {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
            }
            heard.fetch_add(1, Ordering::SeqCst);
            Ok(crate::client::erased(Response::new(Full::new(Bytes::from_static(b"{}")))))
        })
    });
    let (tasks, shutdown) = (TaskGroup::new(), Shutdown::new());
    let recorder = Recorder::new(transport.client(), &tasks, &shutdown, "test", "");
    recorder.event(&record("web", "", "").about, EventKind::Normal, "Pulled", "image is here");
    tokio::time::sleep(Duration::from_mins(10)).await;
    shutdown.trigger();
    tasks.drain(Duration::from_secs(1)).await;
    (asked.load(Ordering::SeqCst), answered.load(Ordering::SeqCst) > 0)
}

#[tokio::test(start_paused = true)]
async fn an_event_is_tried_again_for_almost_two_minutes() {
    assert_eq!(asked_while_away(0).await, (1, true));
    let (asked, answered) = asked_while_away(1).await;
    assert!((7..=8).contains(&asked) && answered, "{asked} tries, answered: {answered}");
    assert_eq!(asked_while_away(3).await, (12, false), "then it is given up");
}
