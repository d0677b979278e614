//! LISTs of all pods in every form, of few by selectors, and to readers that do not read.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::try_join_all;
use http_body_util::BodyExt as _;

use testkit::figures::{figure, median};
use testkit::http2::{JSON, PROTOBUF, TABLE};
use testkit::world::World;

const ALL: &str = "/api/v1/pods";
const ROUNDS: usize = 5;

struct Case {
    name: &'static str,
    path: &'static str,
    accept: &'static str,
    gzip: bool,
    limit: f64,
}

const fn case(name: &'static str, path: &'static str, accept: &'static str, gzip: bool, limit: f64) -> Case {
    Case { name, path, accept, gzip, limit }
}

const FULL: [Case; 5] = [
    case("list all pods, JSON, from cache", "/api/v1/pods?resourceVersion=0", JSON, false, 80.0),
    case("list all pods, protobuf, from cache", "/api/v1/pods?resourceVersion=0", PROTOBUF, false, 60.0),
    case("list all pods, table", "/api/v1/pods?resourceVersion=0", TABLE, false, 80.0),
    case("list all pods, JSON, gzip", "/api/v1/pods?resourceVersion=0", JSON, true, 250.0),
    case("list all pods, JSON, consistent", "/api/v1/pods", JSON, false, 85.0),
];

const FEW: [Case; 2] = [
    case(
        "list a node's pods, protobuf, from cache",
        "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3Dnode-7",
        PROTOBUF,
        false,
        0.5,
    ),
    case(
        "list by a label that none has, from cache",
        "/api/v1/pods?resourceVersion=0&labelSelector=app%3Dnobody",
        JSON,
        false,
        0.5,
    ),
];

fn headers(case: &Case) -> Vec<(&'static str, &'static str)> {
    let mut headers = vec![("accept", case.accept)];
    if case.gzip {
        headers.push(("accept-encoding", "gzip"));
    }
    headers
}

/// All of them.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn all(world: &World, count: usize) -> anyhow::Result<()> {
    let mut client = world.client().await?;
    let mut peak: f64 = 0.0;
    for case in &FULL {
        let (mut times, mut walls, mut size) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let (bytes, cpu) = world.cpu_of(client.read(case.path, &headers(case))).await?;
            walls.push(began.elapsed().as_secs_f64() * 1e3 - 20.0);
            times.push(cpu);
            size = bytes;
            peak = peak.max(world.rss_mb());
        }
        figure(&format!("{}: CPU of the first", case.name), times[0], "ms", None);
        figure(&format!("{}: CPU", case.name), median(times), "ms", Some(case.limit));
        figure(&format!("{}: wall", case.name), median(walls), "ms", None);
        figure(&format!("{}: size", case.name), size as f64 / 1e6, "MB", None);
    }
    let mut times = Vec::new();
    for _ in 0..3 {
        times.push(world.cpu_of(pages(&mut client, count)).await?.1);
        peak = peak.max(world.rss_mb());
    }
    figure("list all pods in pages of 500, protobuf: CPU", median(times), "ms", Some(90.0));
    for case in &FEW {
        client.read(case.path, &headers(case)).await?;
        let rounds = 200;
        let repeat = async {
            for _ in 0..rounds {
                client.read(case.path, &headers(case)).await?;
            }
            Ok(())
        };
        let (_, cpu) = world.cpu_of(repeat).await?;
        figure(&format!("{}: CPU", case.name), cpu / f64::from(rounds), "ms", Some(case.limit));
    }
    let mut times = Vec::new();
    for _ in 0..3 {
        let mut client = world.client().await?;
        let start = async {
            client.read("/api/v1/pods?resourceVersion=0", &[("accept", PROTOBUF)]).await?;
            client.watch("/api/v1/pods?watch=1&resourceVersion=0&allowWatchBookmarks=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", PROTOBUF).await.map(drop)
        };
        times.push(world.cpu_of(start).await?.1);
    }
    figure("informer start: CPU", median(times), "ms", Some(80.0));
    figure("RSS while listing, at most", peak, "MB", Some(150.0));
    tokio::time::sleep(Duration::from_secs(2)).await;
    figure("RSS after the lists", world.rss_mb(), "MB", Some(150.0));
    Ok(())
}

async fn pages(client: &mut testkit::http2::Client, count: usize) -> anyhow::Result<()> {
    let (mut token, mut pages) = (String::new(), 0);
    loop {
        let path = format!("{ALL}?limit=500&resourceVersion=&continue={token}");
        let body = client.get(&path, PROTOBUF).await?;
        pages += 1;
        match next_token(&body) {
            Some(next) => token = next,
            None => {
                anyhow::ensure!(pages >= count / 500, "{pages} pages of {count} pods");
                return Ok(());
            }
        }
    }
}

/// `metadata.continue` of an enveloped list: field 1 of the raw message, field 3 of that.
fn next_token(body: &[u8]) -> Option<String> {
    let raw = proto::protobuf::unwrap(body).ok()?.raw;
    let schema = proto::schema::message("k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta")?;
    let (mut length, mut shift, mut at) = (0_usize, 0, 1);
    loop {
        let b = *raw.get(at)?;
        at += 1;
        length |= usize::from(b & 0x7f) << shift;
        shift += 7;
        if b < 0x80 {
            break;
        }
    }
    let meta = proto::protobuf::decode(schema, raw.get(at..at + length)?).ok()?;
    meta["continue"].as_str().filter(|t| !t.is_empty()).map(str::to_owned)
}

/// Many readers ask for everything and then take their time.
pub async fn slow_readers(world: &World, count: usize) -> anyhow::Result<()> {
    let before = world.rss_mb();
    let mut open = Vec::new();
    for _ in 0..count {
        let mut client = world.client().await?;
        open.push(client.send("GET", "/api/v1/pods?resourceVersion=0", &[("accept", JSON)], Bytes::new()).await?);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    figure("200 slow readers: growth of RSS", world.rss_mb() - before, "MB", Some(100.0));
    let mut client = world.client().await?;
    let began = Instant::now();
    client.get("/api/v1/namespaces/default", JSON).await?;
    figure("200 slow readers: somebody else's get", began.elapsed().as_secs_f64() * 1e3, "ms", None);
    // Each is still whole.
    let rest =
        open.into_iter().take(3).map(|r| async move { anyhow::Ok(r.into_body().collect().await?.to_bytes().len()) });
    let sizes = try_join_all(rest).await?;
    anyhow::ensure!(sizes.windows(2).all(|w| w[0] == w[1]), "slow readers got {sizes:?} bytes");
    Ok(())
}
