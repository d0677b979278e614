//! The objects wanted, and for each what must be done given what is there. Pure. Answers for upstream's
//! `pkg/registry/rbac/reconciliation` (`computeReconciledRole`), pkg/registry/flowcontrol/ensurer.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use shared::flags::FeatureGates;

use crate::authz::rbac::{GROUP, Rule, missing};
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::core::node::NODES;
use crate::registry::flowcontrol::flow_schema::FLOW_SCHEMAS;
use crate::registry::flowcontrol::priority_level_configuration::PRIORITY_LEVEL_CONFIGURATIONS;
use crate::registry::rbac::cluster_role::CLUSTER_ROLES;
use crate::registry::rbac::cluster_role_binding::CLUSTER_ROLE_BINDINGS;
use crate::registry::rbac::role::ROLES;
use crate::registry::rbac::role_binding::ROLE_BINDINGS;
use crate::rules::flow_control::FlowControlDefaults;

const RBAC_TABLE: &str = include_str!("rbac.json");
/// Rules and roles of features that are off by default.
const GATED_TABLE: &str = include_str!("gated.json");
const RBAC_VERSION: &str = "rbac.authorization.k8s.io/v1";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const FLOW_AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Action on one object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ObjectAction {
    /// No action.
    Keep,
    /// Make it.
    Create(Value),
    /// Write it back with what was missing.
    Update(Value),
    /// Delete it and make it anew: a binding's role cannot be changed.
    Replace(Value),
}

type Table = BTreeMap<String, Vec<Map<String, Value>>>;

fn table(text: &str) -> Table {
    serde_json::from_str(text).expect("the table is part of the program and tested")
}

/// Roles and bindings by plural.
pub(super) fn rbac(gates: &FeatureGates) -> BTreeMap<String, Vec<Value>> {
    let mut all: BTreeMap<String, Vec<Value>> = table(RBAC_TABLE)
        .into_iter()
        .map(|(p, list)| (p.clone(), list.into_iter().map(|e| whole(&p, e)).collect()))
        .collect();
    let gated: Vec<Value> = serde_json::from_str(GATED_TABLE).expect("the table is part of the program and tested");
    let is_on = |entry: &&Value| tree::strings(entry, "/gates").iter().all(|gate| gates.enabled(gate));
    for entry in gated.iter().filter(is_on) {
        add(&mut all, entry);
    }
    if !gates.enabled("KubeletFineGrainedAuthz") {
        make_coarse(&mut all);
    }
    all
}

/// Gives a cluster role more rules; one that is not there is made, and bound to whom it is for.
fn add(all: &mut BTreeMap<String, Vec<Value>>, entry: &Value) {
    let name = tree::text(entry, "/role");
    let roles = all.entry(CLUSTER_ROLES.plural.to_owned()).or_default();
    if let Some(rules) = roles.iter_mut().find(|r| tree::name(r) == name).and_then(|r| tree::list_mut(r, &["rules"])) {
        rules.extend(tree::list(entry, "/rules").iter().cloned());
        return;
    }
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    let object = |plural: &str, fields: Value| whole(plural, fields.as_object().cloned().unwrap_or_default());
    roles.push(object(CLUSTER_ROLES.plural, json!({"name": name, "rules": entry["rules"]})));
    let binding = json!({"name": name, "roleRef": reference, "subjects": [entry["subject"]]});
    all.entry(CLUSTER_ROLE_BINDINGS.plural.to_owned()).or_default().push(object(CLUSTER_ROLE_BINDINGS.plural, binding));
}

/// An object of one of the plurals, from what is particular about it.
fn whole(plural: &str, mut entry: Map<String, Value>) -> Value {
    let kind = match GroupResource::new(GROUP, plural) {
        CLUSTER_ROLES => "ClusterRole",
        ROLES => "Role",
        ROLE_BINDINGS => "RoleBinding",
        _ => "ClusterRoleBinding",
    };
    let mut labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
    if let (Some(Value::Object(more)), Some(labels)) = (entry.remove("labels"), labels.as_object_mut()) {
        labels.extend(more);
    }
    let mut metadata = json!({"annotations": {AUTOUPDATE: "true"}, "labels": labels});
    for field in ["name", "namespace"] {
        if let Some(value) = entry.remove(field) {
            metadata[field] = value;
        }
    }
    let mut object = json!({"apiVersion": RBAC_VERSION, "kind": kind, "metadata": metadata});
    if [ROLES.plural, CLUSTER_ROLES.plural].contains(&plural) {
        object["rules"] = Value::Null;
    }
    if let Some(fields) = object.as_object_mut() {
        fields.extend(entry);
    }
    object
}

