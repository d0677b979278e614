//! Costs of functions: counted at run time, estimated before. The numbers are upstream's, because they decide which
//! expressions can be stored and which runs are cancelled.

use super::range::{Given, Range, times};
use super::types::Type;
use super::value::Value;
use super::{Error, Fuel};

/// Cost of traversing one character.
pub(super) const CHARACTER: f64 = 0.1;
/// Cost of one character of a regular expression per traversed character.
const PATTERN: f64 = 0.25;
/// Characters that estimates assume for the regular expression behind a named format.
const FORMAT_PATTERN: f64 = 128.0;
/// Characters of the name of a format at most.
const FORMAT_NAME: u64 = 64;
/// Cost of creating a list beside the call.
const NEW_LIST: u64 = 10;
/// Cost of one requirement of a selector: a structure and a list.
const REQUIREMENT: f64 = 50.0;
/// Addresses as bytes.
const ADDRESS: Range = Range { min: 4, max: 16 };

/// The cost of a function, and how large its result is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cost {
    /// Always the same.
    Fixed(u64),
    /// Looks so often at the first argument, a text.
    Scan(f64),
    /// Looks at the first argument; the result is as large at most.
    Keep,
    /// `startsWith` and `endsWith`: by the receiver when it runs, by the other text in estimates.
    Prefix,
    /// `replace`.
    Replace,
    /// `split`.
    Split,
    /// `join`: by the result.
    Join,
    /// `format`.
    Format,
    /// `matches`.
    Matches,
    /// `find` and `findAll`, whose result has a size.
    Find,
    /// Substring search in a text.
    Contains,
    /// Membership of a value in a list.
    InList,
    /// Equality of two values.
    Equal,
    /// By the shorter of two.
    Compare,
    /// Two texts become one.
    Concat,
    /// Two lists become one.
    ConcatList,
    /// Every element of a list is looked at.
    Walk,
    /// Every element of one list against every one of the other, so often.
    Sets(f64),
    /// By the list that is made.
    Slice,
    Range,
    Reverse,
    /// By the list that is taken apart, and how deep.
    Flatten,
    /// Every element against every other.
    Distinct,
    /// Sorting of the list in this argument; the flag says that it holds texts.
    Sort(usize, bool),
    /// Containment of an address or network in a network; the flag says that it is given as text.
    Network {
        whole: bool,
        text: bool,
    },
    /// Bytes of a text, or its text.
    Encode,
    Decode,
    /// `quote`.
    Quote,
    /// `validate` of a named format.
    Validate,
    /// A selector is read.
    Selector,
}

/// Size of an argument; one without size counts as one.
fn size(values: &[Value<'_>], i: usize) -> u64 {
    let value = match values.get(i) {
        Some(Value::Optional(Some(inner))) => Some(&**inner),
        plain => plain,
    };
    value.and_then(Value::size).unwrap_or(1)
}

/// `⌊n · factor⌋`
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "upstream's formula in floats; casts saturate"
)]
fn floored(n: u64, factor: f64) -> u64 {
    (n as f64 * factor) as u64
}

/// Cost of traversing a value.
fn walk(value: &Value<'_>, fuel: &mut Fuel) -> Result<u64, Error> {
    fuel.burn(1)?;
    match value {
        Value::String(s) => return Ok(floored(s.len() as u64, CHARACTER)),
        Value::Bytes(b) => return Ok(floored(b.len() as u64, CHARACTER)),
        _ => {}
    }
    let mut cost = 0_u64;
    if let Some(items) = value.items() {
        for item in items.iter() {
            cost = cost.saturating_add(walk(item, fuel)?);
        }
    } else if let Some(entries) = value.entries() {
        for (k, v) in entries {
            cost = cost.saturating_add(walk(&k, fuel)?).saturating_add(walk(&v, fuel)?);
        }
    } else {
        cost = 1;
    }
    Ok(cost)
}

/// Elements compared with each other, at most.
fn squared(list: Option<&Value<'_>>) -> u64 {
    let n = list.and_then(Value::size).unwrap_or(0);
    let texts = list.and_then(|l| l.element(0)).is_some_and(|v| matches!(v, Value::String(_) | Value::Bytes(_)));
    let factor = if texts { 2.0 + CHARACTER } else { 2.0 };
    floored(n.saturating_mul(n), factor).saturating_add(1 + NEW_LIST)
}

/// Cost of parsing a selector of this length.
fn selector(length: Range) -> Range {
    Range::fixed(NEW_LIST).plus(length.times(CHARACTER)).plus(length.times(0.5).times(REQUIREMENT))
}

/// Characters of the regular expression behind a named format.
fn pattern_of(format: Option<&Value<'_>>) -> u64 {
    format.and_then(super::named_format::pattern_size).unwrap_or(0)
}

