//! Legacy token secrets that nobody uses any more. Answers for upstream's `LegacySATokenCleaner.evaluateSATokens`.
//!
//! In: a secret, its account, whether a pod mounts it, since when use is tracked. Out: mark it invalid, delete it, or
//! leave it. Dates are days, as the API server writes them. No I/O here.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::jiff::civil::Date;
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};

use crate::engine::object;

/// On secrets: the day the API server last saw the token.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// On secrets: since when the token is refused.
pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Actions on a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretAction {
    /// Nothing.
    Keep,
    /// Label it as invalid since today.
    Invalidate,
    /// The secret was invalid for long enough.
    Delete,
}

/// The day of a time.
#[must_use]
pub fn day(at: Timestamp) -> Date {
    at.to_zoned(TimeZone::UTC).date()
}

/// A time that long ago.
#[must_use]
pub fn ago(now: Timestamp, d: Duration) -> Timestamp {
    now.checked_sub(SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MIN)
}

/// Reports whether use has been tracked for the whole period. `since` is what the API server noted when it began.
#[must_use]
pub fn tracked_long_enough(since: &str, now: Timestamp, period: Duration) -> bool {
    // It began at some time of that day: the next one is the first that counts whole.
    let Some(first) = parse(since).and_then(|d| d.tomorrow().ok()) else { return false };
    first.to_zoned(TimeZone::UTC).is_ok_and(|first| first.timestamp() <= ago(now, period))
}

/// Judge a token secret whose account is `account`.
#[must_use]
pub fn judge(
    secret: &Secret,
    account: &ServiceAccount,
    mounted: bool,
    now: Timestamp,
    period: Duration,
) -> SecretAction {
    let limit = ago(now, period);
    let generated = account.secrets.iter().flatten().any(|r| r.name == secret.metadata.name);
    let recent = object::created(&secret.metadata) >= limit;
    if mounted || recent || !generated || object::deleting(&secret.metadata) {
        return SecretAction::Keep;
    }
    if let Some(used) = object::label(&secret.metadata, LAST_USED)
        && parse(used).is_none_or(|d| d >= day(limit))
    {
        return SecretAction::Keep;
    }
    match object::label(&secret.metadata, INVALID_SINCE).and_then(parse) {
        None => SecretAction::Invalidate,
        Some(since) if since >= day(limit) => SecretAction::Keep,
        Some(_) => SecretAction::Delete,
    }
}

fn parse(day: &str) -> Option<Date> {
    day.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn now() -> Timestamp {
        "2026-06-15T12:00:00Z".parse().expect("time")
    }

    #[test]
    fn tracking() {
        for (since, want) in [("2025-06-13", true), ("2025-06-14", true), ("2025-06-15", false), ("soon", false)] {
            assert_eq!(tracked_long_enough(since, now(), YEAR), want, "{since}");
        }
    }

    #[test]
    fn verdicts() {
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "secrets": [{"name": "t"}]})).expect("account");
        let other = ServiceAccount::default();
        let secret = |created: &str, labels: Value| -> Secret {
            serde_json::from_value(json!({"metadata": {"name": "t", "creationTimestamp": created, "labels": labels}}))
                .expect("secret")
        };
        let old = "2020-01-01T00:00:00Z";
        for (created, labels, account, mounted, want, why) in [
            (old, json!({}), &account, false, SecretAction::Invalidate, "never used since tracking began"),
            (old, json!({LAST_USED: "2024-01-01"}), &account, false, SecretAction::Invalidate, "used long ago"),
            (old, json!({LAST_USED: "2026-01-01"}), &account, false, SecretAction::Keep, "used"),
            (old, json!({}), &account, true, SecretAction::Keep, "mounted"),
            (old, json!({}), &other, false, SecretAction::Keep, "made by hand"),
            ("2026-01-01T00:00:00Z", json!({}), &account, false, SecretAction::Keep, "new"),
            (
                old,
                json!({INVALID_SINCE: "2026-01-01"}),
                &account,
                false,
                SecretAction::Keep,
                "its owner may still object",
            ),
            (old, json!({INVALID_SINCE: "2025-06-14"}), &account, false, SecretAction::Delete, "nobody objected"),
            (old, json!({INVALID_SINCE: "x"}), &account, false, SecretAction::Invalidate, "no date"),
        ] {
            assert_eq!(judge(&secret(created, labels), account, mounted, now(), YEAR), want, "{why}");
        }
    }
}
