//! Type metadata of a text: its `apiVersion` and `kind`.

use super::cursor::Cursor;
use super::scan;

/// Reads `apiVersion` and `kind` and nothing else.
///
/// # Errors
/// Upstream's text, as it follows `couldn't get version/kind; json parse error: `.
pub fn type_meta(bytes: &[u8]) -> Result<(String, String), String> {
    scan::check(bytes)?;
    let mut cursor = Cursor::new(bytes);
    let (mut api_version, mut kind) = (String::new(), String::new());
    match cursor.peek() {
        b'{' => {}
        b'n' => return Ok((api_version, kind)),
        _ => {
            return Err(format!(
                "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \
                 \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                cursor.what()
            ));
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
                failed.get_or_insert_with(|| {
                    format!("json: cannot unmarshal {} into Go struct field .{name} of type string", cursor.what())
                });
                cursor.skip();
            }
            _ => cursor.skip(),
        }
        more = cursor.next(b'}');
    }
    failed.map_or(Ok((api_version, kind)), Err)
}
