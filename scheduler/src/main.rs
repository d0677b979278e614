//! The kube-scheduler binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::run::main("kube-scheduler", scheduler::run)
}
