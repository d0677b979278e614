//! Faults of a profile.

/// Faults of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No such plugin.
    #[error("plugin {0:?} does not exist")]
    Unknown(String),
    /// Arguments that the plugin does not understand.
    #[error("initializing plugin {0:?}: {1}")]
    Args(&'static str, String),
    /// A plugin at a point that it does not implement.
    #[error("plugin {0:?} does not extend {1} plugin")]
    Point(String, &'static str),
    /// Not exactly one queue sort plugin.
    #[error("only one queue sort plugin required for profile with scheduler name {0:?}, but got {1}")]
    QueueSort(String, usize),
    /// No bind plugin.
    #[error("at least one bind plugin is needed for profile with scheduler name {0:?}")]
    Bind(String),
    /// Two profiles of one name.
    #[error("duplicate profile with scheduler name {0:?}")]
    Duplicate(String),
}
