//! The kube-controller-manager binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::run::main("kube-controller-manager", 1, controller_manager::run)
}
