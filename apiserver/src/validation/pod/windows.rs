//! Validation of Windows options, and of fields that an operating system does not support. Answers for upstream's
//! `validateWindows`, `validateWindowsSecurityContextOptions`.

use proto::Value;
use shared::status::field::{Error, Path};

use crate::rules::names::{complain, dns1123_subdomain};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{flag, get, has, list, text};

const MAX_CREDENTIALS: usize = 64 * 1024;
const MAX_DOMAIN: usize = 256;
const MAX_USER: usize = 104;
const MAX_LABEL: usize = 63;
/// Fields of a pod that only Linux knows, with whether they are beside its security context.
const LINUX_OF_PODS: [(&str, bool); 15] = [
    ("appArmorProfile", false),
    ("seLinuxOptions", false),
    ("hostUsers", true),
    ("hostPID", true),
    ("hostIPC", true),
    ("seccompProfile", false),
    ("fsGroup", false),
    ("fsGroupChangePolicy", false),
    ("sysctls", false),
    ("shareProcessNamespace", true),
    ("runAsUser", false),
    ("runAsGroup", false),
    ("supplementalGroups", false),
    ("supplementalGroupsPolicy", false),
    ("seLinuxChangePolicy", false),
];
/// Fields of containers that Windows does not support.
const LINUX_OF_CONTAINERS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];
const KINDS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// `windowsOptions` of a pod or container.
pub(super) fn options(options: &Value, path: &Path, out: &mut FieldErrors) {
    if has(options, "gmsaCredentialSpecName") {
        let name = text(options, "gmsaCredentialSpecName");
        complain(out, &path.child("gmsaCredentialSpecName"), name, dns1123_subdomain(name));
    }
    if has(options, "gmsaCredentialSpec") {
        let (spec, path) = (text(options, "gmsaCredentialSpec"), path.child("gmsaCredentialSpec"));
        if spec.is_empty() {
            out.push(Error::invalid(path, spec, "gmsaCredentialSpec cannot be an empty string"));
        } else if spec.len() > MAX_CREDENTIALS {
            let why = format!("gmsaCredentialSpec size must be under {} KiB", MAX_CREDENTIALS / 1024);
            out.push(Error::invalid(path, spec, &why));
        }
    }
    if has(options, "runAsUserName") {
        let name = text(options, "runAsUserName");
        for why in user_name(name) {
            out.push(Error::invalid(path.child("runAsUserName"), name, &why));
        }
    }
}

