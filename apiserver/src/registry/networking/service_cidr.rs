//! ServiceCIDR. Answers for upstream's `pkg/registry/networking/servicecidr`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{METADATA, PLAIN, StatusTreatment, Strategy};
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("networking.k8s.io", "servicecidrs")
    .strategy(Strategy { status: StatusTreatment::Open, status_restores: METADATA, ..PLAIN })
    .rules(
        rules(validation::networking::addresses::ranges)
            .update(validation::networking::addresses::ranges_update)
            .changed(CREATE_AND_UPDATE),
    )
    .cells(printers::network::service_cidr);
