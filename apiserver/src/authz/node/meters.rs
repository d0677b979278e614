//! Metrics of graph updates, under upstream's name.

use crate::machinery::GroupResource;
use crate::registry::core::persistent_volume::PERSISTENT_VOLUMES;
use crate::registry::core::pod::PODS;
use crate::registry::resource::resource_slice::RESOURCE_SLICES;
use crate::registry::storage::volume_attachment::VOLUME_ATTACHMENTS;
use std::sync::LazyLock;

use shared::metrics::{self, Histogram};

/// Resources in the graph, with upstream's label for each.
const KINDS: [(GroupResource<'static>, &str); 4] = [
    (PODS, "Pod"),
    (PERSISTENT_VOLUMES, "PV"),
    (VOLUME_ATTACHMENTS, "VolumeAttachment"),
    (RESOURCE_SLICES, "ResourceSlice"),
];

/// Of each kind, adding and deleting.
static TIMES: LazyLock<[[Histogram; 2]; 4]> = LazyLock::new(|| {
    let all = metrics::histogram(
        "node_authorizer_graph_actions_duration_seconds",
        "[ALPHA] Histogram of duration of graph actions in node authorizer, in seconds.",
        &["operation"],
        metrics::exponential(0.0001, 2.0, 12),
    );
    KINDS.map(|(_, word)| ["Add", "Delete"].map(|verb| all.with_label_values(&[&format!("{verb}{word}")])))
});

/// Shows the family, also while nobody has asked for the graph.
pub(super) fn show() {
    LazyLock::force(&TIMES);
}

/// Histogram of updates by objects of this resource.
pub(super) fn of(resource: GroupResource<'_>, added: bool) -> Option<&'static Histogram> {
    let at = KINDS.iter().position(|(known, _)| *known == resource)?;
    Some(&TIMES[at][usize::from(!added)])
}
