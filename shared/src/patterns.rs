//! Regular expressions as Go reads them: what is refused, in its words, and the same pattern as this side writes it.
//!
//! The two differ in places: classes of letters and digits are those of ASCII there, braces that count nothing and
//! brackets in brackets are themselves, and counts end at a thousand, also those of repetitions in repetitions. Pure.

use regex::Regex;
use thiserror::Error;

/// Largest compiled form of a pattern, in bytes. A class such as `\p{L}` takes a hundred kilobytes each time it counts;
/// the other library writes it down once, and has room for as much as this and more.
const BYTES: usize = 1 << 26;
/// Largest count, and largest product of counts of repetitions in repetitions.
const MOST: i64 = 1_000;

/// Errors of a pattern, in the words of Go's `syntax.Error`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatternError {
    /// A part of the text is no pattern.
    #[error("error parsing regexp: {problem}: `{part}`")]
    Syntax {
        /// Problem of the part.
        problem: &'static str,
        /// The part.
        part: String,
    },
    /// The compiled form takes more memory than it may.
    #[error("error parsing regexp: expression too large: `{0}`")]
    TooLarge(String),
}

/// Compiles a pattern.
///
/// # Errors
/// [`PatternError`].
pub fn compile(text: &str) -> Result<Regex, PatternError> {
    compile_within(text, BYTES)
}

/// [`compile`], to no more than so many bytes.
///
/// # Errors
/// As [`compile`].
pub fn compile_within(text: &str, bytes: usize) -> Result<Regex, PatternError> {
    let translated =
        translate(text).map_err(|Wrong(problem, part)| PatternError::Syntax { problem, part: part.to_owned() })?;
    let compiled = regex::RegexBuilder::new(&translated).size_limit(bytes).build();
    compiled.map_err(|_| PatternError::TooLarge(text.to_owned()))
}

/// Error of a pattern, with the offending part.
struct Wrong<'t>(&'static str, &'t str);

const RANGE: &str = "invalid character class range";
const ESCAPE: &str = "invalid escape sequence";
const PERL: &str = "invalid or unsupported Perl syntax";

/// Returns the part of a text before a rest.
fn consumed<'t>(text: &'t str, rest: &str) -> &'t str {
    &text[..text.len() - rest.len()]
}

fn pop(text: &str) -> Option<(char, &str)> {
    let mut chars = text.chars();
    chars.next().map(|c| (c, chars.as_str()))
}

fn literal(c: char) -> String {
    regex::escape(c.encode_utf8(&mut [0; 4]))
}

/// Reads a pattern from its front.
struct Reader<'t> {
    whole: &'t str,
    out: String,
    /// Of the places that the open groups stand in: how often things there repeat what is in them, at most.
    groups: Vec<i64>,
    /// Maximum repetition inside the current group, without its last element.
    inside: i64,
    /// Maximum repetition inside the last element.
    last: i64,
    /// There is something that can be repeated.
    argument: bool,
    /// From where the last repetition was read, if it was the last thing.
    repeated: Option<&'t str>,
}

fn translate(whole: &str) -> Result<String, Wrong<'_>> {
    let mut reader =
        Reader { whole, out: String::new(), groups: Vec::new(), inside: 1, last: 1, argument: false, repeated: None };
    let mut rest = whole;
    while !rest.is_empty() {
        rest = reader.next(rest)?;
    }
    if !reader.groups.is_empty() {
        return Err(Wrong("missing closing )", whole));
    }
    Ok(reader.out)
}

impl<'t> Reader<'t> {
    fn next(&mut self, text: &'t str) -> Result<&'t str, Wrong<'t>> {
        let before = self.repeated.take();
        let Some((first, rest)) = pop(text) else { return Ok(text) };
        match first {
            '(' if rest.starts_with('?') => return self.flags(text),
            '(' => {
                self.open();
                self.out.push('(');
                return Ok(rest);
            }
            '|' => {
                self.argument = false;
                self.out.push('|');
                return Ok(rest);
            }
            ')' => {
                let outside = self.groups.pop().ok_or(Wrong("unexpected )", self.whole))?;
                let group = self.inside.max(self.last);
                self.inside = outside;
                self.last = group;
                self.out.push(')');
                self.argument = true;
                return Ok(rest);
            }
            '^' | '$' | '.' => self.out.push(first),
            '*' | '+' | '?' => return self.repeat(text, rest, before, 1),
            '{' => {
                if let Some((least, most, rest)) = count(text) {
                    let fits = (0..=MOST).contains(&least) && most.is_none_or(|most| (least..=MOST).contains(&most));
                    if !fits {
                        return Err(Wrong("invalid repeat count", consumed(text, rest)));
                    }
                    return self.repeat(text, rest, before, most.unwrap_or(least));
                }
                self.out.push_str("\\{");
            }
            '[' => {
                self.one();
                return class(text, &mut self.out);
            }
            '\\' => {
                self.one();
                return self.escape(text);
            }
            other => self.out.push_str(&literal(other)),
        }
        self.one();
        Ok(rest)
    }

