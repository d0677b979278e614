//! A pod's resolver settings and hosts file. Pure.
//! Answers for upstream's `pkg/kubelet/network/dns` (`GetPodDNS`) and `managedHostsFileContent`.

use crate::cri::v1::DnsConfig;
use crate::settings::Settings;
use k8s_openapi::api::core::v1::{HostAlias, Pod};

/// Number of name servers that validation lets a pod have, and that the C library reads.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;
/// The longest name that DNS has; the C library ends the program over a longer one.
const MAX_SEARCH: usize = 253;

/// The host's resolver file, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    /// `nameserver` lines.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// The last `options` line.
    pub options: Vec<String>,
}

impl Resolver {
    /// Reads the format of resolv.conf(5).
    pub fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => resolver.servers.extend(words.next().map(str::to_owned)),
                Some("search") => resolver.searches = words.map(without_root).collect(),
                Some("options") => resolver.options = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        resolver
    }
}

/// One name with and without its last dot counts once; the root by itself stays.
fn without_root(search: &str) -> String {
    search.strip_suffix('.').filter(|name| !name.is_empty()).unwrap_or(search).to_owned()
}

/// Reports whether the pod wants cluster DNS.
pub fn wants_cluster_dns(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    match spec.dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "ClusterFirst" => !spec.host_network.unwrap_or(false),
        "ClusterFirstWithHostNet" => true,
        _ => false,
    }
}

/// The resolver settings of a pod.
pub fn dns_config(pod: &Pod, settings: &Settings, host: &Resolver) -> DnsConfig {
    within_limits(composed(pod, settings, host)).0
}

/// Returns warnings about a pod's resolver settings: reasons and texts.
pub fn warnings(pod: &Pod, settings: &Settings, host: &Resolver) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    if wants_cluster_dns(pod) && settings.cluster_dns.is_empty() {
        all.push(("MissingClusterDNS", format!("pod: \"{}\". {MISSING}", crate::pods::describe(pod))));
    }
    let forming = within_limits(composed(pod, settings, host)).1;
    all.extend(forming.into_iter().map(|text| ("DNSConfigForming", text)));
    all
}

/// Said of the node as well.
pub const MISSING: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" \
                           policy. Falling back to \"Default\" policy.";

/// Composes the settings of the policy, the node and the pod.
fn composed(pod: &Pod, settings: &Settings, host: &Resolver) -> DnsConfig {
    let namespace = crate::pods::namespace(pod);
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let mut config =
        DnsConfig { servers: host.servers.clone(), searches: host.searches.clone(), options: host.options.clone() };
    if wants_cluster_dns(pod) && !settings.cluster_dns.is_empty() {
        let domain = &settings.cluster_domain;
        config.servers = settings.cluster_dns.clone();
        if !domain.is_empty() {
            config.searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
            for search in &host.searches {
                if !config.searches.contains(search) {
                    config.searches.push(search.clone());
                }
            }
        }
        config.options = vec!["ndots:5".to_owned()];
    } else if policy == "None" {
        config = DnsConfig::default();
    } else if settings.resolv_conf.is_empty() {
        // Without a file there are no look-ups; an empty list would mean the runtime's own.
        config.servers = vec!["127.0.0.1".to_owned()];
        config.searches = vec![".".to_owned()];
    }
    if let Some(extra) = spec.and_then(|s| s.dns_config.as_ref()) {
        merge(&mut config.servers, extra.nameservers.iter().flatten());
        merge(&mut config.searches, extra.searches.iter().flatten());
        for option in extra.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            config.options.retain(|o| o.split(':').next() != Some(name.as_str()));
            config.options.push(match &option.value {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name,
            });
        }
    }
    config
}

/// Leaves out what is too much, from the end, and says so.
fn within_limits(mut config: DnsConfig) -> (DnsConfig, Vec<String>) {
    let mut said = Vec::new();
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        said.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            config.servers.join(" ")
        ));
    }
    let asked = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|search| search.len() <= MAX_SEARCH);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        config.searches.pop();
    }
    if config.searches.len() < asked {
        said.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            config.searches.join(" ")
        ));
    }
    (config, said)
}

fn merge<'a>(into: &mut Vec<String>, from: impl Iterator<Item = &'a String>) {
    for item in from {
        if !into.contains(item) {
            into.push(item.clone());
        }
    }
}

/// The hostname and domain of a pod: `spec.hostname` or its name, at most 63 characters.
pub fn hostname(pod: &Pod, settings: &Settings) -> (String, String) {
    let Some(spec) = &pod.spec else { return Default::default() };
    if let Some(name) = spec.hostname_override.as_deref().filter(|n| !n.is_empty()) {
        return (name.to_owned(), String::new());
    }
    let mut name = spec.hostname.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| crate::pods::name(pod).to_owned());
    name.truncate(63);
    let name = name.trim_end_matches(['-', '.']).to_owned();
    match spec.subdomain.as_deref().filter(|s| !s.is_empty()) {
        Some(sub) => {
            let namespace = crate::pods::namespace(pod);
            (name, format!("{sub}.{namespace}.svc.{}", settings.cluster_domain))
        }
        None => (name, String::new()),
    }
}

