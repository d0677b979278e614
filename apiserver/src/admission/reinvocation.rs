//! The second round: when a webhook (or policy) changed the object, the plugins see it once more, and those webhooks
//! that asked for it and saw an older object are asked again. Answers for upstream's `pkg/admission/reinvocation.go`,
//! `webhookReinvokeContext`.

use std::collections::BTreeSet;

use serde_json::Value;

/// A plugin whose parts are asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReinvocationPlugin {
    /// Policies that mutate.
    Policies,
    /// Webhooks that mutate.
    Webhooks,
}

/// State of one plugin after the first round.
#[derive(Debug, Default)]
pub(super) struct PluginRound {
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
    policies: PluginRound,
    webhooks: PluginRound,
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

    fn of(&mut self, who: ReinvocationPlugin) -> &mut PluginRound {
        match who {
            ReinvocationPlugin::Policies => &mut self.policies,
            ReinvocationPlugin::Webhooks => &mut self.webhooks,
        }
    }

    /// A plugin begins with an object.
    pub(super) fn begin(&mut self, who: ReinvocationPlugin, object: Option<&Value>) {
        let second = self.second;
        let asked = self.of(who);
        if second && asked.left.as_ref() != object {
            asked.requeue_all();
        }
    }

    /// Reports whether a webhook or policy is called in this round.
    pub(super) fn is_called(&mut self, who: ReinvocationPlugin, id: &str) -> bool {
        !self.second || self.of(who).again.contains(id)
    }

    /// One was asked. `changed`: it changed the object; `willing`: it wants to see what others make of it.
    pub(super) fn record_call(&mut self, who: ReinvocationPlugin, id: &str, changed: bool, willing: bool) {
        self.wanted |= changed;
        let asked = self.of(who);
        if changed {
            asked.requeue_all();
        }
        if willing {
            asked.before.insert(id.to_owned());
        }
    }

    /// A plugin did something, if only for form's sake: those of it that want to see what others make of it are asked
    /// again, whoever changed what.
    pub(super) fn request_again(&mut self, who: ReinvocationPlugin) {
        self.wanted = true;
        self.of(who).requeue_all();
    }

    /// A plugin ends with an object.
    pub(super) fn end(&mut self, who: ReinvocationPlugin, object: Option<&Value>) {
        let second = self.second;
        let asked = self.of(who);
        // Only for those that may be asked again.
        if !second && !asked.before.is_empty() {
            asked.left = object.cloned();
        }
    }
}

impl PluginRound {
    /// Moves all that were called before to the second round.
    fn requeue_all(&mut self) {
        self.again.append(&mut self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::ReinvocationPlugin::{Policies, Webhooks};
    use super::*;
    use serde_json::json;

    #[test]
    fn only_webhooks_before_a_change_are_reinvoked() {
        let mut r = Reinvocation::default();
        for (id, changed, willing) in [("a", true, true), ("b", true, false), ("c", false, true)] {
            assert!(r.is_called(Webhooks, id));
            r.record_call(Webhooks, id, changed, willing);
        }
        r.end(Webhooks, Some(&json!(1)));
        assert!(r.begin_second() && !r.begin_second());
        r.begin(Webhooks, Some(&json!(1)));
        assert_eq!(["a", "b", "c"].map(|id| r.is_called(Webhooks, id)), [true, false, false]);
    }

    #[test]
    fn a_change_by_other_plugins_counts() {
        let mut r = Reinvocation::default();
        r.record_call(Webhooks, "a", true, false);
        r.record_call(Webhooks, "b", false, true);
        r.end(Webhooks, Some(&json!(1)));
        assert!(r.begin_second());
        r.begin(Webhooks, Some(&json!(2)));
        assert_eq!(["a", "b"].map(|id| r.is_called(Webhooks, id)), [false, true]);
    }

    #[test]
    fn plugins_are_reinvoked_independently() {
        let mut r = Reinvocation::default();
        r.record_call(Policies, "a", false, true);
        r.end(Policies, Some(&json!(1)));
        r.record_call(Webhooks, "a", true, true);
        r.end(Webhooks, Some(&json!(2)));
        assert!(r.begin_second());
        r.begin(Policies, Some(&json!(2)));
        assert!(r.is_called(Policies, "a"), "a webhook changed the object after it");
        r.begin(Webhooks, Some(&json!(2)));
        assert!(!r.is_called(Webhooks, "a"), "nobody did after this one");
    }

    #[test]
    fn no_op_mutations_count_as_calls() {
        let mut r = Reinvocation::default();
        r.record_call(Policies, "a", false, true);
        r.record_call(Policies, "b", false, false);
        r.request_again(Policies);
        r.end(Policies, Some(&json!(1)));
        assert!(r.begin_second());
        r.begin(Policies, Some(&json!(1)));
        assert_eq!(["a", "b"].map(|id| r.is_called(Policies, id)), [true, false]);
    }

    #[test]
    fn unchanged_object_is_not_reinvoked() {
        let mut r = Reinvocation::default();
        r.record_call(Webhooks, "a", false, true);
        assert!(!r.begin_second());
    }
}