    /// A thing that is no group.
    fn one(&mut self) {
        self.inside = self.inside.max(self.last);
        self.last = 1;
        self.argument = true;
    }

    fn open(&mut self) {
        self.groups.push(self.inside.max(self.last));
        (self.inside, self.last) = (1, 1);
        self.argument = false;
    }

    /// A repetition; `count`: how often at most, or at least where there is no most.
    fn repeat(
        &mut self,
        text: &'t str,
        rest: &'t str,
        before: Option<&'t str>,
        count: i64,
    ) -> Result<&'t str, Wrong<'t>> {
        let rest = rest.strip_prefix('?').unwrap_or(rest);
        if let Some(before) = before {
            return Err(Wrong("invalid nested repetition operator", consumed(before, rest)));
        }
        if !self.argument {
            return Err(Wrong("missing argument to repetition operator", consumed(text, rest)));
        }
        // What is not there is not counted.
        self.last = if count == 0 { 1 } else { self.last * count };
        if self.last > MOST {
            return Err(Wrong("invalid repeat count", consumed(text, rest)));
        }
        self.out.push_str(consumed(text, rest));
        self.repeated = Some(text);
        Ok(rest)
    }

    /// Reads a group that starts with `(?`.
    fn flags(&mut self, text: &'t str) -> Result<&'t str, Wrong<'t>> {
        if text.starts_with("(?P<") || text.starts_with("(?<") {
            let Some(end) = text.find('>') else { return Err(Wrong("invalid named capture", text)) };
            let name = &text[text.find('<').unwrap_or(end)..end];
            if name.len() < 2 || !name[1..].chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) {
                return Err(Wrong("invalid named capture", &text[..=end]));
            }
            // Nobody asks for names, and there a name may stand twice.
            self.open();
            self.out.push('(');
            return Ok(&text[end + 1..]);
        }
        let (mut rest, mut negative, mut any) = (&text[2..], false, false);
        while let Some((c, after)) = pop(rest) {
            rest = after;
            match c {
                'i' | 'm' | 's' | 'U' => any = true,
                '-' if !negative => (negative, any) = (true, false),
                ':' | ')' if any || !negative => {
                    if c == ':' {
                        self.open();
                    }
                    // Nothing is said by no flags.
                    self.out.push_str(if consumed(text, rest) == "(?)" { "" } else { consumed(text, rest) });
                    return Ok(rest);
                }
                _ => break,
            }
        }
        Err(Wrong(PERL, consumed(text, rest)))
    }

    fn escape(&mut self, text: &'t str) -> Result<&'t str, Wrong<'t>> {
        match pop(&text[1..]) {
            Some(('b', rest)) => {
                self.out.push_str(r"(?-u:\b)");
                Ok(rest)
            }
            Some((c @ ('A' | 'B' | 'z'), rest)) => {
                self.out.push('\\');
                self.out.push(c);
                Ok(rest)
            }
            Some(('Q', rest)) => {
                let (quoted, rest) = rest.split_once("\\E").unwrap_or((rest, ""));
                self.out.push_str(&regex::escape(quoted));
                Ok(rest)
            }
            _ => match group(text)? {
                Some((group, rest)) => {
                    self.out.push_str(&group);
                    Ok(rest)
                }
                None => {
                    let (c, rest) = character(text)?;
                    self.out.push_str(&literal(c));
                    Ok(rest)
                }
            },
        }
    }
}

/// A count in braces, if they are one: at least, at most where it is another, and what follows.
fn count(text: &str) -> Option<(i64, Option<i64>, &str)> {
    let number = |text: &'_ str| -> Option<(i64, usize)> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        // Numbers do not begin with zero; too large ones are wrong later.
        let fits = digits > 0 && !(digits > 1 && text.starts_with('0'));
        fits.then(|| (text[..digits].parse().unwrap_or(i64::MAX), digits))
    };
    let rest = &text[1..];
    let (least, digits) = number(rest)?;
    let rest = &rest[digits..];
    if let Some(rest) = rest.strip_prefix('}') {
        return Some((least, None, rest));
    }
    let rest = rest.strip_prefix(',')?;
    if let Some(rest) = rest.strip_prefix('}') {
        return Some((least, None, rest));
    }
    let (most, digits) = number(rest)?;
    rest[digits..].strip_prefix('}').map(|rest| (least, Some(most), rest))
}

