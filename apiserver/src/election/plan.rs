//! Choice of a leader: a pure function from candidates and a Lease to the next action. Answers for upstream's
//! `pickBestLeaderOldestEmulationVersion`, `shouldReelect`.

use std::cmp::Ordering;

use jiff::{SignedDuration, Timestamp};
use proto::Value;
use serde_json::json;

use crate::machinery::meta::micro_time;
use crate::machinery::tree;
use crate::rules::names::is_semver;
use crate::validation::semantic_order;

/// The one way to choose that is known here; leases of others are left without a holder.
const OLDEST: &str = "OldestEmulationVersion";
/// Time that candidates have to respond to a ping, and that a response counts.
const ANSWER: SignedDuration = SignedDuration::from_secs(5);
/// A candidate that has not been heard of for so long is gone.
const GONE: SignedDuration = SignedDuration::from_mins(30);
/// Seconds that a lease holds which its holder has not renewed yet.
const HOLDS: i64 = 5;

/// LeaseCandidate.
pub(super) struct LeaderCandidate<'v> {
    object: &'v Value,
    pub(super) namespace: &'v str,
    pub(super) lease: &'v str,
    name: &'v str,
    strategy: &'v str,
    renewed: Option<Timestamp>,
    asked: Option<Timestamp>,
}

/// Next action on a lease.
#[derive(Debug)]
pub(super) enum LeaseAction<'c, 'v> {
    /// No action yet.
    Wait,
    /// Ping these candidates.
    Ask(Vec<&'c LeaderCandidate<'v>>),
    /// The lease is for this one; for nobody where others choose.
    Elect { strategy: &'v str, holder: Option<&'v str> },
}

impl std::fmt::Debug for LeaderCandidate<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    tree::text(object, pointer).parse().ok()
}

fn written(at: Timestamp) -> Value {
    json!(micro_time(at))
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

impl<'v> LeaderCandidate<'v> {
    /// From a LeaseCandidate.
    pub(super) fn read(object: &'v Value) -> Self {
        Self {
            object,
            namespace: tree::namespace(object),
            lease: tree::text(object, "/spec/leaseName"),
            name: tree::name(object),
            strategy: tree::text(object, "/spec/strategy"),
            renewed: time(object, "/spec/renewTime"),
            asked: time(object, "/spec/pingTime"),
        }
    }

    /// Reports whether the candidate has expired.
    pub(super) fn is_gone(&self, now: Timestamp) -> bool {
        self.renewed.is_none_or(|at| later(at, GONE) < now)
    }

    /// A version it states; 0.0.0 where that is none.
    fn version(&self, field: &str) -> &'v str {
        let text = self.object["spec"][field].as_str().unwrap_or_default();
        if is_semver(text) { text } else { "0.0.0" }
    }

    /// Reports whether the candidate was pinged and has not responded.
    fn owes_an_answer(&self) -> bool {
        self.asked.is_some_and(|asked| self.renewed.is_none_or(|renewed| renewed < asked))
    }

    fn was_asked_just_now(&self, now: Timestamp) -> bool {
        self.asked.is_some_and(|asked| later(asked, ANSWER) > now)
    }

    fn answered_just_now(&self, now: Timestamp) -> bool {
        self.renewed.is_some_and(|renewed| later(renewed, ANSWER) > now)
    }
}

/// An election in which nobody can be elected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ElectionError {
    /// Nobody has answered.
    #[error("no available candidates")]
    NoneAvailable,
    /// There is nobody.
    #[error("no candidates")]
    NoCandidates,
    /// No candidate says its versions.
    #[error("should not happen, could not find suitable electee")]
    NoElectee,
    /// Candidates of the newest version want different strategies.
    #[error(
        "candidates {:?}, {:?} at same binary version but received differing strategies {:?}, {:?}",
        .names.0, .names.1, .strategies.0, .strategies.1
    )]
    Strategies {
        /// Two of the candidates.
        names: (String, String),
        /// The strategy of each.
        strategies: (String, String),
    },
}

