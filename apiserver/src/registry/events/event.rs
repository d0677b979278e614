//! Event. Answers for upstream's `pkg/registry/events/rest`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::conversion::events;
use crate::registry::core::event::SELECTABLE;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CREATES_ON_PUT, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{ObjectMeta, Spec};
use crate::validation::kind_rules::rules;

pub(crate) const EVENTS: GroupResource<'static> = GroupResource::new("events.k8s.io", "events");

pub(crate) static KIND: KindDefinition = KindDefinition::new(EVENTS)
    .converts(events::to_core)
    .label_alias(core_label)
    .strategy(Strategy { expires: true, ..CREATES_ON_PUT })
    .rules(
        rules(validation::events::create_new).created(&[Spec, ObjectMeta]).update_only(validation::events::update_new),
    )
    .cells(printers::cluster::event_v1)
    .selectable(SELECTABLE);

/// Field labels of this group in terms of the stored core event.
fn core_label(label: &str) -> &str {
    match label {
        "regarding.kind" => "involvedObject.kind",
        "regarding.namespace" => "involvedObject.namespace",
        "regarding.name" => "involvedObject.name",
        "regarding.uid" => "involvedObject.uid",
        "regarding.apiVersion" => "involvedObject.apiVersion",
        "regarding.resourceVersion" => "involvedObject.resourceVersion",
        "regarding.fieldPath" => "involvedObject.fieldPath",
        "reportingController" => "reportingComponent",
        other => other,
    }
}
