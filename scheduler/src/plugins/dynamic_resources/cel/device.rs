//! The variable `device`. Domains that a device does not have are empty, so that `has()` and `in` are enough to ask.

use std::collections::{BTreeMap, HashMap};

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer};
use cel::common::types::{CelBool, CelInt, CelMap, CelMapKey, CelString, Type};
use cel::common::value::{CowVal, Val};
use k8s_openapi::api::resource::v1::DeviceAttribute;
use proto::quantity::Quantity;

use super::quantity::Amount;
use super::semantic::Semver;
use crate::model::devices::Device;

static DEVICE: Type = Type::new_unspecified_type("kubernetes.DRADevice");
static DOMAINS: Type = Type::new_unspecified_type("map");

type Fields = HashMap<CelMapKey<'static>, Box<dyn Val>>;

/// `device`.
#[derive(Debug)]
pub(super) struct Input {
    driver: String,
    attributes: Domains,
    capacity: Domains,
}

/// Maps of names by domain.
#[derive(Debug)]
struct Domains {
    known: BTreeMap<String, CelMap<'static>>,
    none: CelMap<'static>,
}

fn attribute(a: &DeviceAttribute) -> Result<Box<dyn Val>, String> {
    if let Some(int) = a.int {
        return Ok(Box::new(CelInt::from(int)));
    }
    if let Some(bool) = a.bool {
        return Ok(Box::new(CelBool::from(bool)));
    }
    if let Some(string) = &a.string {
        return Ok(Box::new(CelString::from(string.clone())));
    }
    let version = a.version.as_ref().ok_or("unsupported attribute value")?;
    let parsed = semver::Version::parse(version).map_err(|e| format!("parse semantic version: {e}"))?;
    Ok(Box::new(Semver(parsed)))
}

fn domains<V>(
    all: &BTreeMap<String, BTreeMap<String, V>>,
    convert: impl Fn(&V) -> Result<Box<dyn Val>, String>,
) -> Result<Domains, String> {
    let mut known = BTreeMap::new();
    for (domain, fields) in all {
        let mut converted = Fields::new();
        for (name, value) in fields {
            converted.insert(
                CelMapKey::from(name.clone()),
                convert(value).map_err(|e| format!("attribute {domain}/{name}: {e}"))?,
            );
        }
        known.insert(domain.clone(), CelMap::from(converted));
    }
    Ok(Domains { known, none: CelMap::from(Fields::new()) })
}

impl Input {
    /// A device as expressions see it.
    pub(super) fn new(driver: &str, device: &Device) -> Result<Self, String> {
        let amount = |text: &str| Quantity::parse(text).map(Amount).map_err(|e| e.to_string());
        Ok(Self {
            driver: driver.to_owned(),
            attributes: domains(&device.attributes, attribute)?,
            capacity: domains(&device.capacity, |c| Ok(Box::new(amount(&c.value.0)?) as Box<dyn Val>))?,
        })
    }
}

fn key(idx: &dyn Val) -> Result<&str, ExecutionError> {
    let text = idx.downcast_ref::<CelString>().map(CelString::inner);
    text.ok_or_else(|| ExecutionError::UnexpectedType {
        got: idx.get_type().name().to_owned(),
        want: "string".to_owned(),
    })
}

impl Val for Input {
    fn get_type(&self) -> &Type {
        Self::cel_type()
    }

    fn cel_type() -> &'static Type {
        &DEVICE
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(Self {
            driver: self.driver.clone(),
            attributes: self.attributes.copy(),
            capacity: self.capacity.copy(),
        })
    }
}

impl Indexer for Input {
    fn get<'b, 'v>(&'b self, idx: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        match key(idx)? {
            "driver" => Ok(CowVal::owned(CelString::from(self.driver.clone()))),
            "attributes" => Ok(CowVal::Borrowed(&self.attributes)),
            "capacity" => Ok(CowVal::Borrowed(&self.capacity)),
            other => Err(ExecutionError::no_such_key(other)),
        }
    }

    fn steal<'v>(self: Box<Self>, idx: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(idx).map(CowVal::into_owned)
    }
}

impl Domains {
    fn copy(&self) -> Self {
        let copied = |m: &CelMap<'static>| -> CelMap<'static> {
            let fields: Fields = m.inner().iter().map(|(k, v)| (k.clone().into_static(), v.clone_as_boxed())).collect();
            CelMap::from(fields)
        };
        Self { known: self.known.iter().map(|(d, m)| (d.clone(), copied(m))).collect(), none: copied(&self.none) }
    }
}

impl Val for Domains {
    fn get_type(&self) -> &Type {
        Self::cel_type()
    }

    fn cel_type() -> &'static Type {
        &DOMAINS
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.copy())
    }
}

impl Indexer for Domains {
    fn get<'b, 'v>(&'b self, idx: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(CowVal::Borrowed(self.known.get(key(idx)?).unwrap_or(&self.none)))
    }

    fn steal<'v>(self: Box<Self>, idx: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(idx).map(CowVal::into_owned)
    }
}

impl Container for Domains {
    /// Every domain is there, if only empty.
    fn contains(&self, value: &dyn Val) -> Result<bool, ExecutionError> {
        key(value).map(|_| true)
    }
}
