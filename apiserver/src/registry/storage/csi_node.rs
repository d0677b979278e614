//! CSINode. Answers for upstream's `pkg/registry/storage/csinode`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CONDITIONAL;
use crate::validation;
use crate::validation::kind_rules::{CSI_NODES, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("storage.k8s.io", "csinodes")
    .strategy(CONDITIONAL)
    .rules(rules(validation::storage::csi::node).update(validation::storage::csi::node_update).changed(CSI_NODES))
    .cells(printers::cluster::csi_node);
