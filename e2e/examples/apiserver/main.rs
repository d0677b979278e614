//! Costs of kube-apiserver: CPU of the server per unit of work, memory, delays; one JSON line per figure.
//!
//! `cargo run --release -p ironclad-e2e --example apiserver -- BINARY [PODS [PART…]]` starts an etcd and BINARY (ours or
//! upstream's: both take the same flags), creates PODS pods (10,000) of 4 KB and measures. PART: `lists`, `objects`,
//! `watches`, `slow`, `flood`, `idle`, `definitions`, `more` (all by default). etcd keeps its data in memory, or below the
//! folder that the environment calls `DATA`, where every write waits for the disk.

mod definitions;
mod flood;
mod lists;
mod memory;
mod objects;
mod watches;

use testkit::figures::figure;
use testkit::world::World;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    // Nobody else installs one in this program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut args = std::env::args().skip(1);
    let binary = args.next().ok_or_else(|| anyhow::anyhow!("usage: bench BINARY [PODS [PART…]]"))?;
    let count: usize = args.next().map_or(Ok(10_000), |n| n.parse())?;
    let parts: Vec<String> = args.collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|p| p == part);

    let world = World::start(&binary).await?;
    figure("exec to /readyz", world.start.0, "ms", Some(300.0));
    figure("CPU until ready", world.start.1, "ms", Some(200.0));
    figure("idle RSS", world.rss_mb(), "MB", Some(32.0));
    objects::create(&world, count).await?;
    if wanted("lists") {
        lists::all(&world, count).await?;
    }
    if wanted("objects") {
        objects::all(&world).await?;
    }
    if wanted("watches") {
        watches::all(&world).await?;
    }
    if wanted("slow") {
        lists::slow_readers(&world, 200).await?;
    }
    if wanted("flood") {
        flood::all(&world).await?;
    }
    if wanted("idle") {
        memory::idle_watches(&world, 10_000).await?;
    }
    if wanted("definitions") {
        definitions::all(&world, 500).await?;
    }
    if wanted("more") {
        memory::more_pods(&world, count, 10 * count).await?;
    }
    figure("RSS at the end", world.rss_mb(), "MB", None);
    Ok(())
}
