//! Negotiation: from `Accept` and `Content-Type` to formats, from bytes to trees and back.
//!
//! In come headers and bodies, out go decoded objects and encoded answers. Knows schemas, no verbs and no storage.

pub mod accept;
mod body;
mod encode;

pub use accept::{
    Accepted, Format, Media, NotAcceptable, ObjectForm, for_people, names_any, parse, parse_aggregated, parse_plain,
};
pub use body::{
    BodyTextError, Decoded, Expected, RequestBody, decode, decode_object, decode_patched, decode_tree, json_text,
    other_kind, unpatched,
};
pub use encode::{envelope, metadata_of, object, partial_list_kind, status, table_kind, written};

use proto::resources::Resource;
use shared::status::Status;

use crate::registry::behavior;

/// The 406 for what was asked, of something that comes as a stream as well or does not.
pub fn not_acceptable(media: Media, streams: bool, why: &NotAcceptable) -> Status {
    const STREAMS: [&str; 3] =
        ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch", "application/cbor-seq"];
    let offered = if media.cbor { &STREAMS[..] } else { &STREAMS[..2] };
    match why {
        NotAcceptable::Format => unavailable(&[media.bodies(), if streams { offered } else { &[] }].concat()),
        NotAcceptable::Shape => Status::not_acceptable(media.bodies()),
        NotAcceptable::Stream => Status::not_acceptable(offered),
    }
}

/// The 406 for the metadata of a list where one object is answered, and the other way round.
pub fn not_of_that_form(shape: ObjectForm, row: &Resource, kind: &str) -> Option<Status> {
    let list = kind.ends_with("List");
    let (asked, what) = match shape {
        ObjectForm::Metadata(_) if list => ("PartialObjectMetadata", "a list"),
        ObjectForm::MetadataList(_) if !list => ("PartialObjectMetadataList", "not a list"),
        _ => return None,
    };
    if behavior(row).go_package(row).is_none() && !list && kind != "Scale" {
        // What has no Go type claims to be a list and is found out later.
        return Some(Status::unknown("content is not a list"));
    }
    let found = go_type(row, kind);
    let text = format!("you requested {asked}, but the requested object is {what} ({found})");
    Some(Status::failure(406, "NotAcceptable", text))
}

/// Go type of an object in upstream's error texts.
fn go_type(row: &Resource, kind: &str) -> String {
    let package = match (behavior(row).go_package(row), kind) {
        (None, "Scale") => "v1",
        (None, _) if kind.ends_with("List") => return "*unstructured.UnstructuredList".to_owned(),
        (None, _) => return "*unstructured.Unstructured".to_owned(),
        (_, "Scale") => "autoscaling",
        (_, "TokenRequest") => "authentication",
        // Both groups of events have one internal type.
        (Some("events"), _) => "core",
        (Some(package), _) => package,
    };
    format!("*{package}.{kind}")
}

/// The 406 of the generic handler, with what there is.
pub fn unavailable(offered: &[&str]) -> Status {
    let text = format!("406: Not Acceptable\n\nAvailable representations: {}", offered.join(", "));
    let mut status = Status::failure(406, "NotAcceptable", text);
    status.details = Some(shared::status::Details::default());
    status
}
