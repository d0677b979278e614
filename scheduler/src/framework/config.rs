//! `KubeSchedulerConfiguration` v1: profiles and which plugin takes part where. Answers for upstream's
//! `pkg/scheduler/apis/config`.

use serde::Deserialize;
use serde_json::Value;

/// A plugin by name, with its weight if it scores.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginRef {
    /// Name, or `*`.
    pub name: String,
    /// Weight; 0 stands for 1.
    #[serde(default)]
    pub weight: i64,
}

/// Plugins that are enabled and disabled at one extension point.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginSet {
    /// In this order.
    #[serde(default, deserialize_with = "nullable")]
    pub enabled: Vec<PluginRef>,
    /// Names, or `*`.
    #[serde(default, deserialize_with = "nullable")]
    pub disabled: Vec<PluginRef>,
}

impl PluginSet {
    /// Reports whether a name (or everything) is disabled.
    pub fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|p| p.name == name || p.name == "*")
    }
}

/// Plugin sets by extension point.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[allow(missing_docs, reason = "names are upstream's extension points")]
pub struct Plugins {
    pub pre_enqueue: PluginSet,
    pub queue_sort: PluginSet,
    pub pre_filter: PluginSet,
    pub filter: PluginSet,
    pub post_filter: PluginSet,
    pub pre_score: PluginSet,
    pub score: PluginSet,
    pub reserve: PluginSet,
    pub permit: PluginSet,
    pub pre_bind: PluginSet,
    pub bind: PluginSet,
    pub post_bind: PluginSet,
    pub multi_point: PluginSet,
}

/// Arguments of one plugin.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginConfig {
    /// Plugin.
    pub name: String,
    /// Arguments of the plugin: `<Name>Args`.
    #[serde(default)]
    pub args: Value,
}

/// One profile.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProfileConfig {
    /// The `schedulerName` it answers to.
    #[serde(default = "default_name")]
    pub scheduler_name: String,
    /// Overrides the global percentage.
    #[serde(default)]
    pub percentage_of_nodes_to_score: Option<i32>,
    /// Plugins, on top of the default set.
    #[serde(default)]
    pub plugins: Option<Plugins>,
    /// Arguments of the plugins, by name.
    #[serde(default, deserialize_with = "nullable")]
    pub plugin_config: Vec<PluginConfig>,
    /// Gates of `--feature-gates`.
    #[serde(skip)]
    pub features: Features,
}

/// Feature gates that the scheduler looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "one for each gate")]
pub struct Features {
    /// DRAConsumableCapacity.
    pub consumable_capacity: bool,
    /// DRADeviceTaints.
    pub device_taints: bool,
    /// GenericWorkload and GangScheduling.
    pub gangs: bool,
    /// TaintTolerationComparisonOperators.
    pub comparisons: bool,
    /// DRADeviceTaintRules, beside DRADeviceTaints.
    pub taint_rules: bool,
    /// DRAPartitionableDevices.
    pub partitions: bool,
    /// DRADeviceBindingConditions, beside DRAResourceClaimDeviceStatus.
    pub bindings: bool,
    /// StorageCapacityScoring.
    pub capacity_scores: bool,
    /// DRAExtendedResource.
    pub extended_resources: bool,
    /// NodeDeclaredFeatures.
    pub declared_features: bool,
    /// VolumeLimitScaling.
    pub volume_limit_scaling: bool,
    /// DRAAdminAccess.
    pub admin_access: bool,
    /// DRAPrioritizedList.
    pub prioritized_list: bool,
    /// DRASchedulerFilterTimeout.
    pub filter_timeout: bool,
    /// MatchLabelKeysInPodTopologySpread.
    pub match_label_keys: bool,
    /// NominatedNodeNameForExpectation.
    pub announces: bool,
    /// SchedulerPopFromBackoffQ.
    pub pops_from_backoff: bool,
    /// VolumeAttributesClass.
    pub volume_attributes: bool,
}

impl Default for Features {
    /// The gates as upstream has them by default.
    fn default() -> Self {
        Self {
            consumable_capacity: false,
            device_taints: false,
            gangs: false,
            comparisons: false,
            taint_rules: false,
            partitions: false,
            bindings: false,
            capacity_scores: false,
            extended_resources: false,
            declared_features: false,
            volume_limit_scaling: false,
            admin_access: true,
            prioritized_list: true,
            filter_timeout: true,
            match_label_keys: true,
            announces: true,
            pops_from_backoff: true,
            volume_attributes: true,
        }
    }
}

impl Default for ProfileConfig {
    fn default() -> Self {
        Self {
            scheduler_name: default_name(),
            percentage_of_nodes_to_score: None,
            plugins: None,
            plugin_config: Vec::new(),
            features: Features::default(),
        }
    }
}

fn default_name() -> String {
    crate::model::demand::DEFAULT_SCHEDULER.to_owned()
}

