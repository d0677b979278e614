//! Rules that taint devices.

use proto::Value;
use shared::status::field::{Error, Path};

use super::EFFECTS;
use super::names::pool_name;
use crate::rules::names::{complain, dns1123_label, label_key, label_value};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{at, get, has, list, text};
use crate::validation::conditions::conditions;
use crate::validation::volume::driver_name;

/// Most conditions of a rule.
const MAX_CONDITIONS: usize = 8;

/// A new rule.
pub(crate) fn rule(object: &Value, out: &mut FieldErrors) {
    spec(get(object, "spec"), "", out);
}

/// A changed rule: an effect that was accepted before stays acceptable.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    spec(get(new, "spec"), text(at(old, &["spec", "taint"]), "effect"), out);
}

fn spec(spec: &Value, effect_before: &str, out: &mut FieldErrors) {
    let (selector, path) = (get(spec, "deviceSelector"), Path::of(&["spec", "deviceSelector"]));
    if has(selector, "driver") {
        driver_name(text(selector, "driver"), &path.child("driver"), out);
    }
    if has(selector, "pool") {
        pool_name(text(selector, "pool"), &path.child("pool"), out);
    }
    if has(selector, "device") {
        let name = text(selector, "device");
        complain(out, &path.child("device"), name, dns1123_label(name));
    }
    taint(get(spec, "taint"), effect_before, &Path::of(&["spec", "taint"]), out);
}

/// A taint, which may keep the effect it had.
pub(super) fn taint(taint: &Value, effect_before: &str, path: &Path, out: &mut FieldErrors) {
    let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
    complain(out, &path.child("key"), key, label_key(key));
    complain(out, &path.child("value"), value, label_value(value));
    if effect.is_empty() {
        out.push(Error::required(path.child("effect"), ""));
    } else if effect != effect_before && !EFFECTS.contains(&effect) {
        out.push(Error::not_supported(path.child("effect"), effect, &EFFECTS));
    }
}

/// Validates the status of a taint rule.
pub(crate) fn status(new: &Value, _: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    conditions(status, &path, out);
    let count = list(status, "conditions").len();
    if count > MAX_CONDITIONS {
        out.push(Error::too_many(path.child("conditions"), count, MAX_CONDITIONS));
    }
}
