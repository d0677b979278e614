//! Binding, which is created and never stored. Answers for upstream's `BindingREST` of `pkg/registry/core/pod`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;

pub(crate) const BINDINGS: GroupResource<'static> = GroupResource::new("", "bindings");

pub(crate) static KIND: KindDefinition = KindDefinition::new(BINDINGS);
