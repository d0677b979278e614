use serde_json::{Value, json};

use super::{complete, validate};
use crate::framework::Features;

fn settings(change: Value) -> Value {
    let mut all = shared::config::defaults("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration");
    for (key, value) in change.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    all
}

fn outcome(change: Value) -> String {
    match complete(&settings(change), Features::default()).and_then(|c| validate(&c, Features::default())) {
        Ok(()) => String::new(),
        Err(refused) => refused.to_string(),
    }
}

fn with_args(plugin: &str, args: Value) -> Value {
    json!({"profiles": [{"schedulerName": "s", "pluginConfig": [{"name": plugin, "args": args}]}]})
}

#[test]
fn defaults_are_upstreams() {
    let done = complete(&settings(json!({"profiles": null})), Features::default()).expect("complete");
    let profile = &done["profiles"][0];
    assert_eq!(profile["schedulerName"], "default-scheduler");
    let names: Vec<&str> =
        profile["pluginConfig"].as_array().expect("list").iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, super::WITH_ARGS);
    let fit = json!({"apiVersion": super::VERSION, "kind": "NodeResourcesFitArgs", "scoringStrategy":
        {"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]}});
    assert_eq!(profile["pluginConfig"][5]["args"], fit);
    assert_eq!(profile["plugins"]["multiPoint"]["enabled"][4], json!({"name": "TaintToleration", "weight": 3}));
    assert_eq!(profile["plugins"]["filter"], json!({}));
    assert_eq!(outcome(json!({})), "");
}

#[test]
fn the_file_as_a_whole() {
    let two = |a: Value, b: Value| json!({"profiles": [a, b]});
    for (what, change, want) in [
        (
            "parallelism",
            json!({"parallelism": 0}),
            "parallelism: Invalid value: 0: should be an integer value greater than zero",
        ),
        (
            "percentage",
            json!({"percentageOfNodesToScore": 101}),
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
        ),
        (
            "back-offs",
            json!({"podInitialBackoffSeconds": 0, "podMaxBackoffSeconds": -1}),
            "[podInitialBackoffSeconds: Invalid value: 0: must be greater than 0, podMaxBackoffSeconds: Invalid value: -1: must be greater than or equal to PodInitialBackoffSeconds]",
        ),
        (
            "same name",
            two(json!({"schedulerName": "a"}), json!({"schedulerName": "a"})),
            "profiles[1].schedulerName: Duplicate value: {}",
        ),
        ("no name", two(json!({"schedulerName": "a"}), json!({})), "profiles[1].schedulerName: Required value"),
        (
            "percentage of a profile",
            json!({"profiles": [{"percentageOfNodesToScore": -1}]}),
            "profiles[0].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]",
        ),
        (
            "a plugin that is gone",
            json!({"profiles": [{"plugins": {"filter": {"enabled": [{"name": "EBSLimits"}]}}}]}),
            r#"profiles[0].plugins.filter.enabled[0]: Invalid value: "EBSLimits": was invalid in version "v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")"#,
        ),
        (
            "arguments twice",
            json!({"profiles": [{"pluginConfig": [{"name": "ImageLocality"}, {"name": "ImageLocality"}]}]}),
            r#"profiles[0].pluginConfig[1]: Duplicate value: "ImageLocality""#,
        ),
        (
            "another lock",
            json!({"leaderElection": {"leaderElect": true, "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s",
                "resourceLock": "endpoints", "resourceName": "x", "resourceNamespace": "y"}}),
            r#"leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases""#,
        ),
        (
            "an extender without weight",
            json!({"extenders": [{"urlPrefix": "http://x", "prioritizeVerb": "p"}]}),
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
        ),
        (
            "two binders",
            json!({"extenders": [{"bindVerb": "b"}, {"bindVerb": "c"}]}),
            r#"extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind"#,
        ),
        (
            "managed resources",
            json!({"extenders": [{"managedResources": [{"name": "cpu"}, {"name": "x.com/a"}, {"name": "x.com/a"}]}]}),
            r#"[extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name, extenders[0].managedResources[2].name: Invalid value: "x.com/a": duplicate extender managed resource name]"#,
        ),
    ] {
        assert_eq!(outcome(change), want, "{what}");
    }
}

#[test]
fn arguments() {
    let path = "profiles[0].pluginConfig[0].args";
    let ratio = |shape: Value| json!({"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}}});
    let constraint = |key: &str, when: &str| json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when});
    for (plugin, args, want) in [
        (
            "DefaultPreemption",
            json!({"minCandidateNodesPercentage": 101}),
            "{}.minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]",
        ),
        (
            "DefaultPreemption",
            json!({"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}),
            "[{}.minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute, {}.minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage]",
        ),
        (
            "InterPodAffinity",
            json!({"hardPodAffinityWeight": 101}),
            "{}.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]",
        ),
        (
            "NodeAffinity",
            json!({"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}}}),
            "{}.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
        ),
        (
            "NodeResourcesBalancedAllocation",
            json!({"resources": [{"name": "cpu", "weight": 2}, {"name": "cpu"}]}),
            r#"[{}.resources[0].weight: Invalid value: 2: must be 1, {}.resources[1].name: Duplicate value: "cpu"]"#,
        ),
        (
            "NodeResourcesFit",
            json!({"ignoredResourceGroups": ["a.com/b"]}),
            r#"{}.ignoredResourceGroups[0]: Invalid value: "a.com/b": resource group name can't contain '/'"#,
        ),
        (
            "NodeResourcesFit",
            json!({"scoringStrategy": {"type": "Nonsense"}}),
            r#"{}.scoringStrategy.type: Unsupported value: "Nonsense": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio""#,
        ),
        (
            "NodeResourcesFit",
            json!({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 101}]}}),
            "{}.scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid range (0, 100]",
        ),
        (
            "NodeResourcesFit",
            json!({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}),
            "{}.scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is RequestedToCapacityRatio",
        ),
        (
            "NodeResourcesFit",
            ratio(json!([])),
            "{}.scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be specified",
        ),
        (
            "NodeResourcesFit",
            ratio(json!([{"utilization": 50, "score": 1}, {"utilization": 20, "score": 11}])),
            "[{}.scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 20: values must be sorted in increasing order, {}.scoringStrategy.requestedToCapacityRatio.shape[1].score: Invalid value: 11: not in valid range [0, 10]]",
        ),
        (
            "PodTopologySpread",
            json!({"defaultConstraints": [constraint("zone", "ScheduleAnyway")]}),
            r#"{}.defaultingType: Invalid value: "System": when .defaultConstraints are not empty"#,
        ),
        (
            "PodTopologySpread",
            json!({"defaultingType": "List", "defaultConstraints": [constraint("zone", "Never"), constraint("zone", "Never")]}),
            r#"[{}.defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Never": supported values: "DoNotSchedule", "ScheduleAnyway", {}.defaultConstraints[1].whenUnsatisfiable: Unsupported value: "Never": supported values: "DoNotSchedule", "ScheduleAnyway", {}.defaultConstraints[1]: Duplicate value: "{zone, Never}"]"#,
        ),
        (
            "VolumeBinding",
            json!({"bindTimeoutSeconds": -1}),
            "{}.bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value",
        ),
        (
            "VolumeBinding",
            json!({"shape": []}),
            "{}.shape: Invalid value: []: unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring",
        ),
        ("DynamicResources", json!({"filterTimeout": "0s"}), ""),
        (
            "DynamicResources",
            json!({"bindingTimeout": "5s"}),
            "{}.bindingTimeout: Forbidden: DRADeviceBindingConditions or DRAResourceClaimDeviceStatus feature gate is disabled",
        ),
    ] {
        assert_eq!(outcome(with_args(plugin, args.clone())), want.replace("{}", path), "{plugin} {args}");
    }
}

#[test]
fn arguments_are_decoded_strictly() {
    assert_eq!(
        outcome(with_args("NodeResourcesFit", json!({"scoringStrategy": {"resourcess": 1}}))),
        r#"strict decoding error: decoding args for plugin NodeResourcesFit: strict decoding error: unknown field "scoringStrategy.resourcess""#
    );
    assert_eq!(
        outcome(with_args("NodeAffinity", json!({"apiVersion": super::VERSION, "kind": "VolumeBindingArgs"}))),
        "decoding .profiles[0].pluginConfig[0]: args for plugin NodeAffinity were not of type \
         NodeAffinityArgs.kubescheduler.config.k8s.io, got VolumeBindingArgs.kubescheduler.config.k8s.io"
    );
    assert!(outcome(with_args("InterPodAffinity", json!({"hardPodAffinityWeight": "x"}))).starts_with(
        "decoding .profiles[0].pluginConfig[0]: decoding args for plugin InterPodAffinity: json: cannot unmarshal string"
    ));
}

#[test]
fn what_extenders_manage_alone_is_ignored() {
    let done = complete(
        &settings(json!({"extenders": [{"managedResources": [{"name": "x.com/a", "ignoredByScheduler": true}]}]})),
        Features::default(),
    )
    .expect("complete");
    let configs = done["profiles"][0]["pluginConfig"].as_array().expect("list");
    let fit = configs.iter().find(|c| c["name"] == "NodeResourcesFit").expect("fit");
    assert_eq!(fit["args"]["ignoredResources"], json!(["x.com/a"]));
    assert_eq!(done["extenders"][0]["httpTimeout"], "5s");
}

#[test]
fn gates_add_plugins_to_the_defaults() {
    let names = |features: Features| -> Vec<String> {
        let done = complete(&settings(json!({"profiles": null})), features).expect("complete");
        let enabled = done["profiles"][0]["plugins"]["multiPoint"]["enabled"].as_array().expect("list").clone();
        enabled.iter().map(|p| p["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let (plain, gangs) = (names(Features::default()), names(Features { gangs: true, ..Features::default() }));
    assert!(!plain.contains(&"GangScheduling".to_owned()));
    assert_eq!(gangs.last().map(String::as_str), Some("GangScheduling"));
    assert_eq!(gangs[..plain.len()], plain);
}

#[test]
fn shape_of_capacity_scores_belongs_to_its_gate() {
    let on = Features { capacity_scores: true, ..Features::default() };
    let args = |shape: Value, features: Features| {
        let done = complete(&settings(with_args("VolumeBinding", json!({"shape": shape}))), features)?;
        let configs = done["profiles"][0]["pluginConfig"].as_array().expect("list").clone();
        let shape = configs.iter().find(|c| c["name"] == "VolumeBinding").map(|c| c["args"]["shape"].clone());
        validate(&done, features).map(|()| shape.unwrap_or_default())
    };
    let said = |shape: Value, features: Features| args(shape, features).map_err(|e| e.to_string());
    let usual = json!([{"utilization": 0, "score": 10}, {"utilization": 100, "score": 0}]);
    assert_eq!(said(json!(null), on), Ok(usual));
    assert_eq!(said(json!(null), Features::default()), Ok(json!(null)));
    let own = json!([{"utilization": 0, "score": 0}, {"utilization": 50, "score": 10}]);
    assert_eq!(said(own.clone(), on), Ok(own.clone()));
    assert!(
        said(own, Features::default()).is_err_and(|e| e.contains("turn on the feature gate StorageCapacityScoring"))
    );
    let wild = json!([{"utilization": 0, "score": 11}, {"utilization": 0, "score": 0}]);
    let why = said(wild, on).expect_err("refused");
    assert!(
        why.contains("values must be sorted in increasing order") && why.contains("not in valid range [0, 10]"),
        "{why}"
    );
}

#[test]
fn time_for_binding_conditions_belongs_to_their_gate() {
    let on = Features { bindings: true, ..Features::default() };
    let timeout = |given: Value, features: Features| {
        let done = complete(&settings(with_args("DynamicResources", json!({"bindingTimeout": given}))), features);
        let done = done.map_err(|e| e.to_string())?;
        validate(&done, features).map_err(|e| e.to_string())?;
        let configs = done["profiles"][0]["pluginConfig"].as_array().expect("list").clone();
        let config = configs.into_iter().find(|c| c["name"] == "DynamicResources").unwrap_or_default();
        Ok::<Value, String>(config["args"]["bindingTimeout"].clone())
    };
    assert_eq!(timeout(json!(null), on), Ok(json!("10m0s")));
    assert_eq!(timeout(json!("30s"), on), Ok(json!("30s")));
    assert!(timeout(json!("500ms"), on).is_err_and(|e| e.contains("must be at least 1 second")));
    assert!(timeout(json!("30s"), Features::default()).is_err_and(|e| e.contains("feature gate is disabled")));
}

#[test]
fn time_limit_of_searches_for_devices_belongs_to_its_gate() {
    let off = Features { filter_timeout: false, ..Features::default() };
    let timeout = |given: Value, features: Features| {
        let done = complete(&settings(with_args("DynamicResources", json!({"filterTimeout": given}))), features);
        let done = done.map_err(|e| e.to_string())?;
        validate(&done, features).map_err(|e| e.to_string())?;
        let configs = done["profiles"][0]["pluginConfig"].as_array().expect("list").clone();
        let config = configs.into_iter().find(|c| c["name"] == "DynamicResources").unwrap_or_default();
        Ok::<Value, String>(config["args"]["filterTimeout"].clone())
    };
    assert_eq!(timeout(json!(null), Features::default()), Ok(json!("10s")));
    assert_eq!(timeout(json!(null), off), Ok(json!(null)));
    let refused = timeout(json!("3s"), off).expect_err("refused");
    assert!(
        refused.contains("filterTimeout: Forbidden: DRASchedulingFilterTimeout feature gate is disabled"),
        "{refused}"
    );
}