impl Cost {
    /// Reports whether the cost depends on the overload; an unresolved one is counted like any function.
    fn is_chosen(self) -> bool {
        matches!(
            self,
            Self::InList | Self::Compare | Self::Concat | Self::Encode | Self::Decode | Self::Sort(..) | Self::Slice
        )
    }

    /// Cost that is known before the call. `single`: the overload is resolved.
    pub(super) fn before(self, v: &[Value<'_>], single: bool, fuel: &mut Fuel) -> Result<u64, Error> {
        if !single && self.is_chosen() {
            return Ok(1);
        }
        let of = |i| size(v, i);
        let each = |factor: f64| times(of(0), factor);
        Ok(match self {
            Self::Fixed(n) => n,
            Self::Scan(looks) => each(looks * CHARACTER),
            Self::Keep | Self::Prefix | Self::Encode | Self::Decode | Self::Quote | Self::Format => each(CHARACTER),
            Self::Replace | Self::Split => each(2.0 * CHARACTER),
            Self::Join | Self::Slice | Self::Range | Self::Reverse => 0,
            Self::Matches | Self::Find => {
                times(of(0).saturating_add(1), CHARACTER).saturating_mul(times(of(1), PATTERN))
            }
            Self::Contains => each(CHARACTER).saturating_mul(times(of(1), CHARACTER)),
            Self::InList => of(1),
            Self::Equal if matches!(v.first(), Some(Value::Opaque(_))) => 1,
            Self::Compare | Self::Equal => times(of(0).min(of(1)), CHARACTER),
            Self::Concat => times(of(0).saturating_add(of(1)), CHARACTER),
            Self::ConcatList => 1,
            Self::Walk => walk(&v[0], fuel)?,
            Self::Sets(factor) => floored(of(0).saturating_mul(of(1)), factor).saturating_add(1),
            Self::Flatten => {
                let depth = match v.get(1) {
                    Some(Value::Int(depth)) => u64::try_from(*depth).unwrap_or(0),
                    _ => 1,
                };
                of(0).saturating_mul(depth).saturating_add(1 + NEW_LIST)
            }
            Self::Distinct => squared(v.first()),
            Self::Sort(i, _) => squared(v.get(i)),
            Self::Network { whole, text } => {
                let mut cost = times(of(0).saturating_mul(2), CHARACTER);
                if whole {
                    cost += each(CHARACTER) + 1;
                }
                if text && single {
                    cost += times(of(1), CHARACTER);
                }
                cost
            }
            Self::Validate => {
                let pattern = times(pattern_of(v.first()), PATTERN);
                times(of(1).saturating_add(1), CHARACTER).saturating_mul(pattern)
            }
            Self::Selector => selector(Range::fixed(of(1))).max,
        })
    }

    /// Cost that depends on the result; zero for a failure.
    pub(super) fn after(self, result: Option<&Value<'_>>) -> u64 {
        let made = result.and_then(Value::size).unwrap_or(1);
        match self {
            Self::Join => times(made, 2.0 * CHARACTER),
            Self::Slice | Self::Range | Self::Reverse => made.saturating_add(1 + NEW_LIST),
            _ => 0,
        }
    }

    /// The range of the cost, and of the size of the result when it has one.
    pub(super) fn estimate(self, given: &Given<'_>) -> (Range, Option<Range>) {
        let of = |i: usize| given.size(i);
        let plain = |cost: Range| (cost, None);
        let listed = |size: Range, factor: f64| (size.times(factor).plus(Range::fixed(1 + NEW_LIST)), Some(size));
        match self {
            Self::Fixed(n) => plain(Range::fixed(n)),
            Self::Scan(looks) => plain(of(0).times(looks * CHARACTER)),
            Self::Keep => (of(0).times(CHARACTER), Some(of(0))),
            Self::Prefix => plain(of(1).times(CHARACTER)),
            Self::Replace => (of(0).times(2.0 * CHARACTER), Some(replaced(of(0), of(1), of(2)))),
            Self::Split => {
                #[expect(clippy::cast_sign_loss, reason = "as upstream's estimate takes a negative literal")]
                let most = given.literal(2).map_or(of(0).max, |n| n as u64);
                (of(0).times(2.0 * CHARACTER), Some(Range { min: 0, max: most }))
            }
            Self::Join => {
                let list = of(0);
                let mut joined = given.element().map_or(Range::fixed(0), |(_, size)| list.by(size));
                if given.count() > 1 {
                    let gaps = Range { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
                    joined = joined.plus(of(1).by(gaps));
                }
                (joined.times(CHARACTER), Some(joined))
            }
            Self::Format => plain(of(0).times(CHARACTER)),
            Self::Matches | Self::Find => {
                let text = of(0).plus(Range::fixed(1)).times(CHARACTER);
                let found = matches!(self, Self::Find).then_some(Range { min: 0, max: of(0).max });
                (text.by(of(1).times(PATTERN)), found)
            }
            Self::Contains => plain(of(0).times(CHARACTER).by(of(1).times(CHARACTER))),
            Self::InList => plain(of(1)),
            Self::Equal => plain(same(given).unwrap_or_else(|| compared(given))),
            Self::Compare => plain(compared(given)),
            Self::Concat => {
                let both = of(0).plus(of(1));
                (both.times(CHARACTER), Some(both))
            }
            Self::ConcatList => (Range::fixed(1), Some(of(0).plus(of(1)))),
            Self::Walk => {
                let Some((texts, size)) = given.element() else { return plain(of(0).times(CHARACTER)) };
                let each = if texts { size.times(CHARACTER) } else { Range::fixed(0) };
                plain(of(0).by(Range::fixed(1).plus(each)))
            }
            Self::Sets(factor) => plain(of(0).by(of(1)).times(factor).plus(Range::fixed(1))),
            Self::Slice => {
                let at = |i, otherwise: u64| given.literal(i).map_or(otherwise, |n| u64::try_from(n).unwrap_or(0));
                // It begins at the start and ends at the end where nothing else is known.
                listed(Range::fixed(at(2, of(0).max).wrapping_sub(at(1, 0))), 1.0)
            }
            Self::Range => {
                let n = given.literal(0).map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(0));
                listed(Range::fixed(n), 1.0)
            }
            Self::Reverse => listed(of(0), 1.0),
            Self::Flatten => {
                let depth = given.literal(1).map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(0));
                #[expect(clippy::cast_precision_loss, reason = "upstream's formula in floats")]
                listed(of(0), if given.count() > 1 { depth as f64 } else { 1.0 })
            }
            Self::Distinct => listed(of(0).by(of(0)), 2.0),
            Self::Sort(i, texts) => listed(of(i).by(of(i)), if texts { 2.0 + CHARACTER } else { 2.0 }),
            Self::Network { whole, text } => {
                let mut cost = ADDRESS.plus(ADDRESS).times(CHARACTER);
                if whole {
                    cost = cost.plus(ADDRESS.times(CHARACTER)).plus(Range::fixed(1));
                }
                if text {
                    cost = cost.plus(of(1).times(CHARACTER));
                }
                plain(cost)
            }
            Self::Encode => {
                let n = of(0);
                (n.times(CHARACTER), Some(Range { min: n.min, max: n.max.wrapping_mul(4) }))
            }
            Self::Decode => (of(0).times(CHARACTER), Some(Range { min: of(0).min / 4, max: of(0).max })),
            Self::Quote => {
                let n = of(0);
                let quoted = Range { min: n.min.wrapping_add(2), max: n.max.wrapping_mul(2).wrapping_add(2) };
                (n.times(CHARACTER), Some(quoted))
            }
            Self::Validate => plain(of(1).times(CHARACTER).times(FORMAT_PATTERN * PATTERN)),
            Self::Selector => plain(selector(of(1))),
        }
    }
}

