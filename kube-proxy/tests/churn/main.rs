//! Random changes of services, with proxies that are killed and rules that others flush in between: what the kernel has in the
//! end is what a fresh start writes, and connections to a service that does not change have gone on. `CHURN_SEED` names another run, `CHURN_CHANGES` lengthens it, `MODES` names the modes that
//! are run and must not be left out.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod dump;
mod probe;
mod random;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube_proxy::backend::Mode;
use kube_proxy::backend::{Backend, Environment, NodePorts, Options};
use kube_proxy::detect::LocalDetector;
use kube_proxy::mode::MODES;
use kube_proxy::plan::{Delta, Desired, Family, NodeFacts};
use kube_proxy::settings::{from_flags, parse};
use shared::flags::{FeatureGates, FlagSet};

use probe::{Disturbance, Probe};
use random::Random;
use testkit::network::Space;

/// Services whose objects change.
const SERVICES: u32 = 12;
/// Changes between two comparisons, where there are not very many.
const ROUND: u32 = 60;
/// Comparisons at most.
const ROUNDS: u32 = 100;
/// Time after which what is stale may be deleted, and a bit.
const REST: Duration = Duration::from_millis(1_100);

fn backend(mode: &'static Mode, family: Family) -> Box<dyn Backend> {
    let flags = FlagSet::of("kube-proxy", &[&format!("--proxy-mode={}", mode.name)]).expect("flags");
    let settings = parse(from_flags(&flags), &FeatureGates::default(), String::new(), "node").expect("settings");
    let v4 = family == Family::V4;
    let text = |four: &'static str, six: &'static str| if v4 { four } else { six };
    let own = text("192.0.2.1", "2001:db8:1::1").parse().expect("an address");
    let options = Options {
        detector: LocalDetector::Networks(vec![text("10.244.0.0/16", "2001:db8:244::/47").parse().expect("a network")]),
        localhost_node_ports: mode.localhost_node_ports && v4,
        node_addresses: vec![own],
        environment: Environment {
            node_ports: NodePorts::Addresses([own].into()),
            service_networks: BTreeSet::from([text("10.96.0.0/16", "2001:db8:96::/64").parse().expect("a network")]),
        },
        ..Options::new(family)
    };
    (mode.backend)(options, &settings.configuration)
}

/// A proxy for one family, with the services that it was told of.
struct Proxy {
    mode: &'static Mode,
    family: Family,
    backend: Box<dyn Backend>,
    desired: Desired,
}

impl Proxy {
    fn new(mode: &'static Mode, family: Family) -> Self {
        let mut desired = Desired::default();
        let (service, slice) = probe::objects(family);
        let node = NodeFacts::default();
        let steady = ("n", probe::NAME);
        desired.replace(steady, Some(&service), &[Arc::new(slice)], (&node, family), &mut Delta::default());
        Self { mode, family, backend: backend(mode, family), desired }
    }

    /// Changes some services.
    fn plan(&mut self, random: &mut Random) -> Delta {
        let node = NodeFacts { name: "node".to_owned(), zone: Some("z1".to_owned()) };
        let mut delta = Delta::default();
        for _ in 0..=random.below(3) {
            let name = format!("s{}", random.below(SERVICES));
            let object = random.service(&name, self.family);
            let (service, slices) = match object {
                Some((service, slice)) => (Some(service), vec![Arc::new(slice)]),
                None => (None, Vec::new()),
            };
            self.desired.replace(("n", &name), service.as_ref(), &slices, (&node, self.family), &mut delta);
        }
        delta
    }

    async fn sync(&mut self, delta: &Delta) {
        self.backend.sync(&self.desired, &delta.ports).await.expect("rules are written");
    }

    /// Another process in the place of this one, which knows nothing of what was written.
    async fn restart(&mut self) {
        self.backend = backend(self.mode, self.family);
        self.sync(&Delta::default()).await;
    }

    /// Is killed while it writes something.
    async fn die(&mut self, random: &mut Random) {
        let delta = self.plan(random);
        let time = Duration::from_micros(u64::from(random.below(8_000)));
        tokio::time::timeout(time, self.backend.sync(&self.desired, &delta.ports)).await.ok();
        self.restart().await;
    }

    /// Looks after the kernel as each sync period does.
    async fn tend(&mut self) {
        if !self.backend.tend().await {
            self.backend.forget();
            self.sync(&Delta::default()).await;
        }
    }
}

