//! The second round: when a webhook (or policy) changed the object, the plugins see it once more, and those webhooks
//! that asked for it and saw an older object are asked again.

use std::collections::BTreeSet;

use serde_json::Value;

/// A plugin whose parts are asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Policies that mutate.
    Policies,
    /// Webhooks that mutate.
    Webhooks,
}

/// State of one plugin after the first round.
#[derive(Debug, Default)]
pub struct Asked {
    /// Webhooks to call again if the object changes after them (`reinvocationPolicy: IfNeeded`).
    before: BTreeSet<String>,
    /// Webhooks to call in the second round.
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
    policies: Asked,
    webhooks: Asked,
}

impl Reinvocation {
    /// Starts the second round, when one is needed; reports whether it did.
    pub(super) fn begin_second(&mut self) -> bool {
        let begin = self.wanted && !self.second;
        self.second |= begin;
        begin
    }

    /// 0 or 1.
    pub(super) fn round(&self) -> usize {
        usize::from(self.second)
    }

    fn of(&mut self, who: Who) -> &mut Asked {
        match who {
            Who::Policies => &mut self.policies,
            Who::Webhooks => &mut self.webhooks,
        }
    }

    /// A plugin begins with an object.
    pub(super) fn begin(&mut self, who: Who, object: Option<&Value>) {
        let second = self.second;
        let asked = self.of(who);
        if second && asked.left.as_ref() != object {
            asked.recall();
        }
    }

    /// Reports whether a webhook or policy is called in this round.
    pub(super) fn asks(&mut self, who: Who, id: &str) -> bool {
        !self.second || self.of(who).again.contains(id)
    }

    /// One was asked. `changed`: it changed the object; `willing`: it wants to see what others make of it.
    pub(super) fn asked(&mut self, who: Who, id: &str, changed: bool, willing: bool) {
        self.wanted |= changed;
        let asked = self.of(who);
        if changed {
            asked.recall();
        }
        if willing {
            asked.before.insert(id.to_owned());
        }
    }

    /// A plugin did something, if only for form's sake: those of it that want to see what others make of it are asked
    /// again, whoever changed what.
    pub(super) fn again(&mut self, who: Who) {
        self.wanted = true;
        self.of(who).recall();
    }

    /// A plugin ends with an object.
    pub(super) fn end(&mut self, who: Who, object: Option<&Value>) {
        let second = self.second;
        let asked = self.of(who);
        // Only for those that may be asked again.
        if !second && !asked.before.is_empty() {
            asked.left = object.cloned();
        }
    }
}

impl Asked {
    /// Moves all that were called before to the second round.
    fn recall(&mut self) {
        self.again.append(&mut self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::Who::{Policies, Webhooks};
    use super::*;
    use serde_json::json;

    #[test]
    fn only_those_before_a_change_are_asked_again() {
        let mut r = Reinvocation::default();
        for (id, changed, willing) in [("a", true, true), ("b", true, false), ("c", false, true)] {
            assert!(r.asks(Webhooks, id));
            r.asked(Webhooks, id, changed, willing);
        }
        r.end(Webhooks, Some(&json!(1)));
        assert!(r.begin_second() && !r.begin_second());
        r.begin(Webhooks, Some(&json!(1)));
        assert_eq!(["a", "b", "c"].map(|id| r.asks(Webhooks, id)), [true, false, false]);
    }

    #[test]
    fn a_change_by_other_plugins_counts() {
        let mut r = Reinvocation::default();
        r.asked(Webhooks, "a", true, false);
        r.asked(Webhooks, "b", false, true);
        r.end(Webhooks, Some(&json!(1)));
        assert!(r.begin_second());
        r.begin(Webhooks, Some(&json!(2)));
        assert_eq!(["a", "b"].map(|id| r.asks(Webhooks, id)), [false, true]);
    }

    #[test]
    fn plugins_are_asked_apart() {
        let mut r = Reinvocation::default();
        r.asked(Policies, "a", false, true);
        r.end(Policies, Some(&json!(1)));
        r.asked(Webhooks, "a", true, true);
        r.end(Webhooks, Some(&json!(2)));
        assert!(r.begin_second());
        r.begin(Policies, Some(&json!(2)));
        assert!(r.asks(Policies, "a"), "a webhook changed the object after it");
        r.begin(Webhooks, Some(&json!(2)));
        assert!(!r.asks(Webhooks, "a"), "nobody did after this one");
    }

    #[test]
    fn what_is_done_for_form_counts() {
        let mut r = Reinvocation::default();
        r.asked(Policies, "a", false, true);
        r.asked(Policies, "b", false, false);
        r.again(Policies);
        r.end(Policies, Some(&json!(1)));
        assert!(r.begin_second());
        r.begin(Policies, Some(&json!(1)));
        assert_eq!(["a", "b"].map(|id| r.asks(Policies, id)), [true, false]);
    }

    #[test]
    fn without_a_change_there_is_one_round() {
        let mut r = Reinvocation::default();
        r.asked(Webhooks, "a", false, true);
        assert!(!r.begin_second());
    }
}
