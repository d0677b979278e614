//! What functions cost: counted when they run, estimated before. The numbers are upstream's, because what may be stored
//! and what is cancelled depends on them.

use super::estimate::{Range, Sized};
use super::value::Value;
use super::{Error, Fuel};

/// What looking at one character costs.
pub(super) const CHARACTER: f64 = 0.1;
/// What one character of a regular expression costs per looked-at character.
const PATTERN: f64 = 0.25;
/// Characters of the longest regular expression behind a named format.
const FORMAT_PATTERN: u64 = 60;

/// The cost of a function, and how large its result is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cost {
    /// Always the same.
    Fixed(u64),
    /// By the size of an argument.
    Scan(usize, f64),
    /// By the size of the first argument, when it runs; estimated as nothing special.
    Parse(f64),
    /// Looks at the receiver; the result is as large at most.
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
    /// `matches`, `find`, `findAll`; whether the result has a size.
    Regex(bool),
    /// Whether a text contains another.
    Contains,
    /// Whether a list contains a value.
    InList,
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
    /// Every element against every other.
    Quadratic,
    /// Whether a network contains an address or network; whether it is given as text.
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
    /// By a number given: as many elements are made.
    Count,
}

fn size(values: &[Value<'_>], i: usize) -> u64 {
    values.get(i).and_then(Value::size).unwrap_or(1)
}

/// `⌈n · factor⌉`
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
pub(super) fn times(n: u64, factor: f64) -> u64 {
    (n as f64 * factor).ceil() as u64
}

/// What walking over a value costs.
fn walk(value: &Value<'_>, fuel: &mut Fuel) -> Result<u64, Error> {
    fuel.burn(1)?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
    let floor = |n: usize| (n as f64 * CHARACTER) as u64;
    match value {
        Value::String(s) => return Ok(floor(s.len())),
        Value::Bytes(b) => return Ok(floor(b.len())),
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

impl Cost {
    /// What is known before the function runs.
    pub(super) fn before(self, v: &[Value<'_>], fuel: &mut Fuel) -> Result<u64, Error> {
        let of = |i| size(v, i);
        Ok(match self {
            Self::Fixed(n) => n,
            Self::Scan(i, factor) => times(of(i), factor),
            Self::Parse(factor) => times(of(0), factor),
            Self::Keep | Self::Prefix | Self::Encode | Self::Decode | Self::Quote | Self::Format => {
                times(of(0), CHARACTER)
            }
            Self::Replace | Self::Split => times(of(0), 2.0 * CHARACTER),
            Self::Join => 0,
            Self::Regex(_) => times(of(0) + 1, CHARACTER).saturating_mul(times(of(1), PATTERN)),
            Self::Contains => times(of(0), CHARACTER).saturating_mul(times(of(1), CHARACTER)),
            Self::InList => of(1),
            Self::Compare => times(of(0).min(of(1)), CHARACTER),
            Self::Concat => times(of(0).saturating_add(of(1)), CHARACTER),
            Self::ConcatList => 1,
            Self::Walk => walk(&v[0], fuel)?,
            Self::Sets(factor) => times(of(0).saturating_mul(of(1)), factor).saturating_add(1),
            Self::Quadratic => of(0).saturating_mul(of(0)).saturating_add(1),
            Self::Network { whole, text } => {
                let bytes = 16;
                let mut cost = times(2 * bytes, CHARACTER);
                if whole {
                    cost += times(bytes, CHARACTER) + 1;
                }
                if text {
                    cost += times(of(1), CHARACTER);
                }
                cost
            }
            Self::Validate => times(of(1) + 1, CHARACTER).saturating_mul(times(FORMAT_PATTERN, PATTERN)),
            Self::Count => match v.first() {
                Some(Value::Int(n)) => u64::try_from(*n).unwrap_or(0).saturating_add(1),
                _ => 1,
            },
        })
    }

    /// What is known by the result.
    pub(super) fn after(self, result: &Value<'_>) -> u64 {
        match self {
            Self::Join => times(result.size().unwrap_or(1), 2.0 * CHARACTER),
            _ => 0,
        }
    }

    /// The range of the cost, and of the size of the result when it has one. `element` is what is known of the elements of
    /// the first argument.
    pub(super) fn estimate(self, sizes: &[Sized], element: Option<Range>) -> (Range, Option<Range>) {
        let of = |i: usize| sizes.get(i).map_or(Range::UNKNOWN, |s| s.size.unwrap_or(Range::UNKNOWN));
        let plain = |cost: Range| (cost, None);
        match self {
            Self::Fixed(n) => plain(Range::fixed(n)),
            Self::Scan(i, factor) => plain(of(i).times(factor)),
            Self::Parse(_) => plain(Range::fixed(1)),
            Self::Keep => (of(0).times(CHARACTER), Some(of(0))),
            Self::Prefix => plain(of(1).times(CHARACTER)),
            Self::Replace => (of(0).times(2.0 * CHARACTER), Some(replaced(of(0), of(1), of(2)))),
            Self::Split => (of(0).times(2.0 * CHARACTER), Some(Range { min: 0, max: of(0).max })),
            Self::Join => {
                let list = of(0);
                let mut joined = list.by(element.unwrap_or(Range::UNKNOWN));
                if sizes.len() > 1 {
                    let gaps = Range { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
                    joined = joined.plus(of(1).by(gaps));
                }
                (joined.times(CHARACTER), Some(joined))
            }
            Self::Format => (of(0).times(CHARACTER), Some(Range::UNKNOWN)),
            Self::Regex(sized) => {
                let text = of(0).plus(Range::fixed(1)).times(CHARACTER);
                let found = sized.then_some(Range { min: 0, max: of(0).max });
                (text.by(of(1).times(PATTERN)), found)
            }
            Self::Contains => plain(of(0).times(CHARACTER).by(of(1).times(CHARACTER))),
            Self::InList => plain(of(1)),
            Self::Compare => {
                let most = of(0).max.min(of(1).max);
                plain(Range { min: u64::from(most > 0), max: most }.times(CHARACTER))
            }
            Self::Concat => {
                let both = of(0).plus(of(1));
                (both.times(CHARACTER), Some(both))
            }
            Self::ConcatList => (Range::fixed(1), Some(of(0).plus(of(1)))),
            Self::Walk => {
                let each = Range::fixed(1).plus(element.map_or(Range::fixed(0), |e| e.times(CHARACTER)));
                plain(of(0).by(each))
            }
            Self::Sets(factor) => plain(of(0).by(of(1)).times(factor).plus(Range::fixed(1))),
            Self::Quadratic => (of(0).by(of(0)).plus(Range::fixed(1)), Some(of(0))),
            Self::Network { whole, text } => {
                let bytes = Range { min: 4, max: 16 };
                let mut cost = bytes.plus(bytes).times(CHARACTER);
                if whole {
                    cost = cost.plus(bytes.times(CHARACTER)).plus(Range::fixed(1));
                }
                if text {
                    cost = cost.plus(of(1).times(CHARACTER));
                }
                plain(cost)
            }
            Self::Encode => {
                let n = of(0);
                (n.times(CHARACTER), Some(Range { min: n.min, max: n.max.saturating_mul(4) }))
            }
            Self::Decode => (of(0).times(CHARACTER), Some(Range { min: of(0).min / 4, max: of(0).max })),
            Self::Quote => {
                let n = of(0);
                let quoted = Range { min: n.min.saturating_add(2), max: n.max.saturating_mul(2).saturating_add(2) };
                (n.times(CHARACTER), Some(quoted))
            }
            Self::Validate => {
                let text = of(1).plus(Range::fixed(1)).times(CHARACTER);
                plain(text.by(Range::fixed(FORMAT_PATTERN).times(PATTERN)))
            }
            Self::Count => (Range::UNKNOWN, Some(Range::UNKNOWN)),
        }
    }
}

/// How long a text is after every `old` in it became `new`.
fn replaced(text: Range, old: Range, new: Range) -> Range {
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
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
