//! Plugins' arguments: defaults inside lists, and upstream's rules. Answers for upstream's
//! `pkg/scheduler/apis/config/validation/validation_pluginargs.go`.

use serde_json::{Value, json};
use shared::flags::parse_duration;
use shared::status::field::{Error, Path};

use proto::selector::format::qualified_name;

use crate::framework::Features;

/// Fills in what depends on other fields, and takes out what gates leave without a default; `given` is what the file says.
pub(super) fn defaults(plugin: &str, args: &mut Value, given: Option<&Value>, features: Features) {
    let is_given = |field: &str| given.and_then(|given| given.get(field)).is_some_and(|value| !value.is_null());
    if plugin == "DynamicResources"
        && !features.filter_timeout
        && !is_given("filterTimeout")
        && let Some(args) = args.as_object_mut()
    {
        args.remove("filterTimeout");
    }
    if plugin == "DynamicResources" && features.bindings && args.get("bindingTimeout").is_none_or(Value::is_null) {
        args["bindingTimeout"] = "10m0s".into();
    }
    if plugin == "VolumeBinding" && features.capacity_scores {
        let shape = args.get("shape").and_then(Value::as_array);
        if shape.is_none_or(Vec::is_empty) {
            args["shape"] = json!([{"utilization": 0, "score": 10}, {"utilization": 100, "score": 0}]);
        }
    }
    let lists = match plugin {
        "NodeResourcesFit" => args.pointer_mut("/scoringStrategy"),
        "NodeResourcesBalancedAllocation" => Some(args),
        _ => None,
    };
    let Some(holder) = lists.filter(|h| h.is_object()) else { return };
    if holder.get("resources").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        holder["resources"] = json!([{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]);
    }
    for resource in holder["resources"].as_array_mut().into_iter().flatten() {
        if resource.get("weight").and_then(Value::as_i64).unwrap_or(0) == 0 {
            resource["weight"] = 1.into();
        }
    }
}

/// Refuses what makes no sense.
pub(super) fn validate(plugin: &str, args: &Value, path: &Path, features: Features) -> Vec<Error> {
    let mut check = Check { path, features, errors: Vec::new() };
    match plugin {
        "DefaultPreemption" => check.preemption(args),
        "InterPodAffinity" => check.range(args, "hardPodAffinityWeight", 0, 100),
        "NodeAffinity" => check.added_affinity(args),
        "NodeResourcesBalancedAllocation" => check.balanced(args),
        "NodeResourcesFit" => check.fit(args),
        "PodTopologySpread" => check.spread(args),
        "VolumeBinding" => check.volume_binding(args),
        "DynamicResources" => check.dynamic_resources(args),
        _ => {}
    }
    check.errors
}

struct Check<'a> {
    path: &'a Path,
    features: Features,
    errors: Vec<Error>,
}

fn int(args: &Value, name: &str) -> i64 {
    args.get(name).and_then(Value::as_i64).unwrap_or(0)
}

