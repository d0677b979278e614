//! Gates and releases of a kind's versions. Answers for upstream's `prerelease-lifecycle` tags and for the exceptions of
//! `DefaultStorageFactory`.

/// Deprecation of a version of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deprecation {
    pub(crate) version: &'static str,
    /// The minor release since which it should be left.
    pub(crate) since: u32,
    /// Replacement: group version and kind.
    pub(crate) replacement: Option<(&'static str, &'static str)>,
}

/// Gates and releases of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifeCycle {
    /// Feature gate that an optional kind needs, besides `--runtime-config`.
    pub(crate) gate: Option<&'static str>,
    /// Versions that came after the oldest release that can be emulated, with the minor release.
    pub(crate) introduced: &'static [(&'static str, u32)],
    /// Versions that are served no more and can be read all the same.
    pub(crate) decodes: &'static [&'static str],
    /// Objects are stored in the version of the IDL, whichever release has to read them.
    pub(crate) fixed_storage: bool,
    /// Deprecation that is not that of a whole group version.
    pub(crate) deprecation: Option<Deprecation>,
}

impl LifeCycle {
    /// Always there, without a gate.
    pub(crate) const fn new() -> Self {
        Self { gate: None, introduced: &[], decodes: &[], fixed_storage: false, deprecation: None }
    }

    /// Sets the gate.
    pub(crate) const fn gate(mut self, gate: &'static str) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Sets the releases that brought versions.
    pub(crate) const fn introduced(mut self, versions: &'static [(&'static str, u32)]) -> Self {
        self.introduced = versions;
        self
    }

    /// Sets the versions that are understood and not served.
    pub(crate) const fn decodes(mut self, versions: &'static [&'static str]) -> Self {
        self.decodes = versions;
        self
    }

    /// Fixes the version that is stored.
    pub(crate) const fn fixed_storage(mut self) -> Self {
        self.fixed_storage = true;
        self
    }

    /// Sets the deprecation of a version.
    pub(crate) const fn deprecated(
        mut self,
        version: &'static str,
        since: u32,
        replacement: Option<(&'static str, &'static str)>,
    ) -> Self {
        self.deprecation = Some(Deprecation { version, since, replacement });
        self
    }
}
