//! The sets of addresses and ports that the mode's rules look things up in, written through `ipset restore`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::backend::{SyncError, feed, output};
use crate::plan::Family;

/// Sets by their place in [`SETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Set {
    LoopBack,
    ClusterIp,
    ExternalIp,
    ExternalIpLocal,
    LoadBalancer,
    LoadBalancerLocal,
    LoadBalancerFirewall,
    LoadBalancerSourceIp,
    LoadBalancerSourceCidr,
    NodePortTcp,
    NodePortLocalTcp,
    NodePortUdp,
    NodePortLocalUdp,
    NodePortSctp,
    NodePortLocalSctp,
    HealthCheckNodePort,
    IpvsIps,
}

/// All sets with upstream's names, without the prefix, and their types.
pub(super) const SETS: [(Set, &str, &str); 17] = [
    (Set::LoopBack, "LOOP-BACK", "hash:ip,port,ip"),
    (Set::ClusterIp, "CLUSTER-IP", "hash:ip,port"),
    (Set::ExternalIp, "EXTERNAL-IP", "hash:ip,port"),
    (Set::ExternalIpLocal, "EXTERNAL-IP-LOCAL", "hash:ip,port"),
    (Set::LoadBalancer, "LOAD-BALANCER", "hash:ip,port"),
    (Set::LoadBalancerLocal, "LOAD-BALANCER-LOCAL", "hash:ip,port"),
    (Set::LoadBalancerFirewall, "LOAD-BALANCER-FW", "hash:ip,port"),
    (Set::LoadBalancerSourceIp, "LOAD-BALANCER-SOURCE-IP", "hash:ip,port,ip"),
    (Set::LoadBalancerSourceCidr, "LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net"),
    (Set::NodePortTcp, "NODE-PORT-TCP", "bitmap:port"),
    (Set::NodePortLocalTcp, "NODE-PORT-LOCAL-TCP", "bitmap:port"),
    (Set::NodePortUdp, "NODE-PORT-UDP", "bitmap:port"),
    (Set::NodePortLocalUdp, "NODE-PORT-LOCAL-UDP", "bitmap:port"),
    (Set::NodePortSctp, "NODE-PORT-SCTP-HASH", "hash:ip,port"),
    (Set::NodePortLocalSctp, "NODE-PORT-LOCAL-SCTP-HASH", "hash:ip,port"),
    (Set::HealthCheckNodePort, "HEALTH-CHECK-NODE-PORT", "bitmap:port"),
    (Set::IpvsIps, "IPVS-IPS", "hash:ip"),
];

/// Longest name of a set, without its end.
const NAME_LENGTH: usize = 31;
/// Set that another one is exchanged with.
const NEXT: &str = "KUBE-NEXT";

/// Members of all sets, each with the number of ports that ask for it.
#[derive(Debug, Default)]
pub(super) struct SetMembers(BTreeMap<(Set, String), usize>);

impl SetMembers {
    /// Counts a member more; true for a new one.
    pub(super) fn add(&mut self, set: Set, member: String) -> bool {
        let count = self.0.entry((set, member)).or_default();
        *count += 1;
        *count == 1
    }

    /// Counts a member less; true when nobody asks for it any more.
    pub(super) fn remove(&mut self, set: Set, member: String) -> bool {
        let key = (set, member);
        let Some(count) = self.0.get_mut(&key) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.0.remove(&key);
        }
        is_last
    }

    /// The members of a set.
    pub(super) fn of(&self, set: Set) -> impl Iterator<Item = &str> {
        let first = (set, String::new());
        self.0.range(first..).take_while(move |((of, _), _)| *of == set).map(|((_, member), _)| member.as_str())
    }

    /// Sets that have members.
    pub(super) fn filled(&self) -> BTreeSet<Set> {
        SETS.iter().map(|(set, ..)| *set).filter(|set| self.of(*set).next().is_some()).collect()
    }
}

/// The name of a set of a family.
pub(super) fn name(family: Family, set: Set) -> String {
    let (_, plain, _) = SETS[set as usize];
    let mut name = match family {
        Family::V4 => format!("KUBE-{plain}"),
        Family::V6 => format!("KUBE-6-{plain}"),
    };
    name.truncate(NAME_LENGTH);
    name
}

