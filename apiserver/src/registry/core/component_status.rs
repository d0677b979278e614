//! ComponentStatus. Answers for upstream's `pkg/registry/core/componentstatus`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;

pub(crate) const COMPONENT_STATUSES: GroupResource<'static> = GroupResource::new("", "componentstatuses");

pub(crate) static KIND: KindDefinition = KindDefinition::new(COMPONENT_STATUSES)
    .life_cycle(LifeCycle::new().deprecated("v1", 19, None))
    .cells(printers::cluster::component_status);