/// A class of characters that has a name: `\d`, `\pL`.
fn group(text: &str) -> Result<Option<(String, &str)>, Wrong<'_>> {
    let Some((name, rest)) = pop(&text[1..]) else { return Ok(None) };
    let ascii = match name.to_ascii_lowercase() {
        'd' => "0-9",
        's' => r"\t\n\x0C\r ",
        'w' => "0-9A-Za-z_",
        'p' => return property(text, rest).map(Some),
        _ => return Ok(None),
    };
    let sign = if name.is_ascii_uppercase() { "^" } else { "" };
    Ok(Some((format!("[{sign}{ascii}]"), rest)))
}

fn property<'t>(text: &'t str, rest: &'t str) -> Result<(String, &'t str), Wrong<'t>> {
    let Some((first, after)) = pop(rest) else { return Err(Wrong(RANGE, text)) };
    let (name, after) = match first {
        '{' => after.split_once('}').ok_or(Wrong(RANGE, text))?,
        _ => (consumed(rest, after), after),
    };
    let (bare, negative) = name.strip_prefix('^').map_or((name, false), |name| (name, true));
    let sign = if negative == text.starts_with("\\P") { 'p' } else { 'P' };
    let written = format!("\\{sign}{{{bare}}}");
    match Regex::new(&written) {
        Ok(_) => Ok((written, after)),
        Err(_) => Err(Wrong(RANGE, consumed(text, after))),
    }
}

/// One character that a backslash stands before.
fn character(text: &str) -> Result<(char, &str), Wrong<'_>> {
    let Some((c, rest)) = pop(&text[1..]) else { return Err(Wrong("trailing backslash at end of expression", "")) };
    let wrong = |rest: &str| Wrong(ESCAPE, consumed(text, rest));
    let octal = |c: char| ('0'..='7').contains(&c);
    match c {
        '1'..='7' if !rest.starts_with(octal) => Err(wrong(rest)),
        '0'..='7' => {
            let digits = 1 + rest.chars().take(2).take_while(|c| octal(*c)).count();
            let code = u32::from_str_radix(&text[1..=digits], 8).ok().and_then(char::from_u32);
            code.map(|c| (c, &text[1 + digits..])).ok_or_else(|| wrong(rest))
        }
        'x' => hexadecimal(text, rest),
        'a' => Ok(('\x07', rest)),
        'f' => Ok(('\x0C', rest)),
        'n' => Ok(('\n', rest)),
        'r' => Ok(('\r', rest)),
        't' => Ok(('\t', rest)),
        'v' => Ok(('\x0B', rest)),
        c if c.is_ascii() && !c.is_ascii_alphanumeric() => Ok((c, rest)),
        _ => Err(wrong(rest)),
    }
}

fn hexadecimal<'t>(text: &'t str, rest: &'t str) -> Result<(char, &'t str), Wrong<'t>> {
    let (braced, mut rest) = rest.strip_prefix('{').map_or((false, rest), |rest| (true, rest));
    let (mut code, mut digits) = (0, 0);
    while let Some((c, after)) = pop(rest) {
        rest = after;
        if braced && c == '}' && digits > 0 {
            return char::from_u32(code).map(|c| (c, rest)).ok_or(Wrong(ESCAPE, consumed(text, rest)));
        }
        let Some(digit) = c.to_digit(16) else { break };
        (code, digits) = (code * 16 + digit, digits + 1);
        if code > 0x0010_FFFF {
            break;
        }
        if !braced && digits == 2 {
            return char::from_u32(code).map(|c| (c, rest)).ok_or(Wrong(ESCAPE, consumed(text, rest)));
        }
    }
    Err(Wrong(ESCAPE, consumed(text, rest)))
}

