//! Ids that the node gives to namespaces: those that `/etc/subuid` and `/etc/subgid` grant the user `kubelet`, asked of
//! `getsubids`, or all above 65535. Answers for upstream's `getKubeletMappings` and `parseGetSubIdsOutput`.

use super::error::IdsError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// User whose subordinate ids are given away.
const KUBELET_USER: &str = "kubelet";
const GETSUBIDS: &str = "getsubids";
/// Users of the node.
const USERS: &str = "/etc/passwd";
/// Oldest kernel with idmapped mounts of all that volumes are on: upstream's `UserNamespacesSupportKernelVersion`.
const OLDEST_KERNEL: (u32, u32) = (6, 3);

/// A range of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first id; 0 for the default range.
    pub(super) first: u32,
    /// Number of ids.
    pub(super) length: u32,
}

impl IdRange {
    /// All ids but those of the first range.
    pub const ALL: Self = Self { first: 0, length: 0 };

    /// This range, or all ids in ranges of `length`, the first of which is the node's own.
    pub(super) fn or_all(self, length: u32) -> Self {
        if self != Self::ALL {
            return self;
        }
        let ranges = (1u64 << 32) / u64::from(length.max(1));
        let ids = ranges.saturating_sub(1).saturating_mul(u64::from(length));
        Self { first: length, length: u32::try_from(ids).unwrap_or(u32::MAX) }
    }

    /// Reads which ids the node is configured to give.
    ///
    /// # Errors
    /// The configuration cannot be read, or is not one range for uids and gids alike.
    pub fn of_node(kernel: &str) -> Result<Self, IdsError> {
        warn_of_old_kernel(kernel);
        let users = std::fs::read_to_string(USERS).map_err(|cause| IdsError::Users { file: USERS, cause })?;
        if !has_user(&users, KUBELET_USER) {
            return Ok(Self::ALL);
        }
        let Some(program) = find(GETSUBIDS) else {
            tracing::info!(
                executable = GETSUBIDS,
                "Could not find executable, default mappings will be used for the user namespaces"
            );
            return Ok(Self::ALL);
        };
        Self::told_by(&program)
    }

    fn told_by(program: &Path) -> Result<Self, IdsError> {
        let ask = |args: &[&str], what: &'static str| {
            let failed = || IdsError::Program { what, user: KUBELET_USER };
            let output = Command::new(program).args(args).arg(KUBELET_USER).output().map_err(|_| failed())?;
            if output.status.success() { Ok(output.stdout) } else { Err(failed()) }
        };
        let (uids, gids) = (ask(&[], "ids")?, ask(&["-g"], "gids")?);
        if uids != gids {
            return Err(IdsError::Mismatch(KUBELET_USER));
        }
        parse(&String::from_utf8_lossy(&uids))
    }
}

/// Reports whether a list of users has one of this name. The C library is not asked: it loads what the node's `nsswitch.conf`
/// names, which a static program does not survive, and upstream's, which is built without it, does not ask it either.
fn has_user(users: &str, name: &str) -> bool {
    users.lines().any(|line| line.split_once(':').is_some_and(|(user, _)| user.trim() == name))
}

/// Reads `0: kubelet 65536 2147483648`.
fn parse(text: &str) -> Result<IdRange, IdsError> {
    let line = text.trim_matches('\n');
    if line.contains('\n') {
        return Err(IdsError::Lines(text.to_owned()));
    }
    let parts: Vec<&str> = line.split_whitespace().collect();
    let [_, _, first, length] = parts[..] else { return Err(IdsError::Line(text.to_owned())) };
    let number = |part: &str| {
        let (line, number) = (|| text.to_owned(), part.parse::<u32>());
        number.map_err(|cause| IdsError::Number { line: line(), part: part.to_owned(), cause })
    };
    Ok(IdRange { first: number(first)?, length: number(length)? })
}

/// Finds a program on the path.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn warn_of_old_kernel(version: &str) {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    let known = numbers.next().zip(numbers.next());
    if known.is_some_and(|known| known < OLDEST_KERNEL) {
        tracing::warn!(
            kernel_version = version,
            feature = super::GATE,
            min_kernel_version = "6.3",
            "The kernel version is incompatible with the feature gate, which needs as a minimum kernel version"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn users_are_found_by_their_names_alone() {
        let users = "root:x:0:0:root:/root:/bin/bash\n# kubelet:x\nkubelet-admin:x:1:1::/:\n";
        assert!(!has_user(users, "kubelet") && has_user(users, "kubelet-admin"));
        assert!(has_user(&format!("{users}kubelet:x:2:2::/:\n"), "kubelet"));
    }

    #[test]
    fn one_line_tells_one_range() {
        let range = |first, length| IdRange { first, length };
        assert_eq!(parse("0: kubelet 65536 2147483648\n").expect("a range"), range(65536, 2_147_483_648));
        for (text, error) in [
            ("0: kubelet 1 2\n1: kubelet 3 4\n", "it must contain only one line"),
            ("", "invalid line"),
            ("0: kubelet 65536", "invalid line"),
            ("0: kubelet x 2", "error parsing line"),
            ("0: kubelet 1 4294967296", "error parsing line"),
        ] {
            let found = parse(text).expect_err(text).to_string();
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn uids_and_gids_have_to_be_the_same() {
        let folder = tempfile::tempdir().expect("folder");
        let program = folder.path().join("getsubids");
        let script = |text: &str| {
            std::fs::write(&program, text).expect("written");
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("mode");
            IdRange::told_by(&program).map_err(|error| error.to_string())
        };
        assert_eq!(
            script("#!/bin/sh\necho '0: kubelet 65536 131072'\n"),
            Ok(IdRange { first: 65536, length: 131_072 })
        );
        let differ = script("#!/bin/sh\necho \"0: kubelet $# 131072\"\n");
        assert_eq!(differ, Err("mismatched subuids and subgids for user \"kubelet\"".to_owned()));
        let failed = script("#!/bin/sh\n[ $# = 1 ] || exit 1\necho '0: kubelet 65536 131072'\n");
        assert_eq!(failed, Err("error retrieving additional gids for user \"kubelet\"".to_owned()));
    }

    #[test]
    fn all_ids_but_the_nodes_own_are_given_by_default() {
        let all = IdRange::ALL.or_all(65536);
        assert_eq!((all.first, u64::from(all.first) + u64::from(all.length)), (65536, 1 << 32));
        let wide = IdRange::ALL.or_all(3 * 65536);
        assert_eq!((wide.first, wide.length % wide.first), (3 * 65536, 0));
        let own = IdRange { first: 65536, length: 65536 };
        assert_eq!(own.or_all(65536), own);
    }
}
