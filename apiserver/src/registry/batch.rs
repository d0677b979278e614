//! The batch group. Answers for upstream's `pkg/registry/batch`.

pub(crate) mod cron_job;
pub(crate) mod job;
