//! Go's `%q`, which error messages use for names and values.

use std::fmt::Write as _;

/// A string as Go's `%q` prints it.
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if c.is_control()
                || matches!(c, '\u{feff}' | '\u{ad}' | '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200f}') =>
            {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::go_quote;

    #[test]
    fn quotes_like_go() {
        for (text, want) in [("a", r#""a""#), ("a\"b", r#""a\"b""#), ("\0", r#""\x00""#), ("é\n", r#""é\n""#)] {
            assert_eq!(go_quote(text), want);
        }
    }
}
