//! An API server that is away for minutes: containers are started anew all the same, and a kubelet may end and begin.

use std::time::{Duration, Instant};

use e2e::testing::Cluster;

use crate::pods::{Population, WITNESS};
use crate::strike::{self, Victim};
use crate::{NODE, book};

/// The pod whose program dies meanwhile.
const RESTARTED: &str = "stays-through-outage";
/// Time in which a container that died has to run again.
const RESTART_LIMIT: u64 = 30;

/// Takes the API server away for so long.
pub fn pass(cluster: &Cluster, population: &mut Population<'_>, length: Duration) {
    eprintln!("no API server for {} s", length.as_secs());
    population.create(RESTARTED);
    population.settle();
    let mark = strike::stop_server(cluster);
    let began = Instant::now();
    let before = only_process(RESTARTED);
    strike::kill_hard(&before.to_string());
    let restarted = cluster.until("a container that died runs again", RESTART_LIMIT, || {
        let now = only_process(RESTARTED);
        if now == 0 || now == before { Err(format!("{now}")) } else { Ok(now) }
    });
    eprintln!("{RESTARTED} runs again after {:.1} s", began.elapsed().as_secs_f32());
    let witness = only_process(WITNESS);
    std::thread::sleep((length / 2).saturating_sub(began.elapsed()));
    strike::kill_and_wait(cluster, NODE, Victim::Kubelet);
    std::thread::sleep(length.saturating_sub(began.elapsed()));
    assert_eq!([only_process(WITNESS), only_process(RESTARTED)], [witness, restarted], "pods go on meanwhile");
    strike::start_server(cluster, &mark);
    population.has_another_container(RESTARTED);
    population.settle();
    assert_eq!(population.starts(RESTARTED), 2, "{RESTARTED} was started once more");
}

/// The first process of a pod's container; 0 when there is none, or several.
fn only_process(pod: &str) -> u32 {
    match book::running().remove(pod) {
        Some(pids) if pids.len() == 1 => pids.first().copied().unwrap_or(0),
        _ => 0,
    }
}
