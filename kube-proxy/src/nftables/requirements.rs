//! The kernel and the tool that the mode needs, as upstream asks for them.

use crate::backend::SyncError;

/// Before it `nft` does not understand our tables.
const TOOL: [u32; 3] = [1, 0, 1];
/// Before it a kernel lacks what the rules use.
const KERNEL: [u32; 3] = [5, 13, 0];
/// Environment variable of those who know that their older kernel has it all; upstream's.
const SKIP: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";

/// Checks the version that the tool printed, and that of the running kernel.
pub(super) fn check(printed: &str) -> Result<(), SyncError> {
    let kernel = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    let kernel = kernel.unwrap_or_default();
    let kernel = if std::env::var_os(SKIP).is_some() { None } else { Some(kernel.as_str()) };
    judge(printed, kernel).map_err(SyncError::Unsupported)
}

fn judge(printed: &str, kernel: Option<&str>) -> Result<(), String> {
    let tool = printed.split_whitespace().find_map(|word| version(word.strip_prefix('v')?));
    if tool.is_none_or(|tool| tool < TOOL) {
        return Err(format!("nft version must be 1.0.1 or later, got {:?}", printed.trim()));
    }
    match kernel {
        Some(release) if version(release).is_none_or(|kernel| kernel < KERNEL) => {
            Err(format!("kube-proxy in nftables mode requires kernel 5.13 or later, got {release:?}"))
        }
        _ => Ok(()),
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
    fn old_kernels_and_tools_are_refused() {
        let cases = [
            ("nftables v1.0.6 (Lester Gooch #5)", Some("6.1.0-27-amd64"), true),
            ("nftables v1.0.1 (Fearless Fosdick #3)", Some("5.13"), true),
            ("nftables v1.0.0 (Fearless Fosdick #2)", Some("6.1.0"), false),
            ("nftables v0.9.8", Some("6.1.0"), false),
            ("nftables v1.0.6", Some("5.10.0-8"), false),
            ("nftables v1.0.6", None, true),
            ("", Some("6.1.0"), false),
        ];
        for (printed, kernel, fits) in cases {
            assert_eq!(judge(printed, kernel).is_ok(), fits, "{printed} {kernel:?}");
        }
    }
}
