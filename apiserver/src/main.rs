//! The kube-apiserver binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::run::main("kube-apiserver", apiserver::run)
}
