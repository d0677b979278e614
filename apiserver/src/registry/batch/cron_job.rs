//! CronJob. Answers for upstream's `pkg/registry/batch/cronjob`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

pub(crate) const CRON_JOBS: GroupResource<'static> = GroupResource::new("batch", "cronjobs");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CRON_JOBS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .describes_pods(&["spec", "jobTemplate", "spec", "template"])
    .strategy(WITH_GENERATION)
    .rules(rules(validation::batch::cron_job).update_only(validation::batch::cron_job_update))
    .warns(warnings::cron_job)
    .cells(printers::workloads::cron_job);
