//! Names of cgroups, which the two drivers write differently. Answers for upstream's `CgroupName`.

const SLICE: &str = ".slice";

/// A cgroup by the parts of its path; none for the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(Vec<String>);

impl Name {
    /// Reads `/a/b`.
    pub(super) fn of_path(path: &str) -> Self {
        Self(path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect())
    }

    /// Reads a slice's name, or a path that ends in it.
    pub(super) fn of_slice(path: &str) -> Self {
        let slice = path.rsplit('/').next().unwrap_or_default();
        let parts = slice.strip_suffix(SLICE).unwrap_or(slice).split('-');
        Self(parts.filter(|part| !part.is_empty()).map(|part| part.replace('_', "-")).collect())
    }

    pub(super) fn child(&self, part: &str) -> Self {
        let mut parts = self.0.clone();
        parts.push(part.to_owned());
        Self(parts)
    }

    /// The last part, where the rest is `parent`.
    pub(super) fn last_below(&self, parent: &Self) -> Option<String> {
        let (last, rest) = self.0.split_last()?;
        (rest == parent.0).then(|| last.clone())
    }

    /// `/kubepods/burstable/pod1-2`
    pub(super) fn cgroupfs(&self) -> String {
        format!("/{}", self.0.join("/"))
    }

    /// `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice`
    pub(super) fn systemd(&self) -> String {
        let slices: Vec<String> = self.slices().collect();
        format!("/{}", slices.join("/"))
    }

    /// The slice and the one that it is in; none for the root, which systemd has anyway.
    pub(super) fn unit(&self) -> Option<(String, String)> {
        let mut slices: Vec<String> = self.slices().collect();
        let unit = slices.pop()?;
        Some((unit, slices.pop().unwrap_or_else(|| "-.slice".to_owned())))
    }

    fn slices(&self) -> impl Iterator<Item = String> {
        // A dash parts the slices of a name, so that parts have none.
        let escaped: Vec<String> = self.0.iter().map(|part| part.replace('-', "_")).collect();
        (1..=escaped.len()).map(move |length| format!("{}{SLICE}", escaped[..length].join("-")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_write_names_as_upstream() {
        for (path, systemd, unit) in [
            ("/", "/", None),
            ("/kubepods", "/kubepods.slice", Some(("kubepods.slice", "-.slice"))),
            (
                "/kubepods/burstable/pod1234-abcd",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice",
                Some(("kubepods-burstable-pod1234_abcd.slice", "kubepods-burstable.slice")),
            ),
        ] {
            let name = Name::of_path(path);
            assert_eq!((name.cgroupfs().as_str(), name.systemd().as_str()), (path, systemd));
            let found = name.unit();
            assert_eq!(found.as_ref().map(|(unit, parent)| (unit.as_str(), parent.as_str())), unit);
            if unit.is_some() {
                assert_eq!(Name::of_slice(systemd), name);
            }
        }
    }

    #[test]
    fn pods_are_found_only_below_their_own_tier() {
        let tier = Name::of_path("/kubepods");
        let last = |slice: &str| Name::of_slice(slice).last_below(&tier);
        assert_eq!(last("kubepods-pod1_2.slice").as_deref(), Some("pod1-2"));
        assert_eq!(last("kubepods-burstable-pod1_2.slice"), None);
        assert_eq!(last("system.slice"), None);
    }
}
