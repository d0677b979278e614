//! HorizontalPodAutoscaler. Answers for upstream's `pkg/registry/autoscaling/horizontalpodautoscaler`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("autoscaling", "horizontalpodautoscalers")
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
