use super::*;
use crate::backend::NodePorts;
use crate::detect::LocalDetector;
use crate::plan::{Endpoint, Family, Protocol, ServicePort, TrafficPolicy};
use rule::Rule;

fn options() -> Options {
    Options {
        detector: LocalDetector::Networks(vec!["10.244.0.0/16".parse().expect("network")]),
        node_addresses: vec!["192.0.2.7".parse().expect("ip")],
        ..Options::new(Family::V4)
    }
}

fn name() -> PortName {
    PortName { namespace: "shop".into(), service: "web".into(), port: "http".into(), protocol: Protocol::Tcp }
}

fn port(endpoints: &[&str]) -> ServicePort {
    let endpoint = |address: &&str| Endpoint { address: address.parse().expect("ip"), port: 8080, local: true };
    let plain = ServicePort::plain("10.0.0.5", 80, endpoints.iter().map(endpoint).collect());
    ServicePort { node_port: Some(30001), affinity: Some(60), ..plain }
}

fn verdict(part: &Part, map: &str, key: &str) -> Option<String> {
    let mut found = part.elements.iter().filter(|(name, k, _)| *name == map && k.to_string() == key);
    found.next().map(|(_, _, verdict)| verdict.to_string())
}

fn text(rules: &[Rule]) -> Vec<String> {
    rules.iter().map(|rule| FamilyText(Family::V4, rule).to_string()).collect()
}

#[test]
fn a_service_is_one_map_entry_and_its_endpoints_a_choice() {
    let part = part(&name(), &port(&["10.244.0.1", "10.244.0.2"]), &options());
    let target = verdict(&part, "service-ips", "10.0.0.5 . tcp . 80").expect("an entry");
    let chain = target.strip_prefix("goto ").expect("a goto");
    let (_, rules) = part.chains.iter().find(|(name, _)| name == chain).expect("its chain");
    let rules = text(rules);
    assert_eq!(rules[0], "ip daddr 10.0.0.5 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade");
    assert!(rules.last().expect("a rule").starts_with("numgen random mod 2 vmap { 0 : goto endpoint-"));
    assert!(verdict(&part, "service-nodeports", "tcp . 30001").is_some());
    assert!(!part.elements.iter().any(|(map, ..)| *map == "no-endpoint-services"));
}

#[test]
fn without_endpoints_a_service_refuses() {
    let part = part(&name(), &port(&[]), &options());
    assert_eq!(verdict(&part, "service-ips", "10.0.0.5 . tcp . 80"), None);
    let refusal = Some("goto reject-chain".to_owned());
    assert_eq!(verdict(&part, "no-endpoint-services", "10.0.0.5 . tcp . 80"), refusal);
    assert_eq!(verdict(&part, "no-endpoint-nodeports", "tcp . 30001"), refusal);
}

#[test]
fn a_node_within_the_source_ranges_reaches_the_balancer_from_its_own_address() {
    let firewall = |range: &str| {
        let port = ServicePort {
            load_balancer_ips: vec!["198.51.100.1".parse().expect("ip")],
            source_ranges: vec![range.parse().expect("network")],
            ..port(&["10.244.0.1"])
        };
        let part = part(&name(), &port, &options());
        text(&part.chains.iter().find(|(name, _)| name.starts_with("firewall-")).expect("a chain").1)
    };
    assert_eq!(firewall("192.0.2.0/24"), ["ip saddr != { 192.0.2.0/24, 198.51.100.1 } drop"]);
    assert_eq!(firewall("203.0.113.0/24"), ["ip saddr != 203.0.113.0/24 drop"]);
}

#[test]
fn node_ports_answer_where_they_should() {
    let services = |node_ports| {
        let environment = Environment { node_ports, ..Environment::default() };
        text(&fixed_chains(&Options { environment, ..options() })["services"])[1].clone()
    };
    let all = "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports";
    assert_eq!(services(NodePorts::All), all);
    let some = NodePorts::Addresses(["192.0.2.7", "127.0.0.1"].map(|ip| ip.parse().expect("ip")).into());
    assert_eq!(services(some.clone()), "ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports");
    assert_eq!(
        node_port_ips(&Options {
            environment: Environment { node_ports: some, ..Environment::default() },
            ..options()
        }),
        ["192.0.2.7".parse::<std::net::IpAddr>().expect("ip")]
    );
}

