//! Probes and lifecycle hooks. Answers for upstream's `validateProbe`, `validateLifecycle`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::context::PodContext;
use super::signals;
use crate::rules::names::{complain, not_negative, pattern, port_name, port_number};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{get, has, int, list, text};

/// `lifecycle`.
pub(super) fn lifecycle(container: &Value, around: &PodContext<'_>, path: &Path, out: &mut FieldErrors) {
    let (hooks, path) = (get(container, "lifecycle"), path.child("lifecycle"));
    for key in ["postStart", "preStop"] {
        if has(hooks, key) {
            handler(get(hooks, key), &["exec", "httpGet", "tcpSocket", "sleep"], around.grace, &path.child(key), out);
        }
    }
    if has(hooks, "stopSignal") {
        signals::stop(text(hooks, "stopSignal"), around.os, &path.child("stopSignal"), out);
    }
}

/// `livenessProbe` and `startupProbe`.
pub(super) fn liveness(container: &Value, key: &str, grace: i64, path: &Path, out: &mut FieldErrors) {
    if !has(container, key) {
        return;
    }
    let (probe, path) = (get(container, key), path.child(key));
    check(probe, grace, &path, out);
    let successes = int(probe, "successThreshold").unwrap_or_default();
    if successes != 1 {
        out.push(Error::invalid(path.child("successThreshold"), successes, "must be 1"));
    }
}

/// `readinessProbe`.
pub(super) fn readiness(container: &Value, grace: i64, path: &Path, out: &mut FieldErrors) {
    if !has(container, "readinessProbe") {
        return;
    }
    let (probe, path) = (get(container, "readinessProbe"), path.child("readinessProbe"));
    check(probe, grace, &path, out);
    if let Some(seconds) = int(probe, "terminationGracePeriodSeconds") {
        let path = path.child("terminationGracePeriodSeconds");
        out.push(Error::invalid(path, seconds, "must not be set for readinessProbes"));
    }
}

fn check(probe: &Value, grace: i64, path: &Path, out: &mut FieldErrors) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], grace, path, out);
    for key in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        not_negative(out, path.child(key), int(probe, key));
    }
    if let Some(seconds) = int(probe, "terminationGracePeriodSeconds").filter(|s| *s <= 0) {
        out.push(Error::invalid(path.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0"));
    }
}

fn handler(value: &Value, kinds: &[&str], grace: i64, path: &Path, out: &mut FieldErrors) {
    let mut first = true;
    for kind in kinds.iter().filter(|k| has(value, k)) {
        let path_of = path.child(kind);
        if !first {
            out.push(Error::forbidden(path_of, "may not specify more than 1 handler type"));
            continue;
        }
        first = false;
        let action = get(value, kind);
        match *kind {
            "exec" => {
                if list(action, "command").is_empty() {
                    out.push(Error::required(path_of.child("command"), ""));
                }
            }
            "httpGet" => http(action, &path_of, out),
            "sleep" => {
                let seconds = int(action, "seconds").unwrap_or_default();
                if seconds < 0 || seconds > grace {
                    let message = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    out.push(Error::invalid(path_of, seconds, &message));
                }
            }
            _ => port(action, &path_of, out),
        }
    }
    if first {
        out.push(Error::required(path, "must specify a handler type"));
    }
}

fn http(action: &Value, path: &Path, out: &mut FieldErrors) {
    if text(action, "path").is_empty() {
        out.push(Error::required(path.child("path"), ""));
    }
    port(action, path, out);
    let scheme = text(action, "scheme");
    if !matches!(scheme, "HTTP" | "HTTPS") {
        out.push(Error::not_supported(path.child("scheme"), scheme, &["HTTP", "HTTPS"]));
    }
    for header in list(action, "httpHeaders") {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let message = "a valid HTTP header must consist of alphanumeric characters or '-'";
            let message = pattern(message, "[-A-Za-z0-9]+", &["X-Header-Name"]);
            out.push(Error::invalid(path.child("httpHeaders"), name, &message));
        }
    }
}

/// A port by number or name.
fn port(action: &Value, path: &Path, out: &mut FieldErrors) {
    port_or_name(get(action, "port"), &path.child("port"), out);
}

/// A number or a name of a port.
pub(in crate::validation) fn port_or_name(value: &Value, path: &Path, out: &mut FieldErrors) {
    match value {
        Value::String(name) => complain(out, path, name, port_name(name)),
        other => {
            let number = other.as_i64().unwrap_or_default();
            out.extend(port_number(number).into_iter().map(|m| Error::invalid(path, number, &m)));
        }
    }
}
