//! CEL: the one environment expressions run in, wherever they stand: rules of custom resources, admission policies, match
//! conditions, authentication and authorisation configuration, device selectors.
//!
//! In come the text of an expression and the variables it may name with their types ([`Declared`]); out comes a
//! [`Program`], or a report in upstream's words. A program runs on values ([`Scope`]) under a cost limit that upstream
//! counts the same way. Synchronous and pure: no expression can reach out of the values it is given, and none runs
//! without a bound. The parser is that of the `cel` crate; types, functions, evaluation and cost are here. Nothing is made
//! before the first expression is compiled. Answers for `k8s.io/apiserver/pkg/cel` and `cel-go`.

pub mod admission;
mod check;
mod cost;
pub mod device;
mod dispatch;
mod estimate;
mod eval;
mod library;
mod node;
mod parse;
mod paths;
mod plan;
mod types;
mod value;
mod words;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::metrics::{self, Histogram};

pub use estimate::{Estimate, EstimatePlace, MAX_ELEMENT_BYTES};
pub use library::authorizer::{Authorities, Decision, authorizer};
pub use library::format::fits as format_problems;
pub use library::quantity::quantity;
pub use library::semver::semver;
pub use library::{duration, timestamp};
pub use types::{Fields, Shape, Type};
pub use value::{Answer, Key, Made, Map, Opaque, Text, Value};
pub use words::{RESERVED, escape, is_identifier};

/// Longest expression that is compiled, in bytes.
pub const MAX_EXPRESSION: usize = 100 * 1024;
/// Maximum cost of one evaluation of an expression.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// Maximum cost of all evaluations on one object, or for one policy.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// Maximum cost of all match conditions of one webhook or policy.
pub const MATCH_CONDITIONS_BUDGET: u64 = RUNTIME_BUDGET / 4;
/// Longest message an expression may make, in bytes.
pub const MAX_MESSAGE: usize = 5 * 1024;
/// Values compared or copied in one step of an expression, whatever upstream's cost counts for it: shared parts of lists
/// can be met again and again.
const MAX_STEP: u64 = 10_000_000;

/// Errors of evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The expression fails on these values.
    Failed(String),
    /// The evaluation was cancelled.
    Cancelled,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    fn overload() -> Self {
        Self::new("no such overload")
    }

    fn no_key(key: &str) -> Self {
        Self::new(format!("no such key: {key}"))
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(message) => f.write_str(message),
            Self::Cancelled => f.write_str("operation cancelled: actual cost limit exceeded"),
        }
    }
}

/// Bounds the work inside of one step.
#[derive(Debug)]
pub struct Fuel(u64);

impl Default for Fuel {
    fn default() -> Self {
        Self(MAX_STEP)
    }
}

impl Fuel {
    fn burn(&mut self, n: u64) -> Result<(), Error> {
        self.0 = self.0.checked_sub(n).ok_or(Error::Cancelled)?;
        Ok(())
    }
}

/// Variables and their types. A name may have dots: `authorizer.requestResource`, `variables.x`.
pub type Declared = BTreeMap<String, Type>;

/// Libraries of an environment beside the common ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    /// `cel.bind`.
    pub bind: bool,
    /// `Object{}`, `JSONPatch{}` and `jsonpatch.escapeKey`.
    pub patch: bool,
}

/// Seconds that compiling and evaluating take.
struct Times {
    compilation: Histogram,
    evaluation: Histogram,
}

static TIMES: LazyLock<Times> = LazyLock::new(|| {
    let of = |name: &str, help: &str| {
        metrics::histogram(name, help, &[], metrics::default_buckets()).with_label_values::<&str>(&[])
    };
    Times {
        compilation: of("apiserver_cel_compilation_duration_seconds", "[BETA] CEL compilation time in seconds."),
        evaluation: of("apiserver_cel_evaluation_duration_seconds", "[BETA] CEL evaluation time in seconds."),
    }
});

/// Errors of compiling an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// A syntax or type error, with its position.
    #[error("compilation failed: {0}")]
    Compilation(String),
    /// A constant part fails.
    #[error("program instantiation failed: {0}")]
    Program(String),
}

fn checked(expression: &str, variables: &Declared, extras: Extras) -> Result<(node::Node, Vec<String>), String> {
    let parsed = parse::parse(expression, extras)?;
    check::check(&parsed, variables, extras)
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    root: node::Node,
    mentioned: Vec<String>,
}

impl Program {
    /// Compiles and checks an expression.
    pub fn compile(expression: &str, variables: &Declared) -> Result<Self, Rejected> {
        Self::compile_with(expression, variables, Extras::default())
    }

    /// [`Self::compile`] where there is more than everywhere.
    pub fn compile_with(expression: &str, variables: &Declared, extras: Extras) -> Result<Self, Rejected> {
        let _timed = TIMES.compilation.start_timer();
        parse::on_a_large_stack(expression, || {
            let (mut root, mentioned) = checked(expression, variables, extras).map_err(Rejected::Compilation)?;
            plan::plan(&mut root).map_err(Rejected::Program)?;
            Ok(Self { root, mentioned })
        })
        .unwrap_or_else(|why| Err(Rejected::Compilation(why)))
    }

