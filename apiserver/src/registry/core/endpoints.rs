//! Endpoints. Answers for upstream's `pkg/registry/core/endpoint`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CREATES_ON_PUT;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;
use crate::validation::strict_addresses::{AddressRules, ip_at};
use crate::validation::warnings;

pub(crate) const ENDPOINTS: GroupResource<'static> = GroupResource::new("", "endpoints");

pub(crate) static KIND: KindDefinition = KindDefinition::new(ENDPOINTS)
    .life_cycle(LifeCycle::new().deprecated("v1", 33, Some(("discovery.k8s.io/v1", "EndpointSlice"))))
    .addresses(AddressRules::of(&[ip_at("subsets.*.addresses.*.ip"), ip_at("subsets.*.notReadyAddresses.*.ip")]))
    .strategy(CREATES_ON_PUT)
    .rules(rules(validation::discovery::endpoints).update(validation::discovery::endpoints_update).changed(&[
        ObjectMetaUpdate,
        ObjectMeta,
        Immutable,
    ]))
    .warns(|new, _, out| warnings::networking::endpoints(new, out))
    .cells(printers::network::endpoints);
