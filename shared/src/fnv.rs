//! A small hash that is the same everywhere and for ever: for names that say whether something has changed.

/// 32-bit FNV-1a.
#[derive(Clone, Copy, Debug)]
pub struct Fnv32(u32);

impl Default for Fnv32 {
    fn default() -> Self {
        Self(0x811c_9dc5)
    }
}

impl Fnv32 {
    /// Mix in some bytes.
    #[must_use]
    pub fn write(mut self, bytes: &[u8]) -> Self {
        for b in bytes {
            self.0 = (self.0 ^ u32::from(*b)).wrapping_mul(0x0100_0193);
        }
        self
    }

    /// The hash so far.
    #[must_use]
    pub fn finish(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(Fnv32::default().write(b"a").finish(), 0xe40c_292c);
        assert_eq!(Fnv32::default().write(b"foo").write(b"bar").finish(), 0xbf9c_f968);
    }
}
