//! ConfigMap. Answers for upstream's `pkg/registry/core/configmap`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::validation;
use crate::validation::kind_rules::{IMMUTABLE_FIRST, rules};

pub(crate) const CONFIG_MAPS: GroupResource<'static> = GroupResource::new("", "configmaps");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CONFIG_MAPS)
    .rules(rules(validation::config::config_map).update(validation::config::config_map_update).changed(IMMUTABLE_FIRST))
    .cells(printers::cluster::config_map);