/// One step of an election among those who are not gone.
///
/// # Errors
/// [`ElectionError`].
pub(super) fn step<'c, 'v>(
    candidates: &[&'c LeaderCandidate<'v>],
    lease: Option<&Value>,
    now: Timestamp,
) -> Result<LeaseAction<'c, 'v>, ElectionError> {
    if candidates.is_empty() || !is_needed(candidates, lease, now)? {
        return Ok(LeaseAction::Wait);
    }
    let (mut asked, mut waits) = (Vec::new(), false);
    for one in candidates {
        if one.was_asked_just_now(now) && one.owes_an_answer() {
            waits = true;
        } else if !one.answered_just_now(now) && !one.owes_an_answer() {
            // Who has not answered is not asked again.
            asked.push(*one);
        }
    }
    if !asked.is_empty() {
        return Ok(LeaseAction::Ask(asked));
    }
    if waits {
        return Ok(LeaseAction::Wait);
    }
    let here: Vec<&LeaderCandidate<'v>> = candidates.iter().copied().filter(|one| one.answered_just_now(now)).collect();
    if here.is_empty() {
        return Err(ElectionError::NoneAvailable);
    }
    let strategy = strategy(&here)?;
    let holder = match strategy {
        OLDEST => Some(oldest(&here).ok_or(ElectionError::NoElectee)?.name),
        _ => None,
    };
    Ok(LeaseAction::Elect { strategy, holder })
}

/// Reports whether a new election may be needed.
fn is_needed(
    candidates: &[&LeaderCandidate<'_>],
    lease: Option<&Value>,
    now: Timestamp,
) -> Result<bool, ElectionError> {
    let Some(lease) = lease else { return Ok(true) };
    let holder = tree::text(lease, "/spec/holderIdentity");
    // All are asked now and then, long before they are taken for gone.
    let silent = |one: &&LeaderCandidate<'_>| one.renewed.is_some_and(|at| later(at, GONE / 2) < now);
    if holder.is_empty() || has_run_out(lease, now) || candidates.iter().any(silent) {
        return Ok(true);
    }
    if strategy(candidates)? != OLDEST {
        return Ok(false);
    }
    Ok(oldest(candidates).is_some_and(|best| best.name != holder))
}

fn has_run_out(lease: &Value, now: Timestamp) -> bool {
    let (renewed, holds) = (time(lease, "/spec/renewTime"), tree::int(lease, "/spec/leaseDurationSeconds"));
    renewed.zip(holds).is_none_or(|(renewed, holds)| later(renewed, SignedDuration::from_secs(holds)) < now)
}

/// Strategy: that of the candidate with the newest binary version.
fn strategy<'v>(candidates: &[&LeaderCandidate<'v>]) -> Result<&'v str, ElectionError> {
    let (mut newest, others) = candidates.split_first().ok_or(ElectionError::NoCandidates)?;
    for one in others {
        match semantic_order(newest.version("binaryVersion"), one.version("binaryVersion")) {
            Ordering::Less => newest = one,
            Ordering::Equal if one.strategy != newest.strategy => {
                return Err(ElectionError::Strategies {
                    names: (newest.name.to_owned(), one.name.to_owned()),
                    strategies: (newest.strategy.to_owned(), one.strategy.to_owned()),
                });
            }
            _ => {}
        }
    }
    Ok(newest.strategy)
}

/// Best candidate of the strategy `OldestEmulationVersion`: the oldest emulation version, then the oldest binary, then
/// the oldest object.
fn oldest<'c, 'v>(candidates: &[&'c LeaderCandidate<'v>]) -> Option<&'c LeaderCandidate<'v>> {
    let stated = |one: &&&LeaderCandidate<'v>| {
        ["emulationVersion", "binaryVersion"]
            .iter()
            .all(|field| is_semver(tree::text(one.object, &format!("/spec/{field}"))))
    };
    let order = |a: &&LeaderCandidate<'v>, b: &&LeaderCandidate<'v>| {
        let versions = |field| semantic_order(a.version(field), b.version(field));
        let made = |one: &LeaderCandidate<'v>| time(one.object, "/metadata/creationTimestamp");
        versions("emulationVersion").then_with(|| versions("binaryVersion")).then_with(|| made(a).cmp(&made(b)))
    };
    candidates.iter().filter(stated).copied().min_by(order)
}

