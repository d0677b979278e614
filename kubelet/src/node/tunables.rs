//! Kernel parameters that nodes are run with (upstream's `setupKernelTunables`).

use std::path::Path;

use anyhow::bail;
use shared::flags::FeatureGates;

/// Name below `/proc/sys` and value.
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Reports whether this process is in a user namespace, whose root is not the machine's.
fn in_user_namespace() -> bool {
    is_mapped(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

fn is_mapped(uid_map: &str) -> bool {
    !uid_map.is_empty() && !uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Fate of a parameter with another value than nodes are run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differing {
    /// `protectKernelDefaults`: the node does not run.
    Fails,
    /// Set, or the node does not run.
    IsSet,
    /// Set where there is a right to it (`KubeletInUserNamespace`).
    IsSetIfAllowed,
}

impl Differing {
    /// Returns the fate that configuration and gates want.
    pub fn of(protect: bool, gates: &FeatureGates) -> Self {
        match protect {
            true => Self::Fails,
            false if in_user_namespace() && gates.enabled("KubeletInUserNamespace") => Self::IsSetIfAllowed,
            false => Self::IsSet,
        }
    }
}

/// Sees to it that the parameters are what nodes are run with.
///
/// # Errors
/// Parameters that differ, or that cannot be read or set.
pub fn set_up(proc_sys: &Path, differing: Differing) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for (name, wanted) in TUNABLES {
        let path = proc_sys.join(name);
        let failed = |error: std::io::Error| format!("open {}: {error}", path.display());
        let actual = match std::fs::read_to_string(&path) {
            Ok(actual) => actual.trim().to_owned(),
            Err(error) => {
                wrong.push(failed(error));
                continue;
            }
        };
        if actual == wanted {
            continue;
        }
        if differing == Differing::Fails {
            wrong.push(format!("invalid kernel flag: {name}, expected value: {wanted}, actual value: {actual}"));
            continue;
        }
        tracing::info!(flag = name, expected = wanted, actual, "Updating kernel flag");
        match std::fs::write(&path, wanted) {
            Ok(()) => {}
            Err(error) if differing == Differing::IsSetIfAllowed => {
                tracing::info!(flag = name, %error, "Updating kernel flag failed (running in UserNS, ignoring)");
            }
            Err(error) => wrong.push(failed(error)),
        }
    }
    match wrong.len() {
        0 => Ok(()),
        1 => bail!("{}", wrong.remove(0)),
        _ => bail!("[{}]", wrong.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_or_protected() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, _) in TUNABLES {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, "7\n").expect("written");
        }
        let refused = set_up(folder.path(), Differing::Fails).expect_err("they differ").to_string();
        assert!(
            refused.starts_with("[invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 7, ")
        );
        set_up(folder.path(), Differing::IsSet).expect("set");
        set_up(folder.path(), Differing::Fails).expect("as they should be");
    }

    #[test]
    fn a_parameter_that_cannot_be_had_keeps_the_node_from_running() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = set_up(folder.path(), Differing::IsSetIfAllowed).expect_err("none is there").to_string();
        let first = format!("[open {}/vm/overcommit_memory: No such file", folder.path().display());
        assert!(missing.starts_with(&first), "{missing}");
        for (name, wanted) in TUNABLES {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, wanted).expect("written");
        }
        // A file that can be read and not written, whoever asks.
        let path = folder.path().join("kernel/panic");
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/proc/self/stat", &path).expect("linked");
        let refused = set_up(folder.path(), Differing::IsSet).expect_err("it cannot be set").to_string();
        assert!(refused.starts_with(&format!("open {}: ", path.display())), "{refused}");
        set_up(folder.path(), Differing::IsSetIfAllowed).expect("goes without");
    }

    #[test]
    fn namespaces_of_users_are_told_by_their_map() {
        for (map, expected) in [
            ("         0          0 4294967295\n", false),
            ("", false),
            ("         0       1000          1\n", true),
            ("0 0 4294967294\n", true),
        ] {
            assert_eq!(is_mapped(map), expected, "{map:?}");
        }
    }
}
