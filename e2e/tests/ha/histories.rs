//! Clients that write, list and watch through three API servers while members and servers die, freeze and are cut off: one
//! order of writes must explain all that they saw.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use testkit::client::Client;
use testkit::dice::Dice;
use testkit::histories::{self, check};

use crate::machines::{Fault, Machines};

/// Clients, several at each server.
const WORKERS: usize = 9;
/// Longest time between two faults, and shortest and longest time of one, in milliseconds.
const PAUSE: u64 = 2000;
const FAULT: (u64, u64) = (1000, 5000);

#[test]
fn one_history_explains_kills_freezes_and_partitions() {
    // Another test of the process may have chosen it before.
    rustls::crypto::ring::default_provider().install_default().ok();
    let (seed, seconds) = (setting("HA_SEED", 1), setting("HA_SECONDS", 60));
    let binaries = PathBuf::from(std::env::var("BINARIES").expect("BINARIES names the folder of the binaries"));
    let (mut machines, space) = Machines::start(binaries.join("kube-apiserver")).expect("namespaces; run as root");
    let (machines, faults, history) = space.run(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            machines.ready().await;
            let clients: Vec<Client> = (0..3).map(|at| machines.client(at)).collect();
            let client = move |at: usize| clients[at].clone();
            let mut faults = BTreeMap::new();
            let breaking = break_things(&mut machines, &mut faults, Dice::new(seed), Duration::from_secs(seconds));
            let history = histories::run(seed, WORKERS, 3, client, breaking).await;
            (machines, faults, history)
        })
    });
    let summary = histories::summary(&history);
    eprintln!("seed {seed}, {seconds} s: {faults:?}; {summary:?}");
    let wrong = check::violations(&history);
    assert!(wrong.is_empty(), "seed {seed}, {summary:?}:\n{}", wrong.join("\n"));
    let least = usize::try_from(seconds).unwrap_or(usize::MAX);
    assert!(summary["acknowledged"] > least && summary["lists"] > least, "clients hardly did anything: {summary:?}");
    machines.remove();
}

/// A number from the environment.
fn setting<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

/// One fault after the other, until the time is over; then everything runs.
async fn break_things(machines: &mut Machines, faults: &mut BTreeMap<Fault, usize>, mut dice: Dice, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(dice.roll(PAUSE))).await;
        let (fault, at) = Fault::roll(&mut dice);
        let (least, most) = FAULT;
        let length = Duration::from_millis(least + dice.roll(most - least));
        eprintln!("{fault:?} of machine {at} for {} ms", length.as_millis());
        *faults.entry(fault).or_default() += 1;
        machines.begin(fault, at);
        tokio::time::sleep(length).await;
        machines.end(fault, at);
    }
    machines.ready().await;
}
