//! The headers in which a front proxy says who asks. They are between it and us: nobody behind us is told what a caller
//! put there. Answers for upstream's `pkg/authentication/request/headerrequest`.

use shared::flags::FlagSet;

/// The user's name.
pub const USER: &str = "x-remote-user";
/// The user's uid.
pub const UID: &str = "x-remote-uid";
/// A group of the user.
pub const GROUP: &str = "x-remote-group";
/// Prefix of headers with extra attributes of the user.
pub const EXTRA: &str = "x-remote-extra-";

/// Names in lower case.
#[derive(Debug, Clone)]
pub struct FrontProxyHeaders {
    names: Vec<String>,
    /// Prefixes of header names.
    prefixes: Vec<String>,
}

impl FrontProxyHeaders {
    /// Headers of the front proxy: the defaults sent to servers behind this one, and those that the flags name.
    pub fn from_flags(flags: &FlagSet) -> Self {
        let mut own = Self { names: [USER, UID, GROUP].map(str::to_owned).into(), prefixes: vec![EXTRA.to_owned()] };
        if flags.string("requestheader-client-ca-file").is_empty() {
            // It believes nobody.
            return own;
        }
        let lower = |flag: &str| flags.list(flag).into_iter().map(|name| name.trim().to_ascii_lowercase());
        for kind in ["username", "uid", "group"] {
            own.names.extend(lower(&format!("requestheader-{kind}-headers")));
        }
        own.prefixes.extend(lower("requestheader-extra-headers-prefix"));
        own
    }

    /// Reports whether a header is one of them; its name is in lower case.
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name) || self.prefixes.iter().any(|begin| name.starts_with(begin.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_proxy_headers_are_recognized_by_name() {
        let flags = [
            "--requestheader-username-headers=X-Who",
            "--requestheader-uid-headers=X-Number",
            "--requestheader-group-headers=X-Of,X-Among",
            "--requestheader-extra-headers-prefix=X-More-",
        ];
        let known =
            |flags: &[&str]| FrontProxyHeaders::from_flags(&FlagSet::of("kube-apiserver", flags).expect("flags"));
        let (unbelieved, believed) =
            (known(&flags), known(&[&flags[..], &["--requestheader-client-ca-file=f"]].concat()));
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-a"] {
            assert!(unbelieved.has(name) && believed.has(name), "{name}");
        }
        for name in ["x-who", "x-number", "x-of", "x-among", "x-more-a"] {
            assert!(!unbelieved.has(name) && believed.has(name), "{name}");
        }
        assert!(!believed.has("accept") && !believed.has("x-remote-users"));
    }
}
