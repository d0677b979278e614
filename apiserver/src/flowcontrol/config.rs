//! From the stored objects to what requests are classified by: levels with their limits, schemas in the order they
//! are tried. Levels and schemas a server cannot be without are made up when they are missing. Pure. Answers for
//! upstream's `lockAndDigestConfigObjects`, `cfgMeal`.

use serde_json::Value;

use super::borrowing::Bounds;
use super::queues::QueueMode;
use super::schema::Spec;
use crate::machinery::tree;
use crate::rules::flow_control::FlowControlDefaults;

/// The level of the exempt.
pub(super) const EXEMPT: &str = "exempt";
/// The level of whatever no schema claims.
pub(super) const CATCH_ALL: &str = "catch-all";
/// The part of a level one request may take at most.
const WIDEST_PART: f64 = 0.15;

/// A PriorityLevelConfiguration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LevelSpec {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) mode: QueueMode,
    pub(super) shares: u32,
    pub(super) lendable: u32,
    pub(super) borrowing: Option<u32>,
}

impl LevelSpec {
    /// Reads an object; `None` for one whose parts contradict each other.
    pub(super) fn read(object: &Value) -> Option<Self> {
        let name = tree::name(object);
        let exempt = tree::text(object, "/spec/type") == "Exempt";
        let (limited, free) = (tree::has(object, "/spec/limited"), tree::has(object, "/spec/exempt"));
        if exempt == limited || (free && !exempt) || exempt != (name == EXEMPT) {
            return None;
        }
        let at = |field: &str| format!("/spec/{}/{field}", if exempt { "exempt" } else { "limited" });
        let number = |pointer: &str| tree::int(object, pointer).and_then(|n| u32::try_from(n).ok());
        let queuing = "/spec/limited/limitResponse/queuing";
        let mode = match (exempt, tree::text(object, "/spec/limited/limitResponse/type"), tree::has(object, queuing)) {
            (true, ..) => QueueMode::Exempt,
            (false, "Reject", false) => QueueMode::Reject,
            (false, "Queue", true) => {
                let queues = number(&format!("{queuing}/queues")).unwrap_or(64).max(1);
                QueueMode::Queue {
                    queues,
                    hand: number(&format!("{queuing}/handSize")).unwrap_or(8).clamp(1, queues),
                    length: number(&format!("{queuing}/queueLengthLimit")).unwrap_or(50) as usize,
                }
            }
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            uid: tree::text(object, "/metadata/uid").to_owned(),
            mode,
            shares: number(&at("nominalConcurrencyShares")).unwrap_or(if exempt { 0 } else { 30 }),
            lendable: number(&at("lendablePercent")).unwrap_or(0).min(100),
            borrowing: number(&at("borrowingLimitPercent")).filter(|_| !exempt),
        })
    }

    /// The limits on a server with `total` seats and `shares` shares.
    pub(super) fn bounds(&self, total: u32, shares: u32) -> Bounds {
        let share = if shares == 0 { 0.0 } else { f64::from(self.shares) / f64::from(shares) };
        Bounds::new(total, share, self.lendable, self.borrowing)
    }

    /// Most seats the estimate of one request may come to; 0 is no bound.
    pub(super) fn widest(&self, nominal: u32) -> u32 {
        let QueueMode::Queue { hand, .. } = self.mode else { return 0 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a u32, rounded up")]
        let part = (f64::from(nominal) * WIDEST_PART).ceil() as u32;
        part.min(nominal / hand.max(1)).max(1)
    }
}

/// All flow schemas and priority levels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub(super) levels: Vec<LevelSpec>,
    /// In the order they are tried.
    pub(super) schemas: Vec<Spec>,
}

