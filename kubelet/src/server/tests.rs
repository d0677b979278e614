//! Answers of the ports, asked for over real connections.

use super::*;
use crate::node::addresses::NodeAddresses;
use crate::node::object::NodeIdentity;
use crate::workers::context::NodeState;
use crate::workers::tests::fake::{FakeNode, LOST};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use shared::authn::Anonymous;
use shared::authz::AlwaysAllow;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest time that an answer takes here.
const PATIENCE: Duration = Duration::from_secs(10);

const ON: Handlers = Handlers {
    debugging: true,
    system_logs: true,
    system_log_query: true,
    checkpoints: true,
    profiling: true,
    debug_flags: true,
};

#[test]
fn handlers_that_are_off_say_so() {
    let paths = ["logs/x", "debug/pprof/heap", "debug/flags/v", "exec/n/p/c", "pods", "metrics"];
    let told = |handlers: Handlers| -> Vec<Option<&str>> {
        paths.iter().map(|path| handlers.disabled(&path.split('/').collect::<Vec<_>>())).collect()
    };
    let (all, none) = (Some("Debug endpoints are disabled."), None);
    assert_eq!(told(ON), [none; 6]);
    assert_eq!(told(Handlers { debugging: false, ..ON }), [all, all, all, all, none, none]);
    let off = Handlers { system_logs: false, profiling: false, debug_flags: false, ..ON };
    let [logs, profiles, flags] = ["logs", "profiling", "flags"].map(|name| format!("{name} endpoint is disabled."));
    assert_eq!(told(off)[..3], [Some(logs.as_str()), Some(profiles.as_str()), Some(flags.as_str())]);
}

/// A port of a kubelet of fakes.
struct Open {
    address: SocketAddr,
    limits: Arc<ConnectionLimits>,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
    _root: tempfile::TempDir,
}

impl Open {
    /// Opens a port, whose connections are plain and whose clients are let in, for so many connections at once.
    async fn new(port: Port, most: usize, health: Health, pods: Vec<Pod>) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let node = FakeNode::with(root.path(), |cx| {
            cx.node.store(Arc::new(NodeState { runtime_name: "cri-o".to_owned(), ..NodeState::default() }));
        });
        let shutdown = CancellationToken::new();
        let manager = Manager::new(Arc::clone(&node.cx), TaskTracker::new(), shutdown.clone());
        pods.into_iter().for_each(|pod| manager.upsert(Arc::new(pod)));
        let (health, periods) = (Arc::new(health), (Duration::from_secs(10), Duration::from_secs(300)));
        let identity = NodeIdentity { name: "node".to_owned(), ..NodeIdentity::default() };
        let identity = (identity, NodeAddresses::fixed(Vec::new()));
        let agent = Agent::new(node.cx, None, identity, Arc::clone(&health), periods, false, "");
        let server = Arc::new(Server {
            agent,
            stats: Arc::new(Stats::new(Arc::clone(&manager))),
            manager,
            health,
            access: Access {
                authenticator: Arc::new(Anonymous),
                authorizer: Arc::new(AlwaysAllow),
                node_name: "node".to_owned(),
            },
            configuration: json!({"staticPodURLHeader": {"Authorization": ["secret"]}}),
            handlers: ON,
            streams: TaskTracker::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (address, limits) = (listener.local_addr().expect("an address"), ConnectionLimits::new(most));
        let serving = tokio::spawn(server.accept(listener, port, None, Arc::clone(&limits), shutdown.clone()));
        Self { address, limits, shutdown, serving, _root: root }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connected")
    }

    /// Asks for a path; the answer's status and body.
    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = self.connect().await;
        let request = format!("GET {path} HTTP/1.0\r\nHost: node\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer));
        read.await.expect("in time").expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), body.to_owned())
    }
}

#[tokio::test]
async fn configuration_is_told_to_those_alone_who_were_let_in() {
    let secure = Open::new(Port::Secure, 16, Health::default(), Vec::new()).await;
    let (status, body) = secure.get("/configz").await;
    assert_eq!(status, 200);
    assert!(body.contains("staticPodURLHeader"), "{body}");
    for port in [Port::ReadOnly, Port::Health] {
        let open = Open::new(port, 16, Health::default(), Vec::new()).await;
        for path in ["/configz", "/runningpods", "/exec/n/p/c", "/containerLogs/n/p/c", "/logs/", "/debug/pprof/heap"] {
            let (status, body) = open.get(path).await;
            assert_eq!(status, 404, "{path} through {port:?}: {body}");
        }
    }
    let read_only = Open::new(Port::ReadOnly, 16, Health::default(), Vec::new()).await;
    assert_eq!(read_only.get("/pods").await.0, 200);
}

#[tokio::test]
async fn health_fails_while_the_runtime_is_not_watched() {
    for (health, status, text) in [(Health::default(), 200, "ok"), (Health::stuck(), 500, STUCK)] {
        let open = Open::new(Port::Health, 16, health, Vec::new()).await;
        for path in ["/healthz", "/healthz/syncloop"] {
            assert_eq!(open.get(path).await, (status, text.to_owned()), "{path}");
        }
    }
}

#[tokio::test]
async fn connections_that_ask_nothing_keep_nobody_out_and_end_with_the_kubelet() {
    const MOST: usize = 16;
    let open = Open::new(Port::Secure, MOST, Health::default(), Vec::new()).await;
    let mut silent = Vec::new();
    for _ in 0..2 * MOST {
        silent.push(open.connect().await);
    }
    assert_eq!(open.get("/healthz").await.0, 200);
    assert!(open.limits.held() <= MOST, "{} connections", open.limits.held());
    open.shutdown.cancel();
    tokio::time::timeout(PATIENCE, open.serving).await.expect("in time").expect("ended");
}

#[tokio::test]
async fn container_whose_log_is_not_there_is_named_with_its_runtime() {
    let state = json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}}, "containerID": format!("cri-o://{LOST}")});
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "other"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"containerStatuses": [state]}});
    let pods = vec![serde_json::from_value(pod).expect("a pod")];
    let open = Open::new(Port::Secure, 16, Health::default(), pods).await;
    let (status, body) = open.get("/containerLogs/n/p/c").await;
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("unable to retrieve container logs for cri-o://lost"), "{body}");
}
