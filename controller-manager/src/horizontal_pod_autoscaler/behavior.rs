//! Limits of a recommendation: stabilisation windows, rates, and the bounds of the spec. Answers for upstream's
//! `normalizeDesiredReplicasWithBehaviors`.
//!
//! In: the number of replicas that metrics ask for and what was recommended and done lately. Out: the number to set
//! and the conditions that say why it differs. Time is an argument, by a clock that nobody sets.

use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};
use k8s_openapi::jiff::SignedDuration;

use super::arithmetic::{ceil, int32};

/// Without a behaviour replicas at most double, or come to four.
const SCALE_UP_FACTOR: f64 = 2.0;
const SCALE_UP_MINIMUM: f64 = 4.0;
/// The rules that hold when a behaviour leaves them open; the API server fills them in, too.
const DEFAULT_PERIOD: i32 = 15;
const DEFAULT_PERCENT: i32 = 100;
const DEFAULT_PODS: i32 = 4;

/// State of an autoscaler between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Recommendations by time. Bounded: entries out of every window are written over.
    recommendations: Vec<(SignedDuration, i32)>,
    ups: Vec<ScaleEvent>,
    downs: Vec<ScaleEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct ScaleEvent {
    at: SignedDuration,
    replicas: i32,
}

/// The numbers a decision is about.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Replicas now.
    pub current: i32,
    /// Replicas that metrics ask for.
    pub desired: i32,
    /// `spec.minReplicas`
    pub min: i32,
    /// `spec.maxReplicas`
    pub max: i32,
}

/// A reason and a message.
pub type Why = (&'static str, &'static str);

/// Number of replicas after all limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedReplicas {
    /// Replicas to set.
    pub replicas: i32,
    /// For the condition AbleToScale, which is True.
    pub able: Why,
    /// For the condition ScalingLimited.
    pub limited: bool,
    /// Limit that applied, if one did.
    pub limit: Why,
}

const READY: Why = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: Why = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: Why = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: Why = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: Why = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: Why = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const UP_LIMIT: Why = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: Why =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

/// Returns the number of replicas to set, and why. `window` is how long a higher recommendation holds when the
/// behaviour is silent.
pub fn judge(
    history: &mut History,
    behavior: Option<&HorizontalPodAutoscalerBehavior>,
    wish: Wish,
    window: Duration,
    now: SignedDuration,
) -> LimitedReplicas {
    let rules = behavior.map(|b| ScalingRules::of(b, window));
    let (stable, why) = match &rules {
        None => history.highest(wish.desired, window, now),
        Some(rules) => history.stabilized(rules, wish, now),
    };
    let able = if stable == wish.desired { READY } else { why };
    let wish = Wish { desired: stable, ..wish };
    let (replicas, limit) = match &rules {
        None => bounded(wish),
        Some(rules) => rated(history, rules, wish, now),
    };
    LimitedReplicas { replicas, able, limited: replicas != stable, limit }
}

impl History {
    /// The replicas at first sight count as a recommendation.
    pub fn begin(&mut self, current: i32, now: SignedDuration) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    fn note(&mut self, replicas: i32, cutoff: SignedDuration, now: SignedDuration) {
        match self.recommendations.iter().rposition(|(at, _)| *at < cutoff) {
            Some(old) => self.recommendations[old] = (now, replicas),
            None => self.recommendations.push((now, replicas)),
        }
    }

    fn highest(&mut self, desired: i32, window: Duration, now: SignedDuration) -> (i32, Why) {
        let cutoff = before(now, window);
        let recent = self.recommendations.iter().filter(|(at, _)| *at >= cutoff).map(|r| r.1);
        let highest = recent.max().unwrap_or(desired).max(desired);
        self.note(desired, cutoff, now);
        (highest, DOWN_STABILIZED)
    }

    fn stabilized(&mut self, rules: &ScalingRules, wish: Wish, now: SignedDuration) -> (i32, Why) {
        let (up_cutoff, down_cutoff) = (before(now, rules.up.window), before(now, rules.down.window));
        let recent = |cutoff| self.recommendations.iter().filter(move |(at, _)| *at > cutoff).map(|r| r.1);
        let lowest = recent(up_cutoff).min().map_or(wish.desired, |r| r.min(wish.desired));
        let highest = recent(down_cutoff).max().map_or(wish.desired, |r| r.max(wish.desired));
        // As close to what is there as recent recommendations allow.
        let stable = wish.current.max(lowest).min(highest);
        let why = if wish.desired >= wish.current { UP_STABILIZED } else { DOWN_STABILIZED };
        self.note(wish.desired, before(now, rules.up.window.max(rules.down.window)), now);
        (stable, why)
    }

    /// The target was scaled: rates are counted from such changes. Without a behaviour nobody asks for them.
    pub fn scaled(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        from: i32,
        to: i32,
        now: SignedDuration,
    ) {
        let Some(behavior) = behavior else { return };
        let rules = ScalingRules::of(behavior, Duration::ZERO);
        let (list, rule) = if to > from { (&mut self.ups, &rules.up) } else { (&mut self.downs, &rules.down) };
        let cutoff = before(now, rule.longest_period());
        let change = ScaleEvent { at: now, replicas: (to - from).abs() };
        match list.iter().rposition(|c| c.at < cutoff) {
            Some(old) => list[old] = change,
            None => list.push(change),
        }
    }
}

