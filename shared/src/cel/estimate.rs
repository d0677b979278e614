//! Cost estimation of a program before it runs, from the sizes of its variables.
//!
//! The result decides whether a rule may be stored, so the arithmetic is upstream's (`cel-go`'s checker), to the unit.

use super::node::{ExprKind, Fold, Node};
use super::range::{Argument, Given, Range};
use super::types::Type;
use super::value::Value;

/// The size an element is assumed to have at least when a request can hold so many of them.
pub const MAX_ELEMENT_BYTES: u64 = 3 << 20;

/// Estimated cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// At least.
    pub min: u64,
    /// At most; [`u64::MAX`] for no bound.
    pub max: u64,
}

/// A step down from a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EstimatePlace<'n> {
    /// The variable, or a field by its name.
    Named(&'n str),
    /// Elements of a list.
    Items,
    /// Keys of a map.
    Keys,
    /// Values of a map.
    Values,
}

/// Sizes of what a list or map holds.
#[derive(Clone, Copy, Debug)]
struct Inside {
    list: bool,
    key: Range,
    value: Range,
}

impl Inside {
    fn union(self, other: Self) -> Self {
        Self { list: self.list, key: self.key.union(other.key), value: self.value.union(other.value) }
    }
}

/// The way to a place below a variable; empty where there is none.
type Path<'n> = Vec<EstimatePlace<'n>>;

/// Estimates of an expression.
#[derive(Clone, Debug)]
struct Known<'n> {
    cost: Range,
    size: Option<Range>,
    inside: Option<Inside>,
    path: Path<'n>,
}

pub(super) fn estimate(root: &Node, sizes: &dyn Fn(&[EstimatePlace<'_>]) -> Option<u64>) -> Estimate {
    let mut estimator = Estimator { sizes, locals: Vec::new() };
    let Range { min, max } = estimator.part(root).cost;
    Estimate { min, max }
}

/// A variable of a comprehension.
#[derive(Default)]
struct Local<'n> {
    size: Option<Range>,
    inside: Option<Inside>,
    path: Path<'n>,
}

struct Estimator<'s, 'n> {
    sizes: &'s dyn Fn(&[EstimatePlace<'_>]) -> Option<u64>,
    locals: Vec<Local<'n>>,
}

/// Neutral element for the union of the elements' sizes.
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

/// Returns the original expression of a folded constant: estimates ignore folding.
fn written(node: &Node) -> &Node {
    match &node.kind {
        ExprKind::Constant { from, .. } => from,
        _ => node,
    }
}

fn below<'n>(path: &Path<'n>, place: EstimatePlace<'n>) -> Path<'n> {
    let mut path = path.clone();
    path.push(place);
    path
}

