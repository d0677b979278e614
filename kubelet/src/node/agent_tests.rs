use super::*;
use crate::events::tests::Recorded;
use crate::resources::MachineInfo;
use crate::workers::tests::fake::FakeNode;
use http::{Method, Request, Response};
use kube::client::Body;
use std::convert::Infallible;

/// An API server that lets nobody make nodes and has one, or none, already; the requests that it got.
fn server(has_node: bool) -> (kube::Client, Arc<Mutex<Vec<Method>>>) {
    let asked = Arc::<Mutex<Vec<Method>>>::default();
    let seen = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let method = request.method().clone();
        let refusal = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
                "message": reason}),
            )
        };
        let (code, body) = match (&method, has_node) {
            (&Method::POST, _) => refusal(403, "Forbidden"),
            (_, false) => refusal(404, "NotFound"),
            (_, true) => (
                200,
                json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node", "uid": "known",
                "resourceVersion": "7"}}),
            ),
        };
        seen.lock().push(method);
        let answer = Response::builder().status(code).header("content-type", "application/json");
        let answer = answer.body(Body::from(body.to_string().into_bytes())).expect("an answer");
        async move { Ok::<_, Infallible>(answer) }
    });
    (kube::Client::new(service, "default"), asked)
}

fn agent(root: &std::path::Path) -> Arc<Agent> {
    let identity = NodeIdentity { name: "node".to_owned(), ..NodeIdentity::default() };
    let periods = (Duration::from_secs(10), Duration::from_secs(300));
    Agent::new(
        FakeNode::at(root).cx,
        None,
        (identity, NodeAddresses::fixed(Vec::new())),
        Arc::default(),
        periods,
        true,
        "",
    )
}

#[tokio::test]
async fn reboots_and_cordons_are_told_once() {
    let root = tempfile::tempdir().expect("a folder");
    let events = Arc::<Recorded>::default();
    let node = FakeNode::with(root.path(), |cx| cx.events = Arc::<Recorded>::clone(&events));
    let machine = MachineInfo { boot_id: "second".to_owned(), ..MachineInfo::default() };
    let identity = NodeIdentity { name: "node".to_owned(), machine, ..NodeIdentity::default() };
    let periods = (Duration::from_secs(10), Duration::from_secs(300));
    let agent =
        Agent::new(node.cx, None, (identity, NodeAddresses::fixed(Vec::new())), Arc::default(), periods, true, "");
    let found = |unschedulable: bool, boot_id: &str| -> Node {
        let info = json!({"architecture": "", "bootID": boot_id, "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
            "systemUUID": ""});
        let node = json!({"spec": {"unschedulable": unschedulable}, "status": {"nodeInfo": info}});
        serde_json::from_value(node).expect("a node")
    };
    for (node, expected) in [
        (found(false, ""), None),
        (found(true, "second"), Some("Normal NodeNotSchedulable Node node status is now: NodeNotSchedulable")),
        (found(true, "second"), None),
        (found(false, "second"), Some("Normal NodeSchedulable Node node status is now: NodeSchedulable")),
        (found(false, "first"), Some("Warning Rebooted Node node has been rebooted, boot id: second")),
    ] {
        agent.tell_of_schedule(&node);
        agent.tell_of_reboot(&node);
        assert_eq!(events.taken(), Vec::from_iter(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn kubelet_that_may_not_make_its_node_takes_the_one_that_is_there() {
    let root = tempfile::tempdir().expect("a folder");
    let agent = agent(root.path());
    let (client, asked) = server(true);
    let registering = tokio::time::timeout(Duration::from_secs(60), agent.register(&client));
    registering.await.expect("registered");
    assert_eq!(agent.uid().as_deref(), Some("known"));
    assert_eq!(asked.lock()[..2], [Method::POST, Method::GET]);
}

#[tokio::test(start_paused = true)]
async fn kubelet_without_a_node_goes_on_asking_for_one() {
    let root = tempfile::tempdir().expect("a folder");
    let agent = agent(root.path());
    let (client, asked) = server(false);
    let registering = tokio::time::timeout(Duration::from_secs(60), agent.register(&client));
    registering.await.expect_err("there is none");
    let posts = asked.lock().iter().filter(|method| **method == Method::POST).count();
    assert!((8..=16).contains(&posts), "{posts} attempts in a minute");
}
