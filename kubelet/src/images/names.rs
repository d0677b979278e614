//! Names of images as registries know them. Answers for `ParseNormalizedNamed` of the library that upstream reads names with.

/// Registry of images that name none.
const DOMAIN: &str = "docker.io";
/// Name of that registry in old configurations.
const OLD_DOMAIN: &str = "index.docker.io";
/// Folder of images there that are in none.
const OFFICIAL: &str = "library";

/// Names that no image has, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NameError {
    /// Another form.
    #[error("couldn't parse image name \"{0}\": invalid reference format")]
    Form(String),
    /// Upper case.
    #[error(
        "couldn't parse image name \"{image}\": invalid reference format: repository name ({path}) must be lowercase"
    )]
    UpperCase {
        /// The name.
        image: String,
        /// The name without digest.
        path: String,
    },
}

/// The full name of an image: registry, path, tag.
///
/// # Errors
/// It is not a valid reference.
pub(super) fn normalize(image: &str) -> Result<String, NameError> {
    let invalid = || NameError::Form(image.to_owned());
    if image.is_empty() || image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(invalid());
    }
    let (path, _) = image.split_once('@').unwrap_or((image, ""));
    let last = path.rsplit('/').next().unwrap_or(path);
    let (name, _) = last.split_once(':').unwrap_or((last, ""));
    if name.is_empty() {
        return Err(invalid());
    }
    let repository = path.strip_suffix(last).unwrap_or_default();
    let has_host = repository.split('/').next().is_some_and(|h| h.contains(['.', ':']) || h == "localhost");
    let rest = if has_host { repository.split_once('/').map_or("", |(_, r)| r) } else { repository };
    if format!("{rest}{name}").chars().any(|c| c.is_ascii_uppercase()) {
        return Err(NameError::UpperCase { image: image.to_owned(), path: path.to_owned() });
    }
    if last.contains(':') || image.contains('@') { Ok(image.to_owned()) } else { Ok(format!("{image}:latest")) }
}

/// An image's name with its registry, without tag and digest.
pub(super) fn repository(image: &str) -> String {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let name = name[last..].find(':').map_or(name, |colon| &name[..last + colon]);
    let is_host = |host: &str| {
        host == "localhost" || host.contains(['.', ':']) || host.chars().any(|letter| letter.is_ascii_uppercase())
    };
    let rest = match name.split_once('/') {
        Some((OLD_DOMAIN | DOMAIN, rest)) => rest,
        Some((host, _)) if is_host(host) => return name.to_owned(),
        _ => name,
    };
    if rest.contains('/') { format!("{DOMAIN}/{rest}") } else { format!("{DOMAIN}/{OFFICIAL}/{rest}") }
}

/// Checks an entry of `preloadedImagesVerificationAllowlist`. Upstream's `getAllowlistImagePattern`.
///
/// # Errors
/// Upstream's text.
pub(super) fn check_pattern(pattern: &str) -> Result<(), PatternError> {
    let own = || pattern.to_owned();
    if pattern != pattern.trim() {
        return Err(PatternError::Spaces(own()));
    }
    let (name, is_wildcard) = match pattern.strip_suffix('*') {
        Some(name) if name.ends_with('/') => (name, true),
        _ => (pattern, false),
    };
    match name {
        "" => Err(PatternError::Short(own())),
        name if name.contains('*') => Err(PatternError::Wildcard(own())),
        "/" if is_wildcard => Err(PatternError::NoHost),
        _ if is_wildcard => Ok(()),
        name if normalize(name).is_err() => Err(PatternError::NoImage),
        name if repository(name) != name => Err(PatternError::Tag(own())),
        _ => Ok(()),
    }
}

/// Reasons why an entry names no images.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternError {
    #[error("leading/trailing spaces are not allowed: {0}")]
    Spaces(String),
    #[error("the supplied pattern is too short: {0}")]
    Short(String),
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {0}")]
    Wildcard(String),
    #[error("at least registry hostname is required")]
    NoHost,
    #[error("failed to parse as an image name: invalid reference format")]
    NoImage,
    #[error("neither tag nor digest is accepted in an image reference: {0}")]
    Tag(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (image, expected) in [
            ("busybox", Some("busybox:latest")),
            ("a.b:5000/x/y:1", Some("a.b:5000/x/y:1")),
            ("x@sha256:00", Some("x@sha256:00")),
            ("", None),
            ("a b", None),
            ("Upper", None),
            ("x/", None),
        ] {
            assert_eq!(normalize(image).ok().as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn names_have_their_registry_and_no_tag_or_digest() {
        for (image, expected) in [
            ("busybox", "docker.io/library/busybox"),
            ("busybox:1", "docker.io/library/busybox"),
            ("docker.io/busybox", "docker.io/library/busybox"),
            ("index.docker.io/team/app:1", "docker.io/team/app"),
            ("team/app@sha256:00", "docker.io/team/app"),
            ("r.io:5000/x/y:1@sha256:00", "r.io:5000/x/y"),
            ("localhost/x:1", "localhost/x"),
            ("Host/x", "Host/x"),
        ] {
            assert_eq!(repository(image), expected, "{image}");
        }
    }

    #[test]
    fn patterns_name_images_or_all_below_a_path() {
        for (pattern, expected) in [
            ("r.io/team/*", None),
            ("docker.io/library/busybox", None),
            (" r.io/x", Some("leading/trailing spaces are not allowed:  r.io/x")),
            ("", Some("the supplied pattern is too short: ")),
            ("/*", Some("at least registry hostname is required")),
            ("r.io/*/x", Some("not a valid wildcard pattern, only patterns ending with '/*' are allowed: r.io/*/x")),
            ("r.io/x*", Some("not a valid wildcard pattern, only patterns ending with '/*' are allowed: r.io/x*")),
            ("r.io/X", Some("failed to parse as an image name: invalid reference format")),
            ("busybox", Some("neither tag nor digest is accepted in an image reference: busybox")),
            ("r.io/x:1", Some("neither tag nor digest is accepted in an image reference: r.io/x:1")),
        ] {
            let told = check_pattern(pattern).err().map(|error| error.to_string());
            assert_eq!(told.as_deref(), expected, "{pattern}");
        }
    }
}