#[test]
fn names_are_upstreams() {
    let name =
        PortName { namespace: "ns1".into(), service: "svc1".into(), port: "p80".into(), protocol: Protocol::Tcp };
    let chains = |endpoint: &str| -> Vec<String> {
        let endpoint = Endpoint { address: endpoint.parse().expect("ip"), port: 80, local: false };
        let part = part(&name, &ServicePort::plain("172.30.0.41", 80, vec![endpoint]), &options());
        part.chains.into_iter().map(|(chain, _)| chain).collect()
    };
    let expected = ["endpoint-5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80", "service-ULMVA6XW-ns1/svc1/tcp/p80"];
    assert_eq!(chains("10.180.0.1"), expected);
    assert!(chains("fd00::1")[0].ends_with("-ns1/svc1/tcp/p80__fd00..1/80"));
    let long = PortName { namespace: "n".repeat(63), service: "s".repeat(63), port: "p".repeat(63), ..name.clone() };
    let longest = render::chain("affinity", &long, "__ffff.ffff.ffff.ffff.ffff.ffff.ffff.ffff/65535");
    assert!(longest.len() <= 256 && longest.ends_with("..."), "{longest}");
}

/// A service of each kind that the renderer knows, and a table with all that it can have.
fn everything(family: Family) -> Transaction {
    let v4 = family == Family::V4;
    let text = |four: &'static str, six: &'static str| if v4 { four } else { six };
    let ip = |four, six| text(four, six).parse().expect("an address");
    let network = |four, six| text(four, six).parse().expect("a network");
    let environment = Environment {
        node_ports: NodePorts::Addresses([ip("192.0.2.7", "2001:db8:1::7")].into()),
        service_networks: [network("10.96.0.0/12", "2001:db8:96::/108")].into(),
    };
    let options = Options {
        family,
        detector: LocalDetector::Networks(vec![network("10.244.0.0/17", "2001:db8:244::/49")]),
        environment,
        node_addresses: vec![ip("192.0.2.7", "2001:db8:1::7")],
        ..options()
    };
    let others = [
        Options { masquerade_all: true, environment: Environment::default(), ..options.clone() },
        Options { detector: LocalDetector::Bridge("cbr0".to_owned()), ..options.clone() },
        Options { detector: LocalDetector::Prefix("veth".to_owned()), ..options.clone() },
    ];
    let endpoint = Endpoint { address: ip("10.244.0.1", "2001:db8:244::1"), port: 8080, local: true };
    let mut transaction = Transaction::new(family);
    transaction.table();
    let mut elements = Transaction::new(family);
    for (number, (options, external)) in [&options, &others[0], &others[1], &others[2]]
        .into_iter()
        .zip([TrafficPolicy::Local, TrafficPolicy::Cluster, TrafficPolicy::Local, TrafficPolicy::Cluster])
        .enumerate()
    {
        let port = ServicePort {
            node_port: Some(30001),
            load_balancer_ips: vec![ip("198.51.100.1", "2001:db8:51::1")],
            source_ranges: vec![
                network("203.0.113.0/24", "2001:db8:113::/64"),
                network("192.0.2.0/25", "2001:db8:1::/65"),
            ],
            affinity: Some(60),
            external,
            local_endpoints: vec![endpoint],
            ..ServicePort::plain(text("10.96.0.5", "2001:db8:96::5"), 80, vec![endpoint])
        };
        let name = PortName { port: format!("p{number}"), ..name() };
        let part = part(&name, &port, options);
        part.affinity.iter().for_each(|(set, seconds)| transaction.affinity_set(set, *seconds));
        part.chains.iter().for_each(|(chain, rules)| transaction.chain(chain, rules));
        for (chain, rules) in fixed_chains(options) {
            transaction.chain(chain, &rules);
        }
        // One element in each map: the order of several is the kernel's.
        if number == 0 {
            elements.flush_set(CLUSTER_IPS);
            elements.add_address(CLUSTER_IPS, port.cluster_ip);
            let mut seen = BTreeSet::new();
            for (map, key, verdict) in part.elements.into_iter().filter(|(map, ..)| seen.insert(*map)) {
                elements.add_element(map, key, verdict);
            }
        }
    }
    transaction.base_chains(|_| false);
    transaction.append(elements);
    transaction
}

