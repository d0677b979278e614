//! A server on an etcd cluster of three members of which one is killed or frozen.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::harness::{Cluster, etcd_is_missing, eventually, free_port, guard, send_signal};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Three members of one etcd cluster, which end with it.
struct Etcds {
    members: Vec<Member>,
    dir: PathBuf,
}

struct Member {
    port: u16,
    etcd: Child,
    guard: Child,
}

impl Etcds {
    fn start(dir: &Path) -> Self {
        let dir = dir.join("members");
        let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
        let peers: Vec<String> =
            ports.iter().enumerate().map(|(at, (_, peer))| format!("m{at}=http://127.0.0.1:{peer}")).collect();
        let start = |(at, (client, peer)): (usize, &(u16, u16))| {
            let (client_url, peer_url) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
            let data = dir.join(at.to_string());
            let etcd = Command::new("etcd")
                .args(["--name", &format!("m{at}"), "--initial-cluster", &peers.join(",")])
                .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
                .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
                .arg("--data-dir")
                .arg(&data)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("etcd starts");
            Member { port: *client, guard: guard(&etcd, &data), etcd }
        };
        Self { members: ports.iter().enumerate().map(start).collect(), dir }
    }

    fn flag(&self) -> String {
        let urls: Vec<String> = self.members.iter().map(|member| format!("http://127.0.0.1:{}", member.port)).collect();
        format!("--etcd-servers={}", urls.join(","))
    }

    fn signal(&self, at: usize, signal: &str) {
        send_signal(&self.members[at].etcd, signal);
    }

    /// Index of the member that leads.
    async fn leader(&self) -> usize {
        eventually("a leader", async || {
            for (at, Member { port, .. }) in self.members.iter().enumerate() {
                let mut client = etcd_client::Client::connect([format!("http://127.0.0.1:{port}")], None).await.ok()?;
                let status = client.status().await.ok()?;
                if status.leader() != 0 && status.header()?.member_id() == status.leader() {
                    return Some(at);
                }
            }
            None
        })
        .await
    }
}

