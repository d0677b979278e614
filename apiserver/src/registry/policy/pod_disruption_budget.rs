//! PodDisruptionBudget. Answers for upstream's `pkg/registry/policy/poddisruptionbudget`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CONDITIONAL_GENERATION;
use crate::rules::names::NameRule;
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, Spec};
use crate::validation::kind_rules::{META_LAST, rules};

pub(crate) const POD_DISRUPTION_BUDGETS: GroupResource<'static> = GroupResource::new("policy", "poddisruptionbudgets");

pub(crate) static KIND: KindDefinition = KindDefinition::new(POD_DISRUPTION_BUDGETS)
    .keeps(&[kept(
        ValidationOption::InvalidLabelValueInSelector,
        &["spec", "selector"],
        validation::selectors::is_invalid,
    )])
    .strategy(CONDITIONAL_GENERATION)
    .rules(
        rules(validation::policy::budget)
            .named(NameRule::PathSegment)
            .created(META_LAST)
            .changed(&[Spec])
            .status(validation::policy::status)
            .status_changed(&[Immutable]),
    )
    .cells(printers::policy::disruption_budget);
