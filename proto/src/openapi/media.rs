//! Media types of requests and responses.

/// Media types of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Objects,
    Watchable,
    Anything,
    Log,
    Json,
    Keys,
}

/// Media types of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepts {
    Anything,
    Patches,
    Objects,
    Json,
    Nothing,
}

impl Media {
    /// Media types, as version 2 lists them.
    pub(super) fn types(self) -> &'static [&'static str] {
        const ALL: &[&str] = &[
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
            "application/json;stream=watch",
            "application/vnd.kubernetes.protobuf;stream=watch",
        ];
        match self {
            Self::Objects => &ALL[..3],
            Self::Watchable => ALL,
            Self::Anything => &["*/*"],
            Self::Log => &["text/plain", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"],
            Self::Json => &["application/json"],
            Self::Keys => &["application/jwk-set+json"],
        }
    }
}

impl Accepts {
    /// See [`Media::types`].
    pub(super) fn types(self) -> &'static [&'static str] {
        match self {
            Self::Anything => &["*/*"],
            Self::Patches => &[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
                "application/apply-patch+yaml",
            ],
            Self::Objects => Media::Objects.types(),
            Self::Json => &["application/json"],
            Self::Nothing => &[],
        }
    }
}
