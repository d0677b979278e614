//! PriorityClass. Answers for upstream's `pkg/registry/scheduling/priorityclass`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{Generation, PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("scheduling.k8s.io", "priorityclasses")
    .strategy(Strategy { generation: Generation::First, ..PLAIN })
    .rules(rules(validation::scheduling::class).update_only(validation::scheduling::class_update))
    .cells(printers::cluster::priority_class);
