//! Elements that several services ask for: the first one, by name, has its way, and the next one when it goes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::render::Part;
use super::rule::{Element, RuleVerdict};
use super::transaction::{CLUSTER_IPS, Transaction};
use crate::plan::PortName;

type Key = (&'static str, Element);

/// Ports by the elements that they ask for.
#[derive(Debug, Default)]
pub(super) struct ElementClaims {
    /// Verdicts by port, for each key of each map.
    elements: BTreeMap<Key, BTreeMap<PortName, RuleVerdict>>,
    addresses: BTreeMap<IpAddr, BTreeSet<PortName>>,
}

impl ElementClaims {
    /// Takes in what a port asks for now instead of what it asked for before, and writes the difference that makes.
    pub(super) fn change(&mut self, name: &PortName, before: &Wanted, after: &Wanted, transaction: &mut Transaction) {
        let keys: BTreeSet<&Key> = before.elements.keys().chain(after.elements.keys()).collect();
        for key in keys {
            let claims = self.elements.entry(*key).or_default();
            let old = claims.values().next().cloned();
            match after.elements.get(key) {
                Some(verdict) => drop(claims.insert(name.clone(), verdict.clone())),
                None => drop(claims.remove(name)),
            }
            let new = claims.values().next().cloned();
            if claims.is_empty() {
                self.elements.remove(key);
            }
            if old == new {
                continue;
            }
            if old.is_some() {
                transaction.delete_element(key.0, key.1);
            }
            if let Some(verdict) = new {
                transaction.add_element(key.0, key.1, verdict);
            }
        }
        if before.cluster_ip == after.cluster_ip {
            return;
        }
        if let Some(address) = before.cluster_ip
            && let Some(claims) = self.addresses.get_mut(&address)
        {
            claims.remove(name);
            if claims.is_empty() {
                self.addresses.remove(&address);
                transaction.delete_address(CLUSTER_IPS, address);
            }
        }
        if let Some(address) = after.cluster_ip {
            let claims = self.addresses.entry(address).or_default();
            if claims.is_empty() {
                transaction.add_address(CLUSTER_IPS, address);
            }
            claims.insert(name.clone());
        }
    }
}

/// Elements that one port asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    elements: BTreeMap<Key, RuleVerdict>,
    cluster_ip: Option<IpAddr>,
}

impl Wanted {
    pub(super) fn of(part: &Part) -> Self {
        let elements = part.elements.iter().map(|(map, key, verdict)| ((*map, *key), verdict.clone()));
        Self { elements: elements.collect(), cluster_ip: part.cluster_ip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Family, Protocol};

    fn name(service: &str) -> PortName {
        PortName { namespace: "n".into(), service: service.into(), port: String::new(), protocol: Protocol::Tcp }
    }

    fn wants(chain: &str) -> Wanted {
        let address = Some("10.0.0.1".parse().expect("ip"));
        let key = Element { address, protocol: Protocol::Tcp, port: 80 };
        let elements = [(("service-ips", key), RuleVerdict::Goto(chain.to_owned()))].into();
        Wanted { elements, cluster_ip: Some("10.0.0.1".parse().expect("ip")) }
    }

    #[test]
    fn the_first_by_name_has_its_way_and_then_the_next() {
        let mut claims = ElementClaims::default();
        let mut change = |service: &str, before: &Wanted, after: &Wanted| {
            let mut transaction = Transaction::new(Family::V4);
            claims.change(&name(service), before, after, &mut transaction);
            transaction.to_string().replace("element ip kube-proxy ", "")
        };
        let (nothing, a, b) = (Wanted::default(), wants("a"), wants("b"));
        let first = "add service-ips { 10.0.0.1 . tcp . 80 : goto b }\nadd cluster-ips { 10.0.0.1 }\n";
        assert_eq!(change("b", &nothing, &b), first);
        let taken = "delete service-ips { 10.0.0.1 . tcp . 80 }\nadd service-ips { 10.0.0.1 . tcp . 80 : goto a }\n";
        assert_eq!(change("a", &nothing, &a), taken);
        assert_eq!(change("a", &a, &a), "");
        let back = "delete service-ips { 10.0.0.1 . tcp . 80 }\nadd service-ips { 10.0.0.1 . tcp . 80 : goto b }\n";
        assert_eq!(change("a", &a, &nothing), back);
        let gone = "delete service-ips { 10.0.0.1 . tcp . 80 }\ndelete cluster-ips { 10.0.0.1 }\n";
        assert_eq!(change("b", &b, &nothing), gone);
    }
}
