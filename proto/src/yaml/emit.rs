//! Values as YAML, byte for byte as upstream's emitter (`sigs.k8s.io/yaml`) writes them.
//!
//! Blocks are indented by two, lists under a key not at all. A text stands plain where it is read back as the same text,
//! as a literal block if it has several lines, otherwise in single quotes, and in double quotes where it would be read
//! as something else or has characters that do not show. Lines are folded at the first single space past column 80.

use serde_json::Value;

use super::{order, plain};
use crate::json;
use crate::scalar::float;

/// Lines are folded behind this column.
const WIDTH: usize = 80;
/// A longer key stands behind a question mark.
const SIMPLE_KEY: usize = 128;
/// Spaces by which what is inside stands further right.
const STEP: usize = 2;

/// Writes a document.
pub(super) fn document(value: &Value) -> String {
    let mut emitter = Emitter { out: String::new(), column: 0, indent: None, spaced: true, indented: true };
    emitter.node(value, false);
    emitter.indent = None;
    emitter.new_line();
    emitter.out
}

/// Style of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

/// Traits of a text that decide its style.
#[derive(Default)]
struct Traits {
    /// Begins like something else, or has a mark with a meaning.
    marked: bool,
    /// Has line breaks.
    lines: bool,
    /// Has what is not shown as it is.
    special: bool,
    /// Begins or ends with a blank.
    outer_blank: bool,
    trailing_space: bool,
    break_space: bool,
    space_break: bool,
}

struct Emitter {
    out: String,
    column: usize,
    /// None outside of any block.
    indent: Option<usize>,
    /// The last character was a blank or the start of a line.
    spaced: bool,
    /// The line has only indentation and block indicators so far.
    indented: bool,
}

impl Emitter {
    fn put(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }

    /// Writes a character that may end the line.
    fn put_any(&mut self, c: char) {
        self.put(c);
        if is_break(c) {
            self.column = 0;
        }
    }

    fn end_line(&mut self) {
        self.put_any('\n');
    }

    /// Goes to where the next thing of the block begins.
    fn new_line(&mut self) {
        let indent = self.indent.unwrap_or(0);
        if !self.indented || self.column > indent || (self.column == indent && !self.spaced) {
            self.end_line();
        }
        while self.column < indent {
            self.put(' ');
        }
        (self.spaced, self.indented) = (true, true);
    }

    /// A mark after a blank.
    fn mark(&mut self, mark: char, of_block: bool) {
        if !self.spaced {
            self.put(' ');
        }
        self.put(mark);
        self.spaced = false;
        self.indented &= of_block;
    }

    /// A mark right behind what was written.
    fn close(&mut self, mark: char) {
        self.put(mark);
        (self.spaced, self.indented) = (false, false);
    }

    /// Does something further right.
    fn within(&mut self, indent: usize, inner: impl FnOnce(&mut Self)) {
        let outer = self.indent.replace(indent);
        inner(self);
        self.indent = outer;
    }

    fn deeper(&self, root: usize) -> usize {
        self.indent.map_or(root, |indent| indent + STEP)
    }

    /// A value; `of_map` for one that has a key.
    fn node(&mut self, value: &Value, of_map: bool) {
        match value {
            Value::Null => self.word("null"),
            Value::Bool(true) => self.word("true"),
            Value::Bool(false) => self.word("false"),
            Value::Number(n) => self.word(&number(n)),
            Value::String(text) => self.text(text, style(text, false), false),
            Value::Array(list) if list.is_empty() => self.word("[]"),
            Value::Object(map) if map.is_empty() => self.word("{}"),
            Value::Array(list) => self.list(list, of_map),
            Value::Object(map) => self.map(map),
        }
    }

    fn word(&mut self, word: &str) {
        self.text(word, Style::Plain, false);
    }

    fn list(&mut self, list: &[Value], of_map: bool) {
        let indent = if of_map && !self.indented { self.indent.unwrap_or(0) } else { self.deeper(0) };
        self.within(indent, |e| {
            for item in list {
                e.new_line();
                e.mark('-', true);
                e.node(item, false);
            }
        });
    }

    fn map(&mut self, map: &serde_json::Map<String, Value>) {
        let entries = order::sort(map.iter().map(|(key, value)| (key.as_str(), value)).collect());
        self.within(self.deeper(0), |e| {
            for (key, value) in entries {
                e.new_line();
                if key.len() <= SIMPLE_KEY && !key.contains(is_break) {
                    e.text(key, style(key, true), true);
                    e.close(':');
                } else {
                    e.mark('?', true);
                    e.text(key, style(key, false), false);
                    e.new_line();
                    e.mark(':', true);
                }
                e.node(value, true);
            }
        });
    }

    /// A text in a style; one that is a simple key stands on one line.
    fn text(&mut self, text: &str, style: Style, key: bool) {
        self.within(self.deeper(STEP), |e| match style {
            Style::Plain => e.plain(text, !key),
            Style::Single => e.single(text, !key),
            Style::Double => e.double(text, !key),
            Style::Literal => e.literal(text),
        });
    }

    fn plain(&mut self, text: &str, fold: bool) {
        if !self.spaced {
            self.put(' ');
        }
        self.lines(text, fold, false);
        (self.spaced, self.indented) = (false, false);
    }

    fn single(&mut self, text: &str, fold: bool) {
        self.mark('\'', false);
        self.lines(text, fold, true);
        self.close('\'');
    }

