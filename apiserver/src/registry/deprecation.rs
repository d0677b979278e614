//! Lifecycle of built-in API versions: the releases that deprecate and remove them, and their replacement. The facts
//! are those of upstream's `prerelease-lifecycle` tags.

use proto::resources::Resource;
use proto::schema::group_version;

use super::kinds::kind_of;

/// The end of a group version with all in it.
struct VersionLifecycle {
    group: &'static str,
    version: &'static str,
    /// The minor release since which it should be left.
    deprecated: u32,
    /// The one that does without it.
    until: u32,
    /// Replacement: group version and kind.
    replacement: Option<(&'static str, &'static str)>,
}

const fn version(group: &'static str, version: &'static str, deprecated: u32, until: u32) -> VersionLifecycle {
    VersionLifecycle { group, version, deprecated, until, replacement: None }
}

/// Group versions that end; the end of a kind its home says.
const LIFECYCLES: &[VersionLifecycle] = &[
    version("admissionregistration.k8s.io", "v1alpha1", 35, 38),
    version("certificates.k8s.io", "v1alpha1", 34, 37),
    version("coordination.k8s.io", "v1alpha2", 35, 38),
    version("networking.k8s.io", "v1beta1", 34, 37),
    version("resource.k8s.io", "v1beta1", 35, 38),
    VersionLifecycle {
        replacement: Some(("storage.k8s.io/v1", "VolumeAttributesClass")),
        ..version("storage.k8s.io", "v1beta1", 34, 37)
    },
];

/// A kind that replaces another: its group and version, and its name.
type Replacement = (&'static str, &'static str);

/// The release that deprecates a row, the one that removes it, and its replacement.
fn end_of(row: &Resource) -> Option<(u32, Option<u32>, Option<Replacement>)> {
    let own = kind_of(row).and_then(|kind| kind.life_cycle.deprecation).filter(|end| end.version == row.version);
    if let Some(end) = own {
        return Some((end.since, None, end.replacement));
    }
    let end = LIFECYCLES.iter().find(|end| end.group == row.group && end.version == row.version)?;
    Some((end.deprecated, Some(end.until), end.replacement))
}

/// Deprecation warning of a resource, with the release that removes it (or an empty text).
pub(super) fn deprecation_warning(row: &Resource) -> Option<(String, String)> {
    let (deprecated, until, replacement) = end_of(row).filter(|_| row.custom.is_none())?;
    let until = until.map(|minor| format!("1.{minor}")).unwrap_or_default();
    let mut told =
        format!("{} {} is deprecated in v1.{deprecated}+", group_version(&row.group, &row.version), row.kind);
    if !until.is_empty() {
        told.push_str(&format!(", unavailable in v{until}+"));
    }
    if let Some((version, kind)) = replacement {
        told.push_str(&format!("; use {version} {kind}"));
    }
    Some((told, until))
}

#[cfg(test)]
mod tests {
    use proto::resources;

    use super::*;

    #[test]
    fn deprecated_versions_have_warnings() {
        let told = |version: &str, plural: &str| {
            let all = || resources::all().iter().chain(resources::optional());
            let row = all().find(|row| row.plural == plural && group_version(&row.group, &row.version) == version);
            deprecation_warning(row.expect("a row"))
        };
        let both = |text: &str, until: &str| Some((text.to_owned(), until.to_owned()));
        for (version, plural, want) in [
            ("v1", "pods", None),
            ("resource.k8s.io/v1beta2", "resourceslices", None),
            ("v1", "componentstatuses", both("v1 ComponentStatus is deprecated in v1.19+", "")),
            (
                "v1",
                "endpoints",
                both("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice", ""),
            ),
            (
                "networking.k8s.io/v1beta1",
                "servicecidrs",
                both("networking.k8s.io/v1beta1 ServiceCIDR is deprecated in v1.34+, unavailable in v1.37+", "1.37"),
            ),
            (
                "storage.k8s.io/v1beta1",
                "volumeattributesclasses",
                both(
                    "storage.k8s.io/v1beta1 VolumeAttributesClass is deprecated in v1.34+, unavailable in v1.37+; use storage.k8s.io/v1 VolumeAttributesClass",
                    "1.37",
                ),
            ),
        ] {
            assert_eq!(told(version, plural), want, "{version} {plural}");
        }
    }
}
