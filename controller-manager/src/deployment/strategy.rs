//! The arithmetic of rollouts: surge, unavailability, proportions. Numbers of pods are `i64` here, so that no sum of what
//! users write into `i32` fields overflows; [`stored`] brings them back. Answers for upstream's `ResolveFenceposts`,
//! `GetReplicaSetProportion`.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::annotations;

/// Replicas asked of the deployment.
#[must_use]
pub fn replicas(d: &Deployment) -> i64 {
    d.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1).into()
}

/// A number of pods as a field of an object holds it.
#[must_use]
pub fn stored(count: i64) -> i32 {
    i32::try_from(count).unwrap_or(if count < 0 { i32::MIN } else { i32::MAX })
}

/// The most pods that may exist during a rollout: replicas and surge, as far as a field holds it.
#[must_use]
pub fn most_replicas(d: &Deployment) -> i64 {
    (replicas(d) + max_surge(d)).min(i32::MAX.into())
}

/// Replicas asked of a set.
#[must_use]
pub fn size(r: &ReplicaSet) -> i64 {
    r.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1).into()
}

/// Replicas a set reports.
#[must_use]
pub fn status_replicas(r: &ReplicaSet) -> i64 {
    r.status.as_ref().map_or(0, |s| s.replicas.into())
}

/// Available replicas a set reports.
#[must_use]
pub fn available(r: &ReplicaSet) -> i64 {
    r.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0).into()
}

/// Reports whether old pods are replaced step by step.
#[must_use]
pub fn is_rolling(d: &Deployment) -> bool {
    d.spec
        .as_ref()
        .and_then(|s| s.strategy.as_ref())
        .and_then(|s| s.type_.as_deref())
        .is_none_or(|t| t == "RollingUpdate")
}

/// An absolute number or a share of `total`, rounded as told.
#[must_use]
pub fn scaled(value: Option<&IntOrString>, total: i32, up: bool) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(n)) => *n,
        Some(IntOrString::String(s)) => {
            let percent: i64 = s.strip_suffix('%').and_then(|p| p.parse().ok()).unwrap_or(0);
            let product = percent.saturating_mul(total.into());
            let value = if up { product.saturating_add(99).div_euclid(100) } else { product.div_euclid(100) };
            stored(value)
        }
    }
}

fn fenceposts(d: &Deployment) -> (i64, i64) {
    let rolling = d.spec.as_ref().and_then(|s| s.strategy.as_ref()).and_then(|s| s.rolling_update.as_ref());
    let share = |value, up| i64::from(scaled(value, stored(replicas(d)), up));
    let surge = share(rolling.and_then(|r| r.max_surge.as_ref()), true);
    let unavailable = share(rolling.and_then(|r| r.max_unavailable.as_ref()), false);
    // Both zero would never move.
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

/// Number of pods above the desired number that may exist.
#[must_use]
pub fn max_surge(d: &Deployment) -> i64 {
    if is_rolling(d) { fenceposts(d).0 } else { 0 }
}

/// Number of pods below the desired number that may be unavailable.
#[must_use]
pub fn max_unavailable(d: &Deployment) -> i64 {
    if !is_rolling(d) || replicas(d) == 0 { 0 } else { fenceposts(d).1.min(replicas(d)) }
}

/// The size the new set may have now, given that all sets together hold `total` pods.
#[must_use]
pub fn new_set_size(d: &Deployment, total: i64, current: i64) -> i64 {
    if !is_rolling(d) {
        return replicas(d);
    }
    let limit = most_replicas(d);
    if total >= limit { current } else { current + (limit - total).min(replicas(d) - current) }
}

/// The share of a change of `to_add` pods (of which `added` are given out) that falls to this set.
#[must_use]
pub fn proportion(r: &ReplicaSet, d: &Deployment, to_add: i64, added: i64) -> i64 {
    if size(r) == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let share = fraction(r, d);
    let allowed = to_add - added;
    if to_add > 0 { share.min(allowed) } else { share.max(allowed) }
}

fn fraction(r: &ReplicaSet, d: &Deployment) -> i64 {
    if replicas(d) == 0 {
        return -size(r);
    }
    let before = annotations::max_replicas(r)
        .filter(|n| *n != 0)
        .unwrap_or_else(|| d.status.as_ref().and_then(|s| s.replicas).unwrap_or(0).into());
    if before == 0 {
        return 0;
    }
    let new = (f64::from(stored(size(r))) * f64::from(stored(most_replicas(d))) / f64::from(stored(before))).round();
    #[allow(clippy::cast_possible_truncation, reason = "a replica count times a ratio of replica counts")]
    let new = new as i32;
    i64::from(new) - size(r)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(replicas: i32, surge: serde_json::Value, unavailable: serde_json::Value) -> Deployment {
        serde_json::from_value(json!({"spec": {"replicas": replicas, "selector": {}, "template": {},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}}))
        .expect("deployment")
    }

    #[test]
    fn surge_rounds_up_and_unavailable_down() {
        for (n, surge, unavailable, want) in [
            (10, json!("25%"), json!("25%"), (3, 2)),
            (2, json!("25%"), json!("25%"), (1, 0)),
            (1, json!(0), json!("25%"), (0, 1)),
            (3, json!(5), json!(7), (5, 3)),
            (0, json!("25%"), json!(1), (0, 0)),
        ] {
            let d = deployment(n, surge, unavailable);
            assert_eq!((max_surge(&d), max_unavailable(&d)), want, "{n}");
        }
    }

    #[test]
    fn the_new_set_grows_into_the_room_left() {
        let d = deployment(10, json!(2), json!(2));
        assert_eq!(new_set_size(&d, 10, 0), 2);
        assert_eq!(new_set_size(&d, 12, 4), 4);
        assert_eq!(new_set_size(&d, 4, 2), 10);
    }

    #[test]
    fn the_largest_numbers_are_as_large_as_a_field_holds() {
        for surge in [json!("2147483647%"), json!("9223372036854775807%"), json!(i32::MAX)] {
            let d = deployment(i32::MAX, surge, json!(0));
            assert_eq!((max_surge(&d), most_replicas(&d)), (i32::MAX.into(), i32::MAX.into()));
            assert_eq!(new_set_size(&d, 4 * i64::from(i32::MAX), 7), 7);
            assert_eq!(new_set_size(&d, 0, 0), i64::from(i32::MAX));
        }
    }
}
