//! Expressions of this server: in policies, match conditions, and configuration of authentication and authorisation.
//! Answers for upstream's `pkg/cel/environment`, `CompositedCompiler.CompileAndStoreVariables`.
//!
//! Where an expression stands says what it may name ([`Dialect`]); a [`Scope`] holds the values, and what is left to
//! spend. Programs are remembered. Synchronous and pure. Messages are those of upstream's compiler and evaluator.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;
use shared::cel::{self, Budget, Declared, Extras, Fuel, Program, Type};
use shared::status::field::aggregate;

/// Programs remembered.
const PROGRAMS: usize = 1024;
/// Error text of an exhausted cost budget.
pub const EXHAUSTED: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

type Compiled = Result<Arc<Program>, ExpressionError>;

/// Error of an expression before it is run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// A text that cannot be compiled.
    #[error(transparent)]
    Rejected(#[from] cel::Rejected),
    /// A result of another type than is wanted.
    #[error("must evaluate to {wanted} but got {found}")]
    ResultType {
        /// The type that is wanted, or a list of them.
        wanted: &'static str,
        /// The type that it returns.
        found: String,
    },
    /// A result of this type, which is not truth and cannot turn out to be.
    #[error("must evaluate to bool or the unknown type, not {0}")]
    NeverBool(String),
}

/// Error of an expression that is run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// An exhausted cost budget of the request.
    #[error("{}", EXHAUSTED)]
    Exhausted,
    /// An expression that cannot be used.
    #[error(transparent)]
    Unusable(#[from] ExpressionError),
    /// An expression among several that cannot be used.
    #[error("compilation error: {0}")]
    Compilation(#[source] ExpressionError),
    /// An expression that fails on these values.
    #[error("expression '{expression}' resulted in error: {source}")]
    Failed {
        /// The expression.
        expression: String,
        /// Cause.
        source: cel::Error,
    },
    /// A rule is neither true nor false; this is the rule.
    #[error("cel expression evaluated to non-bool: {0}")]
    NotBool(String),
    /// A result that is neither text nor null.
    #[error(
        "valueExpression '{expression}' resulted in unsupported return type: {found}. Return type must be either string or null."
    )]
    NotText {
        /// The expression.
        expression: String,
        /// The type that it returned.
        found: String,
    },
    /// A result that JSON cannot hold.
    #[error(transparent)]
    NotJson(cel::Error),
    /// Match conditions that failed, each kind of failure once.
    #[error("{}", aggregate(.0))]
    Conditions(Vec<EvaluationError>),
}

/// Environment of an expression, which decides its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// In a validating policy or a webhook's match condition; whether there are `params`.
    Policy {
        /// The policy has parameters.
        params: bool,
    },
    /// In a mutating policy.
    Mutation {
        /// The policy has parameters.
        params: bool,
    },
    /// About the claims of a token.
    Claims,
    /// About the user a token names.
    User,
    /// About a request that is to be authorised.
    Review,
    /// About a device that a claim may be given.
    Device {
        /// Devices may be given to several claims.
        shared: bool,
    },
}

impl Dialect {
    fn declared(self) -> Declared {
        let one = |name: &str, of: Type| Declared::from([(name.to_owned(), of)]);
        match self {
            Self::Policy { params } | Self::Mutation { params } => {
                cel::admission::variables(&Type::Dyn, params.then_some(&Type::Dyn))
            }
            Self::Claims => one("claims", Type::map(Type::String, Type::Any)),
            Self::User => one("user", cel::admission::user()),
            Self::Review => one("request", review()),
            Self::Device { shared: false } => cel::device::variables(),
            Self::Device { shared: true } => cel::device::variables_of_shared(),
        }
    }

    fn extras(self) -> Extras {
        match self {
            Self::Device { .. } => cel::device::extras(),
            _ => Extras { patch: matches!(self, Self::Mutation { .. }), ..Extras::default() },
        }
    }
}

/// A request as webhooks for authorisation are asked about it.
fn review() -> Type {
    let requirement = Type::object(
        "kubernetes.SelectorRequirement",
        [("key", Type::String), ("operator", Type::String), ("values", Type::list(Type::String))],
    );
    let selector = |name| {
        let requirements = Type::list(requirement.clone());
        Type::object(name, [("rawSelector", Type::String), ("requirements", requirements)])
    };
    let mut of_resource: Vec<(&str, Type)> =
        ["namespace", "verb", "group", "version", "resource", "subresource", "name"].map(|n| (n, Type::String)).into();
    of_resource.push(("fieldSelector", selector("kubernetes.FieldSelectorAttributes")));
    of_resource.push(("labelSelector", selector("kubernetes.LabelSelectorAttributes")));
    let of_path = ["path", "verb"].map(|n| (n, Type::String));
    Type::object(
        "kubernetes.SubjectAccessReviewSpec",
        [
            ("resourceAttributes", Type::object("kubernetes.ResourceAttributes", of_resource)),
            ("nonResourceAttributes", Type::object("kubernetes.NonResourceAttributes", of_path)),
            ("user", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::String, Type::list(Type::String))),
            ("uid", Type::String),
        ],
    )
}

