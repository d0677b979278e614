//! Subresources and kinds of the core group that are actions: binding, eviction, tokens. Answers for upstream's
//! `BindingREST`, `EvictionREST`, `TokenREST` as storages of `pods` and `serviceaccounts`.

use std::sync::Arc;

use proto::Value;
use proto::resources::Row;

use super::{BindingEffects, binding, eviction, token};
use crate::machinery::GroupResource;
use crate::machinery::query::WriteOptions;
use crate::registry::core::binding::BINDINGS;
use crate::verbs::engine::Engine;
use crate::verbs::{Acting, Actions, VerbRequest};

/// Actions of the core group.
pub(crate) struct CoreActions {
    /// Effects of a binding besides setting the node.
    pub(crate) binding: BindingEffects,
}

impl Actions for CoreActions {
    fn subresource<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        r: &'a VerbRequest,
        row: &'a Row,
        subresource: &str,
    ) -> Option<Acting<'a>> {
        match subresource {
            "binding" => Some(Box::pin(binding::bind(engine, r, row, self.binding))),
            "eviction" => Some(Box::pin(eviction::evict(engine, r, row))),
            "token" => Some(Box::pin(token::request(engine, r, row))),
            _ => None,
        }
    }

    fn create<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        r: &'a VerbRequest,
        row: &Row,
        object: &mut Value,
        options: &'a WriteOptions,
    ) -> Option<Acting<'a>> {
        if GroupResource::of(row) != BINDINGS {
            return None;
        }
        Some(Box::pin(binding::create(engine, r, object.take(), options, self.binding)))
    }
}