/// Takes out the rules about paths of kubelets that these ask about with `KubeletFineGrainedAuthz` alone.
fn make_coarse(wanted: &mut BTreeMap<String, Vec<Value>>) {
    let fine_resource = format!("{}/configz", NODES.plural);
    let fine = |rule: &Value| tree::strings(rule, "/resources").contains(&fine_resource);
    for role in wanted.get_mut(CLUSTER_ROLES.plural).into_iter().flatten() {
        if let Some(rules) = role["rules"].as_array_mut() {
            rules.retain(|rule| !fine(rule));
        }
    }
}

/// The classes of system pods.
pub(super) fn priority_classes() -> Vec<Value> {
    let class = |name: &str, value: i64, what: &str| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
            "description": what, "preemptionPolicy": "PreemptLowerPriority"})
    };
    vec![
        class(
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        class(
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
}

/// Flow schemas and priority levels by plural.
pub fn flow_control() -> BTreeMap<String, Vec<Value>> {
    let FlowControlDefaults { schemas, levels } = FlowControlDefaults::read();
    BTreeMap::from(
        [(FLOW_SCHEMAS, schemas), (PRIORITY_LEVEL_CONFIGURATIONS, levels)].map(|(r, all)| (r.plural.to_owned(), all)),
    )
}

/// Plans the action on `wanted`, given the object stored under its name.
pub(super) fn step(resource: GroupResource<'_>, wanted: &Value, stored: Option<&Value>) -> ObjectAction {
    let Some(stored) = stored else { return ObjectAction::Create(wanted.clone()) };
    match resource {
        CLUSTER_ROLES | ROLES => role(wanted, stored),
        CLUSTER_ROLE_BINDINGS | ROLE_BINDINGS => binding(wanted, stored),
        FLOW_SCHEMAS | PRIORITY_LEVEL_CONFIGURATIONS => flow(wanted, stored),
        _ => ObjectAction::Keep,
    }
}

/// Adds what is missing of labels and annotations; true when something was.
fn complete_metadata(object: &mut Value, wanted: &Value) -> bool {
    let mut changed = false;
    for field in ["labels", "annotations"] {
        let Some(pairs) = tree::map(wanted, &format!("/metadata/{field}")) else { continue };
        let Some(own) = tree::map_mut(object, &["metadata", field]) else { continue };
        for (key, value) in pairs {
            if !own.contains_key(key) {
                own.insert(key.clone(), value.clone());
                changed = true;
            }
        }
    }
    changed
}

fn protected(stored: &Value) -> bool {
    tree::annotation(stored, AUTOUPDATE) == Some("false")
}

fn role(wanted: &Value, stored: &Value) -> ObjectAction {
    if protected(stored) {
        return ObjectAction::Keep;
    }
    let mut object = stored.clone();
    let mut changed = complete_metadata(&mut object, wanted);
    if tree::has(wanted, "/aggregationRule") {
        let lacking: Vec<Value> = tree::list(wanted, "/aggregationRule/clusterRoleSelectors")
            .iter()
            .filter(|s| !tree::list(stored, "/aggregationRule/clusterRoleSelectors").contains(s))
            .cloned()
            .collect();
        if let Some(list) =
            tree::list_mut(&mut object, &["aggregationRule", "clusterRoleSelectors"]).filter(|_| !lacking.is_empty())
        {
            list.extend(lacking);
            changed = true;
        }
    } else {
        let lacking = missing(&Rule::list_of(stored), &Rule::list_of(wanted));
        if let Some(list) = tree::list_mut(&mut object, &["rules"]).filter(|_| !lacking.is_empty()) {
            list.extend(lacking.iter().map(rule_tree));
            changed = true;
        }
    }
    if changed { ObjectAction::Update(object) } else { ObjectAction::Keep }
}

fn rule_tree(rule: &Rule) -> Value {
    let mut out = json!({"verbs": rule.verbs});
    for (name, list) in [
        ("apiGroups", &rule.api_groups),
        ("resources", &rule.resources),
        ("resourceNames", &rule.resource_names),
        ("nonResourceURLs", &rule.non_resource_urls),
    ] {
        if !list.is_empty() {
            out[name] = json!(list);
        }
    }
    out
}

fn binding(wanted: &Value, stored: &Value) -> ObjectAction {
    if protected(stored) {
        return ObjectAction::Keep;
    }
    if wanted.get("roleRef") != stored.get("roleRef") {
        return ObjectAction::Replace(wanted.clone());
    }
    let mut object = stored.clone();
    let mut changed = complete_metadata(&mut object, wanted);
    let same =
        |a: &Value, b: &Value| ["/kind", "/name", "/namespace"].iter().all(|f| tree::text(a, f) == tree::text(b, f));
    let own = tree::list(stored, "/subjects");
    let lacking: Vec<Value> =
        tree::list(wanted, "/subjects").iter().filter(|s| !own.iter().any(|o| same(o, s))).cloned().collect();
    if let Some(list) = tree::list_mut(&mut object, &["subjects"]).filter(|_| !lacking.is_empty()) {
        list.extend(lacking);
        changed = true;
    }
    if changed { ObjectAction::Update(object) } else { ObjectAction::Keep }
}

/// The objects without which no request would have a place: they always follow the program.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// Flow control objects follow the program until somebody edits them (generation 2 and no annotation) or says no. The
/// seats of the exempt are the administrator's even then.
fn flow(wanted: &Value, stored: &Value) -> ObjectAction {
    let follow = match tree::annotation(stored, FLOW_AUTOUPDATE) {
        Some(text) => text == "true",
        None => tree::int(stored, "/metadata/generation") == Some(1),
    };
    let mandatory = MANDATORY.contains(&tree::name(wanted));
    if !follow && !mandatory {
        return ObjectAction::Keep;
    }
    let mut object = stored.clone();
    let noted = if mandatory { &follow.to_string() } else { "true" };
    let annotated = tree::annotation(stored, FLOW_AUTOUPDATE) == Some(noted);
    if !annotated && let Some(own) = tree::map_mut(&mut object, &["metadata", "annotations"]) {
        own.insert(FLOW_AUTOUPDATE.to_owned(), noted.into());
    }
    let mut spec = wanted["spec"].clone();
    if !follow && let (true, Some(own)) = (tree::has(&spec, "/exempt"), stored.pointer("/spec/exempt")) {
        spec["exempt"] = own.clone();
    }
    if annotated && covers(stored.get("spec").unwrap_or(&Value::Null), &spec) {
        return ObjectAction::Keep;
    }
    object["spec"] = spec;
    ObjectAction::Update(object)
}

/// Reports whether an object was created by this or an older release, and is not wanted any more.
pub(super) fn outdated(wanted: &[Value], stored: &Value) -> bool {
    tree::annotation(stored, FLOW_AUTOUPDATE) == Some("true")
        && !wanted.iter().any(|w| tree::name(w) == tree::name(stored))
}

/// Reports whether a stored value contains a wanted one; additional defaults do not count.
fn covers(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (Value::Object(s), Value::Object(w)) => w.iter().all(|(k, v)| s.get(k).is_some_and(|own| covers(own, v))),
        (Value::Array(s), Value::Array(w)) => s.len() == w.len() && s.iter().zip(w).all(|(s, w)| covers(s, w)),
        (s, w) => s == w,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin() -> Value {
        rbac(&FeatureGates::default())["clusterroles"]
            .iter()
            .find(|r| tree::name(r) == "cluster-admin")
            .expect("a role")
            .clone()
    }

    #[test]
    fn roles_are_completed_unless_protected() {
        let wanted = admin();
        assert_eq!(step(CLUSTER_ROLES, &wanted, None), ObjectAction::Create(wanted.clone()));
        assert_eq!(step(CLUSTER_ROLES, &wanted, Some(&wanted)), ObjectAction::Keep);
        let mut less = wanted.clone();
        less["rules"] = json!([wanted["rules"][1], {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        let ObjectAction::Update(fixed) = step(CLUSTER_ROLES, &wanted, Some(&less)) else {
            panic!("rules are missing")
        };
        assert_eq!(fixed["rules"].as_array().map(Vec::len), Some(3), "own rules stay");
        less["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        assert_eq!(step(CLUSTER_ROLES, &wanted, Some(&less)), ObjectAction::Keep);
    }

    #[test]
    fn coarse_rules_name_no_paths_of_kubelets() {
        let off = [("KubeletFineGrainedAuthz".to_owned(), false)].into();
        let coarse = rbac(&FeatureGates::default().with(&off).expect("a gate"));
        for (plural, all) in rbac(&FeatureGates::default()) {
            for (before, after) in all.iter().zip(&coarse[&plural]) {
                let rules = |role: &Value| tree::list(role, "/rules").len();
                let fewer = usize::from(tree::name(before) == "system:kubelet-api-admin");
                assert_eq!(rules(after) + fewer, rules(before), "{plural} {}", tree::name(before));
            }
        }
    }

    #[test]
    fn binding_to_another_role_is_recreated() {
        let wanted = rbac(&FeatureGates::default())["clusterrolebindings"][0].clone();
        let mut other = wanted.clone();
        other["roleRef"]["name"] = json!("view");
        assert_eq!(step(CLUSTER_ROLE_BINDINGS, &wanted, Some(&other)), ObjectAction::Replace(wanted.clone()));
        let mut nobody = wanted.clone();
        nobody["subjects"] = json!([]);
        assert_eq!(step(CLUSTER_ROLE_BINDINGS, &wanted, Some(&nobody)), ObjectAction::Update(wanted));
    }

    #[test]
    fn edited_flow_schemas_are_kept() {
        let wanted = flow_control()["flowschemas"][0].clone();
        let mut edited = wanted.clone();
        edited["spec"]["matchingPrecedence"] = json!(5);
        assert!(matches!(step(FLOW_SCHEMAS, &wanted, Some(&edited)), ObjectAction::Update(_)));
        edited["metadata"]["annotations"][FLOW_AUTOUPDATE] = json!("false");
        let own = flow_control()["flowschemas"].iter().find(|s| tree::name(s) == "service-accounts").cloned();
        let mut edited_own = own.clone().expect("a schema");
        edited_own["spec"]["matchingPrecedence"] = json!(5);
        edited_own["metadata"]["annotations"][FLOW_AUTOUPDATE] = json!("false");
        assert_eq!(step(FLOW_SCHEMAS, &own.expect("a schema"), Some(&edited_own)), ObjectAction::Keep);
        assert!(
            matches!(step(FLOW_SCHEMAS, &wanted, Some(&edited)), ObjectAction::Update(_)),
            "the catch-all is mandatory"
        );
    }

    #[test]
    fn exempt_level_may_have_nominal_seats() {
        let wanted = flow_control()["prioritylevelconfigurations"].iter().find(|l| tree::name(l) == "exempt").cloned();
        let wanted = wanted.expect("a level");
        let mut edited = wanted.clone();
        edited["spec"]["exempt"]["nominalConcurrencyShares"] = json!(7);
        assert!(matches!(step(PRIORITY_LEVEL_CONFIGURATIONS, &wanted, Some(&edited)), ObjectAction::Update(_)));
        edited["metadata"]["annotations"][FLOW_AUTOUPDATE] = json!("false");
        assert_eq!(step(PRIORITY_LEVEL_CONFIGURATIONS, &wanted, Some(&edited)), ObjectAction::Keep);
    }

    #[test]
    fn objects_of_older_releases_are_deleted() {
        let wanted = &flow_control()["flowschemas"];
        let stored =
            |name: &str, follows: &str| json!({"metadata": {"name": name, "annotations": {FLOW_AUTOUPDATE: follows}}});
        assert!(outdated(wanted, &stored("workload-leader-election", "true")));
        assert!(!outdated(wanted, &stored("workload-leader-election", "false")));
        assert!(!outdated(wanted, &stored("catch-all", "true")));
    }

    #[test]
    fn features_that_are_on_have_their_roles() {
        let on = |gates: &[&str]| {
            let changes = gates.iter().map(|gate| ((*gate).to_owned(), true)).collect();
            FeatureGates::default().with(&changes).expect("gates")
        };
        let rules = |gates: &[&str], name: &str| {
            let all = rbac(&on(gates));
            let bound = all["clusterrolebindings"].iter().any(|b| tree::name(b) == name);
            let role = all["clusterroles"].iter().find(|r| tree::name(r) == name);
            role.map(|role| (Rule::list_of(role).len(), bound))
        };
        let node = rules(&[], "system:node").expect("a role").0;
        assert_eq!(rules(&["ClusterTrustBundle", "PodCertificateRequest"], "system:node"), Some((node + 2, true)));
        let controller = "system:controller:device-taint-eviction-controller";
        for (gates, name, want) in [
            (&[][..], "system:cluster-trust-bundle-discovery", None),
            (&["ClusterTrustBundle"], "system:cluster-trust-bundle-discovery", Some((1, true))),
            (&["DRADeviceTaintRules"], controller, None),
            (&["DRADeviceTaints"], controller, Some((6, true))),
            (&["DRADeviceTaints", "DRADeviceTaintRules"], controller, Some((8, true))),
        ] {
            assert_eq!(rules(gates, name), want, "{gates:?} {name}");
        }
    }
}
