//! ReplicationController. Answers for upstream's `pkg/registry/core/replicationcontroller`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::Selectable;
use crate::registry::strategy::{Strategy, WITH_GENERATION};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{SPEC_TWICE, rules};
use crate::validation::warnings;

pub(crate) const REPLICATION_CONTROLLERS: GroupResource<'static> = GroupResource::new("", "replicationcontrollers");

pub(crate) static KIND: KindDefinition = KindDefinition::new(REPLICATION_CONTROLLERS)
    .describes_pods(&["spec", "template"])
    .strategy(Strategy { orphans_by_default: true, ..WITH_GENERATION })
    .rules(
        rules(validation::workloads::replication_controller)
            .named(NameRule::WholeSubdomain)
            .update(validation::workloads::convertible)
            .changed(SPEC_TWICE)
            .status(validation::workloads::status::replicas),
    )
    .warns(warnings::named_workload)
    .cells(printers::workloads::replication_controller)
    .selectable(&[Selectable { label: "status.replicas", pointers: &["/status/replicas"], absent: "0" }]);
