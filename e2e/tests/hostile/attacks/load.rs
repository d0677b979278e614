//! Attacks by amount: logs, events, watches, connections, pods that never stay.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::{Attack, attack, expect};
use crate::client::{Arena, MINE, container, mine, of_group, parallel_curl, pod};

pub fn all() -> Vec<Attack> {
    vec![
        attack("a log of a million lines, read by many", |arena| {
            let lines = json!({"containers": [container(&["sh", "-c", "yes 'a line of a log that has no end and says nothing' | head -n 1000000; sleep 3600"])]});
            expect(&arena.post(&mine("pods", ""), &pod("talker", &lines)), &[201], "the pod");
            arena.wait_until_running("talker");
            let followed = (0..20).map(|n| {
                (
                    "GET".to_owned(),
                    mine("pods", &format!("talker/log?follow={}&tailLines={}", n % 2 == 0, 1000 * n)),
                    None,
                )
            });
            let _readers = Background::start(arena, followed, 5);
            std::thread::sleep(Duration::from_secs(2));
            let whole = arena.send("GET", &mine("pods", "talker/log"), &["-o", "/dev/null"], None);
            expect(&whole, &[200], "the whole log");
        }),
        attack("a UDP service of 500 addresses whose 2,000 endpoints go at once", |arena| {
            let addresses: Vec<String> = (0..500).map(|n| format!("198.51.{}.{}", n / 250, n % 250 + 1)).collect();
            let service = json!({"metadata": {"name": "wide"}, "spec": {"externalIPs": addresses,
                "ports": [{"port": 5353, "protocol": "UDP"}]}});
            expect(&arena.post(&mine("services", ""), &service), &[201], "the Service");
            for part in 0..2 {
                let endpoints: Vec<_> = (0..1000)
                    .map(|n| json!({"addresses": [format!("10.99.{}.{}", part * 4 + n / 250, n % 250 + 1)]}))
                    .collect();
                let slice = json!({"metadata": {"name": format!("wide-{part}"), "labels": {"kubernetes.io/service-name": "wide"}},
                    "addressType": "IPv4", "ports": [{"port": 53, "protocol": "UDP"}], "endpoints": endpoints});
                expect(&arena.post(&of_group("discovery.k8s.io/v1", "endpointslices", ""), &slice), &[201], "a slice");
            }
            std::thread::sleep(Duration::from_secs(2));
            for part in 0..2 {
                let slice = of_group("discovery.k8s.io/v1", "endpointslices", &format!("wide-{part}"));
                expect(&arena.ask("DELETE", &slice), &[200], "DELETE");
            }
        }),
        attack("10,000 events", |arena| {
            let body = |n: usize| {
                json!({"metadata": {"name": format!("flood.{n}")}, "reason": "Flood", "message": "x".repeat(500), "type": "Normal",
                "involvedObject": {"kind": "Pod", "name": format!("p{n}"), "namespace": MINE, "uid": n.to_string()}}).to_string()
            };
            let statuses = arena.flood(50, (0..10_000).map(|n| ("POST".to_owned(), mine("events", ""), Some(body(n)))));
            let made = statuses.iter().filter(|&&status| status == 201).count();
            assert!(statuses.iter().all(|status| matches!(status, 201 | 429)), "events are taken or told to wait");
            assert!(made > 1_000, "{made} events");
        }),
        attack("lists that nobody reads", |arena| {
            for number in 0..20 {
                let object =
                    json!({"metadata": {"name": format!("heavy-{number}")}, "data": {"a": "x".repeat(500_000)}});
                expect(&arena.post(&mine("configmaps", ""), &object), &[201], "the object");
            }
            let _readers: Vec<Background> = (0..40).map(|_| Background::slow(arena, &mine("configmaps", ""))).collect();
            std::thread::sleep(Duration::from_secs(3));
            for number in 0..20 {
                arena.ask("DELETE", &mine("configmaps", &format!("heavy-{number}")));
            }
        }),
        attack("3,000 connections that say nothing", |_| {
            let _held = connections(3_000, "10.89.0.1:6443", b"");
            std::thread::sleep(Duration::from_secs(1));
        }),
        attack("the kubelet's port held by 1,500 connections", |_| {
            let _held = connections(1_500, "10.89.0.11:10250", b"\x16\x03\x01");
            std::thread::sleep(Duration::from_secs(1));
        }),
        attack("the health port of kube-proxy held by 300 connections", |arena| {
            let _held = connections(300, "10.89.0.11:10256", b"GET / HTTP/1.1\r\nX: ");
            let answer = arena.cluster.curl("http://10.89.0.11:10256/healthz");
            assert!(answer.is_ok(), "a load balancer still sees the node: {answer:?}");
        }),
        attack("500 tokens", |arena| {
            let body = json!({"spec": {"expirationSeconds": 600}}).to_string();
            let statuses = arena.flood(
                20,
                (0..500).map(|_| ("POST".to_owned(), mine("serviceaccounts", "eve/token"), Some(body.clone()))),
            );
            assert!(statuses.iter().all(|status| matches!(status, 201 | 429)), "{statuses:?}");
        }),
        attack("pods made and deleted without end", |arena| {
            let body = |n: usize| pod(&format!("churn-{n}"), &json!({"nodeSelector": {"no": "node"}})).to_string();
            for round in 0..10 {
                let names: Vec<usize> = (round * 25..(round + 1) * 25).collect();
                arena.flood(25, names.iter().map(|&n| ("POST".to_owned(), mine("pods", ""), Some(body(n)))));
                arena.flood(
                    25,
                    names.iter().map(|&n| {
                        ("DELETE".to_owned(), mine("pods", &format!("churn-{n}?gracePeriodSeconds=0")), None)
                    }),
                );
            }
        }),
        attack("containers that end at once", |arena| {
            for number in 0..8 {
                let crash = json!({"containers": [container(&["false"])]});
                expect(&arena.post(&mine("pods", ""), &pod(&format!("crash-{number}"), &crash)), &[201], "a pod");
            }
            std::thread::sleep(Duration::from_secs(4));
        }),
        attack("a termination message and output without line ends", |arena| {
            let script = "head -c 50000000 /dev/zero | tr '\\0' x >/dev/termination-log; head -c 50000000 /dev/zero | tr '\\0' y; exit 1";
            let loud = json!({"restartPolicy": "Never", "containers": [container(&["sh", "-c", script])]});
            expect(&arena.post(&mine("pods", ""), &pod("loud", &loud)), &[201], "the pod");
            arena.cluster.until("the container ended", 60, || {
                let answer = arena.ask("GET", &mine("pods", "loud"));
                if answer.json()["status"]["phase"] == "Failed" { Ok(()) } else { Err(answer.body) }
            });
            let read = arena.send("GET", &mine("pods", "loud/log?tailLines=1"), &["-o", "/dev/null"], None);
            expect(&read, &[200], "its log");
        }),
        attack("links and devices instead of files in one's volumes", |arena| {
            let script = "ln -s /etc/shadow /v/a; ln -s / /v/b; mkfifo /v/pipe; mkdir -p /v/sub; rm -r /v/sub; ln -s /proc /v/sub; sleep 3600";
            let linked = json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [
                {"name": "a", "image": "busybox:1.36", "command": ["sh", "-c", script], "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
                {"name": "b", "image": "busybox:1.36", "command": ["sh", "-c", "sleep 2; exit 1"], "volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "sub"}]}]});
            expect(&arena.post(&mine("pods", ""), &pod("linked", &linked)), &[201], "the pod");
            std::thread::sleep(Duration::from_secs(5));
            expect(&arena.ask("DELETE", &mine("pods", "linked")), &[200], "DELETE");
            arena.wait_until_gone(&mine("pods", "linked"), 30);
        }),
        attack("reviews of everything", |arena| {
            let review = json!({"spec": {"namespace": MINE}}).to_string();
            let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews".to_owned();
            let statuses = arena.flood(30, (0..300).map(|_| ("POST".to_owned(), path.clone(), Some(review.clone()))));
            assert!(statuses.iter().all(|status| matches!(status, 201 | 429)), "{statuses:?}");
        }),
        attack("a Deployment rolled out without pause", |arena| {
            let template = |n: usize| {
                json!({"metadata": {"labels": {"r": "r"}, "annotations": {"n": n.to_string()}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container(&["sleep", "60"])]}})
            };
            let spec = json!({"replicas": 5, "selector": {"matchLabels": {"r": "r"}}, "template": template(0)});
            let made = arena.post(
                &of_group("apps/v1", "deployments", ""),
                &json!({"metadata": {"name": "restless"}, "spec": spec}),
            );
            expect(&made, &[201], "the Deployment");
            for number in 1..30 {
                let patch = json!({"spec": {"template": template(number)}});
                expect(&arena.patch(&of_group("apps/v1", "deployments", "restless"), &patch), &[200], "a new template");
            }
        }),
    ]
}

/// Attacks that are run by name only: the API server's memory passes the limit after them.
pub fn by_name_only() -> Vec<Attack> {
    vec![
        attack("those events listed by fifty at once", |arena| {
            let listed = (0..50).map(|_| ("GET".to_owned(), mine("events", ""), None));
            let statuses = arena.flood(50, listed);
            assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
        }),
        attack("those events deleted at once", |arena| {
            expect(&arena.ask("DELETE", &mine("events", "")), &[200, 429, 504], "deletecollection");
        }),
        attack("400 watches of everything in one's namespace", |arena| {
            let kinds = ["pods", "secrets", "configmaps", "services", "events"];
            let watched =
                (0..400).map(|n| ("GET".to_owned(), format!("{}?watch=true", mine(kinds[n % kinds.len()], "")), None));
            let _watches = Background::start(arena, watched, 400);
            std::thread::sleep(Duration::from_secs(2));
            for number in 0..50 {
                arena.post(
                    &mine("configmaps", ""),
                    &json!({"metadata": {"name": format!("seen-{number}")}, "data": {"a": "x".repeat(10_000)}}),
                );
                arena.ask("DELETE", &mine("configmaps", &format!("seen-{number}")));
            }
        }),
    ]
}

/// Connections to a port of the cluster that say this and then nothing.
fn connections(count: usize, address: &str, say: &[u8]) -> Vec<TcpStream> {
    let address: SocketAddr = address.parse().expect("an address");
    let connect = |_| {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
        stream.write_all(say).ok()?;
        Some(stream)
    };
    (0..count).filter_map(connect).collect()
}

/// Requests that go on until they are dropped.
struct Background(Child);

impl Background {
    fn start(arena: &Arena, requests: impl Iterator<Item = (String, String, Option<String>)>, parallel: usize) -> Self {
        let mut child = Command::new("curl")
            .args(parallel_curl(parallel))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("curl runs");
        let config = arena.curl_config(requests);
        child.stdin.take().expect("a pipe").write_all(config.as_bytes()).expect("curl reads its configuration");
        Self(child)
    }

    /// A list that is read at a kilobyte a second.
    fn slow(arena: &Arena, target: &str) -> Self {
        let arguments = arena.curl_arguments("GET", target, &["--limit-rate", "1k", "-o", "/dev/null"]);
        let quiet = || Stdio::null();
        Self(Command::new("curl").args(arguments).stdout(quiet()).stderr(quiet()).spawn().expect("curl runs"))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
