//! Compiled expressions, and the values that they run on.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::environment::{Declared, Extras};
use super::error::{CompileError, Error, Rejected};
use super::estimate::{self, Estimate, EstimatePlace};
use super::limits::{Budget, PER_CALL_LIMIT};
use super::types::Type;
use super::value::{Answer, Value};
use super::{check, eval, node, parse, plan};
use crate::metrics::{self, Histogram};

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

fn checked(expression: &str, variables: &Declared, extras: Extras) -> Result<(node::Node, Vec<String>), CompileError> {
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
            let (mut root, mentioned) = checked(expression, variables, extras)?;
            plan::plan(&mut root)?;
            Ok(Self { root, mentioned })
        })
        .unwrap_or_else(|why| Err(why.into()))
    }

    /// Checks an expression that will not be run, and returns its type.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn check(expression: &str, variables: &Declared) -> Result<Type, CompileError> {
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

/// A variable that is an expression: computed once, when it is first asked for.
#[derive(Debug)]
struct Lazy<'a> {
    program: Result<Arc<Program>, Error>,
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
    pub fn define(&mut self, name: &str, program: Result<Arc<Program>, impl std::fmt::Display>) {
        let program = program.map_err(Error::new);
        self.lazy.insert(name.to_owned(), Lazy { program, value: OnceCell::new() });
    }

    pub(super) fn get(&self, name: &str) -> Answer<'a> {
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
