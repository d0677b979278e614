//! PEM as upstream's library reads it: what is no block is passed over, wherever it stands.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// A block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) label: String,
    /// Reports whether the block has headers (`Key: value` lines).
    pub(super) headers: bool,
    pub(super) contents: Vec<u8>,
}

/// The blocks of a text.
pub(super) fn blocks(text: &str) -> impl Iterator<Item = Block> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let start = after_line_start(rest, BEGIN)?;
            rest = start;
            if let Some((block, behind)) = block(start) {
                rest = behind;
                return Some(block);
            }
        }
    })
}

/// Text behind the first line that starts with `begin`.
fn after_line_start<'a>(text: &'a str, begin: &str) -> Option<&'a str> {
    let at = line_start(text, begin)?;
    text.get(at + begin.len()..)
}

fn line_start(text: &str, begin: &str) -> Option<usize> {
    text.match_indices(begin).map(|(at, _)| at).find(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n')
}

/// A line without the spaces at its end, and what is behind it.
fn line(text: &str) -> (&str, &str) {
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    (line.trim_end_matches([' ', '\t', '\r']), rest)
}

/// The block whose label begins a text, and what is behind it.
fn block(text: &str) -> Option<(Block, &str)> {
    let (first, mut rest) = line(text);
    let label = first.strip_suffix(DASHES)?;
    let mut headers = false;
    while let (one, behind) = line(rest)
        && one.contains(':')
    {
        (headers, rest) = (true, behind);
    }
    let end = line_start(rest, END)?;
    let (last, behind) = line(&rest[end + END.len()..]);
    if last.strip_suffix(DASHES) != Some(label) {
        return None;
    }
    let encoded: String = rest[..end].split_ascii_whitespace().collect();
    let contents = STANDARD.decode(encoded).ok()?;
    Some((Block { label: label.to_owned(), headers, contents }, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_outside_pem_blocks_is_skipped() {
        let good = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
        let labels = |text: &str| blocks(text).map(|b| b.label).collect::<Vec<_>>();
        for (text, want) in [
            (String::new(), &[][..]),
            ("words".to_owned(), &[]),
            (format!("# a\n{}words\n{}", good("A"), good("B B")), &["A", "B B"]),
            (format!("x{}", good("A")), &[]),
            ("-----BEGIN A-----\n-----END A-----".to_owned(), &["A"]),
            (format!("-----BEGIN A-----\nA\n-----END A-----\n{}", good("B")), &["B"]),
            (format!("-----BEGIN A-----\nAAAA\n-----END C-----\n{}", good("B")), &["B"]),
            (format!("-----BEGIN A\n{}", good("B")), &["B"]),
            ("-----BEGIN A-----\nAAAA\n".to_owned(), &[]),
        ] {
            assert_eq!(labels(&text), want, "{text}");
        }
        let block = blocks("-----BEGIN A----- \r\nKey: value\n\nAA\nAA\n-----END A-----").next();
        let want = Block { label: "A".to_owned(), headers: true, contents: vec![0; 3] };
        assert_eq!(block, Some(want));
    }
}