/// Complaints about a user, with or without a domain before it.
fn user_name(name: &str) -> Vec<String> {
    let one = |why: &str| vec![format!("runAsUserName {why}")];
    if name.is_empty() {
        return one("cannot be an empty string");
    }
    if name.chars().any(|c| u32::from(c) < 0x20 || c == '\u{7f}') {
        return one("cannot contain control characters");
    }
    let (domain, user) = match name.split_once('\\') {
        Some((_, rest)) if rest.contains('\\') => return one("cannot contain more than one backslash"),
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    let mut out = Vec::new();
    if let Some(domain) = domain {
        if domain.len() >= MAX_DOMAIN {
            out.push(format!("runAsUserName's Domain length must be under {MAX_DOMAIN} characters"));
        }
        if !net_bios(domain) && !is_dns(domain) {
            out.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format".to_owned());
        }
    }
    if user.is_empty() {
        out.push("runAsUserName's User cannot be empty".to_owned());
    } else if user.len() > MAX_USER {
        out.push(format!("runAsUserName's User length must not be longer than {MAX_USER} characters"));
    }
    if !user.is_empty() && user.bytes().all(|b| matches!(b, b'.' | b' ')) {
        out.push("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    let bad = "\"/\\:;|=,+*?<>@[]";
    if user.contains(|c| bad.contains(c)) {
        out.push(format!("runAsUserName's User cannot contain the following characters: {bad}"));
    }
    out
}

fn net_bios(domain: &str) -> bool {
    domain.chars().count() <= 15
        && !domain.starts_with('.')
        && !domain.is_empty()
        && !domain.contains(|c| "\\/:*?\"<>|".contains(c))
}

fn is_dns(domain: &str) -> bool {
    let label = |part: &str| {
        let edge = |b: &u8| b.is_ascii_alphanumeric();
        let bytes = part.as_bytes();
        bytes.len() <= MAX_LABEL
            && bytes.first().is_some_and(edge)
            && bytes.last().is_some_and(edge)
            && bytes.iter().all(|b| edge(b) || *b == b'-')
    };
    domain.split('.').all(label)
}

/// Reports whether any container of a pod is a Windows host process.
pub(in crate::validation) fn has_host_process(spec: &Value) -> bool {
    let pod = host_process(get(spec, "securityContext"));
    let own = |c: &Value| host_process(get(c, "securityContext")).or(pod) == Some(true);
    KINDS.iter().any(|kind| list(spec, kind).iter().any(own))
}

fn host_process(context: &Value) -> Option<bool> {
    get(get(context, "windowsOptions"), "hostProcess").as_bool()
}

/// Containers that are processes of the host: all or none, on the host's network.
pub(super) fn host_processes(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let pod = host_process(get(spec, "securityContext"));
    let (mut with, mut without) = (0, 0);
    for kind in KINDS {
        for (i, container) in list(spec, kind).iter().enumerate() {
            let own = host_process(get(container, "securityContext"));
            if let (Some(own), Some(pod)) = (own, pod)
                && own != pod
            {
                let path = path.child(kind).index(i).child("securityContext").child("windowsOptions");
                let why = format!("pod hostProcess value must be identical if both are specified, was {pod}");
                out.push(Error::invalid(path.child("hostProcess"), own, &why));
            }
            match own.or(pod) {
                Some(true) => with += 1,
                _ => without += 1,
            }
        }
    }
    if with == 0 {
        return;
    }
    if without > 0 {
        let why = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        out.push(Error::invalid(path, "", why));
    }
    if !flag(spec, "hostNetwork") {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        out.push(Error::invalid(path.child("hostNetwork"), false, why));
    }
}

/// `os`, and what is not there on it.
pub(super) fn operating_system(spec: &Value, path: &Path, out: &mut FieldErrors) {
    if !has(spec, "os") {
        return;
    }
    match text(get(spec, "os"), "name") {
        "" => out.push(Error::required(path.child("os").child("name"), "")),
        "linux" => linux(spec, path, out),
        "windows" => windows(spec, path, out),
        other => out.push(Error::not_supported(path.child("os"), other, &["linux", "windows"])),
    }
}

fn linux(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let mut no = |context: &Value, path: Path| {
        if has(context, "windowsOptions") {
            let why = "windows options cannot be set for a linux pod";
            out.push(Error::forbidden(path.child("securityContext").child("windowsOptions"), why));
        }
    };
    no(get(spec, "securityContext"), path.clone());
    for kind in KINDS {
        for (i, container) in list(spec, kind).iter().enumerate() {
            no(get(container, "securityContext"), path.child(kind).index(i));
        }
    }
}

fn windows(spec: &Value, path: &Path, out: &mut FieldErrors) {
    const WHY: &str = "cannot be set for a windows pod";
    let is_set = |holder: &Value, key: &str| match get(holder, key) {
        Value::Array(items) => !items.is_empty(),
        Value::Bool(false) => !matches!(key, "hostPID" | "hostIPC"),
        other => !other.is_null(),
    };
    let context = get(spec, "securityContext");
    for (key, beside) in LINUX_OF_PODS {
        let holder = if beside { spec } else { context };
        let path = if beside { path.clone() } else { path.child("securityContext") };
        if is_set(holder, key) {
            out.push(Error::forbidden(path.child(key), WHY));
        }
    }
    for kind in KINDS {
        for (i, container) in list(spec, kind).iter().enumerate() {
            let context = get(container, "securityContext");
            for key in LINUX_OF_CONTAINERS.into_iter().filter(|k| is_set(context, k)) {
                out.push(Error::forbidden(path.child(kind).index(i).child("securityContext").child(key), WHY));
            }
        }
    }
}
