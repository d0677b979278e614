//! Connections of one table over real traffic, for each proxy mode and both families. It needs root and the mode's tools; a
//! mode that the kernel lacks is left out with the reason. `MODES` names those that are run, and must not be left out.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod services;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kube_proxy::backend::Mode;
use kube_proxy::backend::{Backend, Environment, NodePorts, Options};
use kube_proxy::detect::LocalDetector;
use kube_proxy::mode::MODES;
use kube_proxy::plan::Family;
use kube_proxy::settings::{from_flags, parse};
use shared::flags::{FeatureGates, FlagSet};
use tokio::runtime::Runtime;

use services::{Addresses, desired};
use testkit::connections::{CASES, Case, Client, Expect, To, Via};
use testkit::network::{Network, Outcome, Space, ask, balancer};

/// Connections of a case that may end at several servers: that one of three is never chosen happens once in 30,000 times.
const TRIES: usize = 26;

/// Time for an answer where there has to be one.
const ANSWER: Duration = Duration::from_secs(5);
/// Time for an answer where there is none.
const SILENCE: Duration = Duration::from_millis(400);

/// A mode that runs in the namespace of the node: some carry traffic themselves.
struct Running {
    _backend: Box<dyn Backend>,
    _runtime: Runtime,
}

/// Writes a mode's rules for all services into the namespace of the node.
///
/// # Errors
/// The kernel lacks the mode.
fn start(node: &Space, mode: &'static Mode, family: Family) -> Result<Running, String> {
    node.run(move || {
        let addresses = Addresses::of(family);
        let flags = FlagSet::of("kube-proxy", &[&format!("--proxy-mode={}", mode.name)]).expect("flags");
        let settings = parse(from_flags(&flags), &FeatureGates::default(), String::new(), "node").expect("settings");
        let own: IpAddr = addresses.lan("1").parse().expect("an address");
        let node_ports = if mode.primary_node_ports { NodePorts::Addresses([own].into()) } else { NodePorts::All };
        let service_networks = BTreeSet::from([addresses.services().parse().expect("a network")]);
        let localhost_node_ports = mode.localhost_node_ports && addresses.v4;
        if localhost_node_ports {
            std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").expect("written");
        }
        let options = Options {
            detector: LocalDetector::Networks(vec![addresses.pods().parse().expect("a network")]),
            localhost_node_ports,
            node_addresses: vec![own],
            environment: Environment { node_ports, service_networks },
            ..Options::new(family)
        };
        // Its threads are in the namespace, too.
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let backend = runtime.block_on(async {
            let mut backend = (mode.backend)(options.clone(), &settings.configuration);
            backend.check_support().await.map_err(|error| error.to_string())?;
            let (desired, delta) = desired(family);
            backend.sync(&desired, &delta.ports).await.expect("rules are written");
            assert!(backend.tend().await, "rules are there");
            // Once more over what is there, as after a restart.
            let mut next = (mode.backend)(options, &settings.configuration);
            next.sync(&desired, &delta.ports).await.expect("rules are written again");
            Ok::<_, String>(next)
        })?;
        Ok(Running { _backend: backend, _runtime: runtime })
    })
}

struct Suite<'a> {
    network: &'a Network,
    addresses: Addresses,
    mode: &'static Mode,
}

