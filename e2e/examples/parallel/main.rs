//! Gain of a second core: rates with everything on one core and on two, and their ratio; one JSON line each.
//!
//! `cargo run --release -p ironclad-e2e --example parallel -- APISERVER SCHEDULER [PART…]` runs each part in processes that
//! may use one core, and two, by turns: the servers, etcd and the clients together, since on a machine of two cores they
//! share them anyway. PART: `spread`, `reads`, `lists`, `watches` (all by default). `ROUNDS` (3) says how often; the best
//! rate of each counts, as nothing but others on the machine makes one lower.

mod load;
mod spread;

use std::process::{Command, Stdio};

use anyhow::Context as _;
use load::Load;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use testkit::figures::figure;

/// Ratio of the rates that two cores must reach.
const LIMIT: f64 = 1.7;
/// First argument of a process that measures one part on the cores that it is given.
const MEASURES: &str = "measure-on";

/// Name, what is counted, and its unit.
const PARTS: [(&str, &str, &str); 4] = [
    ("spread", "scheduling of pods that spread over zones", "pods/s"),
    ("reads", "GET of a pod", "requests/s"),
    ("lists", "LIST of 2,000 pods from cache", "requests/s"),
    ("watches", "events of 200 watchers", "events/s"),
];

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [first, cores, part, apiserver, binary] if first == MEASURES => {
            pin(cores)?;
            let Load { rate, spread } = measure(part, apiserver, binary)?;
            println!("{rate} {spread}");
            Ok(())
        }
        [apiserver, binary, parts @ ..] => compare(apiserver, binary, parts),
        _ => anyhow::bail!("usage: parallel APISERVER SCHEDULER [PART…]"),
    }
}

/// Lets this process, and all that it starts, run on these cores alone.
fn pin(cores: &str) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    for core in cores.split(',') {
        set.set(core.parse()?)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).context("choosing cores")
}

fn measure(part: &str, apiserver: &str, binary: &str) -> anyhow::Result<Load> {
    // Nobody else installs one in this program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match part {
            "spread" => Ok(Load { rate: spread::rate(apiserver, binary).await?, spread: f64::NAN }),
            "reads" => load::reads(apiserver).await,
            "lists" => load::lists(apiserver).await,
            "watches" => load::watches(apiserver).await,
            other => anyhow::bail!("no part {other}"),
        }
    })
}

fn compare(apiserver: &str, binary: &str, wanted: &[String]) -> anyhow::Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
    let (Some(one), Some(other)) = (cores.next(), cores.next()) else {
        eprintln!("Nothing is measured: this process may use one core only");
        return Ok(());
    };
    let choices = [one.to_string(), format!("{one},{other}")];
    let rounds = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    for (part, what, unit) in PARTS.iter().filter(|(part, ..)| wanted.is_empty() || wanted.iter().any(|w| w == part)) {
        let (mut best, mut shared) = ([0.0_f64; 2], 0.0_f64);
        for _ in 0..rounds {
            for (best, cores) in best.iter_mut().zip(&choices) {
                let load = apart(cores, part, apiserver, binary)?;
                *best = best.max(load.rate);
                // Of the last ones, which have both cores.
                shared = load.spread;
            }
        }
        figure(&format!("{what}: on one core"), best[0], unit, None);
        figure(&format!("{what}: on two cores"), best[1], unit, None);
        figure(&format!("{what}: two cores to one (at least)"), best[1] / best[0], "", Some(LIMIT));
        if shared.is_finite() {
            let text = format!("{what}: processor time of kube-apiserver to that of its busiest thread (at least)");
            figure(&text, shared, "", Some(LIMIT));
        }
    }
    Ok(())
}

/// Load of a part, measured by a process of its own.
fn apart(cores: &str, part: &str, apiserver: &str, binary: &str) -> anyhow::Result<Load> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([MEASURES, cores, part, apiserver, binary]).stderr(Stdio::inherit());
    let output = command.output()?;
    anyhow::ensure!(output.status.success(), "{part} on cores {cores}: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let (rate, spread) = text.trim().split_once(' ').context("two numbers")?;
    Ok(Load { rate: rate.parse()?, spread: spread.parse()? })
}
