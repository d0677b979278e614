//! Do several servers on one etcd tell one history while processes are killed?
//!
//! `cargo run --release -p ironclad-e2e --example histories -- BINARY [SEED [SECONDS [WORKERS]]]` starts an etcd and two
//! of BINARY (ours or upstream's), lets WORKERS (8) clients write, list and watch through both for SECONDS (30), and
//! meanwhile kills servers and etcd, stops etcd for a while, and starts them again, in an order that follows from SEED.
//! Every acknowledged write must then be seen exactly once, watches must be without gaps, duplicates and disorder, and
//! lists must be states that were. Prints what cannot have happened, and fails if there is anything.

mod world;

use std::time::{Duration, Instant};

use testkit::client::Client;
use testkit::dice::Dice;
use testkit::histories::{self, check};
use testkit::pki::Identity;
use world::World;

/// Servers on the etcd.
const SERVERS: usize = 2;

/// Kills, stops and starts, until the time is over; then everything runs.
async fn break_things(world: &mut World, mut dice: Dice, seconds: u64) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(300 + dice.roll(1200))).await;
        let pause = Duration::from_millis(dice.roll(1500));
        match dice.roll(6) {
            0..=2 => {
                let n = usize::try_from(dice.roll(SERVERS as u64)).unwrap_or(0);
                println!("killing server {n} for {pause:?}");
                world.kill_server(n);
                tokio::time::sleep(pause).await;
                world.start_server(n);
            }
            3..=4 => {
                println!("killing etcd for {pause:?}");
                world.kill_etcd();
                tokio::time::sleep(pause).await;
                world.start_etcd();
            }
            _ => {
                println!("stopping etcd for {pause:?}");
                world.signal_etcd("STOP");
                tokio::time::sleep(pause).await;
                world.signal_etcd("CONT");
            }
        }
    }
    world.ready().await;
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    // Nobody else installs one in this program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut args = std::env::args().skip(1);
    let binary = args.next().ok_or_else(|| anyhow::anyhow!("usage: histories BINARY [SEED [SECONDS [WORKERS]]]"))?;
    let seed: u64 = args.next().map_or(Ok(1), |n| n.parse())?;
    let seconds: u64 = args.next().map_or(Ok(30), |n| n.parse())?;
    let workers: usize = args.next().map_or(Ok(8), |n| n.parse())?;
    let mut world = World::start(&binary, SERVERS).await;
    let clients: Vec<Client> = world.ports.iter().map(|port| Client::new(*port, &world.pki, Identity::Admin)).collect();
    let client = move |n: usize| clients[n].clone();
    let breaking = break_things(&mut world, Dice::new(seed), seconds);
    let history = histories::run(seed, workers, SERVERS, client, breaking).await;
    println!("{:?}", histories::summary(&history));
    let wrong = check::violations(&history);
    wrong.iter().for_each(|why| println!("{why}"));
    anyhow::ensure!(wrong.is_empty(), "seed {seed}: {} things cannot have happened", wrong.len());
    println!("seed {seed}: one history explains everything");
    Ok(())
}
