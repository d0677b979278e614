//! StatefulSet. Answers for upstream's `pkg/registry/apps/statefulset`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("apps", "statefulsets")
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
