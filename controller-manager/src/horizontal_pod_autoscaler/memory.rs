//! State of autoscalers between two looks: what they did, and which pods their targets select. Autoscalers are found by
//! the labels of pods, so that a look costs the same however many of them a namespace has.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashSet};
use proto::selector::label::{Operator, Selector};

use super::behavior::History;
use crate::engine::object::Key;
use crate::engine::selectors::Space;

type Labels = BTreeMap<String, String>;

/// One autoscaler.
#[derive(Default)]
struct Known {
    history: History,
    selector: Option<Selector>,
}

/// All autoscalers.
#[derive(Default)]
pub(super) struct Memory {
    known: HashMap<Key, Known>,
    /// Selectors of the autoscalers, by namespace.
    spaces: HashMap<Box<str>, Space>,
}

impl Memory {
    pub(super) fn know(&mut self, key: &Key) {
        self.known.entry(key.clone()).or_default();
    }

    pub(super) fn forget(&mut self, key: &Key) {
        let Some(known) = self.known.remove(key) else { return };
        if known.selector.is_some()
            && let Some(space) = self.spaces.get_mut(key.namespace.as_str())
        {
            space.remove(&key.name);
            if space.is_empty() {
                self.spaces.remove(key.namespace.as_str());
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn history(&mut self, key: &Key) -> Option<&mut History> {
        self.known.get_mut(key).map(|known| &mut known.history)
    }

    /// Takes note of what the target of an autoscaler selects.
    pub(super) fn set_selector(&mut self, key: &Key, selector: Selector) {
        let Some(known) = self.known.get_mut(key).filter(|known| known.selector.as_ref() != Some(&selector)) else {
            return;
        };
        let space = self.spaces.entry(key.namespace.as_str().into()).or_default();
        space.remove(&key.name);
        space.insert(&key.name, &required(&selector));
        known.selector = Some(selector);
    }

    /// The autoscalers of a namespace whose targets select any of the pods with these labels, by name.
    pub(super) fn selecting<'a>(&self, namespace: &str, pods: impl Iterator<Item = Option<&'a Labels>>) -> Vec<Key> {
        static NONE: Labels = Labels::new();
        let Some(space) = self.spaces.get(namespace) else { return Vec::new() };
        let mut found: BTreeSet<&str> = BTreeSet::new();
        // Replicas have the same labels.
        let mut looked_at: HashSet<&Labels> = HashSet::default();
        for labels in pods {
            let labels = labels.unwrap_or(&NONE);
            if !looked_at.insert(labels) {
                continue;
            }
            for name in space.names(labels) {
                let selector = || self.known.get(&Key::new(namespace, name))?.selector.as_ref();
                if !found.contains(name) && selector().is_some_and(|selector| picks(selector, Some(labels))) {
                    found.insert(name);
                }
            }
        }
        found.into_iter().map(|name| Key::new(namespace, name)).collect()
    }
}

/// The pairs that a selector requires.
pub(super) fn required(selector: &Selector) -> Labels {
    let pair = |r: &proto::selector::label::Requirement| {
        let exact = matches!(r.operator(), Operator::Equals | Operator::DoubleEquals | Operator::In);
        let mut values = r.values();
        match (values.next(), values.next()) {
            (Some(value), None) if exact => Some((r.key().to_owned(), value.to_owned())),
            _ => None,
        }
    };
    selector.requirements().iter().filter_map(pair).collect()
}

pub(super) fn picks(selector: &Selector, labels: Option<&Labels>) -> bool {
    selector.requirements().iter().all(|r| r.matches(labels.and_then(|l| l.get(r.key())).map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Labels {
        text.split(',').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    #[test]
    fn autoscalers_are_found_by_the_labels_of_pods() {
        let mut memory = Memory::default();
        for (namespace, name, selector) in [
            ("ns", "web", "app=web"),
            ("ns", "canary", "app=web,track in (canary)"),
            ("ns", "all", "app"),
            ("ns", "db", "app=db"),
            ("other", "web", "app=web"),
        ] {
            let key = Key::new(namespace, name);
            memory.know(&key);
            memory.set_selector(&key, Selector::parse(selector).expect("selector"));
        }
        let selecting = |memory: &Memory, pods: &[&str]| {
            let pods: Vec<Labels> = pods.iter().map(|text| labels(text)).collect();
            let found = memory.selecting("ns", pods.iter().map(Some));
            found.into_iter().map(|key| key.name).collect::<Vec<_>>()
        };
        assert_eq!(selecting(&memory, &["app=web"]), ["all", "web"]);
        assert_eq!(selecting(&memory, &["app=web,track=canary", "app=web"]), ["all", "canary", "web"]);
        memory.set_selector(&Key::new("ns", "web"), Selector::parse("app=db").expect("selector"));
        memory.forget(&Key::new("ns", "all"));
        assert_eq!(selecting(&memory, &["app=web"]), [""; 0]);
        assert_eq!(selecting(&memory, &["app=db"]), ["db", "web"]);
        for name in ["web", "canary", "db"] {
            memory.forget(&Key::new("ns", name));
        }
        assert_eq!(memory.spaces.len(), 1, "nothing is kept of a namespace without autoscalers");
    }

    #[test]
    fn a_look_costs_the_same_however_many_autoscalers_there_are() {
        let mut space = Memory::default();
        for n in 0..20_000 {
            let key = Key::new("ns", format!("h{n}"));
            space.know(&key);
            space.set_selector(&key, Selector::parse(&format!("app=a{n}")).expect("selector"));
        }
        let candidates = |text: &str| space.spaces["ns"].names(&labels(text)).count();
        assert_eq!(candidates("app=a7,x=y"), 1);
    }
}