fn nft(arguments: &[&str], input: &str) -> Option<String> {
    use std::io::Write as _;
    let pipe = std::process::Stdio::piped;
    let mut child = std::process::Command::new("nft").args(arguments).stdin(pipe()).stdout(pipe()).spawn().ok()?;
    child.stdin.take()?.write_all(input.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    assert!(output.status.success(), "nft refuses:\n{input}");
    String::from_utf8(output.stdout).ok()
}

/// The kernel's table after a transaction that came as text through the tool, and after the same one as messages.
fn both_ways(family: Family) -> Option<(String, String)> {
    let transaction = everything(family);
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
        let listed = || nft(&["list", "table", rule::header(family), TABLE], "");
        nft(&["-f", "-"], &transaction.to_string())?;
        let by_text = listed()?;
        let commit = |transaction: &Transaction| {
            let batch = message::batch(transaction);
            let outcome = Batches::open().expect("a connection").transact(&batch.bytes, batch.last);
            outcome.map_err(|refusal| explain(refusal, transaction)).expect("the kernel takes it");
        };
        commit(&Transaction::removal(family));
        commit(&transaction);
        Some((by_text, listed()?))
    })
    .join()
    .expect("the thread ends")
}

#[test]
fn messages_say_what_the_text_says() {
    for family in [Family::V4, Family::V6] {
        match both_ways(family) {
            Some((by_text, by_message)) => {
                let differs = by_text.lines().zip(by_message.lines()).find(|(text, message)| text != message);
                assert_eq!(differs, None, "{family:?}");
                assert_eq!(by_message.len(), by_text.len(), "{family:?}");
            }
            None => eprintln!("skipped: no network namespace of one's own, or no nft"),
        }
    }
}

#[test]
fn a_refusal_names_the_step() {
    let refused = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
        let mut transaction = Transaction::new(Family::V4);
        transaction.table();
        transaction.delete_chain("nowhere");
        transaction.chain("later", &[]);
        let batch = message::batch(&transaction);
        let refusal = Batches::open().ok()?.transact(&batch.bytes, batch.last).expect_err("there is no such chain");
        Some((explain(refusal, &transaction).to_string(), table::is_there(Family::V4, TABLE).expect("an answer")))
    });
    match refused.join().expect("the thread ends") {
        Some((error, is_there)) => {
            assert!(error.starts_with("delete chain ip kube-proxy nowhere: No such file"), "{error}");
            assert!(!is_there, "nothing of it is done");
        }
        None => eprintln!("skipped: no network namespace of one's own"),
    }
}

#[test]
fn networks_are_intervals_without_overlaps() {
    let cases: [(&[&str], &[&str]); 5] = [
        (&["10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8"], &["!0.0.0.0", "10.0.0.0", "!12.0.0.0"]),
        (&["0.0.0.0/0"], &["0.0.0.0"]),
        (&["255.255.255.0/24", "0.0.0.0/32"], &["0.0.0.0", "!0.0.0.1", "255.255.255.0"]),
        (&["192.0.2.9/24"], &["!0.0.0.0", "192.0.2.0", "!192.0.3.0"]),
        (&["fd00::/8"], &[]),
    ];
    for (networks, expected) in cases {
        let networks: Vec<_> = networks.iter().map(|network| network.parse().expect("a network")).collect();
        let found = message::bounds(Family::V4, &networks);
        let found: Vec<String> = found.iter().map(|(at, end)| format!("{}{at}", if *end { "!" } else { "" })).collect();
        assert_eq!(found, expected, "{networks:?}");
    }
}

#[test]
fn only_a_table_of_other_types_is_made_anew() {
    for (errno, anew) in [
        (libc::EEXIST, true),
        (libc::EINVAL, true),
        (libc::EOPNOTSUPP, true),
        (libc::ENOBUFS, false),
        (libc::ENOMEM, false),
        (libc::ETIMEDOUT, false),
        (libc::EINTR, false),
    ] {
        let error = io::Error::from_raw_os_error(errno);
        let told = io::Error::new(error.kind(), "add chain ip kube-proxy services: refused");
        assert_eq!(is_mismatch(&refused(told)), anew, "errno {errno}");
    }
}
