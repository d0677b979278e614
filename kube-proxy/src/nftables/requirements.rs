//! The kernel that the mode needs, as upstream asks for it. No tool is needed.

use crate::backend::SyncError;

/// Before it a kernel lacks what the rules use.
const KERNEL: [u32; 3] = [5, 13, 0];
/// Environment variable of those who know that their older kernel has it all; upstream's.
const SKIP: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";

/// Checks the version of the running kernel.
pub(super) fn check() -> Result<(), SyncError> {
    if std::env::var_os(SKIP).is_some() {
        return Ok(());
    }
    let kernel = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    judge(&kernel.unwrap_or_default()).map_err(|error| SyncError::Unsupported(error.to_string()))
}

/// A kernel that lacks what the rules use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("kube-proxy in nftables mode requires kernel 5.13 or later, got {0:?}")]
struct OldKernel(String);

fn judge(release: &str) -> Result<(), OldKernel> {
    match version(release) {
        Some(kernel) if kernel >= KERNEL => Ok(()),
        _ => Err(OldKernel(release.to_owned())),
    }
}

/// The first three numbers of a text such as `6.1.0-27-amd64`.
fn version(text: &str) -> Option<[u32; 3]> {
    let digits = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let mut numbers = text.split('.').map(digits);
    Some([numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_refused() {
        for kernel in ["6.1.0-27-amd64", "5.13", "5.13.0", "10.0.0-rc1+"] {
            assert_eq!(judge(kernel), Ok(()), "{kernel}");
        }
        for kernel in ["5.10.0-8", "4.19.0", "", "x.y"] {
            assert!(judge(kernel).is_err(), "{kernel}");
        }
    }
}