/// Compares the kernel after changes from a seed with a fresh start for the same services, round by round.
fn churn(mode: &'static Mode, family: Family, seed: u64, changes: u32) -> Result<u32, String> {
    let (churned, fresh) = (Space::new(), Space::new());
    let (churned, fresh) = (churned.map_err(|error| error.to_string())?, fresh.map_err(|error| error.to_string())?);
    for space in [&churned, &fresh] {
        space.command("ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
        space.address("eth0", if family == Family::V4 { "192.0.2.1/24" } else { "2001:db8:1::1/64" });
        ["eth0", "eth1"].into_iter().for_each(|device| space.command("ip", &["link", "set", device, "up"]));
        let kind = if family == Family::V4 { "-4" } else { "-6" };
        space.command("ip", &[kind, "route", "add", "default", "dev", "eth0"]);
    }
    let disturbance = Disturbance::default();
    let disturbed = disturbance.clone();
    let length = ROUND.max(changes.div_ceil(ROUNDS));
    let run = move |(proxy, mut random): (Option<Proxy>, Random), disturbance: Disturbance| async move {
        let mut proxy = match proxy {
            Some(proxy) => proxy,
            None => Proxy::new(mode, family),
        };
        for _ in 0..length {
            match random.below(20) {
                0 => proxy.restart().await,
                1 => proxy.die(&mut random).await,
                2 => {
                    disturbance.turn();
                    dump::flush(mode.name, family);
                    proxy.tend().await;
                    disturbance.turn();
                }
                3 => {
                    disturbance.turn();
                    dump::flush_some(mode.name, family);
                    // As each hour does: nobody is told of it.
                    proxy.backend.forget();
                    proxy.sync(&Delta::default()).await;
                    disturbance.turn();
                }
                _ => {
                    let delta = proxy.plan(&mut random);
                    proxy.sync(&delta).await;
                }
            }
        }
        tokio::time::sleep(REST).await;
        assert!(proxy.backend.tend().await, "the look at the kernel finds what is there");
        (Some(proxy), random)
    };
    let mut state = (None, Random::new(seed));
    let mut probe = None;
    for round in 0..changes.div_ceil(length) {
        let disturbance = disturbed.clone();
        let (next, dumped) = churned.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            if state.0.is_none() {
                runtime.block_on(backend(mode, family).check_support()).map_err(|error| error.to_string())?;
            }
            let next = runtime.block_on(run(state, disturbance));
            Ok::<_, String>((next, dump::kernel(mode.name, family)))
        })?;
        let desired = next.0.as_ref().map(|proxy: &Proxy| proxy.desired.clone()).unwrap_or_default();
        state = next;
        // A proxy that carries connections itself takes them with it.
        if probe.is_none() && !mode.is_historic {
            probe = Some(Probe::start(&churned, family, disturbed.clone()));
        }
        let expected = fresh.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut backend = backend(mode, family);
                backend.clean_up().await.expect("a clean start");
                backend.sync(&desired, &BTreeSet::new()).await.expect("rules are written");
            });
            dump::kernel(mode.name, family)
        });
        assert_eq!(dumped, expected, "{} {family:?}, seed {seed}, round {round}", mode.name);
    }
    let connections = probe.map_or(Ok(0), Probe::finish);
    let connections = connections.unwrap_or_else(|error| panic!("{} {family:?}, seed {seed}: {error}", mode.name));
    Ok(connections)
}

#[test]
fn rules_after_changes_and_faults_are_those_of_a_fresh_start() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("CHURN_SEED").unwrap_or(1);
    let changes = number("CHURN_CHANGES").and_then(|changes| u32::try_from(changes).ok()).unwrap_or(180);
    let required = std::env::var("MODES").unwrap_or_default();
    let is_asked = |mode: &&Mode| required.is_empty() || required.split(',').any(|name| name == mode.name);
    for mode in MODES.into_iter().filter(is_asked) {
        for family in [Family::V4, Family::V6] {
            let what = format!("{} {}", mode.name, family.address_type());
            match churn(mode, family, seed, changes) {
                Ok(connections) => {
                    eprintln!("{what}: {changes} changes from seed {seed}, {connections} connections beside them");
                }
                Err(error) => {
                    assert!(required.is_empty(), "{what}: {error}");
                    eprintln!("skipped: {what}: {error}");
                }
            }
        }
    }
}
