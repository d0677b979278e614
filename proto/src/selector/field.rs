//! Field selectors.

use std::fmt;

use super::error::Error;

/// One comparison of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Field name, e.g. `metadata.name`.
    pub field: String,
    /// Must be equal, or must differ.
    pub equal: bool,
    /// The value, unescaped.
    pub value: String,
}

/// A field selector: all terms must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

impl FieldSelector {
    /// Matches everything.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// Reads `a=b,c!=d`; `\`, `,` and `=` in values are escaped with `\`.
    ///
    /// # Errors
    /// Upstream's complaint.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut parts = split(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            let Some((field, equal, value)) = split_term(part) else {
                return Err(Error::new(format!("invalid selector: '{text}'; can't understand '{part}'")));
            };
            let term = Term { field: field.to_owned(), equal, value: unescape(value)? };
            // Nothing that is compared with nothing says nothing.
            if !term.field.is_empty() || !term.value.is_empty() {
                terms.push(term);
            }
        }
        Ok(Self { terms })
    }

    /// A selector of one equality.
    #[must_use]
    pub fn equals(field: &str, value: &str) -> Self {
        Self { terms: vec![Term { field: field.to_owned(), equal: true, value: value.to_owned() }] }
    }

    /// Reports whether the selector matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the terms.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The value a field must have, when the selector pins it.
    #[must_use]
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.equal && t.field == field).map(|t| t.value.as_str())
    }

    /// Reports whether fields behind a lookup satisfy the selector; a missing field reads as empty.
    pub fn matches_with<S: AsRef<str>>(&self, lookup: impl Fn(&str) -> Option<S>) -> bool {
        self.terms.iter().all(|t| {
            let value = lookup(&t.field);
            (value.as_ref().map_or("", AsRef::as_ref) == t.value) == t.equal
        })
    }
}

/// Splits at commas that are not escaped.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.char_indices().map(|(i, _)| i);
    at.filter_map(|i| {
        let operators = [("!=", false), ("==", true), ("=", true)];
        operators.into_iter().find_map(|(op, equal)| Some((&term[..i], equal, term[i..].strip_prefix(op)?)))
    })
    .next()
}

fn unescape(value: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => return Err(Error::new(format!("invalid field selector: invalid escape sequence: \\{c}"))),
                None => return Err(Error::new("invalid field selector: invalid escape sequence: \\")),
            },
            ',' | '=' => {
                let code = u32::from(c);
                return Err(Error::new(format!("invalid field selector: unescaped character in value: {code}")));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, t) in self.terms.iter().enumerate() {
            let value = t.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            write!(f, "{}{}{}{value}", if i == 0 { "" } else { "," }, t.field, if t.equal { "=" } else { "!=" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_parse_and_print() {
        let table = [
            ("", Ok("")),
            ("b==c,a=b", Ok("a=b,b=c")),
            ("a!=b,,", Ok("a!=b")),
            ("a=b\\,c\\=d\\\\", Ok("a=b\\,c\\=d\\\\")),
            ("a", Err("invalid selector: 'a'; can't understand 'a'")),
            ("a=b=c", Err("invalid field selector: unescaped character in value: 61")),
            ("a=\\x", Err("invalid field selector: invalid escape sequence: \\x")),
        ];
        for (text, want) in table {
            let got = FieldSelector::parse(text).map(|s| s.to_string()).map_err(|e| e.to_string());
            assert_eq!(got, want.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn matching() {
        let lookup = |f: &str| (f == "metadata.name").then_some("x");
        for (text, want) in [("metadata.name=x", true), ("metadata.name!=x", false), ("spec.nodeName=", true)] {
            assert_eq!(FieldSelector::parse(text).map(|s| s.matches_with(lookup)), Ok(want), "{text}");
        }
        assert_eq!(
            FieldSelector::parse("metadata.name=x").ok().as_ref().and_then(|s| s.exact("metadata.name")),
            Some("x")
        );
    }
}
