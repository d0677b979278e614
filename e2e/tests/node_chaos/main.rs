//! A node whose kubelet and runtime are killed (`kill -9`) at every step of a pod's life, while pods come and go: pod
//! folder, volumes, sandbox, container, exec, termination, removal; with the API server away or the kubelet's disk full as
//! well. Then the API server is away for longer.
//!
//! Afterwards no pod is lost and none has run twice, no container was restarted that need not be, no pod that was Ready has
//! ceased to be, and nothing of pods that are gone is left on the node: folders, mounts, cgroups, logs, containers.
//! `NODE_CHAOS_KILLS` (10) says how often, `CHAOS_SEED` (1) how, `NODE_OUTAGE_SECONDS` (20) how long. The whole is e2e/tests/node_chaos's only test, because the
//! cluster takes longer to start than ten kills.

#![allow(clippy::panic, clippy::expect_used, reason = "a test panics to say what is wrong")]

mod book;
mod disk;
mod moments;
mod outage;
mod pods;
mod residue;
mod strike;

use std::time::Duration;

use e2e::testing::Cluster;
use moments::{Moment, OF_DELETION, OF_START};
use pods::{Kind, Population};
use strike::Victim;
use testkit::dice::Dice;

/// The node under test.
const NODE: &str = "node-1";
/// Kills between two looks at the whole population.
const KILLS_TO_SETTLE: u64 = 5;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn kills_at_every_step_lose_repeat_and_leave_nothing() {
    let (kills, seed) = (number("NODE_CHAOS_KILLS", 10), number("CHAOS_SEED", 1));
    eprintln!("{kills} kills from seed {seed}");
    let outage = Duration::from_secs(number("NODE_OUTAGE_SECONDS", 20));
    let cluster = Cluster::start(&["--nodes", "1"]);
    disk::give(&cluster, NODE);
    cluster.load("busybox");
    let mut dice = Dice::new(seed);
    let mut population = Population::move_in(&cluster);
    let watch = book::Watch::begin();
    for round in 1..=kills {
        strike_once(&cluster, &mut population, &mut dice, round);
        if round % KILLS_TO_SETTLE == 0 || round == kills {
            population.settle();
            assert_eq!(watch.twice(), Vec::<String>::new(), "containers that ran twice at once");
        }
    }
    outage::pass(&cluster, &mut population, outage);
    population.move_out();
    assert_eq!(watch.end(), Vec::<String>::new(), "containers that ran twice at once");
    residue::is_nothing(&cluster, NODE, population.runtime_kills());
    residue::kubelet_never_failed(&cluster, NODE);
    cluster.stop();
}

/// Changes something about the pods, and kills when the step is reached that the dice say.
fn strike_once(cluster: &Cluster, population: &mut Population<'_>, dice: &mut Dice, round: u64) {
    let victim = Victim::of(dice);
    let jitter = dice.milliseconds(250);
    let deleted = if dice.between(0, 10) < 4 { population.any_that_stays(dice) } else { None };
    let (moment, pod) = match deleted {
        Some(pod) => (dice.one_of(&OF_DELETION), pod),
        None if dice.between(0, 6) == 0 => (Moment::Exec, pods::WITNESS.to_owned()),
        None => (dice.one_of(&OF_START), format!("{}-{round}", dice.one_of(&Kind::ALL).name())),
    };
    eprintln!("{round}: {victim:?} {} ms after {moment:?} of {pod}", jitter.as_millis());
    let exec = match moment {
        Moment::Exec => Some(population.exec(&pod)),
        moment if OF_DELETION.contains(&moment) => {
            population.delete(&pod);
            None
        }
        _ => {
            population.create(&pod);
            None
        }
    };
    if !moments::wait(cluster, NODE, moment, population.uid(&pod), &pod) {
        eprintln!("{round}: {moment:?} of {pod} was not seen");
    }
    std::thread::sleep(jitter);
    if victim.is_runtime() {
        population.runtime_was_killed();
    } else {
        population.kubelet_was_killed();
    }
    victim.strike(cluster, NODE, dice);
    // An exec ends with what carries it, and never hangs.
    if let Some(exec) = exec {
        exec.ends();
    }
    population.touch_configuration(round);
}
