//! Unification of types: compatibility, and substitution of type variables.
//!
//! Answers for the type substitutions of `cel-go`'s checker, whose order of trials shows in its messages.

use std::collections::HashMap;

use super::super::types::Type;

/// Substitutions of type variables.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    bound: HashMap<Unknown, Type>,
    /// Bindings made and their previous values, to roll back a failed attempt.
    log: Vec<(Unknown, Option<Type>)>,
    next: u32,
}

/// A type that stands for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unknown {
    Var(u32),
    Param(char),
}

fn unknown(of: &Type) -> Option<Unknown> {
    match of {
        Type::Var(n) => Some(Unknown::Var(*n)),
        Type::Param(letter) => Some(Unknown::Param(*letter)),
        _ => None,
    }
}

/// Reports whether a type is dynamic, or an error.
pub(super) fn is_open(of: &Type) -> bool {
    of.is_dyn() || matches!(of, Type::Error)
}

/// Reports whether a type is nullable.
fn takes_null(of: &Type) -> bool {
    matches!(of, Type::Opaque(_) | Type::Object(_) | Type::Optional(_) | Type::Duration | Type::Timestamp | Type::Null)
}

/// Reports whether the first type is at most as specific as the second.
fn says_less(a: &Type, b: &Type) -> bool {
    if a.is_dyn() || unknown(a).is_some() {
        return true;
    }
    if b.is_dyn() || unknown(b).is_some() {
        return false;
    }
    match (a, b) {
        (Type::Type(_), Type::Type(_)) => true,
        _ => a.alike(b) && a.parts().iter().zip(b.parts()).all(|(a, b)| says_less(a, b)),
    }
}

/// The one that says less.
pub(super) fn general(a: &Type, b: &Type) -> Type {
    if says_less(a, b) { a.clone() } else { b.clone() }
}

impl Bindings {
    /// Another type that is not known.
    pub(super) fn fresh(&mut self) -> Type {
        self.next += 1;
        Type::Var(self.next - 1)
    }

    fn bind(&mut self, name: Unknown, of: Type) {
        let before = self.bound.insert(name, of);
        self.log.push((name, before));
    }

    /// Unifies pairs of types; substitutions are kept only if all pairs unify.
    pub(super) fn fit_all<'t>(&mut self, pairs: impl Iterator<Item = (&'t Type, &'t Type)>) -> bool {
        self.log.clear();
        let mut fits = true;
        for (a, b) in pairs {
            fits = fits && self.try_fit(a, b);
        }
        if !fits {
            while let Some((name, before)) = self.log.pop() {
                match before {
                    Some(of) => self.bound.insert(name, of),
                    None => self.bound.remove(&name),
                };
            }
        }
        fits
    }

    /// Unifies two types.
    pub(super) fn fit(&mut self, a: &Type, b: &Type) -> bool {
        self.fit_all(std::iter::once((a, b)))
    }

    fn try_fit(&mut self, a: &Type, b: &Type) -> bool {
        if let Some(name) = unknown(b) {
            match self.substitutes(a, name, b) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Some(name) = unknown(a) {
            return self.substitutes(b, name, a).0;
        }
        match (a, b) {
            (a, b) if is_open(a) || is_open(b) => true,
            (Type::Null, other) | (other, Type::Null) => takes_null(other),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(_), Type::List(_)) | (Type::Map(_), Type::Map(_)) | (Type::Optional(_), Type::Optional(_)) => {
                let pairs: Vec<_> = a.parts().into_iter().zip(b.parts()).collect();
                pairs.into_iter().all(|(a, b)| self.try_fit(a, b))
            }
            _ => a.alike(b),
        }
    }

    /// Reports whether a type variable can be substituted by a type, and whether it was bound to it already.
    fn substitutes(&mut self, of: &Type, name: Unknown, it: &Type) -> (bool, bool) {
        if of.is(it) {
            return (true, true);
        }
        let Some(known) = self.bound.get(&name).cloned() else {
            let free = self.is_free_of(it, of);
            if free {
                self.bind(name, of.clone());
            }
            return (free, false);
        };
        if of.is(&known) {
            return (true, true);
        }
        if !self.try_fit(of, &known) {
            return (false, true);
        }
        let both = general(of, &known);
        if self.is_free_of(it, &both) {
            self.bind(name, both);
        }
        (true, true)
    }

    /// Reports whether a type does not occur in another.
    fn is_free_of(&self, it: &Type, other: &Type) -> bool {
        if it.is(other) {
            return false;
        }
        match unknown(other) {
            Some(name) => self.bound.get(&name).is_none_or(|known| self.is_free_of(it, known)),
            None => other.parts().into_iter().all(|part| self.is_free_of(it, part)),
        }
    }

    /// A type with what is known by now put in.
    pub(super) fn resolve(&self, of: &Type) -> Type {
        match unknown(of).and_then(|name| self.bound.get(&name)) {
            Some(known) => self.resolve(known),
            None => of.with(&mut |part| self.resolve(part)),
        }
    }

    /// Substitutes all type variables; unbound ones become dynamic.
    pub(super) fn settle(&self, of: &Type) -> Type {
        match unknown(of) {
            Some(name) => self.bound.get(&name).map_or(Type::Dyn, |known| self.settle(known)),
            None => of.with(&mut |part| self.settle(part)),
        }
    }
}

/// The types of a function with other unknowns than last time.
pub(super) struct Fresh<'b> {
    pub(super) bindings: &'b mut Bindings,
    letters: Vec<(char, Type)>,
}

impl<'b> Fresh<'b> {
    pub(super) fn new(bindings: &'b mut Bindings) -> Self {
        Self { bindings, letters: Vec::new() }
    }

    pub(super) fn instance(&mut self, of: &Type) -> Type {
        let Type::Param(letter) = of else { return of.with(&mut |part| self.instance(part)) };
        if let Some((_, known)) = self.letters.iter().find(|(l, _)| l == letter) {
            return known.clone();
        }
        let made = self.bindings.fresh();
        self.letters.push((*letter, made.clone()));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_go_together() {
        let list = Type::list;
        for (a, b, fits) in [
            (Type::Int, Type::Int, true),
            (Type::Int, Type::Double, false),
            (Type::Dyn, Type::Double, true),
            (list(Type::Int), list(Type::Dyn), true),
            (list(Type::Int), list(Type::String), false),
            (Type::Null, Type::Timestamp, true),
            (Type::Null, Type::optional(Type::Int), true),
            (Type::Null, Type::Int, false),
            (Type::of(Type::Int), Type::Type(None), true),
        ] {
            assert_eq!(Bindings::default().fit(&a, &b), fits, "{a} {b}");
        }
    }

    #[test]
    fn unknown_types_are_learnt_once() {
        let mut known = Bindings::default();
        let element = known.fresh();
        assert!(known.fit(&Type::list(element.clone()), &Type::list(Type::Int)));
        assert!(!known.fit(&element, &Type::String));
        assert_eq!(known.settle(&element).to_string(), "int");
        // A trial that fails teaches nothing.
        let other = known.fresh();
        assert!(!known.fit_all([(&other, &Type::Bool), (&Type::Int, &Type::Bool)].into_iter()));
        assert_eq!(known.settle(&other).to_string(), "dyn");
        // Nothing is made of itself.
        assert!(!known.fit(&Type::list(other.clone()), &other));
    }
}
