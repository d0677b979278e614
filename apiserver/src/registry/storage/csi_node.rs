//! CSINode. Answers for upstream's `pkg/registry/storage/csinode`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL;
use crate::validation;
use crate::validation::kind_rules::{self, rules};

pub(crate) const CSI_NODES: GroupResource<'static> = GroupResource::new("storage.k8s.io", "csinodes");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CSI_NODES)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .rule_without("MutableCSINodeAllocatableCount", validation::counts_stay)
    .strategy(CONDITIONAL)
    .rules(
        rules(validation::storage::csi::node)
            .update(validation::storage::csi::node_update)
            .changed(kind_rules::CSI_NODES),
    )
    .cells(printers::cluster::csi_node);