/// Longest time in which neither of two members answered a read that was sent to it alone, while `work` was done. On a
/// busy machine an election may take longer than a request has time.
async fn longest_silence<T>(ports: Vec<u16>, work: impl Future<Output = T>) -> (Duration, T) {
    let silence = Arc::new(Mutex::new((Instant::now(), Duration::ZERO)));
    let observers: JoinSet<()> = ports
        .into_iter()
        .map(|port| {
            let silence = Arc::clone(&silence);
            async move {
                loop {
                    let read = async {
                        let mut client =
                            etcd_client::Client::connect([format!("http://127.0.0.1:{port}")], None).await?;
                        client.get("silence", None).await
                    };
                    if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(1), read).await {
                        let (since, longest) = *silence.lock();
                        *silence.lock() = (Instant::now(), longest.max(since.elapsed()));
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        })
        .collect();
    let done = work.await;
    drop(observers);
    let (since, longest) = *silence.lock();
    (longest.max(since.elapsed()), done)
}

impl Drop for Etcds {
    fn drop(&mut self) {
        for child in self.members.iter_mut().flat_map(|member| [&mut member.guard, &mut member.etcd]) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Outcomes of requests sent one after the other for a while.
#[derive(Default, Debug)]
struct Tally {
    reads: usize,
    failed_reads: Vec<String>,
    writes: usize,
    failed_writes: Vec<String>,
}

async fn exercise(cluster: &Cluster, run: &str, time: Duration) -> Tally {
    let (end, mut tally) = (Instant::now() + time, Tally::default());
    while Instant::now() < end {
        let name = format!("{run}-{}", tally.writes);
        let created = cluster.post(MAPS, json!({"metadata": {"name": name}})).await;
        tally.writes += 1;
        if created.code != 201 {
            tally.failed_writes.push(String::from_utf8_lossy(&created.bytes).into_owned());
        }
        for path in ["/api/v1/namespaces/default", MAPS] {
            let read = cluster.get(path).await;
            tally.reads += 1;
            if read.code != 200 {
                tally.failed_reads.push(String::from_utf8_lossy(&read.bytes).into_owned());
            }
        }
    }
    tally
}

/// A server that has written to its three members; `None` where there is no etcd.
async fn on_three_members() -> Option<(Cluster, Etcds)> {
    if etcd_is_missing() {
        return None;
    }
    let mut etcds = None;
    let cluster = Cluster::start_with(|dir, _| {
        let started = Etcds::start(dir);
        let flag = started.flag();
        etcds = Some(started);
        vec![flag]
    })
    .await;
    exercise(&cluster, "before", Duration::from_millis(300)).await;
    Some((cluster, etcds.expect("started above")))
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_etcd_member_fails_no_read() {
    let Some((cluster, etcds)) = on_three_members().await else { return };
    let follower = (etcds.leader().await + 1) % 3;
    etcds.signal(follower, "KILL");
    let tally = exercise(&cluster, "after", Duration::from_secs(3)).await;
    assert_eq!(&tally.failed_reads[..], &[] as &[String], "{tally:?}");
    // One may have been sent before the connection broke: nobody knows whether it was written.
    assert!(tally.failed_writes.len() <= 1, "{tally:?}");
    assert!(tally.reads > 20, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_etcd_leader_fails_no_read() {
    let Some((cluster, etcds)) = on_three_members().await else { return };
    let leader = etcds.leader().await;
    etcds.signal(leader, "STOP");
    let others = etcds.members.iter().enumerate().filter(|(at, _)| *at != leader).map(|(_, member)| member.port);
    let frozen = exercise(&cluster, "frozen", Duration::from_secs(6));
    let (silence, tally) = longest_silence(others.collect(), frozen).await;
    if silence > Duration::from_secs(6) {
        etcds.signal(leader, "CONT");
        eprintln!("skipped: on this busy machine etcd itself answered nothing for {silence:?}");
        return;
    }
    // A write that the frozen member may have begun is not repeated, and ends with its deadline.
    let settled = exercise(&cluster, "settled", Duration::from_secs(2)).await;
    etcds.signal(leader, "CONT");
    let thawed = exercise(&cluster, "thawed", Duration::from_secs(2)).await;
    for tally in [&tally, &settled, &thawed] {
        assert_eq!(&tally.failed_reads[..], &[] as &[String], "{tally:?}");
    }
    assert!(tally.failed_writes.len() <= 1, "{tally:?}");
    assert_eq!((&settled.failed_writes[..], &thawed.failed_writes[..]), (&[][..], &[][..]));
    assert!(settled.reads > 20, "{settled:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_survives_a_frozen_etcd_member() {
    let Some((cluster, etcds)) = on_three_members().await else { return };
    let from = cluster.get(MAPS).await.ok()["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned();
    let path = format!("{MAPS}?watch=1&timeoutSeconds=60&resourceVersion={from}");
    // Each member in turn, so that the one which the cache follows is among them.
    let changes = async {
        for at in 0..3 {
            etcds.signal(at, "STOP");
            exercise(&cluster, &format!("m{at}"), Duration::from_secs(3)).await;
            let name = format!("seen-{at}");
            eventually("a write while a member is frozen", async || {
                let created = cluster.post(MAPS, json!({"metadata": {"name": name, "labels": {"seen": "1"}}})).await;
                matches!(created.code, 201 | 409).then_some(())
            })
            .await;
            etcds.signal(at, "CONT");
            etcds.leader().await;
        }
    };
    let path = format!("{path}&labelSelector=seen=1");
    let (events, ()) = tokio::join!(cluster.watch(&path, 3), changes);
    let names: Vec<_> = events.iter().map(|event| event["object"]["metadata"]["name"].as_str()).collect();
    assert_eq!(names, [Some("seen-0"), Some("seen-1"), Some("seen-2")]);
}

/// Bytes by which [`Cutter`] knows a request.
type Mark = Arc<Mutex<Option<&'static str>>>;
/// Time in which etcd does a request whose answer is thrown away.
const DONE: Duration = Duration::from_millis(1500);

/// Proxies in front of etcd members, which pass the next request with a mark in it on, and break its connection instead of
/// passing its answer back.
struct Cutter {
    mark: Mark,
    ports: Vec<u16>,
    _proxies: JoinSet<()>,
}

impl Cutter {
    async fn before(etcds: &Etcds) -> Self {
        let (mark, mut ports, mut proxies) = (Mark::default(), Vec::new(), JoinSet::new());
        for Member { port, .. } in &etcds.members {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            ports.push(listener.local_addr().expect("an address").port());
            proxies.spawn(Self::serve(listener, *port, Arc::clone(&mark)));
        }
        Self { mark, ports, _proxies: proxies }
    }

    async fn serve(listener: TcpListener, port: u16, mark: Mark) {
        let mut connections = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let mark = Arc::clone(&mark);
            connections.spawn(async move {
                let Ok(etcd) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                // An end of either side is the end of the connection.
                let _ = Self::pass(client, etcd, &mark).await;
            });
        }
    }

    async fn pass(mut client: TcpStream, mut etcd: TcpStream, mark: &Mark) -> std::io::Result<()> {
        let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        loop {
            tokio::select! {
                read = client.read(&mut up) => {
                    let read = read?;
                    etcd.write_all(&up[..read]).await?;
                    let marked = mark.lock().is_some_and(|mark| up[..read].windows(mark.len()).any(|bytes| bytes == mark.as_bytes()));
                    if marked {
                        mark.lock().take();
                        tokio::time::sleep(DONE).await;
                        return Ok(());
                    }
                    if read == 0 {
                        return Ok(());
                    }
                }
                read = etcd.read(&mut down) => match read? {
                    0 => return Ok(()),
                    read => client.write_all(&down[..read]).await?,
                },
            }
        }
    }

    fn cut(&self, mark: &'static str) {
        *self.mark.lock() = Some(mark);
    }
}

/// A server that talks to its three members through cutters; `None` where there is no etcd.
async fn behind_cutters(name: &str) -> Option<(Cluster, Etcds, Cutter)> {
    if etcd_is_missing() {
        return None;
    }
    let dir = std::env::temp_dir().join(format!("ironclad-{name}-{}", std::process::id()));
    let etcds = Etcds::start(&dir);
    etcds.leader().await;
    let cutter = Cutter::before(&etcds).await;
    let urls: Vec<String> = cutter.ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    let cluster = Cluster::start_with(|_, _| vec![format!("--etcd-servers={}", urls.join(","))]).await;
    exercise(&cluster, "before", Duration::from_millis(300)).await;
    Some((cluster, etcds, cutter))
}

#[tokio::test(flavor = "multi_thread")]
async fn write_whose_answer_is_lost_is_acknowledged_once_it_is_found() {
    let Some((cluster, _etcds, cutter)) = behind_cutters("found").await else { return };
    cutter.cut("mark-of-a-creation");
    let mut map = json!({"metadata": {"name": "a"}, "data": {"mark": "mark-of-a-creation"}});
    let created = cluster.post(MAPS, map.clone()).await.ok();
    assert!(cutter.mark.lock().is_none(), "the connection was cut");
    let path = format!("{MAPS}/a");
    assert_eq!(cluster.get(&path).await.ok(), created, "its revision and uid are those in etcd");

    cutter.cut("mark-of-an-update");
    map["data"]["mark"] = json!("mark-of-an-update");
    map["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"].clone();
    let updated = cluster.put(&path, &map).await.ok();
    assert!(cutter.mark.lock().is_none(), "the connection was cut");
    assert_eq!(cluster.get(&path).await.ok(), updated, "it was done once");

    // One that was there before is none of ours.
    cutter.cut("mark-of-another-creation");
    map["data"]["mark"] = json!("mark-of-another-creation");
    map["metadata"] = json!({"name": "a"});
    let refused = cluster.post(MAPS, map).await;
    assert!(cutter.mark.lock().is_none(), "the connection was cut");
    assert_eq!(refused.code, 500, "{}", refused.text());
    let message = refused.json()["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(message, "rpc error: code = Unavailable desc = error reading from server: EOF");
    assert_eq!(cluster.get(&path).await.ok(), updated);
}

/// The object was made anew meanwhile: what became of the change cannot be found out, and it must not be made a second time.
#[tokio::test(flavor = "multi_thread")]
async fn change_of_unknown_outcome_is_not_made_again() {
    const KEY: &str = "/registry/configmaps/default/a";
    let Some((cluster, etcds, cutter)) = behind_cutters("unknown").await else { return };
    let path = format!("{MAPS}/a");
    cluster.post(MAPS, json!({"metadata": {"name": "a"}})).await.ok();
    eventually("the watch cache knows the object", async || {
        let cached = cluster.get(&format!("{path}?resourceVersion=0")).await;
        (cached.code == 200).then_some(())
    })
    .await;
    let url = format!("http://127.0.0.1:{}", etcds.members[0].port);
    let mut etcd = etcd_client::Client::connect([url], None).await.expect("a member");
    let before = etcd.get(KEY, None).await.expect("a value").take_kvs().pop().expect("the object").value().to_vec();
    cutter.cut("mark-of-a-change");
    let change = cluster.patch(&path, "merge-patch+json", json!({"data": {"mark": "mark-of-a-change"}}));
    // Past the server, some of whose connections hang until one is cut.
    let made_anew = async {
        loop {
            let now = etcd.get(KEY, None).await.expect("a value").take_kvs().pop().expect("the object");
            if now.value() != before {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        etcd.delete(KEY, None).await.expect("deleted");
        etcd.put(KEY, before.clone(), None).await.expect("made anew");
    };
    let (changed, ()) = tokio::join!(change, made_anew);
    assert_eq!(changed.code, 500, "{}", changed.text());
    assert_eq!(cluster.get(&path).await.ok()["data"]["mark"], serde_json::Value::Null);
}
