//! The cells of one row, made by the function of its kind. A kind without one gets its name and age.
//! Answers for upstream's `pkg/printers/internalversion/printers.go`.

use jiff::Timestamp;
use proto::Value;
use serde_json::json;

use super::Column;
use super::text::{age, name};

/// Makes the cells of one kind.
pub(crate) type Cells = fn(&Value, Timestamp) -> Vec<Value>;

/// The cells of an object.
pub(super) fn cells_of(cells: Option<Cells>, object: &Value, columns: &[Column], now: Timestamp) -> Vec<Value> {
    if let Some(cells) = cells {
        return cells(object, now);
    }
    let meta = &object["metadata"];
    columns
        .iter()
        .map(|c| match c.name.as_str() {
            "Name" => name(object),
            "Created At" => meta["creationTimestamp"].clone(),
            "Age" => age(object, now),
            _ => json!("<unknown>"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::behavior;
    use proto::resources;

    #[test]
    fn every_row_has_a_cell_per_column() {
        let empty =
            json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}, "status": {}});
        for r in resources::all().iter().chain(resources::optional()).filter(|r| r.is_stored()) {
            let columns = super::super::columns(r);
            let cells = behavior(r).cells(r, &empty, Timestamp::UNIX_EPOCH);
            assert_eq!(cells.len(), columns.len(), "{}/{}", r.group, r.plural);
            if columns[0].name == "Name" {
                assert_eq!(cells[0], "x", "{}", r.plural);
                assert_eq!(
                    behavior(r).cells(r, &json!({"metadata": {}}), Timestamp::UNIX_EPOCH)[0],
                    "",
                    "{}",
                    r.plural
                );
            }
        }
    }
}