/// Expected type of an expression's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResultType {
    /// Anything.
    Any,
    /// Truth.
    Bool,
    /// Truth, or something that may turn out to be.
    PerhapsBool,
    /// Text.
    Text,
    /// Text or null.
    TextOrNull,
    /// `Object{...}`
    Object,
    /// A list of `JSONPatch{...}`
    Patches,
}

impl ResultType {
    fn check(self, got: &Type) -> Result<(), ExpressionError> {
        let found = got.full();
        let (wanted, fits) = match self {
            Self::Any => return Ok(()),
            Self::PerhapsBool if matches!(got, Type::Bool | Type::Any) => return Ok(()),
            Self::PerhapsBool => return Err(ExpressionError::NeverBool(found)),
            Self::TextOrNull => ("one of [string null_type]", matches!(got, Type::String | Type::Null)),
            Self::Bool => ("bool", found == "bool"),
            Self::Text => ("string", found == "string"),
            Self::Object => ("Object", found == "Object"),
            Self::Patches => ("list(JSONPatch)", found == "list(JSONPatch)"),
        };
        if fits { Ok(()) } else { Err(ExpressionError::ResultType { wanted, found }) }
    }
}

/// The variables an expression may name: those of its place, and those a policy declares.
#[derive(Clone, Debug)]
pub struct Names {
    dialect: Dialect,
    declared: Declared,
    /// Tells sets of declared variables apart.
    mark: String,
}

impl Names {
    /// Declares the variables of an environment.
    pub fn of(dialect: Dialect) -> Self {
        Self { dialect, declared: dialect.declared(), mark: String::new() }
    }

    /// From here on expressions may speak of `variables`.
    pub fn with_variables(&mut self) {
        cel::admission::declare_none(&mut self.declared);
        self.mark.push(';');
    }

    /// Declares the same variables without the authorizer, for message expressions.
    #[must_use]
    pub fn without_authorizer(&self) -> Self {
        let mut names = self.clone();
        names.declared.retain(|name, _| !name.starts_with("authorizer"));
        names.mark.push('-');
        names
    }

    /// From here on expressions may make objects and patches.
    pub fn with_patches(&mut self) {
        if let Dialect::Policy { params } = self.dialect {
            self.dialect = Dialect::Mutation { params };
        }
    }

    /// Declares a variable and returns its program.
    pub fn declare(&mut self, name: &str, expression: &str) -> Compiled {
        let program = self.compile(expression, ResultType::Any);
        let of = program.as_ref().map_or(Type::Dyn, |p| p.result().clone());
        self.mark.push_str(&format!("{name}:{of};"));
        cel::admission::declare(&mut self.declared, name, &of);
        program
    }

    /// Compiles an expression, or remembers it; the error is for whoever wrote it.
    pub fn compile(&self, expression: &str, wanted: ResultType) -> Compiled {
        type Known = HashMap<(Dialect, String, String), Compiled>;
        static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
        let known = KNOWN.get_or_init(Mutex::default);
        let key = (self.dialect, self.mark.clone(), expression.to_owned());
        let remembered = known.lock().get(&key).cloned();
        let program = remembered.unwrap_or_else(|| {
            let made = Program::compile_with(expression, &self.declared, self.dialect.extras());
            let made = made.map(Arc::new).map_err(ExpressionError::Rejected);
            let mut known = known.lock();
            if known.len() >= PROGRAMS {
                known.clear();
            }
            known.insert(key, made.clone());
            made
        })?;
        wanted.check(program.result())?;
        Ok(program)
    }
}

/// Compilation error of an expression; `None` when it is valid.
pub fn problem(dialect: Dialect, expression: &str, wanted: ResultType) -> Option<ExpressionError> {
    Names::of(dialect).compile(expression, wanted).err()
}

/// The values expressions are about, and what is left to spend.
pub struct Scope<'a> {
    names: Names,
    values: cel::Scope<'a>,
    budget: Budget,
}

