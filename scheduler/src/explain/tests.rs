use serde_json::{Value, json};

use super::{Dump, DumpedWorld, from_manifest, output, profiles, with_priority};
use crate::framework::explain::Explanation;

fn cluster() -> Dump {
    let node = |name: &str, cpu: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}})
    };
    let pod = |name: &str, node: Value, cpu: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": node, "priority": 0, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    };
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000});
    let mut dump = Dump::default();
    let items = [
        node("small", "2"),
        node("large", "8"),
        pod("busy", json!("large"), "7"),
        pod("waiting", Value::Null, "4"),
        class,
        json!({"kind": "ConfigMap", "metadata": {"name": "x"}}),
    ];
    dump.add(json!({"kind": "List", "items": items})).expect("dump");
    dump
}

fn what_if(manifest: Value) -> Explanation {
    let dump = cluster();
    let pod = with_priority(from_manifest(&manifest, "default").expect("pod"), &dump.priorities());
    DumpedWorld::of(dump).explain(&profiles(None).expect("profiles"), &pod).expect("explanation")
}

#[test]
fn a_pod_that_waits() {
    let world = DumpedWorld::of(cluster());
    let pod = world.pod("default", "waiting").expect("pod");
    let e = world.explain(&profiles(None).expect("profiles"), &pod).expect("explanation");
    assert_eq!(
        output(&e, false).expect("text"),
        "Pod:        default/waiting\nScheduler:  default-scheduler\nAnswer:     0/2 nodes are available: 2 Insufficient cpu. \
         no new claims to deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, \
         1 Preemption is not helpful for scheduling.\n\n\
         NODE   FITS  SCORE  WHY\n\
         large  no    -      NodeResourcesFit: Insufficient cpu\n\
         small  no    -      NodeResourcesFit: Insufficient cpu\n"
    );
    assert!(DumpedWorld::of(cluster()).pod("default", "nobody").is_err());
}

#[test]
fn a_pod_that_runs_is_explained_as_if_it_did_not() {
    let world = DumpedWorld::of(cluster());
    let pod = world.pod("default", "busy").expect("pod");
    let e = world.explain(&profiles(None).expect("profiles"), &pod).expect("explanation");
    assert_eq!((e.bound_to.as_deref(), e.nodes[0].node.as_str(), e.nodes[0].fits), (Some("large"), "large", true));
}

#[test]
fn pods_that_do_not_exist_yet() {
    let container = |cpu: &str| json!([{"name": "c", "image": "i", "resources": {"limits": {"cpu": cpu}}}]);
    // What is limited is requested: the API server would fill that in.
    let e = what_if(json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": container("1500m")}}));
    assert_eq!((e.pod.as_str(), e.nodes[0].node.as_str(), e.nodes[1].fits), ("default/p", "small", false));
    let urgent = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"priorityClassName": "high", "containers": container("4")}});
    let rescue = what_if(urgent).preemption.expect("room");
    assert_eq!((rescue.node.as_str(), rescue.victims), ("large", vec!["default/busy".to_owned()]));
    let deployment = json!({"kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": container("1")}}}});
    assert_eq!(what_if(deployment).pod, "shop/web");
    assert!(from_manifest(&json!({"kind": "Service"}), "default").is_err());
}

#[test]
fn json_has_all_of_it() {
    let e = what_if(
        json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
    );
    let value: Value = serde_json::from_str(&output(&e, true).expect("text")).expect("JSON");
    assert_eq!(value["message"], "2/2 nodes are available");
    let best = &value["nodes"][0];
    assert_eq!(best["fits"], true);
    let sum: i64 = best["scores"]
        .as_array()
        .expect("scores")
        .iter()
        .map(|s| s["score"].as_i64().unwrap_or(0) * s["weight"].as_i64().unwrap_or(0))
        .sum();
    assert_eq!(best["total"], sum);
}

#[test]
fn dumps_are_read_from_files_and_folders() {
    let folder = std::env::temp_dir().join(format!("explain-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("more")).expect("folder");
    std::fs::write(
        folder.join("nodes.yaml"),
        "kind: Node\nmetadata: {name: a}\n---\nkind: NodeList\nitems:\n- metadata: {name: b}\n",
    )
    .expect("file");
    std::fs::write(folder.join("more/pods.json"), r#"{"kind": "PodList", "items": [{"metadata": {"name": "p"}}]}"#)
        .expect("file");
    std::fs::write(folder.join("README"), "not an object").expect("file");
    let dump = Dump::load(&folder).expect("dump");
    std::fs::remove_dir_all(&folder).expect("clean");
    assert_eq!((dump.nodes.len(), dump.pods.len()), (2, 1));
}

/// A server that answers every request with this code and text; it says what it was asked.
async fn refuse(code: u16, message: &str, asked: tokio::sync::mpsc::UnboundedSender<String>) -> std::net::SocketAddr {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let address = listener.local_addr().expect("address");
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": code, "message": message});
    let (length, body) = (status.to_string().len(), status.to_string());
    let answer = format!(
        "HTTP/1.1 {code} No\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            let mut lines = vec![String::new()];
            while stream.read_line(lines.last_mut().expect("one")).await.is_ok_and(|n| n > 2) {
                lines.push(String::new());
            }
            let _ = (asked.send(lines.swap_remove(0)), stream.write_all(answer.as_bytes()).await);
        }
    });
    address
}

#[tokio::test]
async fn who_may_not_read_the_cluster_is_told_so() {
    let message = r#"pods is forbidden: User "eve" cannot list resource "pods" in API group "" at the cluster scope"#;
    let (asked, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let address = refuse(403, message, asked).await;
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "eve", "user": {"token": "eve"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "eve"}}]});
    let path = std::env::temp_dir().join(format!("explain-{}.conf", std::process::id()));
    std::fs::write(&path, config.to_string()).expect("kubeconfig");
    let args = ["explain", "web-1", "--kubeconfig", &path.to_string_lossy()].map(str::to_owned);
    let matches = super::command().try_get_matches_from(args).expect("arguments");
    let refused = super::tell(&matches).await.expect_err("refused");
    std::fs::remove_file(&path).expect("clean");
    let text = format!("{refused:#}");
    assert!(text.starts_with("listing Pod: ") && text.contains(message), "{text}");
    assert_eq!(text.matches(message).count(), 1, "{text}");
    // It stops at the first refusal, and only ever reads.
    let mut lines = Vec::new();
    while let Ok(line) = requests.try_recv() {
        lines.push(line);
    }
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("GET /api/v1/pods?"), "{lines:?}");
}

#[test]
fn only_the_subcommand_is_taken() {
    assert!(super::run(["--help".into()]).is_none());
    assert!(super::run([]).is_none());
    super::command().debug_assert();
}
