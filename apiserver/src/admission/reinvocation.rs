//! The second round: when a webhook (or policy) changed the object, the plugins see it once more, and those webhooks
//! that asked for it and saw an older object are asked again.

use std::collections::BTreeSet;

use serde_json::Value;

/// What was asked in the first round, of one plugin.
#[derive(Debug, Default)]
pub struct Asked {
    /// Those that want to be asked again if somebody changes the object after them.
    before: BTreeSet<String>,
    /// Those to ask in the second round.
    again: BTreeSet<String>,
    /// The object as the plugin left it.
    left: Option<Value>,
}

/// Both rounds of one write.
#[derive(Debug, Default)]
pub struct Reinvocation {
    /// This is the second.
    second: bool,
    /// Somebody changed the object.
    wanted: bool,
    webhooks: Asked,
}

impl Reinvocation {
    /// Whether there is to be a second round; begins it.
    pub(super) fn begin_second(&mut self) -> bool {
        let begin = self.wanted && !self.second;
        self.second |= begin;
        begin
    }

    /// 0 or 1.
    pub(super) fn round(&self) -> usize {
        usize::from(self.second)
    }

    /// The plugin begins with an object.
    pub(super) fn begin(&mut self, object: Option<&Value>) {
        if self.second && self.webhooks.left.as_ref() != object {
            self.webhooks.recall();
        }
    }

    /// Whether one is to be asked in this round.
    pub(super) fn asks(&self, id: &str) -> bool {
        !self.second || self.webhooks.again.contains(id)
    }

    /// One was asked. `changed`: it changed the object; `willing`: it wants to see what others make of it.
    pub(super) fn asked(&mut self, id: &str, changed: bool, willing: bool) {
        if changed {
            self.webhooks.recall();
            self.wanted = true;
        }
        if willing {
            self.webhooks.before.insert(id.to_owned());
        }
    }

    /// The plugin ends with an object.
    pub(super) fn end(&mut self, object: Option<&Value>) {
        if !self.second {
            self.webhooks.left = object.cloned();
        }
    }
}

impl Asked {
    /// All that were asked before are to be asked again.
    fn recall(&mut self) {
        self.again.append(&mut self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_those_before_a_change_are_asked_again() {
        let mut r = Reinvocation::default();
        for (id, changed, willing) in [("a", true, true), ("b", true, false), ("c", false, true)] {
            assert!(r.asks(id));
            r.asked(id, changed, willing);
        }
        r.end(Some(&json!(1)));
        assert!(r.begin_second() && !r.begin_second());
        r.begin(Some(&json!(1)));
        assert_eq!(["a", "b", "c"].map(|id| r.asks(id)), [true, false, false]);
    }

    #[test]
    fn a_change_by_other_plugins_counts() {
        let mut r = Reinvocation::default();
        r.asked("a", true, false);
        r.asked("b", false, true);
        r.end(Some(&json!(1)));
        assert!(r.begin_second());
        r.begin(Some(&json!(2)));
        assert_eq!(["a", "b"].map(|id| r.asks(id)), [false, true]);
    }

    #[test]
    fn without_a_change_there_is_one_round() {
        let mut r = Reinvocation::default();
        r.asked("a", false, true);
        assert!(!r.begin_second());
    }
}
