//! The kube-proxy binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::run::settle_names();
    let arguments = || std::env::args_os().skip(1);
    if let Some(code) = kube_proxy::explain::run(arguments()).or_else(|| kube_proxy::dry_run::run(arguments())) {
        return code;
    }
    shared::run::main("kube-proxy", 2, kube_proxy::run)
}
