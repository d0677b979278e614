//! Paths to fields that a schema describes: `.spec.host`, `.labels['a.b']`. Those of selectable fields and of rules.

use proto::Value;

const UNKNOWN: &str = "does not refer to a valid field";
const END: &str = "unexpected end of JSON path";

/// Follows a path through a schema: the names on it, and what the schema says of the place it leads to.
///
/// # Errors
/// Upstream's words for what is wrong with the path; without `brackets` names stand behind dots alone.
pub fn follow<'s>(path: &str, schema: &'s Value, brackets: bool) -> Result<(Vec<String>, &'s Value), String> {
    let (mut names, mut place, mut rest) = (Vec::new(), schema, path);
    while let Some(token) = take(&mut rest) {
        let name = match token {
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => unquoted(take(&mut rest).ok_or(END)?)?,
            "." => take(&mut rest).ok_or(END)?.to_owned(),
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        place = below(place, &name).ok_or(UNKNOWN)?;
        names.push(name);
        if token == "[" {
            match take(&mut rest).ok_or(END)? {
                "]" => {}
                other => return Err(format!("expected ] but got {other}")),
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

fn unquoted(token: &str) -> Result<String, String> {
    let inner = token.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
    let inner = inner.ok_or_else(|| format!("expected single quoted string but got {token}"))?;
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
            Some(other) => return Err(format!("invalid string literal: invalid escape char \\{other}")),
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
            (".list['0']", true, Err(UNKNOWN)),
            (".list.x", true, Err(UNKNOWN)),
            ("spec", true, Err("expected [ or . but got: spec")),
            (".", true, Err(END)),
            (".spec[", true, Err(END)),
            (".spec['a.b'", true, Err(END)),
            (".spec['a.b'x]", true, Err("expected ] but got x")),
            (".spec['\\x']", true, Err("invalid string literal: invalid escape char \\x")),
            (".spec..a", true, Err(UNKNOWN)),
        ] {
            let found = follow(path, &schema, brackets);
            let found = found.as_ref().map(|(_, place)| place["type"].as_str().unwrap_or_default());
            assert_eq!(found.map_err(String::as_str), want, "{path}");
        }
    }
}
