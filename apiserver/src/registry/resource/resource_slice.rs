//! ResourceSlice. Answers for upstream's `pkg/registry/resource/resourceslice`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::text;
use crate::registry::strategy::{Strategy, WITH_GENERATION};
use crate::validation;
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("resource.k8s.io", "resourceslices")
    .strategy(Strategy {
        prepare_create: Some(crate::registry::devices::create_slice),
        prepare_update: Some(crate::registry::devices::update_slice),
        ..WITH_GENERATION
    })
    .rules(rules(validation::devices::slice::slice).update_only(validation::devices::slice::update))
    .warns(|new, _, out| warnings::resource_slice(new, out))
    .cells(printers::cluster::resource_slice)
    .selectable(&[text("spec.driver", &["/spec/driver"]), text("spec.nodeName", &["/spec/nodeName"])]);
