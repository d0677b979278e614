//! The kube-controller-manager binary.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: shared::run::Blocks = shared::run::Blocks;

fn main() -> ExitCode {
    shared::run::main("kube-controller-manager", shared::run::worker_threads(1), controller_manager::run)
}
