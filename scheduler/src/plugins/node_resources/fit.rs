//! NodeResourcesFit: does the pod fit into what is left, and how full would the node be? Answers for upstream's
//! `fitsRequest`, `computePodResourceRequest`.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceClass;
use serde::Deserialize;
use serde_json::Value;
use shared::types::is_extended_resource;

use super::strategy::Strategy;
use crate::framework::lister::resources_of;
use crate::framework::plugin::{Context, Filter, Plugin, Requeue, Score};
use crate::framework::status::Reason;
use crate::framework::{ClusterEvent, Code, CycleState, Delta, ExternalChange, Features, Hint, ProfileError, Status};
use crate::model::extended::may_be_devices;
use crate::model::{NodeInfo, PodInfo, Resource};
use crate::plugins::read_args;

/// Upstream's name.
pub const NAME: &str = "NodeResourcesFit";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Fit {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Strategy,
    /// Devices may stand for extended resources that a node has none of.
    #[serde(skip)]
    delegates: bool,
}

/// Builds the plugin.
///
/// # Errors
/// Unreadable arguments, or a shape that is none.
pub fn build(args: &Value, features: Features) -> Result<Plugin, ProfileError> {
    let mut it = read_args::<Fit>(NAME, args)?;
    it.delegates = features.extended_resources;
    if let Some(problem) = it.scoring_strategy.problem() {
        return Err(ProfileError::Args(NAME, problem));
    }
    let it = Arc::new(it);
    Ok(Plugin::new(NAME).filter(&it).score(&it).requeue(&it).node_only())
}

impl Fit {
    fn ignores(&self, name: &str) -> bool {
        is_extended_resource(name)
            && (self.ignored_resources.iter().any(|r| r == name)
                || name
                    .split_once('/')
                    .is_some_and(|(group, _)| self.ignored_resource_groups.iter().any(|g| g == group)))
    }

    /// Resources that are short, and whether even an empty node would be too small.
    fn short(&self, asked: &Resource, node: &NodeInfo, is_device: impl Fn(&str) -> bool) -> (Vec<Reason>, bool) {
        let mut reasons: Vec<Reason> = Vec::new();
        let mut hopeless = false;
        let (has, taken) = (&node.base.allocatable, &node.requested);
        if i64::try_from(node.pods.len()).unwrap_or(i64::MAX) >= has.pods {
            reasons.push(Cow::Borrowed("Too many pods"));
        }
        if asked.is_zero() {
            return (reasons, hopeless);
        }
        for (want, has, taken, reason) in [
            (asked.milli_cpu, has.milli_cpu, taken.milli_cpu, "Insufficient cpu"),
            (asked.memory, has.memory, taken.memory, "Insufficient memory"),
            (asked.ephemeral_storage, has.ephemeral_storage, taken.ephemeral_storage, "Insufficient ephemeral-storage"),
        ] {
            if want > 0 && want > has - taken {
                reasons.push(Cow::Borrowed(reason));
                hopeless |= want > has;
            }
        }
        for (name, want) in &asked.scalar {
            if *want <= 0 || self.ignores(name) || self.delegates && has.get(name) == 0 && is_device(name) {
                continue;
            }
            if *want > has.get(name) - taken.get(name) {
                reasons.push(Cow::Owned(format!("Insufficient {name}")));
                hopeless |= *want > has.get(name);
            }
        }
        (reasons, hopeless)
    }
}

impl Filter for Fit {
    fn filter(&self, cx: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        // Answers are remembered only for pods whose resources no class stands for: DynamicResources sees to that.
        let is_device = |name: &str| may_be_devices(name) && cx.listers.class_of_resource(name).is_some();
        let (reasons, hopeless) = self.short(&pod.requests, node, is_device);
        if reasons.is_empty() {
            return Status::SUCCESS;
        }
        let code = if hopeless { Code::UnschedulableAndUnresolvable } else { Code::Unschedulable };
        Status::with_reasons(code, reasons)
    }
}

impl Score for Fit {
    fn score(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        self.scoring_strategy.score(pod, node)
    }

    fn is_relative(&self) -> bool {
        false
    }
}

impl Requeue for Fit {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::AssignedPod { old: Some(_), new: None } => Hint::Queue,
            // What it gave up has to be of a resource that the pod asks for.
            ClusterEvent::AssignedPod { old: Some(old), new: Some(new) } => {
                grew_for(&pod.requests, &new.requests, &old.requests).into()
            }
            ClusterEvent::Target { old, new } => new.requests.is_less_somewhere(&old.requests).into(),
            ClusterEvent::Node { old, new } => {
                let empty = NodeInfo { base: Arc::clone(new), ..NodeInfo::default() };
                let fits = self.short(&pod.requests, &empty, may_be_devices).0.is_empty();
                let gains = old.as_ref().is_none_or(|old| {
                    self.delegates && !pod.extended.is_empty()
                        || new.allocatable.pods > old.allocatable.pods
                        || grew_for(&pod.requests, &old.allocatable, &new.allocatable)
                });
                (fits && gains).into()
            }
            ClusterEvent::Object(ExternalChange::DeviceClass(delta)) => {
                (self.delegates && stands_now(pod, delta)).into()
            }
            _ => Hint::Skip,
        }
    }
}

