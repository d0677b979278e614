//! The kube-proxy binary.

fn main() -> std::process::ExitCode {
    shared::run::main("kube-proxy", 2, kube_proxy::run)
}