fn nullable<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(d).map(Option::unwrap_or_default)
}

/// The part of the file that the scheduling core reads. Connection, leader election and debugging are the driver's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    /// Most threads for questions about many nodes.
    pub parallelism: usize,
    /// Global percentage of nodes to score; 0 adapts to the size of the cluster.
    pub percentage_of_nodes_to_score: i32,
    /// First back-off.
    pub pod_initial_backoff_seconds: u64,
    /// Longest back-off.
    pub pod_max_backoff_seconds: u64,
    /// Profiles.
    #[serde(deserialize_with = "nullable")]
    pub profiles: Vec<ProfileConfig>,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            parallelism: 16,
            percentage_of_nodes_to_score: 0,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            profiles: vec![ProfileConfig::default()],
        }
    }
}

/// The default plugins of v1.35 in order, with their weights.
pub const DEFAULT_PLUGINS: &[(&str, i64)] = &[
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeUnschedulable", 0),
    ("NodeName", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("NodeVolumeLimits", 0),
    ("VolumeBinding", 0),
    ("VolumeZone", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
];

impl ProfileConfig {
    /// The `multiPoint` set: defaults with the profile's changes worked in.
    pub fn multi_point(&self) -> Vec<PluginRef> {
        let gangs = self.features.gangs.then_some(&("GangScheduling", 0));
        let declared = self.features.declared_features.then_some(&("NodeDeclaredFeatures", 0));
        let defaults = DEFAULT_PLUGINS
            .iter()
            .chain(declared)
            .chain(gangs)
            .map(|(name, weight)| PluginRef { name: (*name).to_owned(), weight: *weight });
        let Some(own) = self.plugins.as_ref().map(|p| &p.multi_point) else { return defaults.collect() };
        let mut extra: Vec<PluginRef> = own.enabled.clone();
        let mut out: Vec<PluginRef> = Vec::new();
        for default in defaults.filter(|p| !own.disables(&p.name)) {
            match extra.iter().position(|p| p.name == default.name) {
                Some(at) => out.push(extra.remove(at)),
                None => out.push(default),
            }
        }
        out.extend(extra);
        out
    }

    /// Returns the plugins of one extension point: those named there first, then those of `multiPoint` that implement
    /// it.
    pub fn at_point(&self, own: &PluginSet, implements: impl Fn(&str) -> bool) -> Vec<PluginRef> {
        let multi = self.multi_point();
        let in_multi = |p: &&PluginRef| multi.iter().any(|m| m.name == p.name);
        let mut out: Vec<PluginRef> = own.enabled.iter().filter(in_multi).cloned().collect();
        let taken: Vec<String> = own.enabled.iter().map(|p| p.name.clone()).collect();
        out.extend(
            multi.iter().filter(|m| !taken.contains(&m.name) && !own.disables(&m.name) && implements(&m.name)).cloned(),
        );
        out.extend(own.enabled.iter().filter(|p| !in_multi(p)).cloned());
        out
    }

    /// Arguments of a plugin, `null` when there are none.
    pub fn args(&self, name: &str) -> Value {
        self.plugin_config.iter().find(|c| c.name == name).map_or(Value::Null, |c| c.args.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(list: &[PluginRef]) -> Vec<&str> {
        list.iter().map(|p| p.name.as_str()).collect()
    }

    fn profile(plugins: Value) -> ProfileConfig {
        serde_json::from_value(json!({"plugins": plugins})).expect("profile")
    }

    #[test]
    fn merging() {
        let all = profile(json!({}));
        assert_eq!(all.multi_point().len(), DEFAULT_PLUGINS.len());
        let few = profile(
            json!({"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "A"}, {"name": "NodeName"}]}}),
        );
        assert_eq!(names(&few.multi_point()), ["A", "NodeName"]);
        let heavier =
            profile(json!({"multiPoint": {"enabled": [{"name": "TaintToleration", "weight": 7}, {"name": "X"}]}}));
        let list = heavier.multi_point();
        assert_eq!((list[4].weight, list.last().map(|p| p.name.as_str())), (7, Some("X")));
    }

    #[test]
    fn points() {
        let p = profile(
            json!({"score": {"disabled": [{"name": "ImageLocality"}], "enabled": [{"name": "New"}, {"name": "NodeAffinity", "weight": 9}]}}),
        );
        let own = p.plugins.clone().expect("plugins").score;
        let list = p.at_point(&own, |n| ["ImageLocality", "NodeAffinity", "TaintToleration"].contains(&n));
        assert_eq!(names(&list), ["NodeAffinity", "TaintToleration", "New"]);
        assert_eq!(list[0].weight, 9);
        let none = profile(json!({"score": {"disabled": [{"name": "*"}]}}));
        assert!(none.at_point(&none.plugins.clone().expect("plugins").score, |_| true).is_empty());
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(serde_json::from_value::<ProfileConfig>(json!({"plugins": {"scores": {}}})).is_err());
    }
}
