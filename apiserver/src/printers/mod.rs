//! Printers: the columns `kubectl get` shows, computed by the server. Answers for upstream's
//! `pkg/printers/internalversion` (`AddHandlers`).
//!
//! In comes an object's tree, out go the cells of its row. Pure; columns are upstream's (`columns.json`, one entry per
//! `api/v1/<plural>` or `apis/<group>/<version>/<plural>`).

mod cells;
pub(crate) mod cluster;
pub(crate) mod network;
mod pods;
pub(crate) mod policy;
mod text;
pub(crate) mod workloads;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use proto::Value;
use proto::resources::Resource;

pub(crate) use cells::Cells;

use crate::machinery::table::{Column, since};

fn all() -> &'static BTreeMap<String, Vec<Column>> {
    static ALL: OnceLock<BTreeMap<String, Vec<Column>>> = OnceLock::new();
    ALL.get_or_init(|| serde_json::from_str(include_str!("columns.json")).unwrap_or_default())
}

fn column(name: &str, kind: &str, format: &str) -> Column {
    Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: format.to_owned(),
        description: String::new(),
        priority: 0,
    }
}

fn generic() -> &'static [Column] {
    static GENERIC: OnceLock<Vec<Column>> = OnceLock::new();
    GENERIC.get_or_init(|| vec![column("Name", "string", "name"), column("Created At", "date", "")])
}

/// The columns of the Scale of a built-in kind.
pub fn scale_columns() -> &'static [Column] {
    static SCALE: OnceLock<Vec<Column>> = OnceLock::new();
    SCALE.get_or_init(|| {
        let columns = [("Name", "string"), ("Desired", "integer"), ("Available", "integer"), ("Age", "string")];
        columns.map(|(name, kind)| column(name, kind, "")).into()
    })
}

/// The cells of a Scale.
pub fn scale(scale: &Value) -> Vec<Value> {
    let age = since(Some(&scale["metadata"]["creationTimestamp"]), jiff::Timestamp::now());
    let replicas = |part: &str| scale[part]["replicas"].clone();
    vec![text::name(scale), replicas("spec"), replicas("status"), age.into()]
}

/// The columns of a built-in resource.
pub fn columns(row: &Resource) -> &[Column] {
    let key = if row.group.is_empty() {
        format!("api/{}/{}", row.version, row.plural)
    } else {
        format!("apis/{}/{}/{}", row.group, row.version, row.plural)
    };
    all().get(&key).map_or_else(generic, Vec::as_slice)
}

/// The cells of an object of a built-in resource, one per column, by the function of its kind; ages are counted up to
/// `now`.
pub(crate) fn cells(cells: Option<Cells>, row: &Resource, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
    cells::cells_of(cells, object, columns(row), now)
}
