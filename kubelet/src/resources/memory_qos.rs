//! Memory that pods and tiers are kept, and above which they are slowed down: `MemoryQoS` on cgroup v2, and `QOSReserved`.
//! Pure. Answers for upstream's `setMemoryQoS`, `setMemoryReserve`, `ParseQOSReserved` and the part of
//! `generateLinuxContainerConfig` about `memory.high`.

use super::limits::pod_requests;
use super::{Amounts, QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::collections::BTreeMap;

/// Control files of cgroup v2.
const MIN: &str = "memory.min";
const HIGH: &str = "memory.high";
/// Size of pages that the kernel counts in.
const PAGE: f64 = 4096.0;

/// Settings of the tiers that follow from the pods that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierSettings {
    /// Shares of the burstable tier.
    pub(super) shares: i64,
    /// Memory that is kept for burstable pods and for all pods.
    pub(super) kept: Option<(i64, i64)>,
    /// Memory that burstable and best-effort pods may have.
    pub(super) most: Option<(i64, i64)>,
}

/// Shares in `qosReserved` that are wrong, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum QosReservedError {
    /// Another resource than memory.
    #[error("cannot reserve {0:?} resource")]
    Resource(String),
    /// A text that is no share.
    #[error("failed to parse percentage {text:?} for {resource:?} resource: {problem}")]
    Share {
        /// The text.
        text: String,
        /// The resource.
        resource: String,
        /// Fault of the text.
        #[source]
        problem: ShareProblem,
    },
}

/// Problems of a text that is no share in hundredths.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareProblem {
    /// No `%` at the end.
    #[error("percentage expected, got '{0}'")]
    NoSign(String),
    /// No number at the beginning.
    #[error("invalid number in percentage '{0}'")]
    NoNumber(String),
    /// More than everything, or less than nothing.
    #[error("percentage must be between 0 and 100")]
    Range,
}

/// Reads `qosReserved`: a share in hundredths for memory.
///
/// # Errors
/// Upstream's text.
pub fn parse_qos_reserved(reserved: &BTreeMap<String, String>) -> Result<Option<i64>, QosReservedError> {
    let mut memory = None;
    for (resource, text) in reserved {
        if resource != "memory" {
            return Err(QosReservedError::Resource(resource.clone()));
        }
        let failed = |problem| QosReservedError::Share { text: text.clone(), resource: resource.clone(), problem };
        let number = text.strip_suffix('%').ok_or_else(|| failed(ShareProblem::NoSign(text.clone())))?;
        let number: i64 = number.parse().map_err(|_| failed(ShareProblem::NoNumber(text.clone())))?;
        if !(0..=100).contains(&number) {
            return Err(failed(ShareProblem::Range));
        }
        memory = Some(number);
    }
    Ok(memory)
}

/// Control files of a container: the memory that it asks for is kept for it, and above the `factor`th part of the way from
/// there to its limit, or to `allocatable`, it is slowed down.
pub(super) fn of_container(container: &Container, allocatable: i64, factor: f64) -> BTreeMap<String, String> {
    let request = Amounts::requests(container.resources.as_ref()).memory.unwrap_or(0);
    let limit = Amounts::limits(container.resources.as_ref()).memory.unwrap_or(0);
    let mut files = BTreeMap::new();
    if request != 0 {
        files.insert(MIN.to_owned(), request.to_string());
    }
    let most = if limit == 0 { allocatable } else { limit };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "upstream's formula in floats; casts saturate"
    )]
    let high = ((request as f64 + (most as f64 - request as f64) * factor) / PAGE).floor() as i64;
    let high = high.saturating_mul(4096);
    // One that may have what it asks for alone is never above it.
    if request != limit && most > 0 && high > request {
        files.insert(HIGH.to_owned(), high.to_string());
    }
    files
}

