//! Manifests in a folder, with what only a running control plane knows filled in.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// The objects in the folder's `*.yaml` files, in the order of names and then of documents. `values` are put in place of
/// `${NAME}`.
///
/// # Errors
/// When a file cannot be read or is not YAML.
pub fn read(folder: &Path, values: &[(&str, &str)]) -> Result<Vec<Value>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        objects.extend(parse(&text, values).with_context(|| file.display().to_string())?);
    }
    Ok(objects)
}

fn parse(text: &str, values: &[(&str, &str)]) -> Result<Vec<Value>> {
    let text = values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("${{{name}}}"), value));
    let mut objects = Vec::new();
    for document in text.split("\n---") {
        let value: Value = proto::yaml::decode_any(document.as_bytes())?;
        if !value.is_null() {
            objects.push(value);
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_in_order_and_filled() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
        write("20.yaml", "---\nkind: B\nhost: ${HOST}\n---\nkind: C\n");
        write("10.yaml", "# a comment\nkind: A\n");
        write("readme.txt", "kind: [");
        let objects = read(folder.path(), &[("HOST", "10.0.0.1")]).expect("objects");
        let kinds: Vec<&str> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
        assert_eq!(kinds, ["A", "B", "C"]);
        assert_eq!(objects[1]["host"], "10.0.0.1");
    }
}
