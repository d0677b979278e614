//! StatefulSet. Answers for upstream's `pkg/registry/apps/statefulset`.

use proto::Value;

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::WITH_GENERATION;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

pub(crate) const STATEFUL_SETS: GroupResource<'static> = GroupResource::new("apps", "statefulsets");

pub(crate) static KIND: KindDefinition = KindDefinition::new(STATEFUL_SETS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta2", "v1beta1"]))
    .defaults_with("MaxUnavailableStatefulSet", one_unavailable)
    .gated(&[gated("MaxUnavailableStatefulSet", "spec.updateStrategy", &["rollingUpdate.maxUnavailable"])])
    .describes_pods(&["spec", "template"])
    .strategy(WITH_GENERATION)
    .rules(
        rules(validation::workloads::stateful::create)
            .named(NameRule::Label)
            .update_only(validation::workloads::stateful::update)
            .status(validation::workloads::status::stateful_set)
            .status_changed(&[Immutable, ObjectMetaUpdate]),
    )
    .warns(warnings::stateful_set)
    .cells(printers::workloads::stateful_set);

/// Defaults to one pod at a time, as it always was.
fn one_unavailable(set: &mut Value) {
    let update = set.pointer_mut("/spec/updateStrategy/rollingUpdate").and_then(Value::as_object_mut);
    if let Some(update) = update.filter(|update| update.get("maxUnavailable").is_none_or(Value::is_null)) {
        update.insert("maxUnavailable".to_owned(), Value::from(1));
    }
}
