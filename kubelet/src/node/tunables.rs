//! Kernel parameters that nodes are run with (upstream's `setupKernelTunables`).

use std::path::Path;

use anyhow::bail;

/// Name below `/proc/sys` and value.
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Sets what differs, or with `protectKernelDefaults` refuses to run where something does. A parameter that cannot be
/// set is warned of: nodes inside of containers have no right to it.
///
/// # Errors
/// The names, wanted and actual values of those that differ.
pub fn set_up(proc_sys: &Path, protect: bool) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for (name, wanted) in TUNABLES {
        let path = proc_sys.join(name);
        let actual = std::fs::read_to_string(&path).unwrap_or_default();
        let actual = actual.trim();
        if actual == wanted {
            continue;
        }
        if protect {
            wrong.push(format!("invalid kernel flag: {name}, expected value: {wanted}, actual value: {actual}"));
            continue;
        }
        tracing::info!(flag = name, expected = wanted, actual, "Updating kernel flag");
        if let Err(error) = std::fs::write(&path, wanted) {
            tracing::warn!(flag = name, %error, "Failed to update kernel flag");
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
        let refused = set_up(folder.path(), true).expect_err("they differ").to_string();
        assert!(
            refused.starts_with("[invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 7, ")
        );
        set_up(folder.path(), false).expect("set");
        set_up(folder.path(), true).expect("as they should be");
    }
}