impl<'a> Scope<'a> {
    /// With named values.
    pub fn new(dialect: Dialect, values: &[(&str, &'a Value)]) -> Self {
        Self { names: Names::of(dialect), values: cel::Scope::of(values), budget: Budget::new(cel::RUNTIME_BUDGET) }
    }

    /// Names another value.
    pub fn set(&mut self, name: &str, value: cel::Value<'a>) {
        self.values.set(name, value);
    }

    /// Remaining budget.
    pub fn remaining_budget(&self) -> u64 {
        self.budget.left()
    }

    /// Starts to spend from another budget.
    pub fn spend_from(&mut self, budget: u64) {
        self.budget = Budget::new(budget);
    }

    /// Reports whether the budget is exhausted.
    pub fn is_exhausted(&self) -> bool {
        self.budget.is_exhausted()
    }

    /// From here on there are `variables`.
    pub fn with_variables(&mut self) {
        self.names.with_variables();
    }

    /// Adds `variables.<name>`, computed when it is asked for. One that cannot be computed fails whoever uses it.
    pub fn define(&mut self, name: &str, expression: &str) {
        let program = self.names.declare(name, expression);
        self.values.define(&format!("variables.{name}"), program);
    }

    /// Runs an expression.
    pub fn run(&mut self, expression: &str, wanted: ResultType) -> Result<cel::Value<'a>, EvaluationError> {
        let program = self.names.compile(expression, wanted)?;
        self.spend(expression, &program)
    }

    /// Runs one of several expressions: a problem of each is told for itself.
    fn run_one(&mut self, expression: &str, wanted: ResultType) -> Result<cel::Value<'a>, EvaluationError> {
        let program = self.names.compile(expression, wanted).map_err(EvaluationError::Compilation)?;
        self.spend(expression, &program)
    }

    fn spend(&mut self, expression: &str, program: &Program) -> Result<cel::Value<'a>, EvaluationError> {
        let answer = program.evaluate(&self.values, &mut self.budget);
        if self.budget.is_exhausted() {
            return Err(EvaluationError::Exhausted);
        }
        answer.map_err(|source| EvaluationError::Failed { expression: expression.to_owned(), source })
    }

    /// The value of an expression as a tree.
    pub fn value(&mut self, expression: &str) -> Result<Value, EvaluationError> {
        let value = self.run(expression, ResultType::Any)?;
        value.tree(&mut Fuel::default()).map_err(EvaluationError::NotJson)
    }

    /// The truth of a rule; the error names the rule.
    pub fn evaluate_bool(&mut self, expression: &str) -> Result<bool, EvaluationError> {
        match self.run_one(expression, ResultType::Bool)? {
            cel::Value::Bool(answer) => Ok(answer),
            _ => Err(EvaluationError::NotBool(expression.to_owned())),
        }
    }

    /// The text of an expression; `None` for null.
    pub fn text(&mut self, expression: &str, wanted: ResultType) -> Result<Option<String>, EvaluationError> {
        match self.run_one(expression, wanted)? {
            cel::Value::String(text) => Ok(Some(text.to_string())),
            cel::Value::Null => Ok(None),
            other => {
                let (expression, found) = (expression.to_owned(), other.type_name().to_string());
                Err(EvaluationError::NotText { expression, found })
            }
        }
    }
}

