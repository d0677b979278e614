//! Amounts in expressions: `quantity('1Gi')` and what can be done with them.

use std::any::Any;

use cel::common::types::{CelBool, CelDouble, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use proto::quantity::{Format, Quantity};

static TYPE: Type = Type::new_unspecified_type("kubernetes.Quantity");

/// An amount.
#[derive(Debug, Clone)]
pub(super) struct Amount(pub(super) Quantity);

impl Val for Amount {
    fn get_type(&self) -> &Type {
        Self::cel_type()
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|o| o.0 == self.0)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Amount {}

/// Adds the functions.
pub(super) fn library(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TYPE.to_owned())?;
    add_overload!(env, fn parse: (CelString) -> Result<Amount>, name = "quantity")?;
    add_overload!(env, fn is_quantity: (CelString) -> CelBool)?;
    add_member_overload!(env, fn is_integer: (Amount) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (Amount) -> Result<CelInt>)?;
    add_member_overload!(env, fn as_approximate_float: (Amount) -> CelDouble)?;
    add_member_overload!(env, fn sign: (Amount) -> CelInt)?;
    add_member_overload!(env, fn add: (Amount, Amount) -> Amount)?;
    add_member_overload!(env, fn add_int: (Amount, CelInt) -> Amount, name = "add")?;
    add_member_overload!(env, fn sub: (Amount, Amount) -> Amount)?;
    add_member_overload!(env, fn sub_int: (Amount, CelInt) -> Amount, name = "sub")?;
    add_member_overload!(env, fn compare_to: (Amount, Amount) -> CelInt)?;
    add_member_overload!(env, fn is_greater_than: (Amount, Amount) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (Amount, Amount) -> CelBool)?;
    Ok(())
}

fn parse(text: &CelString<'_>) -> Result<Amount, ExecutionError> {
    Quantity::parse(text.inner()).map(Amount).map_err(|e| ExecutionError::function_error("quantity", e))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    Quantity::parse(text.inner()).is_ok().into()
}

fn whole(amount: &Amount) -> Option<i64> {
    let value = amount.0.saturating_value();
    (Quantity::from_int(value, Format::default()) == amount.0).then_some(value)
}

fn is_integer(amount: &Amount) -> CelBool {
    whole(amount).is_some().into()
}

fn as_integer(amount: &Amount) -> Result<CelInt, ExecutionError> {
    let whole = whole(amount).map(CelInt::from);
    whole.ok_or_else(|| ExecutionError::function_error("asInteger", "cannot convert value to integer"))
}

fn as_approximate_float(amount: &Amount) -> CelDouble {
    amount.0.as_f64().into()
}

fn sign(amount: &Amount) -> CelInt {
    i64::from(amount.0.sign()).into()
}

fn add(a: &Amount, b: &Amount) -> Amount {
    let mut sum = a.0.clone();
    sum.add(&b.0);
    Amount(sum)
}

fn add_int(a: &Amount, b: &CelInt) -> Amount {
    add(a, &Amount(Quantity::from_int(*b.inner(), Format::default())))
}

fn sub(a: &Amount, b: &Amount) -> Amount {
    let mut rest = a.0.clone();
    rest.sub(&b.0);
    Amount(rest)
}

fn sub_int(a: &Amount, b: &CelInt) -> Amount {
    sub(a, &Amount(Quantity::from_int(*b.inner(), Format::default())))
}

fn compare_to(a: &Amount, b: &Amount) -> CelInt {
    (a.0.cmp(&b.0) as i64).into()
}

fn is_greater_than(a: &Amount, b: &Amount) -> CelBool {
    (a.0 > b.0).into()
}

fn is_less_than(a: &Amount, b: &Amount) -> CelBool {
    (a.0 < b.0).into()
}