struct ScalingRules {
    up: ScalingRule,
    down: ScalingRule,
}

struct ScalingRule {
    window: Duration,
    select: String,
    policies: Vec<HPAScalingPolicy>,
}

impl ScalingRules {
    fn of(behavior: &HorizontalPodAutoscalerBehavior, window: Duration) -> Self {
        let policy = |kind: &str, value| HPAScalingPolicy { type_: kind.into(), value, period_seconds: DEFAULT_PERIOD };
        let percent = policy("Percent", DEFAULT_PERCENT);
        let up = vec![policy("Pods", DEFAULT_PODS), percent.clone()];
        Self {
            up: ScalingRule::of(behavior.scale_up.as_ref(), Duration::ZERO, up),
            down: ScalingRule::of(behavior.scale_down.as_ref(), window, vec![percent]),
        }
    }
}

impl ScalingRule {
    fn of(rules: Option<&HPAScalingRules>, window: Duration, policies: Vec<HPAScalingPolicy>) -> Self {
        let given = rules.and_then(|r| r.stabilization_window_seconds).and_then(|s| u64::try_from(s).ok());
        Self {
            window: given.map_or(window, Duration::from_secs),
            select: rules.and_then(|r| r.select_policy.clone()).unwrap_or_else(|| "Max".to_owned()),
            policies: rules.and_then(|r| r.policies.clone()).filter(|p| !p.is_empty()).unwrap_or(policies),
        }
    }

    fn longest_period(&self) -> Duration {
        let longest = self.policies.iter().map(|p| p.period_seconds).max().unwrap_or(0);
        Duration::from_secs(u64::try_from(longest).unwrap_or(0))
    }

    /// The extreme of what the policies allow, each counted from the replicas at the start of its period.
    fn limit(
        &self,
        history: &History,
        (current, up): (i32, bool),
        now: SignedDuration,
        allowed: impl Fn(&HPAScalingPolicy, i32) -> i32,
    ) -> i32 {
        let each = self.policies.iter().map(|policy| {
            let cutoff = before(now, Duration::from_secs(u64::try_from(policy.period_seconds).unwrap_or(0)));
            let sum = |list: &[ScaleEvent]| {
                list.iter().filter(|c| c.at > cutoff).fold(0i32, |sum, c| sum.wrapping_add(c.replicas))
            };
            let start = current.wrapping_sub(sum(&history.ups)).wrapping_add(sum(&history.downs));
            allowed(policy, start)
        });
        // The policy with the smallest change: the lowest count on the way up, the highest on the way down.
        if (self.select == "Min") == up { each.min().unwrap_or(0) } else { each.max().unwrap_or(0) }
    }
}

fn before(now: SignedDuration, d: Duration) -> SignedDuration {
    now.saturating_sub(SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX))
}

fn bounded(wish: Wish) -> (i32, Why) {
    let fastest = int32((SCALE_UP_FACTOR * f64::from(wish.current)).max(SCALE_UP_MINIMUM));
    let (most, why) = if wish.max > fastest { (fastest, UP_LIMIT) } else { (wish.max, TOO_MANY) };
    if wish.desired < wish.min {
        (wish.min, TOO_FEW)
    } else if wish.desired > most {
        (most, why)
    } else {
        (wish.desired, WITHIN)
    }
}

fn rated(history: &History, rules: &ScalingRules, wish: Wish, now: SignedDuration) -> (i32, Why) {
    if wish.desired > wish.current {
        let fastest = fastest_up(history, &rules.up, wish.current, now).max(wish.current);
        let (most, why) = if wish.max > fastest { (fastest, UP_LIMIT) } else { (wish.max, TOO_MANY) };
        if wish.desired > most {
            return (most, why);
        }
    } else if wish.desired < wish.current {
        let fastest = fastest_down(history, &rules.down, wish.current, now).min(wish.current);
        let (least, why) = if wish.min < fastest { (fastest, DOWN_LIMIT) } else { (wish.min, TOO_FEW) };
        if wish.desired < least {
            return (least, why);
        }
    }
    (wish.desired, WITHIN)
}

fn fastest_up(history: &History, rule: &ScalingRule, current: i32, now: SignedDuration) -> i32 {
    if rule.select == "Disabled" {
        return current;
    }
    rule.limit(history, (current, true), now, |policy, start| {
        if policy.type_ == "Pods" {
            start.wrapping_add(policy.value)
        } else {
            // Rounded up, or a small target would never grow.
            ceil(f64::from(start) * (1.0 + f64::from(policy.value) / 100.0))
        }
    })
}

fn fastest_down(history: &History, rule: &ScalingRule, current: i32, now: SignedDuration) -> i32 {
    if rule.select == "Disabled" {
        return current;
    }
    rule.limit(history, (current, false), now, |policy, start| {
        if policy.type_ == "Pods" {
            start.wrapping_sub(policy.value)
        } else {
            int32(f64::from(start) * (1.0 - f64::from(policy.value) / 100.0))
        }
    })
}

#[cfg(test)]
#[path = "behavior_tests.rs"]
mod tests;
