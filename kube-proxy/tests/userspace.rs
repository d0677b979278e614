//! Thousands of connections through userspace mode at once, and what is left of them. It needs root and iptables.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube_proxy::backend::Options;
use kube_proxy::mode;
use kube_proxy::plan::{Delta, Desired, Family, NodeFacts};
use kube_proxy::settings::{from_flags, parse};
use serde_json::json;
use shared::flags::{FeatureGates, FlagSet};
use testkit::network::Space;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 2_000;
const PATIENCE: Duration = Duration::from_secs(30);

fn desired(endpoint_port: u16) -> Desired {
    let service = json!({"metadata": {"name": "web", "namespace": "n"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}});
    let slice = json!({"metadata": {"name": "web-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.2"]}], "ports": [{"port": endpoint_port}]});
    let service: Service = serde_json::from_value(service).expect("a service");
    let slice: EndpointSlice = serde_json::from_value(slice).expect("a slice");
    let mut desired = Desired::default();
    let node = NodeFacts::default();
    desired.replace(("n", "web"), Some(&service), &[Arc::new(slice)], (&node, Family::V4), &mut Delta::default());
    desired
}

async fn serve(server: TcpListener) {
    while let Ok((mut stream, _)) = server.accept().await {
        tokio::spawn(async move {
            let mut buffer = [0; 16];
            while let Ok(length) = stream.read(&mut buffer).await {
                if length == 0 || stream.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        });
    }
}

async fn ask(stream: &mut TcpStream, number: usize) {
    let question = format!("{number:08}");
    stream.write_all(question.as_bytes()).await.expect("sent");
    let mut answer = [0; 8];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert_eq!(answer, question.as_bytes());
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a list").count()
}

async fn carry() -> Result<(), String> {
    let mode = mode::named("userspace").expect("the mode");
    let flags = FlagSet::of("kube-proxy", &["--proxy-mode=userspace"]).expect("flags");
    let settings = parse(from_flags(&flags), &FeatureGates::default(), String::new(), "node").expect("settings");
    let mut backend = (mode.backend)(Options::new(Family::V4), &settings.configuration);
    backend.check_support().await.map_err(|error| error.to_string())?;
    let server = TcpListener::bind("127.0.0.2:0").await.expect("a server");
    let desired = desired(server.local_addr().expect("its address").port());
    tokio::spawn(serve(server));
    backend.sync(&desired, &BTreeSet::new()).await.expect("rules are written");

    let before = open_files();
    let mut streams = Vec::new();
    for number in 0..CONNECTIONS {
        let mut stream = TcpStream::connect("10.96.0.1:80").await.expect("a connection");
        ask(&mut stream, number).await;
        streams.push(stream);
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        ask(stream, number).await;
    }
    assert!(open_files() >= before + CONNECTIONS * 4, "all of them are open at once");
    drop(streams);
    let began = Instant::now();
    while open_files() > before {
        assert!(began.elapsed() < PATIENCE, "{} files are left open, {before} before", open_files());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    backend.clean_up().await.expect("rules are gone");
    assert!(!backend.is_present().await);
    Ok(())
}

#[test]
fn thousands_of_connections_leave_nothing_open() {
    let space = match Space::new() {
        Ok(space) => space,
        Err(error) => return eprintln!("skipped: no network namespaces: {error}"),
    };
    space.address("lo", "192.0.2.1/32");
    space.command("ip", &["route", "add", "10.96.0.0/16", "dev", "lo", "src", "192.0.2.1"]);
    let outcome = space.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(carry())
    });
    if let Err(error) = outcome {
        eprintln!("skipped: no iptables: {error}");
    }
}
