//! What upstream's emitter is given: not the object, but what its YAML parser reads in the object's JSON.
//!
//! The parser takes NEL (U+0085) for the end of a line, also inside quotes, where lines are folded; and it refuses
//! characters that are none of YAML's, most of which JSON writes as they are.

use std::borrow::Cow;

use serde_json::Value;

/// Why upstream writes no YAML of a value. The text is its parser's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// Some character is none of YAML's.
    #[error("yaml: control characters are not allowed")]
    Control,
    /// A key goes over the end of a line.
    #[error("yaml: line {0}: did not find expected ',' or '}}'")]
    Key(usize),
}

const NEL: char = '\u{85}';

/// The value as it is read; `None` when that is the value itself.
pub(super) fn reread(value: &Value) -> Result<Option<Value>, Unwritable> {
    if !has(value, &|c| c == NEL || is_foreign(c)) {
        return Ok(None);
    }
    if has(value, &is_foreign) {
        return Err(Unwritable::Control);
    }
    let mut read = value.clone();
    fold(&mut read, &mut 0)?;
    Ok(Some(read))
}

/// What JSON writes as it is and YAML does not know.
fn is_foreign(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{84}' | '\u{86}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}')
}

fn has(value: &Value, odd: &dyn Fn(char) -> bool) -> bool {
    // Most texts are of ASCII, in which there is one such character.
    let text = |text: &str| (!text.is_ascii() || text.contains('\u{7f}')) && text.contains(odd);
    match value {
        Value::String(s) => text(s),
        Value::Array(items) => items.iter().any(|item| has(item, odd)),
        Value::Object(map) => map.iter().any(|(key, item)| text(key) || has(item, odd)),
        _ => false,
    }
}

/// Folds all texts; `line` counts the ends of lines.
fn fold(value: &mut Value, line: &mut usize) -> Result<(), Unwritable> {
    match value {
        Value::String(text) => {
            *line += ends(text);
            if let Cow::Owned(folded) = folded(text) {
                *text = folded;
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| fold(item, line)),
        Value::Object(map) => map.iter_mut().try_for_each(|(key, item)| {
            *line += ends(key);
            if ends(key) == 0 { fold(item, line) } else { Err(Unwritable::Key(*line)) }
        }),
        _ => Ok(()),
    }
}

fn ends(text: &str) -> usize {
    text.chars().filter(|c| *c == NEL).count()
}

/// One end of a line is a space, of several all but the first count; spaces around them are nothing.
fn folded(text: &str) -> Cow<'_, str> {
    let mut parts = text.split(NEL);
    let first = parts.next().unwrap_or_default();
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = first.trim_end_matches(' ').to_owned();
    let mut run = 1;
    while let Some(part) = parts.next() {
        let part = part.trim_start_matches(' ');
        if part.is_empty() && parts.peek().is_some() {
            run += 1;
            continue;
        }
        match run {
            1 => out.push(' '),
            more => (1..more).for_each(|_| out.push('\n')),
        }
        run = 1;
        out.push_str(if parts.peek().is_some() { part.trim_end_matches(' ') } else { part });
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_are_folded_as_in_quotes() {
        for (text, want) in [
            ("a\u{85}b", "a b"),
            ("\u{85}", " "),
            ("a\u{85}", "a "),
            (" \u{85}a", " a"),
            ("a  \u{85}  b", "a b"),
            ("a\u{85}\u{85}b", "a\nb"),
            ("a\u{85} \u{85}\u{85}b", "a\n\nb"),
            ("a\u{85}b \u{85}\u{85} c ", "a b\nc "),
            ("\u{85}\u{85}", "\n"),
            ("a\u{85}b\nc", "a b\nc"),
            ("a\t\u{85}\tb", "a\t \tb"),
        ] {
            assert_eq!(reread(&json!({"k": [text]})), Ok(Some(json!({"k": [want]}))), "{text:?}");
        }
        assert_eq!(reread(&json!({"é": "\u{1b}\u{feff}\u{2028}"})), Ok(None));
    }

    #[test]
    fn what_cannot_be_read_is_not_written() {
        for text in ["\u{7f}", "é\u{80}", "\u{9f}\u{85}", "\u{fffe}"] {
            assert_eq!(reread(&json!([text])), Err(Unwritable::Control), "{text:?}");
        }
        for (value, line) in [
            (json!({"a\u{85}b": 1}), 1),
            (json!({"a": 1, "k": [1, {"a\u{85}\u{85}b": "x\u{85}y"}]}), 2),
            (json!({"a": "x\u{85}\u{85}y", "b": {"c\u{85}\u{85}\u{85}": 1}}), 5),
        ] {
            let refused = reread(&value).expect_err("a key on two lines");
            assert_eq!(refused.to_string(), format!("yaml: line {line}: did not find expected ',' or '}}'"));
        }
    }
}
