//! Versions of a resource: which there are, and how objects get from one to another.

use proto::Value;
use proto::merge::apply::FieldsVersion;
use proto::resources::{Resource, Row};

use super::built_in::BuiltIn;
use crate::crd::{self, CrdVersion};
use crate::registry::conversion;
use crate::rows::Rows;

/// Versions of a resource, and conversions between them.
pub trait ResourceVersions {
    /// Reports whether cached objects are in the version of the row already.
    fn is_served_as_kept(&self, row: &Row) -> bool;

    /// Returns the row in which writes of a row work: that in whose version objects are kept, but custom resources are
    /// judged in the version of the request.
    fn working_row(&self, row: &Row) -> Row;

    /// Reports whether objects that are read may have to be converted before anything is done with them.
    fn changes_version(&self, row: &Row) -> bool;

    /// Reports whether a webhook converts: [`convert`](Self::convert) does not do, and `crd::convert` asks.
    fn converts_by_webhook(&self) -> bool;

    /// Reports whether an object has to be converted by `crd::convert` before it is stored.
    fn is_converted_to_store(&self, row: &Resource, object: &Value) -> bool;

    /// Reports whether etcd may hold objects in a version that is not the one they are kept in.
    fn converts_stored(&self) -> bool;

    /// Converts an object of a group and kind to a row's version.
    fn convert(&self, object: Value, from: (&str, &str), to: &Resource) -> Value;

    /// Returns the row of another group and version, served or not.
    fn other_version(&self, rows: &Rows, row: &Resource, of: (&str, &str)) -> Option<Row>;

    /// Returns the rows of all versions, for rules that match any of them.
    fn equivalents(&self, rows: &Rows, row: &Resource) -> Vec<Row>;

    /// Explains what becomes of managed fields in a version that there is not.
    fn unknown_version(&self, api_version: &str) -> FieldsVersion<'static>;
}

impl ResourceVersions for BuiltIn {
    fn is_served_as_kept(&self, row: &Row) -> bool {
        row.is_storage()
    }

    fn working_row(&self, row: &Row) -> Row {
        row.storage()
    }

    fn changes_version(&self, _: &Row) -> bool {
        false
    }

    fn converts_by_webhook(&self) -> bool {
        false
    }

    fn is_converted_to_store(&self, _: &Resource, _: &Value) -> bool {
        false
    }

    fn converts_stored(&self) -> bool {
        true
    }

    fn convert(&self, object: Value, (group, kind): (&str, &str), to: &Resource) -> Value {
        conversion::convert(object, group, kind, &to.group, &to.version)
    }

    fn other_version(&self, rows: &Rows, row: &Resource, (group, version): (&str, &str)) -> Option<Row> {
        rows.find(group, version, &row.plural)
    }

    fn equivalents(&self, rows: &Rows, row: &Resource) -> Vec<Row> {
        rows.built_in().filter(|other| other.plural == row.plural && other.storage == row.storage).collect()
    }

    fn unknown_version(&self, _: &str) -> FieldsVersion<'static> {
        FieldsVersion::Gone
    }
}

impl ResourceVersions for CrdVersion {
    /// Objects are converted where they are read and written.
    fn is_served_as_kept(&self, _: &Row) -> bool {
        true
    }

    fn working_row(&self, row: &Row) -> Row {
        row.clone()
    }

    fn changes_version(&self, row: &Row) -> bool {
        crd::changes_version(row)
    }

    fn converts_by_webhook(&self) -> bool {
        self.has_conversion_webhook()
    }

    fn is_converted_to_store(&self, row: &Resource, object: &Value) -> bool {
        object["apiVersion"] != row.storage_api_version()
    }

    fn converts_stored(&self) -> bool {
        false
    }

    fn convert(&self, mut object: Value, _: (&str, &str), to: &Resource) -> Value {
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".to_owned(), Value::from(to.api_version()));
        }
        object
    }

    fn other_version(&self, rows: &Rows, row: &Resource, (group, version): (&str, &str)) -> Option<Row> {
        if group == row.group { crd::version(rows, row, version) } else { None }
    }

    /// Served or not.
    fn equivalents(&self, rows: &Rows, row: &Resource) -> Vec<Row> {
        crd::versions(rows, row)
    }

    /// Upstream tells versions that are gone from others of its own kinds alone.
    fn unknown_version(&self, api_version: &str) -> FieldsVersion<'static> {
        FieldsVersion::Lost(match api_version.matches('/').count() {
            0 | 1 => format!("request to convert CR to an invalid group/version: {api_version}"),
            _ => format!("unexpected GroupVersion string: {api_version}"),
        })
    }
}
