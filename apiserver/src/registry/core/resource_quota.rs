//! ResourceQuota. Answers for upstream's `pkg/registry/core/resourcequota`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};
use crate::validation::warnings;

pub(crate) const RESOURCE_QUOTAS: GroupResource<'static> = GroupResource::new("", "resourcequotas");

pub(crate) static KIND: KindDefinition = KindDefinition::new(RESOURCE_QUOTAS)
    .rules(
        rules(validation::quota::quota)
            .update(validation::quota::quota_update)
            .changed(META_AND_SPEC)
            .status(validation::quota::quota_status),
    )
    .warns(warnings::resource_quota)
    .cells(printers::policy::resource_quota);
