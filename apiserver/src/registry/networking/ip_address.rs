//! IPAddress. Answers for upstream's `pkg/registry/networking/ipaddress`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("networking.k8s.io", "ipaddresses")
    .strategy(Strategy { suffixes: false, ..PLAIN })
    .rules(
        rules(validation::networking::addresses::address)
            .named(NameRule::Address)
            .update(validation::networking::addresses::address_update)
            .changed(CREATE_AND_UPDATE),
    )
    .cells(printers::network::ip_address);
