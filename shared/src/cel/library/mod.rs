//! The functions of expressions: those of the language, the community's for texts, lists and sets, and Kubernetes' own.
//!
//! A function is one row: its name, the types it takes and makes, what it costs, what it does. The checker, the evaluator
//! and the estimate all read the same row. What is of no CEL type is opaque: only these functions see inside.

mod address;
pub(super) mod authorizer;
mod convert;
mod entry;
pub(super) mod format;
mod lists;
mod operators;
mod optional;
mod patch;
mod print;
pub(super) mod quantity;
mod regex;
pub(super) mod semver;
mod text;
mod time;
mod url;

use entry::{ONE, Where, bool, function, int, method, text};

use super::Extras;
use super::opaque::opaque;

pub(super) use entry::{Args, Entry};
pub(super) use print::{Piece, pieces, unfit};
pub(super) use time::at;
pub use time::{duration, timestamp};

const TABLES: [&[Entry]; 13] = [
    convert::TABLE,
    text::TABLE,
    print::TABLE,
    time::TABLE,
    time::MORE,
    optional::TABLE,
    regex::TABLE,
    url::TABLE,
    quantity::TABLE,
    address::TABLE,
    semver::TABLE,
    format::TABLE,
    authorizer::TABLE,
];

/// The functions of a name.
pub(super) fn overloads(name: &str, member: bool, extras: Extras) -> impl Iterator<Item = &'static Entry> {
    let all = operators::TABLES.into_iter().chain(lists::TABLES).chain(TABLES).chain([patch::TABLE]).flatten();
    all.filter(move |e| e.name == name && e.member == member && (e.known == Where::Everywhere || extras.patch))
}
