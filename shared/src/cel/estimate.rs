//! What a program can cost, from what is known of the sizes of its variables before it ever runs.
//!
//! The result decides whether a rule may be stored, so the arithmetic is upstream's (`cel-go`'s checker), to the unit.

use super::node::{Fold, Kind, Node};
use super::types::Type;
use super::value::{Key, Value};

/// The size an element is assumed to have at least when a request can hold so many of them.
pub const MAX_ELEMENT_BYTES: u64 = 3 << 20;

/// What a program costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// At least.
    pub min: u64,
    /// At most; [`u64::MAX`] for no bound.
    pub max: u64,
}

/// A step down from a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place<'n> {
    /// The variable, or a field by its name.
    Named(&'n str),
    /// Elements of a list.
    Items,
    /// Keys of a map.
    Keys,
    /// Values of a map.
    Values,
}

/// From the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Range {
    pub(super) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    pub(super) const fn fixed(n: u64) -> Self {
        Self { min: n, max: n }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(super) fn by(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub(super) fn times(self, factor: f64) -> Self {
        Self { min: super::cost::times(self.min, factor), max: super::cost::times(self.max, factor) }
    }

    fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// Sizes of what a list or map holds.
#[derive(Clone, Copy, Debug)]
struct Inside {
    key: Range,
    value: Range,
}

impl Inside {
    fn union(self, other: Self) -> Self {
        Self { key: self.key.union(other.key), value: self.value.union(other.value) }
    }
}

type Path<'n> = Option<Vec<Place<'n>>>;

/// What is known of a value beside its cost.
#[derive(Clone, Debug)]
pub(super) struct Sized {
    pub(super) size: Option<Range>,
}

/// What is known of a part.
#[derive(Clone, Debug)]
struct Known<'n> {
    cost: Range,
    size: Option<Range>,
    inside: Option<Inside>,
    path: Path<'n>,
}

pub(super) fn estimate(root: &Node, sizes: &dyn Fn(&[Place<'_>]) -> Option<u64>) -> Estimate {
    let mut estimator = Estimator { sizes, locals: Vec::new() };
    let Range { min, max } = estimator.part(root).cost;
    Estimate { min, max }
}

/// A variable of a comprehension.
struct Local<'n> {
    size: Option<Range>,
    inside: Option<Inside>,
    path: Path<'n>,
}

struct Estimator<'s, 'n> {
    sizes: &'s dyn Fn(&[Place<'_>]) -> Option<u64>,
    locals: Vec<Local<'n>>,
}

/// What the sizes of so many elements are united with.
fn none_of(elements: usize) -> Range {
    if elements == 0 { Range::fixed(0) } else { Range { min: u64::MAX, max: 0 } }
}

