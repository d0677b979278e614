//! `jsonpatch.escapeKey`, known in mutations.

use super::{Args, Entry, Where, function, text};
use crate::cel::cost::Cost;
use crate::cel::value::Answer;

pub(super) const TABLE: &[Entry] =
    &[Entry { known: Where::Patches, ..function("jsonpatch.escapeKey", "string", "string", Cost::Keep, escape) }];

/// A key as a part of a JSON pointer.
fn escape<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(args.text(0)?.replace('~', "~0").replace('/', "~1"))
}