/// A candidate that is asked.
pub(super) fn asked(one: &LeaderCandidate<'_>, now: Timestamp) -> Value {
    let mut object = one.object.clone();
    *tree::field(&mut object, &["spec", "pingTime"]) = written(now);
    object
}

/// A new lease.
pub(super) fn lease(namespace: &str, name: &str, strategy: &str, holder: Option<&str>, now: Timestamp) -> Value {
    let mut lease = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {
        "strategy": strategy, "leaseDurationSeconds": HOLDS, "renewTime": written(now)}});
    if let Some(holder) = holder {
        lease["spec"]["holderIdentity"] = json!(holder);
    }
    lease
}

/// The lease as it is to be; none where it is so already. Whoever holds it in good time is told whom to make room for.
pub(super) fn given(there: &Value, strategy: &str, holder: Option<&str>, now: Timestamp) -> Option<Value> {
    let mut lease = there.clone();
    *tree::field(&mut lease, &["spec", "strategy"]) = json!(strategy);
    let current = tree::text(there, "/spec/holderIdentity");
    if let Some(holder) = holder.filter(|holder| *holder != current) {
        let free = current.is_empty() || has_run_out(there, now);
        let spec = tree::map_mut(&mut lease, &["spec"])?;
        if free {
            spec.remove("preferredHolder");
            spec.remove("acquireTime");
            spec.insert("holderIdentity".to_owned(), json!(holder));
            spec.insert("renewTime".to_owned(), written(now));
            spec.insert("leaseDurationSeconds".to_owned(), json!(HOLDS));
        } else {
            spec.insert("preferredHolder".to_owned(), json!(holder));
        }
    }
    (lease != *there).then_some(lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T12:00:00.000000Z";

    fn now() -> Timestamp {
        NOW.parse().expect("a time")
    }

    /// Seconds ago, as it is written.
    fn ago(seconds: i64) -> Value {
        written(now() - SignedDuration::from_secs(seconds))
    }

    /// Name, emulated and own version, seconds since it renewed and since it was asked.
    type Row = (&'static str, &'static str, &'static str, i64, Option<i64>);

    fn objects(rows: &[Row]) -> Vec<Value> {
        let object = |(name, emulates, is, renewed, asked): &Row| {
            let mut object = json!({"metadata": {"name": name, "creationTimestamp": NOW}, "spec": {
                "leaseName": "l", "strategy": OLDEST, "emulationVersion": emulates, "binaryVersion": is,
                "renewTime": ago(*renewed)}});
            if let Some(asked) = asked {
                object["spec"]["pingTime"] = ago(*asked);
            }
            object
        };
        rows.iter().map(object).collect()
    }

    fn stepped(rows: &[Row], lease: Option<&Value>) -> String {
        let objects = objects(rows);
        let all: Vec<LeaderCandidate<'_>> = objects.iter().map(LeaderCandidate::read).collect();
        let here: Vec<&LeaderCandidate<'_>> = all.iter().filter(|one| !one.is_gone(now())).collect();
        match step(&here, lease, now()) {
            Ok(LeaseAction::Wait) => "wait".to_owned(),
            Ok(LeaseAction::Ask(asked)) => format!("ask {asked:?}"),
            Ok(LeaseAction::Elect { holder, .. }) => holder.unwrap_or("nobody").to_owned(),
            Err(why) => why.to_string(),
        }
    }

    fn held(by: &str, renewed: i64) -> Value {
        json!({"spec": {"holderIdentity": by, "leaseDurationSeconds": 5, "renewTime": ago(renewed), "strategy": OLDEST}})
    }

    #[test]
    fn oldest_responding_candidate_is_elected() {
        let (fresh, held_by_a) = (held("a", 1), held("a", 1));
        for (what, rows, lease, want) in [
            ("nobody", &[][..], None, "wait"),
            ("one", &[("a", "1.20.0", "1.20.0", 0, None)], None, "a"),
            (
                "emulation counts before the version",
                &[
                    ("a", "1.20.0", "1.20.0", 0, None),
                    ("b", "1.19.0", "1.20.0", 0, None),
                    ("c", "1.19.0", "1.19.0", 0, None),
                    ("d", "1.9.0", "1.21.0", 0, None),
                ],
                None,
                "d",
            ),
            ("who was silent is asked", &[("a", "1.20.0", "1.20.0", 60, None)], None, "ask [a]"),
            ("and again after it answered", &[("a", "1.20.0", "1.20.0", 60, Some(61))], None, "ask [a]"),
            ("an answer is waited for", &[("a", "1.20.0", "1.20.0", 60, Some(3))], None, "wait"),
            ("but not for ever", &[("a", "1.20.0", "1.20.0", 60, Some(6))], None, "no available candidates"),
            (
                "others are taken then",
                &[("a", "1.19.0", "1.19.0", 60, Some(6)), ("b", "1.20.0", "1.20.0", 1, Some(3))],
                None,
                "b",
            ),
            ("the best leads", &[("a", "1.20.0", "1.20.0", 60, None)], Some(&fresh), "wait"),
            (
                "a better one comes",
                &[("a", "1.20.0", "1.20.0", 2, Some(3)), ("b", "1.19.0", "1.19.0", 0, None)],
                Some(&held_by_a),
                "b",
            ),
            ("all are asked now and then", &[("a", "1.20.0", "1.20.0", 16 * 60, None)], Some(&fresh), "ask [a]"),
            ("who is gone does not count", &[("a", "1.20.0", "1.20.0", 31 * 60, None)], None, "wait"),
        ] {
            assert_eq!(stepped(rows, lease), want, "{what}");
        }
        assert_eq!(stepped(&[("a", "1.20.0", "1.20.0", 1, None)], Some(&held("b", 6))), "a", "it ran out");
        assert_eq!(stepped(&[("a", "1.20.0", "1.20.0", 1, None)], Some(&held("", 1))), "a", "it was given back");
    }

    #[test]
    fn newest_candidate_sets_the_strategy() {
        let mut all = objects(&[("a", "1.20.0", "1.20.0", 0, None), ("b", "1.20.0", "1.21.0", 0, None)]);
        all[1]["spec"]["strategy"] = json!("a.b/c");
        let chosen = |all: &[Value]| {
            let all: Vec<LeaderCandidate<'_>> = all.iter().map(LeaderCandidate::read).collect();
            let all: Vec<&LeaderCandidate<'_>> = all.iter().collect();
            strategy(&all).map(str::to_owned).map_err(|e| e.to_string())
        };
        assert_eq!(chosen(&all).as_deref(), Ok("a.b/c"));
        all[0]["spec"]["binaryVersion"] = json!("1.21.0");
        let why = "candidates \"a\", \"b\" at same binary version but received differing strategies \"OldestEmulationVersion\", \"a.b/c\"";
        assert_eq!(chosen(&all), Err(why.to_owned()));
    }

    #[test]
    fn preferred_holder_is_set_and_free_lease_is_assigned() {
        let at = now();
        assert_eq!(given(&held("a", 1), OLDEST, Some("a"), at), None);
        let told = given(&held("a", 1), OLDEST, Some("b"), at).expect("told");
        assert_eq!((&told["spec"]["holderIdentity"], &told["spec"]["preferredHolder"]), (&json!("a"), &json!("b")));
        for free in [held("", 1), held("a", 6)] {
            let mut free = free;
            free["spec"]["preferredHolder"] = json!("b");
            free["spec"]["acquireTime"] = json!(NOW);
            let given = given(&free, OLDEST, Some("b"), at).expect("given");
            let spec = json!({"holderIdentity": "b", "leaseDurationSeconds": 5, "renewTime": NOW, "strategy": OLDEST});
            assert_eq!(given["spec"], spec);
        }
        let others = given(&held("a", 1), "a.b/c", None, at).expect("another way");
        assert_eq!((&others["spec"]["strategy"], &others["spec"]["holderIdentity"]), (&json!("a.b/c"), &json!("a")));
        assert_eq!(lease("n", "l", "a.b/c", None, at)["spec"].get("holderIdentity"), None);
    }
}
