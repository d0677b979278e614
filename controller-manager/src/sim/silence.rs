//! Nodes that fall silent while the server is slow, refuses, or is written to by others.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::faults::Fault;
use super::scenario::{Run, Step, node};

/// Nodes that fall silent at once.
const SILENT: usize = 50;
const GIVE_UP: Duration = Duration::from_mins(3);

fn named(n: usize) -> String {
    format!("silent-{n:02}")
}

fn pod(on: &str, n: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{on}-{n}"), "labels": {"app": "web"}},
        "spec": {"nodeName": on, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i"}]}})
}

/// A cluster in which `silent` nodes with two pods each have just stopped; one goes on.
async fn stopped(silent: usize) -> Run {
    let mut given = vec![node("up")];
    for name in (0..silent).map(named) {
        given.push(node(&name));
        given.extend((0..2).map(|n| pod(&name, n)));
    }
    let flags = vec!["--controllers=node-lifecycle-controller".to_owned()];
    let mut run = Run::start(&given, flags, Fault::None).await;
    for name in (0..silent).map(named) {
        let dead = json!({"metadata": {"annotations": {"sim/dead": "yes"}}});
        run.hurry(&Step::Patch { of: format!("nodes/{name}"), with: dead }).await;
    }
    run
}

fn ready(of: &str, run: &Run) -> String {
    let (plural, name) = of.split_once('/').expect("a resource and a name");
    let found = run.all(plural, &json!({"metadata": {"name": name}}));
    let conditions = found.first().map(|o| o["status"]["conditions"].clone()).unwrap_or_default();
    let ready = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "Ready").cloned();
    ready.and_then(|c| c["status"].as_str().map(str::to_owned)).unwrap_or_default()
}

/// Counts the nodes that are Unknown.
fn unknown(run: &Run) -> usize {
    let like = json!({"status": {"conditions": {"Ready": "Unknown"}}});
    run.all("nodes", &like).len()
}

/// Waits until something is so; how long that took.
async fn until(what: &str, is: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < GIVE_UP, "{what} did not come about");
        sleep(Duration::from_millis(50)).await;
    }
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn node_that_reports_while_others_are_written_stays_ready() {
    let mut run = stopped(SILENT).await;
    *run.server.delay.lock() = Duration::from_millis(100);
    until("the first silent node", || unknown(&run) > 0).await;
    sleep(Duration::from_secs(1)).await;
    let (last, now) = (named(SILENT - 1), crate::engine::object::seconds(crate::engine::clock::now()));
    let beat = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}]);
    run.hurry(&Step::Status { of: format!("nodes/{last}"), with: json!({"status": {"conditions": beat}}) }).await;
    let took = until("the end of the round", || unknown(&run) >= SILENT - 1).await;
    assert!(took < Duration::from_secs(3), "nodes are written side by side: {took:?}");
    sleep(Duration::from_secs(10)).await;
    let store = run.server.store.lock();
    let of_last = store.changes.iter().filter(|c| c.resource.1 == "nodes" && c.object["metadata"]["name"] == last);
    let unknown = |o: &Value| {
        o["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(|c| c["status"] == "Unknown"))
    };
    assert!(!of_last.into_iter().any(|c| unknown(&c.object)), "it has reported before its turn came");
    let pods = store.changes.iter().filter(|c| c.resource.1 == "pods" && c.object["spec"]["nodeName"] == last);
    let down = |o: &Value| {
        o["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "False"))
    };
    assert!(!pods.into_iter().any(|c| down(&c.object)), "its pods are served");
}

fn tries(run: &Run) -> usize {
    let path = format!("PATCH /api/v1/nodes/{}/status", named(0));
    run.server.log.lock().iter().filter(|line| **line == path).count()
}

#[tokio::test(start_paused = true)]
async fn status_that_somebody_wrote_over_is_decided_again_at_once() {
    let run = stopped(1).await;
    *run.server.meddling.lock() = Some("PATCH nodes".to_owned());
    until("a try", || tries(&run) > 0).await;
    // Far sooner than the next look, which is due in five seconds.
    sleep(Duration::from_millis(200)).await;
    assert_eq!((ready(&format!("nodes/{}", named(0)), &run).as_str(), tries(&run)), ("Unknown", 2));
}

#[tokio::test(start_paused = true)]
async fn nothing_follows_from_a_status_that_is_not_written() {
    let mut run = stopped(1).await;
    let refuse = |message: &str| Step::Refuse { of: "PATCH nodes".into(), message: message.into() };
    run.hurry(&refuse("not now")).await;
    until("a try", || tries(&run) > 0).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(tries(&run), 5, "within one look");
    sleep(Duration::from_secs(30)).await;
    let pod = format!("pods/{}-0", named(0));
    assert_eq!((ready(&format!("nodes/{}", named(0)), &run).as_str(), ready(&pod, &run).as_str()), ("True", "True"));
    let patched = run.server.log.lock().iter().any(|line| line.starts_with("PATCH") && line.contains("/pods/"));
    assert!(!patched, "no pod is marked");
    run.hurry(&refuse("")).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        (ready(&format!("nodes/{}", named(0)), &run).as_str(), ready(&pod, &run).as_str()),
        ("Unknown", "False")
    );
}