/// Reports whether a device class has come to stand for a resource that the pod asks for.
fn stands_now(pod: &PodInfo, delta: &Delta<DeviceClass>) -> bool {
    let before: Vec<String> = delta.before().into_iter().flat_map(resources_of).collect();
    let now = delta.now().into_iter().flat_map(resources_of);
    now.filter(|name| !before.contains(name)).any(|name| pod.requests.get(&name) > 0)
}

/// Reports whether there is more of anything that is asked for.
fn grew_for(asked: &Resource, less: &Resource, more: &Resource) -> bool {
    let fixed = [
        (asked.milli_cpu, less.milli_cpu, more.milli_cpu),
        (asked.memory, less.memory, more.memory),
        (asked.ephemeral_storage, less.ephemeral_storage, more.ephemeral_storage),
    ];
    fixed.into_iter().any(|(asked, less, more)| asked > 0 && more > less)
        || asked.scalar.iter().any(|(name, asked)| *asked > 0 && more.get(name) > less.get(name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::framework::plugin::Plugin;
    use crate::framework::{Code, Features, ProfileError};
    use crate::testing::{check::Check, node, pod};
    use serde_json::{Value, json};

    fn build(args: &Value) -> Result<Plugin, ProfileError> {
        super::build(args, Features::default())
    }

    #[test]
    fn devices_may_stand_for_what_a_node_has_none_of() {
        fn delegating(args: &Value) -> Result<Plugin, ProfileError> {
            super::build(args, Features { extended_resources: true, ..Features::default() })
        }
        let asking = |name: &str, n: &str| {
            pod("p").set("/spec/containers/0", "resources", json!({"requests": {name: n}})).info()
        };
        let (none, some) = (node("n").with(&[]), node("n").has("example.com/gpu", "1").with(&[]));
        let short = "Insufficient example.com/gpu";
        for (pod, delegates, node, want) in [
            (asking("example.com/gpu", "2"), true, &none, ""),
            (asking("example.com/gpu", "2"), true, &some, short),
            (asking("example.com/gpu", "2"), false, &none, short),
            (asking("example.com/other", "2"), true, &none, "Insufficient example.com/other"),
            (asking("deviceclass.resource.kubernetes.io/gpu", "2"), true, &none, ""),
        ] {
            let mut check = Check::of(if delegates { delegating } else { build }, json!(null));
            let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
            let class = Arc::new(serde_json::from_value(class).expect("a class"));
            check.listers.device_classes.insert("gpu".into(), class);
            assert_eq!(check.filter(&pod, node), want, "{delegates}");
        }
    }

    #[test]
    fn filter() {
        let gpu = |name: &str, n: &str| {
            pod(name).set("/spec/containers/0", "resources", json!({"requests": {"example.com/gpu": n}})).info()
        };
        let full = node("n").has("pods", "1").with(&[pod("a").info()]);
        let used =
            node("n").has("example.com/gpu", "2").with(&[pod("a").cpu("3").memory("10Gi").info(), gpu("g", "1")]);
        let check = Check::of(build, json!(null));
        for (what, pod, node, want, code) in [
            ("fits", pod("p").cpu("1").memory("6Gi").info(), &used, "", Code::Success),
            ("cpu", pod("p").cpu("1001m").info(), &used, "Insufficient cpu", Code::Unschedulable),
            ("hopeless", pod("p").cpu("5").info(), &used, "Insufficient cpu", Code::UnschedulableAndUnresolvable),
            (
                "both",
                pod("p").cpu("2").memory("7Gi").info(),
                &used,
                "Insufficient cpu, Insufficient memory",
                Code::Unschedulable,
            ),
            ("pods", pod("p").info(), &full, "Too many pods", Code::Unschedulable),
            ("extended", gpu("p", "2"), &used, "Insufficient example.com/gpu", Code::Unschedulable),
            ("extended fits", gpu("p", "1"), &used, "", Code::Success),
        ] {
            let status = check.status(&pod, node);
            assert_eq!((status.to_string().as_str(), status.code()), (want, code), "{what}");
        }
        let ignoring = Check::of(build, json!({"ignoredResources": ["example.com/gpu"]}));
        assert_eq!(ignoring.filter(&gpu("p", "9"), &used), "");
    }

    #[test]
    fn strategies() {
        let n = [node("n").has("cpu", "10").has("memory", "10Gi").with(&[pod("a").cpu("3").memory("1Gi").info()])];
        let p = pod("p").cpu("2").memory("1Gi").info();
        let ratio = json!({"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio":
            {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}}});
        for (args, want) in [
            (json!(null), (50 + 80) / 2),
            (json!({"scoringStrategy": {"type": "MostAllocated"}}), (50 + 20) / 2),
            (json!({"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 1}]}}), 50),
            (ratio, 35),
        ] {
            assert_eq!(Check::of(build, args.clone()).scores(&p, &n), [want], "{args}");
        }
    }

    #[test]
    fn stand_ins_count_for_scores() {
        let nodes = [node("busy").with(&[pod("a").info(), pod("b").info()]), node("idle").with(&[])];
        let scores = Check::of(build, json!(null)).scores(&pod("p").info(), &nodes);
        assert!(scores[0] < scores[1], "{scores:?}");
    }

    #[test]
    fn bad_arguments() {
        for args in [
            json!({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}),
            json!({"scoringStrategy": {"type": "Nonsense"}}),
            json!({"unknown": 1}),
        ] as [Value; 3]
        {
            assert!(matches!(build(&args), Err(ProfileError::Args(..))), "{args}");
        }
    }
}
