//! EndpointSlice. Answers for upstream's `pkg/registry/discovery/endpointslice`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{Generation, PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, Spec};
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("discovery.k8s.io", "endpointslices")
    .strategy(Strategy {
        generation: Generation::SpecAndLabels,
        prepare_create: Some(crate::registry::discovery::prepare_create),
        prepare_update: Some(crate::registry::discovery::prepare_update),
        ..PLAIN
    })
    .rules(
        rules(validation::discovery::slice)
            .update(validation::discovery::slice_update)
            .changed(&[ObjectMeta, Spec, Immutable]),
    )
    .warns(warnings::networking::slice)
    .cells(printers::network::endpoint_slice);
