//! Kinds of processors that images are made for: this machine's, and others whose compiler is installed.

use std::str::FromStr;

use anyhow::{Error, Result, bail};

/// Rust's and Linux's names of processors, and those that images have for them.
const NAMES: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// A kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture(&'static str);

impl Default for Architecture {
    /// This machine's.
    fn default() -> Self {
        Self(std::env::consts::ARCH)
    }
}

impl FromStr for Architecture {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match NAMES.iter().find(|(_, image)| *image == name) {
            Some((machine, _)) => Ok(Self(machine)),
            None => bail!("unknown architecture {name}; use amd64 or arm64"),
        }
    }
}

impl Architecture {
    /// Name in images and tarballs.
    #[must_use]
    pub fn image(self) -> &'static str {
        NAMES.iter().find(|(machine, _)| *machine == self.0).map_or(self.0, |(_, image)| image)
    }

    /// Debian's folder of its libraries.
    #[must_use]
    pub fn libraries(self) -> String {
        format!("{}-linux-gnu", self.0)
    }

    /// A program of binutils or gcc for it, by the program's plain name.
    #[must_use]
    pub fn tool(self, name: &str) -> String {
        if self == Self::default() { name.to_owned() } else { format!("{}-{name}", self.libraries()) }
    }

    /// Suffix of the name of a folder with something built for it; nothing for this machine.
    #[must_use]
    pub fn suffix(self) -> String {
        if self == Self::default() { String::new() } else { format!("-{}", self.image()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_the_names_of_those_who_ask() {
        for (name, libraries) in [("amd64", "x86_64-linux-gnu"), ("arm64", "aarch64-linux-gnu")] {
            let architecture: Architecture = name.parse().expect("known");
            assert_eq!(architecture.image(), name);
            assert_eq!(architecture.libraries(), libraries);
            let foreign = architecture != Architecture::default();
            assert_eq!(architecture.tool("gcc"), if foreign { format!("{libraries}-gcc") } else { "gcc".to_owned() });
            assert_eq!(architecture.suffix(), if foreign { format!("-{name}") } else { String::new() });
        }
        assert!("x86_64".parse::<Architecture>().is_err());
        assert_eq!(Architecture("riscv64").image(), "riscv64");
    }
}
