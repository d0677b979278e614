//! Negotiation: from `Accept` and `Content-Type` to formats, from bytes to trees and back.
//!
//! In come headers and bodies, out go decoded objects and encoded answers. Knows schemas, no verbs and no storage.

pub mod accept;
mod body;
mod encode;

pub use accept::{Accepted, Format, Media, NotAcceptable, Shape, parse};
pub use body::{
    Decoded, Expected, Sent, decode, decode_custom, decode_patched, decode_tree, json_text, other_kind, unpatched,
};
pub use encode::{envelope, metadata_of, object, partial_list_kind, status, table_kind};

use shared::status::Status;

/// The 406 for what was asked.
pub fn not_acceptable(media: Media, why: &NotAcceptable) -> Status {
    const STREAMS: [&str; 3] =
        ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch", "application/cbor-seq"];
    match why {
        NotAcceptable::Format => {
            let streams = if media.cbor { &STREAMS } else { &STREAMS[..2] };
            unavailable(&[media.bodies(), streams].concat())
        }
        NotAcceptable::Shape => Status::not_acceptable(media.bodies()),
    }
}

/// The 406 of the generic handler, with what there is.
pub fn unavailable(offered: &[&str]) -> Status {
    let text = format!("406: Not Acceptable\n\nAvailable representations: {}", offered.join(", "));
    let mut status = Status::failure(406, "NotAcceptable", text);
    status.details = Some(shared::status::Details::default());
    status
}
