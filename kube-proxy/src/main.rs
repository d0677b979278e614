//! The kube-proxy binary.

fn main() -> std::process::ExitCode {
    shared::run::main("kube-proxy", kube_proxy::run)
}
