//! CEL environment of device selectors: `device.driver`, `device.attributes[domain].name` and
//! `device.capacity[domain].name`, with the sizes a resource slice allows.

use super::{Declared, EstimatePlace, Extras, Type};

/// Maximum cost of one evaluation of a selector.
pub const MAX_COST: u64 = 1_000_000;
/// Most attributes and capacities of a device.
const MAX_ENTRIES: u64 = 32;
const MAX_DOMAIN: u64 = 63;
const MAX_NAME: u64 = 32;
const MAX_TEXT: u64 = 64;

/// The variable.
#[must_use]
pub fn variables() -> Declared {
    declared(Vec::new())
}

/// The variable behind `DRAConsumableCapacity`: it says whether a device is given to several claims, too.
#[must_use]
pub fn variables_of_shared() -> Declared {
    declared(vec![("allowMultipleAllocations", Type::Bool)])
}

fn declared(mut fields: Vec<(&str, Type)>) -> Declared {
    let domains = |of: Type| Type::map(Type::String, Type::map(Type::String, of));
    fields.push(("driver", Type::String));
    fields.push(("attributes", domains(Type::Any)));
    fields.push(("capacity", domains(Type::Opaque("kubernetes.Quantity"))));
    Declared::from([("device".to_owned(), Type::object("kubernetes.DRADevice", fields))])
}

/// Selectors may bind names.
#[must_use]
pub fn extras() -> Extras {
    Extras { bind: true, ..Extras::default() }
}

/// The sizes below the variable, for estimates.
#[must_use]
pub fn size(place: &[EstimatePlace<'_>]) -> Option<u64> {
    match place {
        [EstimatePlace::Named("device"), EstimatePlace::Named("driver")] => Some(MAX_DOMAIN),
        [EstimatePlace::Named("device"), EstimatePlace::Named("attributes" | "capacity")] => Some(MAX_ENTRIES),
        [EstimatePlace::Named("device"), EstimatePlace::Named("attributes" | "capacity"), EstimatePlace::Keys] => {
            Some(MAX_DOMAIN)
        }
        [EstimatePlace::Named("device"), EstimatePlace::Named("attributes" | "capacity"), EstimatePlace::Values] => {
            Some(MAX_ENTRIES)
        }
        [
            EstimatePlace::Named("device"),
            EstimatePlace::Named("attributes" | "capacity"),
            EstimatePlace::Values,
            EstimatePlace::Keys,
        ] => Some(MAX_NAME),
        [EstimatePlace::Named("device"), EstimatePlace::Named("attributes"), EstimatePlace::Values, _] => {
            Some(MAX_TEXT)
        }
        _ => None,
    }
}