    /// Text on as many lines as it takes.
    fn lines(&mut self, text: &str, fold: bool, quoted: bool) {
        let (mut spaces, mut breaks) = (false, false);
        let mut rest = text.chars().peekable();
        let mut first = true;
        while let Some(c) = rest.next() {
            let inner = !quoted || (!first && rest.peek().is_some());
            first = false;
            if c == ' ' {
                if fold && !spaces && self.column > WIDTH && inner && rest.peek() != Some(&' ') {
                    self.new_line();
                } else {
                    self.put(c);
                }
                spaces = true;
                continue;
            }
            if is_break(c) {
                if !breaks && c == '\n' {
                    self.end_line();
                }
                self.put_any(c);
                (self.indented, breaks) = (true, true);
                continue;
            }
            if breaks {
                self.new_line();
            }
            if quoted && c == '\'' {
                self.put(c);
            }
            self.put(c);
            self.indented = false;
            (spaces, breaks) = (false, false);
        }
    }

    fn double(&mut self, text: &str, fold: bool) {
        self.mark('"', false);
        // Upstream looks for the mark at the beginning of the text, wherever it is.
        let all = text.starts_with('\u{feff}');
        let mut spaces = false;
        let mut rest = text.chars().peekable();
        let mut first = true;
        while let Some(c) = rest.next() {
            let inner = !first && rest.peek().is_some();
            first = false;
            if all || !is_printable(c) || is_break(c) || c == '"' || c == '\\' {
                self.escape(c);
                spaces = false;
            } else if c == ' ' && fold && !spaces && self.column > WIDTH && inner {
                self.new_line();
                if rest.peek() == Some(&' ') {
                    self.put('\\');
                }
                spaces = true;
            } else {
                self.put(c);
                spaces = c == ' ';
            }
        }
        self.close('"');
    }

    fn escape(&mut self, c: char) {
        let short = match c {
            '\0' => "0",
            '\u{7}' => "a",
            '\u{8}' => "b",
            '\t' => "t",
            '\n' => "n",
            '\u{b}' => "v",
            '\u{c}' => "f",
            '\r' => "r",
            '\u{1b}' => "e",
            '"' => "\"",
            '\\' => "\\",
            '\u{85}' => "N",
            '\u{a0}' => "_",
            '\u{2028}' => "L",
            '\u{2029}' => "P",
            _ => "",
        };
        let code = u32::from(c);
        let escaped = match code {
            _ if !short.is_empty() => short.to_owned(),
            0..=0xff => format!("x{code:02X}"),
            0x100..=0xffff => format!("u{code:04X}"),
            _ => format!("U{code:08X}"),
        };
        self.put('\\');
        escaped.chars().for_each(|c| self.put(c));
    }

    fn literal(&mut self, text: &str) {
        self.mark('|', false);
        if text.starts_with(|c| c == ' ' || is_break(c)) {
            self.put('2');
        }
        let mut end = text.chars().rev().map(is_break);
        match (end.next(), end.next()) {
            (Some(true), Some(false)) => {}
            (Some(true), _) => self.put('+'),
            _ => self.put('-'),
        }
        self.end_line();
        (self.spaced, self.indented) = (true, true);
        let mut breaks = true;
        for c in text.chars() {
            if breaks && !is_break(c) {
                self.new_line();
            }
            self.put_any(c);
            breaks = is_break(c);
            self.indented = breaks;
        }
    }
}

/// The style of a text; `key` for a key on one line.
fn style(text: &str, key: bool) -> Style {
    let traits = traits(text);
    let double = |possible: bool, style: Style| if possible { style } else { Style::Double };
    if text.contains('\n') {
        return double(!key && !traits.trailing_space && !traits.space_break && !traits.special, Style::Literal);
    }
    if !plain::is_text(text) {
        return Style::Double;
    }
    let quoted = traits.marked || traits.lines || traits.outer_blank;
    if !quoted && !traits.special {
        return Style::Plain;
    }
    double(!traits.break_space && !traits.space_break && !traits.special, Style::Single)
}

fn traits(text: &str) -> Traits {
    let mut traits = Traits { marked: text.starts_with("---") || text.starts_with("..."), ..Traits::default() };
    let (mut before, mut rest) = (None, text.chars().peekable());
    while let Some(c) = rest.next() {
        let last = rest.peek().is_none();
        let followed = rest.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
        traits.marked |= match (before, c) {
            (None, ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' | '#') => {
                true
            }
            (None, '?' | '-') | (_, ':') => followed,
            (Some(before), '#') => matches!(before, ' ' | '\t' | '\0') || is_break(before),
            _ => false,
        };
        traits.special |= !is_printable(c);
        let (space, ends) = (c == ' ', is_break(c));
        traits.outer_blank |= (space || ends) && (before.is_none() || last);
        traits.trailing_space |= space && last;
        traits.break_space |= space && before.is_some_and(is_break);
        traits.space_break |= ends && before == Some(' ');
        traits.lines |= ends;
        before = Some(c);
    }
    traits
}

/// A number as the emitter formats what JSON said: with an exponent from a million on unless it is whole.
fn number(n: &serde_json::Number) -> String {
    if n.is_i64() || n.is_u64() {
        return n.to_string();
    }
    let mut said = Vec::new();
    json::encode_any(&Value::Number(n.clone()), &mut said);
    let said = String::from_utf8(said).unwrap_or_default();
    if said == "-0" {
        return "0".to_owned();
    }
    if said.parse::<i64>().is_ok() || said.parse::<u64>().is_ok() {
        return said;
    }
    float(&n.as_f64().unwrap_or_default())
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Reports whether a character is printable. Upstream knows none past the basic plane.
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of a value and what upstream's emitter makes of it.
    const UPSTREAMS: &str = include_str!("../../testdata/yaml.json");

    #[test]
    fn documents_are_upstreams() {
        let rows: Vec<(Value, String)> = serde_json::from_str(UPSTREAMS).expect("pairs");
        for (value, want) in rows {
            assert_eq!(document(&value), want, "{value}");
        }
    }
}