/// The content of a pod's `/etc/hosts`.
pub fn hosts_file(ips: &[String], name: &str, domain: &str, aliases: &[HostAlias]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    for ip in ips {
        if domain.is_empty() {
            text.push_str(&format!("{ip}\t{name}\n"));
        } else {
            text.push_str(&format!("{ip}\t{name}.{domain}\t{name}\n"));
        }
    }
    text.push_str(&alias_lines(aliases));
    text
}

/// The node's hosts file as a pod on the host network sees it.
pub fn node_hosts_file(node: &str, aliases: &[HostAlias]) -> String {
    format!("# Kubernetes-managed hosts file (host network).\n{node}{}", alias_lines(aliases))
}

fn alias_lines(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::container::tests::settings;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec})).expect("pod")
    }

    #[test]
    fn names_of_the_node_lose_their_last_dot() {
        let host = Resolver::parse("search a.example. b.example .\n");
        assert_eq!(host.searches, ["a.example", "b.example", "."]);
    }

    #[test]
    fn without_a_resolver_file_nothing_is_looked_up() {
        let settings = Settings { resolv_conf: String::new(), ..settings() };
        let config = dns_config(&pod(json!({"dnsPolicy": "Default"})), &settings, &Resolver::default());
        assert_eq!((config.servers, config.searches), (vec!["127.0.0.1".to_owned()], vec![".".to_owned()]));
    }

    #[test]
    fn what_is_too_much_is_left_out_and_said() {
        let none = |servers: &[&str], searches: &[String]| {
            let config = json!({"nameservers": servers, "searches": searches});
            let pod = pod(json!({"dnsPolicy": "None", "dnsConfig": config}));
            let config = dns_config(&pod, &settings(), &Resolver::default());
            (config.servers.len(), config.searches.len(), warnings(&pod, &settings(), &Resolver::default()))
        };
        assert_eq!(none(&["1.1.1.1"], &["a".into()]), (1, 1, vec![]));
        let omitted = "some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 2.2.2.2 3.3.3.3";
        let said = vec![("DNSConfigForming", format!("Nameserver limits were exceeded, {omitted}"))];
        assert_eq!(none(&["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"], &[]), (3, 0, said));
        let omitted = "some search paths have been omitted, the applied search line is: a b";
        let said = vec![("DNSConfigForming", format!("Search Line limits were exceeded, {omitted}"))];
        assert_eq!(none(&[], &["a".into(), "x".repeat(254), "b".into()]), (0, 2, said));
        let many: Vec<String> = (0..40).map(|number| format!("s{number}")).collect();
        assert_eq!((none(&[], &many).1, none(&[], &many).2.len()), (32, 1));
        let long: Vec<String> = (0..20).map(|number| format!("{number:0>200}")).collect();
        assert_eq!((none(&[], &long).1, none(&[], &long).2.len()), (10, 1), "2,048 characters with their blanks");
    }

    #[test]
    fn a_node_without_cluster_dns_says_so() {
        let settings = Settings { cluster_dns: Vec::new(), ..settings() };
        let said = warnings(&pod(json!({})), &settings, &Resolver::default());
        assert_eq!(said.iter().map(|(reason, _)| *reason).collect::<Vec<_>>(), ["MissingClusterDNS"]);
        assert_eq!(warnings(&pod(json!({"dnsPolicy": "Default"})), &settings, &Resolver::default()), []);
    }

    #[test]
    fn policies() {
        let host = Resolver::parse("# c\nnameserver 1.1.1.1\nsearch lan .\noptions edns0\n");
        let settings = Settings { resolv_conf: "/etc/resolv.conf".into(), ..settings() };
        for (spec, servers, searches, options) in [
            (
                json!({}),
                vec!["10.96.0.10"],
                "ns.svc.cluster.local svc.cluster.local cluster.local lan .",
                vec!["ndots:5"],
            ),
            (json!({"dnsPolicy": "Default"}), vec!["1.1.1.1"], "lan .", vec!["edns0"]),
            (json!({"hostNetwork": true, "dnsPolicy": "ClusterFirst"}), vec!["1.1.1.1"], "lan .", vec!["edns0"]),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"], "options": [{"name": "ndots", "value": "2"}]}}),
                vec!["9.9.9.9"],
                "",
                vec!["ndots:2"],
            ),
            (
                json!({"dnsConfig": {"searches": ["x"], "options": [{"name": "ndots", "value": "2"}]}}),
                vec!["10.96.0.10"],
                "ns.svc.cluster.local svc.cluster.local cluster.local lan . x",
                vec!["ndots:2"],
            ),
        ] {
            let config = dns_config(&pod(spec), &settings, &host);
            assert_eq!(
                (config.servers, config.searches.join(" "), config.options),
                (
                    servers.iter().map(|s| s.to_string()).collect::<Vec<_>>(),
                    searches.to_owned(),
                    options.iter().map(|s| s.to_string()).collect::<Vec<_>>()
                )
            );
        }
    }
}
