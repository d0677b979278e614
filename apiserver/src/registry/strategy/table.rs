//! The strategy of a resource.

use proto::resources::Resource;

use super::kind::{Generation, Strategy};
use super::presets::{CONDITIONAL, PLAIN};
use crate::registry::kinds::kind_of;

static PLAIN_ROW: Strategy = PLAIN;
/// Custom resources.
static CUSTOM: Strategy =
    Strategy { prepare_status: Some(crate::crd::objects::prepare_status), generation: Generation::All, ..CONDITIONAL };

/// The strategy of a resource.
pub fn strategy_of(resource: &Resource) -> &'static Strategy {
    if resource.custom.is_some() {
        return &CUSTOM;
    }
    kind_of(resource).map_or(&PLAIN_ROW, |kind| &kind.strategy)
}