/// Characters in brackets.
fn class<'t>(text: &'t str, out: &mut String) -> Result<&'t str, Wrong<'t>> {
    const NAMED: [&str; 14] = [
        "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
        "word", "xdigit",
    ];
    out.push('[');
    let mut rest = &text[1..];
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let mut first = true;
    while first || !rest.starts_with(']') {
        first = false;
        if let Some(end) = rest.strip_prefix("[:").and_then(|inner| inner.find(":]")) {
            let name = &rest[2..end + 2];
            if !NAMED.contains(&name.strip_prefix('^').unwrap_or(name)) {
                return Err(Wrong(RANGE, &rest[..end + 4]));
            }
            out.push_str(&rest[..end + 4]);
            rest = &rest[end + 4..];
            continue;
        }
        if rest.starts_with('\\')
            && let Some((group, after)) = group(rest)?
        {
            out.push_str(&group);
            rest = after;
            continue;
        }
        let range = rest;
        let one = |rest: &'t str| match pop(rest) {
            None => Err(Wrong("missing closing ]", text)),
            Some(('\\', _)) => character(rest),
            Some(found) => Ok(found),
        };
        let (low, after) = one(rest)?;
        rest = after;
        out.push_str(&literal(low));
        if let Some(after) = rest.strip_prefix('-').filter(|after| !after.is_empty() && !after.starts_with(']')) {
            let (high, after) = one(after)?;
            rest = after;
            if high < low {
                return Err(Wrong(RANGE, consumed(range, rest)));
            }
            out.push('-');
            out.push_str(&literal(high));
        }
    }
    out.push(']');
    Ok(&rest[1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused() {
        for (text, want) in [
            ("a(b", "missing closing ): `a(b`"),
            ("a)b", "unexpected ): `a)b`"),
            ("a[bc", "missing closing ]: `[bc`"),
            ("[^]", "missing closing ]: `[^]`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[a--b]", "invalid character class range: `a--`"),
            ("[[:foo:]]", "invalid character class range: `[:foo:]`"),
            ("\\pX", "invalid character class range: `\\pX`"),
            ("\\p{Foo}", "invalid character class range: `\\p{Foo}`"),
            ("^(?!x)", "invalid or unsupported Perl syntax: `(?!`"),
            ("(?i", "invalid or unsupported Perl syntax: `(?i`"),
            ("(?P=n)", "invalid or unsupported Perl syntax: `(?P`"),
            ("(?<=x)", "invalid named capture: `(?<=x)`"),
            ("(?P<n", "invalid named capture: `(?P<n`"),
            ("a|*", "missing argument to repetition operator: `*`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("x{2}{3}{4}", "invalid nested repetition operator: `{2}{3}`"),
            ("a{3,2}", "invalid repeat count: `{3,2}`"),
            ("^([^/]{1,63}/){0,20}$", "invalid repeat count: `{0,20}`"),
            ("((?:a{2}b){10}|x){51}?", "invalid repeat count: `{51}?`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("\\y", "invalid escape sequence: `\\y`"),
            ("\\1", "invalid escape sequence: `\\1`"),
            ("[a-\\d]", "invalid escape sequence: `\\d`"),
            ("\\x{zz}", "invalid escape sequence: `\\x{z`"),
            ("\\xg", "invalid escape sequence: `\\xg`"),
            ("a\\", "trailing backslash at end of expression: ``"),
        ] {
            let why = compile(text).expect_err(text);
            assert_eq!(why.to_string(), format!("error parsing regexp: {want}"), "{text}");
        }
    }

    #[test]
    fn what_is_found() {
        for (text, found, not) in [
            ("^a{,3}$", "a{,3}", "aaa"),
            ("^(([^/]{1,63}/){1,}){0,15}$", "a/b/", "a"),
            ("^(?:(a{1000}){0}b{40}){25,}$", &"b".repeat(1000), "b"),
            ("^([\\p{S}\\p{L}](-?[\\p{S}\\p{L}]{0,62})?)\\p{L}{2,63}$", "\u{3b1}\u{3b2}\u{3b3}", "1"),
            ("^{x}$", "{x}", "x"),
            ("^[[a]$", "[", "b"),
            ("^[a&&b]+$", "a&b", "c"),
            ("^[]a]$", "]", "b"),
            ("^\\d$", "1", "\u{661}"),
            ("^[\\w-]+$", "a-b_", "\u{e9}"),
            ("^[^\\W_]$", "a", "_"),
            ("^\\D$", "\u{661}", "1"),
            ("^\\<\\/\\-\\_$", "</-_", ""),
            ("^(?P<n>a)(?P<n>b)$", "ab", "a"),
            ("(?i)^A(?-i)b(?:c|d){2}?$", "abcd", "aBcd"),
            ("^\\Qa.b\\E\\x41\\x{42}\\101\\z", "a.bABA", "axbABA"),
            ("^\\p{Lu}\\p{^Lu}\\PL$", "Aa1", "AA1"),
            ("\\ba\\b", "\u{e9}a", "ba"),
            ("^[[:alpha:][:^ascii:]]+$", "a\u{e9}", "1"),
        ] {
            let pattern = compile(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert!(pattern.is_match(found) && !pattern.is_match(not), "{text}");
        }
    }
}
