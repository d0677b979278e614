//! Names in expressions: the reserved words, what an identifier is, and how fields with other names are written.

/// Words no field is called by in an expression: those of the language and those it keeps for itself. Source of the rule:
/// CEL's grammar.
pub const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Reports whether a name is an identifier.
#[must_use]
pub fn is_identifier(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !RESERVED.contains(&name)
}

/// The name a field has in expressions.
#[must_use]
pub fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.contains("__") && name.chars().all(plain) {
        return name.to_owned();
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

/// Escaped name of a field that is a reserved word, which may be written plainly behind a dot.
pub(super) fn kept(word: &str) -> Option<String> {
    RESERVED.contains(&word).then(|| escape(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, want) in [
            ("a-b.c", "a__dash__b__dot__c"),
            ("namespace", "__namespace__"),
            ("a__b", "a__underscores__b"),
            ("x/y", "x__slash__y"),
            ("plain_1", "plain_1"),
        ] {
            assert_eq!(escape(name), want);
        }
        assert!(is_identifier("_a1") && !is_identifier("1a") && !is_identifier("a-b") && !is_identifier("loop"));
    }
}
