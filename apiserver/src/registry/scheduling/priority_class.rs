//! PriorityClass. Answers for upstream's `pkg/registry/scheduling/priorityclass`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::{Generation, PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::rules;

pub(crate) const PRIORITY_CLASSES: GroupResource<'static> = GroupResource::new("scheduling.k8s.io", "priorityclasses");

pub(crate) static KIND: KindDefinition = KindDefinition::new(PRIORITY_CLASSES)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1", "v1alpha1"]))
    .strategy(Strategy { generation: Generation::First, ..PLAIN })
    .rules(rules(validation::scheduling::class).update_only(validation::scheduling::class_update))
    .cells(printers::cluster::priority_class);