/// Cost of comparing two texts, whichever is shorter.
fn compared(given: &Given<'_>) -> Range {
    let most = given.size(0).max.min(given.size(1).max);
    Range { min: u64::from(most > 0), max: most }.times(CHARACTER)
}

/// Cost of comparing two values of an opaque type; `None` for others.
fn same(given: &Given<'_>) -> Option<Range> {
    let (a, b) = (given.of(0)?, given.of(1)?);
    let Type::Opaque(name) = a else { return None };
    if !a.is(b) {
        return None;
    }
    Some(match *name {
        "kubernetes.NamedFormat" => Range { min: 1, max: FORMAT_NAME }.times(CHARACTER),
        "kubernetes.URL" => {
            let most = given.known(1).map_or(1, |size| size.max);
            Range { min: 1, max: most }.times(CHARACTER)
        }
        _ => Range::fixed(1),
    })
}

/// Length of a text with every `old` replaced by `new`.
fn replaced(text: Range, old: Range, new: Range) -> Range {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "upstream's formula in floats; casts saturate"
    )]
    let parts = |n: u64, by: u64| (n as f64 / by as f64).ceil() as u64;
    let (most, kept_most) = if old.min == 0 {
        (text.max.saturating_add(1), text.max)
    } else if new.max <= old.min {
        (0, text.max)
    } else {
        (parts(text.max, old.min), 0)
    };
    let (least, kept_least) = if old.max == 0 {
        (text.min.saturating_add(1), text.min)
    } else if old.max <= new.min {
        (0, text.min)
    } else {
        (parts(text.min, old.max), 0)
    };
    Range { min: least, max: most }.by(new).plus(Range { min: kept_least, max: kept_most })
}
