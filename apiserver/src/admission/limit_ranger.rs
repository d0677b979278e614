//! LimitRanger: containers get their namespace's default requests and limits; containers, pods and claims
//! outside the allowed range are refused. Answers for upstream's `plugin/pkg/admission/limitranger`.

use std::sync::Arc;

use async_trait::async_trait;
use proto::quantity::Quantity;
use serde_json::{Value, json};
use shared::status::Status;
use shared::status::field::aggregate;

use super::resource_list::{self, List};
use super::{Attributes, Operation, Plugin};
use crate::api::Reader;
use crate::machinery::tree;
use crate::registry::core::limit_range::LIMIT_RANGES;
use crate::registry::core::persistent_volume_claim::PERSISTENT_VOLUME_CLAIMS;
use crate::registry::core::pod::PODS;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The plugin.
pub(super) struct LimitRanger {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl Plugin for LimitRanger {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let created = a.is(PODS) && a.operation == Operation::Create;
        let resized = a.of(PODS) && a.subresource == "resize";
        if !created && !resized {
            return Ok(());
        }
        let ranges = self.reader.list(LIMIT_RANGES, Some(a.namespace));
        if let Some(pod) = a.object.as_deref_mut() {
            for range in sorted(ranges) {
                set_defaults(pod, &range);
            }
        }
        Ok(())
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let resize = a.of(PODS) && a.subresource == "resize";
        let pod = resize || (a.is(PODS) && a.operation == Operation::Create);
        let claim = a.is(PERSISTENT_VOLUME_CLAIMS);
        if !pod && !claim {
            return Ok(());
        }
        if a.old_object.is_some_and(|old| tree::has(old, "/metadata/deletionTimestamp")) {
            return Ok(());
        }
        let Some(object) = a.object() else { return Ok(()) };
        for range in sorted(self.reader.list(LIMIT_RANGES, Some(a.namespace))) {
            let problems = if pod { pod_problems(object, &range) } else { claim_problems(object, &range) };
            if !problems.is_empty() {
                return Err(a.forbidden(aggregate(&problems)));
            }
        }
        Ok(())
    }
}

fn sorted(mut ranges: Vec<Arc<Value>>) -> Vec<Arc<Value>> {
    ranges.sort_by(|a, b| tree::name(a).cmp(tree::name(b)));
    ranges
}

fn items<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    tree::list(range, "/spec/limits").iter().filter(move |i| tree::text(i, "/type") == kind)
}

