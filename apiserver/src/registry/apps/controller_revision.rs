//! ControllerRevision. Answers for upstream's `pkg/registry/apps/controllerrevision`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::validation;
use crate::validation::kind_rules::{CREATE_WITHIN_UPDATE, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("apps", "controllerrevisions")
    .rules(
        rules(validation::workloads::revision)
            .update(validation::workloads::revision_update)
            .changed(CREATE_WITHIN_UPDATE),
    )
    .cells(printers::workloads::controller_revision);
