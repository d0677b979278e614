//! Variables from files (`fileKeyRef`): lines of the form `NAME='value'`, where a value may go over several lines and is
//! taken as it is. Answers for upstream's `pkg/util/env`.

/// The value of a variable; none when the file does not have it.
///
/// # Errors
/// The file has another form before the variable comes.
pub fn value(text: &str, key: &str) -> Result<Option<String>, String> {
    let blank = [' ', '\t'];
    let wrong = |line: usize, why: &str| Err(format!("invalid environment variable format at line {line}: {why}"));
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let (number, line) = (index + 1, line.trim_start_matches(blank));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, assigned)) = line.split_once('=') else { return wrong(number, "missing '='") };
        if name.trim_end_matches(blank).is_empty() {
            return wrong(number, "empty variable name");
        }
        if name.ends_with(blank) {
            return wrong(number, "whitespace before '=' is not allowed");
        }
        if assigned.starts_with(blank) {
            // As in a shell: nothing is assigned, and what follows is not ours.
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let Some(opened) = assigned.strip_prefix('\'') else {
            return wrong(number, "value must be enclosed in single quotes");
        };
        let (mut value, mut rest, mut at) = (String::new(), opened, number);
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                value.push_str(end);
                break after;
            }
            value.push_str(rest);
            value.push('\n');
            let Some((index, next)) = lines.next() else {
                return Err(format!(
                    "invalid environment variable format starting at line {number}: unclosed single quote"
                ));
            };
            (at, rest) = (index + 1, next);
        };
        let after = after.trim_start_matches(blank);
        if !after.is_empty() && !after.starts_with('#') {
            return wrong(at, "unexpected content after closing quote");
        }
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_single_quotes() {
        let wrong = |line: &str, why: &str| Err(format!("invalid environment variable format {line}: {why}"));
        for (text, expected) in [
            ("A='1'\nX='two words'  # and a comment\n", Ok(Some("two words".to_owned()))),
            ("# X='no'\n\n  X='a\n b'\n", Ok(Some("a\n b".to_owned()))),
            ("A='1'\n", Ok(None)),
            ("X= 'a'\nX='b'\n", Ok(None)),
            ("X=''\n", Ok(None)),
            ("A='1\nX='b'\n", wrong("at line 2", "unexpected content after closing quote")),
            ("X=a\n", wrong("at line 1", "value must be enclosed in single quotes")),
            ("\nX ='a'\n", wrong("at line 2", "whitespace before '=' is not allowed")),
            ("='a'\n", wrong("at line 1", "empty variable name")),
            ("X\n", wrong("at line 1", "missing '='")),
            ("X='a\nb\n", wrong("starting at line 1", "unclosed single quote")),
        ] {
            assert_eq!(value(text, "X"), expected, "{text:?}");
        }
    }
}
