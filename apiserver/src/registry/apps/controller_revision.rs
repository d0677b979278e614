//! ControllerRevision. Answers for upstream's `pkg/registry/apps/controllerrevision`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::validation;
use crate::validation::kind_rules::{CREATE_WITHIN_UPDATE, rules};

pub(crate) const CONTROLLER_REVISIONS: GroupResource<'static> = GroupResource::new("apps", "controllerrevisions");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CONTROLLER_REVISIONS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta2", "v1beta1"]))
    .rules(
        rules(validation::workloads::revision)
            .update(validation::workloads::revision_update)
            .changed(CREATE_WITHIN_UPDATE),
    )
    .cells(printers::workloads::controller_revision);
