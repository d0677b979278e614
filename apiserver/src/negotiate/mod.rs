//! Negotiation: from `Accept` and `Content-Type` to formats, from bytes to trees and back.
//!
//! In come headers and bodies, out go decoded objects and encoded answers. Knows schemas, no verbs and no storage.

pub mod accept;
mod body;
mod encode;

pub use accept::{Accepted, Format, NotAcceptable, Shape, parse};
pub use body::{
    Decoded, Expected, TOO_DEEP, decode, decode_custom, decode_patched, decode_tree, other_kind, too_deep, unpatched,
};
pub use encode::{envelope, metadata_of, object, partial_list_kind, status, table_kind};

use shared::status::Status;

/// Media types a body may have.
pub const BODY_TYPES: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// The 406 for what was asked.
pub fn not_acceptable(why: &NotAcceptable) -> Status {
    match why {
        NotAcceptable::Format => unavailable(&[
            BODY_TYPES[0],
            BODY_TYPES[1],
            BODY_TYPES[2],
            "application/json;stream=watch",
            "application/vnd.kubernetes.protobuf;stream=watch",
        ]),
        NotAcceptable::Shape => Status::not_acceptable(&BODY_TYPES),
    }
}

/// The 406 of the generic handler, with what there is.
pub fn unavailable(offered: &[&str]) -> Status {
    let text = format!("406: Not Acceptable\n\nAvailable representations: {}", offered.join(", "));
    let mut status = Status::failure(406, "NotAcceptable", text);
    status.details = Some(shared::status::Details::default());
    status
}
