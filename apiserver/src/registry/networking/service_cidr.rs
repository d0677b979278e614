//! ServiceCIDR. Answers for upstream's `pkg/registry/networking/servicecidr`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::ownable::except;
use crate::registry::strategy::{METADATA, PLAIN, StatusTreatment, Strategy};
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

pub(crate) const SERVICE_CIDRS: GroupResource<'static> = GroupResource::new("networking.k8s.io", "servicecidrs");

pub(crate) static KIND: KindDefinition = KindDefinition::new(SERVICE_CIDRS)
    .life_cycle(LifeCycle::new().introduced(&[("v1", 33)]).decodes(&["v1beta1"]))
    // Upstream names this group's versions wrongly, so that what it says of them is never heard.
    .ownership(|_| Some(except(&[])))
    .strategy(Strategy { status: StatusTreatment::Open, status_restores: METADATA, ..PLAIN })
    .rules(
        rules(validation::networking::addresses::ranges)
            .update(validation::networking::addresses::ranges_update)
            .changed(CREATE_AND_UPDATE),
    )
    .cells(printers::network::service_cidr);
