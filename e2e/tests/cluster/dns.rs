//! Cluster DNS as pods see it: names of services and pods, and what each policy writes into `/etc/resolv.conf`.

use e2e::testing::{Cluster, text};

const NAMESPACE: &str = "dns";
const SERVICE_ADDRESS: &str = e2e::layout::DNS_SERVICE;

const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: dns}
---
apiVersion: v1
kind: Service
metadata: {name: regular, namespace: dns}
spec: {selector: {app: asked}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: dns}
spec: {clusterIP: None, selector: {app: asked}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: dns}
spec: {type: ExternalName, externalName: foo.example.com}
"#;

/// The pods: name, and what their specifications have besides a container.
const PODS: [(&str, &str); 5] = [
    ("named", "hostname: querier, subdomain: headless"),
    (
        "configured",
        "hostAliases: [{ip: 123.45.67.89, hostnames: [foo, bar]}], \
         dnsConfig: {searches: [more.example], options: [{name: ndots, value: '2'}, {name: edns0}]}",
    ),
    ("on-the-host", "hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet"),
    ("as-the-node", "dnsPolicy: Default"),
    (
        "by-hand",
        "dnsPolicy: None, dnsConfig: {nameservers: [1.1.1.1], searches: [resolv.conf.local], \
         options: [{name: ndots, value: '2'}]}",
    ),
];

fn pod(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{app: asked}}}}\n\
         spec: {{terminationGracePeriodSeconds: 0, {more}, containers: [{{name: main, image: 'busybox:1.36', \
         command: [sleep, '10000']}}]}}\n---\n"
    )
}

fn in_pod(cluster: &Cluster, pod: &str, command: &[&str]) -> Result<String, String> {
    let said = cluster.try_kubectl(&[&["exec", "-n", NAMESPACE, pod, "--"], command].concat(), None);
    if said.ok { Ok(said.out) } else { Err(said.out + &said.err) }
}

/// The data of the records of an answer, sorted: what stands behind the server's own lines.
fn records(answer: &str) -> Vec<String> {
    let (_, answer) = answer.split_once("\n\n").unwrap_or_default();
    let lines =
        answer.lines().filter_map(|line| line.strip_prefix("Address: ").or(line.split_once(" = ").map(|p| p.1)));
    let mut found: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    found.sort();
    found.dedup();
    found
}

/// Asks until the records of this type under this name are these; names change as fast as the server hears of it.
fn resolves(cluster: &Cluster, kind: &str, name: &str, expected: &[String]) {
    let mut expected = expected.to_vec();
    expected.sort();
    // What a server has said it says again for as long as records live: 30 seconds, or 5 where there was no such name.
    cluster.until(&format!("{kind} of {name} is {expected:?}"), 60, || {
        // Of an address the small nslookup asks for the name by itself, and only then backwards.
        let kind = format!("-type={kind}");
        let command: &[&str] = if kind == "-type=ptr" { &["nslookup", name] } else { &["nslookup", &kind, name] };
        let said = in_pod(cluster, "named", command)?;
        if records(&said) == expected { Ok(()) } else { Err(said) }
    });
}

/// The address that the C library finds for a name by way of the search list, which ends at the first that is there.
/// Nobody need answer at the address.
fn finds(cluster: &Cluster, pod: &str, name: &str) -> String {
    let said = in_pod(cluster, pod, &["ping", "-c", "1", "-W", "1", name]).unwrap_or_else(|error| error);
    let address = said.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    address.map_or(said.clone(), |(address, _)| address.to_owned())
}

fn resolver_file(cluster: &Cluster, pod: &str) -> String {
    in_pod(cluster, pod, &["cat", "/etc/resolv.conf"]).unwrap_or_else(|error| panic!("{pod}: {error}"))
}

/// Everything of it, in a namespace that is gone afterwards.
pub fn answers(cluster: &Cluster) {
    let pods: String = PODS.iter().map(|(name, more)| pod(name, more)).collect();
    cluster.feed("create -f -", &format!("{OBJECTS}---\n{pods}"));
    cluster.kubectl("wait --for=condition=Ready pods --all -n dns --timeout=120s");
    policies(cluster);
    hosts(cluster);
    services(cluster);
    pods_by_name(cluster);
    external_name_changes(cluster);
    cluster.kubectl("delete namespace dns --wait=false");
}

fn policies(cluster: &Cluster) {
    let own = std::fs::read_to_string(e2e::dns::resolver_file()).expect("the resolver file");
    let node_search = own.lines().rev().find_map(|line| line.strip_prefix("search ")).unwrap_or_default();
    let of_cluster = |more: &str, options: &str| {
        let searches = format!("dns.svc.cluster.local svc.cluster.local cluster.local {node_search} {more}");
        let searches: Vec<&str> = searches.split_whitespace().collect();
        format!("search {}\nnameserver {SERVICE_ADDRESS}\noptions {options}\n", searches.join(" "))
    };
    assert_eq!(resolver_file(cluster, "named"), of_cluster("", "ndots:5"));
    assert_eq!(resolver_file(cluster, "on-the-host"), of_cluster("", "ndots:5"));
    assert_eq!(resolver_file(cluster, "configured"), of_cluster("more.example", "ndots:2 edns0"));
    let by_hand = "search resolv.conf.local\nnameserver 1.1.1.1\noptions ndots:2\n";
    assert_eq!(resolver_file(cluster, "by-hand"), by_hand);
    let servers = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix("nameserver ")).map(|s| s.trim().to_owned()).collect()
    };
    assert_eq!(servers(&resolver_file(cluster, "as-the-node")), servers(&own));
}

