//! Resolution of plain scalars by YAML 1.1 and upstream's rules; and the texts that may stay plain because they read as
//! text again.

/// Resolved plain scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Word {
    Null,
    Bool(bool),
    Int(i64),
    /// Past the largest of the others.
    Uint(u64),
    Float(f64),
    /// A day, which stays the text it is.
    Timestamp,
    Text,
}

/// Words with a meaning of their own.
const WORDS: [(&[&str], Word); 6] = [
    (&["", "~", "null", "Null", "NULL"], Word::Null),
    (&["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], Word::Bool(true)),
    (&["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], Word::Bool(false)),
    (&[".nan", ".NaN", ".NAN"], Word::Float(f64::NAN)),
    (&[".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], Word::Float(f64::INFINITY)),
    (&["-.inf", "-.Inf", "-.INF"], Word::Float(f64::NEG_INFINITY)),
];

/// The longest of them.
const LONGEST: usize = 5;

/// Reads a text. What is tagged (with a type that is none of a time) is no timestamp.
pub(super) fn read(text: &str, dated: bool) -> Word {
    if text.len() <= LONGEST
        && let Some((_, word)) = WORDS.iter().find(|(words, _)| words.contains(&text))
    {
        return *word;
    }
    match text.bytes().next() {
        Some(b'.') => fraction(text),
        Some(b'+' | b'-' | b'0'..=b'9') if dated && is_timestamp(text) => Some(Word::Timestamp),
        Some(b'+' | b'-' | b'0'..=b'9') => number(text),
        _ => None,
    }
    .unwrap_or(Word::Text)
}

/// True for what is read as the text it is, also by those who take `1:30` for a number.
pub(super) fn is_text(text: &str) -> bool {
    read(text, true) == Word::Text && !is_base60(text)
}

/// A number that begins with its point: here underscores stand between digits alone.
fn fraction(text: &str) -> Option<Word> {
    let digit = |at: Option<usize>| at.and_then(|at| text.as_bytes().get(at)).is_some_and(u8::is_ascii_digit);
    let between = text.match_indices('_').all(|(at, _)| digit(at.checked_sub(1)) && digit(Some(at + 1)));
    if between { float(&text.replace('_', "")) } else { None }
}

fn number(text: &str) -> Option<Word> {
    let plain = text.replace('_', "");
    integer(&plain).or_else(|| float(&plain)).or_else(|| {
        // The sign may also follow this prefix.
        i64::from_str_radix(plain.strip_prefix("0b")?, 2).ok().map(Word::Int)
    })
}

/// An integer of at most 64 bits with any prefix.
fn integer(plain: &str) -> Option<Word> {
    let unsigned = plain.strip_prefix(['+', '-']).unwrap_or(plain);
    let (base, digits) = match unsigned.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, &unsigned[2..]),
        Some("0o") => (8, &unsigned[2..]),
        Some("0b") => (2, &unsigned[2..]),
        Some(two) if two.starts_with('0') => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return None;
    }
    let size = u64::from_str_radix(digits, base).ok()?;
    match (plain.as_bytes().first(), i64::try_from(size)) {
        (Some(b'-'), _) => 0_i64.checked_sub_unsigned(size).map(Word::Int),
        (_, Ok(value)) => Some(Word::Int(value)),
        (Some(b'+'), Err(_)) => None,
        (_, Err(_)) => Some(Word::Uint(size)),
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, of a size that there is.
fn float(text: &str) -> Option<Word> {
    let rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, rest) = digits(rest);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => (0, rest),
    };
    if whole + fraction == 0 {
        return None;
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let (count, rest) = digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent));
        if count == 0 || !rest.is_empty() {
            return None;
        }
    } else if !rest.is_empty() {
        return None;
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite()).map(Word::Float)
}

/// `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`: hours and minutes once were numbers.
fn is_base60(text: &str) -> bool {
    let rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (rest, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    let counts = |c: char| c.is_ascii_digit() || c == '_';
    let mut parts = rest.split(':');
    let first = parts.next().unwrap_or_default();
    let is_part = |part: &str| match part.as_bytes() {
        [one] => one.is_ascii_digit(),
        [ten, one] => matches!(ten, b'0'..=b'5') && one.is_ascii_digit(),
        _ => false,
    };
    let mut count = 0;
    let sixties = parts.inspect(|_| count += 1).all(is_part);
    sixties
        && count > 0
        && first.starts_with(|c: char| c.is_ascii_digit())
        && first.chars().all(counts)
        && fraction.chars().all(counts)
}

/// Digits at the beginning, and what follows.
fn digits(text: &str) -> (usize, &str) {
    let count = text.bytes().take_while(u8::is_ascii_digit).count();
    (count, &text[count..])
}

/// A date, or a date with a time: after `T` or `t` with a zone, after a space without.
fn is_timestamp(text: &str) -> bool {
    date(text).is_some_and(|rest| {
        let time = match rest.as_bytes().first() {
            None => return true,
            Some(b'T' | b't') => &rest[1..],
            Some(b' ') => rest.trim_start_matches(' '),
            Some(_) => return false,
        };
        match (rest.starts_with(' '), time_of_day(time)) {
            (_, None) => false,
            (true, Some(rest)) => rest.is_empty(),
            (false, Some(rest)) => is_zone(rest),
        }
    })
}

/// Rest after a date: four digits, then one or two of each that name an existing day.
fn date(text: &str) -> Option<&str> {
    let (4, rest) = digits(text) else { return None };
    let year: i32 = text[..4].parse().ok()?;
    let (month, rest) = short(rest.strip_prefix('-')?)?;
    let (day, rest) = short(rest.strip_prefix('-')?)?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0,
    };
    (1..=days).contains(&day).then_some(rest)
}

/// Rest after a time of day.
fn time_of_day(text: &str) -> Option<&str> {
    let (hour, rest) = short(text)?;
    let (minute, rest) = short(rest.strip_prefix(':')?)?;
    let (second, rest) = short(rest.strip_prefix(':')?)?;
    let fraction = rest.strip_prefix(['.', ',']).map(digits).filter(|(count, _)| *count > 0);
    (hour < 24 && minute < 60 && second < 60).then_some(fraction.map_or(rest, |(_, rest)| rest))
}

/// `Z`, or an offset such as `+02:00`.
fn is_zone(text: &str) -> bool {
    let two = |at: usize| text.get(at..at + 2).filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
    let at_most = |at: usize, most: u32| two(at).and_then(|t| t.parse().ok()).is_some_and(|n: u32| n <= most);
    let offset = text.len() == 6 && text.starts_with(['+', '-']) && text.get(3..4) == Some(":");
    text == "Z" || offset && at_most(1, 24) && at_most(4, 60)
}

/// A number of one or two digits, and what follows.
fn short(text: &str) -> Option<(u32, &str)> {
    let count = digits(text).0.min(2);
    Some((text[..count].parse().ok()?, &text[count..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers() {
        for (text, want) in [
            ("~", Word::Null),
            ("oN", Word::Text),
            ("on", Word::Bool(true)),
            ("n", Word::Bool(false)),
            ("010", Word::Int(8)),
            ("0o10", Word::Int(8)),
            ("08", Word::Float(8.0)),
            ("1_000", Word::Int(1000)),
            ("0x1F", Word::Int(31)),
            ("-0b101", Word::Int(-5)),
            ("0b-1", Word::Int(-1)),
            ("-9223372036854775808", Word::Int(i64::MIN)),
            ("9223372036854775808", Word::Uint(1 << 63)),
            ("+9223372036854775808", Word::Float(9_223_372_036_854_775_808.0)),
            ("18446744073709551616", Word::Float(18_446_744_073_709_551_616.0)),
            (".5", Word::Float(0.5)),
            ("-.inf", Word::Float(f64::NEG_INFINITY)),
            ("1:30", Word::Text),
            ("2001-1-1", Word::Timestamp),
            ("<<", Word::Text),
        ] {
            assert_eq!(read(text, true), want, "{text}");
        }
        assert_eq!(read("2001-1-1", false), Word::Text);
    }

    #[test]
    fn texts_that_look_like_something_else() {
        for text in [
            "",
            "~",
            "null",
            "y",
            "No",
            "OFF",
            ".inf",
            "-.Inf",
            "1",
            "-1",
            "+1",
            "0",
            "08",
            "0644",
            "0x1F",
            "0o17",
            "0b101",
            "-0b1",
            "0b-1",
            "1_000",
            "1.",
            ".5",
            ".5_0",
            "1.5e3",
            "+.5",
            "1e3",
            "18446744073709551615",
            "99999999999999999999",
            "1:30",
            "190:20:30.15",
            "-1:0",
            "2001-1-1",
            "2001-12-14t21:59:43.10-05:00",
            "2001-12-14T21:59:43Z",
            "2001-12-14   1:2:3",
            "2024-02-29",
            "2001-01-01T00:00:00,5Z",
            "12_:30",
        ] {
            assert!(!is_text(text), "{text}");
        }
        for text in [
            "a",
            "<<",
            "nul",
            "nO",
            "=",
            ".",
            "..",
            ".e5",
            "._5",
            ".5_",
            "-",
            "+",
            "-.nan",
            "0x",
            "0xg",
            "0xFFFFFFFFFFFFFFFFFF",
            "0b",
            "0b2",
            "1e999",
            "1e",
            "1.2.3",
            "1:60",
            "1:",
            ":30",
            "2001-13-1",
            "2023-02-29",
            "2001-1-1T1:1:1",
            "2001-1-1 1:1:1Z",
            "20011-1-1",
            "1Gi",
            "10m",
            "1.5.",
            "2001-01-01T24:00:00Z",
            "2001-1-1T1:1:1+1:00",
            "é",
            "0é",
        ] {
            assert!(is_text(text), "{text}");
        }
    }
}