fn is_scalar(of: &Type) -> bool {
    match of {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::UInt => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}

fn below<'n>(path: &Path<'n>, place: Place<'n>) -> Path<'n> {
    let mut path = path.clone()?;
    path.push(place);
    Some(path)
}

impl<'n> Estimator<'_, 'n> {
    fn at(&self, path: &Path<'_>) -> Option<Range> {
        let path = path.as_deref()?;
        (self.sizes)(path).map(|max| Range { min: 0, max })
    }

    /// The size of a value: by its place, or by its type.
    fn size(&self, node: &Node, path: &Path<'_>) -> Option<Range> {
        self.at(path).or_else(|| is_scalar(&node.of).then_some(Range::fixed(1)))
    }

    fn part(&mut self, node: &'n Node) -> Known<'n> {
        let plain = |cost: Range| Known { cost, size: None, inside: None, path: None };
        match &node.kind {
            Kind::Literal(value) => literal(value),
            Kind::Variable(name) => {
                let path = Some(name.split('.').map(Place::Named).collect());
                Known { cost: Range::fixed(1), size: self.size(node, &path), inside: None, path }
            }
            Kind::Local { slot, .. } => {
                let local = &self.locals[*slot];
                let (path, inside) = (local.path.clone(), local.inside);
                let size = self.size(node, &path).or(local.size);
                Known { cost: Range::fixed(1), size, inside, path }
            }
            Kind::Select { operand, field, test } => {
                let from = self.part(operand);
                if *test {
                    return Known { size: Some(Range::fixed(1)), ..plain(from.cost) };
                }
                let counted = matches!(operand.of, Type::Map(_) | Type::Object(_));
                let path = below(&from.path, Place::Named(field));
                let cost = from.cost.plus(Range::fixed(u64::from(counted)));
                Known { cost, size: self.size(node, &path), inside: None, path }
            }
            Kind::OptionalSelect { operand, field } => {
                let from = self.part(operand);
                let path = below(&from.path, Place::Named(field));
                Known { cost: from.cost.plus(Range::fixed(1)), size: self.size(node, &path), inside: None, path }
            }
            Kind::Index { operand, index, .. } => {
                let (from, by) = (self.part(operand), self.part(index));
                let place = if matches!(operand.of, Type::Map(_)) { Place::Values } else { Place::Items };
                let path = below(&from.path, place);
                let size = from.inside.map(|i| i.value).or_else(|| self.size(node, &path));
                Known { cost: from.cost.plus(by.cost).plus(Range::fixed(1)), size, inside: None, path }
            }
            Kind::And(parts) | Kind::Or(parts) => {
                let (a, b) = (self.part(&parts[0]).cost, self.part(&parts[1]).cost);
                let cost = Range { min: a.min, max: a.max.saturating_add(b.max) };
                Known { size: Some(Range::fixed(1)), ..plain(cost) }
            }
            Kind::Condition(parts) => {
                let (c, a, b) = (self.part(&parts[0]), self.part(&parts[1]), self.part(&parts[2]));
                let inside = a.inside.zip(b.inside).map(|(a, b)| a.union(b));
                let unknown = |s: Option<Range>| s.unwrap_or(Range::UNKNOWN);
                let size = Some(unknown(a.size).union(unknown(b.size)));
                Known { cost: c.cost.plus(a.cost.union(b.cost)), size, inside, path: None }
            }
            Kind::NotStrictlyFalse(inner) => plain(self.part(inner).cost.plus(Range::fixed(1))),
            Kind::Call { .. } => self.call(node),
            Kind::List(items) => self.list(items.iter().map(|(item, _)| item)),
            Kind::Map(entries) => self.map(entries.iter().map(|(key, value, _)| (key, value))),
            Kind::Struct { fields, .. } => {
                let each = fields.iter().map(|(_, value, _)| value);
                plain(each.fold(Range::fixed(40), |sum, value| sum.plus(self.part(value).cost)))
            }
            Kind::Fold(fold) if is_bind(fold) => self.bind(fold),
            Kind::Fold(fold) => self.fold(fold),
        }
    }

    fn list(&mut self, items: impl ExactSizeIterator<Item = &'n Node>) -> Known<'n> {
        let size = Range::fixed(items.len() as u64);
        let (mut cost, mut value) = (Range::fixed(10), none_of(items.len()));
        for item in items {
            let known = self.part(item);
            cost = cost.plus(known.cost);
            value = value.union(known.size.unwrap_or(Range::UNKNOWN));
        }
        Known { cost, size: Some(size), inside: Some(Inside { key: Range::fixed(1), value }), path: None }
    }

    fn map(&mut self, entries: impl ExactSizeIterator<Item = (&'n Node, &'n Node)>) -> Known<'n> {
        let (size, start) = (Range::fixed(entries.len() as u64), none_of(entries.len()));
        let (mut cost, mut inside) = (Range::fixed(30), Inside { key: start, value: start });
        for (key, value) in entries {
            let (key, value) = (self.part(key), self.part(value));
            cost = cost.plus(key.cost).plus(value.cost);
            let sizes = Inside { key: key.size.unwrap_or(Range::UNKNOWN), value: value.size.unwrap_or(Range::UNKNOWN) };
            inside = inside.union(sizes);
        }
        Known { cost, size: Some(size), inside: Some(inside), path: None }
    }

    fn call(&mut self, node: &'n Node) -> Known<'n> {
        let Kind::Call { candidates, arguments, .. } = &node.kind else { return literal(&Value::Null) };
        let known: Vec<Known<'n>> = arguments.iter().map(|a| self.part(a)).collect();
        let sum = known.iter().fold(Range::fixed(0), |sum, k| sum.plus(k.cost));
        if candidates.first().is_some_and(|c| c.entry.name == "dyn")
            && let Some(only) = known.first()
        {
            return Known { cost: only.cost.plus(Range::fixed(1)), ..only.clone() };
        }
        let sizes: Vec<Sized> = known.iter().map(|k| Sized { size: k.size }).collect();
        let element = arguments.first().and_then(|first| match &first.of {
            Type::List(of) if matches!(**of, Type::String | Type::Bytes) => {
                let path = below(&known[0].path, Place::Items);
                Some(known[0].inside.map(|i| i.value).or_else(|| self.at(&path)).unwrap_or(Range::UNKNOWN))
            }
            _ => None,
        });
        let (mut cost, mut size) = (Range { min: u64::MAX, max: 0 }, None::<Range>);
        for candidate in candidates {
            let (one, made) = candidate.entry.cost.estimate(&sizes, element);
            cost = cost.union(one);
            size = match (size, made) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
        }
        let inside = match (candidates.first().map(|c| c.entry.name), known.as_slice()) {
            (Some("_+_"), [a, b]) => a.inside.zip(b.inside).map(|(a, b)| a.union(b)),
            _ => None,
        };
        let size = size.or_else(|| is_scalar(&node.of).then_some(Range::fixed(1)));
        Known { cost: sum.plus(cost), size, inside, path: None }
    }

    fn bind(&mut self, fold: &'n Fold) -> Known<'n> {
        let (range, init) = (self.part(&fold.range), self.part(&fold.init));
        let base = self.locals.len();
        for _ in &fold.variables {
            self.locals.push(Local { size: None, inside: None, path: None });
        }
        self.locals.push(Local { size: init.size, inside: init.inside, path: init.path });
        let result = self.part(&fold.result);
        self.locals.truncate(base);
        Known { cost: range.cost.plus(init.cost).plus(result.cost), path: None, ..result }
    }

    fn fold(&mut self, fold: &'n Fold) -> Known<'n> {
        let (range, init) = (self.part(&fold.range), self.part(&fold.init));
        let base = self.locals.len();
        let list = matches!(fold.range.of, Type::List(_));
        let (key, value) = (range.inside.map(|i| i.key), range.inside.map(|i| i.value));
        let keys = || below(&range.path, Place::Keys);
        let values = || below(&range.path, if list { Place::Items } else { Place::Values });
        let two = fold.variables.len() == 2;
        for i in 0..fold.variables.len() {
            let (size, path) = match (two, i) {
                (true, 0) if list => (key, None),
                (true, 0) => (key, keys()),
                (true, _) => (value, values()),
                (false, _) if list => (value, values()),
                (false, _) => (key, keys()),
            };
            self.locals.push(Local { size, inside: None, path });
        }
        self.locals.push(Local { size: init.size, inside: init.inside, path: None });
        let condition = self.part(&fold.condition);
        let step = self.part(&fold.step);
        let result = self.part(&fold.result);
        self.locals.truncate(base);
        let count = range.size.unwrap_or(Range::UNKNOWN);
        let rounds = count.by(step.cost.plus(condition.cost));
        let cost = range.cost.plus(init.cost).plus(result.cost).plus(rounds);
        let (size, inside) = match &fold.init.kind {
            Kind::Literal(Value::List(_) | Value::Map(_)) | Kind::List(_) | Kind::Map(_) => (Some(count), step.inside),
            Kind::Literal(_) => (init.size, None),
            _ => (None, None),
        };
        Known { cost, size, inside, path: None }
    }
}

/// `cel.bind` is written as a loop that never runs.
fn is_bind(fold: &Fold) -> bool {
    matches!(&fold.range.kind, Kind::List(items) if items.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Value::Bool(false)))
        && &*fold.accumulator != "@result"
}

/// A literal costs nothing; one of several values costs as if it were made.
fn literal<'n>(value: &Value<'static>) -> Known<'n> {
    let size_of = |v: &Value<'static>| Range::fixed(v.size().unwrap_or(1));
    let union = |all: &mut dyn Iterator<Item = Range>| all.reduce(Range::union).unwrap_or(Range::fixed(0));
    let (base, inside) = match value {
        Value::List(items) => (10, Some(Inside { key: Range::fixed(1), value: union(&mut items.iter().map(size_of)) })),
        Value::Map(map) => {
            let key = union(&mut map.entries.keys().map(|k| match k {
                Key::String(s) => Range::fixed(s.chars().count() as u64),
                _ => Range::fixed(1),
            }));
            (30, Some(Inside { key, value: union(&mut map.entries.values().map(size_of)) }))
        }
        _ => (0, None),
    };
    let nested = match value {
        Value::List(items) => items.iter().fold(Range::fixed(0), |sum, v| sum.plus(literal(v).cost)),
        Value::Map(map) => map.entries.values().fold(Range::fixed(0), |sum, v| sum.plus(literal(v).cost)),
        _ => Range::fixed(0),
    };
    Known { cost: Range::fixed(base).plus(nested), size: Some(size_of(value)), inside, path: None }
}
