//! ComponentStatus. Answers for upstream's `pkg/registry/core/componentstatus`.

use crate::printers;
use crate::registry::kind::KindDefinition;

/// The kind.
pub(crate) static KIND: KindDefinition =
    KindDefinition::new("", "componentstatuses").cells(printers::cluster::component_status);
