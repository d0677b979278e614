//! State that the server keeps with a row of a custom resource, and where it is found. Answers for upstream's
//! `crdInfo`.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use proto::Value;
use proto::resources::{Resource, Row};

use super::conversion::Conversion;
use super::jsonpath::JsonPath;
use super::schema::Schema;
use crate::machinery::table::Column;
use crate::rows::Rows;

/// State that the server keeps with a row of a custom resource.
#[derive(Debug)]
pub struct CrdVersion {
    /// Name of the definition.
    pub definition: String,
    /// Schema of the row's version.
    pub schema: Arc<Schema>,
    /// Schemas of all versions by name: a stored object may be of one that is not served any more.
    pub schemas: Schemas,
    /// All versions there are, as the definition lists them.
    pub versions: Arc<[String]>,
    /// The rows of those that are not served: objects may have been written in one, and may be shown in one.
    pub unserved: Arc<[Row]>,
    /// The text of the schema, for documents.
    pub text: Arc<Value>,
    /// Changes whenever documents about the row would.
    pub hash: [u8; 32],
    /// OpenAPI v2 pieces of the row, made on first use.
    pub pieces: OnceLock<Pieces>,
    /// Columns of tables after the name, with where their cells come from.
    pub columns: Vec<Column>,
    /// Paths of the columns after the first.
    pub cells: Vec<JsonPath>,
    /// Scale subresource, if enabled.
    pub scale: Option<Scale>,
    /// Selectable fields of all versions: label and path.
    pub selectable: Arc<[(String, JsonPath)]>,
    /// Labels of this version.
    pub labels: Vec<String>,
    /// Conversion between the versions.
    pub conversion: Arc<Conversion>,
    /// Said to clients of a deprecated version.
    pub warning: Option<String>,
    /// New objects are refused: the definition is going.
    pub terminating: bool,
}

/// Schemas by version.
pub(super) type Schemas = Arc<BTreeMap<String, Arc<Schema>>>;

/// The scale subresource.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Replicas asked for.
    pub spec: Vec<String>,
    /// Replicas there are.
    pub status: Vec<String>,
    /// Selector, as text.
    pub selector: Option<Vec<String>>,
}

impl CrdVersion {
    /// Reports whether other versions are converted by a webhook.
    pub fn has_conversion_webhook(&self) -> bool {
        matches!(*self.conversion, Conversion::Webhook(_))
    }
}

/// Returns the state that is kept with a row; `None` for built-in rows.
pub fn version_of(row: &Resource) -> Option<&CrdVersion> {
    row.custom.as_ref()?.behind.downcast_ref()
}

/// The row of a version of a custom resource, served or not.
pub fn version(rows: &Rows, row: &Resource, version: &str) -> Option<Row> {
    let unserved = || version_of(row)?.unserved.iter().find(|other| other.version == version).cloned();
    rows.find(&row.group, version, &row.plural).or_else(unserved)
}

/// The rows of all versions of a custom resource, as its definition lists them.
pub fn versions(rows: &Rows, row: &Resource) -> Vec<Row> {
    let names = version_of(row).map(|s| s.versions.iter()).into_iter().flatten();
    names.filter_map(|name| version(rows, row, name)).collect()
}

/// Reports whether other versions are converted by a webhook.
pub fn converts(row: &Resource) -> bool {
    version_of(row).is_some_and(CrdVersion::has_conversion_webhook)
}

/// Reports whether cached objects may need conversion to be served as objects of the row.
pub fn changes_version(row: &Row) -> bool {
    row.custom.is_some() && (!row.is_storage() || converts(row))
}

/// A row's part of the document, ready to be put into it.
#[derive(Debug)]
pub struct Pieces {
    /// Members of `paths`, a comma before each.
    pub paths: Vec<u8>,
    /// Members of `definitions`, likewise.
    pub definitions: Vec<u8>,
    /// Both in protobuf.
    pub protobuf: Vec<u8>,
}
