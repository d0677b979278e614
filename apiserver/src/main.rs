//! The kube-apiserver binary.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: shared::run::Blocks = shared::run::Blocks;

fn main() -> ExitCode {
    shared::run::main("kube-apiserver", shared::run::worker_threads(2), apiserver::run)
}
