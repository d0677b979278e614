//! Device selectors: expressions over `device.driver`, `device.attributes[domain].name` and
//! `device.capacity[domain].name`. Domains that a device does not have are empty, so that `has()` and `in` are enough to
//! ask. Answers for upstream's `k8s.io/dynamic-resource-allocation/cel`.
//!
//! Expressions are compiled once and run on one device at a time; nothing is made before the first claim needs it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceAttribute;
use parking_lot::Mutex;
use proto::quantity::ParseError;
use shared::cel::{Key, Map, Program, Rejected, Scope, SemverError, Text, Type, Value, device, quantity, semver};
use thiserror::Error;

use crate::model::devices::Device;

/// Programs remembered.
const PROGRAMS: usize = 256;

/// Reasons why a selector gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SelectorFailure {
    /// The text is no expression.
    Compile(SelectorError),
    /// The expression failed on this device.
    Run(String),
}

/// Selectors that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum SelectorError {
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The result has this type.
    #[error("must evaluate to bool or the unknown type, not {0}")]
    ResultType(String),
}

/// Values of a device that expressions cannot see.
#[derive(Debug, Error)]
enum ValueError {
    #[error("unsupported attribute value")]
    Unsupported,
    #[error("parse semantic version: {0}")]
    Version(#[from] SemverError),
    #[error(transparent)]
    Quantity(#[from] ParseError),
}

/// Attributes or capacities of a device that expressions cannot see.
#[derive(Debug, Error)]
#[error("attribute {domain}/{name}: {source}")]
struct AttributeError {
    domain: String,
    name: String,
    source: ValueError,
}

type Compiled = Result<Arc<Program>, SelectorError>;

/// Compiled selectors.
#[derive(Default)]
pub(super) struct Selectors {
    known: Mutex<HashMap<String, Compiled>>,
    /// Expressions may ask whether a device is given to several claims.
    multiple: bool,
}

fn compile(expression: &str, multiple: bool) -> Compiled {
    let variables = if multiple { device::variables_of_shared() } else { device::variables() };
    let program = Program::compile_with(expression, &variables, device::extras())?;
    match program.result() {
        Type::Bool | Type::Any => Ok(Arc::new(program)),
        other => Err(SelectorError::ResultType(other.full().to_string())),
    }
}

impl Selectors {
    /// Selectors that may name what `DRAConsumableCapacity` adds.
    pub(super) fn of_shared() -> Self {
        Self { multiple: true, ..Self::default() }
    }

    fn compiled(&self, expression: &str) -> Compiled {
        let mut known = self.known.lock();
        if let Some(program) = known.get(expression) {
            return program.clone();
        }
        let program = compile(expression, self.multiple);
        if known.len() >= PROGRAMS {
            known.clear();
        }
        known.insert(expression.to_owned(), program.clone());
        program
    }

    /// Reports whether a device matches.
    pub(super) fn matches(&self, expression: &str, driver: &str, device: &Device) -> Result<bool, SelectorFailure> {
        let program = self.compiled(expression).map_err(SelectorFailure::Compile)?;
        let mut scope = Scope::default();
        scope.set("device", value(driver, device, self.multiple).map_err(|e| SelectorFailure::Run(e.to_string()))?);
        match program.run(&scope, device::MAX_COST).0 {
            Ok(Value::Bool(answer)) => Ok(answer),
            Ok(other) => {
                let kind = other.type_name();
                // Each type says it in its own words.
                let why = match kind {
                    "string" => "unsupported native conversion from string to 'bool'".to_owned(),
                    "int" => "unsupported type conversion from 'int' to bool".to_owned(),
                    kind => {
                        let short = kind.rsplit_once('.').map_or(kind, |(_, short)| short);
                        format!("type conversion error from '{short}' to 'bool'")
                    }
                };
                Err(SelectorFailure::Run(format!("CEL result of type {kind} could not be converted to bool: {why}")))
            }
            Err(e) => Err(SelectorFailure::Run(e.to_string())),
        }
    }
}

/// A device as expressions see it.
fn value<'a>(driver: &'a str, device: &'a Device, multiple: bool) -> Result<Value<'a>, AttributeError> {
    let attributes = domains(&device.attributes, attribute)?;
    let capacity = domains(&device.capacity, |c| Ok(quantity(&c.value.0)?))?;
    let mut fields =
        vec![("driver", Value::String(Text::Borrowed(driver))), ("attributes", attributes), ("capacity", capacity)];
    if multiple {
        fields.push(("allowMultipleAllocations", Value::Bool(device.multiple)));
    }
    Ok(Value::map(fields.into_iter().map(|(k, v)| (Text::Borrowed(k), v))))
}

fn attribute(a: &DeviceAttribute) -> Result<Value<'_>, ValueError> {
    if let Some(int) = a.int {
        return Ok(Value::Int(int));
    }
    if let Some(bool) = a.bool {
        return Ok(Value::Bool(bool));
    }
    if let Some(string) = &a.string {
        return Ok(Value::String(Text::Borrowed(string)));
    }
    let version = a.version.as_ref().ok_or(ValueError::Unsupported)?;
    Ok(semver(version)?)
}

/// Values by domain and name.
fn domains<'a, V>(
    all: &'a BTreeMap<String, BTreeMap<String, V>>,
    convert: impl Fn(&'a V) -> Result<Value<'a>, ValueError>,
) -> Result<Value<'a>, AttributeError> {
    let mut entries = BTreeMap::new();
    for (domain, fields) in all {
        let mut converted = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            let value = convert(value).map_err(|source| AttributeError {
                domain: domain.clone(),
                name: name.clone(),
                source,
            })?;
            converted.push((Text::Borrowed(name.as_str()), value));
        }
        entries.insert(Key::String(Text::Borrowed(domain)), Value::map(converted));
    }
    Ok(Value::Map(Arc::new(Map { entries, otherwise: Some(Value::map([])) })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Inventory;
    use serde_json::json;

    fn answer(expression: &str) -> Result<bool, SelectorFailure> {
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0",
                "allowMultipleAllocations": true, "attributes": {"model": {"string": "A100"}, "cores": {"int": 108}, "mig": {"bool": false},
                    "driverVersion": {"version": "12.4.1-rc.1"}, "other.example.com/numa": {"int": 1}},
                "capacity": {"memory": {"value": "40Gi"}}}]}});
        let slice = Arc::new(serde_json::from_value(slice).expect("slice"));
        let inventory = Inventory::of(crate::model::devices::Sources { slices: &[slice], ..Default::default() });
        let node = crate::testing::node("n").base();
        let pools = inventory.pools(&node);
        let selectors = if expression.contains("Multiple") { Selectors::of_shared() } else { Selectors::default() };
        selectors.matches(expression, pools[0].driver, &pools[0].slices[0].devices[0])
    }

    #[test]
    fn what_selectors_are_written_with() {
        for (expression, want) in [
            ("device.driver == 'gpu.example.com'", true),
            ("device.allowMultipleAllocations", true),
            ("device.allowMultipleAllocations == false", false),
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
            ("quantity('50k').isInteger() && quantity('50k').asInteger() == 50000 && sign(quantity('-1')) == -1", true),
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
        assert!(matches!(answer("device.attributes["), Err(SelectorFailure::Compile(_))));
        assert!(matches!(answer("device.attributes['gpu.example.com'].nope == 1"), Err(SelectorFailure::Run(_))));
        assert!(
            matches!(answer("device.driver"), Err(SelectorFailure::Compile(e)) if e.to_string() == "must evaluate to bool or the unknown type, not string")
        );
        assert!(
            matches!(answer("device.nope"), Err(SelectorFailure::Compile(e)) if e.to_string().contains("undefined field 'nope'"))
        );
        let endless = "lists.range(2000).all(a, lists.range(2000).all(b, a + b >= 0))";
        assert!(
            matches!(answer(endless), Err(SelectorFailure::Run(e)) if e.to_string().contains("actual cost limit exceeded"))
        );
    }
}
