//! Validation options of an update: what the stored object relies on stays allowed. Answers for upstream's
//! `GetValidationOptionsFromPodSpecAndMeta` and its like.

use proto::Value;
use proto::resources::Resource;

use super::kinds::kind_of;
use crate::rules::options::{KeptOption, ValidationOptions};
use crate::rules::tree::at;
use crate::validation::{KEPT_IN_POD_METADATA, KEPT_IN_POD_SPECS};

impl ValidationOptions {
    /// Options for the validation of an object that replaces `old`: those of the gates, and those that the old object
    /// uses.
    #[must_use]
    pub fn for_update(self, row: &Resource, old: &Value) -> Self {
        let Some(kind) = kind_of(row) else { return self };
        let options = self.keep(kind.keeps, old);
        let Some(template) = kind.pod_template.map(|template| template.of(old)) else { return options };
        let part = |key: &'static str| at(template, &[key]);
        options.keep(KEPT_IN_POD_SPECS, part("spec")).keep(KEPT_IN_POD_METADATA, part("metadata"))
    }

    fn keep(self, kept: &[KeptOption], holder: &Value) -> Self {
        let used = kept.iter().filter(|kept| !self.allows(kept.option) && (kept.used)(at(holder, kept.within)));
        used.fold(self, |all, kept| all.with(kept.option))
    }
}
