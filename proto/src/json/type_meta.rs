//! Type metadata of a text: its `apiVersion` and `kind`.

use thiserror::Error;

use super::cursor::Cursor;
use super::scan::{self, SyntaxError};

/// Errors of reading type metadata, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TypeMetaError {
    /// Not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The text is a value of this type, and not an object.
    #[error(
        "json: cannot unmarshal {0} into Go value of type struct {{ APIVersion string \
         \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
    )]
    NotAnObject(&'static str),
    /// A field is not a string.
    #[error("json: cannot unmarshal {found} into Go struct field .{field} of type string")]
    NotAString {
        /// Type that was found.
        found: &'static str,
        /// `apiVersion` or `kind`.
        field: &'static str,
    },
}

/// Reads `apiVersion` and `kind` and nothing else.
///
/// # Errors
/// [`TypeMetaError`]; its text follows `couldn't get version/kind; json parse error: `.
pub fn type_meta(bytes: &[u8]) -> Result<(String, String), TypeMetaError> {
    scan::check(bytes)?;
    let mut cursor = Cursor::new(bytes);
    let (mut api_version, mut kind) = (String::new(), String::new());
    match cursor.peek() {
        b'{' => {}
        b'n' => return Ok((api_version, kind)),
        _ => {
            return Err(TypeMetaError::NotAnObject(cursor.what()));
        }
    }
    let mut failed = None;
    let mut more = cursor.open(b'}');
    while more {
        let key = cursor.key();
        let target = if key.eq_ignore_ascii_case("apiVersion") {
            Some(("apiVersion", &mut api_version))
        } else if key.eq_ignore_ascii_case("kind") {
            Some(("kind", &mut kind))
        } else {
            None
        };
        match (target, cursor.peek()) {
            (Some((_, slot)), b'"') => *slot = cursor.string().into_owned(),
            (Some((name, _)), c) if c != b'n' => {
                failed.get_or_insert(TypeMetaError::NotAString { found: cursor.what(), field: name });
                cursor.skip();
            }
            _ => cursor.skip(),
        }
        more = cursor.next(b'}');
    }
    failed.map_or(Ok((api_version, kind)), Err)
}
