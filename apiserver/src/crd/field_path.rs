//! Paths to fields that a schema describes: `.spec.host`, `.labels['a.b']`. Those of selectable fields and of rules.

use proto::Value;

/// Fault of a path, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldPathError {
    /// The schema does not describe the field.
    #[error("does not refer to a valid field")]
    Unknown,
    /// An end where something has to follow.
    #[error("unexpected end of JSON path")]
    End,
    /// Names may stand behind dots alone.
    #[error("array notation is not allowed")]
    Brackets,
    /// This stands where a name has to begin.
    #[error("expected [ or . but got: {0}")]
    NoStep(String),
    /// This stands where a bracket has to be closed.
    #[error("expected ] but got {0}")]
    Open(String),
    /// This stands where a name in quotes has to be.
    #[error("expected single quoted string but got {0}")]
    Unquoted(String),
    /// A name in quotes escapes this character.
    #[error("invalid string literal: invalid escape char \\{0}")]
    Escape(char),
}

/// Follows a path through a schema: the names on it, and what the schema says of the place it leads to.
///
/// # Errors
/// [`FieldPathError`]; without `brackets` names stand behind dots alone.
pub fn follow<'s>(path: &str, schema: &'s Value, brackets: bool) -> Result<(Vec<String>, &'s Value), FieldPathError> {
    let (mut names, mut place, mut rest) = (Vec::new(), schema, path);
    while let Some(token) = take(&mut rest) {
        let name = match token {
            "[" if !brackets => return Err(FieldPathError::Brackets),
            "[" => unquoted(take(&mut rest).ok_or(FieldPathError::End)?)?,
            "." => take(&mut rest).ok_or(FieldPathError::End)?.to_owned(),
            other => return Err(FieldPathError::NoStep(other.to_owned())),
        };
        place = below(place, &name).ok_or(FieldPathError::Unknown)?;
        names.push(name);
        if token == "[" {
            match take(&mut rest).ok_or(FieldPathError::End)? {
                "]" => {}
                other => return Err(FieldPathError::Open(other.to_owned())),
            }
        }
    }
    Ok((names, place))
}

/// Schema of a field, from `properties` or else from `additionalProperties`.
fn below<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    match schema["properties"].as_object() {
        Some(fields) if !fields.is_empty() => fields.get(name),
        _ => schema.get("additionalProperties").filter(|inner| !inner.is_null()),
    }
}

/// The next mark, text in single quotes, or text up to a mark.
fn take<'t>(rest: &mut &'t str) -> Option<&'t str> {
    let first = rest.chars().next()?;
    let bytes = rest.as_bytes();
    let end = if first == '\'' {
        (1..bytes.len()).find(|i| bytes[*i] == b'\'' && bytes[i - 1] != b'\\').map(|i| i + 1)
    } else if matches!(first, '.' | '[' | ']') {
        Some(1)
    } else {
        rest.find(['.', '[', ']'])
    };
    let (token, tail) = rest.split_at(end.unwrap_or(rest.len()));
    *rest = tail;
    Some(token)
}

fn unquoted(token: &str) -> Result<String, FieldPathError> {
    let inner = token.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
    let inner = inner.ok_or_else(|| FieldPathError::Unquoted(token.to_owned()))?;
    let (mut text, mut rest) = (String::new(), inner.chars());
    while let Some(c) = rest.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        text.push(match rest.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(same @ ('\'' | '\\')) => same,
            Some(other) => return Err(FieldPathError::Escape(other)),
            None => '\\',
        });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_are_followed() {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a.b": {"type": "string"}, "it's": {"type": "integer"}}},
            "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "list": {"type": "array", "items": {"type": "string"}}}});
        for (path, brackets, want) in [
            (".labels.x", false, Ok("boolean")),
            (".labels['x.y']", true, Ok("boolean")),
            (".spec['a.b']", true, Ok("string")),
            (".spec['it\\'s']", true, Ok("integer")),
            (".spec['a.b']", false, Err("array notation is not allowed")),
            (".list[0]", true, Err("expected single quoted string but got 0")),
            (".list['0']", true, Err("does not refer to a valid field")),
            (".list.x", true, Err("does not refer to a valid field")),
            ("spec", true, Err("expected [ or . but got: spec")),
            (".", true, Err("unexpected end of JSON path")),
            (".spec[", true, Err("unexpected end of JSON path")),
            (".spec['a.b'", true, Err("unexpected end of JSON path")),
            (".spec['a.b'x]", true, Err("expected ] but got x")),
            (".spec['\\x']", true, Err("invalid string literal: invalid escape char \\x")),
            (".spec..a", true, Err("does not refer to a valid field")),
        ] {
            let found = follow(path, &schema, brackets).map_err(|e| e.to_string());
            let found = found.as_ref().map(|(_, place)| place["type"].as_str().unwrap_or_default());
            assert_eq!(found.map_err(String::as_str), want, "{path}");
        }
    }
}
