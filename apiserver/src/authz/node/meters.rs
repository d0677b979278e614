//! Metrics of graph updates, under upstream's name.

use std::sync::LazyLock;

use shared::metrics::{self, Histogram};

/// Plurals of objects in the graph, with upstream's label for each.
const KINDS: [(&str, &str); 4] = [
    ("pods", "Pod"),
    ("persistentvolumes", "PV"),
    ("volumeattachments", "VolumeAttachment"),
    ("resourceslices", "ResourceSlice"),
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

/// Histogram of updates by objects of this plural.
pub(super) fn of(plural: &str, added: bool) -> Option<&'static Histogram> {
    let at = KINDS.iter().position(|(known, _)| *known == plural)?;
    Some(&TIMES[at][usize::from(!added)])
}
