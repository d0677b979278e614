//! Event. Answers for upstream's `pkg/registry/events/rest`.

use crate::printers;
use crate::registry::core::event::SELECTABLE;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CREATES_ON_PUT, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{ObjectMeta, Spec};
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("events.k8s.io", "events")
    .strategy(Strategy { expires: true, ..CREATES_ON_PUT })
    .rules(
        rules(validation::events::create_new).created(&[Spec, ObjectMeta]).update_only(validation::events::update_new),
    )
    .cells(printers::cluster::event_v1)
    .selectable(SELECTABLE);