/// Evaluates match conditions within their own budget; reports whether all are true. One that is false wins over those
/// that fail.
pub fn conditions_hold(conditions: &[Value], scope: &mut Scope<'_>) -> Result<bool, EvaluationError> {
    scope.spend_from(cel::MATCH_CONDITIONS_BUDGET);
    let mut failures = Vec::new();
    for condition in conditions {
        match scope.evaluate_bool(crate::machinery::tree::text(condition, "/expression")) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(why) if failures.contains(&why) => {}
            Err(why) => failures.push(why),
        }
        if scope.is_exhausted() {
            break;
        }
    }
    scope.spend_from(cel::RUNTIME_BUDGET);
    match failures.len() {
        0 => Ok(true),
        1 => Err(failures.remove(0)),
        _ => Err(EvaluationError::Conditions(failures)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const POLICY: Dialect = Dialect::Policy { params: false };

    #[test]
    fn environments_of_expressions() {
        let object = json!({"metadata": {"name": "web", "labels": {"app": "a"}}, "spec": {"replicas": 3,
            "template": {"spec": {"containers": [{"name": "c", "image": "reg.example.com/x:1"}, {"name": "d", "image": "other/x"}]}}}});
        let null = Value::Null;
        let mut scope = Scope::new(POLICY, &[("object", &object), ("oldObject", &null)]);
        scope.with_variables();
        scope.define("images", "object.spec.template.spec.containers.map(c, c.image)");
        scope.define("broken", "object.nope.nope");
        for (expression, want) in [
            ("object.spec.replicas <= 5", Ok(true)),
            ("object.spec.replicas == 3", Ok(true)),
            ("oldObject == null || object.spec.replicas == oldObject.spec.replicas", Ok(true)),
            ("has(object.spec.paused)", Ok(false)),
            ("object.metadata.name.startsWith('we')", Ok(true)),
            ("object.metadata.name.matches('^[a-z]+$')", Ok(true)),
            ("object.spec.template.spec.containers.all(c, c.image.startsWith('reg.example.com/'))", Ok(false)),
            ("'app' in object.metadata.labels", Ok(true)),
            ("variables.images.exists(i, i == 'other/x')", Ok(true)),
            ("size(variables.images) == 2", Ok(true)),
            ("object.metadata.name.upperAscii() == 'WEB'", Ok(true)),
            ("quantity('1Gi').isGreaterThan(quantity('1M')) && isIP('10.0.0.1')", Ok(true)),
            ("variables.broken == 1", Err(())),
            ("object.spec.replicas", Err(())),
            ("object.spec.(", Err(())),
        ] {
            assert_eq!(scope.evaluate_bool(expression).map_err(drop), want, "{expression}");
        }
        let text = scope.text("'too many: ' + string(object.spec.replicas)", ResultType::Text);
        assert_eq!(text, Ok(Some("too many: 3".into())));
        assert_eq!(
            scope.evaluate_bool("variables.broken == 1"),
            Err(EvaluationError::Failed {
                expression: "variables.broken == 1".to_owned(),
                source: cel::Error::Failed(
                    "composited variable \"broken\" fails to evaluate: no such key: nope".to_owned()
                )
            })
        );
    }

    #[test]
    fn expressions_have_a_cost_limit() {
        let object = json!({"list": (0..2_000).collect::<Vec<_>>()});
        let mut scope = Scope::new(POLICY, &[("object", &object)]);
        let once = "object.list.all(a, object.list.all(b, a + b >= 0))";
        assert_eq!(
            scope.evaluate_bool(once).map_err(|e| e.to_string()),
            Err(format!("expression '{once}' resulted in error: operation cancelled: actual cost limit exceeded"))
        );
        for _ in 0..8 {
            assert!(scope.evaluate_bool(once).is_err());
        }
        assert_eq!(scope.evaluate_bool(once), Err(EvaluationError::Exhausted));
    }

    #[test]
    fn expressions_are_checked() {
        for (expression, want) in [
            ("object.a == 1 && [1].all(x, x > 0) && int(object.b) > 0", None),
            (
                "object.",
                Some(
                    "compilation failed: ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'\n | object.\n | .......^",
                ),
            ),
            (
                "1 == foo",
                Some(
                    "compilation failed: ERROR: <input>:1:6: undeclared reference to 'foo' (in container '')\n | 1 == foo\n | .....^",
                ),
            ),
            ("object.a", Some("must evaluate to bool but got dyn")),
            ("request.operation", Some("must evaluate to bool but got string")),
            (
                "params.x == 1",
                Some(
                    "compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.x == 1\n | ^",
                ),
            ),
        ] {
            let got = problem(POLICY, expression, ResultType::Bool).map(|e| e.to_string());
            assert_eq!(got.as_deref(), want, "{expression}");
        }
        assert_eq!(problem(Dialect::Claims, "claims.sub.startsWith('a')", ResultType::Bool), None);
        assert_eq!(problem(Dialect::Claims, "dyn(claims.l).all(x, x == claims.a.b[0])", ResultType::Bool), None);
        assert!(
            problem(Dialect::Claims, "claims.l.all(x, x == '')", ResultType::Bool)
                .is_some_and(|p| p.to_string().contains("expression of type 'any' cannot be range of a comprehension"))
        );
        assert_eq!(problem(Dialect::User, "!user.username.startsWith('system:')", ResultType::Bool), None);
        assert!(
            problem(Dialect::User, "user.name == ''", ResultType::Bool)
                .is_some_and(|p| p.to_string().contains("undefined field"))
        );
        assert_eq!(problem(Dialect::Review, "request.resourceAttributes.verb == 'get'", ResultType::Bool), None);
        let patches = "[JSONPatch{op: 'add', path: '/a', value: 1}]";
        assert_eq!(problem(Dialect::Mutation { params: true }, patches, ResultType::Patches), None);
        assert_eq!(problem(Dialect::Mutation { params: true }, "Object{}", ResultType::Object), None);
    }
}
