//! Service accounts refer to secrets of their own namespace by name, and by nothing else. Answers for upstream's
//! `pkg/registry/core/serviceaccount`.

use proto::Value;
use serde_json::json;

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{PLAIN, Strategy, StrategyCx};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

pub(crate) const SERVICE_ACCOUNTS: GroupResource<'static> = GroupResource::new("", "serviceaccounts");

pub(crate) static KIND: KindDefinition = KindDefinition::new(SERVICE_ACCOUNTS)
    .strategy(Strategy { prepare_create: Some(prepare_create), prepare_update: Some(prepare_update), ..PLAIN })
    .rules(rules(validation::core::any).changed(&[ObjectMetaUpdate, ObjectMeta]))
    .warns(warnings::service_account);

/// See the module.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    keep_names(object);
}

/// Prepares an update of a service account.
pub(in crate::registry) fn prepare_update(new: &mut Value, _: &Value) {
    keep_names(new);
}

fn keep_names(object: &mut Value) {
    for secret in object.get_mut("secrets").and_then(Value::as_array_mut).into_iter().flatten() {
        *secret = match secret.get("name") {
            Some(name) => json!({"name": name}),
            None => json!({}),
        };
    }
}
