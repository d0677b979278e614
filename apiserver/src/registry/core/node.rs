//! Nodes: what ranges their pods have, and the configuration kubelets used to take from config maps, which no kubelet
//! reads any more: it stays only where it already is. Answers for upstream's `pkg/registry/core/node` (`nodeStrategy`).

use proto::Value;

use super::addresses::RANGES;
use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::Selectable;
use crate::registry::strategy::{PLAIN, StatusTreatment, Strategy, StrategyCx};
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};
use crate::validation::strict_addresses::{AddressRules, network_at};
use crate::validation::warnings;

pub(crate) const NODES: GroupResource<'static> = GroupResource::new("", "nodes");

pub(crate) static KIND: KindDefinition = KindDefinition::new(NODES)
    .gated(&[gated("NodeDeclaredFeatures", "status", &["declaredFeatures"])])
    .addresses(AddressRules::of(&[network_at("spec.podCIDRs.*")]))
    .strategy(Strategy {
        status: StatusTreatment::AtCreation,
        prepare_create: Some(prepare_create),
        prepare_update: Some(prepare_update),
        prepare_status: Some(prepare_status),
        ..PLAIN
    })
    .rules(
        rules(validation::node::create)
            .update(validation::node::update)
            .changed(CREATE_AND_UPDATE)
            .status(validation::node::update),
    )
    .warns(warnings::node)
    .cells(printers::cluster::node)
    .selectable(&[Selectable { label: "spec.unschedulable", pointers: &["/spec/unschedulable"], absent: "false" }]);

/// See the module.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    sync_pod_cidrs(object);
    forget(object, None, ("spec", "configSource"));
    forget(object, None, ("status", "config"));
}

/// Prepares an update of a node.
pub(in crate::registry) fn prepare_update(new: &mut Value, old: &Value) {
    sync_pod_cidrs(new);
    forget(new, Some(old), ("spec", "configSource"));
}

/// Prepares an update of a node's status.
pub(in crate::registry) fn prepare_status(new: &mut Value, old: &Value) {
    forget(new, Some(old), ("status", "config"));
}

fn sync_pod_cidrs(node: &mut Value) {
    if let Some(spec) = node.get_mut("spec") {
        RANGES.sync(spec);
    }
}

/// Takes a field out, unless the old node has it.
fn forget(node: &mut Value, old: Option<&Value>, (part, field): (&str, &str)) {
    if old.is_some_and(|old| !old[part][field].is_null()) {
        return;
    }
    if let Some(part) = node.get_mut(part).and_then(Value::as_object_mut) {
        part.remove(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn config_source_is_kept_only_where_stored() {
        let with = || json!({"spec": {"configSource": {"configMap": {}}}, "status": {"config": {"error": "x"}}});
        let without = json!({"spec": {}, "status": {}});

        let mut new = with();
        let (user, gated) = Default::default();
        prepare_create(&mut new, &mut StrategyCx { user: &user, warnings: &mut Vec::new(), gated: &gated });
        assert_eq!(new, without);

        for (old, kept) in [(&without, &without), (&with(), &with())] {
            let mut new = with();
            prepare_update(&mut new, old);
            prepare_status(&mut new, old);
            assert_eq!(&new, kept);
        }
    }
}
