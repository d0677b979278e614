//! OpenAPI v2 and v3 documents.
//!
//! The documents are rendered from the schema tables; this room adds media types and hashes.

use crate::verbs::Reply;

/// `/openapi/v2` in the accepted form.
pub fn v2(_accept: Option<&str>) -> Option<Reply> {
    None
}

/// `/openapi/v3`: which documents there are.
pub fn index() -> Reply {
    Reply::json(br#"{"paths":{}}"#.to_vec())
}

/// `/openapi/v3/<group version>`.
pub fn v3(_path: &[&str], _accept: Option<&str>) -> Option<Reply> {
    None
}