fn text<'a>(args: &'a Value, name: &str) -> &'a str {
    args.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(args: &'a Value, name: &str) -> &'a [Value] {
    args.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Check<'_> {
    fn invalid(&mut self, path: Path, value: impl Into<Value>, why: &str) {
        self.errors.push(Error::invalid(path, value, why));
    }

    fn range(&mut self, args: &Value, name: &str, min: i64, max: i64) {
        let value = int(args, name);
        if !(min..=max).contains(&value) {
            self.invalid(self.path.child(name), value, &format!("not in valid range [{min}, {max}]"));
        }
    }

    fn preemption(&mut self, args: &Value) {
        const PERCENTAGE: &str = "minCandidateNodesPercentage";
        const ABSOLUTE: &str = "minCandidateNodesAbsolute";
        self.range(args, PERCENTAGE, 0, 100);
        let absolute = int(args, ABSOLUTE);
        if absolute < 0 {
            self.invalid(self.path.child(ABSOLUTE), absolute, "not in valid range [0, inf)");
        }
        if int(args, PERCENTAGE) == 0 && absolute == 0 {
            for (one, other) in [(PERCENTAGE, ABSOLUTE), (ABSOLUTE, PERCENTAGE)] {
                let why = format!("cannot be zero at the same time as {other}");
                self.invalid(self.path.child(one), 0, &why);
            }
        }
    }

    fn names(&mut self, path: &Path, value: &str) {
        for why in qualified_name(value) {
            self.invalid(path.clone(), value, &why);
        }
    }

    fn added_affinity(&mut self, args: &Value) {
        let path = self.path.child("addedAffinity");
        let Some(affinity) = args.get("addedAffinity") else { return };
        if let Some(required) = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") {
            let path = path.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
            for (i, term) in list(required, "nodeSelectorTerms").iter().enumerate() {
                self.node_term(&path.index(i), term);
            }
        }
        let path = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, wish) in list(affinity, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
            self.node_term(&path.index(i), &wish["preference"]);
        }
    }

    fn node_term(&mut self, path: &Path, term: &Value) {
        const OPERATORS: [&str; 6] = ["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"];
        for (i, e) in list(term, "matchExpressions").iter().enumerate() {
            let path = path.child("matchExpressions").index(i);
            let (operator, values) = (text(e, "operator"), list(e, "values"));
            let why = match operator {
                "In" | "NotIn" if values.is_empty() => "for 'in', 'notin' operators, values set can't be empty",
                "Exists" | "DoesNotExist" if !values.is_empty() => {
                    "values set must be empty for exists and does not exist"
                }
                "Gt" | "Lt" if values.len() != 1 => "for 'Gt', 'Lt' operators, exactly one value is required",
                other if !OPERATORS.contains(&other) => {
                    self.errors.push(Error::not_supported(path.child("operator"), other, &OPERATORS));
                    continue;
                }
                _ => "",
            };
            if !why.is_empty() {
                self.invalid(path.child("values"), values.to_vec(), why);
            }
            for why in proto::selector::format::label_key(text(e, "key")) {
                self.invalid(path.child("key"), text(e, "key"), &why);
            }
        }
        for (i, e) in list(term, "matchFields").iter().enumerate() {
            let path = path.child("matchFields").index(i);
            let operator = text(e, "operator");
            if !["In", "NotIn"].contains(&operator) {
                self.errors.push(Error::not_supported(path.child("operator"), operator, &["In", "NotIn"]));
            } else if list(e, "values").len() != 1 {
                self.errors.push(Error::required(path.child("values"), "must have one element"));
            }
        }
    }

    fn balanced(&mut self, args: &Value) {
        let mut seen: Vec<&str> = Vec::new();
        for (i, resource) in list(args, "resources").iter().enumerate() {
            let path = self.path.child("resources").index(i);
            let (name, weight) = (text(resource, "name"), int(resource, "weight"));
            if seen.contains(&name) {
                self.errors.push(Error::duplicate(path.child("name"), name));
            }
            seen.push(name);
            if weight != 1 {
                self.invalid(path.child("weight"), weight, "must be 1");
            }
        }
    }

    fn fit(&mut self, args: &Value) {
        for (i, resource) in list(args, "ignoredResources").iter().enumerate() {
            self.names(&self.path.child("ignoredResources").index(i), resource.as_str().unwrap_or_default());
        }
        for (i, group) in list(args, "ignoredResourceGroups").iter().enumerate() {
            let (path, group) = (self.path.child("ignoredResourceGroups").index(i), group.as_str().unwrap_or_default());
            if group.contains('/') {
                self.invalid(path.clone(), group, "resource group name can't contain '/'");
            }
            self.names(&path, group);
        }
        let path = self.path.child("scoringStrategy");
        let Some(strategy) = args.get("scoringStrategy").filter(|s| s.is_object()) else {
            self.errors.push(Error::required(path, "ScoringStrategy field is required"));
            return;
        };
        const TYPES: [&str; 3] = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
        let kind = text(strategy, "type");
        if !TYPES.contains(&kind) {
            self.errors.push(Error::not_supported(path.child("type"), kind, &TYPES));
        }
        for (i, resource) in list(strategy, "resources").iter().enumerate() {
            let weight = int(resource, "weight");
            if !(1..=100).contains(&weight) {
                let why = format!("resource weight of {} not in valid range (0, 100]", text(resource, "name"));
                self.invalid(path.child("resources").index(i).child("weight"), weight, &why);
            }
        }
        let (ratio, path) = (strategy.get("requestedToCapacityRatio"), path.child("requestedToCapacityRatio"));
        match (kind == "RequestedToCapacityRatio", ratio.filter(|r| !r.is_null())) {
            (true, None) => {
                let why = "must be specified when type is RequestedToCapacityRatio";
                self.errors.push(Error::required(path, why));
            }
            (true, Some(ratio)) => self.shape(list(ratio, "shape"), &path.child("shape")),
            (false, Some(_)) => {
                self.errors.push(Error::forbidden(path, "must be nil when type is not RequestedToCapacityRatio"));
            }
            (false, None) => {}
        }
    }

    fn shape(&mut self, points: &[Value], path: &Path) {
        if points.is_empty() {
            self.errors.push(Error::required(path.clone(), "at least one point must be specified"));
            return;
        }
        let at = |i: usize| int(&points[i], "utilization");
        if let Some(i) = (1..points.len()).find(|i| at(i - 1) >= at(*i)) {
            self.invalid(path.index(i).child("utilization"), at(i), "values must be sorted in increasing order");
        }
        for (i, point) in points.iter().enumerate() {
            for (name, max) in [("utilization", 100), ("score", 10)] {
                let value = int(point, name);
                if !(0..=max).contains(&value) {
                    self.invalid(path.index(i).child(name), value, &format!("not in valid range [0, {max}]"));
                }
            }
        }
    }

    fn spread(&mut self, args: &Value) {
        const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
        let (kind, constraints) = (text(args, "defaultingType"), list(args, "defaultConstraints"));
        let path = self.path.child("defaultingType");
        match kind {
            "System" if !constraints.is_empty() => {
                self.invalid(path, kind, "when .defaultConstraints are not empty");
            }
            "System" | "List" => {}
            _ => self.errors.push(Error::not_supported(path, kind, &["System", "List"])),
        }
        let all = self.path.child("defaultConstraints");
        for (i, c) in constraints.iter().enumerate() {
            let path = all.index(i);
            if int(c, "maxSkew") <= 0 {
                self.invalid(path.child("maxSkew"), int(c, "maxSkew"), "not in valid range (0, inf)");
            }
            let (key, action) = (text(c, "topologyKey"), text(c, "whenUnsatisfiable"));
            if key.is_empty() {
                self.errors.push(Error::required(path.child("topologyKey"), "can not be empty"));
            } else {
                self.names(&path.child("topologyKey"), key);
            }
            if action.is_empty() {
                self.errors.push(Error::required(path.child("whenUnsatisfiable"), "can not be empty"));
            } else if !ACTIONS.contains(&action) {
                self.errors.push(Error::not_supported(path.child("whenUnsatisfiable"), action, &ACTIONS));
            }
            if c.get("labelSelector").is_some_and(|s| !s.is_null()) {
                let why = "constraint must not define a selector, as they deduced for each pod";
                self.errors.push(Error::forbidden(path.child("labelSelector"), why));
            }
            let same = |o: &&Value| text(o, "topologyKey") == key && text(o, "whenUnsatisfiable") == action;
            if constraints[..i].iter().any(|o| same(&o)) {
                self.errors.push(Error::duplicate(path, format!("{{{key}, {action}}}")));
            }
        }
    }

    fn volume_binding(&mut self, args: &Value) {
        let timeout = int(args, "bindTimeoutSeconds");
        if timeout < 0 {
            let why = "invalid BindTimeoutSeconds, should not be a negative value";
            self.invalid(self.path.child("bindTimeoutSeconds"), timeout, why);
        }
        if self.features.capacity_scores {
            self.shape(list(args, "shape"), &self.path.child("shape"));
        } else if let Some(shape) = args.get("shape").filter(|s| !s.is_null()) {
            let why = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
            self.invalid(self.path.child("shape"), shape.clone(), why);
        }
    }

    fn dynamic_resources(&mut self, args: &Value) {
        let has_timeout = args.get("filterTimeout").is_some_and(|t| !t.is_null());
        if !self.features.filter_timeout && has_timeout {
            let why = "DRASchedulingFilterTimeout feature gate is disabled";
            self.errors.push(Error::forbidden(self.path.child("filterTimeout"), why));
        } else if text(args, "filterTimeout").starts_with('-') {
            self.invalid(self.path.child("filterTimeout"), text(args, "filterTimeout"), "must be zero or positive");
        }
        if self.features.bindings {
            let timeout = text(args, "bindingTimeout");
            let least = std::time::Duration::from_secs(1);
            if !timeout.is_empty() && parse_duration(timeout).unwrap_or_default() < least {
                self.invalid(self.path.child("bindingTimeout"), timeout, "must be at least 1 second");
            }
        } else if args.get("bindingTimeout").is_some_and(|t| !t.is_null()) {
            let why = "DRADeviceBindingConditions or DRAResourceClaimDeviceStatus feature gate is disabled";
            self.errors.push(Error::forbidden(self.path.child("bindingTimeout"), why));
        }
    }
}
