//! The conditions of a migration, and which objects still need a write. Answers for upstream's
//! `pkg/controller/storageversionmigrator`.

use std::cmp::Ordering;

use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use crate::engine::object::seconds;
use crate::engine::rest::RestError;

/// Phases of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationPhase {
    /// Objects are written.
    Running,
    /// All were.
    Succeeded,
    /// The migration cannot be done.
    Failed,
}

impl MigrationPhase {
    const ALL: [Self; 3] = [Self::Running, Self::Succeeded, Self::Failed];

    fn kind(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Running => "StorageVersionMigrationInProgress",
            Self::Succeeded => "StorageVersionMigrationSucceeded",
            Self::Failed => "StorageVersionMigrationFailed",
        }
    }

    /// Reports whether the migration has the condition of this phase.
    #[must_use]
    pub fn is(self, migration: &StorageVersionMigration) -> bool {
        let conditions = migration.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == self.kind() && c.status == "True")
    }
}

/// The migration in a phase. What it was before is not true any more.
#[must_use]
pub fn in_phase(
    migration: &StorageVersionMigration,
    phase: MigrationPhase,
    message: &str,
    now: Timestamp,
) -> StorageVersionMigration {
    let mut copy = migration.clone();
    let conditions = copy.status.get_or_insert_default().conditions.get_or_insert_default();
    for other in MigrationPhase::ALL {
        let value = if other == phase { "True" } else { "False" };
        match conditions.iter_mut().find(|c| c.type_ == other.kind()) {
            // Upstream leaves the time of the change as it is.
            Some(c) => c.status = value.into(),
            None if other == phase => conditions.push(Condition {
                type_: other.kind().into(),
                status: value.into(),
                reason: other.reason().into(),
                message: message.into(),
                last_transition_time: seconds(now),
                observed_generation: None,
            }),
            None => {}
        }
    }
    copy
}

/// Reports whether the server would refuse the write the next time, too.
#[must_use]
pub fn hopeless(error: &RestError) -> bool {
    let RestError::Api { code, .. } = error else { return false };
    !matches!(code, 429 | 500 | 503 | 504)
}

/// Version of an object that is no number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("resource version is not well formed: {0}")]
pub struct MalformedVersion(String);

/// Compares two versions of a resource's objects. Versions are numbers that grow, of any length.
///
/// # Errors
/// One that is no such number.
pub fn compare(a: &str, b: &str) -> Result<Ordering, MalformedVersion> {
    let formed = |v: &str| !v.is_empty() && !v.starts_with('0') && v.bytes().all(|c| c.is_ascii_digit());
    match [a, b].into_iter().find(|v| !formed(v)) {
        Some(bad) => Err(MalformedVersion(bad.to_owned())),
        None => Ok(a.len().cmp(&b.len()).then_with(|| a.cmp(b))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn phases() {
        let now = "2026-01-01T00:00:00Z".parse().expect("time");
        let made: StorageVersionMigration = serde_json::from_value(
            json!({"metadata": {"name": "m"}, "spec": {"resource": {"group": "", "resource": "secrets"}}}),
        )
        .expect("migration");
        let running = in_phase(&made, MigrationPhase::Running, "", now);
        let later = "2026-01-01T00:01:00Z".parse().expect("time");
        assert!(MigrationPhase::Running.is(&running) && !MigrationPhase::Succeeded.is(&running));
        let done = in_phase(&running, MigrationPhase::Succeeded, "", later);
        let shown = serde_json::to_value(done.status).expect("json");
        let list: Vec<String> = shown["conditions"]
            .as_array()
            .expect("list")
            .iter()
            .map(|c| {
                format!(
                    "{}={} {} {}",
                    c["type"].as_str().unwrap_or(""),
                    c["status"].as_str().unwrap_or(""),
                    c["reason"].as_str().unwrap_or(""),
                    c["lastTransitionTime"].as_str().unwrap_or("")
                )
            })
            .collect();
        assert_eq!(
            list,
            [
                "Running=False StorageVersionMigrationInProgress 2026-01-01T00:00:00Z",
                "Succeeded=True StorageVersionMigrationSucceeded 2026-01-01T00:01:00Z"
            ]
        );
        assert_eq!(shown["conditions"][0]["observedGeneration"], serde_json::Value::Null);
    }

    #[test]
    fn what_is_tried_again() {
        let api = |code| RestError::Api { code, reason: String::new(), message: "no".into(), causes: Vec::new() };
        for (error, want) in [
            (api(403), true),
            (api(404), true),
            (api(422), true),
            (api(429), false),
            (api(500), false),
            (api(503), false),
            (RestError::other("connection reset"), false),
        ] {
            assert_eq!(hopeless(&error), want, "{error:?}");
        }
    }

    #[test]
    fn versions_are_compared() {
        let bad = |v: &str| Err(MalformedVersion(v.to_owned()));
        for (a, b, want) in [
            ("5", "10", Ok(Ordering::Less)),
            ("10", "10", Ok(Ordering::Equal)),
            ("11", "10", Ok(Ordering::Greater)),
            ("99999999999999999999999", "100000000000000000000000", Ok(Ordering::Less)),
            ("abc", "10", bad("abc")),
            ("10", "", bad("")),
            ("0", "10", bad("0")),
            ("10", "010", bad("010")),
        ] {
            assert_eq!(compare(a, b), want, "{a} {b}");
        }
    }
}