    /// Checks an expression that will not be run: its type, or a report with the places of what is wrong.
    pub fn check(expression: &str, variables: &Declared) -> Result<Type, String> {
        let extras = Extras::default();
        let checked = || checked(expression, variables, extras).map(|(root, _)| root.of);
        parse::on_a_large_stack(expression, checked).unwrap_or_else(Err)
    }

    /// Reports whether the expression mentions a variable.
    #[must_use]
    pub fn mentions(&self, variable: &str) -> bool {
        let below = |m: &String| m.strip_prefix(variable).is_some_and(|r| r.is_empty() || r.starts_with('.'));
        self.mentioned.iter().any(below)
    }

    /// The type of the result.
    #[must_use]
    pub fn result(&self) -> &Type {
        &self.root.of
    }

    /// Estimates the cost of an evaluation. `sizes` returns the maximum number of elements, entries or characters at a
    /// path below a variable; `None` when it is unknown.
    #[must_use]
    pub fn estimate(&self, sizes: &dyn Fn(&[EstimatePlace<'_>]) -> Option<u64>) -> Estimate {
        estimate::estimate(&self.root, sizes)
    }

    /// Runs it. The cost is told even when there is no value.
    pub fn run<'a>(&self, scope: &Scope<'a>, limit: u64) -> (Answer<'a>, u64) {
        eval::run(&self.root, scope, limit)
    }

    /// Runs it within the limit of one call and takes the cost from a budget.
    pub fn evaluate<'a>(&self, scope: &Scope<'a>, budget: &mut Budget) -> Answer<'a> {
        scope.extra.set(0);
        let _timed = TIMES.evaluation.start_timer();
        let (answer, cost) = self.run(scope, PER_CALL_LIMIT);
        budget.spend(cost.saturating_add(scope.extra.take()));
        answer
    }
}

/// Remaining cost budget.
#[derive(Debug)]
pub struct Budget {
    left: Option<u64>,
}

impl Budget {
    /// So much.
    #[must_use]
    pub fn new(total: u64) -> Self {
        Self { left: Some(total) }
    }

    /// Reports whether more was spent than available.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.left.is_none()
    }

    /// Remaining cost.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.unwrap_or(0)
    }

    /// Takes from it.
    pub fn spend(&mut self, cost: u64) {
        self.left = self.left.and_then(|l| l.checked_sub(cost));
    }
}

/// A variable that is an expression: computed once, when it is first asked for.
#[derive(Debug)]
struct Lazy<'a> {
    program: Result<Arc<Program>, String>,
    value: OnceCell<Answer<'a>>,
}

/// Values by name.
#[derive(Debug, Default)]
pub struct Scope<'a> {
    values: BTreeMap<String, Value<'a>>,
    lazy: BTreeMap<String, Lazy<'a>>,
    /// Cost of variables that were computed lazily.
    extra: Cell<u64>,
    /// Variables that are being computed.
    open: RefCell<Vec<String>>,
}

impl<'a> Scope<'a> {
    /// With these trees.
    #[must_use]
    pub fn of(values: &[(&str, &'a serde_json::Value)]) -> Self {
        let mut scope = Self::default();
        for (name, tree) in values {
            scope.set(name, Value::of(tree));
        }
        scope
    }

    /// Names a value.
    pub fn set(&mut self, name: &str, value: Value<'a>) {
        self.values.insert(name.to_owned(), value);
    }

    /// Names an expression. One that cannot be computed fails whoever asks for it.
    pub fn define(&mut self, name: &str, program: Result<Arc<Program>, String>) {
        self.lazy.insert(name.to_owned(), Lazy { program, value: OnceCell::new() });
    }

    fn get(&self, name: &str) -> Answer<'a> {
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        let Some(lazy) = self.lazy.get(name) else {
            return Err(Error::new(format!("no such attribute(s): {name}")));
        };
        let fails = |how: &str, why: &dyn std::fmt::Display| {
            let short = name.rsplit('.').next().unwrap_or(name);
            Error::new(format!("composited variable {short:?} fails to {how}: {why}"))
        };
        if let Some(known) = lazy.value.get() {
            return known.clone();
        }
        if self.open.borrow().iter().any(|n| n == name) {
            return Err(fails("evaluate", &"it asks for itself"));
        }
        self.open.borrow_mut().push(name.to_owned());
        let answer = match &lazy.program {
            Ok(program) => {
                let (answer, cost) = program.run(self, PER_CALL_LIMIT);
                self.extra.set(self.extra.get().saturating_add(cost));
                answer.map_err(|e| fails("evaluate", &e))
            }
            Err(why) => Err(fails("compile", why)),
        };
        self.open.borrow_mut().pop();
        lazy.value.get_or_init(|| answer).clone()
    }
}

#[cfg(test)]
mod tests;