/// Memory that pods of a tier ask for.
fn requested(active: &[&Pod], class: QosClass) -> i64 {
    let of = |pod: &&Pod| pod_requests(pod.spec.as_ref()?).memory;
    active.iter().filter(|pod| qos_class(pod) == class).filter_map(of).fold(0, i64::saturating_add)
}

/// Memory that is kept for burstable pods, and for all pods.
pub(super) fn kept(active: &[&Pod]) -> (i64, i64) {
    let burstable = requested(active, QosClass::Burstable);
    (burstable, requested(active, QosClass::Guaranteed).saturating_add(burstable))
}

/// Memory that burstable and best-effort pods may have where pods of better tiers are kept a share of theirs.
pub(super) fn most(active: &[&Pod], allocatable: i64, percent: i64) -> (i64, i64) {
    let share = |bytes: i64| i64::try_from(i128::from(bytes) * i128::from(percent) / 100).unwrap_or(i64::MAX);
    let burstable = allocatable.saturating_sub(share(requested(active, QosClass::Guaranteed)));
    (burstable, burstable.saturating_sub(share(requested(active, QosClass::Burstable))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(request: Option<&str>, limit: Option<&str>) -> Container {
        let list = |value: Option<&str>| value.map(|value| json!({"memory": value}));
        let resources = json!({"requests": list(request), "limits": list(limit)});
        serde_json::from_value(json!({"name": "c", "resources": resources})).expect("container")
    }

    #[test]
    fn containers_are_kept_their_request_and_slowed_down_before_their_limit() {
        let files = |request, limit| {
            let files = of_container(&container(request, limit), 10 << 20, 0.9);
            (files.get(MIN).cloned(), files.get(HIGH).cloned())
        };
        let text = |bytes: i64| Some(bytes.to_string());
        assert_eq!(files(Some("1Mi"), Some("2Mi")), (text(1 << 20), text(1_990_656)));
        assert_eq!(files(Some("1Mi"), None), (text(1 << 20), text(9_539_584)));
        assert_eq!(files(None, Some("2Mi")), (None, text(1_884_160)));
        assert_eq!(files(Some("2Mi"), Some("2Mi")), (text(2 << 20), None));
        assert_eq!(files(None, None), (None, None));
    }

    #[test]
    fn tiers_are_kept_and_limited_by_what_their_pods_ask_for() {
        let pod = |container: Container| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [container]}})).expect("pod")
        };
        let mut whole = container(Some("300"), Some("300"));
        let resources = whole.resources.get_or_insert_default();
        for list in [&mut resources.requests, &mut resources.limits] {
            let cpu = serde_json::from_value(json!("1")).expect("quantity");
            list.get_or_insert_default().insert("cpu".to_owned(), cpu);
        }
        let all = [pod(whole), pod(container(Some("100"), None)), pod(container(None, None))];
        let active: Vec<&Pod> = all.iter().collect();
        assert_eq!(kept(&active), (100, 400));
        assert_eq!(most(&active, 1000, 50), (850, 800));
        assert_eq!(most(&active, 1000, 0), (1000, 1000));
    }

    #[test]
    fn shares_of_memory_alone_are_reserved() {
        let parse = |resource: &str, text: &str| parse_qos_reserved(&[(resource.to_owned(), text.to_owned())].into());
        assert_eq!(parse_qos_reserved(&BTreeMap::new()), Ok(None));
        assert_eq!(parse("memory", "50%"), Ok(Some(50)));
        let of = "failed to parse percentage";
        for (found, text) in [
            (parse("cpu", "50%"), "cannot reserve \"cpu\" resource".to_owned()),
            (parse("memory", "50"), format!("{of} \"50\" for \"memory\" resource: percentage expected, got '50'")),
            (parse("memory", "x%"), format!("{of} \"x%\" for \"memory\" resource: invalid number in percentage 'x%'")),
            (
                parse("memory", "101%"),
                format!("{of} \"101%\" for \"memory\" resource: percentage must be between 0 and 100"),
            ),
        ] {
            assert_eq!(found.expect_err(&text).to_string(), text);
        }
    }
}
