//! StorageVersion. Answers for upstream's `pkg/registry/apiserverinternal/storageversion`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CONDITIONAL, METADATA, Strategy};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::Immutable;
use crate::validation::kind_rules::rules;

pub(crate) const STORAGE_VERSIONS: GroupResource<'static> =
    GroupResource::new("internal.apiserver.k8s.io", "storageversions");

pub(crate) static KIND: KindDefinition = KindDefinition::new(STORAGE_VERSIONS)
    .strategy(Strategy { status_restores: METADATA, ..CONDITIONAL })
    .rules(
        rules(validation::storage_version::check)
            .named(NameRule::StorageVersion)
            .changed(&[])
            .status(validation::storage_version::status)
            .status_changed(&[Immutable]),
    )
    .cells(printers::cluster::storage_version);
