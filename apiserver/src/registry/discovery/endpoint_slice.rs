//! EndpointSlice. Answers for upstream's `pkg/registry/discovery/endpointslice`.

use proto::Value;

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{Generation, PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, Spec};
use crate::validation::kind_rules::rules;
use crate::validation::strict_addresses::{AddressRules, ip_at};
use crate::validation::warnings;

pub(crate) const ENDPOINT_SLICES: GroupResource<'static> = GroupResource::new("discovery.k8s.io", "endpointslices");

pub(crate) static KIND: KindDefinition = KindDefinition::new(ENDPOINT_SLICES)
    .addresses(AddressRules::of(&[ip_at("endpoints.*.addresses.*")]).exempts(has_host_names))
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

/// Reports whether a slice holds host names, which are no addresses.
fn has_host_names(slice: &Value) -> bool {
    slice.get("addressType").is_some_and(|kind| kind == "FQDN")
}
