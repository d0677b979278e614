//! CustomResourceDefinition. Answers for upstream's `apiextensions-apiserver/pkg/registry/customresourcedefinition`.

use crate::machinery::GroupResource;
use crate::registry::conversion::definitions;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::ownable::except;
use crate::registry::strategy::{CONDITIONAL_GENERATION, Strategy};
use crate::validation;
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

pub(crate) const CUSTOM_RESOURCE_DEFINITIONS: GroupResource<'static> =
    GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CUSTOM_RESOURCE_DEFINITIONS)
    .converts(definitions::convert)
    .ownership(|subresource| (subresource == "status").then(|| except(&[&["spec"], &["metadata"]])))
    .gated(&[gated(
        "CRDObservedGenerationTracking",
        "status",
        &["observedGeneration", "conditions.*.observedGeneration"],
    )])
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
