//! CSIStorageCapacity. Answers for upstream's `pkg/registry/storage/csistoragecapacity`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL;
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};
use crate::validation::warnings;

pub(crate) const CSI_STORAGE_CAPACITIES: GroupResource<'static> =
    GroupResource::new("storage.k8s.io", "csistoragecapacities");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CSI_STORAGE_CAPACITIES)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1", "v1alpha1"]))
    .keeps(&[kept(ValidationOption::InvalidLabelValueInSelector, &["nodeTopology"], validation::selectors::is_invalid)])
    .strategy(CONDITIONAL)
    .rules(
        rules(validation::storage::csi::capacity)
            .update(validation::storage::csi::capacity_update)
            .changed(CREATE_AND_UPDATE),
    )
    .warns(|new, _, out| warnings::storage::capacity(new, out));
