//! RuntimeClass. Answers for upstream's `pkg/registry/node/runtimeclass`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CONDITIONAL_CREATES;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};
use crate::validation::warnings;

pub(crate) const RUNTIME_CLASSES: GroupResource<'static> = GroupResource::new("node.k8s.io", "runtimeclasses");

pub(crate) static KIND: KindDefinition = KindDefinition::new(RUNTIME_CLASSES)
    .strategy(CONDITIONAL_CREATES)
    .rules(
        rules(validation::node::runtime_class)
            .update(validation::node::runtime_class_update)
            .changed(CREATE_AND_UPDATE),
    )
    .warns(|new, _, out| warnings::runtime_class(new, out))
    .cells(printers::cluster::runtime_class);
