//! ResourceClaimTemplate. Answers for upstream's `pkg/registry/resource/resourceclaimtemplate`.

use crate::registry::kind::KindDefinition;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("resource.k8s.io", "resourceclaimtemplates")
    .rules(rules(validation::devices::template).update(validation::devices::spec_stays).changed(CREATE_AND_UPDATE));
