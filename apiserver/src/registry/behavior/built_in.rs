//! Behaviour of resources that are compiled in: each trait of `behavior` is implemented for it beside the one for
//! custom resources.

/// Behaviour of resources that are compiled in.
pub struct BuiltIn;
