//! Printers: the columns `kubectl get` shows, computed by the server. Answers for upstream's
//! `pkg/printers/internalversion` (`AddHandlers`).
//!
//! In comes an object's tree, out go the cells of its row. Pure; columns are upstream's (`columns.json`, one entry per
//! `api/v1/<plural>` or `apis/<group>/<version>/<plural>`).

mod cells;
mod cluster;
mod network;
mod pods;
mod policy;
mod text;
mod workloads;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use proto::Value;
use proto::resources::Resource;

use crate::crd;
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

/// The columns of a resource.
pub fn columns(row: &Resource) -> &[Column] {
    if let Some(served) = crd::version_of(row) {
        return &served.columns;
    }
    let key = if row.group.is_empty() {
        format!("api/{}/{}", row.version, row.plural)
    } else {
        format!("apis/{}/{}/{}", row.group, row.version, row.plural)
    };
    all().get(&key).map_or_else(generic, Vec::as_slice)
}

/// The cells of an object, one per column.
pub fn row(row: &Resource, object: &Value) -> Vec<Value> {
    if let Some(served) = crd::version_of(row) {
        return crd::objects::cells(served, object, jiff::Timestamp::now());
    }
    cells::cells_of(row, object, columns(row), jiff::Timestamp::now())
}

/// The JSON text of the cells of an object, with ages left open: it stays true as long as the object does.
pub fn open_row(row: &Resource, object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let cells = match crd::version_of(row) {
        Some(served) => crd::objects::cells(served, object, text::OPEN),
        None => cells::cells_of(row, object, columns(row), text::OPEN),
    };
    proto::json::encode_any(&Value::Array(cells), &mut out);
    out
}

/// Writes what [`open_row`] gave as it is to be shown now.
pub fn write_row(open: &[u8], out: &mut Vec<u8>) {
    text::fill_in(open, jiff::Timestamp::now(), out);
}
