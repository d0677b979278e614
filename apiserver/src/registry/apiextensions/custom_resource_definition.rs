//! CustomResourceDefinition. Answers for upstream's `apiextensions-apiserver/pkg/registry/customresourcedefinition`.

use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CONDITIONAL_GENERATION, Strategy};
use crate::validation;
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("apiextensions.k8s.io", "customresourcedefinitions")
    .strategy(Strategy {
        prepare_create: Some(crate::registry::apiextensions::prepare_create),
        prepare_update: Some(crate::registry::apiextensions::prepare_update),
        holds: Some(crate::registry::apiextensions::is_held),
        on_delete: Some(crate::registry::apiextensions::terminate),
        ..CONDITIONAL_GENERATION
    })
    .rules(
        rules(validation::definition::definition)
            .update_only(validation::definition::definition_update)
            .status(validation::definition::definition_status),
    )
    .warns(warnings::definition::formats);
