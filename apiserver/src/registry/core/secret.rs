//! Secrets: a PUT without a type keeps the type. Answers for upstream's `pkg/registry/core/secret`.

use proto::Value;

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::text;
use crate::registry::strategy::{PLAIN, Strategy, restore};
use crate::validation;
use crate::validation::kind_rules::{IMMUTABLE_FIRST, rules};
use crate::validation::warnings;

pub(crate) const SECRETS: GroupResource<'static> = GroupResource::new("", "secrets");

pub(crate) static KIND: KindDefinition = KindDefinition::new(SECRETS)
    .strategy(Strategy { prepare_update: Some(prepare_update), ..PLAIN })
    .rules(rules(validation::config::secret).update(validation::config::secret_update).changed(IMMUTABLE_FIRST))
    .warns(|new, _, out| warnings::secrets::tls(new, out))
    .cells(printers::cluster::secret)
    .selectable(&[text("type", &["/type"])]);

/// See the module.
pub(in crate::registry) fn prepare_update(new: &mut Value, old: &Value) {
    if new.get("type").and_then(Value::as_str).unwrap_or("").is_empty() {
        restore(new, old, "type");
    }
}
