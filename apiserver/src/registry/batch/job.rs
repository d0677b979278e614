//! Job, which selects its pods by its own uid. Answers for upstream's `pkg/registry/batch/job`.

use proto::Value;
use serde_json::json;

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::Selectable;
use crate::registry::strategy::{Strategy, StrategyCx, WITH_GENERATION};
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};
use crate::validation::warnings;

pub(crate) const JOBS: GroupResource<'static> = GroupResource::new("batch", "jobs");

pub(crate) static KIND: KindDefinition = KindDefinition::new(JOBS)
    .label_error(|_, kind, label| format!("field label {label:?} not supported for {kind}"))
    .keeps(&[
        kept(ValidationOption::InvalidLabelValueInSelector, &["spec", "selector"], validation::selectors::is_invalid),
        kept(
            ValidationOption::UnprefixedJobLabels,
            &["spec", "template", "metadata", "labels"],
            validation::batch::lacks_prefixed_labels,
        ),
    ])
    .describes_pods(&["spec", "template"])
    .strategy(Strategy { prepare_create: Some(prepare_create), orphans_by_default: true, ..WITH_GENERATION })
    .rules(
        rules(validation::batch::job)
            .update(validation::batch::job_update)
            .changed(CREATE_AND_UPDATE)
            .status(validation::batch::status::update),
    )
    .warns(warnings::job)
    .cells(printers::workloads::job)
    .selectable(&[Selectable { label: "status.successful", pointers: &["/status/succeeded"], absent: "0" }]);

/// Adds the labels and the selector that are missing unless `manualSelector` is set. Wrong ones stay and are
/// refused.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    if object.pointer("/spec/manualSelector").and_then(Value::as_bool) == Some(true) {
        return;
    }
    let (Some(uid), Some(name)) = (object.pointer("/metadata/uid").cloned(), object.pointer("/metadata/name").cloned())
    else {
        return;
    };
    let spec = &mut object["spec"];
    add(&mut spec["selector"]["matchLabels"], "batch.kubernetes.io/controller-uid", uid.clone());
    let labels = [
        ("batch.kubernetes.io/controller-uid", uid.clone()),
        ("batch.kubernetes.io/job-name", name.clone()),
        ("controller-uid", uid),
        ("job-name", name),
    ];
    if !spec["template"]["metadata"].is_object() {
        spec["template"]["metadata"] = json!({});
    }
    for (key, value) in labels {
        add(&mut spec["template"]["metadata"]["labels"], key, value);
    }
    // A job without labels shows those of its pods.
    let of_pods = spec["template"]["metadata"]["labels"].clone();
    let own = &mut object["metadata"]["labels"];
    if own.as_object().is_none_or(serde_json::Map::is_empty) {
        *own = of_pods;
    }
}

fn add(map: &mut Value, key: &str, value: Value) {
    if map.get(key).is_none() {
        map[key] = value;
    }
}
