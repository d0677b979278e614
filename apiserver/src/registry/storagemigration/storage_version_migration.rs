//! StorageVersionMigration. Answers for upstream's `pkg/registry/storagemigration/storagemigration`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::{CONDITIONAL, METADATA, Strategy};
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

pub(crate) const STORAGE_VERSION_MIGRATIONS: GroupResource<'static> =
    GroupResource::new("storagemigration.k8s.io", "storageversionmigrations");

pub(crate) static KIND: KindDefinition = KindDefinition::new(STORAGE_VERSION_MIGRATIONS)
    .life_cycle(LifeCycle::new().gate("StorageVersionMigrator").introduced(&[("v1beta1", 35)]))
    .strategy(Strategy { status_restores: METADATA, ..CONDITIONAL })
    .rules(
        rules(validation::storage_migration::migration)
            .update(validation::storage_migration::migration_update)
            .changed(CREATE_AND_UPDATE)
            .status(validation::storage_migration::migration_status),
    )
    .cells(printers::cluster::storage_migration);
