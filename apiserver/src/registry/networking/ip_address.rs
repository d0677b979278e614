//! IPAddress. Answers for upstream's `pkg/registry/networking/ipaddress`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

pub(crate) const IP_ADDRESSES: GroupResource<'static> = GroupResource::new("networking.k8s.io", "ipaddresses");

pub(crate) static KIND: KindDefinition = KindDefinition::new(IP_ADDRESSES)
    .life_cycle(LifeCycle::new().introduced(&[("v1", 33)]).decodes(&["v1beta1"]))
    .strategy(Strategy { suffixes: false, ..PLAIN })
    .rules(
        rules(validation::networking::addresses::address)
            .named(NameRule::Address)
            .update(validation::networking::addresses::address_update)
            .changed(CREATE_AND_UPDATE),
    )
    .cells(printers::network::ip_address);
