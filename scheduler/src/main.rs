//! The kube-scheduler binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::run::settle_names();
    let arguments = || std::env::args_os().skip(1);
    if let Some(code) = scheduler::explain::run(arguments()).or_else(|| scheduler::replay::run(arguments())) {
        return code;
    }
    shared::run::main("kube-scheduler", scheduler::threads(shared::run::worker_threads(1)), scheduler::run)
}