impl Config {
    /// Reads the objects.
    pub(super) fn digest<'a>(
        levels: impl IntoIterator<Item = &'a Value>,
        schemas: impl IntoIterator<Item = &'a Value>,
    ) -> Self {
        let mut levels: Vec<LevelSpec> = levels.into_iter().filter_map(LevelSpec::read).collect();
        let mut schemas: Vec<Spec> = schemas.into_iter().map(Spec::read).collect();
        schemas.retain(|s| levels.iter().any(|l| l.name == s.level));
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        let made_up = FlowControlDefaults::read();
        let named = |all: &'_ [Value], name: &str| all.iter().find(|o| tree::name(o) == name).cloned();
        for name in [EXEMPT, CATCH_ALL] {
            if !levels.iter().any(|l| l.name == name) {
                levels.extend(named(&made_up.levels, name).as_ref().and_then(LevelSpec::read));
            }
            if !schemas.iter().any(|s| s.name == name) {
                let at = if name == EXEMPT { 0 } else { schemas.len() };
                if let Some(schema) = named(&made_up.schemas, name) {
                    schemas.insert(at, Spec::read(&schema));
                }
            }
        }
        levels.sort_by(|a, b| a.name.cmp(&b.name));
        Self { levels, schemas }
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::RequestDigest;
    use super::*;
    use crate::api::RequestInfo;
    use serde_json::json;
    use shared::authn::UserInfo;

    fn defaults() -> Config {
        let all = crate::bootstrap::flow_control();
        Config::digest(&all["prioritylevelconfigurations"], &all["flowschemas"])
    }

    fn classify(config: &Config, user: &str, groups: &[&str], info: &RequestInfo) -> String {
        let mut groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        groups.push("system:authenticated".into());
        let user = UserInfo { name: user.into(), groups, ..UserInfo::default() };
        let digest = RequestDigest { info, user: &user };
        config.schemas.iter().find(|s| s.covers(&digest)).map_or(String::new(), |s| s.name.clone())
    }

    #[test]
    fn default_flow_schemas_classify_requests() {
        let config = defaults();
        let request = |verb: &str, group: &str, resource: &str, namespace: &str| RequestInfo {
            is_resource: true,
            verb: verb.into(),
            api_group: group.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            ..RequestInfo::default()
        };
        let pods = request("list", "", "pods", "e");
        let lease = request("update", "coordination.k8s.io", "leases", "kube-system");
        let health = RequestInfo { verb: "get".into(), path: "/readyz".into(), ..RequestInfo::default() };
        for (user, groups, info, want) in [
            ("admin", &["system:masters"][..], &pods, "exempt"),
            ("alice", &[], &health, "probes"),
            ("system:kube-scheduler", &[], &lease, "system-leader-election"),
            ("system:kube-scheduler", &[], &pods, "kube-scheduler"),
            ("system:node:n", &["system:nodes"], &lease, "system-node-high"),
            ("system:node:n", &["system:nodes"], &pods, "system-nodes"),
            (
                "system:serviceaccount:kube-system:gc",
                &["system:serviceaccounts"],
                &pods,
                "kube-system-service-accounts",
            ),
            ("system:serviceaccount:e:x", &["system:serviceaccounts"], &pods, "service-accounts"),
            ("alice", &[], &pods, "global-default"),
        ] {
            assert_eq!(classify(&config, user, groups, info), want, "{user} {}", info.resource);
        }
    }

    #[test]
    fn mandatory_objects_are_added() {
        let config = Config::digest(&[], &[]);
        assert_eq!(config.levels.iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), [CATCH_ALL, EXEMPT]);
        assert_eq!(config.schemas.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), [EXEMPT, CATCH_ALL]);
        let pods =
            RequestInfo { is_resource: true, verb: "list".into(), resource: "pods".into(), ..RequestInfo::default() };
        assert_eq!(classify(&config, "alice", &[], &pods), CATCH_ALL);
    }

    #[test]
    fn schemas_without_a_level_do_not_count() {
        let schema = json!({"metadata": {"name": "x"}, "spec": {"matchingPrecedence": 5, "priorityLevelConfiguration": {"name": "nope"}}});
        assert!(Config::digest(&[], [&schema]).schemas.iter().all(|s| s.name != "x"));
    }

    #[test]
    fn levels_that_contradict_themselves_do_not_count() {
        let level = |name: &str, spec: Value| LevelSpec::read(&json!({"metadata": {"name": name}, "spec": spec}));
        assert!(level("a", json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}})).is_some());
        assert!(level("a", json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue"}}})).is_none());
        assert!(level("a", json!({"type": "Limited"})).is_none());
        assert!(level("a", json!({"type": "Exempt", "exempt": {}})).is_none());
        assert!(level(EXEMPT, json!({"type": "Exempt"})).is_some());
    }

    #[test]
    fn request_width_is_limited_by_its_level() {
        let config = defaults();
        let widest: Vec<(String, u32)> =
            config.levels.iter().map(|l| (l.name.clone(), l.widest(l.bounds(600, 245).nominal))).collect();
        for (name, want) in [("workload-low", 37), ("workload-high", 15), ("leader-election", 4), ("catch-all", 0)] {
            assert!(widest.contains(&(name.to_owned(), want)), "{name} {widest:?}");
        }
    }
}
