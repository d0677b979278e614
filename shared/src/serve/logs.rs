//! The files below `/var/log` of the machine, as `/logs/` of a component shows them. Links that lead out of it are not
//! followed.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path};

use crate::url::escaped_path;

/// The folder.
const ROOT: &str = "/var/log";
/// Most bytes of a file that are shown: its end is what is of interest.
const MAX_FILE: u64 = 32 << 20;

/// Content of a path.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A page in HTML that lists a folder.
    Folder(String),
    /// A file, or the end of a long one.
    File(Vec<u8>),
    /// The path goes up: `400`.
    Refused,
    /// `404`
    Nothing,
}

/// Looks at what follows `/logs/`. Blocks.
#[must_use]
pub fn logs(below: &str) -> Found {
    look(Path::new(ROOT), below)
}

fn look(root: &Path, below: &str) -> Found {
    let (of_folder, below) = (below.ends_with('/'), Path::new(below.trim_matches('/')));
    if !below.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Found::Refused;
    }
    let (Ok(root), Ok(path)) = (root.canonicalize(), root.join(below).canonicalize()) else { return Found::Nothing };
    if !path.starts_with(&root) {
        return Found::Nothing;
    }
    if path.is_dir() {
        return Found::Folder(page(&path));
    }
    if of_folder || !path.is_file() {
        return Found::Nothing;
    }
    end_of(&path).map_or(Found::Nothing, Found::File)
}

fn end_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_FILE)))?;
    let mut content = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut content)?;
    Ok(content)
}

fn page(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let slash = if entry.path().is_dir() { "/" } else { "" };
        entry.file_name().into_string().ok().map(|name| format!("{name}{slash}"))
    });
    let mut names: Vec<String> = named.collect();
    names.sort();
    let rows: String = names.iter().map(|name| format!("<a href=\"{}\">{}</a>\n", link(name), shown(name))).collect();
    format!("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{rows}</pre>\n")
}

/// A name as a relative address, with what Go leaves as it is.
fn link(name: &str) -> String {
    let mut out = String::new();
    // What looks like a scheme is not one.
    if name.split('/').next().is_some_and(|first| first.contains(':')) {
        out.push_str("./");
    }
    out.extend(escaped_path(name.as_bytes()).into_iter().map(char::from));
    out
}

/// A name as text of a page.
fn shown(name: &str) -> String {
    let escapes = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")];
    escapes.into_iter().fold(name.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_pages() {
        for (name, address, text) in [
            ("a b<c>.log", "a%20b%3Cc%3E.log", "a b&lt;c&gt;.log"),
            ("a:b/", "./a:b/", "a:b/"),
            ("it's & 100%", "it%27s%20&%20100%25", "it&#39;s &amp; 100%"),
        ] {
            assert_eq!((link(name).as_str(), shown(name).as_str()), (address, text));
        }
    }

    #[test]
    fn a_folder_and_nothing_outside_of_it() {
        let root = std::env::temp_dir().join(format!("logs-{}", std::process::id()));
        std::fs::create_dir_all(root.join("pods")).expect("a folder");
        std::fs::write(root.join("a.log"), "line\n").expect("a file");
        std::os::unix::fs::symlink("/etc/hostname", root.join("out")).expect("a link");
        for (below, want) in [
            ("a.log", Found::File(b"line\n".to_vec())),
            ("a.log/", Found::Nothing),
            ("b.log", Found::Nothing),
            ("../etc/hostname", Found::Refused),
            ("out", Found::Nothing),
        ] {
            assert_eq!(look(&root, below), want, "{below}");
        }
        let Found::Folder(page) = look(&root, "/") else { panic!("a folder") };
        assert!(
            page.contains("<a href=\"a.log\">a.log</a>\n<a href=\"out\">out</a>\n<a href=\"pods/\">pods/</a>\n"),
            "{page}"
        );
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
