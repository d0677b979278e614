//! NetworkPolicy. Answers for upstream's `pkg/registry/networking/networkpolicy`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::{SPEC_TWICE, rules};
use crate::validation::strict_addresses::{AddressRules, network_at};
use crate::validation::warnings;

pub(crate) const NETWORK_POLICIES: GroupResource<'static> = GroupResource::new("networking.k8s.io", "networkpolicies");

pub(crate) static KIND: KindDefinition = KindDefinition::new(NETWORK_POLICIES)
    .addresses(AddressRules::of(&[
        network_at("spec.ingress.*.from.*.ipBlock.cidr").kept(),
        network_at("spec.ingress.*.from.*.ipBlock.except.*").kept(),
        network_at("spec.egress.*.to.*.ipBlock.cidr").kept(),
        network_at("spec.egress.*.to.*.ipBlock.except.*").kept(),
    ]))
    .keeps(&[kept(
        ValidationOption::InvalidLabelValueInSelector,
        &["spec", "podSelector"],
        validation::selectors::is_invalid,
    )])
    .strategy(WITH_GENERATION)
    .rules(rules(validation::networking::policy::policy).changed(SPEC_TWICE))
    .warns(|new, _, out| warnings::networking::policy(new, out))
    .cells(printers::network::network_policy);