fn set_defaults(pod: &mut Value, range: &Value) {
    let (mut requests, mut limits) = (List::new(), List::new());
    for item in items(range, "Container") {
        requests.extend(resource_list::read(item, "/defaultRequest"));
        limits.extend(resource_list::read(item, "/default"));
    }
    if requests.is_empty() && limits.is_empty() {
        return;
    }
    let mut notes = Vec::new();
    for (list, what) in [("/spec/containers", "container"), ("/spec/initContainers", "init container")] {
        for container in tree::existing_list_mut(pod, list).into_iter().flatten() {
            let name = tree::name_field(container).to_owned();
            for (kind, word, defaults) in [("requests", "request", &requests), ("limits", "limit", &limits)] {
                let set = fill(container, kind, defaults);
                if !set.is_empty() {
                    notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let text = format!("LimitRanger plugin set: {}", notes.join("; "));
        *tree::field(pod, &["metadata", "annotations", ANNOTATION]) = json!(text);
    }
}

fn fill(container: &mut Value, kind: &str, defaults: &List) -> Vec<String> {
    let mut set = Vec::new();
    if defaults.is_empty() {
        return set;
    }
    let Some(own) = tree::map_mut(container, &["resources", kind]) else { return set };
    for (name, quantity) in defaults {
        if !own.contains_key(name) {
            own.insert(name.clone(), json!(quantity.to_string()));
            set.push(name.clone());
        }
    }
    set
}

struct Usage<'a> {
    kind: &'a str,
    requests: List,
    limits: List,
}

impl Usage<'_> {
    fn below_min(&self, name: &str, min: &Quantity) -> Option<String> {
        let kind = self.kind;
        let Some(request) = self.requests.get(name) else {
            return Some(format!("minimum {name} usage per {kind} is {min}.  No request is specified"));
        };
        if request < min {
            return Some(format!("minimum {name} usage per {kind} is {min}, but request is {request}"));
        }
        let limit = self.limits.get(name).filter(|l| *l < min)?;
        Some(format!("minimum {name} usage per {kind} is {min}, but limit is {limit}"))
    }

    fn above_max(&self, name: &str, max: &Quantity) -> Option<String> {
        let kind = self.kind;
        let Some(limit) = self.limits.get(name) else {
            return Some(format!("maximum {name} usage per {kind} is {max}.  No limit is specified"));
        };
        if limit > max {
            return Some(format!("maximum {name} usage per {kind} is {max}, but limit is {limit}"));
        }
        let request = self.requests.get(name).filter(|r| *r > max)?;
        Some(format!("maximum {name} usage per {kind} is {max}, but request is {request}"))
    }

    fn above_ratio(&self, name: &str, max: &Quantity) -> Option<String> {
        let kind = self.kind;
        let number = |list: &List| list.get(name).map(Quantity::as_f64).filter(|v| *v != 0.0);
        let text = format!("{name} max limit to request ratio per {kind} is {max}, but ");
        let Some(request) = number(&self.requests) else {
            return Some(text + "no request is specified or request is 0");
        };
        let Some(limit) = number(&self.limits) else {
            return Some(text + "no limit is specified or limit is 0");
        };
        let ratio = limit / request;
        (ratio > max.as_f64()).then(|| format!("{text}provided ratio is {ratio:.6}"))
    }

    fn problems(&self, item: &Value) -> Vec<String> {
        let mut found = Vec::new();
        let (min, max) = (resource_list::read(item, "/min"), resource_list::read(item, "/max"));
        found.extend(min.iter().filter_map(|(n, q)| self.below_min(n, q)));
        found.extend(max.iter().filter_map(|(n, q)| self.above_max(n, q)));
        let ratio = resource_list::read(item, "/maxLimitRequestRatio");
        found.extend(ratio.iter().filter_map(|(n, q)| self.above_ratio(n, q)));
        found
    }
}

fn pod_problems(pod: &Value, range: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for item in items(range, "Container") {
        for list in ["/spec/containers", "/spec/initContainers"] {
            for container in tree::list(pod, list) {
                let usage = Usage {
                    kind: "Container",
                    requests: resource_list::read(container, "/resources/requests"),
                    limits: resource_list::read(container, "/resources/limits"),
                };
                found.extend(usage.problems(item));
            }
        }
    }
    for item in items(range, "Pod") {
        let usage = Usage {
            kind: "Pod",
            requests: resource_list::of_pod(pod, "requests"),
            limits: resource_list::of_pod(pod, "limits"),
        };
        found.extend(usage.problems(item));
    }
    found
}

fn claim_problems(claim: &Value, range: &Value) -> Vec<String> {
    const KIND: &str = "PersistentVolumeClaim";
    let usage =
        Usage { kind: KIND, requests: resource_list::read(claim, "/spec/resources/requests"), limits: List::new() };
    let mut found = Vec::new();
    for item in items(range, KIND) {
        found.extend(resource_list::read(item, "/min").iter().filter_map(|(n, q)| usage.below_min(n, q)));
        for (name, max) in resource_list::read(item, "/max") {
            match usage.requests.get(&name) {
                None => found.push(format!("maximum {name} usage per {KIND} is {max}.  No request is specified")),
                Some(request) if *request > max => {
                    found.push(format!("maximum {name} usage per {KIND} is {max}, but request is {request}"));
                }
                Some(_) => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range() -> Value {
        json!({"spec": {"limits": [
            {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "200m", "memory": "64Mi"},
             "min": {"cpu": "100m"}, "max": {"cpu": "1"}},
            {"type": "Pod", "max": {"memory": "1Gi"}},
            {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]}})
    }

    fn pod(resources: Value) -> Value {
        json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": resources}]}})
    }

    #[test]
    fn defaults_are_set_and_noted() {
        let mut bare = pod(json!({"limits": {"cpu": "1"}}));
        set_defaults(&mut bare, &range());
        assert_eq!(
            bare["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "200m", "memory": "64Mi"}})
        );
        assert_eq!(
            bare["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu, memory request for container c"
        );
    }

    #[test]
    fn messages_are_upstreams() {
        let table = [
            (
                json!({"limits": {"cpu": "2", "memory": "1"}, "requests": {"cpu": "1"}}),
                "maximum cpu usage per Container is 1, but limit is 2",
            ),
            (
                json!({"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1m"}}),
                "minimum cpu usage per Container is 100m, but request is 1m",
            ),
            (
                json!({"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "1"}}),
                "maximum memory usage per Pod is 1Gi, but limit is 2Gi",
            ),
            (
                json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}),
                "maximum memory usage per Pod is 1Gi.  No limit is specified",
            ),
        ];
        for (resources, wanted) in table {
            assert_eq!(pod_problems(&pod(resources), &range()), [wanted]);
        }
        let claim = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
        assert_eq!(
            claim_problems(&claim, &range()),
            ["maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"]
        );
    }
}
