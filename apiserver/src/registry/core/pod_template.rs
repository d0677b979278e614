//! PodTemplate. Answers for upstream's `pkg/registry/core/podtemplate`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

pub(crate) const POD_TEMPLATES: GroupResource<'static> = GroupResource::new("", "podtemplates");

pub(crate) static KIND: KindDefinition = KindDefinition::new(POD_TEMPLATES)
    .describes_pods(&["template"])
    .strategy(WITH_GENERATION)
    .rules(rules(validation::pod::template_object))
    .warns(warnings::pod_template)
    .cells(printers::workloads::pod_template);
