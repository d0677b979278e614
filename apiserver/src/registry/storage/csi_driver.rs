//! CSIDriver. Answers for upstream's `pkg/registry/storage/csidriver`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CONDITIONAL, Generation, Strategy};
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("storage.k8s.io", "csidrivers")
    .strategy(Strategy { generation: Generation::Changes, ..CONDITIONAL })
    .rules(
        rules(validation::storage::csi::driver).update(validation::storage::csi::driver_update).changed(META_AND_SPEC),
    )
    .warns(warnings::storage::driver)
    .cells(printers::cluster::csi_driver);
