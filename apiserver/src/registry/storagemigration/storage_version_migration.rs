//! StorageVersionMigration. Answers for upstream's `pkg/registry/storagemigration/storagemigration`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CONDITIONAL, METADATA, Strategy};
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("storagemigration.k8s.io", "storageversionmigrations")
    .strategy(Strategy { status_restores: METADATA, ..CONDITIONAL })
    .rules(
        rules(validation::storage_migration::migration)
            .update(validation::storage_migration::migration_update)
            .changed(CREATE_AND_UPDATE)
            .status(validation::storage_migration::migration_status),
    )
    .cells(printers::cluster::storage_migration);
