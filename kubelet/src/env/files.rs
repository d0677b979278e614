//! Variables from files (`fileKeyRef`): lines of the form `NAME='value'`, where a value may go over several lines and is
//! taken as it is. Answers for upstream's `pkg/util/env`.

/// Files of another form, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvFileError {
    /// A line is wrong.
    #[error("invalid environment variable format at line {line}: {problem}")]
    Line {
        /// Number of the line, from one on.
        line: usize,
        /// Fault of the text.
        #[source]
        problem: LineProblem,
    },
    /// A value that begins in this line has no end.
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Unclosed(usize),
}

/// Problems of a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    /// No assignment.
    #[error("missing '='")]
    NoAssignment,
    /// No name of a variable.
    #[error("empty variable name")]
    NoName,
    /// The name is followed by a blank.
    #[error("whitespace before '=' is not allowed")]
    Blank,
    /// The value is not in quotes.
    #[error("value must be enclosed in single quotes")]
    NoQuotes,
    /// The value is followed by something.
    #[error("unexpected content after closing quote")]
    MoreContent,
}

/// The value of a variable; none when the file does not have it.
///
/// # Errors
/// The file has another form before the variable comes.
pub fn value(text: &str, key: &str) -> Result<Option<String>, EnvFileError> {
    let blank = [' ', '\t'];
    let wrong = |line, problem| Err(EnvFileError::Line { line, problem });
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let (number, line) = (index + 1, line.trim_start_matches(blank));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, assigned)) = line.split_once('=') else { return wrong(number, LineProblem::NoAssignment) };
        if name.trim_end_matches(blank).is_empty() {
            return wrong(number, LineProblem::NoName);
        }
        if name.ends_with(blank) {
            return wrong(number, LineProblem::Blank);
        }
        if assigned.starts_with(blank) {
            // As in a shell: nothing is assigned, and what follows is not ours.
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let Some(opened) = assigned.strip_prefix('\'') else {
            return wrong(number, LineProblem::NoQuotes);
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
                return Err(EnvFileError::Unclosed(number));
            };
            (at, rest) = (index + 1, next);
        };
        let after = after.trim_start_matches(blank);
        if !after.is_empty() && !after.starts_with('#') {
            return wrong(at, LineProblem::MoreContent);
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
            assert_eq!(value(text, "X").map_err(|error| error.to_string()), expected, "{text:?}");
        }
    }
}
