//! Tables: columns and rows of objects, as `kubectl get` shows them.

use jiff::Timestamp;
use proto::Value;
use proto::resources::Resource;

use super::behavior::behavior;
use crate::machinery::table::{Column, OPEN, fill_in};

/// The columns of a resource.
pub fn columns(row: &Resource) -> &[Column] {
    behavior(row).columns(row)
}

/// The cells of an object, one per column.
pub fn cells(row: &Resource, object: &Value) -> Vec<Value> {
    behavior(row).cells(row, object, Timestamp::now())
}

/// The JSON text of the cells of an object, with ages left open: it stays true as long as the object does. It is shown by
/// [`write_row`].
pub fn open_row(row: &Resource, object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let cells = behavior(row).cells(row, object, OPEN);
    proto::json::encode_any(&Value::Array(cells), &mut out);
    out
}

/// Writes what [`open_row`] gave as it is to be shown now.
pub fn write_row(open: &[u8], out: &mut Vec<u8>) {
    fill_in(open, Timestamp::now(), out);
}
