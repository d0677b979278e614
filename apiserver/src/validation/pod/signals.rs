//! Signals that stop containers.

use crate::rules::options::FieldErrors;
use shared::status::field::{Error, Path};

const OF_WINDOWS: [&str; 2] = ["SIGKILL", "SIGTERM"];
/// In the order in which clients are told of them.
const OF_LINUX: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// `stopSignal`: what there is depends on the operating system, which the pod has to say.
pub(super) fn stop(signal: &str, os: Option<&str>, path: &Path, out: &mut FieldErrors) {
    let known: &[&str] = match os {
        None => return out.push(Error::forbidden(path, "may not be set for containers with empty `spec.os.name`")),
        Some("windows") => &OF_WINDOWS,
        Some("linux") => &OF_LINUX,
        Some(_) => return,
    };
    if !known.contains(&signal) {
        out.push(Error::not_supported(path, signal, known));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_signals_depend_on_the_os() {
        assert!(OF_LINUX.is_sorted());
        for (signal, os, want) in [
            ("SIGTERM", None, "p: Forbidden: may not be set for containers with empty `spec.os.name`"),
            ("SIGTERM", Some("windows"), ""),
            ("SIGHUP", Some("windows"), r#"p: Unsupported value: "SIGHUP": supported values: "SIGKILL", "SIGTERM""#),
            ("SIGRTMIN+15", Some("linux"), ""),
            ("SIGRTMAX-14", Some("linux"), ""),
            // Of what is no operating system nothing is known.
            ("SIGNONE", Some("x"), ""),
        ] {
            let mut out = FieldErrors::default();
            stop(signal, os, &Path::new("p"), &mut out);
            assert_eq!(out.iter().map(ToString::to_string).collect::<String>(), want, "{signal} {os:?}");
        }
        let mut out = FieldErrors::default();
        stop("SIGRTMIN+16", Some("linux"), &Path::new("p"), &mut out);
        assert!(
            out[0].to_string().starts_with(r#"p: Unsupported value: "SIGRTMIN+16": supported values: "SIGABRT", "#)
        );
    }
}
