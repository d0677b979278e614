//! CEL: expressions in webhook match conditions and admission policies. Compiled once, run on trees.
//!
//! Synchronous and pure: no expression can reach out of the values it is given.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cel::objects::{Key, Map};
use cel::{Context, Env, Program};
use parking_lot::Mutex;
use serde_json::Value;

/// Programs remembered.
const PROGRAMS: usize = 1024;

type Compiled = Result<Arc<Program>, String>;

fn environment() -> &'static Arc<Env> {
    static ENV: OnceLock<Arc<Env>> = OnceLock::new();
    ENV.get_or_init(|| {
        let mut env = Env::stdlib();
        for added in [env.add_extension(cel::extensions::strings), env.add_extension(cel::extensions::lists)] {
            if let Err(error) = added {
                tracing::error!(?error, "a library of functions for expressions is missing");
            }
        }
        Arc::new(env)
    })
}

fn compiled(expression: &str) -> Compiled {
    static KNOWN: OnceLock<Mutex<HashMap<String, Compiled>>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    if let Some(program) = known.lock().get(expression) {
        return program.clone();
    }
    let program = environment().compile(expression).map(Arc::new).map_err(|e| e.to_string());
    let mut known = known.lock();
    if known.len() >= PROGRAMS {
        known.clear();
    }
    known.insert(expression.to_owned(), program.clone());
    program
}

/// Whether an expression can be run at all.
pub(crate) fn check(expression: &str) -> Result<(), String> {
    compiled(expression).map(drop)
}

/// A tree as expressions see it: whole numbers are `int`.
fn convert(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(b) => cel::Value::Bool(*b),
        Value::Number(n) => match n.as_i64() {
            Some(i) => cel::Value::Int(i),
            None => cel::Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => cel::Value::String(Arc::new(s.clone())),
        Value::Array(list) => cel::Value::List(Arc::new(list.iter().map(convert).collect())),
        Value::Object(map) => {
            let entries: HashMap<Key, cel::Value> =
                map.iter().map(|(k, v)| (Key::from(k.clone()), convert(v))).collect();
            cel::Value::Map(Map { map: Arc::new(entries) })
        }
    }
}

/// The values expressions are about.
pub(crate) struct Scope {
    context: Context<'static, 'static>,
    variables: HashMap<Key, cel::Value>,
}

impl Scope {
    /// With named values.
    pub(crate) fn new(values: &[(&str, &Value)]) -> Self {
        let mut context = Context::with_env(environment().clone());
        for (name, value) in values {
            context.add_variable_from_value(*name, convert(value));
        }
        Self { context, variables: HashMap::new() }
    }

    /// Adds `variables.<name>`. One that cannot be computed is left out: whoever uses it fails.
    pub(super) fn define(&mut self, name: &str, expression: &str) {
        if let Ok(value) = self.run(expression) {
            self.variables.insert(Key::from(name.to_owned()), value);
        }
        let map = cel::Value::Map(Map { map: Arc::new(self.variables.clone()) });
        self.context.add_variable_from_value("variables", map);
    }

    fn run(&self, expression: &str) -> Result<cel::Value, String> {
        compiled(expression)?.execute(&self.context).map_err(|e| e.to_string())
    }

    /// The value of an expression as a tree.
    pub(crate) fn value(&self, expression: &str) -> Result<Value, String> {
        self.run(expression)?.json().map_err(|e| e.to_string())
    }

    /// The truth of an expression.
    pub(crate) fn truth(&self, expression: &str) -> Result<bool, String> {
        match self.run(expression)? {
            cel::Value::Bool(answer) => Ok(answer),
            _ => Err("must evaluate to bool".to_owned()),
        }
    }

    /// The text of an expression; `None` for null.
    pub(super) fn text(&self, expression: &str) -> Result<Option<String>, String> {
        match self.run(expression)? {
            cel::Value::String(text) => Ok(Some(text.as_ref().clone())),
            cel::Value::Null => Ok(None),
            _ => Err("must evaluate to string".to_owned()),
        }
    }
}

/// Whether all conditions are true. One that is false wins over one that fails.
pub(super) fn hold(conditions: &[Value], scope: &Scope) -> Result<bool, String> {
    let mut failure = None;
    for condition in conditions {
        match scope.truth(crate::access::tree::text(condition, "/expression")) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(why) => {
                let name = crate::access::tree::name_field(condition);
                failure = failure.or(Some(format!("match condition {name:?}: {why}")));
            }
        }
    }
    failure.map_or(Ok(true), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_policies_are_written_with() {
        let object = json!({"metadata": {"name": "web", "labels": {"app": "a"}}, "spec": {"replicas": 3,
            "template": {"spec": {"containers": [{"name": "c", "image": "reg.example.com/x:1"}, {"name": "d", "image": "other/x"}]}}}});
        let null = Value::Null;
        let mut scope = Scope::new(&[("object", &object), ("oldObject", &null)]);
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
            ("variables.broken == 1", Err(())),
            ("object.spec.replicas", Err(())),
            ("object.spec.(", Err(())),
        ] {
            assert_eq!(scope.truth(expression).map_err(drop), want, "{expression}");
        }
        assert_eq!(scope.text("'too many: ' + string(object.spec.replicas)"), Ok(Some("too many: 3".into())));
    }
}
