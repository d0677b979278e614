//! CronJob. Answers for upstream's `pkg/registry/batch/cronjob`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("batch", "cronjobs")
    .strategy(WITH_GENERATION)
    .rules(rules(validation::batch::cron_job).update_only(validation::batch::cron_job_update))
    .warns(warnings::cron_job)
    .cells(printers::workloads::cron_job);
