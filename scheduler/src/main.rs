//! The kube-scheduler binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = scheduler::explain::run(std::env::args_os().skip(1)) {
        return code;
    }
    shared::run::main("kube-scheduler", scheduler::run)
}
