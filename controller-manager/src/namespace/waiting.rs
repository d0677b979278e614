//! Objects that terminating namespaces wait for, so that the last object to go wakes its namespace: nobody has to look
//! in between.

use foldhash::{HashMap, HashSet};

use crate::engine::discovery::Served;

/// An object that is on its way out: group, plural, name.
pub type Thing = (String, String, String);

/// By namespace, what is still there.
#[derive(Debug, Default)]
pub struct Waiting(HashMap<String, HashSet<Thing>>);

impl Waiting {
    /// The namespace waits for these from now on, and for nothing else.
    pub fn wait(&mut self, namespace: &str, things: impl IntoIterator<Item = Thing>) {
        let things: HashSet<Thing> = things.into_iter().collect();
        if things.is_empty() {
            self.0.remove(namespace);
        } else {
            self.0.insert(namespace.to_owned(), things);
        }
    }

    /// An object is gone. True when it was the last one that its namespace waited for.
    pub fn gone(&mut self, served: &Served, namespace: &str, name: &str) -> bool {
        let Some(things) = self.0.get_mut(namespace) else { return false };
        let was_awaited = things.remove(&(served.group.clone(), served.plural.clone(), name.to_owned()));
        let last = was_awaited && things.is_empty();
        if last {
            self.0.remove(namespace);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_go_wakes() {
        let served = |plural: &str| Served {
            group: String::new(),
            version: "v1".into(),
            plural: plural.into(),
            kind: String::new(),
            namespaced: true,
            verbs: Vec::new(),
        };
        let thing = |plural: &str, name: &str| (String::new(), plural.to_owned(), name.to_owned());
        let mut waiting = Waiting::default();
        waiting.wait("ns", [thing("pods", "a"), thing("pods", "b")]);
        for (plural, namespace, name, last) in [
            ("pods", "ns", "a", false),
            ("pods", "ns", "a", false),
            ("secrets", "ns", "b", false),
            ("pods", "other", "b", false),
            ("pods", "ns", "b", true),
            ("pods", "ns", "b", false),
        ] {
            assert_eq!(waiting.gone(&served(plural), namespace, name), last, "{plural} {namespace}/{name}");
        }
        waiting.wait("ns", [thing("pods", "a")]);
        waiting.wait("ns", []);
        assert!(!waiting.gone(&served("pods"), "ns", "a"), "it waits for nothing any more");
    }
}
