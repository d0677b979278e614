//! DaemonSet, which counts the changes of its template in an annotation that old clients read. Answers for upstream's
//! `pkg/registry/apps/daemonset`.

use proto::Value;
use serde_json::json;

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::{Strategy, StrategyCx, WITH_GENERATION};
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};
use crate::validation::warnings;

pub(crate) const DAEMON_SETS: GroupResource<'static> = GroupResource::new("apps", "daemonsets");

pub(crate) static KIND: KindDefinition = KindDefinition::new(DAEMON_SETS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta2"]))
    .number_annotation(TEMPLATE_GENERATION)
    .keeps(&[kept(
        ValidationOption::InvalidLabelValueInSelector,
        &["spec", "selector"],
        validation::selectors::is_invalid,
    )])
    .describes_pods(&["spec", "template"])
    .strategy(Strategy {
        prepare_create: Some(prepare_create),
        prepare_update: Some(prepare_update),
        ..WITH_GENERATION
    })
    .rules(
        rules(validation::workloads::daemon_set)
            .update(validation::workloads::selector_stays)
            .changed(META_AND_SPEC)
            .status(validation::workloads::status::daemon_set),
    )
    .warns(warnings::daemon_set)
    .cells(printers::workloads::daemon_set);

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn count(object: &Value) -> i64 {
    object["metadata"]["annotations"][TEMPLATE_GENERATION].as_str().and_then(|t| t.parse().ok()).unwrap_or(0)
}

fn set(object: &mut Value, n: i64) {
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    object["metadata"]["annotations"][TEMPLATE_GENERATION] = json!(n.to_string());
}

/// Starts to count.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    let n = count(object).max(1);
    set(object, n);
}

/// Counts on; clients do not decide the number.
pub(in crate::registry) fn prepare_update(new: &mut Value, old: &Value) {
    let changed = new.pointer("/spec/template") != old.pointer("/spec/template");
    set(new, count(old).max(1) + i64::from(changed));
}