fn hosts(cluster: &Cluster) {
    let file = |pod: &str| in_pod(cluster, pod, &["cat", "/etc/hosts"]).unwrap_or_default();
    let own = format!("{}\tquerier.headless.dns.svc.cluster.local\tquerier", address(cluster, "named"));
    assert!(file("named").contains(&own), "{}", file("named"));
    let aliases = "# Entries added by HostAliases.\n123.45.67.89\tfoo\tbar\n";
    assert!(file("configured").contains(aliases), "{}", file("configured"));
    let name = in_pod(cluster, "named", &["hostname", "-f"]);
    assert_eq!(name.as_deref().map(str::trim), Ok("querier.headless.dns.svc.cluster.local"));
}

fn address(cluster: &Cluster, pod: &str) -> String {
    text(&cluster.json(&format!("get pod {pod} -n dns")), "/status/podIP").to_owned()
}

fn cluster_ip(cluster: &Cluster, service: &str) -> String {
    text(&cluster.json(&format!("get service {service} -n dns")), "/spec/clusterIP").to_owned()
}

/// A service by every name that it has, backwards, and by the names of its ports.
fn services(cluster: &Cluster) {
    let api = [cluster.layout().kubernetes_service()];
    resolves(cluster, "a", "kubernetes.default.svc.cluster.local", &api);
    for name in ["kubernetes.default", "kubernetes.default.svc"] {
        assert_eq!(finds(cluster, "named", name), api[0], "{name}");
    }
    let own = cluster_ip(cluster, "regular");
    resolves(cluster, "a", "regular.dns.svc.cluster.local", std::slice::from_ref(&own));
    for name in ["regular", "regular.dns", "regular.dns.svc"] {
        assert_eq!(finds(cluster, "named", name), own, "{name}");
    }
    resolves(cluster, "ptr", &own, &["regular.dns.svc.cluster.local".into()]);
    let port = ["0 100 80 regular.dns.svc.cluster.local".to_owned()];
    resolves(cluster, "srv", "_http._tcp.regular.dns.svc.cluster.local", &port);
    let all: Vec<String> = PODS.iter().map(|(name, _)| address(cluster, name)).collect();
    resolves(cluster, "a", "headless.dns.svc.cluster.local", &all);
    let found = finds(cluster, "configured", "headless");
    assert!(all.contains(&found), "{found}");
    assert_eq!(finds(cluster, "on-the-host", "regular"), own, "from the host's network");
}

/// Pods of a headless service by their host names, others by their addresses.
fn pods_by_name(cluster: &Cluster) {
    let named = address(cluster, "named");
    resolves(cluster, "a", "querier.headless.dns.svc.cluster.local", std::slice::from_ref(&named));
    let dashed = format!("{}.dns.pod.cluster.local", named.replace('.', "-"));
    resolves(cluster, "a", &dashed, std::slice::from_ref(&named));
    // Backwards by each of its services: where it has no host name, its address is one.
    let by_address = format!("{}.regular.dns.svc.cluster.local", named.replace('.', "-"));
    resolves(cluster, "ptr", &named, &["querier.headless.dns.svc.cluster.local".into(), by_address]);
    let targets = PODS.iter().map(|(name, _)| match *name {
        "named" => "querier".to_owned(),
        other => address(cluster, other).replace('.', "-"),
    });
    // The port's own number: without a cluster address nobody translates it.
    let ports: Vec<String> = targets.map(|t| format!("0 20 8080 {t}.headless.dns.svc.cluster.local")).collect();
    resolves(cluster, "srv", "_http._tcp.headless.dns.svc.cluster.local", &ports);
}

/// A service outside is an alias; another name, and a cluster address instead, are what is answered from then on.
fn external_name_changes(cluster: &Cluster) {
    const NAME: &str = "outside.dns.svc.cluster.local";
    resolves(cluster, "cname", NAME, &["foo.example.com".into()]);
    let patch = |patch: &str| cluster.kubectl_args(&["patch", "service", "outside", "-n", "dns", "-p", patch]);
    patch(r#"{"spec":{"externalName":"bar.example.com"}}"#);
    resolves(cluster, "cname", NAME, &["bar.example.com".into()]);
    patch(r#"{"spec":{"type":"ClusterIP","externalName":null,"ports":[{"name":"http","port":80}]}}"#);
    resolves(cluster, "a", NAME, &[cluster_ip(cluster, "outside")]);
}
