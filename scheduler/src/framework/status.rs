//! Status that a plugin answers with. Answers for upstream's `Status`.

use std::borrow::Cow;
use std::fmt;

use crate::metrics::ExtensionPointResult;

/// The kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Code {
    /// Fine.
    #[default]
    Success,
    /// Something broke; the pod is retried after a back-off.
    Error,
    /// Not here, not now; pushing other pods out may help.
    Unschedulable,
    /// Not here, whoever is pushed out.
    UnschedulableAndUnresolvable,
    /// Permit: not yet.
    Wait,
    /// The plugin has nothing to say about this pod.
    Skip,
    /// Waiting for something outside.
    Pending,
}

impl Code {
    /// Label of the status in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::Error => "Error",
            Self::Unschedulable => "Unschedulable",
            Self::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
            Self::Wait => "Wait",
            Self::Skip => "Skip",
            Self::Pending => "Pending",
        }
    }
}

/// A reason: mostly a fixed text, so that saying no to thousands of nodes allocates nothing.
pub type Reason = Cow<'static, str>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Reasons {
    #[default]
    None,
    One(Reason),
    Many(Vec<Reason>),
}

/// An answer with its reasons and the plugin that gave it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    code: Code,
    reasons: Reasons,
    /// Name of the plugin; filled in by the framework.
    pub plugin: &'static str,
}

impl Status {
    /// Fine.
    pub const SUCCESS: Self = Self { code: Code::Success, reasons: Reasons::None, plugin: "" };
    /// Nothing to say.
    pub const SKIP: Self = Self { code: Code::Skip, reasons: Reasons::None, plugin: "" };

    /// An answer with one reason.
    pub fn new(code: Code, reason: impl Into<Reason>) -> Self {
        Self { code, reasons: Reasons::One(reason.into()), plugin: "" }
    }

    /// [`Code::Unschedulable`].
    pub fn unschedulable(reason: impl Into<Reason>) -> Self {
        Self::new(Code::Unschedulable, reason)
    }

    /// [`Code::UnschedulableAndUnresolvable`].
    pub fn unresolvable(reason: impl Into<Reason>) -> Self {
        Self::new(Code::UnschedulableAndUnresolvable, reason)
    }

    /// [`Code::Error`].
    pub fn error(reason: impl Into<Reason>) -> Self {
        Self::new(Code::Error, reason)
    }

    /// An answer with any number of reasons.
    pub fn with_reasons(code: Code, mut reasons: Vec<Reason>) -> Self {
        let reasons = match reasons.len() {
            0 => Reasons::None,
            1 => reasons.pop().map_or(Reasons::None, Reasons::One),
            _ => Reasons::Many(reasons),
        };
        Self { code, reasons, plugin: "" }
    }

    /// Names the plugin.
    #[must_use]
    pub fn by(mut self, plugin: &'static str) -> Self {
        self.plugin = plugin;
        self
    }

    /// Names the plugin that gave the answer, and in the text of an error the extension point, too.
    pub fn failed_in(self, point: &str, plugin: &'static str) -> Self {
        match self.code {
            Code::Error => Self::error(format!("running {point} plugin {plugin:?}: {self}")).by(plugin),
            _ => self.by(plugin),
        }
    }

    /// The kind of answer.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Fine?
    pub fn is_success(&self) -> bool {
        self.code == Code::Success
    }

    /// Nothing to say?
    pub fn is_skip(&self) -> bool {
        self.code == Code::Skip
    }

    /// A no, as opposed to an error.
    pub fn is_rejected(&self) -> bool {
        matches!(self.code, Code::Unschedulable | Code::UnschedulableAndUnresolvable | Code::Pending)
    }

    /// The reasons.
    pub fn reasons(&self) -> &[Reason] {
        match &self.reasons {
            Reasons::None => &[],
            Reasons::One(one) => std::slice::from_ref(one),
            Reasons::Many(many) => many,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons().join(", "))
    }
}

impl ExtensionPointResult for Status {
    fn label(&self) -> &'static str {
        self.code().name()
    }
}

impl<T> ExtensionPointResult for Result<T, Status> {
    fn label(&self) -> &'static str {
        self.as_ref().err().map_or("Success", |s| s.code().name())
    }
}

impl<T> ExtensionPointResult for (T, Status) {
    fn label(&self) -> &'static str {
        self.1.label()
    }
}
