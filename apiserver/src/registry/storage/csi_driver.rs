//! CSIDriver. Answers for upstream's `pkg/registry/storage/csidriver`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::{CONDITIONAL, Generation, Strategy};
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};
use crate::validation::warnings;

pub(crate) const CSI_DRIVERS: GroupResource<'static> = GroupResource::new("storage.k8s.io", "csidrivers");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CSI_DRIVERS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .gated(&[
        gated("SELinuxMountReadWriteOncePod", "spec", &["seLinuxMount"]),
        gated("CSIServiceAccountTokenSecrets", "spec", &["serviceAccountTokenInSecrets"]),
        gated("MutableCSINodeAllocatableCount", "spec", &["nodeAllocatableUpdatePeriodSeconds"]),
    ])
    .strategy(Strategy { generation: Generation::Changes, ..CONDITIONAL })
    .rules(
        rules(validation::storage::csi::driver).update(validation::storage::csi::driver_update).changed(META_AND_SPEC),
    )
    .warns(warnings::storage::driver)
    .cells(printers::cluster::csi_driver);
