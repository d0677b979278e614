//! CSIStorageCapacity. Answers for upstream's `pkg/registry/storage/csistoragecapacity`.

use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CONDITIONAL;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("storage.k8s.io", "csistoragecapacities")
    .strategy(CONDITIONAL)
    .rules(
        rules(validation::storage::csi::capacity)
            .update(validation::storage::csi::capacity_update)
            .changed(CREATE_AND_UPDATE),
    )
    .warns(|new, _, out| warnings::storage::capacity(new, out));
