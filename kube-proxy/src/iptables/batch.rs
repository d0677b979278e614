//! The difference between two sets of rules as input for `iptables-restore --noflush`: only
//! chains that changed are written, and chains that went are removed.

use super::render::Rules;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The batch that turns `old` into `new`; empty when they are the same. `stale` are chains
/// of the `nat` table that some earlier proxy left.
#[must_use]
pub fn batch(old: &Rules, new: &Rules, stale: &BTreeSet<String>) -> String {
    let none = BTreeSet::new();
    let mut text = table("filter", &old.filter, &new.filter, &none);
    text.push_str(&table("nat", &old.nat, &new.nat, stale));
    text
}

fn table(
    name: &str,
    old: &BTreeMap<String, Vec<String>>,
    new: &BTreeMap<String, Vec<String>>,
    stale: &BTreeSet<String>,
) -> String {
    let changed: Vec<_> = new.iter().filter(|(chain, rules)| old.get(*chain) != Some(rules)).collect();
    let gone: BTreeSet<&String> = old.keys().chain(stale).filter(|chain| !new.contains_key(*chain)).collect();
    if changed.is_empty() && gone.is_empty() {
        return String::new();
    }
    let mut text = format!("*{name}\n");
    // Declared first: a rule may jump to a chain that comes later. A declaration also empties.
    for chain in changed.iter().map(|(chain, _)| *chain).chain(gone.iter().copied()) {
        writeln!(text, ":{chain} - [0:0]").ok();
    }
    for (chain, rules) in &changed {
        for rule in *rules {
            writeln!(text, "-A {chain} {rule}").ok();
        }
    }
    for chain in &gone {
        writeln!(text, "-X {chain}").ok();
    }
    text.push_str("COMMIT\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(nat: &[(&str, &[&str])]) -> Rules {
        let chain = |(name, lines): &(&str, &[&str])| {
            ((*name).to_owned(), lines.iter().map(|line| (*line).to_owned()).collect())
        };
        Rules { nat: nat.iter().map(chain).collect(), ..Rules::default() }
    }

    #[test]
    fn only_what_changed_is_written() {
        let old = rules(&[("A", &["-j X"]), ("B", &["-j Y"]), ("C", &[])]);
        let new = rules(&[("A", &["-j X"]), ("B", &["-j Z"]), ("D", &["-j W"])]);
        assert_eq!(
            batch(&old, &new, &BTreeSet::new()),
            "*nat\n:B - [0:0]\n:D - [0:0]\n:C - [0:0]\n-A B -j Z\n-A D -j W\n-X C\nCOMMIT\n"
        );
        assert_eq!(batch(&new, &new, &BTreeSet::new()), "");
    }

    #[test]
    fn chains_of_an_earlier_proxy_go() {
        let new = rules(&[("A", &[])]);
        let stale = BTreeSet::from(["KUBE-SEP-OLD".to_owned(), "A".to_owned()]);
        let text = batch(&new, &new, &stale);
        assert_eq!(text, "*nat\n:KUBE-SEP-OLD - [0:0]\n-X KUBE-SEP-OLD\nCOMMIT\n");
    }
}
