//! HorizontalPodAutoscaler. Answers for upstream's `pkg/registry/autoscaling/horizontalpodautoscaler`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::conversion::autoscaler;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::rules::options::{ValidationOption, kept};
use crate::rules::tree;
use crate::validation;
use crate::validation::kind_rules::rules;

pub(crate) const HORIZONTAL_POD_AUTOSCALERS: GroupResource<'static> =
    GroupResource::new("autoscaling", "horizontalpodautoscalers");

pub(crate) static KIND: KindDefinition = KindDefinition::new(HORIZONTAL_POD_AUTOSCALERS)
    .converts(autoscaler::convert)
    .gated(&[gated("HPAConfigurableTolerance", "spec.behavior", &["scaleUp.tolerance", "scaleDown.tolerance"])])
    .keeps(&[kept(ValidationOption::MinReplicasZero, &["spec"], |spec| tree::int(spec, "minReplicas") == Some(0))])
    .strategy(Strategy {
        prepare_create: Some(crate::registry::conversion::autoscaler::prepare_create),
        prepare_update: Some(crate::registry::conversion::autoscaler::prepare_update),
        prepare_status: Some(crate::registry::conversion::autoscaler::prepare_update),
        ..PLAIN
    })
    .rules(
        rules(validation::autoscaling::autoscaler)
            .update_only(validation::autoscaling::autoscaler_update)
            .status(validation::autoscaling::status),
    )
    .cells(printers::policy::autoscaler);