impl Suite<'_> {
    fn target(&self, to: To) -> SocketAddr {
        let (address, port) = match to {
            To::Cluster(n, port) => (self.addresses.cluster(n), port),
            To::External(n, port) => (self.addresses.external(n), port),
            To::Balancer => (balancer(self.addresses.v4).to_owned(), testkit::network::PORT),
            To::NodePort(port) => (self.addresses.lan("1"), port),
            To::Loopback(port) => (if self.addresses.v4 { "127.0.0.1" } else { "::1" }.to_owned(), port),
        };
        (address.parse::<IpAddr>().expect("an address"), port).into()
    }

    fn client(&self, from: Client) -> (&Space, Option<IpAddr>) {
        let pods = if self.addresses.v4 { "10.244.0." } else { "2001:db8:244::" };
        let pod = |host: &str| format!("{pods}{host}").parse().ok();
        match from {
            Client::Pod => (&self.network.client, pod("9")),
            Client::Endpoint => (&self.network.a, pod("2")),
            Client::Node => (&self.network.node, None),
            Client::Outside => (&self.network.outside, self.addresses.lan("100").parse().ok()),
            Client::Remote => (&self.network.remote, self.addresses.lan("2").parse().ok()),
        }
    }

    /// Connects as often as the expectation needs it.
    fn outcomes(&self, (from, to, via, expect, _): &Case) -> Vec<Outcome> {
        let (tries, patience) = match expect {
            Expect::Kept(names) | Expect::Masqueraded(names) | Expect::Some(names) if !names.contains(' ') => {
                (2, ANSWER)
            }
            Expect::Kept(_) | Expect::Masqueraded(_) | Expect::Some(_) => (TRIES, ANSWER),
            Expect::Sticky(_) => (8, ANSWER),
            Expect::Refused => (1, ANSWER),
            Expect::Nothing | Expect::Away => (1, SILENCE),
        };
        let (target, via) = (self.target(*to), *via);
        self.client(*from).0.run(move || (0..tries).map(|_| ask(target, via, patience)).collect())
    }

    fn failure(&self, case: &Case) -> Option<String> {
        let outcomes = self.outcomes(case);
        let own = self.client(case.0).1;
        let names: BTreeSet<&str> = outcomes
            .iter()
            .filter_map(|outcome| if let Outcome::Answer(name, _) = outcome { Some(name.as_str()) } else { None })
            .collect();
        let all_answer = outcomes.iter().all(|outcome| matches!(outcome, Outcome::Answer(..)));
        let sees_own = |outcome: &Outcome| matches!(outcome, Outcome::Answer(_, seen) if Some(*seen) == own);
        let are = |expected: &str| all_answer && names == expected.split(' ').collect();
        // A connection through userspace comes from the proxy.
        let expected = match case.3 {
            Expect::Kept(names) | Expect::Masqueraded(names) if self.mode.name == "userspace" => Expect::Some(names),
            expected => expected,
        };
        let is_met = match expected {
            Expect::Some(expected) => are(expected),
            Expect::Kept(expected) => are(expected) && outcomes.iter().all(sees_own),
            Expect::Masqueraded(expected) => are(expected) && !outcomes.iter().any(sees_own),
            Expect::Sticky(expected) => {
                all_answer && names.len() == 1 && expected.split(' ').any(|name| names.contains(name))
            }
            Expect::Refused => outcomes == [Outcome::Refused],
            Expect::Nothing => outcomes == [Outcome::Nothing],
            Expect::Away => !all_answer,
        };
        let distinct: BTreeSet<&Outcome> = outcomes.iter().collect();
        (!is_met).then(|| format!("{case:?} ({}): {distinct:?}", self.target(case.1)))
    }

    fn run(&self) -> (usize, Vec<String>) {
        let letter = match self.mode.name {
            "iptables" => 't',
            "nftables" => 'n',
            "userspace" => 'u',
            _ => 'v',
        };
        let has_sctp = testkit::network::has_sctp();
        if !has_sctp {
            eprintln!("skipped: cases of SCTP: the kernel has none");
        }
        let is_for = |(_, to, via, _, modes): &&Case| {
            // IPv6 has no node ports on loopback in any mode.
            let is_served = has_sctp || *via != Via::Sctp;
            is_served && modes.contains(letter) && (self.addresses.v4 || !matches!(to, To::Loopback(_)))
        };
        let cases: Vec<&Case> = CASES.iter().filter(is_for).collect();
        (cases.len(), cases.into_iter().filter_map(|case| self.failure(case)).collect())
    }
}

#[test]
fn connections_end_where_upstream_leads_them() {
    let required = std::env::var("MODES").unwrap_or_default();
    let mut failures = Vec::new();
    let is_asked = |mode: &&Mode| required.is_empty() || required.split(',').any(|name| name == mode.name);
    for mode in MODES.into_iter().filter(is_asked) {
        for family in [Family::V4, Family::V6] {
            let network = match Network::new() {
                Ok(network) => network,
                Err(error) => {
                    assert!(required.is_empty(), "no network namespaces: {error}");
                    return eprintln!("skipped: no network namespaces: {error}");
                }
            };
            let what = format!("{} {}", mode.name, family.address_type());
            let _running = match start(&network.node, mode, family) {
                Ok(running) => running,
                Err(error) => {
                    assert!(required.is_empty(), "{what}: {error}");
                    eprintln!("skipped: {what}: {error}");
                    continue;
                }
            };
            let suite = Suite { network: &network, addresses: Addresses::of(family), mode };
            let (count, failed) = suite.run();
            eprintln!("{what}: {count} cases, {} failed", failed.len());
            failures.extend(failed.into_iter().map(|failure| format!("{what}: {failure}")));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
