//! Event. Answers for upstream's `pkg/registry/core/event`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::conversion::events;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::{Selectable, text};
use crate::registry::strategy::{CREATES_ON_PUT, Strategy};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::Spec;
use crate::validation::kind_rules::{META_LAST, rules};

pub(crate) const EVENTS: GroupResource<'static> = GroupResource::new("", "events");

pub(crate) static KIND: KindDefinition = KindDefinition::new(EVENTS)
    .converts(events::from_core)
    .strategy(Strategy { expires: true, ..CREATES_ON_PUT })
    .rules(rules(validation::events::create).named(NameRule::PathSegment).created(META_LAST).changed(&[Spec]))
    .cells(printers::cluster::event)
    .selectable(SELECTABLE);

/// The selectable fields of events of both groups.
pub(in crate::registry) const SELECTABLE: &[Selectable] = &[
    text("involvedObject.kind", &["/involvedObject/kind"]),
    text("involvedObject.namespace", &["/involvedObject/namespace"]),
    text("involvedObject.name", &["/involvedObject/name"]),
    text("involvedObject.uid", &["/involvedObject/uid"]),
    text("involvedObject.apiVersion", &["/involvedObject/apiVersion"]),
    text("involvedObject.resourceVersion", &["/involvedObject/resourceVersion"]),
    text("involvedObject.fieldPath", &["/involvedObject/fieldPath"]),
    text("reason", &["/reason"]),
    text("reportingComponent", &["/reportingComponent"]),
    text("source", &["/source/component", "/reportingComponent"]),
    text("type", &["/type"]),
];
