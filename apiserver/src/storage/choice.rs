//! What the flags say of how objects are stored that is not about connections.

use shared::flags::FlagSet;

/// Why the flags cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// `--storage-backend`
    #[error("--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'")]
    Backend,
    /// `--storage-media-type`
    #[error(
        "--storage-media-type {0:?} invalid, allowed values: application/json, application/vnd.kubernetes.protobuf, application/yaml"
    )]
    Media(String),
    /// `--watch-cache-sizes`
    #[error("invalid value of watch cache size: {0}")]
    CacheSize(String),
}

/// Checks the flags about the backend and its caches. Caches have the size they need, whatever the flags say, as
/// upstream's; one that is turned off is kept all the same: nothing but its memory can be seen of it.
///
/// # Errors
/// A backend that there is not, or what is no size.
pub fn check_backend(flags: &FlagSet) -> Result<(), ChoiceError> {
    if !matches!(flags.string("storage-backend").as_str(), "" | "etcd3") {
        return Err(ChoiceError::Backend);
    }
    flags.integer("default-watch-cache-size");
    let good = |text: &String| {
        let size = text.split_once('#').and_then(|(_, size)| size.parse::<i64>().ok());
        size.is_some_and(|size| size >= 0)
    };
    match flags.list("watch-cache-sizes").into_iter().find(|text| !good(text)) {
        Some(bad) => Err(ChoiceError::CacheSize(bad)),
        None => Ok(()),
    }
}

/// Whether built-in objects are stored as JSON: `--storage-media-type`. JSON is YAML, too.
///
/// # Errors
/// A media type in which nothing is stored.
pub fn stores_json(flags: &FlagSet) -> Result<bool, ChoiceError> {
    match flags.string("storage-media-type").as_str() {
        "" | "application/vnd.kubernetes.protobuf" => Ok(false),
        "application/json" | "application/yaml" => Ok(true),
        other => Err(ChoiceError::Media(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_checked() {
        let flags = |args: &[&str]| FlagSet::of("kube-apiserver", args).expect("flags");
        for (arg, want) in [
            ("--storage-backend=etcd3", Ok(())),
            ("--storage-backend=etcd2", Err(ChoiceError::Backend)),
            ("--watch-cache-sizes=pods#0,deployments.apps#100", Ok(())),
            ("--watch-cache-sizes=pods", Err(ChoiceError::CacheSize("pods".to_owned()))),
            ("--watch-cache-sizes=pods#-1", Err(ChoiceError::CacheSize("pods#-1".to_owned()))),
        ] {
            assert_eq!(check_backend(&flags(&[arg])), want, "{arg}");
        }
        assert_eq!(stores_json(&flags(&[])), Ok(false));
        assert_eq!(stores_json(&flags(&["--storage-media-type=application/json"])), Ok(true));
        assert!(stores_json(&flags(&["--storage-media-type=text/plain"])).is_err());
    }
}
