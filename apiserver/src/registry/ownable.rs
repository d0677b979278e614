//! Fields that managers can own.

use proto::merge::apply::Ownable;
use proto::merge::fieldset::Set;

/// All fields but these.
pub(super) fn except(fields: &[&[&str]]) -> Ownable {
    Ownable::Except(Set::of_fields(fields))
}
