//! `status`: the processes of a cluster, and how to talk to it. Changes nothing, and needs no answer of the API server.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;
use nix::unistd::Pid;

use crate::layout::{CONTROL_PLANE, Layout};
use crate::load_balancer;
use crate::machine::{self, Machine};
use crate::shell::kubectl;

/// Ticks a second, in which `/proc/PID/stat` counts.
const TICKS: u64 = 100;
/// Index of a process's start in `/proc/PID/stat`, counted behind its name.
const START_TIME: usize = 19;

/// Row of the table: a process of a machine.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    machine: String,
    process: String,
    state: &'static str,
    /// Kilobytes in memory and seconds since it started, of one that runs.
    usage: Option<(u64, u64)>,
}

/// The table of a cluster's processes, and its nodes.
///
/// # Errors
/// When a machine's specification cannot be read.
pub fn status(layout: &Layout) -> Result<String> {
    if !layout.root.exists() {
        return Ok(format!("no cluster in {}; start one with: make up\n", layout.root.display()));
    }
    let nodes = layout.all_nodes();
    let names = std::iter::once(CONTROL_PLANE.to_owned()).chain(nodes.iter().map(|node| node.name.clone()));
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names.push(load_balancer::NAME.to_owned());
    let mut rows = Vec::new();
    for name in names {
        rows.extend(processes(&layout.machine(&name))?);
    }
    let mut text = table(&rows);
    writeln!(text, "\nServices {}  kubeconfig {}\n", layout.service_cidr(), layout.admin_conf().display())?;
    match kubectl(layout, &["get", "nodes", "-o", "wide", "--request-timeout=5s"]) {
        Ok(nodes) => text += &nodes,
        Err(error) => writeln!(text, "the API server does not answer: {error:#}")?,
    }
    Ok(text)
}

fn processes(folder: &Path) -> Result<Vec<Row>> {
    let file = Machine::file(folder);
    if !file.exists() {
        return Ok(Vec::new());
    }
    let machine = Machine::read(&file)?;
    let supervised = machine::running(folder).is_some();
    let row = |name: &String| {
        let pid = machine::alive(&folder.join(format!("{name}.pid"))).filter(|_| supervised);
        let state = match pid {
            Some(_) => "running",
            None if folder.join(format!("{name}.stopped")).exists() => "stopped",
            None if supervised => "starting",
            None => "down",
        };
        Row { machine: machine.name.clone(), process: name.clone(), state, usage: pid.and_then(usage) }
    };
    Ok(machine.processes.iter().map(|process| row(&process.name)).collect())
}

fn usage(pid: Pid) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    Some((resident.split_whitespace().next()?.parse().ok()?, age(&stat, &uptime)?))
}

/// Seconds since a process started.
fn age(stat: &str, uptime: &str) -> Option<u64> {
    let started: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(START_TIME)?.parse().ok()?;
    let now: u64 = uptime.split('.').next()?.parse().ok()?;
    Some(now.saturating_sub(started / TICKS))
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<14} {:<26} {:<9} {:>8} {:>9}\n", "MACHINE", "PROCESS", "STATE", "MEMORY", "AGE");
    for row in rows {
        let (memory, age) = row.usage.map_or_else(Default::default, |(kilobytes, seconds)| {
            (format!("{} MB", kilobytes >> 10), duration(seconds))
        });
        text += format!("{:<14} {:<26} {:<9} {memory:>8} {age:>9}", row.machine, row.process, row.state).trim_end();
        text.push('\n');
    }
    text
}

/// Seconds in at most two units.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{}s", seconds % 60),
        3600..86400 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_two_units() {
        for (seconds, told) in [(0, "0s"), (59, "59s"), (61, "1m1s"), (3_660, "1h1m"), (90_000, "1d1h")] {
            assert_eq!(duration(seconds), told);
        }
    }

    /// The name of a process may have blanks and brackets in it.
    #[test]
    fn a_process_is_as_old_as_the_kernel_says() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5000 1 1";
        assert_eq!(age(stat, "170.25 300.00\n"), Some(120));
        assert_eq!(age("42", "170.25"), None);
    }

    #[test]
    fn what_does_not_run_has_no_figures() {
        let row = |process: &str, state, usage| Row { machine: "node-1".into(), process: process.into(), state, usage };
        let longest = "kube-controller-manager-1";
        let text = table(&[row(longest, "running", Some((20_480, 61))), row("kubelet", "stopped", None)]);
        let column = |line: &str, word: &str| line.find(word).expect("the word is there");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(column(lines[0], "STATE"), column(lines[1], "running"), "{text}");
        assert!(text.contains("running      20 MB      1m1s\n"), "{text}");
        assert!(text.ends_with("stopped\n"), "{text}");
    }
}