impl<'n> Estimator<'_, 'n> {
    fn at(&self, path: &Path<'_>) -> Option<Range> {
        let known = (!path.is_empty()).then(|| (self.sizes)(path)).flatten();
        known.map(|max| Range { min: 0, max })
    }

    /// Estimates an expression without a computed size: by its path, or by its type.
    fn plain(&self, node: &Node, cost: Range, path: Path<'n>) -> Known<'n> {
        let size = self.at(&path).or_else(|| is_scalar(&node.of).then_some(Range::fixed(1)));
        Known { cost, size, inside: None, path }
    }

    fn part(&mut self, node: &'n Node) -> Known<'n> {
        let node = written(node);
        match &node.kind {
            ExprKind::Literal(Value::Type(name)) => self.plain(node, Range::fixed(1), vec![EstimatePlace::Named(name)]),
            ExprKind::Literal(value) | ExprKind::Constant { value, .. } => {
                let size = Some(Range::fixed(value.size().unwrap_or(1)));
                Known { size, ..self.plain(node, Range::fixed(0), Vec::new()) }
            }
            ExprKind::Variable(name) => self.plain(node, Range::fixed(1), vec![EstimatePlace::Named(name)]),
            ExprKind::Local { slot, .. } => {
                let local = &self.locals[*slot];
                let known = self.plain(node, Range::fixed(1), local.path.clone());
                Known { size: known.size.or(local.size), inside: local.inside, ..known }
            }
            ExprKind::Select { operand, test: true, .. } => {
                let cost = self.part(operand).cost;
                self.plain(node, cost, Vec::new())
            }
            ExprKind::Select { operand, field, .. } => {
                let from = self.part(operand);
                let counted = matches!(operand.of, Type::Map(_) | Type::Object(_) | Type::Opaque(_));
                let cost = from.cost.plus(Range::fixed(u64::from(counted)));
                self.plain(node, cost, below(&from.path, EstimatePlace::Named(field)))
            }
            ExprKind::OptionalSelect { operand, .. } => {
                let cost = self.part(operand).cost.plus(Range::fixed(1));
                self.plain(node, cost, Vec::new())
            }
            ExprKind::Index { operand, index, of, .. } => {
                let (from, by) = (self.part(operand), self.part(index));
                let cost = from.cost.plus(by.cost).plus(Range::fixed(1));
                if !of.list && !of.map {
                    return self.plain(node, cost, Vec::new());
                }
                let place = if of.map { EstimatePlace::Values } else { EstimatePlace::Items };
                let known = self.plain(node, cost, below(&from.path, place));
                Known { size: from.inside.map(|i| i.value).or(known.size), ..known }
            }
            ExprKind::And(parts) | ExprKind::Or(parts) => {
                let (a, b) = (self.part(&parts[0]).cost, self.part(&parts[1]).cost);
                self.plain(node, Range { min: a.min, max: a.max.saturating_add(b.max) }, Vec::new())
            }
            ExprKind::Condition(parts) => {
                let (c, a, b) = (self.part(&parts[0]), self.part(&parts[1]), self.part(&parts[2]));
                let inside = a.inside.zip(b.inside).map(|(a, b)| a.union(b));
                let unknown = |s: Option<Range>| s.unwrap_or(Range::UNKNOWN);
                let size = Some(unknown(a.size).union(unknown(b.size)));
                Known { cost: c.cost.plus(a.cost.union(b.cost)), size, inside, path: Vec::new() }
            }
            ExprKind::NotStrictlyFalse(inner) => {
                let cost = self.part(inner).cost.plus(Range::fixed(1));
                self.plain(node, cost, Vec::new())
            }
            ExprKind::Call { .. } => self.call(node),
            ExprKind::List(items) => self.list(items.iter().map(|(item, _)| item)),
            ExprKind::Map(entries) => self.map(entries.iter().map(|(key, value, _)| (key, value))),
            ExprKind::Struct { fields, .. } => {
                let each = fields.iter().map(|(_, value, _)| value);
                let cost = each.fold(Range::fixed(40), |sum, value| sum.plus(self.part(value).cost));
                self.plain(node, cost, Vec::new())
            }
            ExprKind::Fold(fold) if is_bind(fold) => self.bind(fold),
            ExprKind::Fold(fold) => self.fold(node, fold),
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
        let inside = Some(Inside { list: true, key: Range::fixed(1), value });
        Known { cost, size: Some(size), inside, path: Vec::new() }
    }

    fn map(&mut self, entries: impl ExactSizeIterator<Item = (&'n Node, &'n Node)>) -> Known<'n> {
        let (size, start) = (Range::fixed(entries.len() as u64), none_of(entries.len()));
        let (mut cost, mut inside) = (Range::fixed(30), Inside { list: false, key: start, value: start });
        for (key, value) in entries {
            let (key, value) = (self.part(key), self.part(value));
            cost = cost.plus(key.cost).plus(value.cost);
            let sizes = Inside {
                list: false,
                key: key.size.unwrap_or(Range::UNKNOWN),
                value: value.size.unwrap_or(Range::UNKNOWN),
            };
            inside = inside.union(sizes);
        }
        Known { cost, size: Some(size), inside: Some(inside), path: Vec::new() }
    }

    fn call(&mut self, node: &'n Node) -> Known<'n> {
        let ExprKind::Call { name, candidates, arguments, .. } = &node.kind else {
            return self.plain(node, Range::fixed(0), Vec::new());
        };
        let known: Vec<Known<'n>> = arguments.iter().map(|a| self.part(a)).collect();
        let sum = known.iter().fold(Range::fixed(0), |sum, k| sum.plus(k.cost));
        if &**name == "dyn"
            && let Some(only) = known.first()
        {
            let plain = self.plain(node, only.cost.plus(Range::fixed(1)), Vec::new());
            return Known { size: only.size.or(plain.size), inside: only.inside, ..plain };
        }
        let element = match arguments.first().map(|first| &first.of) {
            Some(Type::List(of)) => {
                let size = known.first().filter(|k| !k.path.is_empty());
                let size = size.and_then(|k| self.at(&below(&k.path, EstimatePlace::Items))).unwrap_or(Range::UNKNOWN);
                Some((matches!(**of, Type::String | Type::Bytes), size))
            }
            _ => None,
        };
        let sized = arguments.iter().map(written).zip(&known).map(|(node, k)| {
            let literal = match &node.kind {
                ExprKind::Literal(Value::Int(n)) => Some(*n),
                _ => None,
            };
            Argument { of: &node.of, literal, size: k.size }
        });
        let given = Given { arguments: sized.collect(), element };
        let (mut cost, mut size) = (Range { min: u64::MAX, max: 0 }, None::<Range>);
        for candidate in candidates {
            let (one, made) = candidate.entry.cost.estimate(&given);
            cost = cost.union(one);
            size = match (size, made) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
            // What has no size of its own has that of its type.
            size = size.or_else(|| is_scalar(&node.of).then_some(Range::fixed(1)));
        }
        let inside = match (&**name, known.as_slice()) {
            ("_+_", [a, b]) => a.inside.zip(b.inside).map(|(a, b)| a.union(b)),
            _ => None,
        };
        Known { cost: sum.plus(cost), size, inside, path: Vec::new() }
    }

    fn bind(&mut self, fold: &'n Fold) -> Known<'n> {
        let (range, init) = (self.part(&fold.range), self.part(&fold.init));
        let base = self.locals.len();
        self.locals.push(Local { size: init.size, inside: init.inside, path: init.path });
        self.locals.resize_with(base + 1 + fold.variables, Local::default);
        let result = self.part(&fold.result);
        self.locals.truncate(base);
        Known { cost: range.cost.plus(init.cost).plus(result.cost), path: Vec::new(), ..result }
    }

    fn fold(&mut self, node: &'n Node, fold: &'n Fold) -> Known<'n> {
        let (range, init) = (self.part(&fold.range), self.part(&fold.init));
        let base = self.locals.len();
        self.locals.push(Local { size: init.size, inside: init.inside, path: init.path });
        let list = range.inside.map_or_else(|| matches!(fold.range.of, Type::List(_)), |i| i.list);
        let (key, value) = (range.inside.map(|i| i.key), range.inside.map(|i| i.value));
        let two = fold.variables == 2;
        for i in 0..fold.variables {
            let (size, place) = match (two && i == 0, list) {
                (true, true) => (key, EstimatePlace::Named("@indices")),
                (true, false) => (key, EstimatePlace::Keys),
                (false, true) => (value, EstimatePlace::Items),
                (false, false) if two => (value, EstimatePlace::Values),
                (false, false) => (key, EstimatePlace::Keys),
            };
            self.locals.push(Local { size, inside: None, path: below(&range.path, place) });
        }
        let condition = self.part(&fold.condition);
        let step = self.part(&fold.step);
        let result = self.part(&fold.result);
        self.locals.truncate(base);
        let count = range.size.unwrap_or(Range::UNKNOWN);
        let rounds = count.by(step.cost.plus(condition.cost));
        let cost = range.cost.plus(init.cost).plus(result.cost).plus(rounds);
        let known = self.plain(node, cost, Vec::new());
        match &written(&fold.init).kind {
            ExprKind::List(_) | ExprKind::Map(_) => Known { size: Some(count), inside: step.inside, ..known },
            ExprKind::Literal(_) => Known { size: init.size.or(known.size), ..known },
            _ => known,
        }
    }
}

/// `cel.bind` is written as a loop that never runs.
fn is_bind(fold: &Fold) -> bool {
    matches!(&written(&fold.range).kind, ExprKind::List(items) if items.is_empty())
        && matches!(fold.condition.kind, ExprKind::Literal(Value::Bool(false)))
}
