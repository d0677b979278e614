//! A layer of an image: files from anywhere, at any path, with the owner and modes that the image is to have, written as
//! the same bytes whatever machine and clock wrote it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

/// `security.capability` of a program that may listen below port 1024: version 2, CAP_NET_BIND_SERVICE (bit 10) permitted
/// and effective.
const MAY_BIND: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[derive(Debug)]
enum LayerEntry {
    Folder(u32),
    File { source: EntryData, mode: u32, may_bind: bool },
    Link(PathBuf),
}

#[derive(Debug)]
enum EntryData {
    Path(PathBuf),
    Text(String),
}

/// Files by their path in the image; everything belongs to root.
#[derive(Debug, Default)]
pub struct Layer {
    entries: BTreeMap<PathBuf, LayerEntry>,
}

impl Layer {
    fn put(&mut self, path: &str, entry: LayerEntry) {
        let path = Path::new(path.trim_start_matches('/'));
        for folder in path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
            self.entries.entry(folder.to_owned()).or_insert(LayerEntry::Folder(0o755));
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// Adds a folder.
    pub fn folder(&mut self, path: &str, mode: u32) -> &mut Self {
        self.put(path, LayerEntry::Folder(mode));
        self
    }

    /// Adds a program.
    pub fn program(&mut self, path: &str, source: &Path) -> &mut Self {
        self.put(path, LayerEntry::File { source: EntryData::Path(source.to_owned()), mode: 0o755, may_bind: false });
        self
    }

    /// Adds a file that is no program.
    pub fn file(&mut self, path: &str, source: &Path) -> &mut Self {
        self.put(path, LayerEntry::File { source: EntryData::Path(source.to_owned()), mode: 0o644, may_bind: false });
        self
    }

    /// Adds a program that may listen on ports below 1024, whoever runs it.
    pub fn binding_program(&mut self, path: &str, source: &Path) -> &mut Self {
        self.put(path, LayerEntry::File { source: EntryData::Path(source.to_owned()), mode: 0o755, may_bind: true });
        self
    }

    /// Adds a text file.
    pub fn text(&mut self, path: &str, text: String) -> &mut Self {
        self.put(path, LayerEntry::File { source: EntryData::Text(text), mode: 0o644, may_bind: false });
        self
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> &mut Self {
        self.put(path, LayerEntry::Link(target.into()));
        self
    }

    /// Adds a file of `root`, or all that is below a folder of it, at the path that it has there. Devices, sockets and
    /// pipes are left out.
    ///
    /// # Errors
    /// When something there cannot be read.
    pub fn copy(&mut self, root: &Path, path: &str) -> Result<&mut Self> {
        let source = root.join(path.trim_start_matches('/'));
        let told = || format!("cannot read {}", source.display());
        let found = fs::symlink_metadata(&source).with_context(told)?;
        let kind = found.file_type();
        if kind.is_symlink() {
            self.put(path, LayerEntry::Link(fs::read_link(&source).with_context(told)?));
        } else if kind.is_file() {
            let mode = found.permissions().mode() & 0o755;
            self.put(path, LayerEntry::File { source: EntryData::Path(source), mode, may_bind: false });
        } else if kind.is_dir() {
            self.put(path, LayerEntry::Folder(found.mode() & 0o1777));
            for entry in fs::read_dir(&source).with_context(told)? {
                let name = entry?.file_name();
                self.copy(root, &format!("{}/{}", path.trim_end_matches('/'), name.to_string_lossy()))?;
            }
        }
        Ok(self)
    }

    /// Adds a program and, where it is not static, the libraries it is linked to.
    ///
    /// # Errors
    /// When a library cannot be read.
    pub fn linked_program(&mut self, path: &str, source: &Path) -> Result<&mut Self> {
        self.program(path, source);
        // Says on its error stream that a static program is none of its business, and fails.
        let libraries = crate::shell::run("ldd", &[&source.display().to_string()]).unwrap_or_default();
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            let file = fs::canonicalize(library).with_context(|| format!("cannot find {library}"))?;
            self.put(library, LayerEntry::File { source: EntryData::Path(file), mode: 0o755, may_bind: false });
        }
        Ok(self)
    }

    /// Writes the layer as a tar archive: sorted by path, at the beginning of 1970.
    ///
    /// # Errors
    /// When a source cannot be read or `to` takes no more.
    pub fn write(&self, to: impl Write) -> Result<()> {
        let mut archive = Builder::new(to);
        for (path, entry) in &self.entries {
            append(&mut archive, path, entry).with_context(|| format!("cannot add {}", path.display()))?;
        }
        archive.into_inner()?.flush()?;
        Ok(())
    }
}

fn append<W: Write>(archive: &mut Builder<W>, path: &Path, entry: &LayerEntry) -> io::Result<()> {
    let mut header = header();
    match entry {
        LayerEntry::Folder(mode) => {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(*mode);
            archive.append_data(&mut header, path.join(""), io::empty())
        }
        LayerEntry::Link(target) => {
            header.set_entry_type(EntryType::Symlink);
            header.set_mode(0o777);
            archive.append_link(&mut header, path, target)
        }
        LayerEntry::File { source, mode, may_bind } => {
            header.set_mode(*mode);
            if *may_bind {
                archive.append_pax_extensions([("SCHILY.xattr.security.capability", MAY_BIND.as_slice())])?;
            }
            let (size, content): (u64, Box<dyn Read>) = match source {
                EntryData::Path(source) => {
                    let file = File::open(source)?;
                    (file.metadata()?.len(), Box::new(file))
                }
                EntryData::Text(text) => (text.len() as u64, Box::new(text.as_bytes())),
            };
            header.set_size(size);
            archive.append_data(&mut header, path, content)
        }
    }
}

/// A header of root's, at the beginning of 1970, for an empty file.
pub(super) fn header() -> Header {
    let mut header = Header::new_gnu();
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header.set_mode(0o644);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(layer: &Layer) -> Vec<u8> {
        let mut bytes = Vec::new();
        layer.write(&mut bytes).expect("written");
        bytes
    }

    #[test]
    fn a_layer_is_the_same_bytes_in_any_order_and_at_any_time() {
        let folder = std::env::temp_dir().join(format!("layer-{}", std::process::id()));
        fs::create_dir_all(folder.join("etc/deep")).expect("a folder");
        fs::write(folder.join("etc/deep/file"), "x").expect("a file");
        std::os::unix::fs::symlink("deep/file", folder.join("etc/link")).expect("a link");
        let (mut one, mut other) = (Layer::default(), Layer::default());
        one.text("/a/b", "text".into()).folder("/tmp", 0o1777).copy(&folder, "/etc").expect("copied");
        File::options()
            .write(true)
            .open(folder.join("etc/deep/file"))
            .and_then(|file| file.set_modified(std::time::UNIX_EPOCH))
            .expect("older");
        other.copy(&folder, "etc").expect("copied").folder("tmp", 0o1777).text("a/b", "text".into());
        assert_eq!(written(&one), written(&other));
        let bytes = written(&one);
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<String> = archive
            .entries()
            .expect("entries")
            .map(|entry| entry.expect("an entry").path().expect("a path").display().to_string())
            .collect();
        assert_eq!(names, ["a/", "a/b", "etc/", "etc/deep/", "etc/deep/file", "etc/link", "tmp/"]);
        fs::remove_dir_all(folder).expect("clean");
    }

    #[test]
    fn a_program_that_binds_low_ports_says_so() {
        let mut layer = Layer::default();
        layer.binding_program("/coredns", Path::new("/proc/self/exe"));
        let bytes = written(&layer);
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut entry = archive.entries().expect("entries").next().expect("one").expect("an entry");
        let extensions = entry.pax_extensions().expect("readable").expect("some");
        let found: Vec<_> = extensions
            .map(|one| one.expect("a pair"))
            .map(|one| (one.key().map(str::to_owned).unwrap_or_default(), one.value_bytes().to_vec()))
            .collect();
        assert_eq!(found, [("SCHILY.xattr.security.capability".to_owned(), MAY_BIND.to_vec())]);
    }
}
