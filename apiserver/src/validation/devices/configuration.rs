//! Configuration that only a driver understands.

use proto::Value;
use shared::status::field::{Error, Path};

use crate::rules::options::FieldErrors;
use crate::rules::tree::{get, has, text};
use crate::validation::volume::driver_name;

/// Most bytes of parameters.
const MAX_BYTES: usize = 10 * 1024;

/// `opaque` of a configuration; `new` is what was not stored yet.
pub(super) fn opaque(configuration: &Value, new: bool, path: &Path, out: &mut FieldErrors) {
    let path = path.child("opaque");
    if !has(configuration, "opaque") {
        out.push(Error::required(path, ""));
        return;
    }
    let opaque = get(configuration, "opaque");
    driver_name(text(opaque, "driver"), &path.child("driver"), out);
    object(get(opaque, "parameters"), new, &path.child("parameters"), out);
}

/// Free-form JSON that has to be an object of bounded size.
pub(super) fn object(value: &Value, new: bool, path: &Path, out: &mut FieldErrors) {
    if value.is_null() {
        out.push(Error::required(path, ""));
    } else if new && value.to_string().len() > MAX_BYTES {
        out.push(Error::too_long(path, MAX_BYTES));
    } else if !value.is_object() {
        out.push(Error::invalid(path, "<value omitted>", "must be a valid JSON object"));
    }
}
