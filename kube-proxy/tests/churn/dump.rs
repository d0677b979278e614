//! State of the kernel for a proxy mode, in a form that does not depend on the order in which it was made.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use kube_proxy::plan::Family;
use serde_json::Value;

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("the tool is installed");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Lines by what they belong to.
pub type Dump = BTreeMap<String, Vec<String>>;

/// Reads what a mode has in this namespace.
pub fn kernel(mode: &str, family: Family) -> Dump {
    match mode {
        "nftables" => nftables(family),
        "ipvs" => iptables(family).into_iter().chain(ipvs(family)).collect(),
        "userspace" => iptables(family)
            .into_iter()
            .map(|(chain, rules)| (chain.clone(), without_listeners(&chain, rules)))
            .collect(),
        _ => iptables(family),
    }
}

/// Rules without the numbers of the ports that the proxy listens on: each process has others.
fn without_listeners(chain: &str, rules: Vec<String>) -> Vec<String> {
    let number = if chain.ends_with("KUBE-NODEPORT-NON-LOCAL") { "--dport" } else { "--to-ports" };
    let neutral = |rule: String| {
        let (words, mut next) = (rule.split(' '), false);
        let neutral = words.map(|word| if std::mem::replace(&mut next, word == number) { "N" } else { word });
        neutral.collect::<Vec<_>>().join(" ")
    };
    rules.into_iter().map(neutral).collect()
}

/// Removes rules as somebody else may do it.
pub fn flush(mode: &str, family: Family) {
    let v4 = family == Family::V4;
    let tool = if v4 { "iptables" } else { "ip6tables" };
    let commands: &[&[&str]] = match mode {
        "nftables" => &[&["nft", "delete", "table", if v4 { "ip" } else { "ip6" }, "kube-proxy"]],
        "ipvs" => &[&["ip", "link", "delete", "kube-ipvs0"]],
        _ => &[
            &[tool, "-t", "nat", "-F"],
            &[tool, "-t", "filter", "-F"],
            &[tool, "-t", "mangle", "-F"],
            &[tool, "-t", "mangle", "-X"],
        ],
    };
    for command in commands {
        // There may be nothing yet.
        Command::new(command[0]).args(&command[1..]).output().ok();
    }
}

/// Removes a part of the rules as somebody else may do it.
pub fn flush_some(mode: &str, family: Family) {
    let v4 = family == Family::V4;
    let tool = if v4 { "iptables" } else { "ip6tables" };
    let ip = if v4 { "ip" } else { "ip6" };
    let commands: &[&[&str]] = match mode {
        "nftables" => &[
            &["nft", "flush", "chain", ip, "kube-proxy", "services"],
            &["nft", "flush", "map", ip, "kube-proxy", "service-ips"],
        ],
        "ipvs" => &[&[tool, "-t", "nat", "-F", "KUBE-SERVICES"], &["ipset", "flush"]],
        "userspace" => &[&[tool, "-t", "nat", "-F", "KUBE-PORTALS-HOST"]],
        _ => &[&[tool, "-t", "nat", "-F", "KUBE-SERVICES"], &[tool, "-t", "nat", "-D", "PREROUTING", "1"]],
    };
    for command in commands {
        // There may be nothing yet.
        Command::new(command[0]).args(&command[1..]).output().ok();
    }
}

/// Chains of ours and the kernel's with their rules, table by table.
fn iptables(family: Family) -> Dump {
    let tool = if family == Family::V4 { "iptables-save" } else { "ip6tables-save" };
    let mut dump = Dump::new();
    for table in ["nat", "filter"] {
        for line in output(tool, &["-t", table]).lines() {
            if let Some(chain) = line.strip_prefix(':').and_then(|line| line.split(' ').next()) {
                dump.entry(format!("{table} {chain}")).or_default();
            }
            if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|line| line.split_once(' ')) {
                dump.entry(format!("{table} {chain}")).or_default().push(rule.to_owned());
            }
        }
    }
    // Jumps are put first in line, wherever others stand then: only which there are counts.
    let is_kernels = |chain: &str| chain.split(' ').nth(1).is_some_and(|chain| !chain.starts_with("KUBE-"));
    dump.iter_mut().filter(|(chain, _)| is_kernels(chain)).for_each(|(_, rules)| rules.sort());
    dump
}

fn nftables(family: Family) -> Dump {
    let text = output("nft", &["-j", "list", "table", if family == Family::V4 { "ip" } else { "ip6" }, "kube-proxy"]);
    let listed: Value = serde_json::from_str(&text).expect("JSON");
    let mut dump = Dump::new();
    for entry in listed["nftables"].as_array().expect("a list") {
        let (kind, object) = entry.as_object().and_then(|entry| entry.iter().next()).expect("an entry");
        let name = object["name"].as_str().unwrap_or_default();
        match kind.as_str() {
            "rule" => {
                let chain = object["chain"].as_str().expect("a chain");
                dump.entry(format!("chain {chain}")).or_default().push(object["expr"].to_string());
            }
            "chain" => {
                dump.entry(format!("chain {name}")).or_default();
                dump.insert(format!("base {name}"), vec![format!("{} {}", object["hook"], object["prio"])]);
            }
            "set" | "map" => {
                let elements = object["elem"].as_array().into_iter().flatten().map(Value::to_string);
                let elements: BTreeSet<String> = elements.collect();
                dump.insert(format!("{kind} {name} {}", object["timeout"]), elements.into_iter().collect());
            }
            _ => {}
        }
    }
    dump
}

/// Virtual servers, addresses on the device and sets.
fn ipvs(family: Family) -> Dump {
    let mut dump = Dump::new();
    let servers = std::fs::read_to_string("/proc/net/ip_vs").expect("IPVS");
    let mut server = String::new();
    for line in servers.lines().skip(3) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // Address, forwarding and weight; the counts of connections are not the proxy's.
            ["->", address, forwarding, weight, ..] => {
                dump.entry(server.clone()).or_default().push(format!("{address} {forwarding} {weight}"));
            }
            _ => {
                server = words.join(" ");
                dump.entry(server.clone()).or_default();
            }
        }
    }
    let kind = if family == Family::V4 { "-4" } else { "-6" };
    let addresses = output("ip", &["-o", kind, "address", "show", "dev", "kube-ipvs0"]);
    let address = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    dump.insert("kube-ipvs0".to_owned(), addresses.lines().filter_map(address).collect());
    for line in output("ipset", &["save"]).lines() {
        if let Some((set, member)) = line.strip_prefix("add ").and_then(|line| line.split_once(' ')) {
            dump.entry(format!("set {set}")).or_default().push(member.to_owned());
        }
    }
    dump.values_mut().for_each(|lines| lines.sort());
    dump
}
