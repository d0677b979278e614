//! Limit ranges need no name: they are given one. Answers for upstream's `pkg/registry/core/limitrange`.

use proto::Value;

use crate::machinery::GroupResource;
use crate::machinery::meta;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CREATES_ON_PUT, Strategy, StrategyCx};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{ObjectMeta, Spec};
use crate::validation::kind_rules::rules;

pub(crate) const LIMIT_RANGES: GroupResource<'static> = GroupResource::new("", "limitranges");

pub(crate) static KIND: KindDefinition = KindDefinition::new(LIMIT_RANGES)
    .strategy(Strategy { prepare_create: Some(prepare_create), ..CREATES_ON_PUT })
    .rules(rules(validation::quota::limit_range).changed(&[ObjectMeta, Spec]));

/// See the module.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    if meta::text(object, "name").is_empty() {
        meta::set_text(object, "name", &uuid::Uuid::new_v4().to_string());
    }
}
