//! Bytes as hexadecimal digits.

use std::fmt::Write as _;

/// Bytes as tags and addresses of documents show them.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        let _ = write!(hex, "{byte:02X}");
        hex
    })
}
