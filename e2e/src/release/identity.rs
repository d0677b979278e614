//! The identity of a release, written into finished programs: what `shared/src/version.rs` keeps a place for.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The mark before the place, and the widths of the version, the commit and the date; as in `shared/src/version.rs`.
const MARK: &[u8] = b"\0ironclad identity\0";
const WIDTHS: [usize; 3] = [64, 40, 20];

/// Identity of the release that a program is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseIdentity {
    /// Upstream's version, or one of our own of it: `v1.35.4+ironclad.1`.
    pub version: String,
    /// The commit it was built from, 40 digits.
    pub commit: String,
    /// The time of that commit, as in RFC 3339 and in UTC.
    pub date: String,
}

impl ReleaseIdentity {
    /// Upstream's release that this one stands in for, `v1.35.4`.
    #[must_use]
    pub fn upstream(&self) -> &str {
        self.version.split('+').next().unwrap_or(&self.version)
    }

    /// The tag of its images. Tags have no `+`, and kubeadm asks for `_` in its place.
    #[must_use]
    pub fn tag(&self) -> String {
        self.version.replace('+', "_")
    }

    /// Checks that the programs say what they are to say, and that clients understand it.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self) -> Result<()> {
        let mut numbers = self.upstream().strip_prefix('v').unwrap_or_default().split('.');
        let is_number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u32>().is_ok());
        let build = self.version.split_once('+').map(|(_, build)| build);
        let is_build =
            |build: &str| !build.is_empty() && build.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-');
        let three = (0..3).all(|_| is_number(numbers.next())) && numbers.next().is_none();
        if !three || !build.is_none_or(is_build) {
            bail!("{} is no version; use one such as v1.35.4 or v1.35.4+ironclad.1", self.version);
        }
        if self.commit.len() != 40 || !self.commit.chars().all(|c| c.is_ascii_hexdigit()) {
            bail!("{} is no commit of 40 digits", self.commit);
        }
        if self.date.len() != 20 || !self.date.ends_with('Z') {
            bail!("{} is no date such as 2026-01-02T03:04:05Z", self.date);
        }
        Ok(())
    }

    /// Writes the program with this identity to `to`.
    ///
    /// # Errors
    /// When a file cannot be read or written, or the program has no place for an identity, or several.
    pub fn stamp(&self, program: &Path, to: &Path) -> Result<()> {
        let mut bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        self.stamp_bytes(&mut bytes).with_context(|| format!("cannot stamp {}", program.display()))?;
        // A program that runs cannot be written to, but it can be replaced.
        let fresh = to.with_extension("fresh");
        fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
        fs::set_permissions(&fresh, fs::metadata(program)?.permissions())?;
        fs::rename(&fresh, to).with_context(|| format!("cannot write {}", to.display()))
    }

    fn stamp_bytes(&self, bytes: &mut [u8]) -> Result<()> {
        self.check()?;
        if self.version.len() > WIDTHS[0] {
            bail!("{} is longer than {} bytes", self.version, WIDTHS[0]);
        }
        let places: Vec<usize> = find(bytes, MARK);
        let [place] = places[..] else { bail!("it has {} places for an identity, and needs one", places.len()) };
        let mut at = place + MARK.len();
        for (field, width) in [&self.version, &self.commit, &self.date].into_iter().zip(WIDTHS) {
            let Some(room) = bytes.get_mut(at..at + width) else { bail!("its place for an identity is cut off") };
            room.fill(0);
            room[..field.len()].copy_from_slice(field.as_bytes());
            at += width;
        }
        Ok(())
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    let starts = memchr::memmem::find_iter(bytes, wanted);
    starts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(version: &str) -> ReleaseIdentity {
        ReleaseIdentity { version: version.into(), commit: "a".repeat(40), date: "2026-01-02T03:04:05Z".into() }
    }

    #[test]
    fn versions_are_those_that_clients_understand() {
        for (version, tag) in [("v1.35.4", Some("v1.35.4")), ("v1.35.4+ironclad.1", Some("v1.35.4_ironclad.1"))] {
            identity(version).check().expect("a version");
            assert_eq!(Some(identity(version).tag().as_str()), tag);
            assert_eq!(identity(version).upstream(), "v1.35.4");
        }
        for version in ["1.35.4", "v1.35", "v1.35.x", "v1.35.4.1", "v1.35.4+", "v1.35.4+a b", "v1.35.4 "] {
            assert!(identity(version).check().is_err(), "{version}");
        }
        assert!(ReleaseIdentity { commit: "abc".into(), ..identity("v1.35.4") }.check().is_err());
        assert!(ReleaseIdentity { date: "today".into(), ..identity("v1.35.4") }.check().is_err());
    }

    #[test]
    fn a_stamp_replaces_the_one_before() {
        let mut program = [b"before".as_slice(), MARK, &[b'x'; 124], b"after"].concat();
        for version in ["v1.35.4+ironclad.1", "v1.35.5"] {
            identity(version).stamp_bytes(&mut program).expect("stamped");
            let place = &program[b"before".len() + MARK.len()..];
            assert_eq!(place[..64].split(|byte| *byte == 0).next(), Some(version.as_bytes()));
            assert_eq!(&place[104..124], b"2026-01-02T03:04:05Z");
            assert!(program.ends_with(b"after"));
        }
        let twice = [program.as_slice(), program.as_slice()].concat();
        for mut other in [twice, b"none".to_vec(), MARK.to_vec()] {
            assert!(identity("v1.35.4").stamp_bytes(&mut other).is_err());
        }
    }
}
