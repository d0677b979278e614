//! Failed calls of the operating system, in the words of Go's library: clients and operators match them.

use std::fs::File;
use std::io::{self, Read as _};

use thiserror::Error;

/// The words for the error number of a failed call; None of an error that no call of the system gave.
///
/// Both libraries take them from the same table of the system: Go begins with a small letter, and leaves out the number.
#[must_use]
pub fn words(error: &io::Error) -> Option<String> {
    let number = error.raw_os_error()?;
    let text = error.to_string();
    let text = text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text);
    let (first, rest) = text.split_at_checked(1)?;
    Some(first.to_ascii_lowercase() + rest)
}

/// The [`words`] for an error, or what it says itself.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    words(error).unwrap_or_else(|| error.to_string())
}

/// Failed operation on a file, in the words of Go's `fs.PathError`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{operation} {path}: {words}")]
pub struct FileError {
    operation: &'static str,
    path: String,
    words: String,
    kind: io::ErrorKind,
}

impl FileError {
    /// Error of an operation (`open`) on a path.
    #[must_use]
    pub fn new(operation: &'static str, path: impl Into<String>, error: &io::Error) -> Self {
        Self { operation, path: path.into(), words: explain(error), kind: error.kind() }
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }
}

/// The content of a file.
///
/// # Errors
/// `open PATH: WHY`, or `read PATH: WHY` for a directory.
pub fn read(path: &str) -> Result<Vec<u8>, FileError> {
    let mut file = File::open(path).map_err(|e| FileError::new("open", path, &e))?;
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(|e| FileError::new("read", path, &e))?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_go() {
        for (number, want) in [
            (2, "no such file or directory"),
            (13, "permission denied"),
            (20, "not a directory"),
            (101, "network is unreachable"),
            (104, "connection reset by peer"),
            (111, "connection refused"),
            (113, "no route to host"),
        ] {
            assert_eq!(words(&io::Error::from_raw_os_error(number)).as_deref(), Some(want));
        }
        let own = io::Error::new(io::ErrorKind::TimedOut, "i/o timeout");
        assert_eq!((words(&own), explain(&own).as_str()), (None, "i/o timeout"));
    }

    #[test]
    fn files() {
        let missing = read("/nowhere").expect_err("none");
        assert_eq!(missing.to_string(), "open /nowhere: no such file or directory");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert_eq!(read("/").expect_err("a directory").to_string(), "read /: is a directory");
    }
}
