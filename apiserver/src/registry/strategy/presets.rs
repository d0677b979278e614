//! Strategies that many kinds share, and that others differ from in a field.

use super::kind::{Generation, StatusTreatment, Strategy};

/// No generation, unconditional PUT, no grace.
pub(in crate::registry) const PLAIN: Strategy = Strategy {
    generation: Generation::None,
    create_on_update: false,
    unconditional_update: true,
    status: StatusTreatment::Apart,
    suffixes: true,
    status_restores: &[],
    prepare_create: None,
    prepare_update: None,
    prepare_status: None,
    grace: None,
    holds: None,
    on_delete: None,
    orphans_by_default: false,
    expires: false,
    counts: None,
};

pub(in crate::registry) const WITH_GENERATION: Strategy = Strategy { generation: Generation::Spec, ..PLAIN };
pub(in crate::registry) const CONDITIONAL: Strategy = Strategy { unconditional_update: false, ..PLAIN };
pub(in crate::registry) const CONDITIONAL_GENERATION: Strategy =
    Strategy { unconditional_update: false, ..WITH_GENERATION };
pub(in crate::registry) const CREATES_ON_PUT: Strategy = Strategy { create_on_update: true, ..PLAIN };
pub(in crate::registry) const CONDITIONAL_CREATES: Strategy = Strategy { create_on_update: true, ..CONDITIONAL };
