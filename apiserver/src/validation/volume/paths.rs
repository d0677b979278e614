//! Paths in volumes. Answers for upstream's `validatePathNoBacksteps`, `validateLocalDescendingPath`,
//! `ValidateLocalNonReservedPath`.

use crate::rules::options::FieldErrors;
use shared::status::field::{Error, Path};

/// A path that does not lead upwards.
pub(in crate::validation) fn no_backsteps(target: &str, path: &Path, out: &mut FieldErrors) {
    if target.split('/').any(|part| part == "..") {
        out.push(Error::invalid(path, target, "must not contain '..'"));
    }
}

/// A relative path that stays below where it starts; empty is fine.
pub(in crate::validation) fn descending_path(target: &str, path: &Path, out: &mut FieldErrors) {
    if target.starts_with('/') {
        out.push(Error::invalid(path, target, "must be a relative path"));
    }
    no_backsteps(target, path, out);
}

/// Such a path that may not start with `..` either, as names of projected files.
pub(in crate::validation) fn local_path(target: &str, path: &Path, out: &mut FieldErrors) {
    descending_path(target, path, out);
    if target.starts_with("..") && !target.starts_with("../") {
        out.push(Error::invalid(path, target, "must not start with '..'"));
    }
}
