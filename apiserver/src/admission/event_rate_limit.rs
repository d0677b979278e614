//! EventRateLimit: so many events per second for the server, each namespace, each user, or each source and object.
//! Answers for upstream's `plugin/pkg/admission/eventratelimit`.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use shared::status::Status;
use shared::status::field::aggregate;

use super::{Attributes, Error, Plugin};
use crate::machinery::tree;

/// Buckets kept of one limit unless it says otherwise.
const CACHE: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitType {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

impl LimitType {
    fn read(name: &str) -> Option<Self> {
        Some(match name {
            "Server" => Self::Server,
            "Namespace" => Self::Namespace,
            "User" => Self::User,
            "SourceAndObject" => Self::SourceAndObject,
            _ => return None,
        })
    }

    fn key(self, a: &Attributes<'_>) -> String {
        match self {
            Self::Server => String::new(),
            Self::Namespace => a.namespace.to_owned(),
            Self::User => a.user.name.clone(),
            Self::SourceAndObject => {
                let event = a.object().unwrap_or(&Value::Null);
                let about = |f: &str| tree::text(event, &format!("/involvedObject/{f}"));
                let source = ["/source/component", "/source/host"].map(|f| tree::text(event, f));
                let object = ["kind", "namespace", "name", "uid", "apiVersion"].map(about);
                source.concat() + &object.concat()
            }
        }
    }
}

struct Bucket {
    tokens: f64,
    filled: Instant,
    used: u64,
}

/// Buckets by key; the one that was not used for longest makes room.
#[derive(Default)]
struct Buckets {
    by_key: HashMap<String, Bucket>,
    by_use: BTreeMap<u64, String>,
    uses: u64,
}

struct Limit {
    kind: LimitType,
    qps: f64,
    burst: f64,
    room: usize,
    buckets: Mutex<Buckets>,
}

impl Limit {
    fn accept(&self, key: &str, now: Instant) -> bool {
        let mut all = self.buckets.lock();
        all.uses += 1;
        let used = all.uses;
        let mut bucket = match all.by_key.remove(key) {
            Some(bucket) => {
                all.by_use.remove(&bucket.used);
                bucket
            }
            None => Bucket { tokens: self.burst, filled: now, used },
        };
        let passed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * self.qps).min(self.burst);
        (bucket.filled, bucket.used) = (now, used);
        let accepted = bucket.tokens >= 1.0;
        if accepted {
            bucket.tokens -= 1.0;
        }
        if all.by_key.len() >= self.room
            && let Some((_, oldest)) = all.by_use.pop_first()
        {
            all.by_key.remove(&oldest);
        }
        all.by_use.insert(used, key.to_owned());
        all.by_key.insert(key.to_owned(), bucket);
        accepted
    }
}

/// The plugin.
pub(super) struct EventRateLimit {
    limits: Vec<(String, Limit)>,
}

impl EventRateLimit {
    /// From its configuration, which it cannot be without.
    pub(super) fn new(configuration: &Value) -> Result<Self, Error> {
        let wrong =
            |why: String| Error::Configuration(format!("couldn't init admission plugin \"EventRateLimit\": {why}"));
        let limits = tree::list(configuration, "/limits");
        if limits.is_empty() {
            return Err(wrong("limits: Invalid value: null: must not be empty".to_owned()));
        }
        let mut all = Vec::new();
        for (at, limit) in limits.iter().enumerate() {
            let name = tree::text(limit, "/type");
            let Some(kind) = LimitType::read(name) else {
                return Err(wrong(format!(
                    "limits[{at}].type: Unsupported value: {name:?}: supported values: \"Namespace\", \"Server\", \"SourceAndObject\", \"User\""
                )));
            };
            let number = |field: &str, least: i64| {
                let value = tree::int(limit, &format!("/{field}")).unwrap_or(0);
                if value < least {
                    return Err(wrong(format!("limits[{at}].{field}: Invalid value: {value}: must be positive")));
                }
                Ok(value)
            };
            let (qps, burst, room) = (number("qps", 1)?, number("burst", 1)?, number("cacheSize", 0)?);
            if burst < qps {
                return Err(wrong(format!(
                    "limits[{at}].burst: Invalid value: {burst}: must be greater than or equal to qps"
                )));
            }
            #[expect(clippy::cast_precision_loss, reason = "a limit per second is a float")]
            let limit = Limit {
                kind,
                qps: qps as f64,
                burst: burst as f64,
                room: usize::try_from(room).ok().filter(|n| *n > 0).unwrap_or(CACHE),
                buckets: Mutex::default(),
            };
            all.push((name.to_owned(), limit));
        }
        Ok(Self { limits: all })
    }
}

#[async_trait]
impl Plugin for EventRateLimit {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if a.dry_run {
            return Ok(());
        }
        let now = Instant::now();
        let mut exceeded = Vec::new();
        for (name, limit) in &self.limits {
            let key = limit.kind.key(a);
            if !limit.accept(&key, now) {
                exceeded.push(format!("Too many requests: limit reached on type {name} for key {key}"));
            }
        }
        if exceeded.is_empty() {
            return Ok(());
        }
        let all = aggregate(&exceeded);
        Err(Status::failure(429, "TooManyRequests", format!("Too many requests: {all}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Write;
    use serde_json::json;
    use std::time::Duration;

    fn limit(kind: &str, burst: i64) -> Value {
        json!({"type": kind, "qps": 1, "burst": burst})
    }

    fn event(namespace: &str) -> Write<'_> {
        let object = json!({"source": {"component": "c"}, "involvedObject": {"kind": "Pod", "name": "p"}});
        Write::create("", "events", namespace, object)
    }

    #[tokio::test]
    async fn each_namespace_has_its_own_bucket() {
        let plugin = EventRateLimit::new(&json!({"limits": [limit("Namespace", 2)]})).expect("configured");
        for (namespace, accepted) in [("a", true), ("a", true), ("a", false), ("b", true)] {
            let outcome = event(namespace).validate(&plugin).await;
            assert_eq!(outcome.is_ok(), accepted, "{namespace}");
            if let Err(status) = outcome {
                assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"));
                assert_eq!(
                    status.message,
                    "Too many requests: Too many requests: limit reached on type Namespace for key a"
                );
            }
        }
        assert!(event("a").dry().validate(&plugin).await.is_ok());
    }

    #[test]
    fn buckets_fill_and_are_bounded() {
        let (_, limit) =
            EventRateLimit::new(&json!({"limits": [{"type": "User", "qps": 1, "burst": 1, "cacheSize": 2}]}))
                .expect("configured")
                .limits
                .remove(0);
        let now = Instant::now();
        assert!(limit.accept("a", now));
        assert!(!limit.accept("a", now));
        assert!(limit.accept("a", now + Duration::from_secs(1)));
        assert!(limit.accept("b", now) && limit.accept("c", now));
        assert_eq!(limit.buckets.lock().by_key.len(), 2);
        assert!(limit.accept("a", now), "forgotten meanwhile");
    }

    #[test]
    fn limits_are_checked() {
        for wrong in [
            json!({}),
            json!({"limits": [limit("Nope", 1)]}),
            json!({"limits": [{"type": "User", "qps": 5, "burst": 1}]}),
        ] {
            assert!(EventRateLimit::new(&wrong).is_err(), "{wrong}");
        }
    }
}
