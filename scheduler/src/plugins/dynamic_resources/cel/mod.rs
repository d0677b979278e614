//! Device selectors: CEL over `device.driver`, `device.attributes[domain].name` and `device.capacity[domain].name`, with
//! quantities, semantic versions and `cel.bind` beside the standard library.
//!
//! Expressions are compiled once and run on one device at a time; nothing is made before the first claim needs it.

mod device;
mod quantity;
mod semantic;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cel::common::ast::{ComprehensionExpr, Expr, ListExpr, LiteralValue};
use cel::common::types::CelBool;
use cel::parser::Macro;
use cel::{Context, Env, Program};
use parking_lot::Mutex;

use crate::model::devices::Device;

/// Programs remembered.
const PROGRAMS: usize = 256;

fn environment() -> &'static Arc<Env> {
    static ENV: OnceLock<Arc<Env>> = OnceLock::new();
    ENV.get_or_init(|| {
        let mut env = Env::stdlib();
        let added = [
            env.add_extension(cel::extensions::strings),
            env.add_extension(cel::extensions::lists),
            quantity::library(&mut env),
            semantic::library(&mut env),
            env.add_macro(bind()),
        ];
        for error in added.into_iter().filter_map(Result::err) {
            tracing::error!(?error, "a library of functions for device selectors is missing");
        }
        Arc::new(env)
    })
}

/// `cel.bind(name, value, expression)`: a name for a value, as a loop that never runs.
fn bind() -> Macro {
    Macro::receiver("bind", 3, |make, target, args| {
        let on_cel = matches!(target.as_ref().map(|t| &t.expr), Some(Expr::Ident(name)) if name == "cel");
        if !on_cel || args.len() != 3 {
            return Ok(None);
        }
        let Expr::Ident(name) = args[0].expr.clone() else {
            return Err(make.new_error(args[0].id, "cel.bind() variable names must be simple identifiers"));
        };
        let (Some(result), Some(value)) = (args.pop(), args.pop()) else { return Ok(None) };
        let nothing = make.next_expr(Expr::List(ListExpr { elements: Vec::new(), ..ListExpr::default() }));
        let never = make.next_expr(Expr::Literal(LiteralValue::Boolean(CelBool::from(false))));
        let step = make.next_expr(Expr::Ident(name.clone()));
        Ok(Some(make.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
            iter_range: nothing,
            iter_var: "#unused".to_owned(),
            iter_var2: None,
            accu_var: name,
            accu_init: value,
            loop_cond: never,
            loop_step: step,
            result,
        })))))
    })
}

/// Why a selector gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// It is no expression.
    Compile(String),
    /// It failed on this device.
    Run(String),
}

type Compiled = Result<Arc<Program>, String>;

/// Compiled selectors.
#[derive(Default)]
pub(super) struct Selectors(Mutex<HashMap<String, Compiled>>);

impl Selectors {
    fn compiled(&self, expression: &str) -> Compiled {
        let mut known = self.0.lock();
        if let Some(program) = known.get(expression) {
            return program.clone();
        }
        let program = environment().compile(expression).map(Arc::new).map_err(|e| e.to_string());
        if known.len() >= PROGRAMS {
            known.clear();
        }
        known.insert(expression.to_owned(), program.clone());
        program
    }

    /// Whether a device matches.
    pub(super) fn matches(&self, expression: &str, driver: &str, device: &Device) -> Result<bool, Failed> {
        let program = self.compiled(expression).map_err(|e| Failed::Compile(format!("compilation failed: {e}")))?;
        let input = device::Input::new(driver, device).map_err(Failed::Run)?;
        let mut context = Context::with_env(Arc::clone(environment()));
        context.add_variable_as_val("device", Box::new(input));
        match program.execute(&context) {
            Ok(cel::Value::Bool(answer)) => Ok(answer),
            Ok(other) => {
                let kind = other.type_of();
                Err(Failed::Run(format!(
                    "CEL result of type {kind} could not be converted to bool: type conversion error from '{kind}' to 'bool'"
                )))
            }
            Err(e) => Err(Failed::Run(e.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Inventory;
    use serde_json::json;

    fn answer(expression: &str) -> Result<bool, Failed> {
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0",
                "attributes": {"model": {"string": "A100"}, "cores": {"int": 108}, "mig": {"bool": false},
                    "driverVersion": {"version": "12.4.1-rc.1"}, "other.example.com/numa": {"int": 1}},
                "capacity": {"memory": {"value": "40Gi"}}}]}});
        let slice = Arc::new(serde_json::from_value(slice).expect("slice"));
        let inventory = Inventory::of(&[slice]);
        let node = crate::testing::node("n").base();
        let pools = inventory.pools(&node);
        Selectors::default().matches(expression, pools[0].driver, &pools[0].slices[0].devices[0])
    }

    #[test]
    fn what_selectors_are_written_with() {
        for (expression, want) in [
            ("device.driver == 'gpu.example.com'", true),
            ("device.attributes['gpu.example.com'].model == 'A100'", true),
            ("device.attributes[\"gpu.example.com\"].cores >= 100", true),
            ("!device.attributes['gpu.example.com'].mig", true),
            ("device.attributes['other.example.com'].numa == 1", true),
            // A domain that is not there is empty, not an error.
            ("has(device.attributes['nobody.example.com'].model)", false),
            ("'model' in device.attributes['gpu.example.com']", true),
            ("'nope' in device.attributes['nobody.example.com']", false),
            ("device.attributes['nobody.example.com'].?model.orValue('x') == 'x'", true),
            ("device.capacity['gpu.example.com'].memory.compareTo(quantity('10Gi')) >= 0", true),
            ("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('40Gi'))", false),
            ("device.capacity['gpu.example.com'].memory.isLessThan(quantity('40.5Gi'))", true),
            ("device.capacity['gpu.example.com'].memory == quantity('40960Mi')", true),
            ("quantity('2').add(quantity('500m')).sub(1).compareTo(quantity('1500m')) == 0", true),
            (
                "quantity('50k').isInteger() && quantity('50k').asInteger() == 50000 && quantity('-1').sign() == -1",
                true,
            ),
            ("isQuantity('1Mi') && !isQuantity('1Xi')", true),
            ("device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('12.4.0'))", true),
            ("device.attributes['gpu.example.com'].driverVersion.isLessThan(semver('12.4.1'))", true),
            ("device.attributes['gpu.example.com'].driverVersion.compareTo(semver('12.4.1-rc.1+build')) == 0", true),
            ("device.attributes['gpu.example.com'].driverVersion.major() == 12", true),
            (
                "isSemver('1.0.0') && !isSemver('v1.0') && isSemver('v1.0', true) && semver('v01.2', true) == semver('1.2.0')",
                true,
            ),
            ("cel.bind(gpu, device.attributes['gpu.example.com'], gpu.model == 'A100' && gpu.cores > 5)", true),
            ("device.attributes['gpu.example.com'].model.lowerAscii() == 'a100'", true),
            ("device.attributes['gpu.example.com'].model.matches('^A[0-9]+$')", true),
        ] {
            assert_eq!(answer(expression), Ok(want), "{expression}");
        }
    }

    #[test]
    fn failures() {
        assert!(matches!(answer("device.attributes["), Err(Failed::Compile(_))));
        assert!(matches!(answer("device.attributes['gpu.example.com'].nope == 1"), Err(Failed::Run(_))));
        assert!(matches!(answer("device.driver"), Err(Failed::Run(e)) if e.contains("could not be converted to bool")));
    }
}
