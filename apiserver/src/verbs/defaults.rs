//! Defaults of a kind.

use proto::Value;
use proto::schema::Message;

/// Fills in what the client left out.
pub fn apply(_schema: &Message, _object: &mut Value) {}
