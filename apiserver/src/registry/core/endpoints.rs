//! Endpoints. Answers for upstream's `pkg/registry/core/endpoint`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CREATES_ON_PUT;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("", "endpoints")
    .strategy(CREATES_ON_PUT)
    .rules(rules(validation::discovery::endpoints).update(validation::discovery::endpoints_update).changed(&[
        ObjectMetaUpdate,
        ObjectMeta,
        Immutable,
    ]))
    .warns(|new, _, out| warnings::networking::endpoints(new, out))
    .cells(printers::network::endpoints);