/// The tool's text that makes a set of a name.
fn create(family: Family, set: Set, name: &str) -> String {
    let (_, _, kind) = SETS[set as usize];
    match kind {
        "bitmap:port" => format!("create {name} {kind} range 0-65535"),
        _ => {
            let family = if family == Family::V4 { "inet" } else { "inet6" };
            format!("create {name} {kind} family {family} hashsize 1024 maxelem 65536")
        }
    }
}

/// The text that gives all sets these members at once, whatever they held.
pub(super) fn replacement(family: Family, members: &SetMembers) -> String {
    let mut text = String::new();
    for (set, ..) in SETS {
        let name = name(family, set);
        writeln!(text, "{}", create(family, set, &name)).ok();
        writeln!(text, "{}", create(family, set, NEXT)).ok();
        for member in members.of(set) {
            writeln!(text, "add {NEXT} {member}").ok();
        }
        writeln!(text, "swap {NEXT} {name}\ndestroy {NEXT}").ok();
    }
    text
}

/// The text of single changes: set, member, whether it is added.
pub(super) fn changes(family: Family, changes: &[(Set, String, bool)]) -> String {
    let line = |(set, member, is_added): &(Set, String, bool)| {
        format!("{} {} {member}\n", if *is_added { "add" } else { "del" }, name(family, *set))
    };
    changes.iter().map(line).collect()
}

/// Hands a text to the tool.
pub(super) async fn restore(text: &str) -> Result<(), SyncError> {
    if text.is_empty() { Ok(()) } else { feed("ipset", &["restore", "-exist"], text).await }
}

/// Destroys the sets of a family that are there; rules must not name them any more.
pub(super) async fn destroy(family: Family) -> Result<(), SyncError> {
    let listed = output("ipset", &["list", "-n"], "").await?;
    let there: BTreeSet<&str> = listed.lines().collect();
    let ours = SETS.iter().map(|(set, ..)| name(family, *set)).filter(|name| there.contains(name.as_str()));
    let text: String = ours.map(|name| format!("destroy {name}\n")).collect();
    restore(&text).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_is_at_its_place_and_has_a_name_that_fits() {
        for (at, (set, ..)) in SETS.iter().enumerate() {
            assert_eq!(*set as usize, at);
        }
        assert_eq!(name(Family::V4, Set::LoadBalancerSourceCidr), "KUBE-LOAD-BALANCER-SOURCE-CIDR");
        assert_eq!(name(Family::V6, Set::LoadBalancerSourceCidr), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
    }

    #[test]
    fn members_go_with_the_last_who_asks_for_them() {
        let mut members = SetMembers::default();
        assert!(members.add(Set::NodePortTcp, "30000".into()));
        assert!(!members.add(Set::NodePortTcp, "30000".into()));
        assert_eq!(members.filled(), [Set::NodePortTcp].into());
        assert!(!members.remove(Set::NodePortTcp, "30000".into()));
        assert!(members.remove(Set::NodePortTcp, "30000".into()));
        assert!(!members.remove(Set::NodePortTcp, "30000".into()));
        assert!(members.filled().is_empty());
    }

    #[test]
    fn texts_are_the_tools() {
        let mut members = SetMembers::default();
        members.add(Set::ClusterIp, "10.96.0.1,tcp:443".into());
        let text = replacement(Family::V4, &members);
        let next = "create KUBE-NEXT hash:ip,port family inet hashsize 1024 maxelem 65536\nadd KUBE-NEXT 10.96.0.1,tcp:443\nswap KUBE-NEXT KUBE-CLUSTER-IP\ndestroy KUBE-NEXT\n";
        assert!(text.contains(next), "{text}");
        let some = [(Set::NodePortUdp, "30001".to_owned(), true), (Set::IpvsIps, "fd00::1".to_owned(), false)];
        assert_eq!(changes(Family::V6, &some), "add KUBE-6-NODE-PORT-UDP 30001\ndel KUBE-6-IPVS-IPS fd00::1\n");
    }
}
