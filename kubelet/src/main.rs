//! The kubelet's program.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::run::main("kubelet", 2, kubelet::run)
}
